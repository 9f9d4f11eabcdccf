//! Blocks per second by the share of blocks that are dirty.
//!
//! From the start of the disk on, each block is dirty with the same probability, until there are
//! enough of them. They are written in random order into a cache that writes nothing back; then all
//! of them are written back, syncs included, until the last one is marked clean. With neighbours,
//! all blocks of the range were read into the cache before.
//!
//! Two columns stand beside it. SORTED is the modelled disk with 32 sorted single blocks always in
//! its queue, which the calibration of the model has for seven densities. SWEEP is the range
//! written from start to end at the disk's 113 MB/s, of which only the dirty blocks count.

use forebay_device::model::ModelKind;
use serde::Serialize;

use crate::error::{LabResult, other};
use crate::experiments::dirty::{Dirty, settings};
use crate::output::{Goal, Row};
use crate::virtual_time::clients::Server;
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::{Plan, World};

const BLOCK: u64 = 4096;

/// The disk, in bytes.
const DISK: u64 = 2_000_000_000_000 / BLOCK * BLOCK;

/// Blocks per second of the modelled disk with 32 sorted ones in its queue, by density.
const SORTED: [(f64, f64); 7] = [
    (0.001, 303.0),
    (0.01, 423.0),
    (0.03, 739.0),
    (0.1, 1643.0),
    (0.3, 3681.0),
    (0.6, 6031.0),
    (0.9, 9297.0),
];

/// Blocks per second of a disk that writes everything.
const SWEEP: f64 = 27_600.0;

/// Maximum number of cached blocks with neighbours. Low densities then have fewer dirty blocks.
const MOST_CACHED: u64 = 1 << 20;

/// Goals of the columns.
const SORTED_GOAL: f64 = 0.9;
const SWEEP_GOAL: f64 = 0.8;
/// Density from which on filling gaps should pay.
const SWEEP_FROM: f64 = 0.3;

/// Parameters of one row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Cell {
    pub(super) share: f64,
    neighbours: bool,
    blocks: u64,
}

/// Each density without and with neighbours in the cache.
pub(super) fn cells(densities: &[f64], blocks: u64) -> Vec<Cell> {
    let both = |share: &f64| {
        let most = (MOST_CACHED as f64 * share) as u64;
        [
            Cell { share: *share, neighbours: false, blocks },
            Cell { share: *share, neighbours: true, blocks: blocks.min(most) },
        ]
    };
    densities.iter().flat_map(both).collect()
}

#[derive(Serialize)]
pub(super) struct Drained {
    density: f64,
    neighbours: bool,
    dirty_blocks: u64,
    seconds: f64,
    blocks_per_second: f64,
    /// The column of the same density, if there is one.
    sorted: Option<f64>,
    share_of_sorted: Option<f64>,
    pub(super) goal: Option<Goal>,
    sweep: f64,
    share_of_sweep: f64,
    pub(super) sweep_goal: Option<Goal>,
    most_in_flight: usize,
    written_per_dirty_byte: f64,
    disk_writes: u64,
    disk_syncs: u64,
}

impl Row for Drained {
    const COLUMNS: &'static str = "DIRTY=density | NEIGHBOURS=neighbours:no/cached | BLOCKS=dirty_blocks | s=seconds:2 | \
        BLOCKS/s=blocks_per_second:0 | SORTED=sorted:0 | SHARE=share_of_sorted:2 | \
        GOAL=goal:>=2 | SWEEP=sweep:0 | SHARE=share_of_sweep:2 | GOAL=sweep_goal:>=2 | \
        ON DISK=most_in_flight | WRITTEN/DIRTY=written_per_dirty_byte:2 | WRITES=disk_writes | \
        SYNCS=disk_syncs";
}

/// One row.
pub(super) fn measure(cell: &Cell, seed: u64) -> LabResult<Drained> {
    let dirty = Dirty::choose(cell.share, cell.blocks, seed ^ cell.share.to_bits());
    let cached = if cell.neighbours { dirty.range().end } else { 0 } + cell.blocks * BLOCK;
    // Room for headers, tables, and segments that are kept free.
    let ssd = (cached / 4 * 5 + (1 << 30)).next_multiple_of(4 << 20);
    let mut world = World::new(Plan::new(
        (ssd, Timing::model(ModelKind::SataSsd, ssd)),
        (DISK, Timing::model(ModelKind::Hdd7200, DISK)),
        settings(),
        seed,
    ))?;
    dirty.write(&mut world, cell.neighbours)?;
    let before = world.gauges();
    if before.dirty_bytes != cell.blocks * BLOCK {
        return Err(other(format!("{} bytes are dirty before it begins", before.dirty_bytes)));
    }
    let (writes, syncs) = world.disk_operations();
    world.most_on_disk();
    let seconds = world.drain()?.as_secs_f64();
    let after = world.gauges();
    let (writes, syncs) = (world.disk_operations().0 - writes, world.disk_operations().1 - syncs);
    let rate = cell.blocks as f64 / seconds;
    let sorted = SORTED.iter().find(|(share, _)| *share == cell.share).map(|(_, rate)| *rate);
    let sweep = SWEEP * cell.share;
    let wants_sweep = cell.neighbours && cell.share >= SWEEP_FROM;
    Ok(Drained {
        density: cell.share,
        neighbours: cell.neighbours,
        dirty_blocks: cell.blocks,
        seconds,
        blocks_per_second: rate,
        sorted,
        share_of_sorted: sorted.map(|sorted| rate / sorted),
        goal: sorted.map(|sorted| Goal::at_least(SORTED_GOAL, rate / sorted)),
        sweep,
        share_of_sweep: rate / sweep,
        sweep_goal: wants_sweep.then(|| Goal::at_least(SWEEP_GOAL, rate / sweep)),
        most_in_flight: world.most_on_disk(),
        written_per_dirty_byte: (after.disk_written - before.disk_written) as f64
            / (cell.blocks * BLOCK) as f64,
        disk_writes: writes,
        disk_syncs: syncs,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Dense blocks are written so fast that the start-up counts unless there are many.
    fn row(share: f64, neighbours: bool) -> Drained {
        let blocks = if share < SWEEP_FROM { 6000 } else { 20_000 };
        measure(&Cell { share, neighbours, blocks }, 1).expect("runs")
    }

    /// The shape, not the times: the disk's queue is full, few syncs, neighbours help where blocks
    /// are dense, and it is about as fast as the sorted disk.
    #[test]
    fn sweeps_keep_the_disk_busy_and_fill_gaps() {
        for share in [0.01, 0.3, 0.9] {
            let alone = row(share, false);
            assert!(alone.most_in_flight >= 32, "{share}: {}", alone.most_in_flight);
            assert!(alone.share_of_sorted > Some(0.85), "{share}: {:?}", alone.share_of_sorted);
            assert!(alone.written_per_dirty_byte < 1.001);
            assert!(
                alone.disk_syncs as f64 <= 2.0 + alone.seconds,
                "{share}: {}",
                alone.disk_syncs
            );
            let cached = row(share, true);
            assert!(cached.written_per_dirty_byte > 1.05);
            assert!(cached.disk_writes < alone.disk_writes);
            if share >= SWEEP_FROM {
                assert!(cached.blocks_per_second > 1.4 * alone.blocks_per_second);
                assert!(cached.share_of_sweep > 0.7, "{share}: {}", cached.share_of_sweep);
            }
        }
    }

    #[test]
    fn the_same_seed_gives_the_same_row() {
        let text = || serde_json::to_string(&row(0.1, true)).unwrap_or_default();
        assert_eq!(text(), text());
    }
}
