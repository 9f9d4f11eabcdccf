//! FancyCache, deferred writes in RAM before an SSD, Iometer (2011).
//!
//! Iometer: writes only, twelve request sizes from 512 B to 1 MiB, random and sequential, 1 and 32
//! under way, on all of an SSD of 40 GB and on 976 MB of it, which is less than the cache of 1 GB;
//! cache blocks of 4 and of 16 KiB; 5 minutes each. The results are figures without numbers.
//!
//! The stack of the report is a RAM tier that defers writes, in front of the SSD (`ram`). Beside
//! it: a RAM device as the cache device, and the SSD as the origin. Acknowledged data is as
//! volatile as in the report. The SSD is the SATA model (a Vertex 2 is not described well enough to
//! calibrate it), the RAM device a link of 8 GB/s.
//!
//! The report has no reads. Some are added (`reads`): 70 and 100 of 100 requests, with a tier that
//! has been filled before.
//!
//! - `ram`: the cells on the RAM tier; `reads`: those with reads
//! - `shares`: their throughput as shares of the SSD's, in one table

mod ram;
mod reads;
mod shares;

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::BlockSize;
use forebay_device::model::ModelKind;

use crate::error::LabResult;
use crate::virtual_time::access::{Shape, Workload};
use crate::virtual_time::clients::Span;
use crate::virtual_time::timing::{Affine, Link, Timing};
use crate::virtual_time::world::{Plan, World};

use super::measure::{Context, Job, Measurement};
use super::published::{Config, Metric, Published, Report, Server};

pub(super) use shares::print as print_shares;

const SSD_BYTES: u64 = 40_000_000_000 / 4096 * 4096;
const SMALL_RANGE: u64 = 2_000_000 * 512;
const RAM_BYTES: u64 = 1 << 30;
const DEPTHS: [usize; 2] = [1, 32];
/// Block sizes of the configurations, in their order.
const BLOCKS: [u64; 2] = [4 << 10, 16 << 10];
/// Long enough that one request more or less of 1 MiB makes no difference.
const RAW_SECONDS: f64 = 20.0;
/// The report took 300 s for each of 96 cells, twice. A cell is in its steady state after this
/// time, or once it has written the cache over by half.
const WARM_UP: f64 = 4.25;
const WARM_UP_BYTES: u64 = RAM_BYTES / 2 * 3;
const SECONDS: f64 = 1.0;
/// Bytes that are measured at most: one request of 1 MiB more or less is a 500th.
const MEASURED_BYTES: u64 = RAM_BYTES / 2;

/// One measurement: a pattern within a range.
#[derive(Clone, Copy)]
struct Cell {
    whole: bool,
    random: bool,
    /// Bytes of a request.
    size: u64,
    depth: usize,
    /// Reads among a hundred requests.
    reads: u32,
}

impl Cell {
    /// The report's cells: writes only.
    fn all() -> Vec<Cell> {
        let mut all = Vec::new();
        for whole in [true, false] {
            for depth in DEPTHS {
                for random in [true, false] {
                    let cell =
                        |shift: u32| Cell { whole, random, size: 512 << shift, depth, reads: 0 };
                    all.extend((0..12).map(cell));
                }
            }
        }
        all
    }

    fn range(&self) -> &'static str {
        if self.whole { "whole" } else { "976M" }
    }

    /// Order and size.
    fn pattern(&self) -> String {
        let order = if self.random { "random" } else { "sequential" };
        let size = match self.size {
            size if size < 1024 => format!("{size}B"),
            size if size < 1 << 20 => format!("{}K", size >> 10),
            size => format!("{}M", size >> 20),
        };
        format!("{order} {size}")
    }

    fn name(&self) -> String {
        let reads =
            if self.reads > 0 { format!(", {} % reads", self.reads) } else { String::new() };
        format!("{}/{} x{}{reads}", self.range(), self.pattern(), self.depth)
    }

    /// Bytes of the range.
    fn range_bytes(&self) -> u64 {
        if self.whole { SSD_BYTES } else { SMALL_RANGE }
    }

    fn workload(&self) -> Workload {
        let shape = if self.random { Shape::Random } else { Shape::Sequential };
        let span = self.range_bytes() / self.size * self.size;
        Workload {
            shape,
            start: 0,
            span,
            len: self.size,
            writes: 100 - self.reads,
            depth: self.depth,
        }
    }

    fn claim(&self) -> Option<&'static str> {
        if self.reads > 0 {
            return None;
        }
        let small = self.size <= 8 << 10;
        match (self.whole, self.random, self.depth) {
            (_, false, _) if small => Some("Published: improves, \"even 5 times\"."),
            (true, _, 1) => Some("Published: a large gain even in the worst case."),
            (true, ..) => Some("Published: generally above the SSD."),
            (false, ..) => Some("Published: \"surprisingly great\"."),
        }
    }
}

