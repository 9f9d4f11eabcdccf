//! Tables of cache sizes and their hit ratios, for traces and for running volumes.

use forebay_admin::curve::{CurveRow, Hits};
use forebay_policy::curve::Share;

/// Rows of the table if no sizes are given.
const ROWS: u32 = 8;

/// Steps between the points of a picture: one every few pixels.
const STEPS: i32 = 120;

/// Converts a share to its API type.
pub(crate) fn hits(Share { share, error }: Share) -> Hits {
    Hits { share, error }
}

/// Returns powers of two in bytes, up to the first that holds the whole footprint; at least a
/// block.
pub(crate) fn usual_sizes(footprint: u64, block: u64) -> Vec<u64> {
    let last = footprint.max(block).checked_next_power_of_two().unwrap_or(1 << 63);
    (0..ROWS).rev().map(|row| last >> row).filter(|bytes| *bytes >= block).collect()
}

/// Returns the rows for the given sizes, or else for the usual ones; ascending.
pub(crate) fn rows(
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

/// Returns the points of a picture that covers all of these rows and the whole footprint.
pub(crate) fn points(
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
    fn rows_are_in_order_and_a_picture_has_all_of_them() {
        let asked = rows(&[8 << 20, 2 << 20, 8 << 20], 5 << 20, BLOCK, &row);
        assert_eq!(asked.iter().map(|row| row.bytes).collect::<Vec<_>>(), [2 << 20, 8 << 20]);
        let points = points(&asked, 64 << 20, BLOCK, &row);
        assert_eq!((points.len(), points[0].bytes), (121, 2 << 20));
        assert!(points[120].bytes.abs_diff(64 << 20) < BLOCK);
        assert!(super::points(&[], 0, BLOCK, &row).iter().all(|row| row.bytes >= BLOCK));
    }
}
