//! When dirty blocks are written back, and how urgently.
//!
//! Watermarks with hysteresis are dm-writecache's and EnhanceIO's; writing while nobody else uses
//! the origin is bcache's and dm-cache's; an age limit is dm-writecache's `max_age` and EnhanceIO's
//! `time_based_clean_interval`. The first of these that holds starts writeback, in this order:
//!
//! | trigger | holds when | urgency |
//! |---|---|---|
//! | draining | the operator wants nothing dirty to be left | urgent |
//! | space | a request waits for room that only writeback can make | urgent |
//! | watermark | `dirty_high` was reached, and `dirty_low` has not been since | background |
//! | age | something has been dirty for `max_age` | background |
//! | idle | there was no foreground request for `idle` | background |
//!
//! The first two hold even when writeback is switched off: the operator has asked for one, and
//! without the other the request would wait for ever.

use std::time::Duration;

use forebay_core::Nanos;

/// Longest time until the pacer wants to be asked again. The dirty share grows without anybody
/// telling the pacer; a cache takes far longer than this to fill between the watermarks.
pub const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// When and how much is written back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WritebackSettings {
    /// Whether to write back at all unless it must be.
    pub running: bool,
    /// Share of the cache in percent, 0 to 100, that may be dirty before writeback starts.
    ///
    /// Default 50, as in dm-writecache: dirty blocks cannot be evicted, and half of the cache stays
    /// for reads. EnhanceIO starts at 30 and bcache keeps 10, which gives overwrites less time
    /// to be absorbed and neighbours less time to arrive.
    pub dirty_high: u8,
    /// Share in percent, at most `dirty_high`, at which writeback stops again.
    ///
    /// Default 40: a wider gap than dm-writecache's 45, so that one sweep has a tenth of the cache
    /// to sort and the origin gets long ascending passes with rests between them.
    pub dirty_low: u8,
    /// How long a block may be dirty; zero is for ever.
    ///
    /// Default 10 minutes: it bounds what is lost with the cache device, and is long enough for
    /// blocks that are written again and again to be written back once. (dm-writecache: off;
    /// bcache: from 30 s on.)
    pub max_age: Duration,
    /// How long no foreground request must have come for the origin to count as idle; zero is
    /// never.
    ///
    /// Default 3 seconds, dm-writecache's pause; dm-cache waits for 1 second.
    pub idle: Duration,
    /// Writes to the origin that are in flight together, at least 1.
    ///
    /// Default 64, as in bcache: twice the 32 that a SATA disk sorts by itself, so that its queue
    /// is never short.
    pub depth: u32,
    /// Largest write to the origin, in bytes; a block if that is more.
    ///
    /// Default 1 MiB: seek and rotation cost a 7,200 rpm disk about as much as moving 2 MiB, and
    /// most kernels split requests at 1.25 MiB. (bcache: 2.4 MiB.)
    pub merge_bytes: u32,
}

impl Default for WritebackSettings {
    fn default() -> Self {
        WritebackSettings {
            running: true,
            dirty_high: 50,
            dirty_low: 40,
            max_age: Duration::from_secs(600),
            idle: Duration::from_secs(3),
            depth: 64,
            merge_bytes: 1 << 20,
        }
    }
}

/// Settings that make no sense.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingsError {
    /// A share above 100 %.
    #[error("{field} is {given} %; choose 0 to 100")]
    Percent {
        /// The setting.
        field: &'static str,
        /// Its value.
        given: u8,
    },
    /// The watermarks are the wrong way round.
    #[error(
        "dirty_low ({low} %) is above dirty_high ({high} %); choose a dirty_low of {high} or less"
    )]
    Crossed {
        /// `dirty_low`.
        low: u8,
        /// `dirty_high`.
        high: u8,
    },
    /// Nothing could be in flight.
    #[error("depth is 0; choose 1 or more, or switch writeback off with running")]
    NoDepth,
}

impl WritebackSettings {
    /// Whether the settings make sense.
    ///
    /// # Errors
    /// A share above 100, watermarks that are crossed, a depth of 0.
    pub fn validate(&self) -> Result<(), SettingsError> {
        for (field, given) in [("dirty_high", self.dirty_high), ("dirty_low", self.dirty_low)] {
            if given > 100 {
                return Err(SettingsError::Percent { field, given });
            }
        }
        if self.dirty_low > self.dirty_high {
            return Err(SettingsError::Crossed { low: self.dirty_low, high: self.dirty_high });
        }
        if self.depth == 0 {
            return Err(SettingsError::NoDepth);
        }
        Ok(())
    }
}

