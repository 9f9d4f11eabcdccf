//! The address ranges of volumes in the index.

use std::sync::Arc;

use forebay_core::{OriginBlock, VolumeId};
use forebay_format::CheckSeed;

use crate::index::Address;

/// One volume's address range in the index, and the seed of its checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeSpace {
    /// The volume.
    pub id: VolumeId,
    /// Address of the volume's block 0.
    pub base: u64,
    /// Number of blocks of the volume.
    pub blocks: u64,
    pub(crate) seed: CheckSeed,
}

impl VolumeSpace {
    /// Returns whether the volume has this block. Block numbers read from a device must be checked
    /// with this: the address of one beyond the end belongs to another volume, or to none.
    #[inline]
    pub fn contains(&self, block: OriginBlock) -> bool {
        block.0 < self.blocks
    }

    /// Returns the address of a block of this volume.
    #[inline]
    pub fn address(&self, block: OriginBlock) -> Address {
        debug_assert!(self.contains(block), "{block:?} is beyond the end of {:?}", self.id);
        Address(self.base + block.0)
    }

    /// Returns a number that distinguishes a block from those of all other volumes, including
    /// former ones at the same addresses.
    #[inline]
    pub fn unique(&self, block: OriginBlock) -> u64 {
        self.address(block).0 ^ u64::from(self.id.0) << 48
    }

    /// Returns the block at an address, if it belongs to this volume.
    pub fn block(&self, address: Address) -> Option<OriginBlock> {
        let block = address.0.checked_sub(self.base)?;
        (block < self.blocks).then_some(OriginBlock(block))
    }
}

/// Returns the address of a block of a volume, if the block exists.
pub(crate) fn address_in(
    spaces: &[VolumeSpace],
    volume: VolumeId,
    block: OriginBlock,
) -> Option<(VolumeSpace, Address)> {
    let space = spaces.iter().find(|space| space.id == volume)?;
    space.contains(block).then(|| (*space, space.address(block)))
}

/// The address ranges of all volumes, to find the volume of an address.
pub struct Spaces(Vec<VolumeSpace>);

impl Spaces {
    /// Creates the set from ranges that are sorted by their bases.
    pub(crate) fn new(sorted: Vec<VolumeSpace>) -> Self {
        Spaces(sorted)
    }

    /// Returns the ranges, sorted by their bases.
    pub(crate) fn all(&self) -> &[VolumeSpace] {
        &self.0
    }

    /// Returns the volume of an address, and the block's number in it.
    pub fn find(&self, address: Address) -> Option<(&VolumeSpace, OriginBlock)> {
        let after = self.0.partition_point(|space| space.base <= address.0);
        let space = self.0.get(after.checked_sub(1)?)?;
        space.block(address).map(|block| (space, block))
    }
}

/// Keeps a volume's addresses from being given to another volume. All code that may insert blocks
/// of the volume holds one.
#[derive(Clone, Debug, Default)]
pub struct SpaceUse(Arc<()>);

/// Addresses that a volume has or had.
struct AssignedSpace {
    space: VolumeSpace,
    uses: SpaceUse,
}

impl AssignedSpace {
    fn is_used(&self) -> bool {
        Arc::strong_count(&self.uses.0) > 1
    }
}

/// The addresses of a volume that was deleted.
struct DeletedSpace {
    taken: AssignedSpace,
    /// Whether no block of the volume can be in the index any more.
    purged: bool,
}

/// There are not enough addresses. The value is the end of the range that would be needed.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoRoom(pub(crate) u64);

/// Why a volume cannot get more addresses behind its range.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotHere {
    /// There are not enough addresses.
    NoRoom(NoRoom),
    /// The addresses behind the range belong to another volume.
    Taken,
}

/// The owners of addresses. Addresses of a deleted volume are free once nothing can insert its
/// blocks into the index any more. The cache device stores no addresses, so they can be reassigned
/// freely.
#[derive(Default)]
pub(crate) struct Ranges {
    volumes: Vec<AssignedSpace>,
    /// Ranges to which volumes are moving.
    targets: Vec<VolumeSpace>,
    left: Vec<DeletedSpace>,
}

