//! The life of one world: format, then rounds of open, verify, work and crash or stop, and finally
//! a stop with a drain, after which the origins must be complete without the cache.

use forebay_core::{Op, Survives};
use forebay_engine::{EngineError, Obstacle};

use crate::clients::WorkloadOp;
use crate::features::Feature;
use crate::image::PowerCut;
use crate::oracle::plain;
use crate::profile::FaultProfile;
use crate::report::SeedResult;
use crate::schedule::StopReason;
use crate::stamp::SectorAddress;
use crate::system::{SystemUnderTest, is_refused};
use crate::violation::Violation;
use crate::world::{RunOptions, World};

/// Steps between two checks of the origins of ordered volumes.
const JUDGED_EVERY: u64 = 211;

/// Maximum number of crashes during the recovery from one crash.
const NESTED: u32 = 2;

/// The end of a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RoundEnd {
    /// A crash at this change of a disk, counted from now.
    CrashAt(u64),
    /// A crash at this change of a disk, counted from this superblock write on.
    CrashAtRoot { roots: u64, changes: u64 },
    /// When the clients have submitted everything, with requests in progress.
    CrashAtEnd,
    /// An orderly stop, with or without writing everything back.
    Stop { drain: bool },
}

/// Runs the world of `seed` to its end or to the first broken promise.
pub fn run_seed(seed: u64, system: &dyn SystemUnderTest, options: RunOptions) -> SeedResult {
    let mut world = World::new(seed, system, options);
    let violation = world.live().err();
    if let Some(violation) = &violation {
        world.shared.event(
            "broken",
            &[u64::from(violation.invariant)],
            format_args!("{violation}"),
        );
    }
    // The world stops before its tasks are dropped, so that their last actions are not judged.
    world.shared.stop();
    world.drop_process();
    world.counts.sectors_verified = world.oracle.verified;
    world.counts.faults = world.shared.faults();
    world.counts.virtual_nanos = world.now().0;
    SeedResult { seed, hash: world.shared.trace.hash(), counts: world.counts.clone(), violation }
}

