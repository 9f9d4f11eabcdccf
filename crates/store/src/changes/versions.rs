//! Versions of blocks in the log, by shard of the index.

use std::alloc::{Layout, handle_alloc_error};
use std::mem::size_of;

use forebay_core::{RecordNumber, Slot};
use forebay_device::Area;
use forebay_device::hint::{Spot, fetch_to_write};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::index::Address;
use crate::table::{Check, Entry, RANK_UNKNOWN};

/// A version of a block in the log. Packed, because a log has many versions.
#[derive(Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable)]
#[repr(C)]
pub(crate) struct LoggedVersion {
    address: u64,
    sequence: u64,
    record: u64,
    slot: u32,
    /// The payload's check in 28 bits, and the flags below.
    state: u32,
}

const DIRTY: u32 = 1 << 31;
const PARTIAL: u32 = 1 << 30;
const DROPPED: u32 = 1 << 29;

const _: () = assert!(size_of::<LoggedVersion>() == 32);

impl LoggedVersion {
    /// Bits of a payload's check that are kept.
    pub(crate) const CHECK_BITS: u32 = 28;

    /// Packs a version with its sequence and the number of its record. Its rank is not kept.
    pub(super) fn new(
        address: Address,
        (sequence, record): (u64, RecordNumber),
        entry: &Entry,
    ) -> Self {
        let flag = |flag, is_set| if is_set { flag } else { 0 };
        let state = entry.check.to_28() | flag(DIRTY, entry.dirty) | flag(PARTIAL, entry.partial);
        LoggedVersion { address: address.0, sequence, record: record.0, slot: entry.slot.0, state }
    }

    pub(crate) fn address(&self) -> Address {
        Address(self.address)
    }

    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    pub(super) fn record(&self) -> RecordNumber {
        RecordNumber(self.record)
    }

    pub(crate) fn slot(&self) -> Slot {
        Slot(self.slot)
    }

    pub(super) fn is_partial(&self) -> bool {
        self.state & PARTIAL != 0
    }

    pub(crate) fn entry(&self) -> Entry {
        Entry {
            slot: self.slot(),
            dirty: self.state & DIRTY != 0,
            partial: self.is_partial(),
            rank: RANK_UNKNOWN,
            check: Check::from_28(self.state),
        }
    }
}

/// Versions in a chunk: a page of them, because only whole pages can be given back to the system.
const CHUNK: usize = 4096 / size_of::<LoggedVersion>();
/// Chunks in an area of 1 MiB. Less than a huge page, which may take longer to be found and zeroed
/// than the log to be read: 2 ns a byte in a virtual machine that gives unused memory back to its
/// host.
const IN_AREA: usize = (1 << 20) / (CHUNK * size_of::<LoggedVersion>());

/// Upper limit of the number of lists: with more, the CPU would wait for address translations.
const MOST_LISTS: u32 = 1024;

/// Lists of versions, each of one shard or of a few, in memory that is taken as it is needed.
#[derive(Default)]
pub(super) struct Versions {
    /// Memory for chunks.
    areas: Vec<Area>,
    /// Chunks that were ever in use; chunks from this number on are untouched.
    used: usize,
    /// Free list: chunks below `used` that hold no version.
    free: Vec<u32>,
    lists: Box<[VersionList]>,
    /// Number of low bits of a shard's number that its list ignores.
    shift: u32,
}

#[derive(Clone, Default)]
struct VersionList {
    len: usize,
    /// The last chunk.
    tail: usize,
    chunks: Vec<u32>,
}

/// Returns the area of a chunk, and the first of its versions there.
fn place(chunk: usize) -> (usize, usize) {
    (chunk / IN_AREA, chunk % IN_AREA * CHUNK)
}

impl Versions {
    pub(super) fn new(shards: u32) -> Self {
        let last = shards.saturating_sub(1);
        let shift = (0..32).find(|shift| last >> shift < MOST_LISTS).unwrap_or_default();
        let lists = vec![VersionList::default(); (last >> shift) as usize + 1].into();
        Versions { lists, shift, ..Default::default() }
    }

    /// Returns the number of lists.
    pub(super) fn count(&self) -> usize {
        self.lists.len()
    }

    /// Returns the list with the versions of a shard.
    pub(super) fn list_of(&self, shard: u32) -> usize {
        (shard >> self.shift) as usize
    }

    /// Prefetches the list of a shard to which a version will soon be added.
    pub(super) fn expect(&self, shard: u32) {
        let list = &self.lists[self.list_of(shard)];
        let within = list.len % CHUNK;
        if within > 0 {
            let (area, first) = place(list.tail);
            let bytes = (first + within) * size_of::<LoggedVersion>();
            fetch_to_write(Spot::of(&self.areas[area][..]).plus(bytes));
        }
    }

