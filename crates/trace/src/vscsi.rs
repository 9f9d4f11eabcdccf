//! The binary traces of CloudPhysics (vscsiStats of VMware), version 1 and version 2, little
//! endian.
//!
//! | | version 1, 32 bytes | version 2, 40 bytes |
//! |---|---|---|
//! | 0 | serial number, 4 | command, 2; version, 2 |
//! | 4 | length in bytes, 4 | serial number, 4 |
//! | 8 | scatter-gather elements, 4 | length in bytes, 4 |
//! | 12 | command, 2; version, 2 | scatter-gather elements, 4 |
//! | 16 | first sector, 8 | first sector, 8 |
//! | 24 | microseconds, 8 | microseconds, 8 |
//! | 32 | | response time, 8 |
//!
//! The version is in the upper byte of its field; the command is a SCSI operation code. Commands
//! other than reads, writes and discards are skipped.

use std::io::Read;

use forebay_core::Op;

use crate::error::{TraceResult, unreadable};

use super::{Parsed, Request, request, sectors};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum VscsiVersion {
    One,
    Two,
}

/// Offsets of the fields of a record.
struct Layout {
    bytes: usize,
    command: usize,
    version: usize,
    len: usize,
}

impl VscsiVersion {
    const ALL: [VscsiVersion; 2] = [VscsiVersion::One, VscsiVersion::Two];

    fn layout(self) -> Layout {
        match self {
            VscsiVersion::One => Layout { bytes: 32, command: 12, version: 14, len: 4 },
            VscsiVersion::Two => Layout { bytes: 40, command: 0, version: 2, len: 8 },
        }
    }

    fn number(self) -> u8 {
        match self {
            VscsiVersion::One => 1,
            VscsiVersion::Two => 2,
        }
    }

    /// Returns the version that all of the first four records in `head` (or as many as there are,
    /// at least one) have.
    pub(super) fn tell(head: &[u8]) -> Option<VscsiVersion> {
        VscsiVersion::ALL.into_iter().find(|version| {
            let layout = version.layout();
            let marked = |record: &[u8]| record.get(layout.version + 1) == Some(&version.number());
            head.len() >= layout.bytes && head.chunks_exact(layout.bytes).take(4).all(marked)
        })
    }
}

/// Returns a little-endian number of a record, or 0 beyond the record's end, which does not occur.
fn little_endian(record: &[u8], at: usize, bytes: usize) -> u64 {
    let part = record.get(at..at + bytes).unwrap_or_default();
    part.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte))
}

fn op(command: u64) -> Option<Op> {
    match command & 0xff {
        0x08 | 0x28 | 0xa8 | 0x88 => Some(Op::Read),
        0x0a | 0x2a | 0xaa | 0x8a | 0x2e | 0x8e => Some(Op::Write),
        0x42 => Some(Op::Discard),
        _ => None,
    }
}

fn parse(record: &[u8], version: VscsiVersion) -> Parsed {
    let layout = version.layout();
    if record.get(layout.version + 1) != Some(&version.number()) {
        return Err(format!("this is no record of version {}", version.number()));
    }
    let Some(op) = op(little_endian(record, layout.command, 2)) else {
        return Ok(None);
    };
    let len = little_endian(record, layout.len, 4);
    let first = little_endian(record, 16, 8);
    let nanos = little_endian(record, 24, 8).saturating_mul(1000);
    request(Some(nanos), op, sectors(first)?, len, 0)
}

/// The requests of a file.
pub(super) struct VscsiRecords<S> {
    name: String,
    source: S,
    version: Option<VscsiVersion>,
    /// Number of the last record that was read; the first record is 1.
    number: u64,
}

impl<S: Read> VscsiRecords<S> {
    pub(super) fn new(name: String, source: S) -> Self {
        VscsiRecords { name, source, version: None, number: 0 }
    }

    /// Extends `begun` to `bytes` bytes of a record, or to the end of the file.
    fn fill(&mut self, begun: &mut Vec<u8>, bytes: usize) -> Result<(), String> {
        let left = bytes.saturating_sub(begun.len()) as u64;
        let read = self.source.by_ref().take(left).read_to_end(begun);
        read.map(drop).map_err(|error| error.to_string())
    }

