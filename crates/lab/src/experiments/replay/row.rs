//! Rows that a replay prints.

use forebay_core::units::format_size;
use serde::Serialize;

use crate::error::LabResult;
use crate::output::{Row, list, table};
use crate::virtual_time::world::UNIT;

use super::cache::{Bare, Outcome, Setup};
use super::load::Loaded;
use super::player::{Direction, Pace};
use super::ram::RamRow;
use super::tuning::Tuned;

/// Miss ratios and wear of a log; the fields that `forebay-lab policies` has are the same.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Misses {
    pub(crate) policy: &'static str,
    /// Blocks of the cache that may live in the log.
    pub(crate) capacity_blocks: u64,
    /// The most that did, looked at from time to time.
    pub(crate) most_live_blocks: u64,
    pub(crate) segments: u32,
    pub(crate) segment_bytes: u64,
    /// Share of accesses to blocks of 4 KiB, reads and writes, that missed.
    pub(crate) block_miss_ratio: f64,
    /// Share of accesses whose block was cached, but without all sectors that were read.
    pub(crate) uncovered_ratio: f64,
    pub(crate) request_miss_ratio: f64,
    pub(crate) read_request_miss_ratio: Option<f64>,
    /// Bytes written to the cache device, headers and checkpoints included, for each byte of blocks
    /// accessed.
    pub(crate) ssd_bytes_per_byte: f64,
    /// The part of them that reclaim wrote once more: blocks that are worth keeping, and others
    /// that were newer than the origin.
    pub(crate) carried_kept_share: f64,
    pub(crate) carried_dirty_share: f64,
    pub(crate) layout: &'static str,
}

pub(super) fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole.max(1) as f64
}

impl Misses {
    pub(super) fn new(setup: &Setup, outcome: &Outcome) -> Self {
        let played = &outcome.played;
        let reads = played.reads.tally.requests;
        let requests = reads + played.writes.tally.requests;
        let blocks = played.looked.blocks;
        Misses {
            policy: setup.settings.policy.name(),
            capacity_blocks: setup.size.capacity_blocks,
            most_live_blocks: played.most_live,
            segments: setup.size.segments,
            segment_bytes: setup.size.segment_bytes,
            block_miss_ratio: ratio(played.looked.missed, blocks),
            uncovered_ratio: ratio(played.looked.uncovered, blocks),
            request_miss_ratio: ratio(played.missed_requests, requests),
            read_request_miss_ratio: (reads > 0).then(|| ratio(played.missed_reads, reads)),
            ssd_bytes_per_byte: ratio(outcome.ssd_written, blocks * UNIT),
            carried_kept_share: ratio(
                outcome.carried.saturating_sub(outcome.carried_dirty),
                outcome.ssd_written,
            ),
            carried_dirty_share: ratio(outcome.carried_dirty, outcome.ssd_written),
            layout: "log",
        }
    }
}

/// Latencies of a direction in microseconds, from the time the request was due to its answer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(super) struct Latency {
    requests: u64,
    pub(super) mean_us: f64,
    p50_us: f64,
    pub(super) p99_us: f64,
    max_us: f64,
}

impl Latency {
    fn of(direction: &Direction) -> Option<Self> {
        let tally = &direction.tally;
        (tally.requests > 0).then(|| Latency {
            requests: tally.requests,
            mean_us: tally.mean() / 1000.0,
            p50_us: tally.latencies.quantile(0.5) / 1000.0,
            p99_us: tally.latencies.quantile(0.99) / 1000.0,
            max_us: direction.longest as f64 / 1000.0,
        })
    }
}

/// One cache under one trace.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(super) struct Replayed {
    #[serde(flatten)]
    pub(super) misses: Misses,
    pub(super) ram: Option<RamRow>,
    /// Blocks that may live in the log, as a share of the trace's blocks.
    size: f64,
    mode: &'static str,
    durability: &'static str,
    pub(super) block_bytes: u64,
    sequential_cutoff: u64,
    settings: Tuned,
    timing: String,
    depth: usize,
    /// Virtual time.
    seconds: f64,
    /// Payload appended to the log for each byte that was read or written, for clients and fills;
    /// and once more by reclaim.
    log_bytes_per_user_byte: f64,
    carried_bytes_per_user_byte: f64,
    /// While requests came, and with the writeback of everything after them.
    disk_busy_seconds: f64,
    pub(super) disk_busy_drained_seconds: f64,
    /// Until everything is on the disk.
    drained_seconds: f64,
    disk_written_bytes: u64,
    pub(super) ssd_written_bytes: u64,
    ordered: bool,
    /// The part of that for reads; the rest is for writes.
    disk_reading_seconds: f64,
    /// The disk alone, in order of arrival, one request at a time.
    bare_disk_busy_seconds: f64,
    bare_disk_reading_seconds: f64,
    /// The disk alone by the cache with all its writeback; none if nothing reached the disk.
    bare_by_drained: Option<f64>,
    pub(super) reads: Option<Latency>,
    pub(super) writes: Option<Latency>,
    /// Latencies of the disk alone, asked at the same pace.
    bare_reads: Option<Latency>,
    bare_writes: Option<Latency>,
}