impl World<'_> {
    fn live(&mut self) -> Result<(), Violation> {
        self.boot();
        let future = self.system.format(&self.machine());
        self.wait_for(future, "format")?;
        self.drop_process();
        let rounds = self.profile.rounds;
        let mut crashed = false;
        for round in 0..rounds {
            self.open_after(crashed)?;
            let ending = self.choose_ending();
            crashed = self.round(ending)?;
            self.shared.event(
                "round",
                &[u64::from(round), u64::from(crashed)],
                format_args!("{round} ended: {ending:?}"),
            );
        }
        self.open_after(crashed)?;
        self.last_judgement()
    }

    /// Waits for a call during which no crash is armed.
    fn wait_for<T: 'static>(
        &mut self,
        future: crate::system::LocalFuture<Result<T, EngineError>>,
        what: &str,
    ) -> Result<T, Violation> {
        match self.try_for(future, what)? {
            Some(value) => Ok(value),
            None => Err(plain(25, format!("{what} met a crash that nobody ordered"))),
        }
    }

    /// Waits for a call. Returns `None` if the world stopped first.
    fn try_for<T: 'static>(
        &mut self,
        future: crate::system::LocalFuture<Result<T, EngineError>>,
        what: &str,
    ) -> Result<Option<T>, Violation> {
        let slot = self.call(future);
        self.last_progress = self.now();
        let end = self.pump(false, |_| Ok(slot.borrow().is_some()))?;
        if end == StopReason::Crashed {
            return Ok(None);
        }
        let result = slot.borrow_mut().take();
        match result {
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(error)) => Err(plain(20, format!("{what} failed: {error}"))),
            None => Ok(None),
        }
    }

    /// Opens and verifies the system. After a crash, up to two further crashes happen meanwhile.
    fn open_after(&mut self, crashed: bool) -> Result<(), Violation> {
        self.judge_order()?;
        self.judge_notes()?;
        if self.profile.features.has(Feature::Grown) {
            self.perhaps_grow();
        }
        self.perhaps_lose_state();
        // A rotten record that looks torn may restore the external writer's data.
        let external_writer = !self.profile.features.has(Feature::Rot);
        if crashed && external_writer && self.profile.fault_profile == FaultProfile::Crashes {
            self.perhaps_an_external_writer()?;
        }
        if !crashed && external_writer && self.profile.fault_profile == FaultProfile::Crashes {
            self.perhaps_edited_elsewhere()?;
        }
        if crashed && self.profile.features.has(Feature::Decay) {
            self.perhaps_decay()?;
        }
        if self.profile.features.has(Feature::Rot) {
            self.perhaps_rot();
        }
        let mut nested = if crashed { self.rng.u32(0..=NESTED) } else { 0 };
        let mut recovering = crashed;
        loop {
            // Without a nested crash everything continues undisturbed. A nested crash comes soon,
            // either before the system is open or during the verification.
            let at = self.rng.u64(1..30);
            self.shared.arm((nested > 0).then_some(at));
            self.boot();
            if self.open_once()? && self.read_back(recovering)? {
                self.shared.arm(None);
                self.counts.recoveries += u64::from(recovering);
                return Ok(());
            }
            self.counts.nested_crashes += 1;
            self.crash();
            self.judge_order()?;
            self.judge_notes()?;
            recovering = true;
            nested = nested.saturating_sub(1);
        }
    }

    fn open_once(&mut self) -> Result<bool, Violation> {
        let future = self.system.open(&self.machine());
        let instance = self.try_for(future, "open")?;
        let opened = instance.is_some();
        self.instance = instance;
        if opened {
            self.oracle.opened(&self.running());
        }
        if opened {
            self.presence_seen()?;
        }
        Ok(opened)
    }

    /// Reads everything, a part, or nothing. Returns `false` if the world stopped.
    fn read_back(&mut self, recovered: bool) -> Result<bool, Violation> {
        let how = self.rng.u32(0..10);
        let percent = match how {
            _ if !recovered && how > 2 => return Ok(true),
            0..7 => 100,
            7..9 => 30,
            _ => return Ok(true),
        };
        self.read_all(percent)
    }

    fn read_all(&mut self, percent: u32) -> Result<bool, Violation> {
        let mut chunks = Vec::new();
        for volume in self.running() {
            let sectors = self.oracle.sectors(volume);
            let mut first = 0;
            while first < sectors {
                let len = self.rng.u64(1..=128).min(sectors - first);
                if self.rng.u32(0..100) < percent {
                    chunks.push((volume, first, len));
                }
                first += len;
            }
        }
        self.read_in_any_order(chunks)
    }

    /// Reads these sectors of volumes. Returns `false` if the world stopped.
    fn read_in_any_order(&mut self, mut chunks: Vec<(u16, u64, u64)>) -> Result<bool, Violation> {
        self.rng.shuffle(&mut chunks);
        self.last_progress = self.now();
        let end = self.pump(false, |world| {
            world.perhaps_judge_order()?;
            while world.oracle.underway() < 8 && !world.shared.stopped() {
                let Some((volume, first, sectors)) = chunks.pop() else { break };
                let lane = world.rng.usize(0..world.lanes.len());
                let at_once = world.rng.bool();
                let wanted = WorkloadOp {
                    op: Op::Read,
                    first,
                    sectors,
                    survives: Survives::Nothing,
                    at_once,
                };
                world.submit(lane, volume, wanted, None)?;
            }
            Ok(chunks.is_empty() && world.oracle.underway() == 0)
        })?;
        Ok(end == StopReason::Reached)
    }

    fn choose_ending(&mut self) -> RoundEnd {
        let requests = self.profile.requests;
        if self.profile.fault_profile == FaultProfile::Damage {
            return RoundEnd::Stop { drain: self.rng.bool() };
        }
        if self.profile.features.has(Feature::Hang) && self.rng.bool() {
            // The crash follows an idle period, after which only a bounded amount may be lost.
            return RoundEnd::CrashAtEnd;
        }
        if self.profile.features.has(Feature::Loading) && self.rng.bool() {
            return RoundEnd::Stop { drain: false };
        }
        if self.profile.features.has(Feature::Shards) && self.rng.bool() {
            // The crash happens while records are open to which the copy of an index in a new
            // checkpoint may refer.
            let (roots, changes) = (self.rng.u64(1..=6), self.rng.u64(2..=8));
            return RoundEnd::CrashAtRoot { roots, changes };
        }
        match self.rng.u32(0..10) {
            0..7 => match self.rng.u64(1..=requests * 2) {
                change if change % 5 < 2 => RoundEnd::CrashAtRoot {
                    roots: 1 + change / 60 % 12,
                    changes: 1 + change / 5 % 12,
                },
                change => RoundEnd::CrashAt(change),
            },
            7 => RoundEnd::CrashAtEnd,
            _ => RoundEnd::Stop { drain: self.rng.bool() },
        }
    }

    /// Lets clients work until the round ends. Returns whether it ended in a crash.
    fn round(&mut self, ending: RoundEnd) -> Result<bool, Violation> {
        self.set_faults(true);
        self.last_progress = self.now();
        match ending {
            RoundEnd::CrashAt(changes) => self.shared.arm(Some(changes)),
            RoundEnd::CrashAtRoot { roots, changes } => self.shared.arm_at_root(roots, changes),
            RoundEnd::CrashAtEnd | RoundEnd::Stop { .. } => (),
        }
        if let Some(known) = self.perhaps_protect()
            && self.pump(false, |world| Ok(world.now() >= known))? == StopReason::Crashed
        {
            self.shared.stop();
            self.crash();
            return Ok(true);
        }
        let target = self.counts.requests + self.profile.requests;
        let administers = self.profile.admin;
        let rots = self.profile.fault_profile == FaultProfile::Damage;
        let hangs = self.profile.features.has(Feature::Hang);
        let grows = self.profile.features.has(Feature::Grown);
        let end = self.pump(true, |world| {
            world.perhaps_judge_order()?;
            if administers {
                world.administrate()?;
            }
            if hangs {
                world.perhaps_hang();
            }
            if grows && world.growth.u32(0..3_000) == 0 {
                world.perhaps_grow();
            }
            if rots && world.rng.u32(0..3_000) == 0 {
                world.cache.rot();
            }
            world.perhaps_displace(false);
            Ok(world.counts.requests >= target)
        })?;
        let end = if hangs && end == StopReason::Reached { self.idle()? } else { end };
        if end == StopReason::Crashed || !matches!(ending, RoundEnd::Stop { .. }) {
            self.shared.stop();
            self.crash();
            return Ok(true);
        }
        self.shared.arm(None);
        match ending {
            RoundEnd::Stop { drain } => Ok(!self.stop(drain, false)?),
            _ => Ok(false),
        }
    }

    /// Judges the origins of ordered volumes from time to time.
    fn perhaps_judge_order(&mut self) -> Result<(), Violation> {
        // The world's generator is not used, so that worlds without ordered volumes stay the same.
        if self.counts.steps.is_multiple_of(JUDGED_EVERY) { self.judge_order() } else { Ok(()) }
    }

    /// Waits until everything in progress has ended.
    fn settle(&mut self) -> Result<StopReason, Violation> {
        self.pump(false, |world| {
            if world.admin.is_some() {
                world.administrate()?;
            }
            Ok(world.oracle.underway() == 0 && world.admin.is_none())
        })
    }

    /// Stops in order. Returns `false` if the system could not, which counts as a crash. `last`:
    /// the origins work, so only damage of the cache device is an excuse.
    fn stop(&mut self, drain: bool, last: bool) -> Result<bool, Violation> {
        if self.settle()? == StopReason::Crashed {
            self.crash();
            return Ok(false);
        }
        if !(self.judge_bad_sectors()? && self.judge_protected()? && self.judge_displaced(drain)?) {
            self.crash();
            return Ok(false);
        }
        self.set_faults(false);
        let without_cache = self.perhaps_take_cache();
        let Some(instance) = self.instance.clone() else { return Ok(true) };
        let (served, since) = (self.running(), self.now());
        let slot = self.call(instance.stop(drain));
        drop(instance);
        self.last_progress = since;
        let stopped = |world: &mut Self| {
            world.perhaps_judge_order()?;
            let stopped = slot.borrow().is_some();
            if !stopped && !last && !without_cache {
                world.perhaps_displace(true);
            }
            Ok(stopped)
        };
        if self.pump(false, stopped)? == StopReason::Crashed {
            self.crash();
            return Ok(false);
        }
        let result = slot.borrow_mut().take().unwrap_or(Ok(()));
        self.shared.event(
            "stopped",
            &[u64::from(drain), u64::from(result.is_ok())],
            format_args!("drain {drain}: {result:?}"),
        );
        // The stop does not wait for an origin that has not answered yet.
        let unanswered = self.profile.features.has(Feature::Hang)
            && is_refused(&result, |obstacle| matches!(obstacle, Obstacle::Unanswered(_)));
        // Unreadable blocks cannot be written back.
        let rotten =
            (0..self.origins.len() as u16).any(|volume| self.oracle.has_taint(volume, false));
        let excused = match self.profile.fault_profile {
            _ if self.profile.features.has(Feature::Rot) && rotten => true,
            _ if !without_cache && self.is_refused_by_a_path(&served, since, &result) => !last,
            FaultProfile::Crashes => unanswered && !last,
            FaultProfile::OriginErrors => !last,
            FaultProfile::CacheErrors | FaultProfile::Damage => true,
        };
        let result_ok = result.is_ok();
        if let Err(error) = result {
            if !excused {
                return Err(plain(20, format!("a clean stop failed: {error}")));
            }
            if !last {
                self.shared.stop();
                self.crash();
                return Ok(false);
            }
        }
        self.counts.clean_stops += 1;
        self.judge_stop(without_cache && result_ok)?;
        self.oracle.stopped_cleanly(&self.running());
        self.drop_process();
        self.give_paths_back();
        Ok(true)
    }

    /// Kills the process, and sometimes cuts the power of all disks together.
    pub(crate) fn crash(&mut self) {
        self.counts.crashes += 1;
        self.judge_loss();
        self.drop_process();
        let killed = self.profile.features.has(Feature::Written) && self.rng.bool();
        let power = (!killed && self.rng.u32(0..4) > 0).then(|| PowerCut::choose(&mut self.rng));
        let alone = self.profile.features.has(Feature::OwnPower) && !killed;
        let mut cut = Vec::new();
        for disk in std::iter::once(&self.cache).chain(&self.origins) {
            let own = alone.then(|| self.rng.bool().then(|| PowerCut::choose(&mut self.rng)));
            let power = own.unwrap_or(power);
            cut.push(power.is_some());
            disk.crash(power);
        }
        if let Some(ledger) = &self.ledger {
            ledger.crash();
        }
        // A damaged record that no later record confirms looks like one that did not arrive.
        let damaged = self.profile.features.has(Feature::Rot);
        self.oracle.crash(|volume| damaged || cut[0] || cut[usize::from(volume) + 1]);
        self.note_cut_off();
        self.set_faults(false);
        self.shared.arm(None);
    }

    /// Reads everything once more and writes it back, and then judges the origins without the
    /// cache.
    fn last_judgement(&mut self) -> Result<(), Violation> {
        self.set_faults(false);
        self.start_all()?;
        self.collect_unreadable = true;
        self.read_all(100)?;
        if self.profile.features.has(Feature::Rot) && !self.unreadable.is_empty() {
            // A read fails as a whole: the sectors that were not damaged must be readable
            // individually.
            let failed = std::mem::take(&mut self.unreadable).into_iter();
            let alone = failed.filter(|place| !self.oracle.is_tainted(*place));
            let alone = alone.map(|place| (place.volume, place.sector, 1)).collect();
            self.read_in_any_order(alone)?;
        }
        let loses =
            matches!(self.profile.fault_profile, FaultProfile::CacheErrors | FaultProfile::Damage);
        if loses && !self.profile.is_only_protected() {
            // Unreadable data was lost through the cache device's fault, and was reported.
            for place in std::mem::take(&mut self.unreadable) {
                self.oracle.taint(place);
            }
        } else if let Some(place) = self.unreadable.first() {
            return Err(plain(
                16,
                format!("{place} is still unreadable though the origin works again"),
            ));
        }
        self.stop(true, true)?;
        for (volume, origin) in self.origins.iter().enumerate() {
            let cut = PowerCut::choose(&mut self.rng);
            origin.crash(Some(cut));
            self.judge_behind(volume as u16)?;
            let oracle = &mut self.oracle;
            origin.with_image(|image| {
                (0..oracle.sectors(volume as u16)).try_for_each(|sector| {
                    oracle.check_origin(
                        SectorAddress { volume: volume as u16, sector },
                        image.durable(sector),
                    )
                })
            })?;
        }
        Ok(())
    }
}
