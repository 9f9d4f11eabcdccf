//! `forebay stop`: stops serving a volume.

use clap::Args;
use forebay_admin::{Moved, StopRequest, VolumeName, VolumeSummary, api};
use forebay_core::units::format_size;

use super::moved_by;
use crate::client::DaemonClient;
use crate::exit::{VerbResult, note};

/// Arguments of `stop`.
#[derive(Debug, Args)]
pub(crate) struct StopArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Stop it although clients are connected or its block device is in use: they get I/O errors,
    /// and a file system on it loses data that it has not written yet
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Stop it although the path of its origin or cache device leads elsewhere: the content of a
    /// file that was removed or replaced is lost
    #[arg(long)]
    pub(crate) abandon: bool,
}

/// Stops serving a volume.
pub(crate) fn run(client: &DaemonClient, args: &StopArgs) -> VerbResult {
    let request = StopRequest { force: args.force, abandon: args.abandon };
    let name = &args.name;
    let moved = moved_by(client, &api::STOP, name, &request, "Stopping")?;
    let left = client.get(&api::LIST, &()).ok();
    let left = left.as_ref().and_then(|list| list.volumes.iter().find(|it| it.name == *name));
    note(&format!("{name}: {}", stopped(moved, left)));
    Ok(())
}

/// Returns the amounts in words: data that was written back, and data that stays in the cache.
fn stopped(moved: Moved, left: Option<&VolumeSummary>) -> String {
    let mut text = format!("stopped, {} written back", format_size(moved.written_back));
    if let Some(left) = left.filter(|left| left.known || left.as_of_stop) {
        let (used, dirty) = (format_size(left.used), format_size(left.dirty));
        text.push_str(&match left.dirty {
            0 => format!("; {used} stays cached, and the origin is complete"),
            _ => format!("; {used} stays cached, {dirty} of it dirty: not on the origin yet"),
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use forebay_admin::{Settings, VolumeReport, VolumeState};

    use super::*;

    #[test]
    fn the_last_line_of_a_stop_has_amounts() {
        let name = "v".parse().expect("valid");
        let mut report = VolumeReport::empty(name, VolumeState::Stopped, Settings::default());
        let moved = Moved { written_back: 3 << 20, discarded: 0 };
        let line = |report: &VolumeReport| stopped(moved, Some(&report.summary()));
        assert_eq!(line(&report), "stopped, 3M written back");
        (report.blocks.as_of_stop, report.blocks.cached) = (true, 512);
        assert!(line(&report).ends_with("; 2M stays cached, and the origin is complete"));
        report.blocks.dirty = 256;
        assert!(
            line(&report).ends_with("; 2M stays cached, 1M of it dirty: not on the origin yet")
        );
    }
}
