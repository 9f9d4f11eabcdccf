//! The unmodified engine as the system under test: only its clock and its devices are simulated.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::why::Why;
use forebay_core::{Caching, Clock, Durability, Mode, ReplacementKind, VolumeId};
use forebay_device::{Device, Displaced, Queue, QueueContext};
use forebay_engine::displaced::{self, BeforeStop};
use forebay_engine::{
    BlockService, BlockSet, Cache, EngineError, EngineErrorKind, EngineLane, LaneContext, Obstacle,
    Settings, Volume, VolumeSpec,
};
use forebay_format::{MAX_NARROW_GENERATION, Uuid, VolumeRecord};
use forebay_lane::{MemoryBudget, MemoryUse};
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Damage, FormatOptions, Helper, Store, StoreOptions, format, read_roots};

use crate::displaced::apart;
use crate::presence::Presence;
use crate::queue::DiskHandle;
use crate::ram::Tiers;
use crate::rot::Told;
use crate::settings::{choose_entry, choose_rotational, choose_writeback, settings};
use crate::system::{Admin, Instance, LocalFuture, Machine, Stuck, SystemUnderTest, name};
use crate::trace::mix;

/// The engine, with at most one planted bug.
pub struct Engine(pub Option<PlantedBug>);

fn failed(message: &str) -> EngineError {
    EngineError::new(EngineErrorKind::Failed, message)
}

fn context(machine: &Machine, lane: usize) -> Result<LaneContext, EngineError> {
    let lane = machine.lanes.get(lane).ok_or_else(|| failed("there is no such lane"))?.clone();
    let queues = Rc::new(QueueContext { clock: lane.clock().clone(), ring: None, tasks: None });
    Ok(LaneContext { lane, queues, register: Rc::new(|_| ()) })
}

fn cache_device(machine: &Machine) -> Arc<dyn Device> {
    Arc::new(DiskHandle::new(machine.cache.clone()))
}

fn origin(machine: &Machine, volume: u16) -> Result<Arc<dyn Device>, EngineError> {
    let disk = machine
        .origins
        .get(usize::from(volume))
        .ok_or_else(|| failed("there is no such origin"))?;
    if disk.displaced().is_some() {
        return Err(apart());
    }
    let mut handle = DiskHandle::new(disk.clone());
    if machine.exchanged == Some(volume) {
        handle.serial.push_str("-clone");
    }
    Ok(Arc::new(handle))
}

/// Returns the specification of a volume to be created.
fn spec(machine: &Machine, volume: u16, identity: u64) -> VolumeSpec {
    let uuid = (u128::from(identity) << 64) | (2 + u128::from(volume));
    VolumeSpec {
        name: name(volume),
        origin: format!("origin-{volume}"),
        uuid: Uuid::from_u128(uuid),
        alignment: machine.setup.alignments[usize::from(volume)],
        settings: settings(machine, volume),
    }
}

fn store_options(machine: &Machine) -> StoreOptions {
    let mut rng = fastrand::Rng::with_seed(machine.setup.seed ^ 0x5704e);
    StoreOptions {
        lanes: machine.lanes.len(),
        checkpoint_bytes: rng.bool().then(|| rng.u64(1..=16) * (256 << 10)),
        commit_interval: Duration::from_millis(rng.u64(5..1_000)),
        seed: machine.setup.seed,
        room_for_blocks: machine.setup.room_for_blocks,
        shards: machine.setup.shards,
        load_later_from: if machine.setup.loads_slowly { 1 } else { u64::MAX },
        load_pause: Duration::from_millis(machine.setup.seed % 64),
        helpers: machine.lanes[1..].iter().map(|it| Helper::without_ring(it.remote())).collect(),
        memory: Arc::new(MemoryBudget::new(MEMORY)),
        ..StoreOptions::default()
    }
}

