//! Every counted reason, in one place: why requests missed, blocks left, and so on.
//!
//! To add a reason: a line in the table below, the code in the engine that counts it, and a line in
//! `docs/operations.md`, which a test requires. Counters, JSON, `forebay show` and its help are
//! generated from the table.
//!
//! Misses and bypasses are counted in requests, wake-ups in wake-ups, all other reasons in blocks.

use serde::{Deserialize, Serialize};

/// A set of reasons of one kind.
pub trait Reason: Copy + Eq + 'static {
    /// Every reason, in the order in which statistics print them.
    const ALL: &'static [Self];
    /// Name of the group in JSON.
    const GROUP: &'static str;

    /// Returns the reason's name in JSON. Stable.
    fn name(self) -> &'static str;

    /// Returns the meaning, in half a sentence.
    fn help(self) -> &'static str;

    /// Returns the position in [`Reason::ALL`], for arrays of counters.
    fn index(self) -> usize;
}

macro_rules! reasons {
    ($($(#[$doc:meta])* $type:ident, $counts:ident, $group:ident: {
        $($variant:ident $name:ident $help:literal,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
            pub enum $type {
                $(#[doc = $help] $variant,)*
            }

            impl $type {
                /// Number of reasons.
                pub const COUNT: usize = <$type as Reason>::ALL.len();
            }

            impl Reason for $type {
                const ALL: &'static [Self] = &[$($type::$variant,)*];
                const GROUP: &'static str = stringify!($group);

                fn name(self) -> &'static str {
                    match self { $($type::$variant => stringify!($name),)* }
                }

                fn help(self) -> &'static str {
                    match self { $($type::$variant => $help,)* }
                }

                fn index(self) -> usize {
                    self as usize
                }
            }

            impl std::fmt::Display for $type {
                fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                    f.pad(self.name())
                }
            }

            #[doc = concat!("How often each [`", stringify!($type), "`] was counted.")]
            #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
            #[serde(default)]
            pub struct $counts {
                $(#[doc = $help] pub $name: u64,)*
            }

            impl $counts {
                /// Collects the counts by calling `count` for each reason.
                pub fn collect(mut count: impl FnMut($type) -> u64) -> Self {
                    $counts { $($name: count($type::$variant),)* }
                }

                /// Returns the count of one reason.
                pub fn of(&self, reason: $type) -> u64 {
                    match reason { $($type::$variant => self.$name,)* }
                }

                /// Returns the sum over all reasons.
                pub fn total(&self) -> u64 {
                    $type::ALL.iter().map(|reason| self.of(*reason)).sum()
                }
            }
        )*

        /// Every reason with its count.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
        #[serde(default)]
        pub struct Why {
            $($(#[$doc])* pub $group: $counts,)*
        }

        impl Why {
            /// Calls `visit` with group, name and count of every reason, in the order of the table.
            pub fn each(&self, mut visit: impl FnMut(&'static str, &'static str, u64)) {
                $(for reason in $type::ALL {
                    visit($type::GROUP, reason.name(), self.$group.of(*reason));
                })*
            }

            /// Returns group, name and meaning of every reason, in the order of the table.
            pub fn meanings() -> Vec<(&'static str, &'static str, &'static str)> {
                let mut all = Vec::new();
                $(all.extend($type::ALL.iter().map(|reason| ($type::GROUP, reason.name(), reason.help())));)*
                all
            }
        }
    };
}

reasons! {
    /// Why a read needed the origin; the reason of its first block that did.
    MissReason, MissCounts, miss: {
        Cold cold "not seen lately",
        Evicted evicted "it was cached, and evicted not long ago",
        Invalidated invalidated "it was cached, and was discarded, dropped, or overwritten on the origin not long ago",
        NotAdmitted not_admitted "it was missed not long ago, and admission refused it",
        WriteBudget write_budget "it was missed not long ago, while the write budget was used up",
        NotFilled not_filled "it was missed not long ago, and could not be filled",
        Partial partial "the block is cached, but not all of the requested sectors",
        Sequential sequential "it is part of a long sequential stream",
        Congested congested "the cache device is slower than the congestion thresholds",
        Unavailable unavailable "the cache device does not answer",
        Frozen frozen "the volume is frozen",
        Mode mode "the mode does not cache this, or the volume is paused",
    }

    /// Why a request went round the cache.
    BypassReason, BypassCounts, bypass: {
        Sequential sequential "it is part of a long sequential stream",
        Congested congested "the cache device is slower than the congestion thresholds",
        Unavailable unavailable "the cache device has failed, or does not answer",
        NoRoom no_room "all free space is held by versions that an ordered volume's origin cannot take",
        NotAdmitted not_admitted "a writethrough write of new blocks, refused by admission",
        WriteBudget write_budget "a writethrough write of new blocks, with the write budget used up",
        Frozen frozen "it is for blocks that are not cached, and the volume is frozen",
        Mode mode "the mode sends it to the origin, or the volume is paused",
    }

    /// Why a block that was read from the origin was not filled.
    RefusalReason, RefusalCounts, refused: {
        NotAdmitted not_admitted "admission waits for it to be missed again",
        WriteBudget write_budget "the write budget is used up",
        NoRoom no_room "the log had no free space, and a fill does not wait",
        Overtaken overtaken "another request wrote, discarded or filled the block meanwhile",
        Unsynced unsynced "a write of the block to the origin is not durable yet",
    }

    /// Why a block was evicted, or forgotten because it was unreadable.
    EvictionReason, EvictionCounts, evicted: {
        Reclaim reclaim "its segment was reclaimed, and the policy did not keep it",
        NoRoom no_room "its segment was reclaimed, with too little free space to reinsert clean blocks",
        Damaged damaged "its copy could not be read back, or failed its checksum",
        Share share "the volume had more of the cache than share_max",
    }

    /// Why a clean block was forgotten although its space was not needed.
    InvalidationReason, InvalidationCounts, invalidated: {
        WriteAround write_around "a write went round the cache",
        Discard discard "it was discarded, or zeroed on the origin",
        Dropped dropped "an operator dropped it",
    }

    /// Why a dirty block was written to the origin.
    WritebackReason, WritebackCounts, written_back: {
        DirtyHigh dirty_high "the volume's dirty blocks had reached dirty_high",
        CacheDirtyHigh cache_dirty_high "the dirty blocks of all volumes had reached cache_dirty_high",
        Full full "clients waited, because nearly all of the cache was dirty",
        DirtyAge dirty_age "a block had been dirty for dirty_age",
        Idle idle "the volume had been idle",
        Quiet quiet_hours "during the quiet hours",
        Drain drain "a command waits for it: flush, delete, stop or a change of the mode",
        Mode mode "the mode keeps nothing dirty",
        Reclaim reclaim "its segment was reclaimed",
        Awake awake "with writeback=lazy, when a client had accessed the origin",
    }

    /// The cause of an access to the origin after at least a minute without any.
    WakeReason, WakeCounts, wake: {
        Read read "a client's read that missed",
        Write write "a client's write or discard that went to the origin",
        Flush flush "a flush of such writes",
        DirtyHigh dirty_high "writeback, because of dirty_high",
        CacheDirtyHigh cache_dirty_high "writeback, because of cache_dirty_high",
        Full full "writeback, because clients waited",
        DirtyAge dirty_age "writeback, because of dirty_age",
        Idle idle "writeback, because the volume was idle",
        Quiet quiet_hours "writeback, because the quiet hours had begun",
        Drain drain "writeback, because a command waited for it",
        Mode mode "writeback, because the mode keeps nothing dirty",
        Reclaim reclaim "writeback, because a segment was reclaimed",
        Awake awake "writeback that followed a client's access, but too late",
        Other other "a start or stop, or the periodic sync of the origin",
    }
}

impl From<WritebackReason> for WakeReason {
    fn from(reason: WritebackReason) -> Self {
        match reason {
            WritebackReason::DirtyHigh => WakeReason::DirtyHigh,
            WritebackReason::CacheDirtyHigh => WakeReason::CacheDirtyHigh,
            WritebackReason::Full => WakeReason::Full,
            WritebackReason::DirtyAge => WakeReason::DirtyAge,
            WritebackReason::Idle => WakeReason::Idle,
            WritebackReason::Quiet => WakeReason::Quiet,
            WritebackReason::Drain => WakeReason::Drain,
            WritebackReason::Mode => WakeReason::Mode,
            WritebackReason::Reclaim => WakeReason::Reclaim,
            WritebackReason::Awake => WakeReason::Awake,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn numbered<R: Reason>() {
        for (place, reason) in R::ALL.iter().enumerate() {
            assert_eq!(reason.index(), place);
            assert!(!reason.help().is_empty());
        }
    }

    #[test]
    fn reasons_are_numbered_as_they_are_listed() {
        numbered::<MissReason>();
        numbered::<BypassReason>();
        numbered::<RefusalReason>();
        numbered::<EvictionReason>();
        numbered::<InvalidationReason>();
        numbered::<WritebackReason>();
        numbered::<WakeReason>();
    }

    #[test]
    fn every_reason_is_counted_apart_and_visited_once() {
        let why = Why {
            miss: MissCounts::collect(|reason| 1 + reason.index() as u64),
            written_back: WritebackCounts::collect(|reason| 100 + reason.index() as u64),
            ..Why::default()
        };
        assert_eq!((why.miss.cold, why.miss.of(MissReason::Mode)), (1, MissReason::COUNT as u64));
        assert_eq!(why.miss.total(), (1..=MissReason::COUNT as u64).sum());
        let mut seen = Vec::new();
        why.each(|group, name, count| seen.push((group, name, count)));
        let idle = 100 + WritebackReason::Idle.index() as u64;
        assert!(seen.contains(&("written_back", "idle", idle)));
        let names: Vec<_> = seen.iter().map(|(group, name, _)| (*group, *name)).collect();
        let meanings: Vec<_> =
            Why::meanings().iter().map(|(group, name, _)| (*group, *name)).collect();
        assert_eq!(names, meanings);
    }

    #[test]
    fn the_manual_explains_every_reason() {
        let manual = include_str!("../../../docs/operations.md");
        for (group, name, _) in Why::meanings() {
            let explained = manual.lines().any(|line| {
                line.starts_with(&format!("| {group} ")) && line.contains(&format!("`{name}`"))
            });
            assert!(explained, "docs/operations.md does not explain {group}.{name}");
        }
    }
}