    /// Adds a version. If there is no memory for it, the process ends, as for any allocation.
    pub(super) fn push(&mut self, shard: u32, version: LoggedVersion) {
        self.push_to(self.list_of(shard), version);
    }

    fn push_to(&mut self, list: usize, version: LoggedVersion) {
        let within = self.lists[list].len % CHUNK;
        if within == 0 {
            let chunk = self.chunk();
            self.lists[list].tail = chunk as usize;
            self.lists[list].chunks.push(chunk);
        }
        self.lists[list].len += 1;
        let (area, first) = place(self.lists[list].tail);
        versions_in(&mut self.areas[area])[first + within] = version;
    }

    /// Returns a chunk to use.
    fn chunk(&mut self) -> u32 {
        if let Some(chunk) = self.free.pop() {
            return chunk;
        }
        if self.used == self.areas.len() * IN_AREA {
            let area = Area::new(IN_AREA * CHUNK * size_of::<LoggedVersion>());
            let failed = |_| handle_alloc_error(Layout::new::<[LoggedVersion; CHUNK]>());
            let mut area = area.unwrap_or_else(failed);
            area.populate();
            self.areas.push(area);
        }
        self.used += 1;
        (self.used - 1) as u32
    }

    /// Adds all versions in the lists of another set, which is for the same shards. Only chunks
    /// that are not full are copied.
    pub(super) fn absorb(&mut self, mut other: Self) {
        let end = self.areas.len() * IN_AREA;
        self.free.extend(self.used as u32..end as u32);
        let here = |chunk: u32| chunk + end as u32;
        self.free.extend(other.free.drain(..).map(here));
        self.used = end + other.used;
        self.areas.append(&mut other.areas);
        for (number, more) in other.lists.iter().enumerate() {
            let list = &mut self.lists[number];
            // Append behind the full chunks.
            let at = list.len / CHUNK;
            let full = more.len / CHUNK;
            list.chunks.splice(at..at, more.chunks[..full].iter().copied().map(here));
            list.len += full * CHUNK;
            if let Some(tail) = more.chunks.get(full).copied().map(here) {
                let (area, first) = place(tail as usize);
                for within in 0..more.len % CHUNK {
                    let version = versions_in(&mut self.areas[area])[first + within];
                    self.push_to(number, version);
                }
                self.free.push(tail);
            }
        }
    }

    /// Returns the memory of chunks that are not in use to the system.
    pub(super) fn release_unused(&mut self) {
        let end = self.areas.len() * IN_AREA;
        self.free.extend(self.used as u32..end as u32);
        self.used = end;
        self.free.sort_unstable();
        let adjoin =
            |one: &u32, next: &u32| one + 1 == *next && !(*next as usize).is_multiple_of(IN_AREA);
        for run in self.free.chunk_by(adjoin) {
            let (area, first) = place(run[0] as usize);
            let first = first * size_of::<LoggedVersion>();
            let bytes = run.len() * CHUNK * size_of::<LoggedVersion>();
            self.areas[area].release(first..first + bytes);
        }
    }

    /// Returns the versions in a list, oldest first in the order of adding.
    pub(super) fn of_list(&self, list: usize) -> impl Iterator<Item = &LoggedVersion> {
        let list = &self.lists[list];
        let chunks = list.chunks.iter().flat_map(|chunk| {
            let (area, first) = place(*chunk as usize);
            // An area begins with a page, so this cannot fail.
            let all = <[LoggedVersion]>::ref_from_bytes(&self.areas[area]).unwrap_or_default();
            &all[first..first + CHUNK]
        });
        chunks.take(list.len).filter(|version| version.state & DROPPED == 0)
    }

    /// Drops the versions in a list for which `unwanted` returns `true`.
    pub(super) fn drop_from(&mut self, list: usize, unwanted: impl Fn(&LoggedVersion) -> bool) {
        let list = &self.lists[list];
        let mut left = list.len;
        for chunk in &list.chunks {
            let (area, first) = place(*chunk as usize);
            let chunk = &mut versions_in(&mut self.areas[area])[first..first + CHUNK.min(left)];
            let unwanted = chunk.iter_mut().filter(|version| unwanted(version));
            unwanted.for_each(|version| version.state |= DROPPED);
            left -= chunk.len();
        }
    }

    /// Returns the bytes of memory for one version in each list.
    pub(super) fn first_bytes(&self) -> u64 {
        (self.lists.len() * CHUNK * size_of::<LoggedVersion>()) as u64
    }

    /// Returns the bytes of memory of all versions.
    pub(super) fn bytes(&self) -> usize {
        (self.used - self.free.len()) * CHUNK * size_of::<LoggedVersion>()
    }
}