/// Returns the blocks needed by volumes whose origins have grown, as the program that opens a cache
/// would determine them. Sometimes returns nothing: an origin may not be examined in time, or grow
/// later.
async fn grown(machine: &Machine) -> Result<Vec<(VolumeId, u64)>, EngineError> {
    if mix(machine.setup.seed, machine.shared.clock.now().0).is_multiple_of(4) {
        return Ok(Vec::new());
    }
    let device = cache_device(machine);
    let queues = context(machine, 0)?.queues;
    let queue = Queue::new(device.open_queue(&queues)?);
    let Ok(roots) = read_roots(&device, &queue).await else { return Ok(Vec::new()) };
    let volumes = roots.volumes.iter().filter_map(|record| {
        let number = record.name.strip_prefix("volume-")?.parse().ok()?;
        let size = origin(machine, number).ok()?.size() + u64::from(record.alignment);
        Some((record.id, size.div_ceil(machine.setup.block_size.bytes())))
    });
    Ok(volumes.collect())
}

/// Checks that a volume with room for its larger origin has adopted the new size, unless that needs
/// work. `size` is that of the origin when the start began; an origin that grows during the start
/// may be adopted by the next start.
fn judge_growth(
    lane: &EngineLane,
    machine: &Machine,
    before: &VolumeRecord,
    size: u64,
) -> Result<(), EngineError> {
    let store = &lane.cache.store;
    let (Some(space), Some(volume)) = (store.space_of(before.id), lane.cache.volume(&before.name))
    else {
        return Ok(());
    };
    let (block, shift) = (machine.setup.block_size.bytes(), u64::from(before.alignment));
    let has_room = (size + shift).div_ceil(block) <= space.blocks;
    let whole = (before.origin_bytes + shift).is_multiple_of(block);
    if machine.setup.grows && has_room && whole && volume.size() < size {
        return Err(EngineError::new(EngineErrorKind::Failed, "it keeps its old size"));
    }
    Ok(())
}

/// The memory of a machine, in bytes.
const MEMORY: u64 = 512 << 20;

/// Takes nearly all memory, as other programs do on some machines, so that few or no masks can be
/// allocated.
fn take_memory(cache: &Cache, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0x3a5c);
    if rng.bool() {
        return;
    }
    let memory = &cache.store.options().memory;
    let hold = |bytes| memory.hold(MemoryUse::Process, bytes, "another cache").ok();
    // Masks leave a sixteenth to other uses.
    let left = hold(MEMORY / 16 + rng.u64(0..64 << 10));
    for bytes in [1 << 20, 64 << 10, 4 << 10] {
        while let Some(held) = hold(bytes) {
            cache.hold_memory(held);
        }
    }
    drop(left);
}

impl SystemUnderTest for Engine {
    fn format(&self, machine: &Machine) -> LocalFuture<Result<(), EngineError>> {
        let machine = machine.clone();
        Box::pin(async move {
            let device = cache_device(&machine);
            let queues = context(&machine, 0)?.queues;
            let queue = Queue::new(device.open_queue(&queues)?);
            let options = FormatOptions {
                block: machine.setup.block_size,
                segment_bytes: Some(machine.setup.segment_size),
                uuid: Uuid::from_u128((u128::from(machine.setup.seed) << 64) | 1),
            };
            Ok(format(&device, &queue, &options).await?)
        })
    }

