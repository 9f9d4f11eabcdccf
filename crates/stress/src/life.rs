//! One life of a cache: one thread per lane, clients on all lanes, and power cuts at any instant.

use std::cell::Cell;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use forebay_core::{BlockSize, Clock, Mode, ReplacementKind};
use forebay_engine::{
    BlockService, Cache, EngineError, EngineLane, LaneContext, Settings, VolumeSpec,
};
use forebay_format::Uuid;
use forebay_lane::{Lane, MonotonicClock};
use forebay_ram::{Deferral, RamBlock, RamVolume, Tier, TierOptions, write_down};
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{FormatOptions, StoreOptions};
use parking_lot::{Mutex, RwLock};

use crate::after::{Cut, check_cut};
use crate::client::{BLOCK, Clients, SECTORS};
use crate::disk::{Book, Disk, Power};
use crate::model::SectorModel;
use crate::own_lane::{OwnLane, PATIENCE, VOLUME};
use crate::plan::{Failing, Plan, RamTier};
use crate::stamp::Sequence;

/// Time between two changes of mode.
const MODE_STAYS: Duration = Duration::from_millis(25);
/// Minimum time between two power cuts, each of which copies all devices.
const CUT_EVERY: Duration = Duration::from_millis(40);

/// The state that all threads share.
struct Life {
    plan: Plan,
    seed: u64,
    lanes: u16,
    power: Power,
    cache: Arc<Disk>,
    origin: Arc<Disk>,
    book: Arc<Book>,
    model: Arc<SectorModel>,
    clock: Arc<dyn Clock>,
    tier: Option<Arc<Tier>>,
    ended: Arc<AtomicU16>,
    cutting: AtomicBool,
    cuts: SyncSender<Cut>,
    last_cut: Mutex<Instant>,
    /// Set by lane 0 when the cache is closed.
    closed: AtomicBool,
}

impl Life {
    /// Cuts the power, unless it was cut a moment ago.
    fn perhaps_cut(&self, random: &mut fastrand::Rng) {
        if self.last_cut.lock().elapsed() < CUT_EVERY || self.cutting.swap(true, Ordering::SeqCst) {
            return;
        }
        let cut = self.cut(random);
        *self.last_cut.lock() = Instant::now();
        self.cutting.store(false, Ordering::SeqCst);
        // If the previous cut is still being checked, this one is skipped.
        _ = self.cuts.try_send(cut);
    }

    fn cut(&self, random: &mut fastrand::Rng) -> Cut {
        // Read before the power fails: by then more writes may be durable, but not fewer.
        let durable = self.model.durable();
        let _cut = self.power.write();
        Cut {
            cache: self.cache.left(random),
            origin: self.origin.left(random),
            notes: self.book.left(),
            durable,
        }
    }

    fn options(&self) -> StoreOptions {
        StoreOptions {
            lanes: usize::from(self.lanes),
            commit_interval: Duration::from_millis(40),
            checkpoint_bytes: Some(4 << 20),
            shards: self.plan.shards,
            ..StoreOptions::default()
        }
    }

    /// Formats and opens the cache device, and creates the volume.
    async fn create(self: Arc<Self>, context: LaneContext) -> Result<Rc<EngineLane>, EngineError> {
        let device = self.cache.device();
        let queue = context.open(&device)?;
        let uuid = Uuid::from_u128(0x5eed);
        let format =
            FormatOptions { block: BlockSize::DEFAULT, segment_bytes: Some(256 << 10), uuid };
        forebay_store::format(&device, &queue, &format).await?;
        let (engine, _) = EngineLane::open(context, device, self.options()).await?;
        engine.cache.set_ledger(self.book.clone());
        let spec = VolumeSpec {
            name: VOLUME.to_owned(),
            origin: "origin".to_owned(),
            uuid: Uuid::from_u128(0xda7a),
            alignment: 0,
            settings: self.plan.settings.clone(),
        };
        engine.create(spec, self.origin.device()).await?;
        Ok(engine)
    }

    /// The whole work of a lane's thread.
    fn run_lane(self: Arc<Self>, number: u16, engine: Rc<EngineLane>, own: &OwnLane) {
        let Some(lower) = engine.target(VOLUME) else {
            self.model.violated("the volume does not run".to_owned());
            return;
        };
        let lane = own.context.lane.clone();
        let lower: Rc<dyn BlockService> = lower;
        let volume: Rc<dyn BlockService> = match &self.tier {
            None => lower.clone(),
            Some(tier) => {
                if number == 0 && matches!(self.plan.ram, RamTier::Deferred(_)) {
                    lane.spawn(write_down::keep(tier.clone(), lower.clone(), lane.clone()));
                }
                RamVolume::new(tier.clone(), lower.clone(), lane.clone())
            }
        };
        let modes = (number == 0 && self.plan.changes_mode)
            .then(|| Modes::new(self.clone(), engine.clone(), lane.clone()));
        let mut clients = Clients::new(
            (number, self.lanes),
            self.plan.clone(),
            &self.model,
            volume,
            lane.clone(),
            (&self.ended, self.seed),
        );
        let cuts = self.clone();
        let durable = move |random: &mut fastrand::Rng| cuts.perhaps_cut(random);
        clients.run(durable, || modes.iter().for_each(Modes::perhaps_change));
        self.close(number, &engine, own, &lower);
        if lane.panics() > 0 {
            self.model.violated(format!("{} tasks of lane {number} have panicked", lane.panics()));
        }
        let corrupt = engine.cache.store.counters.corrupt_blocks.load(Ordering::Relaxed);
        if corrupt > 0 {
            self.model.violated(format!("{corrupt} blocks differ from their checksums"));
        }
        lane.abandon();
    }

