//! `forebay start`: serves a stopped volume again.

use forebay_admin::origin_check::OriginFound;
use forebay_admin::{StartRequest, VolumeReport};

use super::operate;
use crate::cli::StartArgs;
use crate::client::Client;
use crate::exit::{Outcome, note};
use crate::output::print_line;

/// Serves a stopped volume again.
pub(super) fn run(client: &Client, args: &StartArgs) -> Outcome {
    let name = &args.name;
    let request = StartRequest { force: args.force, verify: args.verify };
    let doing = if args.verify { "Verifying" } else { "Starting" };
    operate(client, name, "start", &request, doing)?;
    let report: VolumeReport = client.get(&format!("/volumes/{name}"))?;
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
