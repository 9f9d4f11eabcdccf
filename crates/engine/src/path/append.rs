//! Appending what a write brings to the log: each block once, merged with what is cached of it.

use forebay_core::{IoError, OriginBlock, SectorMask, Slot};
use forebay_device::IoBuf;
use forebay_store::Entry;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Condition, Pinned, Version};

use crate::io::copies::Copies;
use crate::io::policy::Policy;
use crate::io::space::Space;
use crate::lane::LaneVolume;
use crate::path::fill::Filler;
use crate::path::retry::Retry;
use crate::path::turns::Turns;
use crate::state::volume::Volume;
use crate::state::volume::layout::Piece;
use crate::state::volume::layout::bytes_of;
use crate::stats::bump;

/// How far a write to the log has come.
#[derive(Default)]
pub(crate) struct Progress {
    pub(crate) written: Vec<Written>,
    /// Blocks that were cached before.
    pub(crate) cached: usize,
}

/// Why the next block of a write cannot be appended as it is.
pub(crate) enum Obstacle {
    /// There is no room in the log at the moment.
    NoRoom,
    /// There is no memory to say what of the block is valid: it has to be whole.
    NoMask,
}

/// Whether the rest of a write may go to the log.
#[derive(PartialEq, Eq)]
pub(crate) enum Room {
    /// All of it has been appended.
    Found,
    /// There is none, and none to wait for: see [`Cache::starve`](crate::state::cache::Cache::starve).
    Never,
}

/// What was appended for one block.
pub(crate) struct Written {
    pub(crate) block: OriginBlock,
    pub(crate) slot: Slot,
    /// The write's own sectors are all that is newer than the origin.
    pub(crate) complete: bool,
}

/// What a part of a block is written over.
struct Under {
    /// The cached copy.
    base: Option<IoBuf>,
    /// Nothing of the block was dirty before.
    complete: bool,
    /// The sectors that are valid with the part.
    valid: SectorMask,
    /// What must not have changed when the block is appended.
    condition: Condition<'static>,
}

