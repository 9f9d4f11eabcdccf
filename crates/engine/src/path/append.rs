//! Appends the data of a write to the log: each block once, merged with its cached copy.

use forebay_core::{IoError, OriginBlock, SectorMask};
use forebay_device::IoBuf;
use forebay_store::Entry;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Condition, Pinned, Version, VersionId};

use crate::io::copies::Copies;
use crate::io::counted::CountedAppends;
use crate::io::policy::Policy;
use crate::io::space::Space;
use crate::lane::LaneVolume;
use crate::path::fill::Filler;
use crate::path::retry::Retry;
use crate::path::turns::Turns;
use crate::state::volume::Volume;
use crate::state::volume::layout::BlockPiece;
use crate::state::volume::layout::bytes_of;
use crate::stats::bump;

/// Progress of a write to the log.
#[derive(Default)]
pub(crate) struct AppendProgress {
    pub(crate) written: Vec<Written>,
    /// Number of blocks that were cached before.
    pub(crate) cached: usize,
}

/// Why the next block of a write cannot be appended now.
pub(crate) enum AppendObstacle {
    /// The log has no free space at the moment.
    NoRoom,
    /// There is no memory for the block's sector mask: the whole block has to be appended.
    NoMask,
}

/// Whether the log took all of a write.
#[derive(PartialEq, Eq)]
pub(crate) enum Room {
    /// All of the write has been appended.
    Found,
    /// There is no free space, and waiting for it is pointless: see
    /// [`Cache::starve`](crate::state::cache::Cache::starve).
    Never,
}

/// The version that was appended for one block.
pub(crate) struct Written {
    pub(crate) block: OriginBlock,
    pub(crate) version: VersionId,
    /// Only the sectors of this write are newer than the origin.
    pub(crate) complete: bool,
}

/// The cached copy under a part of a block that is written.
struct Under {
    /// The copy's content; `None` if there is nothing to merge with.
    base: Option<IoBuf>,
    /// The block was not dirty before.
    complete: bool,
    /// The sectors that are valid after the write.
    valid: SectorMask,
    /// The condition under which the block may be appended.
    condition: Condition<'static>,
}

impl Under {
    /// Returns the value for a write that needs no merge: the whole block is written, or the block
    /// is not cached.
    #[inline]
    fn nothing(volume: &Volume, piece: &BlockPiece) -> Self {
        let valid = SectorMask::of(volume.block.sectors(), piece.sectors.clone());
        let condition = if piece.whole { Condition::Always } else { Condition::Absent };
        Under { base: None, complete: true, valid, condition }
    }
}

/// Appends the writes of a volume on one lane.
#[derive(Clone, Copy)]
pub(crate) struct Appender<'a>(pub(crate) &'a LaneVolume);

