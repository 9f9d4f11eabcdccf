//! When dirty blocks are written back, and how urgently.
//!
//! Watermarks with hysteresis are dm-writecache's and EnhanceIO's; writing while the origin is idle
//! is bcache's and dm-cache's; an age limit is dm-writecache's `dirty_age` and EnhanceIO's
//! `time_based_clean_interval`. The first trigger that holds starts writeback, in this order:
//!
//! | trigger | holds when | urgency | outside of quiet hours |
//! |---|---|---|---|
//! | draining | the operator wants everything written back | urgent | urgent |
//! | space | clients are throttled because so much is dirty | urgent | urgent |
//! | watermark | `dirty_high` was reached, and `dirty_low` has not been since | polite | polite |
//! | cache watermark | the same for all volumes of the cache together | polite | polite |
//! | quiet | within `quiet_hours`, and a block is dirty | free | never |
//! | idle | no foreground request for `idle` | free | slow |
//! | age | a block has been dirty for `dirty_age` | polite | slow |
//! | awake | never: only with `writeback=lazy` | | |
//!
//! The first two hold even when writeback is switched off: the operator asked for the first, and
//! without the second clients would wait for ever. The last column applies to volumes with quiet
//! hours, at other times of the day. Their operator wants the origin to rest by day as long as the
//! cache has space, and everything written back by night.
//!
//! With `writeback=lazy` the origin's disk is to sleep for as long as possible, and a sweep ends
//! with nothing dirty, so that the next one is needed as late as possible:
//!
//! - idle and age never hold; quiet holds once, when the quiet hours begin
//! - awake holds when the origin was accessed for a client within [`AWAKE_FOR`]
//! - a trigger then continues to hold until nothing is dirty
//! - draining and space are urgent; the others are free, or polite while clients make requests

use std::time::Duration;

use forebay_core::{Laziness, Nanos};
use forebay_settings::Settings;

/// Longest time until the pacer must be asked again. The pacer is not notified when the dirty share
/// grows, but a cache takes far longer than this to fill between the watermarks.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// With `writeback=lazy`, time for which a disk counts as awake after an access for a client.
/// Longer than [`LOOK_AGAIN`], so that no access is missed, and far shorter than the minutes after
/// which disks go to sleep.
pub const AWAKE_FOR: Duration = Duration::from_secs(10);

/// With `writeback=lazy`, clients count as quiet after this long without a request.
const CLIENTS_QUIET: Duration = Duration::from_secs(10);

/// Inputs of a decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DirtyState {
    /// Dirty blocks of the volume.
    pub dirty_blocks: u64,
    /// Dirty blocks of all volumes of the cache.
    pub cache_dirty_blocks: u64,
    /// Capacity of the cache in blocks.
    pub capacity_blocks: u64,
    /// Number of these blocks that the volume may occupy: `dirty_high` and `dirty_low` are shares
    /// of it.
    pub share_blocks: u64,
    /// The time at which the block that has been dirty for longest became dirty, if known. An
    /// earlier time is safe.
    pub oldest_dirty: Option<Nanos>,
    /// Time of the last foreground request.
    pub last_foreground: Nanos,
    /// The time at which the origin was last accessed for another reason than this writeback, if it
    /// was.
    pub origin_used: Option<Nanos>,
    /// Everything must be written back: the volume stops, leaves writeback mode, or a user
    /// requested it.
    pub draining: bool,
    /// Clients are throttled because so much is dirty.
    pub space_wanted: bool,
    /// The time since midnight, local time.
    pub time_of_day: Duration,
}

/// Degree to which writeback may interfere with foreground requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// Write as fast as the origin can, ignoring `rate_max`, because a command waits for it.
    Urgent,
    /// Write as fast as the origin can and `rate_max` allows: there are no foreground requests.
    Free,
    /// Foreground requests go first: see [`RateControl`](crate::RateControl).
    Polite,
    /// At `rate_min`.
    Slow,
}

/// The next step of writeback.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Write nothing, and ask again at this time at the latest.
    Idle {
        /// Always later than `now` of the call.
        look_again: Nanos,
    },
    /// Write the next blocks, then ask again.
    Write {
        /// Urgency of the writes.
        urgency: Urgency,
    },
}

/// Why the pacer writes; see the table at the top of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// Everything must be written back.
    Draining,
    /// Clients are throttled.
    Space,
    /// The volume's dirty blocks exceed their share of the cache.
    Watermark,
    /// The dirty blocks of all volumes exceed their share of the cache.
    CacheWatermark,
    /// The quiet hours have begun.
    Quiet,
    /// There are no foreground requests.
    Idle,
    /// A block has been dirty for too long.
    Age,
    /// A client has woken the origin.
    Awake,
}

impl Trigger {
    /// Returns the urgency of this trigger. `by_day`: the volume has quiet hours, and it is outside
    /// of them.
    pub fn urgency(self, by_day: bool) -> Urgency {
        match self {
            Trigger::Draining | Trigger::Space => Urgency::Urgent,
            Trigger::Watermark | Trigger::CacheWatermark => Urgency::Polite,
            Trigger::Idle | Trigger::Age if by_day => Urgency::Slow,
            Trigger::Quiet | Trigger::Idle | Trigger::Awake => Urgency::Free,
            Trigger::Age => Urgency::Polite,
        }
    }
}

