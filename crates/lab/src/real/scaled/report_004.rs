//! The report on FancyCache at 1:16 in size and time of deferral: the bare SSD, and a RAM tier that
//! defers writes in front of it.

use super::Row;
use super::experiment::{Addresses, Configuration, DeviceKind, Experiment};
use crate::experiments::seeds::report_004::Cell;
use crate::experiments::seeds::report_004::shares::{Shares, print_table};

/// Number of the report.
pub(super) const NUMBER: &str = "004";

const SCALE: u64 = 16;
const MIB: u64 = 1 << 20;

const CONFIGURATIONS: [Configuration; 3] =
    [Configuration::CacheDevice, Configuration::Deferred4K, Configuration::Deferred16K];

/// All cells, each with the configurations that it is run with.
pub(super) fn experiments() -> Vec<(Experiment, Vec<Configuration>)> {
    Cell::all().iter().map(|cell| (experiment(cell), CONFIGURATIONS.to_vec())).collect()
}

fn experiment(cell: &Cell) -> Experiment {
    // Whole requests of every size.
    let span = cell.range_bytes() / SCALE / MIB * MIB;
    Experiment {
        report: NUMBER.to_owned(),
        name: cell.name(),
        origin: DeviceKind::SataSsd,
        origin_bytes: span,
        cache: DeviceKind::SataSsd,
        cache_bytes: span,
        preparation: None,
        span,
        block: cell.size,
        write_percent: 100,
        addresses: if cell.random { Addresses::Uniform } else { Addresses::Sequential },
        jobs: 1,
        depth: cell.depth as u32,
        ramp_seconds: 2,
        seconds: 2,
    }
}

/// Prints the throughput of the tier as a share of the bare device's, if `rows` have it.
pub(super) fn print(rows: &[Row]) {
    let throughput = |cell: &Cell, configuration: Configuration| {
        let (name, config) = (cell.name(), configuration.name());
        let own =
            |row: &&Row| row.report == NUMBER && row.experiment == name && row.config == config;
        rows.iter().find(own).map(|row| row.bytes_per_second)
    };
    let share = |cell: &Cell, configuration| {
        let bare = throughput(cell, Configuration::CacheDevice)?;
        Some(throughput(cell, configuration)? / bare.max(1e-9))
    };
    let of = |configuration: Configuration| Shares {
        config: configuration.name().to_owned(),
        steady: Cell::all().iter().map(|cell| share(cell, configuration)).collect(),
        to_the_end: Vec::new(),
    };
    let all = [of(Configuration::Deferred4K), of(Configuration::Deferred16K)];
    if all[0].steady.iter().all(Option::is_none) {
        return;
    }
    println!(
        "RAM tier: throughput divided by the bare SSD's, both with fio over NBD. With small requests NBD and\n\
         fio are the limit of both."
    );
    print_table(&all);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_cell_is_measured_on_whole_requests() {
        let all = experiments();
        assert_eq!(all.len(), 96);
        for (experiment, _) in all {
            assert!(experiment.span % experiment.block == 0 && experiment.span >= 60 * MIB);
        }
    }
}
