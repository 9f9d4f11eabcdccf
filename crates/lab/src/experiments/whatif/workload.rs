//! Traces, and workloads that are made.

use std::path::Path;
use std::str::FromStr;

use forebay_core::{Nanos, Op};

use crate::error::{LabError, LabResult};
use crate::experiments::replay::{Grid, Loaded};
use crate::experiments::source::{self, Reading};
use crate::trace::Request;
use crate::virtual_time::world::UNIT;

/// A name and the requests.
pub(super) type Load = (String, Loaded);

/// Reads a trace.
pub(super) fn trace(path: &Path, reading: &Reading) -> LabResult<Load> {
    Ok((source::name(path), Loaded::read(reading.open(path)?, Grid::Blocks)?))
}

/// A generated workload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    /// Reads and writes, 70 to 30, by popularity.
    Zipf,
    /// Reads by popularity, and scans of blocks that are never read again.
    Scans,
    /// Reads of a range in a loop, and of other blocks at random.
    Loop,
    /// Writes by popularity, a tenth of the requests reads.
    Writes,
}

const ALL: [(Workload, &str); 4] = [
    (Workload::Zipf, "zipf"),
    (Workload::Scans, "scans"),
    (Workload::Loop, "loop"),
    (Workload::Writes, "writes"),
];

impl FromStr for Workload {
    type Err = LabError;

    fn from_str(text: &str) -> LabResult<Self> {
        let found = ALL.iter().find(|(_, name)| *name == text).map(|(workload, _)| *workload);
        found.ok_or_else(|| {
            LabError::Usage(format!("'{text}' is none of zipf, scans, loop, writes"))
        })
    }
}

/// Blocks that are chosen by popularity.
const POPULAR: u64 = 150_000;

/// Returns a block by popularity: the rank is that of a Zipf distribution with an exponent of about
/// 0.9, and neighbouring ranks are far apart.
fn popular(random: &mut fastrand::Rng) -> u64 {
    // The inverse of the integral of rank^-0.9.
    let most = (POPULAR as f64).powf(0.1) - 1.0;
    let rank = (1.0 + random.f64() * most).powf(10.0) as u64;
    (rank.min(POPULAR - 1)).wrapping_mul(0x9e37_79b1) % POPULAR
}

impl Workload {
    /// Makes all workloads.
    pub(super) fn all() -> LabResult<Vec<Load>> {
        ALL.iter().map(|(workload, _)| workload.load()).collect()
    }

    /// Makes the requests.
    pub(super) fn load(&self) -> LabResult<Load> {
        let mut random = fastrand::Rng::with_seed(1);
        let mut all = Vec::new();
        let mut ask = |op, block: u64, blocks: u64| {
            let time = Some(Nanos(0));
            let (offset, len) = (block * UNIT, blocks * UNIT);
            all.push(Request { time, op, offset, len, device: 0 });
        };
        match self {
            Workload::Zipf | Workload::Writes => {
                let reads = if *self == Workload::Zipf { 0.7 } else { 0.1 };
                for _ in 0..900_000 {
                    let op = if random.f64() < reads { Op::Read } else { Op::Write };
                    ask(op, popular(&mut random), 1);
                }
            }
            Workload::Scans => {
                let mut at = POPULAR;
                for _ in 0..12 {
                    (0..50_000).for_each(|_| ask(Op::Read, popular(&mut random), 1));
                    for _ in 0..1500 {
                        ask(Op::Read, at, 16);
                        at += 16;
                        (0..3).for_each(|_| ask(Op::Read, popular(&mut random), 1));
                    }
                }
            }
            Workload::Loop => {
                for step in 0..600_000u64 {
                    ask(Op::Read, step % 60_000, 1);
                    if step % 3 == 0 {
                        ask(Op::Read, 60_000 + random.u64(0..40_000), 1);
                    }
                }
            }
        }
        let name = ALL.iter().find(|(workload, _)| workload == self).map_or("", |(_, name)| name);
        Ok((name.to_owned(), Loaded::of(&all)?))
    }
}
