//! Origins that hang, and time limits for everything that does not need them: requests, operators'
//! actions, and the commits that limit the loss in a crash.

use std::time::Duration;

use forebay_core::{Nanos, Op};

use crate::features::Feature;
use crate::oracle::plain;
use crate::schedule::StopReason;
use crate::violation::Violation;
use crate::world::World;

/// The longest hang of an origin, in seconds.
const LONGEST_HANG: u64 = 300;

/// Time within which everything must end that needs no hanging origin, where nothing else is slow.
const PROMPT: Duration = Duration::from_secs(60);

/// Time within which everything must end in any world, once the origin answers.
const PATIENCE: Duration = Duration::from_secs(900);

/// Time for a timed commit: a few operations, each of which takes at most a quarter of a second
/// where nothing hangs.
const COMMIT_TAKES: Duration = Duration::from_secs(2);

impl World<'_> {
    /// Sometimes makes an origin hang for a while.
    pub(crate) fn perhaps_hang(&mut self) {
        let now = self.now();
        if self.hung_until.iter().any(|until| *until > now) || self.rng.u32(0..4_000) > 0 {
            return;
        }
        let volume = self.rng.usize(0..self.origins.len());
        let seconds = if self.rng.bool() { 10 } else { LONGEST_HANG };
        let until = now + Duration::from_millis(self.rng.u64(0..=seconds * 1000));
        self.hung_until[volume] = until;
        self.origins[volume].hang(until);
        self.shared.fault(
            "hang",
            &[volume as u64, until.0],
            format_args!("origin-{volume} until {until}"),
        );
    }

    /// Lets the world idle before a round ends.
    pub(crate) fn idle(&mut self) -> Result<StopReason, Violation> {
        let until = self.now() + Duration::from_millis(self.rng.u64(0..8_000));
        self.pump(false, |world| Ok(world.now() >= until))
    }

    fn is_hung(&self, volume: u16) -> bool {
        self.hung_until.get(usize::from(volume)).is_some_and(|until| *until > self.now())
    }

    /// Checks that requests that do not need a hanging origin do not wait for it.
    pub(crate) fn judge_patience(&mut self) -> Result<(), Violation> {
        let now = self.now();
        let patience = if self.profile.features.has(Feature::Hang) { PROMPT } else { PATIENCE };
        // Held versions of an ordered origin cannot be moved, and in a cache of a few segments each
        // segment soon contains one. Other ordered volumes must then wait; other volumes need not.
        let holds = self.instance.as_ref().filter(|instance| instance.holds_versions());
        let hangs = self.hung_until.iter().any(|until| *until > now);
        if let Some(instance) = holds.filter(|_| hangs || self.is_starved()) {
            for (volume, until) in self.short_until.iter_mut().enumerate() {
                if instance.is_ordered(volume as u16) {
                    *until = now;
                }
            }
        }
        let since = |volume: u16, at: Nanos| {
            let free = self.hung_until.get(usize::from(volume)).copied().unwrap_or_default();
            now.since(at.max(free))
        };
        for (tag, asked, at) in self.oracle.waiting() {
            let volume = asked.volume;
            // With deferred writes, a flush first writes them to the log.
            let needs_room = matches!(asked.op, Op::Write | Op::WriteZeroes | Op::Discard)
                || (asked.op == Op::Flush && self.profile.setup.deferred);
            let short_until = self.short_until.get(usize::from(volume)).copied();
            let at = if needs_room { at.max(short_until.unwrap_or_default()) } else { at };
            if since(volume, at) > patience && !self.is_hung(volume) {
                return Err(plain(
                    25,
                    format!(
                        "request {tag} of volume {volume} has waited for {} s, and its origin answers",
                        patience.as_secs()
                    ),
                ));
            }
        }
        if let Some((action, volume)) = self.admin.as_ref().map(|admin| admin.of())
            && since(volume, self.admin_since) > PATIENCE
            && !self.is_hung(volume)
        {
            return Err(plain(25, format!("{action:?} does not end, and the origin answers")));
        }
        Ok(())
    }

    /// Declares all writes durable that were acknowledged before the last commit interval.
    pub(crate) fn judge_loss(&mut self) {
        if !self.profile.features.has(Feature::Hang) {
            return;
        }
        let now = self.now();
        for volume in 0..self.origins.len() as u16 {
            let until = self.hung_until[usize::from(volume)];
            let Some(interval) =
                self.instance.as_ref().and_then(|instance| instance.commit_interval(volume))
            else {
                continue;
            };
            let taken = interval + COMMIT_TAKES;
            // Writes that bypassed the cache to a hanging origin cannot be made durable.
            if now.since(until) < taken && until > Nanos(0) {
                continue;
            }
            if let Some(time) = now.0.checked_sub(taken.as_nanos() as u64) {
                self.oracle.durable_since(volume, Nanos(time));
            }
        }
    }
}
