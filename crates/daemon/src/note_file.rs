//! The file of a note about a volume: see [`ledger`](crate::ledger).
//!
//! A note with few ranges is JSON, as in the first version. A note with many is a line of JSON
//! followed by the set of the blocks in the ranges, as a compressed bitmap: at most 2 bytes per
//! block in the set, and little more than a bit per block of the volume. JSON takes some 20 bytes
//! per range. Both forms are exact, as a note that distrusts a cache device must be.

use std::ops::Range;

use forebay_engine::Note;
use forebay_format::{Uuid, crc32c};
use roaring::RoaringTreemap;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Version of notes that list their ranges.
const LISTED: u32 = 1;

/// Version of notes with a bitmap.
const COMPACT: u32 = 2;

/// Maximum number of ranges that are listed.
const MOST_LISTED: usize = 1 << 14;

#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    cache: Uuid,
    distrusted: bool,
    exact: bool,
    /// First byte and length of each range.
    dirty: Vec<(u64, u64)>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    bitmap: Option<Bitmap>,
}

/// A bitmap behind the line. Block `n` in it is the `unit` bytes from `n * unit - shift` on, as far
/// as they are within `within`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Bitmap {
    unit: u64,
    shift: u64,
    within: Range<u64>,
    len: u64,
    crc32c: u32,
}

impl Bitmap {
    /// Returns a bitmap of these ranges, with the largest block size of which all ranges are
    /// multiples. The first range may begin within a block, and the last may end within one,
    /// because the first and the last block of a volume may be short. `None` if there are too few
    /// ranges.
    fn of(ranges: &[Range<u64>]) -> Option<(Self, RoaringTreemap)> {
        let ([first, .., last], Some(edge)) = (ranges, ranges.first().map(|first| first.end))
        else {
            return None;
        };
        let edges = ranges.iter().flat_map(|range| [range.start, range.end]);
        let inner = edges.skip(1).take(ranges.len() * 2 - 2);
        let distances = inner.fold(0, |all, other| all | other.abs_diff(edge));
        let unit = 1u64 << distances.trailing_zeros().min(40);
        let shift = edge.next_multiple_of(unit) - edge;
        let within = first.start..last.end;
        let mut blocks = RoaringTreemap::new();
        for range in ranges {
            blocks.insert_range((range.start + shift) / unit..(range.end + shift).div_ceil(unit));
        }
        blocks.optimize();
        Some((Bitmap { unit, shift, within, len: 0, crc32c: 0 }, blocks))
    }