impl Appender<'_> {
    /// Appends the rest of a write, and waits for free space as often as necessary, unless none
    /// will become free. The caller must not hold a range, because freeing space may need writeback
    /// within it.
    pub(crate) async fn append_patiently(
        self,
        offset: u64,
        data: &[u8],
        progress: &mut AppendProgress,
    ) -> Result<Room, IoError> {
        let room = self.append_all(offset, data, progress).await;
        // Counted even on failure, because the part in the log may be acknowledged.
        bump(&self.0.stats().logged, progress.written.len() as u64);
        room
    }

    async fn append_all(
        self,
        offset: u64,
        data: &[u8],
        progress: &mut AppendProgress,
    ) -> Result<Room, IoError> {
        loop {
            let space = self.0.store.store().space.listen();
            let obstacle = match self.append_rest(offset, data, progress).await? {
                None => return Ok(Room::Found),
                Some(AppendObstacle::NoMask) => {
                    self.append_completed(offset, data, progress).await?
                }
                no_room => no_room,
            };
            if obstacle.is_some() {
                if Space(self.0).is_starved() {
                    return Ok(Room::Never);
                }
                Space(self.0).wait_for_space(space).await?;
            }
        }
    }

    /// Appends the rest of a write, block by block, each exactly once, up to the first obstacle.
    pub(crate) async fn append_rest(
        self,
        offset: u64,
        data: &[u8],
        progress: &mut AppendProgress,
    ) -> Result<Option<AppendObstacle>, IoError> {
        let len = data.len() as u64;
        let done = progress.written.len();
        for piece in self.0.volume.pieces(offset, len).skip(done) {
            if !Space(self.0).has_room_in_order() {
                return Ok(Some(AppendObstacle::NoRoom));
            }
            match self.append_piece(&piece, data).await? {
                Ok((was_cached, written)) => {
                    progress.cached += usize::from(was_cached);
                    progress.written.push(written);
                }
                Err(obstacle) => return Ok(Some(obstacle)),
            }
        }
        let blocks = progress.written.len();
        self.count_write(progress.cached == blocks, len, blocks as u64);
        Ok(None)
    }

    /// Completes the next block of a write with the origin's data and appends it whole. Does
    /// nothing if another task has changed the block meanwhile, or if there is no free space, and
    /// reports the latter. As with [`Appender::append_patiently`], the caller must not hold a
    /// range.
    async fn append_completed(
        self,
        offset: u64,
        source: &[u8],
        progress: &mut AppendProgress,
    ) -> Result<Option<AppendObstacle>, IoError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let mut pieces = volume.pieces(offset, source.len() as u64);
        let Some(piece) = pieces.nth(progress.written.len()) else { return Ok(None) };
        let block = piece.block;
        let range = volume.block_range(block);
        let mut rest = IoBuf::for_overwrite((range.end - range.start) as usize);
        // As with a fill: any task that changes the block from now on, in the log or around it,
        // overtakes this append (invariant 5).
        let ticket = store.index.begin_fill(volume.space.address(block));
        let read = Filler(self.0).read_origin(range, &mut rest, None).await;
        // The volume must not have been removed meanwhile: see `append_piece`.
        let appended = match read.and_then(|()| volume.still_there().map_err(Retry::Fail)) {
            Ok(()) => {
                let rank = Policy(self.0).rank_of_write(block);
                let version = Version {
                    space: &volume.space,
                    block,
                    dirty: true,
                    mask: None,
                    rank: rank.bits(),
                    condition: Condition::Fill(&ticket),
                };
                let class = Policy(self.0).class_of_write(rank);
                let appended = CountedAppends(self.0).append(version, class, |cell| {
                    cell.fill(0);
                    cell[bytes_of(&volume.sectors_inside(block))].copy_from_slice(&rest);
                    cell[bytes_of(&piece.sectors)].copy_from_slice(&source[piece.bytes.clone()]);
                });
                if let Appended::Done { old, version } = &appended {
                    self.note_appended(block, old.as_ref());
                    progress.written.push(Written { block, version: *version, complete: true });
                }
                Ok(matches!(appended, Appended::NoSpace).then_some(AppendObstacle::NoRoom))
            }
            Err(Retry::Again) => Ok(None),
            Err(Retry::Fail(error)) => Err(error),
        };
        drop(ticket);
        appended
    }

    /// Reads the cached copy of a block that is partly written.
    async fn copy_under(self, piece: &BlockPiece, pinned: &Pinned<'_>) -> Result<Under, Retry> {
        let volume = &self.0.volume;
        let (slot, dirty) = (pinned.found.entry.slot, pinned.found.entry.dirty);
        let mut valid = SectorMask::of(volume.block.sectors(), piece.sectors.clone());
        match &pinned.found.mask {
            Some(mask) => valid.union_with(mask),
            None => valid = SectorMask::all(volume.block.sectors()),
        }
        let buf = IoBuf::for_overwrite(volume.block.as_usize());
        let (cached, unreadable) =
            Copies(self.0).read_copies(std::slice::from_ref(pinned), buf).await;
        Retry::unless_all_read(&unreadable).inspect_err(|retry| {
            if matches!(retry, Retry::Again) {
                // A clean copy on a device that hangs may never be readable. The origin has the
                // data.
                Copies(self.0).forget_copy(piece.block, slot);
            }
        })?;
        let condition = Condition::Slot(slot);
        Ok(Under { base: Some(cached), complete: !dirty, valid, condition })
    }

    /// Appends one block's part of a write, merged with its cached copy.
    async fn append_piece(
        self,
        piece: &BlockPiece,
        source: &[u8],
    ) -> Result<Result<(bool, Written), AppendObstacle>, IoError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        loop {
            // Pinned until the block is appended: if the segment were reused meanwhile, a newer
            // version of the block could be in the same slot (invariant 5).
            let pinned = if piece.whole { None } else { store.look_up(&volume.space, piece.block) };
            let under = match &pinned {
                None => Under::nothing(volume, piece),
                Some(pinned) => match self.copy_under(piece, pinned).await {
                    Ok(under) => under,
                    Err(Retry::Again) => continue,
                    Err(Retry::Fail(error)) => return Err(error),
                },
            };
            let Under { base, complete, valid, condition } = under;
            // Barrier for invariant 15: the dirty blocks of a removed volume were noted when it
            // stopped, and its next attachment counts them. A write that outlives the volume must
            // not add more.
            volume.still_there()?;
            let mask = match planted::has(PlantedBug::WholeMask) {
                true => None,
                false => volume.mask(piece.block, valid),
            };
            if base.is_none()
                && mask.is_some()
                && !store.has_room_for_mask(&volume.space, piece.block)
            {
                return Ok(Err(AppendObstacle::NoMask));
            }
            let rank = Policy(self.0).rank_of_write(piece.block);
            let class = Policy(self.0).class_of_write(rank);
            let version = Version {
                space: &volume.space,
                block: piece.block,
                dirty: true,
                mask,
                rank: rank.bits(),
                condition,
            };
            let appended = CountedAppends(self.0).append(version, class, |cell| {
                match &base {
                    Some(base) => cell.copy_from_slice(base),
                    None if piece.bytes.len() < cell.len() => cell.fill(0),
                    None => (),
                }
                cell[bytes_of(&piece.sectors)].copy_from_slice(&source[piece.bytes.clone()]);
            });
            match appended {
                Appended::Done { old, version } => {
                    self.note_appended(piece.block, old.as_ref());
                    let written = Written { block: piece.block, version, complete };
                    return Ok(Ok((old.is_some(), written)));
                }
                Appended::Refused => (),
                Appended::NoSpace => return Ok(Err(AppendObstacle::NoRoom)),
                Appended::NoMask => return Ok(Err(AppendObstacle::NoMask)),
            }
        }
    }

    pub(crate) fn note_appended(self, block: OriginBlock, old: Option<&Entry>) {
        Policy(self.0).placed(block, old);
        self.0.volume.remove_bad(block);
        if old.is_none_or(|old| !old.dirty) || self.0.volume.is_ordered() {
            Turns(self.0).count_dirtied();
        }
    }

    pub(crate) fn count_write(self, hits: bool, len: u64, blocks: u64) {
        let counters = &self.0.stats().counters;
        bump(if hits { &counters.write_hits } else { &counters.write_misses }, 1);
        bump(&counters.user_written_bytes, len);
        bump(&counters.cache_written_bytes, blocks * self.0.volume.block.bytes());
    }
}
