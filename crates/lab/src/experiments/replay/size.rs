//! Size of the smallest log in which so many blocks can live.

use forebay_core::{BlockSize, parse_size};
use forebay_engine::segments_kept_free;
use forebay_format::{Geometry, layout};
use forebay_store::Store;

use crate::error::{LabError, LabResult, other};

/// Lanes of a replay.
const LANES: u32 = 1;

/// The smallest unit of the modelled devices, in bytes.
const LOGICAL: u64 = 512;

/// A size on the command line: `512M`, or `20%` of the trace's blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Wanted {
    Bytes(u64),
    /// Above 0, at most 1.
    Share(f64),
}

impl std::str::FromStr for Wanted {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if let Some(percent) = text.strip_suffix('%') {
            let share = percent.trim().parse::<f64>().ok().map(|percent| percent / 100.0);
            return match share.filter(|share| *share > 0.0 && *share <= 1.0) {
                Some(share) => Ok(Wanted::Share(share)),
                None => Err(format!("'{text}' is no share; above 0%, up to 100%")),
            };
        }
        match parse_size(text) {
            Ok(0) => Err("a cache of no bytes".into()),
            Ok(bytes) => Ok(Wanted::Bytes(bytes)),
            Err(error) => Err(format!("{error}, or a share of the trace's blocks, like 20%")),
        }
    }
}

impl Wanted {
    /// In bytes, given how many the trace touches; whole blocks of 4 KiB.
    pub(crate) fn bytes(self, touched_blocks: u64, unit: u64) -> u64 {
        match self {
            Wanted::Bytes(bytes) => bytes,
            // As libCacheSim rounds.
            Wanted::Share(share) => (touched_blocks as f64 * share) as u64 * unit,
        }
    }
}

/// A log, and the device for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LogSize {
    pub(crate) device_bytes: u64,
    pub(crate) segment_bytes: u64,
    pub(crate) segments: u32,
    /// Blocks that may live in it: what reclaim keeps free is not counted. Blocks that were
    /// overwritten take up room of theirs until their segment is reclaimed.
    pub(crate) capacity_blocks: u64,
}

impl LogSize {
    /// The largest log in which no more than so many bytes of blocks may live, or the smallest that
    /// there can be. Without `segment_bytes` segments are as large as the store would choose.
    pub(crate) fn new(bytes: u64, block: BlockSize, segment_bytes: Option<u64>) -> LabResult<Self> {
        let wanted = (bytes / block.bytes()).max(1);
        if let Some(segment) = segment_bytes {
            return Self::of(wanted, block, segment);
        }
        let smallest = layout::smallest_segment(block);
        let mut segment = layout::DEFAULT_SEGMENT_BYTES.max(smallest);
        loop {
            let size = Self::of(wanted, block, segment)?;
            let enough = u64::from(size.segments) >= layout::WANTED_SEGMENTS;
            if enough || segment <= smallest {
                return Ok(size);
            }
            segment /= 2;
        }
    }

    fn of(wanted: u64, block: BlockSize, segment_bytes: u64) -> LabResult<Self> {
        let plan = |device| Geometry::plan(device, block, LOGICAL, Some(segment_bytes));
        // The smallest one first.
        let mut device_bytes = match plan(0) {
            Err(forebay_format::FormatError::TooSmall { needed, .. }) => needed,
            Err(error) => return Err(LabError::Usage(error.to_string())),
            Ok(_) => return Err(other("a cache without room")),
        };
        let smallest = plan(device_bytes).map_err(|error| other(error.to_string()))?;
        let cells = Store::cells_per_segment_of(&smallest);
        let live = |segments: u64| {
            let free = segments_kept_free(u32::try_from(segments).unwrap_or(u32::MAX), LANES);
            segments.saturating_sub(free.into()) * cells
        };
        // At most a fiftieth of the segments is kept free, or a few.
        let mut segments = wanted / cells * 50 / 49 + 8;
        if segments > layout::MAX_SLOTS / (segment_bytes / block.granule()) {
            return Err(LabError::Usage("the cache is too large; choose less".into()));
        }
        while live(segments) > wanted && segments > layout::MIN_SEGMENTS {
            segments -= 1;
        }
        segments = segments.max(layout::MIN_SEGMENTS);
        device_bytes = device_bytes.max(segments * segment_bytes);
        let mut laid_out = plan(device_bytes).map_err(|error| other(error.to_string()))?;
        while u64::from(laid_out.segment_count) < segments {
            // Checkpoints need room as well.
            device_bytes += segment_bytes;
            laid_out = plan(device_bytes).map_err(|error| other(error.to_string()))?;
        }
        let capacity_blocks = live(laid_out.segment_count.into());
        let segments = laid_out.segment_count;
        Ok(LogSize { device_bytes, segment_bytes, segments, capacity_blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_shares_are_told_apart() {
        assert_eq!("20%".parse(), Ok(Wanted::Share(0.2)));
        assert_eq!("64M".parse(), Ok(Wanted::Bytes(64 << 20)));
        for wrong in ["0%", "101%", "x%", "", "0", "M", "NaN%"] {
            assert!(wrong.parse::<Wanted>().is_err(), "{wrong}");
        }
        assert_eq!(Wanted::Share(0.05).bytes(119, 4096), 5 * 4096);
    }

    #[test]
    fn logs_are_as_large_as_asked_but_for_a_segment() {
        for blocks in [700, 1023, 2658, 20_469, 53_174, 1 << 20, 10_000_000] {
            let size = LogSize::new(blocks * 4096, BlockSize::DEFAULT, None).expect("a log");
            let segment = size.segment_bytes / 4096;
            assert!(size.capacity_blocks <= blocks, "{blocks}: {size:?}");
            assert!(size.capacity_blocks + segment > blocks, "{blocks}: {size:?}");
            let planned = Geometry::plan(
                size.device_bytes,
                BlockSize::DEFAULT,
                512,
                Some(size.segment_bytes),
            );
            assert_eq!(planned.expect("fits").segment_count, size.segments);
        }
        let least = LogSize::new(1, BlockSize::DEFAULT, None).expect("the smallest");
        assert_eq!((least.segments, least.segment_bytes), (16, 256 << 10));
        assert_eq!(least.capacity_blocks, 11 * 62);
        assert!(LogSize::new(1 << 30, BlockSize::DEFAULT, Some(12345)).is_err());
        assert!(LogSize::new(u64::MAX, BlockSize::DEFAULT, None).is_err());
    }
}
