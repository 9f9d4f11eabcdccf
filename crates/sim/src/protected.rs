//! Origins that refuse writes for a while: some report this, others only refuse writes. Clients
//! must be refused soon after an origin has reported it, because acknowledged data must have a way
//! to the origin (invariant 36).

use std::time::Duration;

use forebay_core::{Clock, IoError, Nanos, Op};

use crate::disk::{SimDisk, State};
use crate::features::Feature;
use crate::oracle::plain;
use crate::profile::FaultProfile;
use crate::system::Admin;
use crate::violation::{Asked, Violation};
use crate::world::World;

/// Time within which the system must detect that an origin refuses writes, and that it accepts them
/// again.
const NOTICED: Duration = Duration::from_secs(3);
/// Time within which a write that is retried shows that an origin accepts writes.
const RETRIED: Duration = Duration::from_secs(15);

/// Longer than a drain takes.
const LONG: Duration = Duration::from_secs(86_400);

/// A period in which a disk refuses writes.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ProtectedPeriod {
    since: Nanos,
    until: Nanos,
    /// The disk says so.
    told: bool,
}

impl ProtectedPeriod {
    /// Ends the period, at `now` at the latest.
    pub(crate) fn end(&mut self, now: Nanos) {
        self.until = self.until.min(now);
    }

    fn is_in_force(self, now: Nanos) -> bool {
        self.since <= now && now < self.until
    }
}

impl State {
    /// Returns whether a change is refused.
    pub(crate) fn refuses_changes(&self, now: Nanos) -> bool {
        self.protection.is_in_force(now)
    }
}

impl SimDisk {
    /// Returns whether the disk reports that it refuses writes.
    pub(crate) fn says_protected(&self) -> bool {
        let protection = self.state.lock().protection;
        protection.told && protection.is_in_force(self.shared.clock.now())
    }

    fn protection(&self) -> ProtectedPeriod {
        self.state.lock().protection
    }
}

impl World<'_> {
    /// Sometimes protects an origin. Returns the time at which the engine must know it.
    pub(crate) fn perhaps_protect(&mut self) -> Option<Nanos> {
        if !self.profile.features.has(Feature::Protected) || self.protecting.u8(0..3) == 0 {
            return None;
        }
        let now = self.now();
        let volume = self.protecting.usize(0..self.origins.len());
        let of_cache = self.profile.fault_profile == FaultProfile::CacheErrors;
        let disk = if of_cache { &self.cache } else { &self.origins[volume] };
        let (told, longest) = (self.protecting.bool(), 1 << self.protecting.u32(7..15));
        let until = now + NOTICED + Duration::from_millis(self.protecting.u64(0..longest));
        disk.state.lock().protection = ProtectedPeriod { since: now, until, told };
        self.shared.fault(
            "write protection",
            &[disk.number, until.0, u64::from(told)],
            format_args!("{} until {until}, it says so: {told}", disk.name),
        );
        (told && !of_cache && self.protecting.bool()).then_some(now + NOTICED)
    }

    /// Protects an origin while nothing else is wrong. A drain succeeds only if the origin already
    /// has everything; once the origin accepts writes again, the drain must succeed. Returns
    /// `false` if the world stopped.
    pub(crate) fn judge_protected(&mut self) -> Result<bool, Violation> {
        let has = |feature| self.profile.features.has(feature);
        // A dirty block that the cache device can no longer read cannot reach the origin, and a
        // restarted server fails a sync.
        let judges = has(Feature::Protected) && !has(Feature::Rot) && !has(Feature::Remote);
        let running = self.running();
        if !judges || running.is_empty() || self.profile.fault_profile != FaultProfile::OriginErrors
        {
            return Ok(true);
        }
        self.set_faults(false);
        let volume = running[self.protecting.usize(0..running.len())];
        let (since, told) = (self.now(), self.protecting.bool());
        let protection = ProtectedPeriod { since, until: since + LONG, told };
        self.origins[usize::from(volume)].state.lock().protection = protection;
        self.shared.event("protected", &[u64::from(volume)], format_args!("it says so: {told}"));
        let drain = Admin::Drain(volume);
        match self.wait_for_answer(drain)? {
            None => return Ok(false),
            Some(Ok(())) => self.judge_arrival(volume)?,
            Some(Err(_)) => (),
        }
        self.set_faults(false);
        match self.wait_for_answer(drain)? {
            None => Ok(false),
            Some(Ok(())) => self.judge_arrival(volume).map(|()| true),
            Some(Err(_)) if self.instance.as_ref().is_some_and(|it| it.stuck(volume).unsynced) => {
                Ok(true)
            }
            Some(Err(error)) => Err(plain(
                16,
                format!(
                    "volume {volume} cannot be drained, although its origin takes writes again: {error}"
                ),
            )),
        }
    }

    /// Returns whether an origin may refuse changes, or its volume may refuse them for that reason.
    pub(crate) fn may_refuse_changes(&self, volume: u16) -> bool {
        let protection = self.origins.get(usize::from(volume)).map(|origin| origin.protection());
        protection.is_some_and(|it| it.until > Nanos(0) && self.now() < it.until + RETRIED)
    }

    /// Checks that no write was acknowledged that began after the engine had to know that the
    /// origin refuses writes.
    pub(crate) fn judge_protection(
        &self,
        tag: u64,
        asked: Asked,
        result: Result<(), IoError>,
    ) -> Result<(), Violation> {
        let changes = matches!(asked.op, Op::Write | Op::WriteZeroes);
        let Some(origin) = self.origins.get(usize::from(asked.volume)).filter(|_| changes) else {
            return Ok(());
        };
        let (protection, begun) = (origin.protection(), self.oracle.submitted_at(tag));
        let known = protection.since + NOTICED;
        let late = begun.is_some_and(|begun| begun > known && protection.is_in_force(begun));
        match late && protection.told && result.is_ok() && protection.is_in_force(self.now()) {
            true => Err(plain(
                36,
                format!(
                    "write {tag} of volume {} was acknowledged, although its origin has taken none since {}",
                    asked.volume, protection.since
                ),
            )),
            false => Ok(()),
        }
    }
}
