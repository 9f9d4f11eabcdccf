//! `forebay list`: lists the volumes, one per line.

use clap::Args;
use forebay_admin::{VolumeList, VolumeSummary, api};
use forebay_core::units::format_size;

use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::table::{Column, Table};
use crate::output::volume::mode;
use crate::output::{json, print_text};

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print names only, one in a line
    #[arg(long, conflicts_with = "json")]
    pub(crate) names: bool,

    /// Print whole paths and the addresses of NBD, however wide the lines are
    #[arg(long, conflicts_with_all = ["json", "names"])]
    pub(crate) wide: bool,

    /// Only volumes with data that is not on the origin, or may not be
    #[arg(long)]
    pub(crate) dirty: bool,
}

/// Lists the volumes.
pub(crate) fn run(client: &DaemonClient, args: &ListArgs) -> VerbResult {
    let mut list = client.get(&api::LIST, &())?;
    if args.dirty {
        list.volumes.retain(|volume| !volume.known || volume.dirty > 0 || volume.deferred > 0);
    }
    if args.names {
        let lines = list.volumes.iter().map(|volume| format!("{}\n", volume.name));
        return print_text(&lines.collect::<String>());
    }
    if args.json { json::print(&list) } else { print_text(&render(&list, args)) }
}

/// The widest line without `--wide`, in columns.
const WIDTH: usize = 100;

fn render(list: &VolumeList, args: &ListArgs) -> String {
    if list.volumes.is_empty() {
        return if args.dirty {
            "The data of all volumes is on their origins.\n".to_owned()
        } else {
            "No volumes. Create one with 'forebay create'.\n".to_owned()
        };
    }
    let has_ram = list.volumes.iter().any(|volume| volume.ram > 0);
    let mut columns = vec![
        Column::left("NAME"),
        Column::left("STATE"),
        Column::left("MODE"),
        Column::right("SIZE"),
    ];
    if has_ram {
        columns.extend([Column::right("RAM"), Column::right("DEFERRED")]);
    }
    columns.extend([Column::right("CACHED"), Column::right("DIRTY")]);
    columns.extend(["ORIGIN", "CACHE", "DEVICE"].map(Column::path));
    if args.wide {
        columns.push(Column::left("NBD"));
    }
    let mut table = Table::new(&columns);
    for volume in &list.volumes {
        table.row(row(volume, has_ram, args.wide));
    }
    let mut text = table.render_within(if args.wide { usize::MAX } else { WIDTH });
    if list.volumes.iter().any(|volume| volume.as_of_stop) {
        text.push_str("Numbers in parentheses are those of the stop.\n");
    }
    text
}

fn row(volume: &VolumeSummary, has_ram: bool, wide: bool) -> Vec<String> {
    let held = |bytes| match (volume.known, volume.as_of_stop) {
        (true, _) => format_size(bytes),
        (false, true) => format!("({})", format_size(bytes)),
        (false, false) => "?".to_owned(),
    };
    let in_ram = |bytes| if volume.ram > 0 { format_size(bytes) } else { "-".to_owned() };
    let read_only = match (volume.read_only, wide) {
        (true, true) => ", read-only",
        (true, false) => ", ro",
        (false, _) => "",
    };
    let mut cells = vec![
        volume.name.to_string(),
        volume.state.name().to_owned(),
        format!("{}{read_only}", mode(volume.mode, volume.caching)),
        format_size(volume.size),
    ];
    if has_ram {
        cells.extend([in_ram(volume.ram), in_ram(volume.deferred)]);
    }
    let or_none = |place: &Option<String>| place.clone().unwrap_or_else(|| "-".to_owned());
    cells.extend([held(volume.used), held(volume.dirty)]);
    cells.extend([volume.origin.clone(), volume.cache.clone(), or_none(&volume.device)]);
    cells.push(or_none(&volume.nbd));
    cells
}

#[cfg(test)]
mod tests {
    use forebay_admin::report::RamReport;
    use forebay_admin::{Settings, VolumeReport, VolumeState};

    use super::*;

    fn volume(name: &str, state: VolumeState) -> VolumeReport {
        let mut report =
            VolumeReport::empty(name.parse().expect("valid"), state, Settings::default());
        report.origin.path = format!("/dev/disk/by-id/ata-ST8000NM0055-1RM112_{name}-part1");
        report.cache.path = "/dev/disk/by-id/nvme-Samsung_SSD_980_PRO_1TB-part4".to_owned();
        report.export.device = Some(format!("/dev/forebay/{name}"));
        report.export.nbd = Some(format!("nbd+unix:///{name}?socket=/run/forebay/nbd.sock"));
        (report.origin.size, report.blocks.known) = (8 << 40, true);
        (report.blocks.cached, report.blocks.dirty) = (100 << 10, 1 << 10);
        report
    }

    #[test]
    fn a_list_fits_100_columns_unless_it_may_be_wide() {
        let mut with_ram = volume("pg-data", VolumeState::Degraded);
        (with_ram.settings.read_only, with_ram.ram) = (true, Some(RamReport::default()));
        with_ram.ram.iter_mut().for_each(|ram| ram.size = 1 << 30);
        let all = [with_ram, volume("a", VolumeState::Running)];
        let list = VolumeList { volumes: all.iter().map(VolumeReport::summary).collect() };
        let args = |wide| ListArgs { json: false, names: false, wide, dirty: false };
        let text = render(&list, &args(false));
        assert!(text.lines().all(|line| line.chars().count() <= WIDTH), "{text}");
        assert!(text.contains("-part1") && text.contains("-part4"), "the ends stay: {text}");
        let wide = render(&list, &args(true));
        assert!(wide.contains("/dev/disk/by-id/nvme") && wide.contains("nbd+unix"), "{wide}");
        assert!(text.contains("writeback, ro ") && wide.contains("writeback, read-only "));
        assert!(wide.contains("DEFERRED") && !wide.contains("parentheses"), "{wide}");
    }

    #[test]
    fn a_stopped_volume_is_listed_with_the_numbers_of_its_stop() {
        let mut report = volume("v", VolumeState::Stopped);
        let line = |report: &VolumeReport| {
            let args = ListArgs { json: false, names: false, wide: false, dirty: false };
            render(&VolumeList { volumes: vec![report.summary()] }, &args)
        };
        assert!(line(&report).contains("  400M     4M  "), "{}", line(&report));
        (report.blocks.known, report.blocks.as_of_stop) = (false, true);
        let text = line(&report);
        assert!(text.contains("(400M)   (4M)") && text.contains("those of the stop"), "{text}");
        report.blocks.as_of_stop = false;
        assert!(line(&report).contains("     ?      ?  "), "{}", line(&report));
    }
}
