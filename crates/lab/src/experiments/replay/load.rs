//! A trace in memory, as requests to one disk: its devices lie on it one after the other.

use std::collections::{BTreeMap, HashSet};

use forebay_core::{Nanos, Op, SECTOR_SIZE};

use crate::error::{LabResult, other};
use crate::experiments::source;
use crate::trace::{Alignment, Request, Requests};
use crate::virtual_time::world::UNIT;

/// Larger reads and writes are taken for mistakes, in bytes.
const LARGEST: u64 = 64 << 20;

/// Devices begin at multiples of this, in bytes.
const APART: u64 = 1 << 20;

/// A request to the one disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Asked {
    /// Since the first request; not before that of the request before.
    pub(crate) time: Nanos,
    pub(crate) op: Op,
    /// Whole sectors.
    pub(crate) offset: u64,
    pub(crate) len: u64,
}

#[derive(Debug)]
pub(crate) struct Loaded {
    pub(crate) requests: Vec<Asked>,
    /// All requests have times.
    pub(crate) timed: bool,
    /// Size of the disk.
    pub(crate) bytes: u64,
    /// Different blocks of 4 KiB that are read or written.
    pub(crate) blocks: u64,
    pub(crate) alignment: Alignment,
}

/// Unit to which requests are rounded: reads and writes outwards, discards inwards.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Grid {
    Sectors,
    /// Blocks of 4 KiB.
    Blocks,
}

impl Grid {
    fn bytes(self) -> u64 {
        match self {
            Grid::Sectors => SECTOR_SIZE,
            Grid::Blocks => UNIT,
        }
    }
}

impl Loaded {
    /// Puts a flush behind every so many writes.
    pub(super) fn flush_every(&mut self, writes: u64) {
        let mut left = writes;
        let requests = std::mem::take(&mut self.requests);
        for asked in requests {
            self.requests.push(asked);
            if asked.op != Op::Write {
                continue;
            }
            left -= 1;
            if left == 0 {
                left = writes;
                self.requests.push(Asked { op: Op::Flush, offset: 0, len: 0, ..asked });
            }
        }
    }

    /// Reads all of a trace.
    pub(crate) fn read(requests: Requests, grid: Grid) -> LabResult<Self> {
        let mut all = Vec::new();
        let alignment = source::read(requests, |request| {
            all.push(request);
            Ok(())
        })?;
        Self::lay_out(&all, grid, alignment)
    }

    /// Lays requests out on blocks of 4 KiB.
    pub(crate) fn of(all: &[Request]) -> LabResult<Self> {
        Self::lay_out(all, Grid::Blocks, Alignment::default())
    }

    fn lay_out(all: &[Request], grid: Grid, alignment: Alignment) -> LabResult<Self> {
        // Where the data of each device ends. Discards beyond it have nothing to discard.
        let mut ends: BTreeMap<u32, u64> = BTreeMap::new();
        for request in all.iter().filter(|request| request.op != Op::Discard) {
            if request.len > LARGEST {
                return Err(other(format!(
                    "the trace has a request of {} bytes, which is too large",
                    request.len
                )));
            }
            let end = ends.entry(request.device).or_default();
            *end = (*end).max(request.offset + request.len);
        }
        let mut bytes = 0u64;
        let mut starts = BTreeMap::new();
        for (device, end) in &ends {
            starts.insert(*device, bytes);
            let size = end.checked_next_multiple_of(APART);
            bytes = size
                .and_then(|size| bytes.checked_add(size))
                .filter(|bytes| *bytes <= i64::MAX as u64)
                .ok_or_else(|| other("the devices of the trace are larger than 2^63 bytes"))?;
        }
        let mut blocks = HashSet::new();
        let mut requests = Vec::with_capacity(all.len());
        let mut time = Nanos(0);
        for request in all {
            time = time.max(request.time.unwrap_or(time));
            let (Some(start), Some(most)) =
                (starts.get(&request.device), ends.get(&request.device))
            else {
                continue;
            };
            let unit = grid.bytes();
            let end = (request.offset + request.len).min(*most);
            let (from, to) = if request.op == Op::Discard {
                (request.offset.min(end).next_multiple_of(unit), end / unit * unit)
            } else {
                (request.offset / unit * unit, end.next_multiple_of(unit))
            };
            if from >= to {
                continue;
            }
            if request.op != Op::Discard {
                blocks.extend((start + from) / UNIT..(start + to).div_ceil(UNIT));
            }
            requests.push(Asked { time, op: request.op, offset: start + from, len: to - from });
        }
        if requests.is_empty() {
            return Err(other("the trace has no reads or writes"));
        }
        let timed = all.iter().all(|request| request.time.is_some());
        Ok(Loaded { requests, timed, bytes, blocks: blocks.len() as u64, alignment })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Requests as device, operation, first byte and length.
    pub(crate) fn loaded(requests: &[(u32, Op, u64, u64)], grid: Grid) -> Loaded {
        let request = |&(device, op, offset, len)| Request { time: None, op, offset, len, device };
        let all: Vec<Request> = requests.iter().map(request).collect();
        Loaded::lay_out(&all, grid, Alignment::default()).expect("a trace")
    }

    fn found(loaded: &Loaded) -> Vec<(u64, u64)> {
        loaded.requests.iter().map(|asked| (asked.offset, asked.len)).collect()
    }

    #[test]
    fn devices_lie_one_after_the_other() {
        let trace = loaded(
            &[(7, Op::Read, 0, 512), (3, Op::Write, 5000, 100), (7, Op::Write, 1 << 20, 512)],
            Grid::Sectors,
        );
        assert_eq!(found(&trace), [(1 << 20, 512), (4608, 512), (2 << 20, 512)]);
        assert_eq!((trace.bytes, trace.blocks, trace.timed), (3 << 20, 3, false));
    }

    #[test]
    fn discards_are_rounded_inwards_and_end_with_the_data() {
        let trace = [
            (0, Op::Write, 100, 20_000),
            (0, Op::Discard, 100, 20_000),
            (0, Op::Discard, 4097, 100),
            (0, Op::Discard, 0, 1 << 50),
            (0, Op::Discard, 1 << 40, 1 << 40),
        ];
        let expected = [(0, 20_480), (4096, 12_288), (0, 16_384)];
        assert_eq!(found(&loaded(&trace, Grid::Blocks)), expected);
        let expected = [(0, 20_480), (512, 19_456), (0, 19_968)];
        let fine = loaded(&trace, Grid::Sectors);
        assert_eq!(found(&fine)[1..], expected[1..]);
        assert_eq!(fine.bytes, 1 << 20);
    }

    #[test]
    fn mistakes_are_refused() {
        let wrong = |offset, len| {
            let request = Request { time: None, op: Op::Read, offset, len, device: 0 };
            Loaded::lay_out(&[request], Grid::Sectors, Alignment::default()).is_err()
        };
        assert!(wrong(0, LARGEST + 1) && wrong(u64::MAX - 5000, 4000));
        assert!(!wrong(1 << 50, LARGEST));
        assert!(Loaded::lay_out(&[], Grid::Sectors, Alignment::default()).is_err());
    }
}
