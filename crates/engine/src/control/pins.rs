//! Pins blocks of a running volume, and fills ranges of it.

use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_core::units::format_size;
use forebay_core::{Cancelled, OriginBlock};
use forebay_lane::{join_all, yield_now};

use crate::error::{EngineError, EngineErrorKind};
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::path::memory::PREFETCH_PIECE;
use crate::path::read::VolumeReader;
use crate::state::pins::BlockSet;
use crate::state::volume::{Volume, VolumeState};

/// Pieces that are filled at a time: the origin has the next request before the first has ended.
const TOGETHER: u64 = 2;

/// The longest time for which a piece yields to clients, so that the work ends even if they are
/// always active.
const GIVES_WAY: Duration = Duration::from_millis(100);

/// Interval at which waiting work checks again.
const LOOK: Duration = Duration::from_millis(2);

/// Attempts to read a piece while there are free segments. Other causes than reclaim may keep
/// blocks out: a fill that is faster than the cache device finds the log's buffers in use.
const ATTEMPTS: u32 = 12;

/// The longest time that a piece waits for space that reclaim frees.
const WAITS_FOR_SPACE: Duration = Duration::from_secs(5);

impl EngineLane {
    /// Returns how many blocks of all volumes of the cache may be pinned: half of those that the
    /// replacement policy keeps. The others, and dirty blocks, need the rest.
    pub fn most_pinned(&self) -> u64 {
        self.cache.replacement().1.shares.kept / 2
    }

    /// Pins exactly these blocks of a volume: they enter whenever they are missed, and reclaim does
    /// not evict them while the volume is attached. Blocks beyond the end of the volume are
    /// ignored.
    ///
    /// # Errors
    /// The volume does not exist, or more than [`EngineLane::most_pinned`] blocks would be pinned;
    /// the pins are then unchanged.
    pub fn pin(&self, name: &str, blocks: &BlockSet) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        let inside = 0..volume.space.blocks;
        let blocks = blocks.without(&BlockSet::from(inside.end..u64::MAX));
        let others = self.cache.volumes().into_iter().filter(|other| other.id != volume.id);
        let others: u64 = others.map(|other| other.pinned().len()).sum();
        let most = self.most_pinned();
        // A set that is no larger than before is never refused, so that the operator can unpin.
        if blocks.len() > most.saturating_sub(others) && blocks.len() > volume.pinned().len() {
            let bytes = |blocks: u64| format_size(blocks.saturating_mul(volume.block.bytes()));
            let message = format!(
                "{} would be pinned, and {} of other volumes are; the cache device {} takes {} of pinned blocks",
                bytes(blocks.len()),
                bytes(others),
                self.cache.store.device().name(),
                bytes(most),
            );
            return Err(EngineError::new(EngineErrorKind::Refused, message));
        }
        volume.pins.set(blocks);
        Ok(())
    }

    /// Reads those of these blocks that are not cached into the cache. Yields to clients.
    /// `progress` is called with the number of blocks left, and may end the command. Returns the
    /// number of blocks that did not enter, because of the admission settings, concurrent writes,
    /// or a lack of space.
    ///
    /// # Errors
    /// The volume does not exist or stops, the command is cancelled, the origin cannot be read, or
    /// none of the read blocks may enter.
    pub async fn fill(
        self: &Rc<Self>,
        name: &str,
        blocks: &BlockSet,
        progress: impl Fn(u64) -> Result<(), Cancelled>,
    ) -> Result<u64, EngineError> {
        let view = self.loaded_volume(name).await?;
        let volume = &view.volume;
        if !VolumeReader(&view).fills_on_request() {
            let message = format!(
                "nothing that is read enters the cache of '{name}' with mode={} and caching={}",
                volume.mode(),
                volume.settings().caching
            );
            return Err(EngineError::new(EngineErrorKind::Refused, message));
        }
        let step = (PREFETCH_PIECE / volume.block.bytes()).max(1);
        let (mut left, mut absent) = (blocks.len(), 0);
        for range in blocks.ranges() {
            let end = range.end.min(volume.space.blocks);
            let pieces: Vec<Range<u64>> = (range.start..end)
                .step_by(step as usize)
                .map(|start| start..(start + step).min(end))
                .collect();
            for some in pieces.chunks(TOGETHER as usize) {
                progress(left)?;
                let filled = join_all(some.iter().map(|piece| fill_piece(&view, piece))).await;
                for filled in filled {
                    absent += filled?;
                }
                left = left.saturating_sub(some.iter().map(|it| it.end - it.start).sum());
                yield_now().await;
            }
        }
        Ok(absent)
    }
}

/// Fills a piece, and returns the number of its blocks that are absent in the end.
async fn fill_piece(view: &LaneVolume, blocks: &Range<u64>) -> Result<u64, EngineError> {
    let volume = &view.volume;
    let absent = || {
        let store = view.store.store();
        let peek = |block: &u64| store.peek(&volume.space, OriginBlock(*block)).is_none();
        blocks.clone().filter(peek).count() as u64
    };
    let ends = |volume: &Volume| match volume.state() {
        VolumeState::Running => Ok(()),
        _ => Err(EngineError::new(EngineErrorKind::Failed, format!("'{}' stops", volume.name))),
    };
    let start = volume.block_range(OriginBlock(blocks.start)).start;
    let end = volume.block_range(OriginBlock(blocks.end.saturating_sub(1))).end;
    let patient = view.now() + GIVES_WAY;
    while volume.stats.in_flight() > 0 && view.now() < patient {
        view.lane().sleep(LOOK).await;
    }
    let patient = view.now() + WAITS_FOR_SPACE;
    for attempt in 1.. {
        ends(volume)?;
        VolumeReader(view).prefetch(start, end - start).await.map_err(|_| {
            let place = format_size(start);
            let message = format!("the origin of '{}' cannot be read at {place}", volume.name);
            EngineError::new(EngineErrorKind::Failed, message)
        })?;
        // A fill does not wait for space.
        let full = view.store.store().segments.free_count() <= view.cache.free_target();
        if absent() == 0 || (!full && attempt >= ATTEMPTS) || view.now() >= patient {
            break;
        }
        view.store.store().space_wanted.notify_all();
        view.lane().sleep(LOOK * attempt).await;
    }
    Ok(absent())
}
