//! The stack of the report: a RAM tier that defers writes, in front of the SSD. As with `forebay
//! create --ram` without a cache device, the volume below has mode passthrough and an empty cache.
//!
//! Each cell is measured twice: in steady state, and from the empty tier until everything that it
//! was given is durable on the SSD.

use forebay_device::model::ModelKind;

use crate::error::LabResult;
use crate::virtual_time::clients::{Server, Span};
use crate::virtual_time::tally::Found;
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::{Plan, World};

use super::super::measure::{Context, Job, Measurement};
use super::super::published::Config;
use super::{Cell, SSD_BYTES};

/// The empty cache below the tier, which nothing is written to.
const EMPTY_CACHE: u64 = 32 << 20;
/// Writes are deferred for a second; a quarter later the SSD is busy with the first of them.
pub(super) const WARM_UP: f64 = 1.25;
/// A cell answers half a million requests each second: more of them would show nothing else.
const SECONDS: f64 = 0.5;
/// Ends the name of the rows that include the warm-up and the last write-down.
pub(super) const TO_THE_END: &str = " to the end";

/// The tier in front of the SSD.
pub(super) fn world(context: &Context, config: &Config) -> LabResult<World> {
    let disk = (SSD_BYTES, Timing::model(ModelKind::SataSsd, SSD_BYTES));
    let empty = (EMPTY_CACHE, super::ram());
    World::new(Plan::new(empty, disk, config.settings.clone(), context.seed))
}

fn deferred(context: &Context, config: &Config, cell: &Cell) -> LabResult<[Measurement; 2]> {
    let mut world = world(context, config)?;
    let (started, before) = (world.now(), world.gauges());
    let span = Span { warm_up: WARM_UP, ..Span::seconds(SECONDS) };
    let found = context.volume(&mut world, &cell.name(), 0, cell.workload(), span)?;
    world.flush()?;
    let seconds = world.now().since(started).as_secs_f64();
    let gauges = world.gauges().since(&before);
    let mut all = Found { seconds, gauges, series: Vec::new(), ..found.clone() };
    all.writes.bytes += found.unmeasured_bytes;
    let to_the_end = Config { name: format!("{}{TO_THE_END}", config.name), ..config.clone() };
    Ok([
        Measurement::of_volume(config, cell.name(), vec![found]),
        Measurement::of_volume(&to_the_end, cell.name(), vec![all]),
    ])
}

/// The cells of one configuration, in jobs of six: the tier takes 1 GiB of RAM for each job that
/// runs.
pub(super) fn jobs(config: &Config) -> Vec<Job> {
    let batches = Cell::all();
    let batches = batches.chunks(6).enumerate();
    let job = |(number, cells): (usize, &[Cell])| {
        let (cells, config) = (cells.to_vec(), config.clone());
        let name = format!("{}, batch {number:02}", config.name);
        Job::new("004", name, 20.0, move |context| {
            let pairs = cells.iter().map(|cell| deferred(context, &config, cell));
            Ok(pairs.collect::<LabResult<Vec<_>>>()?.into_iter().flatten().collect())
        })
    };
    batches.map(job).collect()
}
