//! What to do with a block: the only place with branches on the mode.
//!
//! Pure. Tested over the whole matrix of modes, states and verdicts.

use forebay_core::Mode;

/// What the index says about a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockState {
    Absent,
    Clean,
    Dirty,
}

/// Where a read's data comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReadStep {
    /// The cached copy, as far as it is valid; the rest from the origin.
    Cached { fill: bool },
    /// The origin.
    Origin { fill: bool },
}

/// Where a write's data goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WriteStep {
    /// To the log; it reaches the origin later.
    Cache,
    /// To the log and to the origin.
    Through,
    /// To the origin; a clean copy is forgotten first.
    Around,
}

/// How one block is read. `sequential`: the request is part of a long stream.
pub(crate) fn read_step(mode: Mode, state: BlockState, sequential: bool) -> ReadStep {
    let fills = matches!(mode, Mode::Writeback | Mode::Writethrough | Mode::Writearound);
    let fill = fills && !sequential;
    match (state, mode) {
        // Dirty data is nowhere else.
        (BlockState::Dirty, _) => ReadStep::Cached { fill },
        (BlockState::Clean, Mode::Passthrough) => ReadStep::Origin { fill: false },
        (BlockState::Clean, _) => ReadStep::Cached { fill },
        (BlockState::Absent, _) => ReadStep::Origin { fill },
    }
}

/// How one block is written. `sequential`: the request is part of a long stream.
pub(crate) fn write_step(mode: Mode, state: BlockState, sequential: bool) -> WriteStep {
    // A dirty copy must not be overtaken on its way to the origin: it is replaced in the log.
    match (mode, state, sequential) {
        (Mode::Writethrough, BlockState::Dirty, _) => WriteStep::Through,
        (_, BlockState::Dirty, _) => WriteStep::Cache,
        (Mode::Writeback | Mode::Writeonly | Mode::Writethrough, _, true) => WriteStep::Around,
        (Mode::Writeback | Mode::Writeonly, _, false) => WriteStep::Cache,
        (Mode::Writethrough, _, false) => WriteStep::Through,
        (Mode::Writearound | Mode::Passthrough, _, _) => WriteStep::Around,
    }
}

/// How a write of several blocks goes: as one. Dirty copies decide for all of them, so that no
/// part of a request is split between two ways.
pub(crate) fn write_steps(steps: impl Iterator<Item = WriteStep>) -> WriteStep {
    steps.fold(WriteStep::Around, |all, step| match (all, step) {
        (WriteStep::Through, _) | (_, WriteStep::Through) => WriteStep::Through,
        (WriteStep::Cache, _) | (_, WriteStep::Cache) => WriteStep::Cache,
        (WriteStep::Around, WriteStep::Around) => WriteStep::Around,
    })
}

/// Whether a volume in this mode may keep dirty blocks; otherwise they are written back at once.
pub(crate) fn keeps_dirty(mode: Mode) -> bool {
    matches!(mode, Mode::Writeback | Mode::Writeonly)
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATES: [BlockState; 3] = [BlockState::Absent, BlockState::Clean, BlockState::Dirty];

    fn matrix() -> impl Iterator<Item = (Mode, BlockState, bool)> {
        Mode::ALL.iter().flat_map(|mode| {
            STATES
                .iter()
                .flat_map(|state| [false, true].map(|sequential| (*mode, *state, sequential)))
        })
    }

    #[test]
    fn dirty_data_is_always_read_from_the_cache() {
        for (mode, state, sequential) in matrix() {
            if state == BlockState::Dirty {
                let step = read_step(mode, state, sequential);
                assert!(matches!(step, ReadStep::Cached { .. }), "{mode} {sequential}");
            }
        }
    }

    #[test]
    fn absent_blocks_come_from_the_origin_and_fill_as_the_mode_says() {
        for (mode, state, sequential) in matrix() {
            let expected = match mode {
                Mode::Writeback | Mode::Writethrough | Mode::Writearound => !sequential,
                Mode::Writeonly | Mode::Passthrough => false,
            };
            if state == BlockState::Absent {
                assert_eq!(read_step(mode, state, sequential), ReadStep::Origin { fill: expected });
            }
        }
    }

    #[test]
    fn no_write_goes_round_a_dirty_copy() {
        for (mode, state, sequential) in matrix() {
            let step = write_step(mode, state, sequential);
            if state == BlockState::Dirty {
                assert_ne!(step, WriteStep::Around, "{mode} {sequential}");
            }
        }
    }

    #[test]
    fn writes_of_blocks_that_are_not_dirty() {
        for state in [BlockState::Absent, BlockState::Clean] {
            for mode in Mode::ALL {
                let expected = match mode {
                    Mode::Writeback | Mode::Writeonly => WriteStep::Cache,
                    Mode::Writethrough => WriteStep::Through,
                    Mode::Writearound | Mode::Passthrough => WriteStep::Around,
                };
                assert_eq!(write_step(*mode, state, false), expected);
                assert_eq!(write_step(*mode, state, true), WriteStep::Around);
            }
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
    fn a_write_that_must_be_on_the_origin_is_acknowledged_by_the_origin() {
        for (mode, state, sequential) in matrix() {
            if mode == Mode::Writethrough {
                assert_ne!(write_step(mode, state, sequential), WriteStep::Cache);
            }
        }
    }
}
