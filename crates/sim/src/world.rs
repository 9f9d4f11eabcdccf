//! One run: disks, lanes, clients, oracle, and the system under test.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Clock, IoError, Nanos, Op, Survives};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Completion, CompletionSink, EngineError, Request};
use forebay_lane::{Lane, LaneId};

use crate::clients::{SimClient, WorkloadOp};
use crate::disk::{DiskSpec, SimDisk};
use crate::displaced::Displacements;
use crate::faults::{FaultPlan, LatencyModel};
use crate::features::{Feature, Features};
use crate::ledger::SimLedger;
use crate::oracle::{Excuses, Oracle, plain};
use crate::presence::Presence;
use crate::profile::{FaultProfile, Profile};
use crate::report::RunCounts;
use crate::rot::Rot;
use crate::shared::SimContext;
use crate::stamp::{self, SECTOR, SectorAddress, Value};
use crate::system::{Admin, Instance, LocalFuture, Machine, SystemUnderTest};
use crate::trace::hash_bytes;
use crate::violation::{Asked, Violation};

/// Options for running a seed.
#[derive(Clone, Copy, Debug, Default)]
pub struct RunOptions {
    /// Write every event to standard output.
    pub print: bool,
    /// Whether discarded ranges of origins read as zeroes, like holes in files.
    pub discards_zero: bool,
    /// The fault profile. `None`: the seed chooses it.
    pub fault_profile: Option<FaultProfile>,
    /// Features that the world must have.
    pub with: Features,
    /// Features that the world must not have.
    pub without: Features,
}

/// Receives completions until the world stops.
pub(crate) struct CompletionQueue {
    shared: SimContext,
    queue: RefCell<VecDeque<Completion>>,
}

impl CompletionSink for CompletionQueue {
    fn complete(&self, completion: Completion) {
        // An answer after the crash is not heard.
        if !self.shared.stopped() {
            self.queue.borrow_mut().push_back(completion);
        }
    }
}

/// The result of a call that may still be running.
pub(crate) type CallResult<T> = Rc<RefCell<Option<T>>>;

/// An operator's action in progress.
pub(crate) enum AdminState {
    /// The action waits for its volume's requests to end.
    Quiescing(Admin, u16),
    /// The action was called.
    Running(Admin, CallResult<Result<(), EngineError>>),
}

impl AdminState {
    /// Returns the action and the volume that it concerns.
    pub(crate) fn of(&self) -> (Admin, u16) {
        let (AdminState::Quiescing(action, _) | AdminState::Running(action, _)) = self;
        (*action, action.volume())
    }

    /// Returns the volume whose order the action gives up.
    fn gives_up_order(&self) -> Option<u16> {
        let (AdminState::Quiescing(action, _) | AdminState::Running(action, _)) = self;
        action.gives_up_order()
    }
}

/// One simulated world.
pub struct World<'a> {
    pub(crate) shared: SimContext,
    pub(crate) rng: fastrand::Rng,
    pub(crate) profile: Profile,
    pub(crate) system: &'a dyn SystemUnderTest,
    pub(crate) cache: Arc<SimDisk>,
    pub(crate) origins: Vec<Arc<SimDisk>>,
    pub(crate) lanes: Vec<Rc<Lane>>,
    pub(crate) instance: Option<Rc<dyn Instance>>,
    pub(crate) oracle: Oracle,
    pub(crate) clients: Vec<SimClient>,
    inbox: Rc<CompletionQueue>,
    sink: Rc<dyn CompletionSink>,
    owners: BTreeMap<u64, usize>,
    /// Writes in progress whose volume has been strict since they began: once acknowledged, they
    /// survive a loss of power.
    pub(crate) strict: BTreeSet<u64>,
    next_tag: u64,
    /// The expected state of each volume.
    pub(crate) presence: Vec<Presence>,
    /// Volumes whose last stop failed and may not have synced the origin.
    pub(crate) unsynced: Vec<bool>,
    /// Index of the volume to which no requests are submitted at present.
    pub(crate) closed: Option<u16>,
    pub(crate) admin: Option<AdminState>,
    /// Sectors whose reads failed during the last verification.
    pub(crate) unreadable: Vec<SectorAddress>,
    pub(crate) collect_unreadable: bool,
    pub(crate) discards_zero: bool,
    pub(crate) last_progress: Nanos,
    /// When the hang of each origin ends.
    pub(crate) hung_until: Vec<Nanos>,
    /// The latest time at which each ordered volume was short of space because another volume's
    /// origin made no progress.
    pub(crate) short_until: Vec<Nanos>,
    /// When the operator's action began.
    pub(crate) admin_since: Nanos,
    /// The daemon's notes outside of the cache, in worlds with that feature.
    pub(crate) ledger: Option<Arc<SimLedger>>,
    /// Volumes with a successful flush or FUA write since the system was opened.
    pub(crate) noted: BTreeSet<u16>,
    /// Whether the state is lost, so that only the cache itself contains the list of its volumes.
    pub(crate) adopts: bool,
    /// Decides when origins grow.
    pub(crate) growth: fastrand::Rng,
    /// Decides when origins refuse writes.
    pub(crate) protecting: fastrand::Rng,
    /// Decides which devices lose their paths, and when.
    pub(crate) displacements: Displacements,
    /// The rot of the log.
    pub(crate) rot: Rot,
    pub(crate) counts: RunCounts,
}

