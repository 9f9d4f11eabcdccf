//! The step for a block, from the mode, the block's state and a reason to bypass: the only place
//! with branches on the mode.
//!
//! No I/O. Tested over the whole matrix of modes, states and bypass reasons.

use forebay_core::Mode;
use forebay_core::why::{BypassReason, MissReason};
use forebay_store::Entry;

/// The state of a block according to the index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    Absent,
    Clean,
    Dirty,
}

impl BlockState {
    /// Returns the state of a block with this index entry.
    pub(crate) fn of(entry: Option<&Entry>) -> Self {
        match entry {
            None => BlockState::Absent,
            Some(entry) if entry.dirty => BlockState::Dirty,
            Some(_) => BlockState::Clean,
        }
    }
}

/// Source of a read's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// Read the valid sectors of the cached copy, and the others from the origin.
    Cached { fill: bool },
    /// The origin.
    Origin { fill: bool },
}

/// Destination of a write's data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStep {
    /// To the log; the origin gets the data later.
    Cache,
    /// To the log and to the origin.
    Through,
    /// To the origin; a clean copy is forgotten first.
    Around,
}

/// Returns whether read misses in this mode fill the cache.
fn fills(mode: Mode) -> bool {
    matches!(mode, Mode::Writeback | Mode::Writethrough | Mode::Writearound)
}

/// Returns how to read one block. `bypass`: a reason to bypass the cache, apart from the mode.
pub(crate) fn read_step(mode: Mode, state: BlockState, bypass: Option<BypassReason>) -> ReadStep {
    let fill = fills(mode) && bypass.is_none();
    match (state, mode, bypass) {
        // The origin does not have this data yet.
        (BlockState::Dirty, _, _) => ReadStep::Cached { fill },
        (BlockState::Clean, Mode::Passthrough, _) => ReadStep::Origin { fill: false },
        // Spare a cache device that is slow or unavailable.
        (BlockState::Clean, _, Some(BypassReason::Congested | BypassReason::Unavailable)) => {
            ReadStep::Origin { fill: false }
        }
        (BlockState::Clean, _, _) => ReadStep::Cached { fill },
        (BlockState::Absent, _, _) => ReadStep::Origin { fill },
    }
}

/// Returns how to write one block. `bypass`: a reason to bypass the cache, apart from the mode.
pub(crate) fn write_step(mode: Mode, state: BlockState, bypass: Option<BypassReason>) -> WriteStep {
    // Writeback of an older dirty copy would overwrite a write around it, so a dirty copy is
    // replaced in the log.
    match (mode, state, bypass) {
        (Mode::Writethrough, BlockState::Dirty, _) => WriteStep::Through,
        (_, BlockState::Dirty, _) => WriteStep::Cache,
        (Mode::Writearound | Mode::Passthrough, _, _) => WriteStep::Around,
        (
            _,
            _,
            Some(BypassReason::Sequential | BypassReason::Unavailable | BypassReason::NoRoom),
        ) => WriteStep::Around,
        (_, BlockState::Absent, Some(BypassReason::Frozen)) => WriteStep::Around,
        // These modes write to the log regardless of congestion and admission.
        (Mode::Writeback | Mode::Writeonly, _, _) => WriteStep::Cache,
        // A cached copy must be kept up to date; an absent block need not enter.
        (Mode::Writethrough, BlockState::Absent, Some(_)) => WriteStep::Around,
        (Mode::Writethrough, _, _) => WriteStep::Through,
    }
}

/// Returns whether writes of absent blocks need admission in this mode, because they reach the
/// origin at once and need not be cached.
pub(crate) fn asks_admission(mode: Mode) -> bool {
    mode == Mode::Writethrough
}

/// Returns why a block in this state has to be read from the origin, if the mode or the request
/// determines that. `None` if the reason is the block's past (evicted, invalidated, not admitted).
pub(crate) fn miss_reason(
    mode: Mode,
    state: BlockState,
    bypass: Option<BypassReason>,
) -> Option<MissReason> {
    match (state, read_step(mode, state, bypass), bypass) {
        // Partly cached: the request needs sectors that are not cached.
        (BlockState::Clean | BlockState::Dirty, ReadStep::Cached { .. }, _) => {
            Some(MissReason::Partial)
        }
        (BlockState::Clean, _, _) if mode == Mode::Passthrough => Some(MissReason::Mode),
        (BlockState::Absent, _, _) if !fills(mode) => Some(MissReason::Mode),
        (_, _, Some(BypassReason::Sequential)) => Some(MissReason::Sequential),
        (_, _, Some(BypassReason::Congested)) => Some(MissReason::Congested),
        (_, _, Some(BypassReason::Unavailable)) => Some(MissReason::Unavailable),
        (_, _, Some(BypassReason::Frozen)) => Some(MissReason::Frozen),
        _ => None,
    }
}

