//! `forebay profiles`: prints the settings of the profiles, with their sources. Uses no daemon.

use forebay_admin::{PROFILES, Profile};
use serde::Serialize;

use crate::cli::ProfilesArgs;
use crate::exit::Outcome;
use crate::output::{json, print_text};

#[derive(Serialize)]
struct List<'a> {
    profiles: Vec<&'a Profile>,
}

/// Prints the profiles.
pub(super) fn run(args: &ProfilesArgs) -> Outcome {
    let profiles: Vec<&Profile> = match args.name {
        Some(name) => vec![name.profile()],
        None => PROFILES.iter().collect(),
    };
    if args.json {
        return json::print(&List { profiles });
    }
    let texts: Vec<String> = profiles.into_iter().map(Profile::text).collect();
    print_text(&texts.join("\n"))
}
