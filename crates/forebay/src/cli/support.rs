//! `forebay support`: collects a bug report's files into an archive, without data of users and
//! without secrets.
//!
//! - [`collect`]: the texts of the archive
//! - [`redact`]: replaces secrets in them
//! - [`archive`]: the file

mod archive;
mod collect;
mod redact;

use std::path::PathBuf;

use clap::{Args, ValueHint};
use forebay_admin::ApiError;
use time::OffsetDateTime;
use time::macros::format_description;

use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::print_text;
use redact::Redactor;

/// Arguments of `support`.
#[derive(Debug, Args)]
pub(crate) struct SupportArgs {
    /// The archive, a new file [default: forebay-support-TIME.tar.gz in the working directory]
    #[arg(value_hint = ValueHint::FilePath)]
    pub(crate) file: Option<PathBuf>,

    /// Directory of the daemon's state [default: that of the running daemon, or else as 'forebay
    /// daemon']
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
}

/// The archive's explanation of stand-ins.
const REPLACED: &str = "\
Replaced by stand-ins, the same one for the same value: the name of this host, hosts in URIs (host-N), addresses of
IPv4, IPv6 and Ethernet other than loopback ones (address-N), users below /home (user-N). Removed: users and
passwords in URIs, parameters of URIs that are not known to be harmless, values of passwords, secrets, tokens and the
like, keys and certificates, and the paths of their files. There is no data of volumes.

Not replaced: names of volumes, paths of devices and files, names of exports. Read it before you hand it on.
";

/// Writes the archive, and prints its content.
pub(crate) fn run(client: &DaemonClient, args: SupportArgs) -> VerbResult {
    let format = format_description!("[year][month][day]-[hour][minute][second]");
    let time = OffsetDateTime::now_utc().format(format);
    let time = time.map_err(|error| ApiError::failed(error.to_string()))?;
    let dir = format!("forebay-support-{time}");
    let path = args.file.unwrap_or_else(|| PathBuf::from(format!("{dir}.tar.gz")));
    let mut redactor = Redactor::default();
    let found = collect::everything(client, args.state_dir, &mut redactor)?;
    for (_, text) in &found.texts {
        redactor.learn(text);
    }
    let mut about = format!("Collected by forebay {} at {time} UTC.\n", env!("CARGO_PKG_VERSION"));
    if let Some(down) = &found.down {
        about.push_str(&format!(
            "The daemon does not answer, so its reports, metrics and log are missing: {down}\n"
        ));
    }
    for missing in &found.missing {
        about.push_str(&format!("Missing: {missing}\n"));
    }
    let about = format!("{}\n{REPLACED}", redactor.redact(&about));
    let mut texts = vec![("README".to_owned(), about.clone())];
    texts.extend(found.texts.iter().map(|(name, text)| (name.clone(), redactor.redact(text))));
    archive::write(&path, &dir, &texts)?;
    let mut said = String::new();
    for (name, text) in &texts {
        said.push_str(&format!("{:>9}  {name}\n", text.len()));
    }
    said.push_str(&format!("\n{about}\n{}\n", path.display()));
    print_text(&said)
}