    fn open(&self, machine: &Machine) -> LocalFuture<Result<Rc<dyn Instance>, EngineError>> {
        let machine = machine.clone();
        // Recovery runs with the bug as well.
        planted::plant(self.0);
        Box::pin(async move {
            let mut options = store_options(&machine);
            if machine.setup.grows {
                options.grown = grown(&machine).await?;
            }
            let (first, report) =
                EngineLane::open(context(&machine, 0)?, cache_device(&machine), options).await?;
            machine.shared.event("opened", &[], format_args!("{report:?}"));
            if !report.clean {
                // A stop before the index is loaded leaves such a cache as well, without a crash.
                machine.shared.replayed();
            }
            take_memory(&first.cache, machine.setup.seed);
            if let Some(ledger) = &machine.ledger {
                first.cache.set_ledger(ledger.clone());
            }
            let known = first.cache.store.volumes();
            let is_new = machine.presence.iter().all(|it| *it == Presence::New);
            if machine.setup.aged && is_new && known.is_empty() {
                age(&first.cache.store, machine.setup.seed);
            }
            for volume in 0..machine.origins.len() as u16 {
                let name = name(volume);
                let is_known = known.iter().any(|record| record.name == name);
                let gone = machine.presence[usize::from(volume)] == Presence::Gone;
                if gone && is_known && machine.ledger.is_some() && machine.setup.insists {
                    // The cache device failed and could not record the deletion, but the ledger
                    // did.
                    let _ = first.delete_stopped(&name, true).await?;
                    continue;
                }
                match machine.presence[usize::from(volume)] {
                    Presence::Gone if is_known => {
                        return Err(failed(&format!("{name} was deleted, and is back")));
                    }
                    Presence::Running | Presence::Stopped if !is_known => {
                        return Err(failed(&format!("{name} is lost")));
                    }
                    Presence::Gone | Presence::Stopped => continue,
                    Presence::Unsure(_) if !is_known => continue,
                    Presence::New | Presence::Running | Presence::Unsure(_) => {}
                }
                if is_known {
                    attach(&first, &machine, volume, machine.setup.insists).await?;
                } else {
                    let spec = spec(&machine, volume, machine.setup.seed);
                    first.create(spec, origin(&machine, volume)?).await?;
                }
            }
            let mut lanes = vec![first.clone()];
            for lane in 1..machine.lanes.len() {
                lanes.push(EngineLane::join(&first.cache, context(&machine, lane)?)?);
            }
            Ok(Rc::new(RunningEngine { lanes, machine, tiers: Rc::default() }) as Rc<dyn Instance>)
        })
    }
}

/// Advances counters to shortly before the limits of their fields.
fn age(store: &Store, seed: u64) {
    let mut rng = fastrand::Rng::with_seed(seed ^ 0xa9ed);
    let target = MAX_NARROW_GENERATION - rng.u64(0..300);
    let segments = &store.segments;
    segments.skip_generations(target.saturating_sub(segments.next_generation().0));
    store.skip_volume_ids(u16::MAX - rng.u16(0..8));
}

/// Returns whether a volume in this mode can be ordered.
pub fn may_be_ordered(mode: Mode) -> bool {
    matches!(mode, Mode::Writeback | Mode::Writeonly)
}

struct RunningEngine {
    lanes: Vec<Rc<EngineLane>>,
    machine: Machine,
    tiers: Rc<Tiers>,
}

/// Starts a volume. If the volume is damaged, the operator accepts the loss; other refusals because
/// of data at risk are overridden only with `insists`.
async fn attach(
    lane: &Rc<EngineLane>,
    machine: &Machine,
    volume: u16,
    insists: bool,
) -> Result<(), EngineError> {
    let store = &lane.cache.store;
    let known = store.volumes().into_iter().find(|record| record.name == name(volume));
    let named = known
        .as_ref()
        .filter(|_| machine.adopts)
        .map(|record| record.origin.strip_prefix("origin-").and_then(|number| number.parse().ok()));
    let number = named.unwrap_or(Some(volume)).ok_or_else(|| failed("it names no origin"))?;
    let origin = origin(machine, number)?;
    let size = origin.size();
    let damage = known.as_ref().and_then(|record| store.damage_of(record.id));
    let first = lane.attach(&name(volume), origin.clone(), false).await;
    let result = match (first, damage) {
        (Ok(_), Some(_)) => Err(failed("a damaged volume was started")),
        (Err(error), Some(Damage { first, count }))
            if error.kind == EngineErrorKind::DataAtRisk =>
        {
            // The operator is told, and continues with the rest.
            machine.shared.tell(Told { volume, first, count });
            lane.attach(&name(volume), origin.clone(), true).await
        }
        (Err(error), None)
            if machine.setup.rots && error.obstacle() == Some(&Obstacle::OriginChanged) =>
        {
            machine.shared.differs(volume);
            lane.attach(&name(volume), origin.clone(), true).await
        }
        (Err(error), None) if insists && error.kind == EngineErrorKind::DataAtRisk => {
            lane.attach(&name(volume), origin.clone(), true).await
        }
        (result, _) => result,
    };
    if result?.checked.get().is_some_and(|check| check.differing > 0) {
        machine.shared.differs(volume);
    }
    pin(lane, machine, volume);
    known.map_or(Ok(()), |before| judge_growth(lane, machine, &before, size))
}