impl Under {
    /// A whole block is written, or the block is not cached.
    #[inline]
    fn nothing(volume: &Volume, piece: &Piece) -> Self {
        let valid = SectorMask::of(volume.block.sectors(), piece.sectors.clone());
        let condition = if piece.whole { Condition::Always } else { Condition::Absent };
        Under { base: None, complete: true, valid, condition }
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Appender<'a>(pub(crate) &'a LaneVolume);

impl Appender<'_> {
    /// Appends what is left of a write; waits for room as often as needed, if there will be any. Not to be
    /// called by whoever holds a range: room may depend on writing back what lies in it.
    pub(crate) async fn append_patiently(
        self,
        offset: u64,
        data: &[u8],
        progress: &mut Progress,
    ) -> Result<Room, IoError> {
        loop {
            let space = self.0.store.store().space.listen();
            let obstacle = match self.append_rest(offset, data, progress).await? {
                None => return Ok(Room::Found),
                Some(Obstacle::NoMask) => self.append_completed(offset, data, progress).await?,
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

    /// Appends what is left of a write, block by block, each exactly once, up to an obstacle.
    pub(crate) async fn append_rest(
        self,
        offset: u64,
        data: &[u8],
        progress: &mut Progress,
    ) -> Result<Option<Obstacle>, IoError> {
        let len = data.len() as u64;
        let done = progress.written.len();
        for piece in self.0.volume.pieces(offset, len).skip(done) {
            if !Space(self.0).has_room_in_order() {
                return Ok(Some(Obstacle::NoRoom));
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

    /// Appends the next block's part of a write together with the rest of the block as the origin has it.
    /// Where something else was quicker, or there is no room, nothing is done; the latter is told. As
    /// [`Appender::append_patiently`], not for whoever holds a range.
    async fn append_completed(
        self,
        offset: u64,
        source: &[u8],
        progress: &mut Progress,
    ) -> Result<Option<Obstacle>, IoError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        let mut pieces = volume.pieces(offset, source.len() as u64);
        let Some(piece) = pieces.nth(progress.written.len()) else { return Ok(None) };
        let block = piece.block;
        let range = volume.block_range(block);
        let mut rest = IoBuf::for_overwrite((range.end - range.start) as usize);
        // As with a fill: whoever touches the block from now on, in the log or round it, overtakes this
        // (invariant 5).
        let ticket = store.index.begin_fill(volume.space.address(block));
        let read = Filler(self.0).read_origin(range, &mut rest, None).await;
        // Nor has it been left behind by its volume meanwhile, as in `append_piece`.
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
                let mut slot = Slot(0);
                let class = Policy(self.0).class_of_write(rank);
                let appended = self.0.store.append_at(version, class, &mut slot, |cell| {
                    cell.fill(0);
                    cell[bytes_of(&volume.sectors_inside(block))].copy_from_slice(&rest);
                    cell[bytes_of(&piece.sectors)].copy_from_slice(&source[piece.bytes.clone()]);
                });
                if let Appended::Done { old } = appended {
                    self.note_appended(block, old.as_ref());
                    progress.written.push(Written { block, slot, complete: true });
                }
                Ok(matches!(appended, Appended::NoSpace).then_some(Obstacle::NoRoom))
            }
            Err(Retry::Again) => Ok(None),
            Err(Retry::Fail(error)) => Err(error),
        };
        store.index.end_fill(ticket);
        appended
    }

    /// Reads the cached copy of a block of which a part is written.
    async fn copy_under(self, piece: &Piece, pinned: Pinned<'_>) -> Result<Under, Retry> {
        let volume = &self.0.volume;
        let (slot, dirty) = (pinned.found.entry.slot, pinned.found.entry.dirty);
        let mut valid = SectorMask::of(volume.block.sectors(), piece.sectors.clone());
        match &pinned.found.mask {
            Some(mask) => valid.union_with(mask),
            None => valid = SectorMask::all(volume.block.sectors()),
        }
        let buf = IoBuf::for_overwrite(volume.block.as_usize());
        let (cached, unreadable) = Copies(self.0).read_copies(&[pinned], buf).await;
        Retry::unless_all_read(&unreadable).inspect_err(|retry| {
            if matches!(retry, Retry::Again) {
                // What it has may be had from a device that hangs, or not: the origin has it.
                Copies(self.0).forget_copy(piece.block, slot);
            }
        })?;
        let condition = Condition::Slot(slot);
        Ok(Under { base: Some(cached), complete: !dirty, valid, condition })
    }

    /// Appends one block's part of a write, merged with what is cached of the block.
    async fn append_piece(
        self,
        piece: &Piece,
        source: &[u8],
    ) -> Result<Result<(bool, Written), Obstacle>, IoError> {
        let volume = &self.0.volume;
        let store = self.0.store.store();
        loop {
            let pinned = if piece.whole { None } else { store.look_up(&volume.space, piece.block) };
            let under = match pinned {
                None => Under::nothing(volume, piece),
                Some(pinned) => match self.copy_under(piece, pinned).await {
                    Ok(under) => under,
                    Err(Retry::Again) => continue,
                    Err(Retry::Fail(error)) => return Err(error),
                },
            };
            let Under { base, complete, valid, condition } = under;
            // Barrier for invariant 15: what the volume left dirty has been noted when it stopped, and is
            // counted by whoever has it next. A write that it has left behind adds nothing.
            volume.still_there()?;
            let mask = match planted::has(PlantedBug::WholeMask) {
                true => None,
                false => volume.mask(piece.block, valid),
            };
            if base.is_none()
                && mask.is_some()
                && !store.has_room_for_mask(&volume.space, piece.block)
            {
                return Ok(Err(Obstacle::NoMask));
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
            let mut slot = Slot(0);
            let appended = self.0.store.append_at(version, class, &mut slot, |cell| {
                match &base {
                    Some(base) => cell.copy_from_slice(base),
                    None if piece.bytes.len() < cell.len() => cell.fill(0),
                    None => (),
                }
                cell[bytes_of(&piece.sectors)].copy_from_slice(&source[piece.bytes.clone()]);
            });
            match appended {
                Appended::Done { old } => {
                    self.note_appended(piece.block, old.as_ref());
                    let written = Written { block: piece.block, slot, complete };
                    return Ok(Ok((old.is_some(), written)));
                }
                Appended::Refused => (),
                Appended::NoSpace => return Ok(Err(Obstacle::NoRoom)),
                Appended::NoMask => return Ok(Err(Obstacle::NoMask)),
            }
        }
    }

    pub(crate) fn note_appended(self, block: OriginBlock, old: Option<&Entry>) {
        Policy(self.0).placed(block, old);
        self.0.volume.remove_bad(block);
        self.0.volume.appended(self.0.lane(), block, old, true);
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