    /// Closes the cache in order, with all lanes; all acknowledged data is then stored.
    fn close(
        &self,
        number: u16,
        engine: &Rc<EngineLane>,
        own: &OwnLane,
        lower: &Rc<dyn BlockService>,
    ) {
        if number > 0 {
            let began = Instant::now();
            while !self.closed.load(Ordering::SeqCst) && began.elapsed() < PATIENCE {
                if !own.context.lane.run_ready() {
                    thread::yield_now();
                }
            }
            return;
        }
        let (closing, tier, lower) = (engine.clone(), self.tier.clone(), lower.clone());
        let closed = own.block_on(async move {
            if let Some(tier) = tier {
                write_down::all(&tier, &lower).await.map_err(|error| format!("{error:?}"))?;
            }
            closing.close().await.map_err(|error| error.to_string())
        });
        self.closed.store(true, Ordering::SeqCst);
        match closed {
            None => self.model.violated("the cache is not closed".to_owned()),
            Some(Err(error)) => self.model.failed(&format!("the cache is not closed: {error}")),
            Some(Ok(())) if self.model.violation().is_none() => {
                let acknowledged = self.model.acknowledged();
                self.model.flushed(&acknowledged);
                let mut random = fastrand::Rng::with_seed(self.seed);
                let cut = self.cut(&mut random);
                _ = self.cuts.send(cut);
            }
            Some(Ok(())) => (),
        }
    }
}

/// Changes the mode again and again.
struct Modes {
    life: Arc<Life>,
    engine: Rc<EngineLane>,
    lane: Rc<Lane>,
    changing: Rc<Cell<bool>>,
    last: Cell<Instant>,
    through: Cell<bool>,
}

impl Modes {
    fn new(life: Arc<Life>, engine: Rc<EngineLane>, lane: Rc<Lane>) -> Self {
        let (changing, last) = (Rc::default(), Cell::new(Instant::now()));
        Modes { life, engine, lane, changing, last, through: Cell::new(false) }
    }

    fn perhaps_change(&self) {
        let early = self.last.get().elapsed() < MODE_STAYS;
        if early || self.changing.get() || self.life.model.ends() {
            return;
        }
        self.last.set(Instant::now());
        self.changing.set(true);
        self.through.set(!self.through.get());
        let mode = if self.through.get() { Mode::Writethrough } else { Mode::Writeback };
        let (life, engine, changing) =
            (self.life.clone(), self.engine.clone(), self.changing.clone());
        self.lane.spawn(async move {
            let settings = Settings { mode, ..life.plan.settings.clone() };
            if let Err(error) = engine.set(VOLUME, settings).await {
                life.model.failed(&format!("the mode cannot be changed: {error}"));
            }
            life.model.counts.modes.fetch_add(1, Ordering::Relaxed);
            if mode == Mode::Writethrough && life.plan.compares_origin() {
                let acknowledged = life.model.acknowledged();
                if let Err(error) = engine.drain(VOLUME, |_| Ok(())).await {
                    life.model.failed(&format!("the volume cannot be drained: {error}"));
                }
                compare_origin(&life, &acknowledged);
            }
            changing.set(false);
        });
    }
}

/// Checks that the origin contains everything that was acknowledged before a drain.
fn compare_origin(life: &Life, acknowledged: &[Sequence]) {
    let mut block = vec![0; BLOCK as usize];
    for number in 0..life.plan.blocks {
        life.origin.read(number * BLOCK, &mut block);
        let first = number * SECTORS;
        let least = &acknowledged[first as usize..(first + SECTORS) as usize];
        life.model.check(first, &block, least, "the origin after a drain");
    }
}

