//! A cache in virtual time: the engine on one lane, two virtual devices, and a clock that jumps.
//!
//! - `ram`: a RAM tier in front of the volume
//! - `replayed`: requests of a trace, and queries about them

mod ram;
mod replayed;

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use forebay_core::{BlockSize, Clock, IoError, Nanos, Op};
use forebay_device::{Device, IoBuf};
use forebay_engine::{BlockService, Completion, CompletionSink, EngineLane, LaneVolume, Settings};
use forebay_lane::Lane;
use forebay_ram::{RamVolume, Tier};
use forebay_store::{FormatOptions, StoreOptions};

use crate::error::{LabResult, other};
use crate::ram_tier;
use crate::rig::{self, LocalLane, VOLUME, build, request};

use super::access::Access;
use super::clients::Server;
use super::device::{VirtualDevice, fill_payload};
use super::flushed::Flush;
use super::tally::Gauges;
use super::timing::Timing;

pub(crate) use replayed::{Looked, UNIT};

/// Rounds of tasks at one moment after which the engine is taken to loop for ever.
const CIRCLES: u32 = 10_000_000;

/// Longest virtual time to wait for a request or a command.
const PATIENCE: u64 = 24 * 3600 * 1_000_000_000;

/// Virtual time in which idle devices come to rest: writeback of all blocks.
const REST: u64 = 3600 * 1_000_000_000;

/// Time that only the event loop moves.
#[derive(Default)]
struct VirtualClock(AtomicU64);

impl Clock for VirtualClock {
    fn now(&self) -> Nanos {
        Nanos(self.0.load(Ordering::Relaxed))
    }
}

/// Completions, and buffers for the next requests; the last one that came back is used first, as
/// it is still in the CPU's cache.
#[derive(Default)]
struct Sink {
    ended: RefCell<Vec<u32>>,
    failed: Cell<Option<IoError>>,
    buffers: RefCell<Vec<IoBuf>>,
}

impl CompletionSink for Sink {
    fn complete(&self, completion: Completion) {
        if let Err(error) = completion.result {
            self.failed.set(Some(error));
        }
        self.ended.borrow_mut().push(completion.tag as u32);
        self.buffers.borrow_mut().extend(completion.data);
    }
}

/// Parameters of a world.
pub(crate) struct Plan {
    pub(crate) ssd: Arc<VirtualDevice>,
    pub(crate) disk: Arc<VirtualDevice>,
    pub(crate) settings: Settings,
    pub(crate) block: BlockSize,
    /// Size of a segment; without it the store chooses.
    pub(crate) segment_bytes: Option<u64>,
    pub(crate) seed: u64,
    /// Headers need not be kept: the log is never reclaimed.
    pub(crate) never_full: bool,
}

impl Plan {
    /// A cache device and a disk of these sizes in bytes, with default blocks and segments.
    pub(crate) fn new(
        (ssd_bytes, ssd): (u64, Timing),
        (disk_bytes, disk): (u64, Timing),
        settings: Settings,
        seed: u64,
    ) -> Self {
        Plan {
            ssd: VirtualDevice::cache(ssd_bytes, ssd),
            disk: VirtualDevice::origin(disk_bytes, disk),
            settings,
            block: BlockSize::DEFAULT,
            segment_bytes: None,
            seed,
            never_full: false,
        }
    }
}

pub(crate) struct World {
    machine: Machine,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
    /// The RAM tier, if the settings name one.
    tier: Option<Arc<Tier>>,
    /// Target of the clients: the volume, or the tier in front of it.
    top: Rc<dyn BlockService>,
    sink: Rc<Sink>,
    as_sink: Rc<dyn CompletionSink>,
    scratch: Vec<u8>,
    block: u64,
}

/// Clock, lane and devices: the parts that exist before there is an engine, and after.
struct Machine {
    clock: Arc<VirtualClock>,
    lane: Rc<Lane>,
    ssd: Arc<VirtualDevice>,
    disk: Arc<VirtualDevice>,
}

impl Machine {
    #[inline]
    fn next_event(&self) -> Option<Nanos> {
        let devices = [self.ssd.next_event(), self.disk.next_event(), self.lane.next_deadline()];
        devices.into_iter().flatten().min()
    }

    #[inline]
    fn advance(&self, to: Nanos) {
        self.clock.0.store(to.0, Ordering::Relaxed);
        self.ssd.drive(to);
        self.disk.drive(to);
    }

    fn block_on<T: 'static>(
        &self,
        what: &str,
        future: impl Future<Output = T> + 'static,
    ) -> LabResult<T> {
        let result = Rc::new(RefCell::new(None));
        let inner = result.clone();
        self.lane.spawn(async move {
            let output = future.await;
            *inner.borrow_mut() = Some(output);
        });
        let started = self.clock.now();
        loop {
            while self.lane.run_ready() {}
            if let Some(output) = result.borrow_mut().take() {
                return Ok(output);
            }
            let next = self.next_event().filter(|next| next.0 - started.0 < PATIENCE);
            let Some(next) = next else {
                return Err(other(format!("{what}: there is no progress any more")));
            };
            self.advance(next.max(self.clock.now()));
        }
    }
}

