//! `forebay set`: changes settings of a volume.

use clap::Args;
use forebay_admin::{Assignments, SetRequest, VolumeName, api};

use super::operate;
use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::note;
use crate::output::volume::waits_for_start;

/// Arguments of `set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Settings and their new values
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
}

/// Changes settings.
pub(crate) fn run(client: &DaemonClient, args: &SetArgs) -> VerbResult {
    change(client, &args.name, Assignments::parse(&args.settings)?)
}

/// Changes settings of a volume, and names those that take effect only when it is started again.
pub(super) fn change(
    client: &DaemonClient,
    name: &VolumeName,
    settings: Assignments,
) -> VerbResult {
    let concerns_ram = settings.iter().any(|(setting, _)| ["ram", "ram_block"].contains(&setting));
    operate(client, &api::SET, name, &SetRequest { settings }, "Changing")?;
    if concerns_ram {
        let report = client.get(&api::SHOW, name)?;
        if let Some(setting) = waits_for_start(&report) {
            note(&format!(
                "{setting} takes effect when the volume is started again: 'forebay stop {name}', 'forebay start {name}'"
            ));
        }
    }
    Ok(())
}