impl Ranges {
    pub(crate) fn new(spaces: Vec<VolumeSpace>) -> Self {
        let taken = |space| AssignedSpace { space, uses: SpaceUse::default() };
        Ranges { volumes: spaces.into_iter().map(taken).collect(), ..Ranges::default() }
    }

    /// Returns the ranges of all volumes; both ranges of a volume that moves.
    pub(crate) fn all(&self) -> Vec<VolumeSpace> {
        self.volumes.iter().map(|it| it.space).chain(self.targets.iter().copied()).collect()
    }

    pub(crate) fn of(&self, id: VolumeId) -> Option<VolumeSpace> {
        self.taken(id).map(|it| it.space)
    }

    pub(crate) fn find(&self, address: Address) -> Option<(VolumeSpace, OriginBlock)> {
        let spaces = self.volumes.iter().map(|it| &it.space).chain(&self.targets);
        spaces.into_iter().find_map(|space| Some((*space, space.block(address)?)))
    }

    fn taken(&self, id: VolumeId) -> Option<&AssignedSpace> {
        self.volumes.iter().find(|it| it.space.id == id)
    }

    pub(crate) fn use_of(&self, id: VolumeId) -> Option<SpaceUse> {
        self.taken(id).map(|it| it.uses.clone())
    }

    pub(crate) fn is_used(&self, id: VolumeId) -> bool {
        self.taken(id).is_some_and(AssignedSpace::is_used)
    }

    /// Returns all ranges that are not free, sorted.
    fn sorted(&self) -> Vec<(u64, u64)> {
        let left = self.left.iter().map(|it| it.taken.space);
        let all = self.all().into_iter().chain(left);
        let mut sorted: Vec<_> = all.map(|it| (it.base, it.base + it.blocks)).collect();
        sorted.sort_unstable();
        sorted
    }

    /// Returns the base of the smallest gap with enough addresses, or the end of all ranges.
    fn place(&self, blocks: u64, room: u64) -> Result<u64, NoRoom> {
        let (mut best, mut end) = (None, 0);
        for (base, next) in self.sorted() {
            let gap = base.saturating_sub(end);
            if gap >= blocks && best.is_none_or(|(least, _)| gap < least) {
                best = Some((gap, end));
            }
            end = end.max(next);
        }
        if let Some((_, base)) = best {
            return Ok(base);
        }
        match end.checked_add(blocks) {
            Some(wanted) if wanted <= room => Ok(end),
            wanted => Err(NoRoom(wanted.unwrap_or(u64::MAX))),
        }
    }

    /// Gives a new volume addresses below `room`. The base of `space` is ignored.
    pub(crate) fn add(&mut self, space: VolumeSpace, room: u64) -> Result<VolumeSpace, NoRoom> {
        let space = VolumeSpace { base: self.place(space.blocks, room)?, ..space };
        self.volumes.push(AssignedSpace { space, uses: SpaceUse::default() });
        Ok(space)
    }

    /// Extends the address range of a volume.
    pub(crate) fn extend(
        &mut self,
        id: VolumeId,
        blocks: u64,
        room: u64,
    ) -> Result<Option<VolumeSpace>, NotHere> {
        let Some(space) = self.of(id) else { return Ok(None) };
        let end = space.base.saturating_add(blocks);
        let next = self.sorted().into_iter().map(|(base, _)| base).find(|base| *base > space.base);
        if next.is_some_and(|next| next < end) {
            return Err(NotHere::Taken);
        }
        if end > room {
            return Err(NotHere::NoRoom(NoRoom(end)));
        }
        for taken in self.volumes.iter_mut().filter(|it| it.space.id == id) {
            taken.space.blocks = taken.space.blocks.max(blocks);
        }
        Ok(self.of(id))
    }

    /// Gives a volume addresses to move to.
    pub(crate) fn begin_move(&mut self, to: VolumeSpace, room: u64) -> Result<VolumeSpace, NoRoom> {
        let to = VolumeSpace { base: self.place(to.blocks, room)?, ..to };
        self.targets.push(to);
        Ok(to)
    }