impl World {
    /// Formats the cache device, opens it, creates the volume, with a RAM tier if its settings say
    /// so.
    pub(crate) fn new(plan: Plan) -> LabResult<Self> {
        let Plan { ssd, disk, settings, block, segment_bytes, seed, never_full } = plan;
        let clock = Arc::<VirtualClock>::default();
        // Time 0 is before everything.
        clock.0.store(1_000_000_000, Ordering::Relaxed);
        let local = LocalLane::new(0, clock.clone());
        let options = StoreOptions {
            room_for_blocks: disk.size().div_ceil(block.bytes()),
            seed,
            ..StoreOptions::default()
        };
        let plan = rig::Plan::new(ssd.clone(), disk.clone(), settings.clone());
        let format = FormatOptions { block, segment_bytes, ..plan.format };
        let making = build(local.context.clone(), rig::Plan { format, options, ..plan });
        let machine = Machine { clock, lane: local.lane().clone(), ssd, disk };
        let engine = machine.block_on("making a cache", making)??;
        let target = engine.target(VOLUME).ok_or_else(|| other("the volume is not running"))?;
        if never_full {
            machine.ssd.stop_keeping();
        }
        let tier = ram_tier::tier(&settings, machine.clock.clone())?;
        let top: Rc<dyn BlockService> = match &tier {
            None => target.clone(),
            Some(tier) => {
                tier.simulate(target.volume().simulated(), &Arc::default());
                ram_tier::keep(tier, target.clone(), &machine.lane);
                RamVolume::new(tier.clone(), target.clone(), machine.lane.clone())
            }
        };
        let sink = Rc::<Sink>::default();
        let mut scratch = vec![0; block.as_usize()];
        fill_payload(&mut scratch);
        let (as_sink, block) = (sink.clone() as Rc<dyn CompletionSink>, block.bytes());
        Ok(World { machine, engine, target, tier, top, sink, as_sink, scratch, block })
    }

    /// Brings a range into the cache, by reading it from start to end as a client would.
    ///
    /// The SSD is given the time to write what it gets: a fill never waits for room in the log, and
    /// a disk that is faster than the SSD would leave gaps.
    pub(crate) fn warm(&mut self, range: std::ops::Range<u64>) -> LabResult<()> {
        const STEP: u64 = 1 << 20;
        // Nothing is taken from an origin that might still lose what an earlier run wrote to it.
        self.plain(Op::Flush, 0, 0)?;
        let before = self.target.volume().stats.totals().filled_blocks;
        let mut at = range.start;
        while at < range.end {
            let len = STEP.min(range.end - at);
            self.plain(Op::Read, at, len)?;
            at += len;
            while let Some(next) = self.machine.ssd.next_event() {
                self.advance(next.max(self.now()));
                self.settle(&mut Vec::new())?;
            }
        }
        let filled = self.target.volume().stats.totals().filled_blocks - before;
        let wanted = (range.end - range.start) / self.block;
        if filled < wanted {
            return Err(other(format!("{filled} of {wanted} blocks were cached for the warm-up")));
        }
        Ok(())
    }

    /// Writes everything back, as fast as the disk can; how long that took.
    pub(crate) fn drain(&mut self) -> LabResult<Duration> {
        let started = self.now();
        let engine = self.engine.clone();
        let draining = async move { engine.drain(VOLUME, |_| Ok(())).await };
        self.machine.block_on("a drain", draining)??;
        self.check()?;
        Ok(self.now().since(started))
    }

    /// The most operations that were under way together on the disk since this was last asked.
    pub(crate) fn most_on_disk(&self) -> usize {
        self.machine.disk.most_in_flight()
    }

    /// Writes and syncs that the disk has served.
    pub(crate) fn disk_operations(&self) -> (u64, u64) {
        let counters = self.machine.disk.counters();
        (counters.writes, counters.syncs)
    }

    /// Reads, writes and syncs that the disk has served.
    pub(crate) fn disk_accesses(&self) -> u64 {
        let counters = self.machine.disk.counters();
        counters.reads + counters.writes + counters.syncs
    }

    /// Bytes that the cache can hold if every record is full.
    pub(crate) fn capacity_bytes(&self) -> u64 {
        self.engine.cache.store.capacity_blocks() * self.block
    }

    /// A request without data, to its end.
    pub(crate) fn plain(&mut self, op: Op, offset: u64, len: u64) -> LabResult<()> {
        self.top.submit(request(0, op, offset, len, None), &self.as_sink);
        self.finish()?;
        // Nothing takes the data of a read from here.
        self.sink.buffers.borrow_mut().clear();
        Ok(())
    }

