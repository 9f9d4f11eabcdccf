//! `forebay start`: serves a stopped volume again.

use clap::Args;
use forebay_admin::origin_check::OriginFound;
use forebay_admin::{StartRequest, VolumeName, api};

use super::operate;
use crate::client::DaemonClient;
use crate::exit::{VerbResult, note};
use crate::output::print_line;

/// Arguments of `start`.
#[derive(Debug, Args)]
pub(crate) struct StartArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Start although the cache has lost records, or its origin was changed elsewhere: dirty blocks
    /// of the cache take precedence over the origin
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Compare every clean block of the cache with the origin first, and drop those that differ
    ///
    /// A start compares the system's record of writes, samples, the starts of partitions and
    /// filesystems, and some recently cached blocks, to notice that the origin was written
    /// elsewhere. It may miss a change of a few sectors on a device whose system keeps no such
    /// record, like an export of an NBD server, or a disk after a restart of the machine. With this
    /// option it misses none, and reads as much of the origin as the cache holds.
    #[arg(long)]
    pub(crate) verify: bool,
}

/// Serves a stopped volume again.
pub(crate) fn run(client: &DaemonClient, args: &StartArgs) -> VerbResult {
    let name = &args.name;
    let request = StartRequest { force: args.force, verify: args.verify };
    let doing = if args.verify { "Verifying" } else { "Starting" };
    operate(client, &api::START, name, &request, doing)?;
    let report = client.get(&api::SHOW, name)?;
    let Some(check) = report.origin.check else { return Ok(()) };
    if args.verify {
        print_line(&format!(
            "{} blocks were compared, {} differed",
            check.compared, check.differing
        ))?;
    }
    if check.found == OriginFound::Changed {
        note(&format!(
            "warning: the origin {} was written elsewhere ({}): {} clean blocks were dropped",
            report.origin.path, check.evidence, check.dropped
        ));
    }
    Ok(())
}
