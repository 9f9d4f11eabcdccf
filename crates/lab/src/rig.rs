//! An engine in this process, on devices in RAM, driven by the thread that measures. There is no
//! ring, so nothing sleeps in the kernel.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_core::{BlockSize, Clock, Op, Survives};
use forebay_device::{Device, IoBuf, Queue, QueueContext};
use forebay_engine::{EngineLane, LaneContext, LaneVolume, Request, Settings, VolumeSpec};
use forebay_format::Uuid;
use forebay_lane::{Lane, LaneId};
use forebay_store::{FormatOptions, RecoveryReport, StoreLane, StoreOptions};

use crate::error::{LabError, LabResult, other};

/// The one volume of a rig.
pub(crate) const VOLUME: &str = "data";

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;

/// Rounds of tasks between requests at most, as in a lane thread.
const ROUNDS: usize = 16;

/// Longest wait.
const PATIENCE: Duration = Duration::from_secs(600);

/// A lane on the calling thread.
#[derive(Clone)]
pub(crate) struct LocalLane {
    pub(crate) context: LaneContext,
}

impl LocalLane {
    pub(crate) fn new(id: u16, clock: Arc<dyn Clock>) -> Self {
        let lane = Lane::new(LaneId(id), clock.clone(), || ());
        let queues = Rc::new(QueueContext { clock, ring: None, tasks: None });
        LocalLane { context: LaneContext { lane, queues, register: Rc::new(|_: &Queue| ()) } }
    }

    pub(crate) fn lane(&self) -> &Rc<Lane> {
        &self.context.lane
    }

    /// Lets tasks run, a bounded number of rounds. `false`: there was nothing to do.
    pub(crate) fn turn(&self) -> bool {
        for round in 0..ROUNDS {
            if !self.lane().run_ready() {
                return round > 0;
            }
        }
        true
    }

    /// Lets tasks run until `done` returns a value.
    pub(crate) fn run_until<T>(
        &self,
        what: &'static str,
        mut done: impl FnMut() -> Option<T>,
    ) -> LabResult<T> {
        let started = Instant::now();
        let mut idle = 0u32;
        loop {
            if let Some(result) = done() {
                return Ok(result);
            }
            if self.lane().run_ready() {
                idle = 0;
                continue;
            }
            idle += 1;
            if idle > 1000 {
                if started.elapsed() > PATIENCE {
                    return Err(LabError::Stuck(what, PATIENCE.as_secs()));
                }
                std::thread::sleep(Duration::from_micros(50));
            }
        }
    }

    /// Runs a future to its end.
    pub(crate) fn block_on<T: 'static>(
        &self,
        what: &'static str,
        future: impl Future<Output = T> + 'static,
    ) -> LabResult<T> {
        let result = Rc::new(RefCell::new(None));
        let inner = result.clone();
        self.lane().spawn(async move {
            let output = future.await;
            *inner.borrow_mut() = Some(output);
        });
        self.run_until(what, || result.borrow_mut().take())
    }
}

/// A cache with one volume, as the lane that opened it sees it.
pub(crate) struct Rig {
    pub(crate) local: LocalLane,
    pub(crate) engine: Rc<EngineLane>,
    /// A way to the store beside the engine's, to commit and to write checkpoints.
    pub(crate) store: Rc<StoreLane>,
}

/// Parameters of a cache.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) cache: Arc<dyn Device>,
    pub(crate) origin: Arc<dyn Device>,
    pub(crate) settings: Settings,
    pub(crate) format: FormatOptions,
    pub(crate) options: StoreOptions,
    /// Whether the devices take their memory before anything else.
    pub(crate) touched: bool,
}

impl Plan {
    /// With blocks, segments and a store as by default.
    pub(crate) fn new(cache: Arc<dyn Device>, origin: Arc<dyn Device>, settings: Settings) -> Self {
        let uuid = Uuid::from_u128(0xcac4e);
        let format = FormatOptions { block: BlockSize::DEFAULT, segment_bytes: None, uuid };
        Plan { cache, origin, settings, format, options: StoreOptions::default(), touched: false }
    }
}

/// A request without flags.
#[inline]
pub(crate) fn request(tag: u64, op: Op, offset: u64, len: u64, data: Option<IoBuf>) -> Request {
    Request { tag, op, offset, len, survives: Survives::Nothing, fast: false, no_hole: false, data }
}

