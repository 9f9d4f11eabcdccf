//! Sector contents that identify the write from which they come.
//!
//! Every write stores distinct bytes in every sector, made from the volume, the sector and the
//! number of the write. A read can therefore distinguish the right data from older data, data of
//! another place, and data that was never written.

use std::fmt;

use crate::trace::mix;

/// Bytes in a sector.
pub const SECTOR: usize = forebay_core::SECTOR_SIZE as usize;

const MAGIC: u64 = 0x666f_7265_6261_7921;

/// The origin of one sector's content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// All bytes are zero.
    Zero,
    /// The content from the write with this number; 0 is the initial content.
    Write(u32),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Zero => f.write_str("zeroes"),
            Value::Write(0) => f.write_str("the initial content"),
            Value::Write(number) => write!(f, "write {number}"),
        }
    }
}

/// A sector of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectorAddress {
    /// Index of the volume in the world.
    pub volume: u16,
    /// Sector within the volume.
    pub sector: u64,
}

impl fmt::Display for SectorAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "volume {} sector {}", self.volume, self.sector)
    }
}

/// The classification of a sector's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SectorContent {
    /// Zeroes, or a stamp of this place.
    Own(Value),
    /// A stamp of another place.
    Foreign(SectorAddress, u32),
    /// Bytes that were never written.
    Garbage,
}

impl fmt::Display for SectorContent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SectorContent::Own(value) => value.fmt(f),
            SectorContent::Foreign(place, number) => write!(f, "write {number} of {place}"),
            SectorContent::Garbage => f.write_str("bytes that nobody wrote"),
        }
    }
}

fn word(base: u64, index: u64) -> u64 {
    let word =
        (base ^ index.wrapping_mul(0x9e37_79b9_7f4a_7c15)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    word ^ (word >> 31)
}

fn base(seed: u64, place: SectorAddress, number: u32) -> u64 {
    mix(mix(seed, u64::from(place.volume) << 48 | place.sector), u64::from(number))
}

/// Fills one sector for `place` with the content of write `number`.
pub fn fill(sector: &mut [u8], seed: u64, place: SectorAddress, number: u32) {
    let base = base(seed, place, number);
    let head = [MAGIC ^ seed, u64::from(place.volume) << 48 | place.sector, u64::from(number)];
    for (index, chunk) in sector.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = head.get(index).copied().unwrap_or_else(|| word(base, index as u64));
        *chunk = value.to_le_bytes();
    }
}

/// Fills one sector with `value`.
pub fn fill_value(sector: &mut [u8], seed: u64, place: SectorAddress, value: Value) {
    match value {
        Value::Zero => sector.fill(0),
        Value::Write(number) => fill(sector, seed, place, number),
    }
}

/// Returns the write number in a sector's stamp, or `None` if it has no stamp.
pub fn number(sector: &[u8], seed: u64) -> Option<u32> {
    let words = sector.as_chunks::<8>().0;
    let head = |index: usize| words.get(index).map(|bytes| u64::from_le_bytes(*bytes));
    (head(0)? == MAGIC ^ seed).then(|| head(2)).flatten().and_then(|it| u32::try_from(it).ok())
}

/// Returns the place and write in an intact stamp; `None` for anything else.
pub fn read(sector: &[u8], seed: u64) -> Option<(SectorAddress, u32)> {
    let words = sector.as_chunks::<8>().0;
    let head = |index: usize| words.get(index).map(|bytes| u64::from_le_bytes(*bytes));
    if head(0)? != MAGIC ^ seed {
        return None;
    }
    let address = head(1)?;
    let place = SectorAddress { volume: (address >> 48) as u16, sector: address & ((1 << 48) - 1) };
    let number = u32::try_from(head(2)?).ok()?;
    let base = base(seed, place, number);
    let intact = words
        .iter()
        .enumerate()
        .skip(3)
        .all(|(index, bytes)| u64::from_le_bytes(*bytes) == word(base, index as u64));
    intact.then_some((place, number))
}

/// Classifies the content of `sector`, read from `place`.
pub fn classify(sector: &[u8], seed: u64, place: SectorAddress) -> SectorContent {
    match read(sector, seed) {
        Some((found, number)) if found == place => SectorContent::Own(Value::Write(number)),
        Some((found, number)) => SectorContent::Foreign(found, number),
        None if sector.starts_with(&[0; SECTOR]) => SectorContent::Own(Value::Zero),
        None => SectorContent::Garbage,
    }
}

/// Returns the value of `sector`, read from `place`, if it was written there.
pub fn own(sector: &[u8], seed: u64, place: SectorAddress) -> Option<Value> {
    match classify(sector, seed, place) {
        SectorContent::Own(value) => Some(value),
        SectorContent::Foreign(..) | SectorContent::Garbage => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_flipped_bit_and_every_other_place_is_seen() {
        let place = SectorAddress { volume: 1, sector: 77 };
        let mut sector = [0; SECTOR];
        fill(&mut sector, 9, place, 5);
        assert_eq!(classify(&sector, 9, place), SectorContent::Own(Value::Write(5)));
        for bit in 0..SECTOR * 8 {
            let mut flipped = sector;
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(classify(&flipped, 9, place), SectorContent::Garbage, "bit {bit}");
        }
        let other = SectorAddress { volume: 0, sector: 77 };
        assert_eq!(classify(&sector, 9, other), SectorContent::Foreign(place, 5));
        assert_eq!(classify(&sector, 8, place), SectorContent::Garbage);
        assert_eq!(classify(&[0; SECTOR], 9, place), SectorContent::Own(Value::Zero));
    }
}