    /// Ends a move: all blocks of the volume have moved.
    pub(crate) fn end_move(&mut self, to: &VolumeSpace) {
        self.targets.retain(|it| it.id != to.id);
        for taken in self.volumes.iter_mut().filter(|it| it.space.id == to.id) {
            taken.space = *to;
        }
    }

    /// Removes a volume that was deleted. `purged`: none of its blocks is in the index, and nothing
    /// can insert any.
    pub(crate) fn leave(&mut self, id: VolumeId, purged: bool) {
        let gone = self.volumes.extract_if(.., |it| it.space.id == id);
        self.left.extend(gone.map(|taken| DeletedSpace { taken, purged }));
    }

    /// Frees the addresses of deleted volumes that nothing uses any more. Returns a range that must
    /// be purged first.
    pub(crate) fn free(&mut self) -> Option<VolumeSpace> {
        self.left.retain(|it| !it.purged || it.taken.is_used());
        self.left.iter().find(|it| !it.taken.is_used()).map(|it| it.taken.space)
    }

    /// Frees a range that [`Ranges::free`] returned, after it was purged.
    pub(crate) fn purged(&mut self, space: &VolumeSpace) {
        for left in self.left.iter_mut().filter(|it| it.taken.space.base == space.base) {
            left.purged = true;
        }
    }
}