/// Pins some blocks of a volume that was attached, in one of four worlds. Clients are unaffected.
fn pin(lane: &EngineLane, machine: &Machine, volume: u16) {
    let seed = mix(machine.setup.seed ^ u64::from(volume), 0x2b1a5);
    let mut rng = fastrand::Rng::with_seed(seed);
    if rng.u32(0..4) > 0 {
        return;
    }
    // The blocks differ from one start to the next.
    let mut rng = fastrand::Rng::with_seed(mix(seed, machine.shared.clock.now().0));
    let ranges = (0..rng.u32(0..8)).map(|_| {
        let start = rng.u64(0..4096);
        start..start + rng.u64(1..=256)
    });
    // More than may be pinned is refused.
    let _ = lane.pin(&name(volume), &BlockSet::of(ranges.collect::<Vec<_>>()));
}

/// Stops a volume, after its deferred writes have been written down.
async fn stop(
    lane: &Rc<EngineLane>,
    tiers: &Tiers,
    volume: u16,
    stays: bool,
) -> Result<(), EngineError> {
    let paths = Paths::of(lane, volume);
    let first = paths.before_stop()?;
    tiers.write_down(lane, volume, true).await?;
    if first == BeforeStop::Drain {
        drain(lane, volume).await?;
    }
    let stopped = lane.stop_volume(&name(volume), stays).await;
    tiers.remove(volume);
    stopped.and(paths.after_stop())
}

/// Drains a volume, and checks that its origin is still under its path.
async fn drain(lane: &Rc<EngineLane>, volume: u16) -> Result<(), EngineError> {
    let paths = Paths::of(lane, volume);
    lane.drain(&name(volume), |_| Ok(())).await?;
    displaced::after_drain(paths.origin()).map_err(|_| apart())
}

/// The devices of a volume, for the daemon's checks of paths.
struct Paths {
    cache: Arc<dyn Device>,
    volume: Option<Arc<Volume>>,
}

impl Paths {
    fn of(lane: &EngineLane, volume: u16) -> Self {
        let cache = lane.cache.store.device().clone();
        Paths { cache, volume: lane.cache.volume(&name(volume)) }
    }

    fn origin(&self) -> Option<Displaced> {
        self.volume.as_ref()?.origin.displaced()
    }

    fn before_stop(&self) -> Result<BeforeStop, EngineError> {
        displaced::before_stop(self.origin(), self.cache.displaced()).map_err(|_| apart())
    }

    fn after_stop(&self) -> Result<(), EngineError> {
        let dirty = self.volume.as_ref().map_or(0, |volume| volume.dirty_blocks());
        displaced::after_stop(self.origin(), self.cache.displaced(), dirty).map_err(|_| apart())
    }
}

/// Pauses, freezes or resumes a volume, as a daemon does.
async fn set_caching(
    lane: &Rc<EngineLane>,
    tiers: &Tiers,
    volume: u16,
    settings: Settings,
) -> Result<(), EngineError> {
    let drains = !settings.keeps_dirty();
    if settings.caching != Caching::On {
        tiers.write_down(lane, volume, true).await?;
    }
    tiers.note_caching(volume, settings.caching);
    lane.set(&name(volume), settings).await?;
    if drains { drain(lane, volume).await } else { Ok(()) }
}