pub(super) fn report() -> LabResult<Report> {
    let mut report = Report::parse(include_str!("../../../published/004.toml"))?;
    report.rows.extend(Cell::all().iter().chain(&reads::cells()).map(|cell| Published {
        experiment: cell.name(),
        metric: Metric::MbPerS,
        ssd_reference: None,
        note: cell.claim().map(str::to_owned),
        values: BTreeMap::new(),
    }));
    Ok(report)
}

fn ram() -> Timing {
    let link = Link { overhead: 200.0, per_byte: 0.125, latency: 500.0 };
    Timing::affine(Affine { read: link, write: link, shared: true, sync: 0 })
}

fn raw(context: &Context) -> LabResult<Vec<Measurement>> {
    let run = |cell: &Cell| {
        let timing = Timing::model(ModelKind::SataSsd, SSD_BYTES);
        let span = Span { warm_up: WARM_UP, ..Span::seconds(RAW_SECONDS) };
        let found = context.raw(timing, &cell.name(), cell.workload(), span)?;
        Ok(Measurement::of_model(Server::Ssd, cell.name(), vec![found]))
    };
    Cell::all().iter().chain(&reads::cells()).map(run).collect()
}

fn cached(context: &Context, block: u64, config: &Config, cell: &Cell) -> LabResult<Measurement> {
    let disk = (SSD_BYTES, Timing::model(ModelKind::SataSsd, SSD_BYTES));
    let plan = Plan::new((RAM_BYTES, ram()), disk, config.settings.clone(), context.seed);
    let block = BlockSize::new(block).unwrap_or(BlockSize::DEFAULT);
    let mut world = World::new(Plan { block, ..plan })?;
    let span = Span {
        warm_up: WARM_UP,
        warm_up_bytes: WARM_UP_BYTES,
        requests: Some(MEASURED_BYTES / cell.size),
        ..Span::seconds(SECONDS)
    };
    let found = context.volume(&mut world, &cell.name(), 0, cell.workload(), span)?;
    Ok(Measurement::of_volume(config, cell.name(), vec![found]))
}

pub(super) fn jobs(report: &Arc<Report>) -> Vec<Job> {
    let mut jobs = vec![Job::new("004", "bare models", 30.0, raw)];
    let on_device = report.configs.iter().filter(|config| config.settings.ram == 0);
    for (block, config) in BLOCKS.into_iter().zip(on_device) {
        for (number, cells) in Cell::all().chunks(12).enumerate() {
            let (cells, config) = (cells.to_vec(), config.clone());
            let name = format!("{}K blocks, batch {number}", block >> 10);
            jobs.push(Job::new("004", name, 20.0, move |context| {
                cells.iter().map(|cell| cached(context, block, &config, cell)).collect()
            }));
        }
    }
    let tiers = || report.configs.iter().filter(|config| config.settings.ram > 0);
    jobs.extend(tiers().flat_map(ram::jobs));
    jobs.extend(tiers().take(1).flat_map(reads::jobs));
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_cell_has_a_name_of_its_own_and_fits_its_range() {
        let cells: Vec<Cell> = Cell::all().into_iter().chain(reads::cells()).collect();
        let mut names: Vec<String> = cells.iter().map(Cell::name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!((names.len(), cells.len()), (128, 128));
        for cell in cells {
            let load = cell.workload();
            assert!(load.span % load.len == 0 && load.span <= SSD_BYTES);
            assert_eq!(load.writes + cell.reads, 100);
        }
    }
}
