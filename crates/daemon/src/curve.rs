//! Tables of cache sizes and of RAM sizes with their hit ratios, for traces and for running
//! volumes.

use forebay_admin::curve::{CurveRow, Hits, RamRow};
use forebay_policy::curve::Share;

/// Rows of the table if no sizes are given.
const ROWS: u32 = 8;

/// Steps between the points of a picture: one every few pixels.
const STEPS: i32 = 120;

/// The RAM sizes of the table are this one times powers of four.
const RAM: u64 = 64 << 20;

/// Smaller RAM sizes are included only if there are fewer than this many others.
const FEWEST_RAM: u32 = 3;

/// The largest RAM size of the table.
const MOST_RAM: u64 = 1 << 40;

/// The requested sizes in bytes; an empty list means the default ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Sizes of the cache.
    pub cache: Vec<u64>,
    /// Sizes of RAM in front of it.
    pub ram: Vec<u64>,
}

/// Converts a share to its API type.
pub fn hits(Share { share, error }: Share) -> Hits {
    Hits { share, error }
}

/// Returns powers of two in bytes, up to the first that holds the whole footprint; at least a
/// block.
pub fn usual_sizes(footprint: u64, block: u64) -> Vec<u64> {
    let last = footprint.max(block).checked_next_power_of_two().unwrap_or(1 << 63);
    (0..ROWS).rev().map(|row| last >> row).filter(|bytes| *bytes >= block).collect()
}

/// Returns the rows for the given sizes, or else for the usual ones; ascending.
pub fn rows(
    asked: &[u64],
    footprint: u64,
    block: u64,
    row: &dyn Fn(u64) -> CurveRow,
) -> Vec<CurveRow> {
    let mut sizes = if asked.is_empty() { usual_sizes(footprint, block) } else { asked.to_vec() };
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().map(row).collect()
}

/// Returns 64M, 256M, 1G and so on, up to the first size that holds the whole footprint; smaller
/// sizes if the footprint is small.
fn usual_ram_sizes(footprint: u64, block: u64) -> Vec<u64> {
    let mut last = RAM;
    while last < footprint && last < MOST_RAM {
        last *= 4;
    }
    let mut first = RAM.min(last >> (2 * (FEWEST_RAM - 1)));
    let mut sizes = Vec::new();
    while first <= last {
        sizes.extend((first >= block).then_some(first));
        first *= 4;
    }
    sizes
}

/// Returns the shares of accesses that RAM of `bytes` bytes, a cache of `cache` bytes behind it and
/// the origin serve.
///
/// Both are modelled as LRU caches, and the content of the larger one as a superset of the smaller
/// one's. An access hits in RAM if its reuse distance is less than the size of RAM, and in one of
/// the two if it is less than the size of the larger.
pub fn ram_row(bytes: u64, cache: u64, row: &dyn Fn(u64) -> CurveRow) -> RamRow {
    let (ram, both) = (row(bytes).hits(), row(bytes.max(cache)).hits());
    // The estimate of a larger size is rarely smaller, but this is not ruled out.
    let all = both.share.max(ram.share);
    let origin = Hits { share: 1.0 - all, error: both.error };
    RamRow { bytes, ram, cache: all - ram.share, origin }
}

/// Returns the rows for the given sizes of RAM, or else for the usual ones; ascending.
pub fn ram_rows(
    asked: &[u64],
    footprint: u64,
    block: u64,
    cache: u64,
    row: &dyn Fn(u64) -> CurveRow,
) -> Vec<RamRow> {
    let usual = || usual_ram_sizes(footprint, block);
    let mut sizes = if asked.is_empty() { usual() } else { asked.to_vec() };
    sizes.sort_unstable();
    sizes.dedup();
    sizes.into_iter().map(|bytes| ram_row(bytes, cache, row)).collect()
}

/// Returns the points of a graph that covers all of these rows and the whole footprint.
pub fn points(
    rows: &[CurveRow],
    footprint: u64,
    block: u64,
    row: &dyn Fn(u64) -> CurveRow,
) -> Vec<CurveRow> {
    let ends = [rows.first(), rows.last()].map(|row| row.map_or(block, |row| row.bytes));
    let [first, last] = [ends[0].max(block), ends[1].max(footprint).max(2 * block)];
    let ratio = (last as f64 / first as f64).powf(1.0 / f64::from(STEPS));
    (0..=STEPS).map(|step| row((first as f64 * ratio.powi(step)) as u64)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4096;

    fn row(bytes: u64) -> CurveRow {
        CurveRow { bytes, reads: None, all: Hits { share: 0.5, error: 0.0 } }
    }

    #[test]
    fn sizes_end_with_one_for_everything() {
        let sizes = usual_sizes(5 << 30, BLOCK);
        assert_eq!((sizes.len(), sizes[0], sizes[7]), (8, 64 << 20, 8 << 30));
        assert_eq!(usual_sizes(0, BLOCK), [BLOCK]);
        assert_eq!(usual_sizes(3 * BLOCK, BLOCK), [BLOCK, 2 * BLOCK, 4 * BLOCK]);
        assert!(usual_sizes(u64::MAX, BLOCK).iter().all(|bytes| *bytes >= BLOCK));
    }

    #[test]
    fn sizes_of_ram_are_four_times_as_large_each() {
        let sizes = |footprint: u64| usual_ram_sizes(footprint, BLOCK);
        assert_eq!(sizes(0), [4 << 20, 16 << 20, 64 << 20]);
        assert_eq!(sizes(64 << 20), [4 << 20, 16 << 20, 64 << 20]);
        assert_eq!(sizes(65 << 20), [16 << 20, 64 << 20, 256 << 20]);
        assert_eq!(sizes(5 << 30), [64 << 20, 256 << 20, 1 << 30, 4 << 30, 16 << 30]);
        assert_eq!((sizes(u64::MAX).len(), sizes(u64::MAX)[7]), (8, 1 << 40));
    }

    #[test]
    fn shares_of_ram_and_cache_add_up_and_the_larger_one_counts() {
        // The share grows linearly with the size, up to 1 at 8 MiB.
        let row = |bytes: u64| {
            let share = (bytes as f64 / f64::from(8 << 20)).min(1.0);
            CurveRow {
                bytes,
                reads: Some(Hits { share, error: 0.0 }),
                all: Hits { share: 0.0, error: 0.0 },
            }
        };
        let rows = ram_rows(&[6 << 20, 1 << 20], 8 << 20, BLOCK, 4 << 20, &row);
        let shares = rows.iter().map(|row| (row.ram.share, row.cache, row.origin.share));
        assert_eq!(shares.collect::<Vec<_>>(), [(0.125, 0.375, 0.5), (0.75, 0.0, 0.25)]);
        let alone = ram_row(2 << 20, 0, &row);
        assert_eq!((alone.ram.share, alone.cache, alone.origin.share), (0.25, 0.0, 0.75));
    }

    #[test]
    fn rows_are_in_order_and_a_picture_has_all_of_them() {
        let asked = rows(&[8 << 20, 2 << 20, 8 << 20], 5 << 20, BLOCK, &row);
        assert_eq!(asked.iter().map(|row| row.bytes).collect::<Vec<_>>(), [2 << 20, 8 << 20]);
        let points = points(&asked, 64 << 20, BLOCK, &row);
        assert_eq!((points.len(), points[0].bytes), (121, 2 << 20));
        assert!(points[120].bytes.abs_diff(64 << 20) < BLOCK);
        assert!(super::points(&[], 0, BLOCK, &row).iter().all(|row| row.bytes >= BLOCK));
    }
}