/// Returns why a read miss bypasses the cache, if it does.
pub(crate) fn read_bypass(mode: Mode, bypass: Option<BypassReason>) -> Option<BypassReason> {
    if fills(mode) { bypass } else { Some(BypassReason::Mode) }
}

/// Returns why a write bypassed the cache.
pub(crate) fn write_bypass(mode: Mode, bypass: Option<BypassReason>) -> BypassReason {
    match mode {
        Mode::Writearound | Mode::Passthrough => BypassReason::Mode,
        Mode::Writeback | Mode::Writeonly | Mode::Writethrough => {
            bypass.unwrap_or(BypassReason::Mode)
        }
    }
}

/// Combines the steps of a write's blocks into one for the whole write. Dirty copies decide for all
/// blocks, so that no request is split between two routes.
pub(crate) fn write_steps(steps: impl Iterator<Item = WriteStep>) -> WriteStep {
    steps.fold(WriteStep::Around, |all, step| match (all, step) {
        (WriteStep::Through, _) | (_, WriteStep::Through) => WriteStep::Through,
        (WriteStep::Cache, _) | (_, WriteStep::Cache) => WriteStep::Cache,
        (WriteStep::Around, WriteStep::Around) => WriteStep::Around,
    })
}

/// Returns whether a volume in this mode may keep dirty blocks; otherwise they are written back at
/// once.
pub(crate) fn keeps_dirty(mode: Mode) -> bool {
    matches!(mode, Mode::Writeback | Mode::Writeonly)
}

