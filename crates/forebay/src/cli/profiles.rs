//! `forebay profiles`: prints the settings of the profiles, with their sources. Uses no daemon.

use clap::Args;
use forebay_admin::{PROFILES, Profile, ProfileName};
use serde::Serialize;

use crate::exit::VerbResult;
use crate::output::{json, print_text};

/// Arguments of `profiles`.
#[derive(Debug, Args)]
pub(crate) struct ProfilesArgs {
    /// The profile [default: all]
    pub(crate) name: Option<ProfileName>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Serialize)]
struct ProfilesOutput<'a> {
    profiles: Vec<&'a Profile>,
}

/// Prints the profiles.
pub(crate) fn run(args: &ProfilesArgs) -> VerbResult {
    let profiles: Vec<&Profile> = match args.name {
        Some(name) => vec![name.profile()],
        None => PROFILES.iter().collect(),
    };
    if args.json {
        return json::print(&ProfilesOutput { profiles });
    }
    let texts: Vec<String> = profiles.into_iter().map(Profile::text).collect();
    print_text(&texts.join("\n"))
}