impl Replayed {
    pub(super) fn new(
        setup: &Setup,
        trace: &Loaded,
        outcome: &Outcome,
        bare: &Bare,
        (timing, pace): (String, Pace),
    ) -> Self {
        let settings = &setup.settings;
        let misses = Misses::new(setup, outcome);
        let played = &outcome.played;
        let user = played.reads.tally.bytes + played.writes.tally.bytes;
        let [busy, drained] = outcome.disk_busy.map(|busy| busy.as_secs_f64());
        let alone = bare.in_order.as_secs_f64();
        let units = misses.capacity_blocks * setup.block.bytes() / UNIT;
        Replayed {
            size: ratio(units, trace.blocks),
            misses,
            ram: RamRow::new(settings, outcome),
            mode: settings.mode.name(),
            durability: settings.durability.name(),
            block_bytes: setup.block.bytes(),
            sequential_cutoff: settings.sequential_cutoff,
            settings: Tuned::of(settings),
            timing,
            depth: pace.depth(),
            seconds: played.seconds,
            log_bytes_per_user_byte: ratio(outcome.appended, user),
            carried_bytes_per_user_byte: ratio(outcome.carried, user),
            disk_busy_seconds: busy,
            disk_busy_drained_seconds: drained,
            drained_seconds: outcome.drained.as_secs_f64(),
            disk_written_bytes: outcome.disk_written,
            ssd_written_bytes: outcome.ssd_written,
            ordered: settings.ordered,
            disk_reading_seconds: outcome.disk_reading.as_secs_f64(),
            bare_disk_busy_seconds: alone,
            bare_disk_reading_seconds: bare.reading.as_secs_f64(),
            bare_by_drained: (drained > 0.0).then(|| alone / drained),
            reads: Latency::of(&played.reads),
            writes: Latency::of(&played.writes),
            bare_reads: Latency::of(&bare.played.reads),
            bare_writes: Latency::of(&bare.played.writes),
        }
    }

    pub(super) fn print(&self) -> LabResult<()> {
        let misses = &self.misses;
        println!(
            "{} {} {}, {} timing, depth {}: {} blocks of {} may live in {} segments of {}, {:.1} % of the trace's",
            misses.policy,
            self.mode,
            self.durability,
            self.timing,
            self.depth,
            misses.capacity_blocks,
            format_size(self.block_bytes),
            misses.segments,
            format_size(misses.segment_bytes),
            self.size * 100.0,
        );
        if self.ordered {
            println!("ordered writeback");
        }
        if self.sequential_cutoff == 0 {
            println!("sequential cut-off: off");
        }
        println!("\n{}", list(self, FOUND)?);
        let all = [
            ("reads", self.reads),
            ("writes", self.writes),
            ("bare disk: reads", self.bare_reads),
            ("bare disk: writes", self.bare_writes),
        ];
        let named =
            all.into_iter().filter_map(|(name, latency)| Some(Named { name, latency: latency? }));
        print!("{}", table(&named.collect::<Vec<_>>())?);
        Ok(())
    }
}

/// The lines about one replay.
const FOUND: &str = "blocks missed=block_miss_ratio:4 | \
    of all, cached without the sectors=uncovered_ratio:4 | requests missed=request_miss_ratio:4 | \
    reads missed=read_request_miss_ratio:4 | SSD bytes/byte accessed=ssd_bytes_per_byte:4 | \
    log bytes/user byte=log_bytes_per_user_byte:4 | \
    reinserted/user byte=carried_bytes_per_user_byte:4 | \
    of all written bytes, reinserted as worth keeping=carried_kept_share:4 | \
    of all written bytes, reinserted as dirty=carried_dirty_share:4 | \
    most blocks in the cache=most_live_blocks | virtual time, s=seconds:1 | \
    disk busy, s=disk_busy_seconds:1 | with writeback of the rest=disk_busy_drained_seconds:1 | \
    virtual time until then=drained_seconds:1 | bytes written to the disk=disk_written_bytes:bytes | \
    disk busy with reads, s=disk_reading_seconds:1 | \
    bare disk, in order of arrival, s=bare_disk_busy_seconds:1 | \
    bare disk, reads=bare_disk_reading_seconds:1 | bare disk/with writeback=bare_by_drained:2";

impl Row for Replayed {
    const COLUMNS: &'static str = "BLOCKS=capacity_blocks | RAM=ram.bytes:bytes | POLICY=ram.policy | \
        DEFERRED s=ram.deferred_seconds:0 | IN RAM=ram.block_hit_ratio:4 | \
        BLOCKS MISSED=block_miss_ratio:4 | READS MISSED=read_request_miss_ratio:4 | \
        SSD WRITTEN=ssd_written_bytes:bytes | READ MEAN us=reads.mean_us:1 | \
        p99=reads.p99_us:1 | WRITE MEAN us=writes.mean_us:1 | p99=writes.p99_us:1 | \
        DISK BUSY s=disk_busy_drained_seconds:1";
}

/// Latencies with their name.
#[derive(Serialize)]
struct Named {
    name: &'static str,
    #[serde(flatten)]
    latency: Latency,
}

impl Row for Named {
    const COLUMNS: &'static str = "LATENCY, us=name | REQUESTS=requests | MEAN=mean_us:1 | p50=p50_us:1 | \
        p99=p99_us:1 | MAX=max_us:1";
}