impl<'a> World<'a> {
    /// Creates the world of `seed`.
    pub fn new(seed: u64, system: &'a dyn SystemUnderTest, options: RunOptions) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let mut options = options;
        options.without = options.without.union(system.lacks());
        let profile = Profile::choose(&mut rng, &options);
        let shared = SimContext::new(seed, options.print);
        let disk = |name: String, number, size, latency, rng: &mut fastrand::Rng| {
            let plan = FaultPlan::default();
            let logical_block = profile.setup.logical_blocks[number as usize];
            let spec = DiskSpec { name, number, size, logical_block, latency, plan };
            SimDisk::new(spec, &shared, rng.fork())
        };
        let cache = disk("cache".into(), 0, profile.cache_size, LatencyModel::fast(), &mut rng);
        let mut origins = Vec::new();
        let mut contents = Vec::new();
        for (index, &size) in profile.origin_sizes.iter().enumerate() {
            let latency = if rng.bool() { LatencyModel::slow() } else { LatencyModel::fast() };
            let origin = disk(format!("origin-{index}"), index as u64 + 1, size, latency, &mut rng);
            contents.push(preset(&origin, seed, index as u16, profile.zeroes, &mut rng));
            origins.push(origin);
        }
        let block_sectors = u64::from(profile.setup.block_size.sectors());
        let oracle = Oracle::new(seed, block_sectors, &profile.setup.alignments, contents);
        let clients = make_clients(&profile, &mut rng);
        let profile_volumes = profile.origin_sizes.len();
        let inbox = Rc::new(CompletionQueue { shared: shared.clone(), queue: RefCell::default() });
        let rot = Rot::new(profile.setup.seed);
        let has_ledger = profile.features.has(Feature::Ledger);
        let ledger = has_ledger.then(|| SimLedger::new(&shared, profile.setup.seed));
        let growth = fastrand::Rng::with_seed(profile.setup.seed ^ 0x6709);
        let protecting = fastrand::Rng::with_seed(profile.setup.seed ^ 0x3e00);
        let displacements = Displacements::new(profile.setup.seed, profile_volumes + 1);
        let counts = RunCounts::new(profile.fault_profile, profile.features);
        World {
            shared,
            rng,
            profile,
            system,
            cache,
            origins,
            lanes: Vec::new(),
            instance: None,
            oracle,
            clients,
            sink: inbox.clone(),
            inbox,
            owners: BTreeMap::new(),
            strict: BTreeSet::new(),
            next_tag: 1,
            presence: vec![Presence::New; profile_volumes],
            unsynced: vec![false; profile_volumes],
            closed: None,
            admin: None,
            unreadable: Vec::new(),
            collect_unreadable: false,
            discards_zero: options.discards_zero,
            last_progress: Nanos(0),
            hung_until: vec![Nanos(0); profile_volumes],
            short_until: vec![Nanos(0); profile_volumes],
            admin_since: Nanos(0),
            ledger,
            noted: BTreeSet::new(),
            adopts: false,
            growth,
            protecting,
            displacements,
            rot,
            counts,
        }
    }

