//! Numbers with a meaning: no type converts into another by accident.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bytes in a sector, the smallest unit a client may address.
pub const SECTOR_SIZE: u64 = 512;

/// Number of a block on an origin, in units of the cache's block size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OriginBlock(pub u64);

/// Location of one block's payload on the cache device, in granules from the start of the segment
/// area. A granule is the smaller of the block size and 4 KiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(pub u32);

/// Number of a segment on the cache device, the unit of allocation and reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SegmentId(pub u32);

/// Number of one opening of a segment, unique in its cache. It tells current records from those of
/// earlier openings.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// Number of a record in the log of one cache. Numbers are dense: every closed record has one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RecordNumber(pub u64);

/// Number of a volume within one cache. Reused only after a checkpoint that follows the volume's
/// deletion.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize,
)]
pub struct VolumeId(pub u16);

/// Unit of caching: a power of two from 2 KiB to 1 MiB.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct BlockSize(u32);

impl BlockSize {
    /// The smallest block, in bytes.
    pub const MIN: u32 = 2 << 10;
    /// The largest block, in bytes.
    pub const MAX: u32 = 1 << 20;
    /// 4 KiB, the default.
    pub const DEFAULT: BlockSize = BlockSize(4096);

    /// A block size of `bytes`, or `None` unless it is a power of two from 2 KiB to 1 MiB.
    pub fn new(bytes: u64) -> Option<Self> {
        let valid = bytes.is_power_of_two()
            && (u64::from(Self::MIN)..=u64::from(Self::MAX)).contains(&bytes);
        valid.then_some(BlockSize(bytes as u32))
    }

    /// Returns the size in bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.0)
    }

    /// Returns the size in bytes as a `usize`, for slices.
    pub fn as_usize(self) -> usize {
        self.0 as usize
    }

    /// Returns the base-two logarithm of the size.
    pub fn shift(self) -> u32 {
        self.0.trailing_zeros()
    }

    /// Returns the sectors in a block: 4 to 2048.
    pub fn sectors(self) -> u32 {
        self.0 / SECTOR_SIZE as u32
    }

    /// Returns the bytes in a granule, the unit of [`Slot`].
    pub fn granule(self) -> u64 {
        self.bytes().min(4096)
    }

    /// Returns the block that contains the byte at `offset`.
    pub fn block_of(self, offset: u64) -> OriginBlock {
        OriginBlock(offset >> self.shift())
    }

    /// Returns the offset of the first byte of `block`.
    pub fn offset_of(self, block: OriginBlock) -> u64 {
        block.0 << self.shift()
    }
}

impl Default for BlockSize {
    fn default() -> Self {
        Self::DEFAULT
    }
}

impl fmt::Display for BlockSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&format_size(self.bytes()))
    }
}

impl fmt::Display for VolumeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// The text is not a size.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{text}' is not a size; write a whole number with an optional unit, like 4096, 4K, 512M or 1T (powers of 1024)"
)]
pub struct SizeError {
    /// The text that was given, cut to 40 characters.
    pub text: String,
}

/// Reads a size such as `4096`, `4K`, `4KiB`, `512M` or `1T`, in bytes; units are powers of 1024.
///
/// # Errors
/// Anything else: signs, fractions, spaces, exponents, an empty string, or 2^64 and more.
pub fn parse_size(text: &str) -> Result<u64, SizeError> {
    let bad = || SizeError { text: text.chars().take(40).collect() };
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kib" => 10,
        "m" | "mib" => 20,
        "g" | "gib" => 30,
        "t" | "tib" => 40,
        "p" | "pib" => 50,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

/// Returns why a number without a unit is refused where it would mean absurdly few bytes, with the
/// number in the largest unit up to G that `fits`; `None`: it has a unit, or none fits.
pub fn missing_unit(text: &str, fits: impl Fn(u64) -> bool) -> Option<String> {
    let bytes = parse_size(text).ok().filter(|_| text.ends_with(|c: char| c.is_ascii_digit()))?;
    let (unit, _) = [("G", 30), ("M", 20), ("K", 10)].into_iter().find(|(_, shift)| {
        bytes.checked_mul(1 << shift).is_some_and(|meant| meant > 0 && fits(meant))
    })?;
    Some(format!("'{text}' would be {bytes} bytes; add a unit, like {bytes}{unit}"))
}

/// Formats a size as [`parse_size`] reads it if it is a whole number of a unit, with one decimal
/// otherwise: `4K`, `1.5G`.
pub fn format_size(bytes: u64) -> String {
    const UNITS: [(&str, u32); 5] = [("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)];
    for (unit, shift) in UNITS {
        if bytes >> shift == 0 {
            continue;
        }
        if bytes & ((1 << shift) - 1) == 0 {
            return format!("{}{unit}", bytes >> shift);
        }
        return format!("{:.1}{unit}", bytes as f64 / (1u64 << shift) as f64);
    }
    bytes.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_strictly() {
        assert_eq!(parse_size("4096"), Ok(4096));
        assert_eq!(parse_size("4K"), Ok(4096));
        assert_eq!(parse_size("4kib"), Ok(4096));
        assert_eq!(parse_size("1T"), Ok(1 << 40));
        for bad in [
            "",
            "-1",
            "+1",
            "1e30",
            "10 GB",
            " 1",
            "1.5G",
            "18446744073709551616",
            "16777216T",
            "K",
            "4KB",
            "0x10",
        ] {
            assert!(parse_size(bad).is_err(), "{bad:?} was read");
        }
    }

    #[test]
    fn a_number_without_a_unit_gets_the_largest_one_that_fits() {
        let said = missing_unit("4", |_| true);
        assert_eq!(said.as_deref(), Some("'4' would be 4 bytes; add a unit, like 4G"));
        let said = missing_unit("64", |bytes| bytes <= 1 << 20).expect("K fits");
        assert!(said.ends_with("like 64K"), "{said}");
        for (text, fits) in [("4K", true), ("0", true), ("x", true), ("", true), ("4", false)] {
            assert_eq!(missing_unit(text, |_| fits), None, "{text}");
        }
    }

    #[test]
    fn sizes_are_written_readably() {
        assert_eq!(format_size(0), "0");
        assert_eq!(format_size(512), "512");
        assert_eq!(format_size(4096), "4K");
        assert_eq!(format_size(3 << 29), "1.5G");
    }

    #[test]
    fn block_sizes_have_a_range() {
        for bytes in [0, 3, 1024, 4095, 2 << 20, 1 << 31] {
            assert_eq!(BlockSize::new(bytes), None);
        }
        let block = BlockSize::new(1 << 20).expect("valid");
        assert_eq!(block.sectors(), 2048);
        assert_eq!(block.granule(), 4096);
        assert_eq!(block.block_of((1 << 20) - 1), OriginBlock(0));
        assert_eq!(block.offset_of(OriginBlock(3)), 3 << 20);
    }
}
