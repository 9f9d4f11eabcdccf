//! The scheduler: one lane runs, one disk operation completes, one client submits, or, if none of
//! these is possible, time advances.

use std::time::Duration;

use forebay_core::Nanos;
use forebay_engine::{EngineError, Obstacle};

use crate::features::Feature;
use crate::oracle::plain;
use crate::system::{Admin, is_present, is_refused};
use crate::violation::{Asked, Violation};
use crate::world::{AdminState, World};

/// Why the scheduler returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StopReason {
    /// The goal was reached.
    Reached,
    /// The fuse blew.
    Crashed,
}

/// Virtual time within which every request must end.
const PATIENCE: Duration = Duration::from_secs(600);
/// Virtual time within which an origin that hung has answered everything: each operation takes at
/// most a quarter of a second where nothing else is slow.
const ANSWERS_LATE: Duration = Duration::from_secs(1);
/// Number of steps without an answer after which the system counts as livelocked.
const BUSY: u64 = 3_000_000;
/// Number of steps at one moment of virtual time after which the system counts as looping.
const CIRCLES: u64 = 200_000;

impl World<'_> {
    /// Runs until `goal` is reached or the world stops.
    pub(crate) fn pump(
        &mut self,
        clients: bool,
        mut goal: impl FnMut(&mut Self) -> Result<bool, Violation>,
    ) -> Result<StopReason, Violation> {
        let mut still = (self.now(), 0u64);
        let mut busy = (self.last_progress, 0u64);
        loop {
            self.take_answers()?;
            if self.shared.stopped() {
                return Ok(StopReason::Crashed);
            }
            let reached = goal(self)?;
            // The check of the goal may have ended an action that stops the world.
            if self.shared.stopped() {
                return Ok(StopReason::Crashed);
            }
            if reached {
                return Ok(StopReason::Reached);
            }
            if self.act(clients)? {
                if still.0 != self.now() {
                    still = (self.now(), 0);
                }
                still.1 += 1;
                if still.1 > CIRCLES {
                    return Err(plain(
                        25,
                        "the system runs in circles and time does not pass".into(),
                    ));
                }
                if busy.0 != self.last_progress {
                    busy = (self.last_progress, 0);
                }
                busy.1 += 1;
                if busy.1 > BUSY {
                    return Err(plain(25, "the system is busy for ever and nothing ends".into()));
                }
                continue;
            }
            self.pass_time(clients)?;
        }
    }

    /// Takes one possible step, in random order of preference. Returns `false` if no step is
    /// possible.
    fn act(&mut self, clients: bool) -> Result<bool, Violation> {
        self.counts.steps += 1;
        let first = self.rng.u32(0..8);
        let order: [u32; 3] = match first {
            0..3 => [0, 1, 2],
            3..6 => [1, 0, 2],
            6 => [1, 2, 0],
            _ => [2, 0, 1],
        };
        for what in order {
            let acted = match what {
                0 => self.run_lane(),
                1 => self.complete_operation(),
                _ => clients && self.ask()?,
            };
            if acted {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn run_lane(&mut self) -> bool {
        let count = self.lanes.len();
        let start = if count > 1 { self.rng.usize(0..count) } else { 0 };
        (0..count).any(|index| self.lanes[(start + index) % count].run_ready())
    }

    fn complete_operation(&mut self) -> bool {
        let disks = self.origins.len() + 1;
        let count = disks + usize::from(self.ledger.is_some());
        let start = self.rng.usize(0..count);
        (0..count).any(|index| match (start + index) % count {
            0 => self.cache.complete_one(),
            origin if origin < disks => self.origins[origin - 1].complete_one(),
            _ => self.ledger.as_ref().is_some_and(|ledger| ledger.complete_one()),
        })
    }

    fn ask(&mut self) -> Result<bool, Violation> {
        let (count, now) = (self.clients.len(), self.now());
        let start = self.rng.usize(0..count.max(1));
        let open = self.taking_requests();
        for index in (0..count).map(|index| (start + index) % count) {
            let client = &mut self.clients[index];
            if !open.contains(&client.volume) || client.due().is_none_or(|due| due > now) {
                continue;
            }
            let (lane, volume, wanted) = (client.lane, client.volume, client.next_op(now));
            self.submit(lane, volume, wanted, Some(index))?;
            return Ok(true);
        }
        Ok(false)
    }

    /// Returns the volumes to which clients may now submit requests.
    fn taking_requests(&self) -> Vec<u16> {
        let mut running = self.running();
        running.retain(|volume| self.closed != Some(*volume));
        running
    }

    fn pass_time(&mut self, clients: bool) -> Result<(), Violation> {
        let now = self.now();
        let disks = std::iter::once(&self.cache).chain(&self.origins);
        let disks = disks.filter_map(|disk| disk.next_due());
        let lanes = self.lanes.iter().filter_map(|lane| lane.next_deadline());
        let open = self.taking_requests();
        let asking = self.clients.iter().filter(|client| clients && open.contains(&client.volume));
        let next = disks.chain(lanes).chain(asking.filter_map(|client| client.due())).min();
        let Some(next) = next else {
            return Err(plain(
                25,
                format!("{} requests will never end: nothing is under way", self.oracle.underway()),
            ));
        };
        if now.since(self.last_progress) > PATIENCE && self.is_starved() {
            // In a cache of a few segments, each with a held version of a stopped volume, writes
            // cannot proceed. The operator stops waiting.
            self.shared.stop();
            return Ok(());
        }
        if now.since(self.last_progress) > PATIENCE && self.mend_for_order() {
            self.last_progress = now;
        } else if now.since(self.last_progress) > PATIENCE {
            let volumes = 0..self.origins.len() as u16;
            let waiting: Vec<_> = volumes.filter(|it| self.oracle.underway_on(*it) > 0).collect();
            let is_ordered = |it: &u16| self.instance.as_ref().is_some_and(|of| of.is_ordered(*it));
            let ordered: Vec<_> = waiting.iter().filter(|it| is_ordered(it)).collect();
            return Err(plain(
                25,
                format!(
                    "no answer for {} s, {} requests of volumes {waiting:?} wait, {ordered:?} of which are ordered",
                    PATIENCE.as_secs(),
                    self.oracle.underway()
                ),
            ));
        }
        self.shared.clock.advance_to(Nanos(next.0.max(now.0 + 1)));
        self.judge_patience()
    }

    /// Starts, continues or ends an operator's action.
    pub(crate) fn administrate(&mut self) -> Result<(), Violation> {
        match self.admin.take() {
            None => {
                let busy = self.profile.features.has(Feature::Absence);
                if self.rng.u32(0..if busy { 600 } else { 2_000 }) == 0 {
                    let action = self.choose_action();
                    self.counts.admin_actions += 1;
                    self.admin_since = self.now();
                    self.shared.event("admin", &[], format_args!("{action:?}"));
                    self.begin(action);
                }
            }
            Some(AdminState::Quiescing(action, volume)) => {
                if self.oracle.underway_on(volume) > 0 {
                    self.admin = Some(AdminState::Quiescing(action, volume));
                } else {
                    self.invoke(action);
                }
            }
            Some(AdminState::Running(action, slot)) => {
                let result = slot.borrow_mut().take();
                match result {
                    None => self.admin = Some(AdminState::Running(action, slot)),
                    Some(result) => {
                        self.closed = None;
                        self.last_progress = self.now();
                        self.shared.event(
                            "admin",
                            &[u64::from(result.is_ok())],
                            format_args!("{action:?}: {result:?}"),
                        );
                        self.judge_admin(action, &result)?;
                        self.judge_path(action, &result)?;
                        self.presence_changed(action, &result)?;
                        self.take_sizes()?;
                        let half_done = matches!(
                            action,
                            Admin::Delete(..) | Admin::DeleteStopped(_, true) | Admin::Create(..)
                        ) || matches!(action, Admin::Restart(volume) if !self.is_served(volume));
                        if result.is_err() && half_done {
                            // The resulting state is unknown, and the operator gives up. If a
                            // failed cache device still contains the volume, however, it was
                            // deleted, and the ledger remembers that.
                            let remembered =
                                self.ledger.is_some() && result.as_ref().is_err_and(is_present);
                            if !remembered {
                                self.presence_unsure(action);
                            }
                            self.shared.stop();
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn judge_admin(
        &self,
        action: Admin,
        result: &Result<(), EngineError>,
    ) -> Result<(), Violation> {
        let at_risk = matches!(action, Admin::DeleteStopped(_, false))
            && is_refused(result, |obstacle| matches!(obstacle, Obstacle::Dirty(_)));
        // An operator's action does not wait for an origin that hangs. An origin that hung for long
        // answers the accumulated operations one by one.
        let answering = self.hung_until[usize::from(action.volume())] + ANSWERS_LATE;
        let unanswered = answering > self.admin_since
            && is_refused(result, |obstacle| matches!(obstacle, Obstacle::Unanswered(_)));
        // Unreadable blocks cannot be written back, and a volume that may have lost data is not
        // reported as written back.
        let rots = self.profile.features.has(Feature::Rot);
        // A block that a deferred write covers is unreadable below the RAM tier until that write is
        // written down.
        let defers = self.profile.features.has(Feature::Deferred);
        let rotten = rots
            && (self.oracle.has_taint(action.volume(), defers)
                || is_refused(result, |obstacle| matches!(obstacle, Obstacle::Damaged(_))));
        let excused = self.profile.fault_profile != crate::profile::FaultProfile::Crashes
            || at_risk
            || unanswered
            || rotten
            || self.is_refused_by_path(action, result);
        match result {
            Err(error) if !excused => {
                Err(plain(20, format!("{action:?} failed without a cause: {error}")))
            }
            _ => Ok(()),
        }
    }

    fn choose_action(&mut self) -> Admin {
        use forebay_core::{Caching, Durability, Mode, ReplacementKind};
        if self.profile.features.has(Feature::Absence)
            && self.rng.bool()
            && let Some(action) = self.choose_presence()
        {
            return action;
        }
        let running = self.running();
        let volume = running[usize::from(self.rng.u16(0..running.len() as u16))];
        if self.profile.features.has(Feature::Caching) && self.rng.u32(0..3) == 0 {
            let choice = self.rng.usize(0..2 * Caching::ALL.len());
            return match Caching::ALL.get(choice) {
                Some(caching) => Admin::Caching(volume, *caching),
                None => Admin::Drop(volume, choice != 3, choice != 4),
            };
        }
        match self.rng.u32(0..11) {
            8 | 9 => match self.rng.u64(..) {
                choice if choice % 4 == 0 => Admin::Ordered(volume, choice % 8 == 0),
                choice => Admin::Entry(volume, choice),
            },
            0..3 => Admin::Mode(volume, Mode::ALL[self.rng.usize(0..Mode::ALL.len())]),
            3 => Admin::Durability(
                volume,
                [Durability::Strict, Durability::Flush][self.rng.usize(0..2)],
            ),
            4 => Admin::Replacement(
                ReplacementKind::ALL[self.rng.usize(0..ReplacementKind::ALL.len())],
            ),
            5 | 6 => Admin::Drain(volume),
            7 => Admin::Writeback(volume, self.rng.u64(..)),
            _ => Admin::Restart(volume),
        }
    }

    fn begin(&mut self, action: Admin) {
        let oracle = &self.oracle;
        let keeps = |asked: Asked| !action.changes_durability(asked.volume);
        self.strict.retain(|tag| oracle.asked(*tag).is_some_and(keeps));
        if let Some(volume) = action.gives_up_order() {
            self.oracle.order.watch(volume, false);
        }
        match action {
            Admin::Stop(volume) | Admin::Delete(volume, _) => {
                // Requests in progress end, or are refused.
                self.closed = Some(volume);
                self.invoke(action);
            }
            Admin::Restart(volume) => {
                self.closed = Some(volume);
                self.admin = Some(AdminState::Quiescing(action, volume));
            }
            _ => self.invoke(action),
        }
    }

    fn invoke(&mut self, action: Admin) {
        if let Some(instance) = self.instance.clone() {
            let slot = self.call(instance.admin(action));
            self.admin = Some(AdminState::Running(action, slot));
        }
    }
}
