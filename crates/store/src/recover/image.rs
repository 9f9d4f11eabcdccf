//! Loading the index from the checkpoint.

use std::collections::HashSet;
use std::sync::Arc;

use forebay_core::{Generation, RecordNumber, VolumeId};
use forebay_format::{AcceptedLog, Arrangement, Geometry, SegmentState as SegmentLine};
use forebay_lane::{turns, yield_now};
use parking_lot::Mutex;

use super::firsts::{Bounds, none, reopened};
use crate::checkpoint::source::CheckpointSource;
use crate::chunks::{Chunks, entry_of, items_in};
use crate::error::StoreError;
use crate::index::{Index, Unfit};
use crate::loading;
use crate::planted::{self, PlantedBug};
use crate::replay::Replay;
use crate::spaces::{VolumeSpace, address_in};
use crate::team::Team;

/// The content of the checkpoint, except for the blocks.
pub(super) struct CheckpointImage {
    /// The segment table.
    pub(super) lines: Arc<Vec<SegmentLine>>,
    /// The generations with which segments were opened since.
    pub(super) reopened: Vec<Option<Generation>>,
    pub(super) base: RecordNumber,
    pub(super) next_generation: Generation,
    pub(super) bytes_read: u64,
    /// Whether the checkpoint was damaged, and repaired or rebuilt.
    pub(super) mended: bool,
    /// Whether there is no usable checkpoint, so that the log must supply everything.
    pub(super) rebuilt: bool,
    /// Volumes that had dirty blocks.
    pub(super) dirty: HashSet<VolumeId>,
    /// Source of the entries, if they are loaded later.
    pub(super) later: Option<loading::EntrySource>,
}

/// The cache to recover, and the lanes that do it.
pub(super) struct RecoveryInput<'a> {
    pub(super) team: &'a Team,
    pub(super) geometry: &'a Geometry,
    pub(super) spaces: &'a [VolumeSpace],
    /// The part of the log that earlier recoveries accepted.
    pub(super) accepted: Option<&'a AcceptedLog>,
}