    /// Returns the current virtual time.
    pub(crate) fn now(&self) -> Nanos {
        self.shared.clock.now()
    }

    /// Makes fresh lanes, as at the start of a process.
    pub(crate) fn boot(&mut self) {
        let clock = self.shared.clock.clone();
        self.lanes = (0..self.profile.lanes)
            .map(|index| Lane::new(LaneId(index as u16), clock.clone(), || ()))
            .collect();
        self.last_progress = self.now();
    }

    /// Returns the machine for the system under test.
    pub(crate) fn machine(&self) -> Machine {
        Machine {
            shared: self.shared.clone(),
            lanes: self.lanes.clone(),
            cache: self.cache.clone(),
            origins: self.origins.clone(),
            setup: self.profile.setup.clone(),
            presence: self.presence.clone(),
            exchanged: None,
            ledger: self.ledger.clone(),
            adopts: self.adopts,
        }
    }

    /// Starts `future` on the first lane.
    pub(crate) fn call<T: 'static>(&self, future: LocalFuture<T>) -> CallResult<T> {
        let slot = Rc::new(RefCell::new(None));
        let result = slot.clone();
        if let Some(lane) = self.lanes.first() {
            lane.spawn(async move {
                let value = future.await;
                result.borrow_mut().replace(value);
            });
        }
        slot
    }

    /// Drops the process: tasks, lanes, memory. The disks keep their content.
    pub(crate) fn drop_process(&mut self) {
        if let Some(AdminState::Running(action, _)) = self.admin.take() {
            self.presence_unsure(action);
        }
        self.closed = None;
        for lane in &self.lanes {
            lane.abandon();
        }
        if let Some(instance) = self.instance.take() {
            self.counts.add_reasons(&instance.why());
        }
        self.lanes.clear();
        self.inbox.queue.borrow_mut().clear();
        self.owners.clear();
        self.strict.clear();
        for client in &mut self.clients {
            client.reset();
        }
    }

    fn excuses(&self, volume: u16) -> Excuses {
        let faults = self.profile.fault_profile;
        // A part of a damaged block may be written to RAM, but then not be written down.
        let damaged = faults == FaultProfile::Damage || self.profile.features.has(Feature::Rot);
        let kept_in_ram = self.profile.setup.deferred && damaged;
        let errors = [FaultProfile::OriginErrors, FaultProfile::CacheErrors].contains(&faults);
        Excuses {
            disk_errors: errors || kept_in_ram,
            protected: self.may_refuse_changes(volume),
            stopping: self.closed == Some(volume) || !self.is_running(volume),
        }
    }

    /// Lets the oracle judge every answer that has arrived. Returns whether there were any.
    pub(crate) fn take_answers(&mut self) -> Result<bool, Violation> {
        self.oracle.time = self.now();
        for place in self.shared.take_tainted() {
            self.oracle.taint(place);
        }
        for place in self.shared.take_doubtful() {
            self.oracle.doubt(place, |_| Vec::new());
        }
        for (disk, sectors) in self.shared.take_forgotten() {
            match disk.checked_sub(1) {
                Some(volume) => self.oracle.reopen(volume as u16, &sectors),
                None => self.oracle.unwritten(),
            }
        }
        for told in self.shared.take_told() {
            self.judge_told(told)?;
        }
        for volume in self.shared.take_differing() {
            self.judge_differing(volume)?;
        }
        if let Some(complaint) = self.shared.complaint() {
            return Err(plain(8, format!("a disk was used wrongly: {complaint}")));
        }
        let mut any = false;
        loop {
            let completion = self.inbox.queue.borrow_mut().pop_front();
            let Some(completion) = completion else { return Ok(any) };
            any = true;
            self.judge(completion.tag, completion.result, completion.data.as_deref())?;
        }
    }

    fn judge(
        &mut self,
        tag: u64,
        result: Result<(), IoError>,
        data: Option<&[u8]>,
    ) -> Result<(), Violation> {
        self.last_progress = self.now();
        if let Some(client) = self.owners.remove(&tag).and_then(|index| self.clients.get_mut(index))
        {
            client.underway = client.underway.saturating_sub(1);
        }
        if self.strict.remove(&tag) && result.is_ok() {
            self.oracle.promise(tag);
        }
        let asked = self.oracle.asked(tag);
        let is_read = asked.is_some_and(|asked| asked.op == Op::Read);
        let hash = match data {
            Some(data) if is_read && result.is_ok() => hash_bytes(data),
            _ => 0,
        };
        self.shared.event(
            "answer",
            &[tag, u64::from(result.is_ok()), hash],
            format_args!("request {tag}: {result:?}"),
        );
        let Some(asked) = asked else {
            return self.oracle.complete(tag, result, data, Excuses::default());
        };
        if result.is_ok() && (asked.op == Op::Flush || asked.survives == Survives::PowerLoss) {
            self.noted.insert(asked.volume);
        }
        if result.is_err() {
            self.counts.failed_requests += 1;
            if is_read && self.collect_unreadable {
                let places = asked.first..asked.first + asked.sectors;
                let volume = asked.volume;
                self.unreadable.extend(places.map(|sector| SectorAddress { volume, sector }));
            }
        }
        self.judge_protection(tag, asked, result)?;
        let excuses = self.excuses(asked.volume);
        self.oracle.complete(tag, result, data, excuses)
    }

    /// Submits `wanted` for a client or (`None`) for the verification.
    pub(crate) fn submit(
        &mut self,
        lane: usize,
        volume: u16,
        wanted: WorkloadOp,
        owner: Option<usize>,
    ) -> Result<(), Violation> {
        let Some(target) =
            self.instance.as_ref().and_then(|instance| instance.target(lane, volume))
        else {
            return Err(plain(25, format!("volume {volume} is not there on lane {lane}")));
        };
        let tag = self.next_tag;
        self.next_tag += 1;
        self.counts.requests += 1;
        let changes = matches!(wanted.op, Op::Write | Op::WriteZeroes | Op::Discard);
        let id = if changes { self.oracle.next_id(volume) } else { 0 };
        // An ignored flush is acknowledged, without any promise.
        let ignores = self.profile.setup.ignores_flush;
        let asked = Asked {
            volume,
            op: if ignores && wanted.op == Op::Flush { Op::Prefetch } else { wanted.op },
            first: wanted.first,
            sectors: wanted.sectors,
            survives: if ignores { Survives::Nothing } else { wanted.survives },
            id,
        };
        self.shared.event(
            "ask",
            &[
                tag,
                lane as u64,
                u64::from(volume),
                wanted.op as u64,
                wanted.first,
                wanted.sectors,
                wanted.survives as u64,
                u64::from(id),
            ],
            format_args!(
                "request {tag} lane {lane} volume {volume}: {:?} {}+{}{}{}",
                wanted.op,
                wanted.first,
                wanted.sectors,
                match wanted.survives {
                    Survives::Nothing => "",
                    Survives::Daemon => " written",
                    Survives::PowerLoss => " fua",
                },
                if id > 0 { format!(" (write {id})") } else { String::new() },
            ),
        );
        self.oracle.time = self.now();
        self.oracle.submit(tag, asked);
        let changing =
            self.admin.as_ref().is_some_and(|admin| admin.of().0.changes_durability(volume));
        if changes && !changing && self.instance.as_ref().is_some_and(|it| it.is_strict(volume)) {
            self.strict.insert(tag);
        }
        if let Some(client) = owner.and_then(|index| self.clients.get_mut(index)) {
            client.underway += 1;
        }
        if let Some(owner) = owner {
            self.owners.insert(tag, owner);
        }
        self.start(&target, tag, wanted, asked)
    }

    fn start(
        &mut self,
        target: &Rc<dyn BlockService>,
        tag: u64,
        wanted: WorkloadOp,
        asked: Asked,
    ) -> Result<(), Violation> {
        let (offset, len) = (asked.first * SECTOR as u64, asked.sectors * SECTOR as u64);
        let mut data = match wanted.op {
            Op::Read if self.rng.bool() => Some(IoBuf::for_overwrite(len as usize)),
            Op::Write => Some(self.stamped(asked)),
            _ => None,
        };
        if wanted.at_once && wanted.survives == Survives::Nothing {
            let answer = match (wanted.op, &mut data) {
                (Op::Read, Some(buf)) => target.read_now(offset, buf),
                (Op::Write, Some(buf)) => target.write_now(offset, buf),
                _ => None,
            };
            if let Some(result) = answer {
                if self.shared.stopped() {
                    return Ok(());
                }
                self.counts.at_once += 1;
                return self.judge(tag, result, data.as_deref());
            }
        }
        let request = Request {
            tag,
            op: wanted.op,
            offset,
            len,
            survives: wanted.survives,
            fast: false,
            no_hole: false,
            data,
        };
        target.submit(request, &self.sink);
        Ok(())
    }

    fn stamped(&self, asked: Asked) -> IoBuf {
        let mut buf = IoBuf::for_overwrite(asked.sectors as usize * SECTOR);
        for (index, bytes) in buf.as_chunks_mut::<SECTOR>().0.iter_mut().enumerate() {
            let place = SectorAddress { volume: asked.volume, sector: asked.first + index as u64 };
            stamp::fill(bytes, self.shared.seed, place, asked.id);
        }
        buf
    }

    /// Judges the origins of ordered volumes in their present state.
    pub(crate) fn judge_order(&mut self) -> Result<(), Violation> {
        if !self.profile.keeps_cached_data() {
            return Ok(());
        }
        for (volume, origin) in self.origins.iter().enumerate() {
            let volume = volume as u16;
            if self.rot.has_disordered(volume) {
                continue;
            }
            let order = &mut self.oracle.order;
            let gives_up = self.admin.as_ref().and_then(AdminState::gives_up_order);
            if !order.is_watched(volume) && gives_up != Some(volume) {
                let in_order = self.instance.as_ref().is_some_and(|it| it.in_order(volume));
                order.watch(volume, in_order);
            }
            if !order.is_watched(volume) {
                continue;
            }
            self.counts.origins_judged += 1;
            origin.with_image(|image| {
                order.judge(volume, |sector| image.visible(sector), "the origin")?;
                order.judge(volume, |sector| image.durable(sector), "what is durable of the origin")
            })?;
        }
        Ok(())
    }

    /// Enables or disables the faults of all disks; disabling also repairs existing faults.
    pub(crate) fn set_faults(&mut self, on: bool) {
        if !on {
            self.give_paths_back();
            let now = self.now();
            self.hung_until.iter_mut().for_each(|until| *until = now.min(*until));
        }
        let calm = || FaultPlan { overlap_is_fault: false, ..FaultPlan::default() };
        let (cache, mut origin) = match on {
            true => (self.profile.cache_faults(), self.profile.origin_faults()),
            false => (calm(), calm()),
        };
        origin.discards_zero = self.discards_zero;
        self.cache.set_plan(cache, !on);
        for disk in &self.origins {
            disk.set_plan(origin.clone(), !on);
        }
        self.set_bad_sectors(on);
    }
}