/// What the pacer decides upon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DirtyState {
    /// Blocks that are dirty.
    pub dirty_blocks: u64,
    /// Blocks that the cache can hold.
    pub capacity_blocks: u64,
    /// Since when the block that has been dirty for longest is dirty, if that is known. An earlier
    /// time is safe.
    pub oldest_dirty: Option<Nanos>,
    /// When the last foreground request came.
    pub last_foreground: Nanos,
    /// Everything is to be written back: the volume stops, leaves writeback mode, or a user asked
    /// for it.
    pub draining: bool,
    /// A request waits for room and there is none to be had without writing back.
    pub space_wanted: bool,
}

/// How much writeback may get in the way of foreground requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Urgency {
    /// Foreground requests go first.
    Background,
    /// As fast as the origin can.
    Urgent,
}

/// What to do now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision {
    /// Write nothing, and ask again at that time at the latest.
    Idle {
        /// Always later than the time that was handed in.
        look_again: Nanos,
    },
    /// Write the next window, then ask again.
    Write {
        /// How urgently.
        urgency: Urgency,
    },
}

/// What made the pacer write; see the table at the top of the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Trigger {
    /// Nothing dirty is to be left.
    Draining,
    /// A request waits for room.
    Space,
    /// Too large a share of the cache is dirty.
    Watermark,
    /// Something has been dirty for too long.
    Age,
    /// Nobody else uses the origin.
    Idle,
}

/// Decides when a volume, or a cache, writes back.
#[derive(Clone, Debug)]
pub struct Pacer {
    settings: WritebackSettings,
    /// The dirty share reached the high watermark and has not come down to the low one.
    above: bool,
    trigger: Option<Trigger>,
}

impl Pacer {
    /// A pacer with these settings; shares above 100 count as 100, and a low watermark above the
    /// high one as equal to it.
    pub fn new(settings: WritebackSettings) -> Self {
        Pacer { settings, above: false, trigger: None }
    }

    /// The settings in force.
    pub fn settings(&self) -> &WritebackSettings {
        &self.settings
    }

    /// Changes the settings; takes effect with the next decision.
    pub fn set_settings(&mut self, settings: WritebackSettings) {
        self.settings = settings;
    }

    /// What led to the last decision, `None` if that was to be idle.
    pub fn trigger(&self) -> Option<Trigger> {
        self.trigger
    }

    /// What to do at the time `now`.
    pub fn decide(&mut self, now: Nanos, state: &DirtyState) -> Decision {
        self.update_watermark(state);
        self.trigger = self.find_trigger(now, state);
        match self.trigger {
            Some(Trigger::Draining | Trigger::Space) => {
                Decision::Write { urgency: Urgency::Urgent }
            }
            Some(Trigger::Watermark | Trigger::Age | Trigger::Idle) => {
                Decision::Write { urgency: Urgency::Background }
            }
            None => Decision::Idle { look_again: self.look_again(now, state) },
        }
    }

    fn update_watermark(&mut self, state: &DirtyState) {
        let high = self.settings.dirty_high.min(100);
        let low = self.settings.dirty_low.min(high);
        let dirty = u128::from(state.dirty_blocks) * 100;
        let share = |percent: u8| u128::from(state.capacity_blocks) * u128::from(percent);
        self.above = dirty >= share(high) || (self.above && dirty > share(low));
    }

    fn find_trigger(&self, now: Nanos, state: &DirtyState) -> Option<Trigger> {
        if state.dirty_blocks == 0 {
            return None;
        }
        if state.draining {
            return Some(Trigger::Draining);
        }
        if state.space_wanted {
            return Some(Trigger::Space);
        }
        if !self.settings.running {
            return None;
        }
        let due = |deadline: Option<Nanos>| deadline.is_some_and(|deadline| deadline <= now);
        if self.above {
            Some(Trigger::Watermark)
        } else if due(self.age_deadline(state)) {
            Some(Trigger::Age)
        } else if due(self.idle_deadline(state)) {
            Some(Trigger::Idle)
        } else {
            None
        }
    }

    fn age_deadline(&self, state: &DirtyState) -> Option<Nanos> {
        let oldest = state.oldest_dirty.filter(|_| !self.settings.max_age.is_zero())?;
        Some(oldest + self.settings.max_age)
    }

    fn idle_deadline(&self, state: &DirtyState) -> Option<Nanos> {
        (!self.settings.idle.is_zero()).then(|| state.last_foreground + self.settings.idle)
    }

    fn look_again(&self, now: Nanos, state: &DirtyState) -> Nanos {
        let longest = now + LOOK_AGAIN;
        if state.dirty_blocks == 0 || !self.settings.running {
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
