//! What is measured, and what is promised of it.

use std::sync::Arc;

use clap::ValueEnum;
use forebay_engine::VolumeSettings;

use crate::engine::Sizes;
use crate::pattern::{Step, permutation, uniform, zipf};
use crate::rig::{BLOCK, no_writeback};

/// Steps that are prepared; they are gone through again and again.
const STEPS: usize = 1 << 20;

/// Skew of the zipf case.
const SKEW: f64 = 1.2;

/// One kind of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Case {
    /// Random reads of blocks that are cached and clean
    ReadHit,
    /// Random writes to blocks that are dirty
    OverwriteDirty,
    /// Writes to blocks that are clean, each once, in random order
    WriteClean,
    /// 90 % reads, 10 % writes over the whole origin, zipf with an exponent of 1.2
    Zipf,
}

impl Case {
    /// The name in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Case::ReadHit => "read-hit",
            Case::OverwriteDirty => "overwrite-dirty",
            Case::WriteClean => "write-clean",
            Case::Zipf => "zipf",
        }
    }

    /// Share of the speed of copying that is promised.
    pub(crate) fn share_goal(self) -> Option<f64> {
        match self {
            Case::ReadHit => Some(0.6),
            Case::OverwriteDirty | Case::WriteClean => Some(0.5),
            Case::Zipf => None,
        }
    }

    /// CPU microseconds that are promised.
    pub(crate) fn cpu_goal(self) -> Option<f64> {
        match self {
            Case::ReadHit => Some(0.6),
            Case::OverwriteDirty | Case::WriteClean => Some(0.8),
            Case::Zipf => None,
        }
    }

    /// Whether a sample ends when the steps have been gone through once.
    pub(crate) fn once(self) -> bool {
        self == Case::WriteClean
    }

    /// The settings of the volume. But for zipf, nothing is written back while the clock runs
    /// unless reclaim finds no other way.
    pub(crate) fn settings(self) -> VolumeSettings {
        match self {
            Case::Zipf => VolumeSettings::default(),
            _ => no_writeback(),
        }
    }

    /// The steps of one of several streams (lanes or jobs) that run at the same time.
    pub(crate) fn steps(self, sizes: Sizes, stream: usize, streams: usize) -> Arc<[Step]> {
        let blocks = sizes.working_set_blocks as u32;
        let seed = 0x5eed + stream as u64;
        match self {
            Case::ReadHit => uniform(seed, blocks, false, STEPS).into(),
            Case::OverwriteDirty => uniform(seed, blocks, true, STEPS).into(),
            Case::WriteClean => {
                let all = permutation(7, blocks, true);
                all.into_iter().skip(stream).step_by(streams).collect()
            }
            Case::Zipf => {
                let blocks = (sizes.origin_bytes / BLOCK) as u32;
                zipf(seed, 7, blocks, SKEW, 9, STEPS).into()
            }
        }
    }
}