async fn set_policy(lane: &Rc<EngineLane>, policy: ReplacementKind) -> Result<(), EngineError> {
    let volume = lane.cache.volumes().first().cloned();
    let volume = volume.ok_or_else(|| failed("no volume is started"))?;
    let settings = Settings { policy, ..volume.settings() };
    lane.set(&volume.name, settings).await
}

/// Drops the views of volumes that have left their cache, as the daemon does when it disconnects
/// their clients.
fn dismiss(lanes: &[Rc<EngineLane>], id: Option<VolumeId>) {
    let left = |lane: &EngineLane, id| lane.cache.volumes().iter().all(|volume| volume.id != id);
    for lane in lanes {
        if let Some(id) = id.filter(|id| left(lane, *id)) {
            lane.drop_view(id);
        }
    }
}

#[expect(clippy::too_many_lines, reason = "a few lines for each command")]
async fn administrate(
    lanes: Vec<Rc<EngineLane>>,
    machine: Machine,
    tiers: Rc<Tiers>,
    action: Admin,
) -> Result<(), EngineError> {
    let Some(lane) = lanes.first().cloned() else { return Ok(()) };
    let known = |volume: u16| lane.cache.volume(&name(volume)).map(|volume| volume.id);
    let present = |volume: u16| {
        let volume = lane.cache.volume(&name(volume));
        volume.map(|volume| volume.settings()).ok_or_else(|| failed("there is no such volume"))
    };
    match action {
        Admin::Mode(volume, mode) => {
            let mut settings = Settings { mode, ..present(volume)? };
            settings.ordered &= may_be_ordered(mode);
            lane.set(&name(volume), settings).await
        }
        Admin::Durability(volume, durability) => {
            let settings = Settings { durability, ..present(volume)? };
            lane.set(&name(volume), settings).await
        }
        Admin::Writeback(volume, number) => {
            let mut settings = present(volume)?;
            choose_writeback(&mut settings, &mut fastrand::Rng::with_seed(number));
            choose_rotational(&mut settings, number);
            lane.set(&name(volume), settings).await
        }
        Admin::Replacement(policy) => set_policy(&lane, policy).await,
        Admin::Entry(volume, seed) => {
            let mut settings = present(volume)?;
            choose_entry(&mut settings, &mut fastrand::Rng::with_seed(seed));
            lane.set(&name(volume), settings).await
        }
        Admin::Ordered(volume, ordered) => {
            let mut settings = present(volume)?;
            let may_be = may_be_ordered(settings.mode) && !machine.setup.ignores_flush;
            settings.ordered = ordered && may_be;
            lane.set(&name(volume), settings).await
        }
        Admin::Drain(volume) => {
            tiers.write_down(&lane, volume, false).await?;
            drain(&lane, volume).await
        }
        Admin::Caching(volume, caching) => {
            let settings = Settings { caching, ..present(volume)? };
            set_caching(&lane, &tiers, volume, settings).await
        }
        Admin::Drop(volume, ram, ssd) => {
            if let Some(tier) = tiers.get(volume).filter(|_| ram) {
                tier.forget_clean();
            }
            if ssd { lane.forget_clean(&name(volume), |_| Ok(())).await } else { Ok(()) }
        }
        Admin::Restart(volume) => {
            let id = known(volume);
            stop(&lane, &tiers, volume, false).await?;
            dismiss(&lanes, id);
            attach(&lane, &machine, volume, false).await
        }
        Admin::Stop(volume) => {
            let id = known(volume);
            let stopped = stop(&lane, &tiers, volume, true).await;
            dismiss(&lanes, id);
            stopped
        }
        Admin::Start(volume) => attach(&lane, &machine, volume, machine.setup.insists).await,
        Admin::Delete(volume, discard) => {
            if !discard {
                tiers.write_down(&lane, volume, true).await?;
                // This check also ends a drain, which is a part of the deletion here.
                displaced::after_drain(Paths::of(&lane, volume).origin()).map_err(|_| apart())?;
            }
            let id = known(volume);
            let deleted = lane.delete(&name(volume), discard, |_| Ok(()), || Ok(())).await;
            if deleted.is_ok() {
                tiers.remove(volume);
            }
            dismiss(&lanes, id);
            deleted.map(drop)
        }
        Admin::DeleteStopped(volume, discard) => {
            lane.delete_stopped(&name(volume), discard).await.map(drop)
        }
        Admin::Create(volume, identity) => {
            let origin = origin(&machine, volume)?;
            lane.create(spec(&machine, volume, identity), origin).await.map(|_| ())
        }
    }
}