    fn record(&mut self) -> Result<Option<Parsed>, String> {
        self.number += 1;
        let mut record = Vec::with_capacity(40);
        // The first record determines the version of all records.
        let version = match self.version {
            Some(version) => version,
            None => {
                self.fill(&mut record, VscsiVersion::One.layout().bytes)?;
                if record.is_empty() {
                    return Ok(None);
                }
                let marked = |version: &VscsiVersion| {
                    record.get(version.layout().version + 1) == Some(&version.number())
                };
                let version = VscsiVersion::ALL.into_iter().find(marked);
                version.ok_or("this is no record of version 1 or 2")?
            }
        };
        self.version = Some(version);
        let bytes = version.layout().bytes;
        self.fill(&mut record, bytes)?;
        match record.len() {
            0 => Ok(None),
            len if len < bytes => {
                Err(format!("it has {len} of {bytes} bytes; the file is cut off"))
            }
            _ => Ok(Some(parse(&record, version))),
        }
    }
}

impl<S: Read> Iterator for VscsiRecords<S> {
    type Item = TraceResult<Request>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let parsed = match self.record() {
                Ok(None) => return None,
                Ok(Some(parsed)) => parsed,
                Err(what) => Err(what),
            };
            match parsed {
                Ok(Some(request)) => return Some(Ok(request)),
                Ok(None) => {}
                Err(what) => {
                    let place = format!("{}, record {}", self.name, self.number);
                    return Some(Err(unreadable(format!("{place}: {what}"))));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Nanos;

    use super::*;

    fn one(command: u16, len: u32, sector: u64, micros: u64) -> Vec<u8> {
        let mut record = [7u32, len, 1].map(u32::to_le_bytes).concat();
        record.extend([command, 0x0100].map(u16::to_le_bytes).concat());
        record.extend([sector, micros].map(u64::to_le_bytes).concat());
        record
    }

    fn two(command: u16, len: u32, sector: u64, micros: u64) -> Vec<u8> {
        let mut record = [command, 0x0200].map(u16::to_le_bytes).concat();
        record.extend([7u32, len, 1].map(u32::to_le_bytes).concat());
        record.extend([sector, micros, 99].map(u64::to_le_bytes).concat());
        record
    }

    fn read(bytes: &[u8]) -> TraceResult<Vec<Request>> {
        VscsiRecords::new("trace".to_owned(), bytes).collect()
    }

    #[test]
    fn both_versions_say_the_same() {
        for (record, version) in [
            (one as fn(u16, u32, u64, u64) -> Vec<u8>, VscsiVersion::One),
            (two as fn(u16, u32, u64, u64) -> Vec<u8>, VscsiVersion::Two),
        ] {
            let file = [
                record(0x28, 4096, 63, 1000),
                record(0x00, 0, 0, 1001),
                record(0x2a, 512, 5, 1002),
                record(0x42, 1 << 20, 0, 1003),
            ]
            .concat();
            assert_eq!(VscsiVersion::tell(&file), Some(version));
            let found = read(&file).expect("reads");
            let found: Vec<_> =
                found.iter().map(|one| (one.time, one.op, one.offset, one.len)).collect();
            let expected = [
                (Some(Nanos(1_000_000)), Op::Read, 63 * 512, 4096),
                (Some(Nanos(1_002_000)), Op::Write, 5 * 512, 512),
                (Some(Nanos(1_003_000)), Op::Discard, 0, 1 << 20),
            ];
            assert_eq!(found, expected);
        }
        assert_eq!(read(b"").expect("nothing").len(), 0);
    }

    #[test]
    fn malformed_input_is_reported() {
        let good = one(0x28, 4096, 63, 1);
        let cut = [good.clone(), good[..20].to_vec()].concat();
        let other = [good.clone(), two(0x28, 1, 1, 1)].concat();
        let beyond = one(0x28, 4096, 1 << 60, 1);
        for (file, words) in [
            (&cut[..], ["record 2", "cut off"]),
            (&other, ["record 2", "version 1"]),
            (&[0x20; 64], ["record 1", "version 1 or 2"]),
            (&beyond, ["record 1", "2^64"]),
        ] {
            let why = read(file).expect_err("is wrong").to_string();
            assert!(words.iter().all(|word| why.contains(word)), "{why}");
        }
    }
}