fn preset(
    origin: &SimDisk,
    seed: u64,
    volume: u16,
    zeroes: bool,
    rng: &mut fastrand::Rng,
) -> Vec<Value> {
    origin.with_image(|image| {
        let sectors = 0..image.sectors();
        let contents = sectors.map(|sector| {
            let zero = zeroes && rng.u32(0..4) == 0;
            let value = if zero { Value::Zero } else { Value::Write(0) };
            let mut bytes = [0; SECTOR];
            stamp::fill_value(&mut bytes, seed, SectorAddress { volume, sector }, value);
            image.preset(sector, &bytes);
            value
        });
        contents.collect()
    })
}

fn make_clients(profile: &Profile, rng: &mut fastrand::Rng) -> Vec<SimClient> {
    let mut clients = Vec::new();
    for (volume, &size) in profile.origin_sizes.iter().enumerate() {
        let sectors = size / SECTOR as u64;
        let len = (sectors / rng.u64(2..=32)).max(16);
        let hot = (rng.u64(0..=sectors - len), len);
        for lane in 0..profile.lanes {
            for _ in 0..profile.clients {
                let mix = profile.mix.clone();
                clients.push(SimClient::new(lane, volume as u16, sectors, hot, mix, rng.fork()));
            }
        }
    }
    clients
}