/// Loads the checkpoint's blocks into the index, except those in segments that were opened again:
/// their newer versions are in the log. `clean`: nothing was written after the checkpoint.
///
/// # Errors
/// The checkpoint is damaged and cannot be rebuilt from parity, or there is no memory for it; the
/// content of the index is then meaningless.
pub(super) async fn load(
    from: &RecoveryInput<'_>,
    mut source: CheckpointSource,
    clean: bool,
    index: &Index,
    replay: &mut Replay,
) -> Result<CheckpointImage, StoreError> {
    let RecoveryInput { team, geometry, spaces, accepted } = from;
    let unfit = |unfit: Unfit| unfit.of("the checkpoint");
    let header = *source.header();
    let count = geometry.segment_count as usize;
    let bits = u32::from(header.check_bits);
    replay.begin(header.base, header.highest_sequence, *accepted);
    let (mut lines, mut firsts) = (Arc::new(Vec::with_capacity(count)), None);
    let (mut dirty, mut last_dirty) = (HashSet::new(), None);
    while let Some(chunk) = source.read().await? {
        let items = source.items(&chunk)?;
        if items.segments().len() > 0 {
            Arc::make_mut(&mut lines).extend(items.segments());
        }
        if firsts.is_none() && lines.len() >= count {
            let lowest = if header.bounded { header.next_generation } else { Generation(0) };
            let bounds = Bounds { lowest, lines: lines.clone() };
            firsts = Some(match clean || planted::has(PlantedBug::ReopenedNotSeen) {
                true => none(count).await,
                false => reopened(team, replay, bounds, false).await?,
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
                // The number of a deleted volume must not be used again before the next checkpoint.
                if spaces.iter().all(|space| space.id != entry.volume) {
                    replay.deleted.insert(entry.volume);
                }
                continue;
            };
            if gone(segment.0 as usize) {
                continue;
            }
            index.restore(address, entry_of(&entry, bits)).map_err(unfit)?;
        }
        for mask in items.masks() {
            if let Some((_, address)) = address_in(spaces, mask.volume, mask.block) {
                index.restore_mask(address, mask.mask).map_err(unfit)?;
            }
        }
        // A device that completes at once would not let other tasks run.
        yield_now().await;
    }
    let (bytes_read, mended) = (source.bytes_read, source.mended);
    source.finish()?;
    Ok(CheckpointImage {
        lines,
        reopened: firsts.unwrap_or_default(),
        base: header.base,
        next_generation: header.next_generation,
        bytes_read,
        mended,
        rebuilt: false,
        dirty,
        later: None,
    })
}

/// Maximum number of masks of a checkpoint that is loaded later: all masks are loaded at once.
pub(super) const MOST_MASKS: u64 = 1 << 16;

/// Returns whether the entries of a checkpoint can be loaded later into an index with this order of
/// entries.
pub(super) fn can_wait(source: &CheckpointSource, order: &Arrangement, least: u64) -> bool {
    let header = source.header();
    let same = |it: &Arrangement| Arrangement { dirty: 0, ..*it } == *order;
    header.bounded
        && header.arrangement.as_ref().is_some_and(same)
        && (least..).contains(&header.entry_count)
        && header.mask_count <= MOST_MASKS
}

/// Like [`load`], but leaves the entries for later.
///
/// # Errors
/// A part of the checkpoint is damaged, so the caller must load it as a whole.
pub(super) async fn load_later(
    from: &RecoveryInput<'_>,
    source: Chunks,
    clean: bool,
    index: &Index,
    replay: &mut Replay,
) -> Result<CheckpointImage, StoreError> {
    let RecoveryInput { team, geometry, spaces, accepted } = from;
    let header = *source.header();
    let count = geometry.segment_count as usize;
    replay.begin(header.base, header.highest_sequence, *accepted);
    let (mut lines, mut bytes_read) = (Vec::with_capacity(count), 0);
    let damaged = || StoreError::Refused("the checkpoint is damaged".into());
    let mut chunk = 0;
    while lines.len() < count {
        let (read, mut reader) = source.read_at(team.queue(), chunk).await?;
        lines.extend(items_in(&mut reader, &read.chunk)?.segments());
        if read.mended {
            return Err(damaged());
        }
        bytes_read += read.bytes_read;
        chunk += 1;
        yield_now().await;
    }
    if header.mask_count > 0 {
        let (mut masks, mut chunk) = (0, source.first_chunk_of_masks());
        while masks < header.mask_count {
            let (read, mut reader) = source.read_at(team.queue(), chunk).await?;
            for mask in items_in(&mut reader, &read.chunk)?.masks() {
                masks += 1;
                if let Some((_, address)) = address_in(spaces, mask.volume, mask.block) {
                    let loaded = index.load_mask(address, mask.mask);
                    loaded.map_err(|unfit| unfit.of("the checkpoint"))?;
                }
            }
            if read.mended {
                return Err(damaged());
            }
            bytes_read += read.bytes_read;
            chunk += 1;
        }
    }
    index.unload();
    let lines = Arc::new(lines);
    let reopened = if clean || planted::has(PlantedBug::ReopenedNotSeen) {
        none(count).await
    } else {
        replay.trust_free(header.next_generation);
        let bounds = Bounds { lowest: header.next_generation, lines: lines.clone() };
        reopened(team, replay, bounds, false).await?
    };
    Ok(CheckpointImage {
        lines,
        reopened,
        base: header.base,
        next_generation: header.next_generation,
        bytes_read,
        mended: false,
        rebuilt: false,
        dirty: HashSet::new(),
        later: Some(loading::EntrySource {
            checkpoint: source,
            spaces: spaces.to_vec(),
            segments: Vec::new(),
            has_log: !clean,
            changes: Mutex::default(),
            firsts: Mutex::default(),
        }),
    })
}

/// Like [`load`], but without a checkpoint: the whole log is replayed. An old version of a block
/// returns if the segment with the record that superseded it was reused.
///
/// # Errors
/// The device fails.
pub(super) async fn rebuild(
    from: &RecoveryInput<'_>,
    replay: &mut Replay,
    why: StoreError,
) -> Result<CheckpointImage, StoreError> {
    let RecoveryInput { team, geometry, accepted, .. } = from;
    let count = geometry.segment_count as usize;
    tracing::error!(%why, "the checkpoint cannot be used: the index is rebuilt from the log");
    replay.begin(RecordNumber(0), 0, *accepted);
    let lines = Arc::new(turns::filled(count, |_| SegmentLine::default()).await);
    let bounds = Bounds { lowest: Generation(0), lines: lines.clone() };
    let reopened = reopened(team, replay, bounds, true).await?;
    Ok(CheckpointImage {
        lines,
        reopened,
        base: RecordNumber(0),
        next_generation: Generation(1),
        bytes_read: 0,
        mended: true,
        rebuilt: true,
        dirty: HashSet::new(),
        later: None,
    })
}
