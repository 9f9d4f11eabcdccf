//! A trace in memory: for each request the blocks that it touches, by dense numbers.

use std::collections::HashMap;

use forebay_core::{Op, OriginBlock, VolumeId};
use forebay_policy::exact::Key;

use crate::error::{LabResult, other};
use crate::experiments::source;
use crate::trace::{Alignment, Request, Requests};

/// Longer traces do not fit into memory; and places in them are 32 bits.
const MOST_TOUCHED: usize = u32::MAX as usize;

/// A request as its blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Span<'a> {
    pub(super) op: Op,
    pub(super) blocks: &'a [u32],
}

#[derive(Debug, Default)]
pub(super) struct Accesses {
    /// Blocks of all requests, one after the other.
    touched: Vec<u32>,
    /// Operation of each request, and the end of its blocks in `touched`.
    requests: Vec<(Op, usize)>,
    keys: Vec<Key>,
    numbers: HashMap<Key, u32>,
    discarded: u64,
    pub(super) alignment: Alignment,
}

impl Accesses {
    /// Reads all of a trace.
    pub(super) fn read(requests: Requests) -> LabResult<Self> {
        let mut accesses = Accesses::default();
        accesses.alignment = source::read(requests, |request| accesses.add(&request))?;
        accesses.numbers = HashMap::new();
        Ok(accesses)
    }

    fn add(&mut self, request: &Request) -> LabResult<()> {
        let blocks = request.blocks()?;
        let volume = VolumeId(request.device as u16);
        let key = |block| Key::new(volume, OriginBlock(block));
        if request.op == Op::Discard {
            // Only whole blocks, and only those that were ever touched.
            let known = |block| self.numbers.get(&key(block)).copied();
            if blocks.end - blocks.start <= self.keys.len() as u64 {
                self.touched.extend(blocks.filter_map(known));
            } else {
                let range = key(blocks.start)..key(blocks.end);
                let inside = self.keys.iter().zip(0..).filter(|(key, _)| range.contains(key));
                self.touched.extend(inside.map(|(_, number)| number));
            }
            self.discarded += (self.touched.len() - self.end()) as u64;
        } else {
            for block in blocks {
                let next = u32::try_from(self.keys.len()).ok().filter(|next| *next < 1 << 30);
                let next = next.ok_or_else(|| other("the trace touches more than 2^30 blocks"))?;
                let number = *self.numbers.entry(key(block)).or_insert(next);
                if number == next {
                    self.keys.push(key(block));
                }
                self.touched.push(number);
            }
        }
        if self.touched.len() >= MOST_TOUCHED {
            return Err(other("the trace touches blocks more than 2^32 times"));
        }
        self.requests.push((request.op, self.touched.len()));
        Ok(())
    }

    /// Returns the end of the blocks of the last request.
    fn end(&self) -> usize {
        self.requests.last().map_or(0, |(_, end)| *end)
    }

    /// The requests, in their order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Span<'_>> {
        let mut begin = 0;
        self.requests.iter().map(move |(op, end)| {
            let blocks = self.touched.get(begin..*end).unwrap_or_default();
            begin = *end;
            Span { op: *op, blocks }
        })
    }

    /// The key of a block.
    pub(super) fn key(&self, block: u32) -> Key {
        self.keys[block as usize]
    }

    /// Returns the number of different blocks.
    pub(super) fn blocks(&self) -> u32 {
        self.keys.len() as u32
    }

    /// Returns the number of requests.
    pub(super) fn requests(&self) -> u64 {
        self.requests.len() as u64
    }

    /// Returns the number of reads and writes of blocks.
    pub(super) fn accesses(&self) -> u64 {
        self.touched.len() as u64 - self.discarded
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Requests as operation, first byte and length.
    pub(in crate::experiments::policies) fn accesses(requests: &[(Op, u64, u64)]) -> Accesses {
        let mut accesses = Accesses::default();
        for (op, offset, len) in requests.iter().copied() {
            let request = Request { time: None, op, offset, len, device: 0 };
            accesses.add(&request).expect("small");
        }
        accesses
    }

    #[test]
    fn requests_become_blocks() {
        let accesses = accesses(&[
            (Op::Read, 4096, 4096),
            (Op::Write, 4095, 2),
            (Op::Discard, 100, 8092),
            (Op::Read, 8192, 1),
            (Op::Discard, 0, 1 << 40),
        ]);
        let found: Vec<(Op, &[u32])> = accesses.iter().map(|span| (span.op, span.blocks)).collect();
        let expected: [(Op, &[u32]); 5] = [
            (Op::Read, &[0]),
            (Op::Write, &[1, 0]),
            (Op::Discard, &[0]),
            (Op::Read, &[2]),
            (Op::Discard, &[0, 1, 2]),
        ];
        assert_eq!(found, expected);
        assert_eq!((accesses.blocks(), accesses.requests(), accesses.accesses()), (3, 5, 4));
    }

    #[test]
    fn devices_are_apart_and_mistakes_are_refused() {
        let mut accesses = Accesses::default();
        for device in [0, 1, 0] {
            let request = Request { time: None, op: Op::Read, offset: 0, len: 1, device };
            accesses.add(&request).expect("small");
        }
        assert_eq!(accesses.blocks(), 2);
        for (offset, len) in [(0, 1 << 40), (u64::MAX - 5000, 4000)] {
            let request = Request { time: None, op: Op::Read, offset, len, device: 0 };
            assert!(accesses.add(&request).is_err());
        }
    }
}
