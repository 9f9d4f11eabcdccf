//! Loading the index from the checkpoint.

use std::cell::RefCell;
use std::collections::HashSet;
use std::rc::Rc;

use forebay_core::{Generation, RecordNumber, VolumeId};
use forebay_device::Queue;
use forebay_format::{Geometry, IndexEntry, SegmentState as SegmentLine};
use forebay_lane::Lane;

use super::address_in;
use super::firsts::{Bounds, reopened};
use crate::checkpoint::source::CheckpointSource;
use crate::error::StoreError;
use crate::index::{Index, Unfit};
use crate::planted::{self, PlantedBug};
use crate::replay::Replay;
use crate::store::VolumeSpace;
use crate::table::{Check, Entry};

/// The content of the checkpoint, except for the blocks.
pub(super) struct Image {
    /// The segment table.
    pub(super) lines: Vec<SegmentLine>,
    /// The generations with which segments were opened since.
    pub(super) reopened: Vec<Option<Generation>>,
    pub(super) base: RecordNumber,
    pub(super) next_generation: Generation,
    pub(super) bytes_read: u64,
    /// Whether it was damaged, and repaired or rebuilt.
    pub(super) mended: bool,
    /// Volumes that had dirty blocks.
    pub(super) dirty: HashSet<VolumeId>,
}

/// The cache to recover, and the lane that does it.
pub(super) struct Source<'a> {
    pub(super) lane: &'a Rc<Lane>,
    pub(super) queue: &'a Queue,
    pub(super) geometry: &'a Geometry,
    pub(super) spaces: &'a [VolumeSpace],
}

/// Returns the checkpoint's bits of a check, placed at the high end as in the table.
fn check_of(entry: &IndexEntry, bits: u32) -> Check {
    Check::from_28(entry.check << (28 - bits.min(28)))
}

/// Loads the checkpoint's blocks into the index, except those in segments that were opened again:
/// the versions that superseded them are in the log. `clean`: nothing was written after the
/// checkpoint.
///
/// # Errors
/// It is damaged and cannot be rebuilt from parity, or there is no memory for it; the content of
/// the index is then meaningless.
pub(super) async fn load(
    from: &Source<'_>,
    mut source: CheckpointSource,
    clean: bool,
    index: &Index,
    replay: &Rc<RefCell<Replay>>,
) -> Result<Image, StoreError> {
    let Source { lane, queue, geometry, spaces } = from;
    let unfit = |unfit: Unfit| unfit.of("the checkpoint");
    let header = *source.header();
    let count = geometry.segment_count as usize;
    let bits = u32::from(header.check_bits);
    replay.borrow_mut().begin(header.base, header.highest_sequence);
    let (mut lines, mut firsts) = (Vec::with_capacity(count), None);
    let (mut dirty, mut last_dirty) = (HashSet::new(), None);
    while let Some(chunk) = source.read().await? {
        let items = source.items(&chunk)?;
        lines.extend(items.segments());
        if firsts.is_none() && lines.len() >= count {
            let lowest = if header.bounded { header.next_generation } else { Generation(0) };
            let bounds = Bounds { lowest, lines: lines.clone() };
            firsts = Some(match clean || planted::has(PlantedBug::ReopenedNotSeen) {
                true => vec![None; count],
                false => reopened(lane, queue, replay, bounds, false).await?,
            });
        }
        let gone = |segment: usize| {
            firsts.as_ref().and_then(|firsts| firsts.get(segment)).is_none_or(Option::is_some)
        };
        for entry in items.entries() {
            if entry.dirty && last_dirty != Some(entry.volume) {
                last_dirty = Some(entry.volume);
                dirty.insert(entry.volume);
            }
            let segment = geometry.place_of(entry.slot).0;
            let Some((_, address)) = address_in(spaces, entry.volume, entry.block) else {
                continue;
            };
            if gone(segment.0 as usize) {
                continue;
            }
            let version = Entry {
                slot: entry.slot,
                dirty: entry.dirty,
                partial: entry.partial,
                rank: entry.rank,
                check: check_of(&entry, bits),
            };
            index.restore(address, version).map_err(unfit)?;
        }
        for mask in items.masks() {
            if let Some((_, address)) = address_in(spaces, mask.volume, mask.block) {
                index.restore_mask(address, mask.mask).map_err(unfit)?;
            }
        }
    }
    let (bytes_read, mended) = (source.bytes_read, source.mended);
    source.finish()?;
    Ok(Image {
        lines,
        reopened: firsts.unwrap_or_default(),
        base: header.base,
        next_generation: header.next_generation,
        bytes_read,
        mended,
        dirty,
    })
}

/// The most blocks of a cache whose headers fit into memory when all of them are replayed.
const MOST_REBUILT: u64 = 1 << 27;

/// As [`load`] without a checkpoint: the whole log is replayed. Superseded versions come back where
/// the record that superseded them is gone.
///
/// # Errors
/// The cache is too large for that, or the device fails.
pub(super) async fn rebuild(
    from: &Source<'_>,
    replay: &Rc<RefCell<Replay>>,
    why: StoreError,
) -> Result<Image, StoreError> {
    let Source { lane, queue, geometry, .. } = from;
    let count = geometry.segment_count as usize;
    if u64::from(geometry.segment_count) * geometry.blocks_per_segment() > MOST_REBUILT {
        return Err(why);
    }
    tracing::error!(%why, "the checkpoint cannot be used: the index is rebuilt from the log");
    replay.borrow_mut().begin(RecordNumber(0), 0);
    let lines = vec![SegmentLine::default(); count];
    let bounds = Bounds { lowest: Generation(0), lines: lines.clone() };
    let reopened = reopened(lane, queue, replay, bounds, true).await?;
    Ok(Image {
        lines,
        reopened,
        base: RecordNumber(0),
        next_generation: Generation(1),
        bytes_read: 0,
        mended: true,
        dirty: HashSet::new(),
    })
}