    /// Returns the ranges of the bitmap in `bytes`.
    fn ranges(&self, bytes: &[u8]) -> Result<Vec<Range<u64>>, String> {
        if bytes.len() as u64 != self.len || crc32c(bytes) != self.crc32c || self.unit == 0 {
            return Err("its bitmap is damaged".into());
        }
        let blocks = RoaringTreemap::deserialize_from(bytes).map_err(|error| error.to_string())?;
        let byte = |block: u64| block.saturating_mul(self.unit).saturating_sub(self.shift);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for block in blocks {
            let within = &self.within;
            let (start, end) =
                (byte(block).max(within.start), byte(block.saturating_add(1)).min(within.end));
            match ranges.last_mut() {
                _ if start >= end => {
                    return Err("its bitmap has blocks outside of the volume".into());
                }
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        Ok(ranges)
    }
}

/// Returns the file of a note.
///
/// # Errors
/// There is not enough memory.
pub(crate) fn encode(note: &Note) -> std::io::Result<Vec<u8>> {
    let Note { cache, distrusted, exact, ref dirty } = *note;
    let mut contents =
        Contents { version: LISTED, cache, distrusted, exact, dirty: Vec::new(), bitmap: None };
    let compact = (dirty.len() > MOST_LISTED).then(|| Bitmap::of(dirty)).flatten();
    let Some((bitmap, blocks)) = compact else {
        let listed = dirty.iter().map(|range| (range.start, range.end - range.start));
        contents.dirty = listed.collect();
        return Ok(serde_json::to_vec(&contents)?);
    };
    let mut bytes = Vec::with_capacity(blocks.serialized_size());
    blocks.serialize_into(&mut bytes)?;
    (contents.version, contents.bitmap) =
        (COMPACT, Some(Bitmap { len: bytes.len() as u64, crc32c: crc32c(&bytes), ..bitmap }));
    let mut file = serde_json::to_vec(&contents)?;
    file.push(b'\n');
    file.append(&mut bytes);
    Ok(file)
}

/// Returns the first JSON value in a file, and the bytes after it.
fn value<T: DeserializeOwned>(file: &[u8]) -> Result<(T, &[u8]), String> {
    let mut values = serde_json::Deserializer::from_slice(file).into_iter::<T>();
    match values.next() {
        Some(Ok(value)) => Ok((value, &file[values.byte_offset()..])),
        Some(Err(error)) => Err(format!("it is damaged: {error}")),
        None => Err("it is empty".into()),
    }
}

/// Returns the note in a file.
///
/// # Errors
/// The reason why this program cannot read the note.
pub(crate) fn decode(file: &[u8]) -> Result<Note, String> {
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let (Version { version }, _) = value(file)?;
    if ![LISTED, COMPACT].contains(&version) {
        return Err(format!(
            "it has version {version}, and this program reads {LISTED} and {COMPACT}"
        ));
    }
    let (contents, rest): (Contents, _) = value(file)?;
    let Contents { cache, distrusted, exact, dirty: listed, bitmap, .. } = contents;
    let dirty = match (bitmap, rest) {
        (Some(bitmap), [b'\n', bytes @ ..]) => bitmap.ranges(bytes)?,
        (None, rest) if rest.iter().all(u8::is_ascii_whitespace) => {
            listed.iter().map(|(start, len)| *start..start.saturating_add(*len)).collect()
        }
        _ => return Err("it is damaged: there is more behind it, or less".into()),
    };
    Ok(Note { cache, distrusted, exact, dirty })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn note(dirty: Vec<Range<u64>>) -> Note {
        Note { cache: Uuid::from_u128(7), distrusted: true, exact: true, dirty }
    }

    #[test]
    fn a_note_of_millions_of_ranges_is_small_and_reads_back() {
        const BLOCK: u64 = 4096;
        // Every other block, with short blocks at both ends of the volume.
        let count = 1 << 21;
        let mut dense: Vec<_> = (0..count)
            .map(|number: u64| (number * 2 * BLOCK).saturating_sub(512)..number * 2 * BLOCK + 3584)
            .collect();
        dense.last_mut().expect("many").end -= 1536;
        // One block in a thousand, in runs of three.
        let sparse: Vec<_> =
            (1..1 << 20).map(|number| number * 1000 * BLOCK..(number * 1000 + 3) * BLOCK).collect();
        for (dirty, most) in [(dense, (count * 2 / 8) + (1 << 19)), (sparse, 3 << 21)] {
            let note = note(dirty);
            let file = encode(&note).expect("there is memory");
            assert!((file.len() as u64) < most, "{} bytes", file.len());
            assert!(decode(&file) == Ok(note), "it is another note");
            for damaged in [&file[..file.len() - 1], &[&file[..], b"x"].concat()] {
                assert!(decode(damaged).is_err());
            }
            let mut torn = file;
            *torn.last_mut().expect("long") ^= 1;
            assert!(decode(&torn).is_err(), "a bit has changed");
        }
    }

    #[test]
    fn few_ranges_are_listed_as_the_first_programs_read_them() {
        for dirty in [Vec::new(), vec![0..4096, 8192..16384]] {
            let note = note(dirty);
            let file = encode(&note).expect("there is memory");
            let json: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
            assert_eq!(
                (&json["version"], json.as_object().map(|it| it.len())),
                (&1.into(), Some(5))
            );
            assert_eq!(decode(&file), Ok(note));
        }
        let first = br#"{"version":1,"cache":"00000000-0000-0000-0000-000000000007","distrusted":true,"exact":true,"dirty":[[0,4096],[8192,8192]]}"#;
        assert_eq!(decode(first), Ok(note(vec![0..4096, 8192..16384])));
        for bad in [&b""[..], b"{", b"{}", br#"{"version":3}"#, br#"{"version":2}"#] {
            assert!(decode(bad).is_err());
        }
    }

    #[test]
    fn ranges_that_are_not_made_of_blocks_come_back_exactly_too() {
        let mut random = fastrand::Rng::with_seed(5);
        for unit in [1, 512, 4096] {
            let (mut at, mut dirty) = (random.u64(0..unit), Vec::new());
            for _ in 0..=MOST_LISTED {
                let start = at + random.u64(1..9) * unit;
                at = start + random.u64(1..9) * unit;
                dirty.push(start..at);
            }
            let note = note(dirty);
            let file = encode(&note).expect("there is memory");
            assert!(file.starts_with(br#"{"version":2"#), "it is listed");
            assert!(decode(&file) == Ok(note), "{unit}");
        }
    }
}