/// Whether a dirty share has reached the high watermark and has not fallen to the low one since.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Watermarks {
    above: bool,
}

impl Watermarks {
    /// Updates the state. Percentages above 100 count as 100, and a low watermark above the high
    /// one as equal to it.
    fn update(&mut self, dirty: u64, capacity: u64, high: u8, low: u8) -> bool {
        let high = high.min(100);
        let low = low.min(high);
        let dirty = u128::from(dirty) * 100;
        let share = |percent: u8| u128::from(capacity) * u128::from(percent);
        self.above = dirty >= share(high) || (self.above && dirty > share(low));
        self.above
    }
}

/// Decides when a volume writes back.
#[derive(Clone, Debug)]
pub struct Pacer {
    settings: Settings,
    volume: Watermarks,
    cache: Watermarks,
    trigger: Option<Trigger>,
    /// With `writeback=lazy`: everything dirty has been written back in these quiet hours.
    quiet_over: bool,
}

impl Pacer {
    /// Creates a pacer with these settings.
    pub fn new(settings: Settings) -> Self {
        let (volume, cache) = (Watermarks::default(), Watermarks::default());
        Pacer { settings, volume, cache, trigger: None, quiet_over: false }
    }

    /// Returns the settings in force.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Changes the settings; takes effect with the next decision.
    pub fn set_settings(&mut self, settings: Settings) {
        self.settings = settings;
    }

    /// Returns the trigger of the last decision; `None` if that was to be idle.
    pub fn trigger(&self) -> Option<Trigger> {
        self.trigger
    }

    /// Returns the decision at the time `now`.
    pub fn decide(&mut self, now: Nanos, state: &DirtyState) -> Decision {
        let Settings { dirty_high, dirty_low, .. } = self.settings;
        let (cache_low, cache_high) = self.settings.cache_watermarks();
        let capacity = state.capacity_blocks;
        self.volume.update(state.dirty_blocks, state.share_blocks, dirty_high, dirty_low);
        self.cache.update(state.cache_dirty_blocks, capacity, cache_high, cache_low);
        let hours = self.settings.quiet_hours;
        let quiet = hours.is_some_and(|hours| hours.contains(state.time_of_day));
        self.quiet_over = quiet && (self.quiet_over || state.dirty_blocks == 0);
        self.trigger = self.find_trigger(now, state, quiet);
        match self.trigger {
            Some(trigger) => {
                let urgency = match trigger.urgency(hours.is_some() && !quiet) {
                    Urgency::Urgent => Urgency::Urgent,
                    urgency if !self.is_lazy() => urgency,
                    _ if now.since(state.last_foreground) >= CLIENTS_QUIET => Urgency::Free,
                    _ => Urgency::Polite,
                };
                Decision::Write { urgency }
            }
            None => Decision::Idle { look_again: self.look_again(now, state) },
        }
    }

    fn is_lazy(&self) -> bool {
        self.settings.writeback == Laziness::Lazy
    }

    fn find_trigger(&self, now: Nanos, state: &DirtyState, quiet: bool) -> Option<Trigger> {
        if state.dirty_blocks == 0 {
            return None;
        }
        if state.draining {
            return Some(Trigger::Draining);
        }
        if state.space_wanted {
            return Some(Trigger::Space);
        }
        if !self.settings.writeback_running {
            return None;
        }
        let due = |deadline: Option<Nanos>| deadline.is_some_and(|deadline| deadline <= now);
        if self.volume.above {
            Some(Trigger::Watermark)
        } else if self.cache.above {
            Some(Trigger::CacheWatermark)
        } else if self.is_lazy() {
            let awake = state.origin_used.is_some_and(|used| now.since(used) < AWAKE_FOR);
            let begins = (quiet && !self.quiet_over).then_some(Trigger::Quiet);
            let goes_on = self.trigger.map(|trigger| match trigger {
                // No command waits any more, but the disk is awake.
                Trigger::Draining | Trigger::Space => Trigger::Awake,
                other => other,
            });
            goes_on.or(begins).or(awake.then_some(Trigger::Awake))
        } else if quiet {
            Some(Trigger::Quiet)
        } else if due(self.idle_deadline(state)) {
            Some(Trigger::Idle)
        } else if due(self.age_deadline(state)) {
            Some(Trigger::Age)
        } else {
            None
        }
    }

    fn age_deadline(&self, state: &DirtyState) -> Option<Nanos> {
        let oldest = state.oldest_dirty.filter(|_| !self.settings.dirty_age.is_zero())?;
        Some(oldest + self.settings.dirty_age)
    }

    fn idle_deadline(&self, state: &DirtyState) -> Option<Nanos> {
        (!self.settings.idle.is_zero()).then(|| state.last_foreground + self.settings.idle)
    }

    fn look_again(&self, now: Nanos, state: &DirtyState) -> Nanos {
        let longest = now + LOOK_AGAIN;
        if state.dirty_blocks == 0 || !self.settings.writeback_running || self.is_lazy() {
            return longest;
        }
        [self.age_deadline(state), self.idle_deadline(state)]
            .into_iter()
            .flatten()
            .fold(longest, Nanos::min)
    }
}

#[cfg(test)]
mod tests;
