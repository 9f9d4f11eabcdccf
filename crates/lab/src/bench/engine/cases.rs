//! The measured cases and their goals.

use std::sync::Arc;

use clap::ValueEnum;
use forebay_core::{Admission, Durability, Mode};
use forebay_engine::Settings;

use crate::bench::engine::{Sizes, deferred};
use crate::bench::pattern::{Step, permutation, uniform, zipf};
use crate::output::name_of;
use crate::rig::{BLOCK, no_writeback};

/// Steps that are prepared; they are gone through again and again.
const STEPS: usize = 1 << 20;

/// Skew of the zipf case.
const SKEW: f64 = 1.2;

/// Goals of a case in comparison with the caches of the kernel.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelGoals {
    /// More than this share of the bare device.
    pub(crate) share: f64,
    /// At most this much CPU time for a request, in microseconds.
    pub(crate) cpu_us: f64,
}

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// Random reads of blocks that are cached and clean
    ReadHit,
    /// Reads of blocks that are not cached and are filled, in random order
    ReadMiss,
    /// Reads of blocks that are not cached and may not enter, in random order
    ReadRefused,
    /// Random writes to blocks that are dirty
    OverwriteDirty,
    /// Random writes with the settings that a new volume has
    WriteDefault,
    /// Random writes with mode writethrough
    WriteThrough,
    /// Random writes with mode writearound
    WriteAround,
    /// Random writes with mode writeback, each of them durable
    WriteStrict,
    /// Random writes with mode writethrough, each of them durable
    WriteThroughStrict,
    /// Writes to blocks that are clean, each once, in random order
    WriteClean,
    /// Random writes to blocks whose last write is still deferred in the RAM tier
    DeferDirty,
    /// Deferred writes to blocks that are clean in the RAM tier, each once, in random order
    DeferClean,
    /// Deferred writes to blocks that are not in the RAM tier, each once, in random order
    DeferAbsent,
    /// 90 % reads, 10 % writes over the whole origin, zipf with an exponent of 1.2
    Zipf,
}

impl Case {
    /// The name in reports.
    pub(crate) fn name(self) -> String {
        name_of(self)
    }

    /// Share of the speed of copying that is promised.
    pub(crate) fn share_goal(self) -> Option<f64> {
        match self {
            Case::ReadHit => Some(0.6),
            Case::OverwriteDirty | Case::WriteClean => Some(0.5),
            _ => None,
        }
    }

    /// CPU microseconds that are promised.
    pub(crate) fn cpu_goal(self) -> Option<f64> {
        match self {
            Case::ReadHit => Some(0.6),
            Case::OverwriteDirty | Case::WriteClean => Some(0.8),
            _ => None,
        }
    }

    /// Returns the goals in comparison with the caches of the kernel: a share of the bare device
    /// above that of the best of them, and a quarter of its CPU time.
    pub(crate) fn beside_the_kernel(self) -> Option<KernelGoals> {
        match self {
            Case::ReadHit => Some(KernelGoals { share: 0.67, cpu_us: 2.2 / 4.0 }),
            Case::OverwriteDirty | Case::WriteDefault => {
                Some(KernelGoals { share: 0.37, cpu_us: 3.2 / 4.0 })
            }
            _ => None,
        }
    }

    /// Whether a sample ends when the steps have been gone through once.
    pub(crate) fn once(self) -> bool {
        matches!(self, Case::WriteClean | Case::DeferClean | Case::DeferAbsent)
    }

    /// Whether writes are deferred.
    pub(crate) fn defers(self) -> bool {
        matches!(self, Case::DeferDirty | Case::DeferClean | Case::DeferAbsent)
    }

    /// The settings of the volume. But for zipf and the default settings, nothing is written back
    /// while the clock runs unless reclaim finds no other way.
    pub(crate) fn settings(self) -> Settings {
        match self {
            Case::Zipf | Case::WriteDefault => Settings::default(),
            Case::WriteThrough => in_mode(Mode::Writethrough, Durability::Flush),
            Case::WriteAround => in_mode(Mode::Writearound, Durability::Flush),
            Case::WriteStrict => in_mode(Mode::Writeback, Durability::Strict),
            Case::WriteThroughStrict => in_mode(Mode::Writethrough, Durability::Strict),
            // Ghosts remember fewer blocks than the steps go through before one comes again.
            Case::ReadRefused => Settings { admission: Admission::Ghost(1), ..no_writeback() },
            // These settings are those of the write-down to the origin.
            Case::DeferDirty | Case::DeferClean | Case::DeferAbsent => {
                Settings { mode: Mode::Passthrough, ..no_writeback() }
            }
            _ => no_writeback(),
        }
    }

    /// The steps of one of several streams (lanes or jobs) that run at the same time.
    pub(crate) fn steps(self, sizes: Sizes, stream: usize, streams: usize) -> Arc<[Step]> {
        let seed = 0x5eed + stream as u64;
        // The blocks of this stream: all of them, or a part for itself.
        let own = |blocks: u64| match sizes.disjoint {
            true => (blocks / streams as u64 * stream as u64, blocks / streams as u64),
            false => (0, blocks),
        };
        let uniform = |write, blocks: u64| {
            let (first, count) = own(blocks);
            shifted(first, uniform(seed, count as u32, write, STEPS))
        };
        let blocks = sizes.working_set_blocks;
        match self {
            Case::ReadHit => uniform(false, blocks),
            Case::ReadMiss | Case::ReadRefused => {
                let all = permutation(7, (sizes.origin_bytes / BLOCK) as u32, false);
                all.into_iter().skip(stream).step_by(streams).collect()
            }
            Case::OverwriteDirty
            | Case::WriteDefault
            | Case::WriteThrough
            | Case::WriteAround
            | Case::WriteStrict
            | Case::WriteThroughStrict => uniform(true, blocks),
            Case::WriteClean => {
                let all = permutation(7, blocks as u32, true);
                all.into_iter().skip(stream).step_by(streams).collect()
            }
            Case::DeferDirty => uniform(true, sizes.deferred_blocks()),
            Case::DeferClean | Case::DeferAbsent => deferred::once(sizes, 0, stream, streams),
            Case::Zipf => {
                let (first, count) = own(sizes.origin_bytes / BLOCK);
                shifted(first, zipf(seed, 7, count as u32, SKEW, 9, STEPS))
            }
        }
    }
}

fn in_mode(mode: Mode, durability: Durability) -> Settings {
    Settings { mode, durability, ..Settings::default() }
}

/// Shifts steps by `first` blocks.
fn shifted(first: u64, steps: Vec<Step>) -> Arc<[Step]> {
    steps.into_iter().map(|step| Step::new((first + step.block()) as u32, step.write())).collect()
}