impl RunningEngine {
    fn volume(&self, number: u16) -> Option<Arc<Volume>> {
        self.lanes.first()?.cache.volume(&name(number))
    }

    fn store(&self) -> Option<&Arc<Store>> {
        self.lanes.first().map(|lane| &lane.cache.store)
    }
}

impl Instance for RunningEngine {
    fn target(&self, lane: usize, volume: u16) -> Option<Rc<dyn BlockService>> {
        self.tiers.target(&self.machine, &self.lanes, lane, volume)
    }

    fn is_strict(&self, volume: u16) -> bool {
        // Writes that wait in RAM survive no failure.
        let volume = self.volume(volume).filter(|_| !self.machine.setup.deferred);
        volume.is_some_and(|volume| volume.settings().durability == Durability::Strict)
    }

    fn in_order(&self, volume: u16) -> bool {
        let in_order = |id| self.store().is_some_and(|store| store.is_in_order(id));
        self.volume(volume).is_some_and(|it| it.settings().wants_order() && in_order(it.id))
    }

    fn is_ordered(&self, volume: u16) -> bool {
        let has_order = |id| self.store().is_some_and(|store| store.has_order(id));
        self.volume(volume).is_some_and(|it| it.settings().ordered || has_order(it.id))
    }

    fn stuck(&self, volume: u16) -> Stuck {
        let stuck = self.volume(volume).map(|it| Stuck {
            refused: it.refused_ranges(),
            unreadable: it.bad_ranges(),
            dirty: it.dirty_blocks(),
            unsynced: it.origin_sync_failed(),
        });
        stuck.unwrap_or_default()
    }

    fn holds_versions(&self) -> bool {
        self.store().is_some_and(|store| store.segments.with_held() > 0)
    }

    fn commit_interval(&self, volume: u16) -> Option<Duration> {
        if self.machine.setup.deferred {
            // The interval begins when a write is written down.
            return None;
        }
        Some(self.volume(volume)?.settings().commit_interval)
    }

    fn why(&self) -> Vec<Why> {
        let volumes = self.lanes.first().map(|lane| lane.cache.volumes()).unwrap_or_default();
        volumes.iter().map(|volume| volume.stats.why()).collect()
    }

    fn admin(&self, action: Admin) -> LocalFuture<Result<(), EngineError>> {
        let lanes = self.lanes.clone();
        Box::pin(administrate(lanes, self.machine.clone(), self.tiers.clone(), action))
    }

    fn stop(&self, drains: bool) -> LocalFuture<Result<(), EngineError>> {
        let Some(lane) = self.lanes.first().cloned() else { return Box::pin(async { Ok(()) }) };
        let volumes = self.machine.origins.len() as u16;
        let tiers = self.tiers.clone();
        Box::pin(async move {
            let there = |volume: &u16| lane.cache.volume(&name(*volume)).is_some();
            let there: Vec<u16> = (0..volumes).filter(there).collect();
            let paths: Vec<Paths> = there.iter().map(|it| Paths::of(&lane, *it)).collect();
            let mut drains = drains;
            for paths in &paths {
                drains |= paths.before_stop()? == BeforeStop::Drain;
            }
            let mut result = Ok(());
            for volume in 0..volumes {
                result = result.and(tiers.write_down(&lane, volume, true).await);
                tiers.remove(volume);
            }
            for volume in there.into_iter().filter(|_| drains) {
                result = result.and(drain(&lane, volume).await);
            }
            let result = result.and(lane.close().await);
            paths.iter().fold(result, |result, paths| result.and(paths.after_stop()))
        })
    }
}