fn versions_in(area: &mut Area) -> &mut [LoggedVersion] {
    // An area begins with a page, so this cannot fail.
    <[LoggedVersion]>::mut_from_bytes(area).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shards_have_lists_of_their_own_if_they_are_few() {
        for (shards, lists, last) in [(1, 1, 0), (3, 3, 2), (1024, 1024, 1023), (1025, 513, 512)] {
            let versions = Versions::new(shards);
            assert_eq!((versions.count(), versions.list_of(shards - 1)), (lists, last));
        }
    }

    #[test]
    fn lists_keep_versions_in_order_without_dropped_ones() {
        let mut versions = Versions::new(3);
        let entry = |slot: u32| Entry {
            slot: Slot(slot),
            dirty: slot.is_multiple_of(2),
            partial: slot.is_multiple_of(3),
            rank: RANK_UNKNOWN,
            check: Check::new(slot << 4),
        };
        let count = (3 * IN_AREA * CHUNK) as u32;
        for slot in 0..count {
            versions.expect(slot % 2);
            let version =
                LoggedVersion::new(Address(7), (u64::from(slot), RecordNumber(9)), &entry(slot));
            versions.push(slot % 2, version);
        }
        assert_eq!(versions.areas.len(), 3);
        assert_eq!(versions.bytes(), count as usize * size_of::<LoggedVersion>());
        let of_list = |versions: &Versions, list| {
            let all = versions.of_list(list);
            all.map(|version| {
                assert_eq!((version.address(), version.record()), (Address(7), RecordNumber(9)));
                assert_eq!(version.entry(), entry(version.slot().0));
                version.sequence()
            })
            .collect::<Vec<_>>()
        };
        for shard in 0..3 {
            let wanted = (0..u64::from(count)).filter(|slot| slot % 2 == shard as u64);
            assert!(of_list(&versions, shard).into_iter().eq(wanted), "{shard}");
        }
        assert_eq!(versions.bytes(), count as usize * size_of::<LoggedVersion>());
        versions.push(2, LoggedVersion::new(Address(7), (5, RecordNumber(9)), &entry(5)));
        let last = u64::from(count) - 1;
        for shard in 0..3 {
            versions.drop_from(shard, |version| version.sequence() != last);
        }
        assert_eq!([0, 1, 2].map(|shard| of_list(&versions, shard)), [vec![], vec![last], vec![]]);
    }

    #[test]
    fn the_lists_of_another_set_are_added_to_these() {
        let entry = Entry {
            slot: Slot(1),
            dirty: true,
            partial: false,
            rank: RANK_UNKNOWN,
            check: Check::new(0),
        };
        let of = |numbers: [std::ops::Range<usize>; 3]| {
            let mut versions = Versions::new(3);
            for (shard, numbers) in numbers.into_iter().enumerate() {
                for number in numbers {
                    let order = (number as u64, RecordNumber(1));
                    versions.push(shard as u32, LoggedVersion::new(Address(7), order, &entry));
                }
            }
            versions
        };
        let mut whole = Versions::new(3);
        // Number of versions: none, full chunks, chunks that are not full, and more than an area.
        let (all, half) = (2 * IN_AREA * CHUNK + 3, CHUNK / 2);
        whole.absorb(of([0..0, 0..CHUNK, 0..half]));
        whole.absorb(of([0..1, CHUNK..all, half..CHUNK + 1]));
        whole.absorb(of([1..half, 0..0, CHUNK + 1..all]));
        whole.absorb(Versions::new(3));
        let sequences = |versions: &Versions, list| {
            let mut found: Vec<u64> = versions.of_list(list).map(LoggedVersion::sequence).collect();
            found.sort_unstable();
            found
        };
        let wanted = [half, all, all].map(|end| (0..end as u64).collect::<Vec<_>>());
        assert_eq!([0, 1, 2].map(|list| sequences(&whole, list)), wanted);
        let chunks = [half, all, all].map(|count| count.div_ceil(CHUNK)).iter().sum::<usize>();
        assert_eq!(whole.bytes(), chunks * CHUNK * size_of::<LoggedVersion>());
        whole.release_unused();
        assert_eq!(whole.bytes(), chunks * CHUNK * size_of::<LoggedVersion>());
        assert_eq!([0, 1, 2].map(|list| sequences(&whole, list)), wanted);
        let kept: Vec<&[u8]> = whole
            .free
            .iter()
            .map(|chunk| {
                let (area, first) = place(*chunk as usize);
                let first = first * size_of::<LoggedVersion>();
                &whole.areas[area][first..first + CHUNK * size_of::<LoggedVersion>()]
            })
            .collect();
        assert!(!kept.is_empty() && kept.iter().all(|bytes| bytes.iter().all(|byte| *byte == 0)));
    }
}
