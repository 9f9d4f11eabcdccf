//! One cache under a trace: the engine in virtual time, and its results.

use std::time::Duration;

use forebay_core::BlockSize;
use forebay_device::model::ModelKind;
use forebay_engine::Settings;
use forebay_policy::whatif::Prediction;

use crate::error::{LabError, LabResult};
use crate::virtual_time::clients::Server;
use crate::virtual_time::cpu::{Cpu, CpuCosts};
use crate::virtual_time::raw::Raw;
use crate::virtual_time::timing::{Affine, Link, Timing};
use crate::virtual_time::world::{Plan, World};

use super::load::Loaded;
use super::player::{Pace, Played, play};
use super::size::LogSize;

/// Time for the engine's background work after each request, where devices take no time.
const PAUSE: Duration = Duration::from_millis(1);

/// A cache to try.
#[derive(Clone, Debug)]
pub(super) struct Setup {
    pub(super) size: LogSize,
    pub(super) block: BlockSize,
    pub(super) settings: Settings,
    pub(super) seed: u64,
}

/// Results of a cache.
#[derive(Clone, Debug)]
pub(crate) struct Outcome {
    pub(super) played: Played,
    /// While requests came, and until everything was on the disk.
    pub(super) disk_busy: [Duration; 2],
    /// Virtual time from the first request until then.
    pub(super) drained: Duration,
    /// Bytes written to the disk until then.
    pub(super) disk_written: u64,
    /// The part of the second for reads.
    pub(super) disk_reading: Duration,
    /// Bytes written to the cache device, all in all.
    pub(crate) ssd_written: u64,
    /// Bytes of payload appended to the log for clients and fills, and by reclaim.
    pub(super) appended: u64,
    pub(super) carried: u64,
    /// The part of that which only was newer than the origin.
    pub(super) carried_dirty: u64,
    /// Predictions for other settings, the present ones first.
    pub(super) predictions: Vec<Prediction>,
}

impl Outcome {
    /// Returns the number of reads and writes of blocks of 4 KiB.
    pub(super) fn accesses(&self) -> u64 {
        self.played.looked.blocks
    }
}

impl Setup {
    /// Tells when there can be no log as small as was asked for.
    pub(super) fn say_if_larger(&self, bytes: u64) {
        let least = self.size.capacity_blocks;
        if least * self.block.bytes() > bytes {
            eprintln!(
                "{} blocks were asked for; the smallest log has room for {least}.",
                bytes / self.block.bytes()
            );
        }
    }

    fn world(&self, disk: u64, ssd_timing: Timing, disk_timing: Timing) -> LabResult<World> {
        World::new(Plan {
            block: self.block,
            segment_bytes: Some(self.size.segment_bytes),
            ..Plan::new(
                (self.size.device_bytes, ssd_timing),
                (disk, disk_timing),
                self.settings.clone(),
                self.seed,
            )
        })
    }

    /// On modelled devices.
    pub(super) fn timed(
        &self,
        trace: &Loaded,
        devices: (ModelKind, ModelKind),
        costs: CpuCosts,
        pace: Pace,
    ) -> LabResult<Outcome> {
        let disk = self.disk_bytes(trace);
        let (ssd, origin) = devices;
        let ssd = Timing::model(ssd, self.size.device_bytes);
        let world = self.world(disk, ssd, Timing::model(origin, disk))?;
        run(world, Cpu::new(costs), trace, pace)
    }

    /// On devices that take no time, one request after the other.
    pub(super) fn untimed(&self, trace: &Loaded) -> LabResult<Outcome> {
        let link = Link { overhead: 0.0, per_byte: 0.0, latency: 0.0 };
        let instant = Affine { read: link, write: link, shared: false, sync: 0 };
        let (ssd, disk) = (Timing::affine(instant), Timing::affine(instant));
        let world = self.world(self.disk_bytes(trace), ssd, disk)?;
        run(world, Cpu::none(), trace, Pace::Closed { depth: 1, pause: PAUSE })
    }

    /// Whole blocks, so that no block of the trace is cut.
    fn disk_bytes(&self, trace: &Loaded) -> u64 {
        trace.bytes.next_multiple_of(self.block.bytes())
    }
}

fn run(mut world: World, cpu: Cpu, trace: &Loaded, pace: Pace) -> LabResult<Outcome> {
    let (before, log_before) = (world.gauges(), world.log_counts());
    let start = world.now();
    let played = play(&mut world, cpu, &trace.requests, pace, "in virtual time")?;
    let busy = world.gauges().since(&before).disk_busy;
    let predictions = world.predictions();
    world.bring_home()?;
    let gauges = world.gauges().since(&before);
    let log = world.log_counts();
    let appended = log.appended - log_before.appended;
    let payload = log.payload - log_before.payload;
    Ok(Outcome {
        played,
        disk_busy: [busy, gauges.disk_busy].map(|busy| Duration::from_nanos(busy.0)),
        drained: world.now().since(start),
        disk_written: gauges.disk_written,
        disk_reading: Duration::from_nanos(gauges.disk_read_busy.0),
        ssd_written: gauges.ssd_written,
        appended,
        carried: payload.saturating_sub(appended),
        carried_dirty: log.carried_dirty - log_before.carried_dirty,
        predictions,
    })
}

/// The disk alone.
#[derive(Clone, Debug)]
pub(super) struct Bare {
    /// Time that the disk is busy with one request after the other in the order of the trace.
    pub(super) in_order: Duration,
    /// The part of that for reads.
    pub(super) reading: Duration,
    /// With the pace of the replay, and its own queue.
    pub(super) played: Played,
}

/// Runs the trace on the disk alone.
pub(super) fn bare(trace: &Loaded, kind: ModelKind, pace: Pace) -> LabResult<Bare> {
    let alone = |pace| {
        let mut raw = Raw::new(Timing::model(kind, trace.bytes));
        let played = play(&mut raw, Cpu::none(), &trace.requests, pace, "the bare disk")?;
        let gauges = raw.gauges();
        let busy = [gauges.disk_busy, gauges.disk_read_busy];
        Ok::<_, LabError>((busy.map(|busy| Duration::from_nanos(busy.0)), played))
    };
    let ([in_order, reading], _) = alone(Pace::Closed { depth: 1, pause: Duration::ZERO })?;
    let (_, played) = alone(pace)?;
    Ok(Bare { in_order, reading, played })
}