/// Returns the mode for writes to an ordered volume: it keeps dirty blocks, even while the volume
/// is still leaving order for another mode.
pub(crate) fn mode_in_order(mode: Mode) -> Mode {
    if keeps_dirty(mode) { mode } else { Mode::Writeback }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [BlockState; 3] = [BlockState::Absent, BlockState::Clean, BlockState::Dirty];

    const BYPASS: [Option<BypassReason>; 8] = [
        None,
        Some(BypassReason::Unavailable),
        Some(BypassReason::NoRoom),
        Some(BypassReason::Sequential),
        Some(BypassReason::Congested),
        Some(BypassReason::NotAdmitted),
        Some(BypassReason::WriteBudget),
        Some(BypassReason::Frozen),
    ];

    fn matrix() -> impl Iterator<Item = (Mode, BlockState, Option<BypassReason>)> {
        Mode::ALL.iter().flat_map(|mode| {
            STATES.iter().flat_map(|state| BYPASS.map(|bypass| (*mode, *state, bypass)))
        })
    }

    #[test]
    fn dirty_data_is_always_read_from_the_cache() {
        for (mode, state, bypass) in matrix() {
            if state == BlockState::Dirty {
                let step = read_step(mode, state, bypass);
                assert!(matches!(step, ReadStep::Cached { .. }), "{mode} {bypass:?}");
            }
        }
    }

    #[test]
    fn absent_blocks_come_from_the_origin_and_fill_as_the_mode_says() {
        for (mode, state, bypass) in matrix() {
            let expected = match mode {
                Mode::Writeback | Mode::Writethrough | Mode::Writearound => bypass.is_none(),
                Mode::Writeonly | Mode::Passthrough => false,
            };
            if state == BlockState::Absent {
                assert_eq!(read_step(mode, state, bypass), ReadStep::Origin { fill: expected });
            }
        }
    }

    #[test]
    fn clean_blocks_are_read_unless_passthrough_congested_or_failed() {
        for (mode, state, bypass) in matrix() {
            if state == BlockState::Clean {
                let no_help = [BypassReason::Congested, BypassReason::Unavailable];
                let alone =
                    mode == Mode::Passthrough || bypass.is_some_and(|why| no_help.contains(&why));
                let step = read_step(mode, state, bypass);
                assert_eq!(step == ReadStep::Origin { fill: false }, alone, "{mode} {bypass:?}");
            }
        }
    }

    #[test]
    fn no_write_goes_round_a_dirty_copy() {
        for (mode, state, bypass) in matrix() {
            let step = write_step(mode, state, bypass);
            if state == BlockState::Dirty {
                assert_ne!(step, WriteStep::Around, "{mode} {bypass:?}");
            }
        }
    }

    #[test]
    fn writes_of_blocks_that_are_not_dirty() {
        for (mode, state, bypass) in matrix() {
            let around =
                [BypassReason::Sequential, BypassReason::Unavailable, BypassReason::NoRoom];
            let around = bypass.is_some_and(|why| around.contains(&why));
            let expected = match mode {
                Mode::Writearound | Mode::Passthrough => WriteStep::Around,
                _ if around => WriteStep::Around,
                _ if state == BlockState::Absent && bypass == Some(BypassReason::Frozen) => {
                    WriteStep::Around
                }
                Mode::Writeback | Mode::Writeonly => WriteStep::Cache,
                Mode::Writethrough if state == BlockState::Absent && bypass.is_some() => {
                    WriteStep::Around
                }
                Mode::Writethrough => WriteStep::Through,
            };
            if state != BlockState::Dirty {
                assert_eq!(
                    write_step(mode, state, bypass),
                    expected,
                    "{mode} {state:?} {bypass:?}"
                );
            }
        }
    }

    #[test]
    fn only_writes_that_admission_can_refuse_ask_it() {
        for mode in Mode::ALL {
            let refused = write_step(*mode, BlockState::Absent, Some(BypassReason::NotAdmitted));
            let admitted = write_step(*mode, BlockState::Absent, None);
            assert_eq!(asks_admission(*mode), refused != admitted, "{mode}");
        }
    }

    #[test]
    fn the_reason_of_a_miss_names_the_change_that_makes_it_a_hit() {
        use MissReason::{Congested, Frozen, Mode as ByMode, Partial, Sequential, Unavailable};
        for (mode, state, bypass) in matrix() {
            let expected = match (state, mode, bypass) {
                (BlockState::Clean, Mode::Passthrough, _) => Some(ByMode),
                (BlockState::Clean, _, Some(BypassReason::Congested)) => Some(Congested),
                (BlockState::Clean, _, Some(BypassReason::Unavailable)) => Some(Unavailable),
                (BlockState::Clean | BlockState::Dirty, _, _) => Some(Partial),
                (BlockState::Absent, Mode::Writeonly | Mode::Passthrough, _) => Some(ByMode),
                (BlockState::Absent, _, Some(BypassReason::Sequential)) => Some(Sequential),
                (BlockState::Absent, _, Some(BypassReason::Congested)) => Some(Congested),
                (BlockState::Absent, _, Some(BypassReason::Unavailable)) => Some(Unavailable),
                (BlockState::Absent, _, Some(BypassReason::Frozen)) => Some(Frozen),
                (BlockState::Absent, _, _) => None,
            };
            assert_eq!(miss_reason(mode, state, bypass), expected, "{mode} {state:?} {bypass:?}");
        }
    }

    #[test]
    fn a_bypass_has_the_mode_as_its_reason_before_any_other() {
        for (mode, state, bypass) in matrix() {
            let read = read_step(mode, BlockState::Absent, bypass);
            assert_eq!(
                read_bypass(mode, bypass).is_none(),
                read == ReadStep::Origin { fill: true }
            );
            if matches!(mode, Mode::Writearound | Mode::Passthrough) {
                assert_eq!(write_bypass(mode, bypass), BypassReason::Mode);
            } else if write_step(mode, state, bypass) == WriteStep::Around {
                assert_eq!(Some(write_bypass(mode, bypass)), bypass);
            }
        }
    }

    #[test]
    fn every_write_in_order_ends_in_the_log() {
        for (mode, state, _) in matrix() {
            let step = write_step(mode_in_order(mode), state, None);
            assert_eq!(step, WriteStep::Cache, "{mode}");
        }
    }

    #[test]
    fn a_request_goes_one_way() {
        use WriteStep::{Around, Cache, Through};
        for (steps, expected) in [
            (vec![Around, Around], Around),
            (vec![Around, Cache], Cache),
            (vec![Through, Around], Through),
            (vec![Cache, Through], Through),
        ] {
            assert_eq!(write_steps(steps.into_iter()), expected);
        }
    }

    #[test]
    fn writethrough_writes_are_acknowledged_by_the_origin() {
        for (mode, state, bypass) in matrix() {
            if mode == Mode::Writethrough {
                assert_ne!(write_step(mode, state, bypass), WriteStep::Cache);
            }
        }
    }
}