    /// Changes the timing of the cache device, once it is idle.
    pub(crate) fn replace_ssd(&mut self, timing: Timing) -> LabResult<()> {
        self.rest()?;
        if self.machine.ssd.replace_timing(timing) {
            return Ok(());
        }
        Err(other("the cache device is busy although there are no requests"))
    }

    /// Changes the timing of both devices, once they are idle.
    pub(crate) fn replace_devices(&mut self, ssd: Timing, disk: Timing) -> LabResult<()> {
        self.replace_ssd(ssd)?;
        if self.machine.disk.replace_timing(disk) {
            return Ok(());
        }
        Err(other("the disk is busy although there are no requests"))
    }

    /// A write to its end.
    pub(crate) fn write(&mut self, offset: u64, len: u64) -> LabResult<()> {
        if self.start(0, &Access { offset, len, write: true })? {
            return self.settle(&mut Vec::new());
        }
        self.finish()
    }

    /// Makes all durable, and waits until both devices have nothing to do.
    fn rest(&mut self) -> LabResult<()> {
        self.plain(Op::Flush, 0, 0)?;
        let busy =
            |world: &World| [world.machine.ssd.next_event(), world.machine.disk.next_event()];
        let started = self.now();
        while let Some(next) = busy(self).into_iter().flatten().min() {
            if next.0 - started.0 > REST {
                return Err(other("the devices do not come to rest"));
            }
            self.advance(next.max(self.now()));
            self.settle(&mut Vec::new())?;
        }
        Ok(())
    }

    fn check(&self) -> LabResult<()> {
        match self.sink.failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    #[cold]
    fn submit(&mut self, client: u32, access: &Access) {
        let mut buffers = self.sink.buffers.borrow_mut();
        let buffer = buffers.pop().filter(|buffer| buffer.len() as u64 == access.len);
        drop(buffers);
        let data = buffer.unwrap_or_else(|| {
            let mut new = IoBuf::zeroed(access.len as usize);
            fill_payload(&mut new);
            new
        });
        let op = if access.write { Op::Write } else { Op::Read };
        let request = request(client.into(), op, access.offset, access.len, Some(data));
        self.top.submit(request, &self.as_sink);
    }
}

impl Flush for World {
    fn start_flush(&mut self, client: u32) {
        self.top.submit(request(client.into(), Op::Flush, 0, 0, None), &self.as_sink);
    }
}

impl Server for World {
    fn now(&self) -> Nanos {
        self.machine.clock.now()
    }

    #[inline]
    fn start(&mut self, client: u32, access: &Access) -> LabResult<bool> {
        if access.len <= self.block {
            let own = &mut self.scratch[..access.len as usize];
            let done = if access.write {
                self.top.write_now(access.offset, own)
            } else {
                self.top.read_now(access.offset, own)
            };
            if let Some(result) = done {
                result?;
                return Ok(true);
            }
        }
        self.submit(client, access);
        Ok(false)
    }

    #[inline]
    fn settle(&mut self, ended: &mut Vec<u32>) -> LabResult<()> {
        let mut rounds = 0;
        while self.machine.lane.run_ready() {
            rounds += 1;
            if rounds > CIRCLES {
                return Err(other("the engine loops without end while no time passes"));
            }
        }
        ended.append(&mut self.sink.ended.borrow_mut());
        self.check()
    }

    #[inline]
    fn next_event(&self) -> Option<Nanos> {
        self.machine.next_event()
    }

    #[inline]
    fn advance(&mut self, to: Nanos) {
        self.machine.advance(to);
    }

    fn gauges(&self) -> Gauges {
        let totals = self.target.volume().stats.totals();
        let (ssd, disk) = (self.machine.ssd.counters(), self.machine.disk.counters());
        let below = (
            totals.read_hits + totals.write_hits,
            totals.read_partial + totals.read_misses + totals.write_misses,
        );
        let (hits, misses) = self.ram_counts().map_or(below, |ram| (ram.hits, ram.misses));
        Gauges {
            hits,
            misses,
            ssd_read: ssd.read_bytes,
            ssd_written: ssd.written_bytes,
            disk_read: disk.read_bytes,
            disk_written: disk.written_bytes,
            disk_busy: Nanos(disk.busy.as_nanos() as u64),
            disk_read_busy: Nanos(disk.read_busy.as_nanos() as u64),
            ssd_busy: Nanos(ssd.busy.as_nanos() as u64),
            dirty_bytes: self.target.volume().dirty_blocks() * self.block + self.deferred_bytes(),
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        // Tasks refer to their lane, so they would keep each other alive.
        self.machine.lane.abandon();
    }
}

#[cfg(test)]
mod tests;