/// Formats the cache device, opens it and creates the volume.
pub(crate) async fn build(context: LaneContext, plan: Plan) -> LabResult<Rc<EngineLane>> {
    let queue = context.open(&plan.cache)?;
    forebay_store::format(&plan.cache, &queue, &plan.format).await?;
    if plan.touched {
        // After formatting, which discards everything.
        touch(&context, &plan.cache).await?;
        touch(&context, &plan.origin).await?;
    }
    let (engine, _) = EngineLane::open(context, plan.cache, plan.options).await?;
    let spec = VolumeSpec {
        name: VOLUME.into(),
        origin: "origin".into(),
        uuid: Uuid::from_u128(0xda7a),
        alignment: 0,
        settings: plan.settings,
    };
    engine.create(spec, plan.origin).await?;
    Ok(engine)
}

impl Rig {
    /// A new cache on `local`.
    pub(crate) fn create(local: LocalLane, plan: Plan) -> LabResult<Self> {
        let context = local.context.clone();
        let engine = local.block_on("making a cache", build(context, plan))??;
        Self::around(local, engine)
    }

    fn around(local: LocalLane, engine: Rc<EngineLane>) -> LabResult<Self> {
        let queue = local.context.open(engine.cache.store.device())?;
        let (meter, lane) = (engine.cache.meter.clone(), local.lane());
        let queue = queue.metered(meter, lane.id().0.into(), lane.clock().clone());
        let store = StoreLane::new(engine.cache.store.clone(), local.lane().clone(), queue);
        Ok(Rig { local, engine, store })
    }

    /// Opens a cache that is there, without its volume.
    pub(crate) fn open(
        local: LocalLane,
        cache: Arc<dyn Device>,
        options: StoreOptions,
    ) -> LabResult<(Self, RecoveryReport)> {
        let opening = EngineLane::open(local.context.clone(), cache, options);
        let (engine, report) = local.block_on("opening a cache", opening)??;
        Ok((Self::around(local, engine)?, report))
    }

    /// Starts the volume.
    pub(crate) fn attach(&self, origin: Arc<dyn Device>) -> LabResult<()> {
        let engine = self.engine.clone();
        let attaching = async move { engine.attach(VOLUME, origin, false).await.map(|_| ()) };
        Ok(self.local.block_on("starting the volume", attaching)??)
    }

    /// The volume on this lane.
    pub(crate) fn target(&self) -> LabResult<Rc<LaneVolume>> {
        self.engine.target(VOLUME).ok_or_else(|| other("the volume is not running"))
    }

    /// Changes the volume's settings.
    pub(crate) fn set(&self, settings: Settings) -> LabResult<()> {
        let engine = self.engine.clone();
        let changing = async move { engine.set(VOLUME, settings).await };
        Ok(self.local.block_on("changing settings", changing)??)
    }

    /// Writes everything dirty back.
    pub(crate) fn drain(&self) -> LabResult<()> {
        let engine = self.engine.clone();
        let draining = async move { engine.drain(VOLUME, |_| Ok(())).await };
        Ok(self.local.block_on("draining", draining)??)
    }

    /// Makes everything durable that was acknowledged.
    pub(crate) fn commit(&self) -> LabResult<()> {
        let store = self.store.clone();
        self.local.block_on("a commit", async move { store.commit().await.map(|_| ()) })??;
        Ok(())
    }

    /// Writes a checkpoint.
    pub(crate) fn checkpoint(&self) -> LabResult<()> {
        let store = self.store.clone();
        self.local.block_on("a checkpoint", async move { store.checkpoint(false).await })??;
        Ok(())
    }

    /// Ends as a process does that is killed: nothing more is written.
    pub(crate) fn crash(self) {
        self.local.lane().abandon();
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        // Tasks refer to their lane, so they would keep each other alive.
        self.local.lane().abandon();
    }
}

/// Rewrites all of a device unchanged, so that its memory is allocated before the clock runs:
/// allocating a page takes longer than filling it.
pub(crate) async fn touch(context: &LaneContext, device: &Arc<dyn Device>) -> LabResult<()> {
    const CHUNK: u64 = 1 << 20;
    let queue = context.open(device)?;
    let mut buf = IoBuf::zeroed(CHUNK as usize);
    for offset in (0..device.size()).step_by(CHUNK as usize) {
        buf.truncate((device.size() - offset).min(CHUNK) as usize);
        buf = queue.read(offset, buf).await?;
        buf = queue.write(offset, buf).await?;
    }
    Ok(())
}

/// Settings under which nothing is written back unless there is no other way to make room.
pub(crate) fn no_writeback() -> Settings {
    Settings {
        dirty_high: 100,
        dirty_low: 100,
        dirty_age: Duration::ZERO,
        idle: Duration::ZERO,
        ..Settings::default()
    }
}