/// Returns the checksum of the volumes' address ranges, for [`forebay_format::Arrangement`].
pub(crate) fn checksum(spaces: &[VolumeSpace]) -> u64 {
    // FNV-1a.
    const PRIME: u64 = 0x100_0000_01b3;
    let mut sorted: Vec<_> = spaces.iter().map(|it| [it.base, it.blocks, it.id.0.into()]).collect();
    sorted.sort_unstable();
    let bytes = sorted.iter().flatten().flat_map(|number| number.to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |sum, byte| (sum ^ u64::from(byte)).wrapping_mul(PRIME))
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use forebay_format::Uuid;

    use super::*;

    fn space(id: u16, blocks: u64) -> VolumeSpace {
        let seed = CheckSeed::new(&Uuid::from_u128(7), VolumeId(id));
        VolumeSpace { id: VolumeId(id), base: 0, blocks, seed }
    }

    fn added(ranges: &mut Ranges, id: u16, blocks: u64) -> u64 {
        ranges.add(space(id, blocks), 1000).expect("there is room").base
    }

    #[test]
    fn addresses_are_those_of_known_volumes_up_to_their_ends() {
        let spaces = [space(1, 100), VolumeSpace { base: 100, ..space(4, 50) }];
        let address = |volume, block| {
            let found = address_in(&spaces, VolumeId(volume), OriginBlock(block));
            found.map(|(space, address)| (space.id.0, address.0))
        };
        assert_eq!(
            (address(1, 0), address(1, 99), address(1, 100)),
            (Some((1, 0)), Some((1, 99)), None)
        );
        assert_eq!((address(4, 49), address(4, 50), address(2, 0)), (Some((4, 149)), None, None));
    }

    #[test]
    fn a_range_is_given_again_once_nothing_uses_it() {
        let mut ranges = Ranges::default();
        assert_eq!([1, 2, 3].map(|id| added(&mut ranges, id, 100)), [0, 100, 200]);
        let used = ranges.use_of(VolumeId(2)).expect("a volume");
        ranges.leave(VolumeId(1), true);
        ranges.leave(VolumeId(2), false);
        assert!(ranges.free().is_none(), "2 is used");
        assert_eq!(added(&mut ranges, 4, 101), 300, "2 may still have blocks");
        assert_eq!(added(&mut ranges, 5, 60), 0);
        drop(used);
        let gone = ranges.free().expect("2 has to be purged");
        assert_eq!(gone.id, VolumeId(2));
        assert_eq!(added(&mut ranges, 6, 101), 401, "not yet");
        ranges.purged(&gone);
        assert!(ranges.free().is_none());
        assert_eq!(added(&mut ranges, 7, 140), 60, "gaps are joined");
        assert_eq!(ranges.add(space(8, 499), 1000), Err(NoRoom(1001)));
        assert_eq!(ranges.add(space(8, u64::MAX), 1000), Err(NoRoom(u64::MAX)));
    }

    #[test]
    fn the_smallest_gap_is_used_first() {
        let mut ranges = Ranges::default();
        for (id, blocks) in [(1, 50), (2, 10), (3, 30), (4, 10), (5, 40), (6, 10)] {
            added(&mut ranges, id, blocks);
        }
        for id in [1, 3, 5] {
            ranges.leave(VolumeId(id), true);
        }
        assert_eq!(ranges.free(), None);
        assert_eq!(added(&mut ranges, 7, 25), 60);
        assert_eq!(added(&mut ranges, 8, 25), 100);
        assert_eq!(added(&mut ranges, 9, 25), 0);
        assert_eq!(added(&mut ranges, 10, 25), 25);
        assert_eq!(added(&mut ranges, 11, 25), 150);
    }

    #[test]
    fn a_volume_grows_where_it_is_or_moves() {
        let mut ranges = Ranges::default();
        assert_eq!([1, 2].map(|id| added(&mut ranges, id, 100)), [0, 100]);
        let grown = |grown: Result<Option<VolumeSpace>, NotHere>| {
            grown.map(|it| it.map(|it| (it.base, it.blocks)))
        };
        assert_eq!(grown(ranges.extend(VolumeId(2), 150, 1000)), Ok(Some((100, 150))));
        assert_eq!(
            grown(ranges.extend(VolumeId(2), 901, 1000)),
            Err(NotHere::NoRoom(NoRoom(1001)))
        );
        assert_eq!(grown(ranges.extend(VolumeId(1), 101, 1000)), Err(NotHere::Taken));
        assert_eq!(grown(ranges.extend(VolumeId(9), 1, 1000)), Ok(None));
        let to = ranges.begin_move(space(1, 200), 1000).expect("there is room");
        assert_eq!((to.base, ranges.of(VolumeId(1)).map(|it| it.base)), (250, Some(0)));
        assert_eq!(ranges.all().len(), 3);
        assert_eq!(added(&mut ranges, 3, 10), 450, "both are taken");
        ranges.end_move(&to);
        assert_eq!((ranges.all().len(), ranges.of(VolumeId(1)).map(|it| it.base)), (3, Some(250)));
        assert_eq!(added(&mut ranges, 4, 100), 0);
    }

    /// No two volumes ever have an address in common, and no returned address is lost.
    #[test]
    fn ranges_never_overlap() {
        let mut random = fastrand::Rng::with_seed(5);
        let (mut ranges, mut ids, mut uses) = (Ranges::default(), Vec::new(), Vec::new());
        for step in 0..5000u16 {
            match random.u32(..5) {
                0 | 1 => {
                    if let Ok(space) = ranges.add(space(step, random.u64(1..200)), 2000) {
                        ids.push(space.id);
                    }
                }
                2 if !ids.is_empty() => {
                    let id = ids.swap_remove(random.usize(..ids.len()));
                    uses.extend(ranges.use_of(id).filter(|_| random.bool()));
                    ranges.leave(id, !ranges.is_used(id));
                }
                3 if !ids.is_empty() => {
                    let id = ids[random.usize(..ids.len())];
                    let blocks = ranges.of(id).expect("there").blocks + random.u64(..50);
                    if let Err(NotHere::Taken) = ranges.extend(id, blocks, 2000)
                        && let Ok(to) = ranges.begin_move(space(id.0, blocks), 2000)
                    {
                        ranges.end_move(&to);
                    }
                }
                _ => {
                    if !uses.is_empty() {
                        uses.swap_remove(random.usize(..uses.len()));
                    }
                    while let Some(gone) = ranges.free() {
                        ranges.purged(&gone);
                    }
                }
            }
            let sorted = ranges.sorted();
            assert!(sorted.windows(2).all(|it| it[0].1 <= it[1].0), "{sorted:?}");
            assert!(sorted.last().is_none_or(|last| last.1 <= 2000));
        }
        ids.drain(..).for_each(|id| ranges.leave(id, true));
        uses.clear();
        while let Some(gone) = ranges.free() {
            ranges.purged(&gone);
        }
        assert_eq!(ranges.place(2000, 2000), Ok(0), "all is free");
    }
}