fn tier_of(plan: &Plan, clock: &Arc<dyn Clock>) -> Option<Arc<Tier>> {
    let (RamTier::Copies(bytes) | RamTier::Deferred(bytes)) = plan.ram else { return None };
    let options = TierOptions {
        bytes,
        block: RamBlock::new(BLOCK)?,
        policy: ReplacementKind::Lru,
        strategy: plan.settings.ram_strategy,
        locked: false,
        seed: 1,
    };
    let tier = Tier::new(options, clock.clone()).ok()?;
    if let RamTier::Deferred(_) = plan.ram {
        tier.defer_writes(Some(Deferral {
            within: Duration::from_millis(30),
            mode: plan.settings.write_down,
            share: 50,
            ignore_flush: false,
        }));
    }
    Some(Arc::new(tier))
}

/// Runs one life for the given time, and checks the content after each power cut.
pub(crate) fn live(
    plan: &Plan,
    (seed, bug): (u64, Option<PlantedBug>),
    lanes: u16,
    time: Duration,
) -> Arc<SectorModel> {
    let power: Power = Arc::new(RwLock::new(()));
    let cache = Disk::new("cache", vec![0; plan.cache_bytes as usize], plan.cache, &power);
    let origin = Disk::new("origin", vec![0; (plan.blocks * BLOCK) as usize], plan.origin, &power);
    let model =
        Arc::new(SectorModel::new(plan.blocks * SECTORS, plan.failing != Failing::default()));
    let clock: Arc<dyn Clock> = Arc::new(MonotonicClock::new());
    let (cuts, left) = sync_channel(1);
    let life = Arc::new(Life {
        plan: plan.clone(),
        seed,
        lanes,
        book: Book::new(HashMap::new(), &power),
        power,
        cache,
        origin,
        model: model.clone(),
        tier: tier_of(plan, &clock),
        clock,
        ended: Arc::default(),
        cutting: AtomicBool::new(false),
        cuts,
        last_cut: Mutex::new(Instant::now()),
        closed: AtomicBool::new(false),
    });
    let (give, take) = channel::<Arc<Cache>>();
    let take = Arc::new(Mutex::new(take));
    thread::scope(|scope| {
        for number in 0..lanes {
            let (life, give, take) = (life.clone(), give.clone(), take.clone());
            scope.spawn(move || {
                let model = life.model.clone();
                let ended = life.ended.clone();
                planted::plant(bug);
                let run = AssertUnwindSafe(|| thread_of(life, number, &give, &take));
                if catch_unwind(run).is_err() {
                    model.violated(format!("lane {number} has panicked"));
                    // Makes the other lanes end without waiting for this one.
                    ended.store(lanes, Ordering::SeqCst);
                }
            });
        }
        drop(give);
        watch(&life, &left, time);
    });
    model
}

/// Opens the cache on this thread, or joins a cache that another thread opened, and runs the lane.
fn thread_of(
    life: Arc<Life>,
    number: u16,
    give: &std::sync::mpsc::Sender<Arc<Cache>>,
    take: &Mutex<Receiver<Arc<Cache>>>,
) {
    let own = OwnLane::new(number, life.clock.clone());
    let engine = if number == 0 {
        let created = own.block_on(life.clone().create(own.context.clone()));
        match created {
            Some(Ok(engine)) => {
                (1..life.lanes).for_each(|_| _ = give.send(engine.cache.clone()));
                engine
            }
            Some(Err(error)) => return life.model.violated(format!("no cache: {error}")),
            None => return life.model.violated("the cache is not opened".to_owned()),
        }
    } else {
        let Ok(cache) = take.lock().recv_timeout(PATIENCE) else { return };
        match EngineLane::join(&cache, own.context.clone()) {
            Ok(engine) => engine,
            Err(error) => return life.model.violated(format!("lane {number}: {error}")),
        }
    };
    life.run_lane(number, engine, &own);
}

/// Waits for the end of a life. Makes devices fail from some point in time on, and checks the
/// content after power cuts.
fn watch(life: &Arc<Life>, left: &Receiver<Cut>, time: Duration) {
    let began = Instant::now();
    let fails_at = time.mul_f64(fastrand::Rng::with_seed(life.seed).f64() * 0.7);
    let mut failing = false;
    loop {
        if !failing && began.elapsed() >= fails_at {
            failing = true;
            for (disk, rates) in
                [(&life.cache, life.plan.failing.cache), (&life.origin, life.plan.failing.origin)]
            {
                disk.failures.reads.store(rates[0], Ordering::Relaxed);
                disk.failures.writes.store(rates[1], Ordering::Relaxed);
                disk.failures.syncs.store(rates[2], Ordering::Relaxed);
            }
        }
        if began.elapsed() >= time {
            life.model.end();
        }
        match left.recv_timeout(Duration::from_millis(20)) {
            Ok(cut) => check_cut(&life.plan, cut, &life.model),
            Err(_) if life.closed.load(Ordering::SeqCst) || life.model.violation().is_some() => {
                break;
            }
            Err(_) => (),
        }
    }
    // The last power cut is sent before the lanes end.
    while let Ok(cut) = left.recv_timeout(Duration::from_millis(200)) {
        check_cut(&life.plan, cut, &life.model);
    }
}
