//! The client's memory: shared regions, found by guest addresses, which descriptors contain, or by
//! client addresses, which locate the queues.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_device::{Outside, SharedMemory};

/// Most regions of one client.
pub const REGIONS_MAX: usize = 32;

/// Limit for a client's shared memory, as a multiple of the machine's memory and swap space. No
/// guest has more; a sparse file could claim any size, and the daemon would map it.
const OVERCOMMIT: u64 = 4;

/// Returns the most bytes that one client may share.
fn most() -> u64 {
    let found = rustix::system::sysinfo();
    // Their types depend on the architecture.
    #[allow(clippy::unnecessary_cast, clippy::useless_conversion)]
    let (ram, swap) = (found.totalram as u64, found.totalswap as u64);
    ram.saturating_add(swap).saturating_mul(u64::from(found.mem_unit)).saturating_mul(OVERCOMMIT)
}

/// A physical address of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GuestAddress(pub u64);

/// An address in the client's own address space.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientAddress(pub u64);

/// The place of a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionPlace {
    /// The first byte, as the guest addresses it.
    pub guest: GuestAddress,
    /// The length in bytes.
    pub size: u64,
    /// The first byte, as the client addresses it.
    pub client: ClientAddress,
    /// Offset of the first byte in the file.
    pub file_offset: u64,
}

/// Why a region is refused.
#[derive(Debug, thiserror::Error)]
pub enum RegionError {
    /// The region is empty, or ends beyond the last address.
    #[error("a region of memory is empty or ends beyond the last address")]
    Range,
    /// The region overlaps another one.
    #[error("a region of memory overlaps another one")]
    Overlap,
    /// The client has too many regions.
    #[error("there are more than {REGIONS_MAX} regions of memory")]
    TooMany,
    /// The client shares more than the machine has.
    #[error(
        "the regions of memory have more than {0} bytes, four times the memory and swap space of this machine"
    )]
    TooMuch(u64),
    /// The region does not exist.
    #[error("there is no such region of memory to remove")]
    Unknown,
    /// The region cannot be mapped.
    #[error("a region of memory cannot be mapped: {0}")]
    Map(#[from] std::io::Error),
}

/// An access to memory that the client does not share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{len} bytes at {at:#x} are not in the memory that the client shares")]
pub struct OutOfMemory {
    /// First byte, as an address of the guest or the client.
    pub at: u64,
    /// Length in bytes.
    pub len: u64,
}

#[derive(Debug)]
struct Region {
    place: RegionPlace,
    memory: SharedMemory,
}

/// The memory that a client shares. Each change creates a new value; users of the old value keep
/// its mappings until they drop it.
#[derive(Clone, Debug, Default)]
pub struct GuestMemory {
    /// In the order of guest addresses, without overlaps.
    regions: Vec<Arc<Region>>,
}

impl GuestMemory {
    /// Maps one more region.
    ///
    /// # Errors
    /// See [`RegionError`]; nothing has changed then.
    pub fn add(&mut self, place: RegionPlace, file: impl AsFd) -> Result<(), RegionError> {
        let RegionPlace { guest, size, client, file_offset } = place;
        let guest_end = guest.0.checked_add(size);
        let (Some(end), Some(_), true) = (guest_end, client.0.checked_add(size), size > 0) else {
            return Err(RegionError::Range);
        };
        if self.regions.len() >= REGIONS_MAX {
            return Err(RegionError::TooMany);
        }
        let apart = |region: &Arc<Region>| {
            let other = region.place;
            end <= other.guest.0 || other.guest.0 + other.size <= guest.0
        };
        if !self.regions.iter().all(apart) {
            return Err(RegionError::Overlap);
        }
        let shared = self.regions.iter().map(|region| region.place.size);
        let shared = shared.fold(size, u64::saturating_add);
        let most = most();
        if shared > most {
            return Err(RegionError::TooMuch(most));
        }
        let memory = SharedMemory::map(file, file_offset, size)?;
        let index = self.regions.partition_point(|region| region.place.guest < guest);
        self.regions.insert(index, Arc::new(Region { place, memory }));
        Ok(())
    }

    /// Removes the region with these addresses and this size.
    ///
    /// # Errors
    /// [`RegionError::Unknown`].
    pub fn remove(&mut self, place: RegionPlace) -> Result<(), RegionError> {
        let same = |region: &Arc<Region>| {
            let own = region.place;
            (own.guest, own.client, own.size) == (place.guest, place.client, place.size)
        };
        let index = self.regions.iter().position(same).ok_or(RegionError::Unknown)?;
        self.regions.remove(index);
        Ok(())
    }

    /// Returns whether every file behind the memory still has its size.
    pub fn is_intact(&self) -> bool {
        self.regions.iter().all(|region| region.memory.is_intact())
    }

    /// Calls `each` with the parts of a range: the memory, the position in it, and the range of the
    /// caller's buffer.
    #[inline]
    fn parts(
        &self,
        at: GuestAddress,
        len: usize,
        mut each: impl FnMut(&SharedMemory, u64, std::ops::Range<usize>) -> Result<(), Outside>,
    ) -> Result<(), OutOfMemory> {
        let missing = OutOfMemory { at: at.0, len: len as u64 };
        let end = at.0.checked_add(len as u64).ok_or(missing)?;
        let mut done = 0;
        while done < len {
            let next = at.0 + done as u64;
            let after = self.regions.partition_point(|region| region.place.guest.0 <= next);
            let region = after.checked_sub(1).and_then(|index| self.regions.get(index));
            let region = region.ok_or(missing)?;
            let start = next - region.place.guest.0;
            if start >= region.place.size {
                return Err(missing);
            }
            let step = (region.place.size - start).min(end - next) as usize;
            each(&region.memory, start, done..done + step).map_err(|_| missing)?;
            done += step;
        }
        Ok(())
    }

    /// Returns whether a range is in the memory.
    ///
    /// # Errors
    /// The range is not in the memory.
    #[inline]
    pub fn check(&self, at: GuestAddress, len: usize) -> Result<(), OutOfMemory> {
        self.parts(at, len, |_, _, _| Ok(()))
    }

    /// Copies bytes out of the memory.
    ///
    /// # Errors
    /// The range is not in the memory; a part may have been copied.
    #[inline]
    pub fn read(&self, at: GuestAddress, into: &mut [u8]) -> Result<(), OutOfMemory> {
        let len = into.len();
        self.parts(at, len, |memory, start, range| match into.get_mut(range) {
            Some(part) => memory.read(start, part),
            None => Ok(()),
        })
    }

    /// Copies bytes into the memory.
    ///
    /// # Errors
    /// The range is not in the memory; a part may have been copied.
    #[inline]
    pub fn write(&self, at: GuestAddress, from: &[u8]) -> Result<(), OutOfMemory> {
        self.parts(at, from.len(), |memory, start, range| match from.get(range) {
            Some(part) => memory.write(start, part),
            None => Ok(()),
        })
    }

    /// Returns a window on a range inside one region, found by the client's address.
    ///
    /// # Errors
    /// No region contains the whole range.
    pub fn window(&self, at: ClientAddress, len: u64) -> Result<Window, OutOfMemory> {
        let holds = |region: &&Arc<Region>| {
            let start = at.0.checked_sub(region.place.client.0);
            start
                .and_then(|start| start.checked_add(len))
                .is_some_and(|end| end <= region.place.size)
        };
        let region = self.regions.iter().find(holds);
        let region = region.ok_or(OutOfMemory { at: at.0, len })?.clone();
        let start = at.0 - region.place.client.0;
        Ok(Window { region, start, len })
    }

    /// Returns a window on a range inside one region, found by the guest's address.
    ///
    /// # Errors
    /// No region contains the whole range.
    pub fn guest_window(&self, at: GuestAddress, len: u64) -> Result<Window, OutOfMemory> {
        let holds = |region: &&Arc<Region>| {
            let start = at.0.checked_sub(region.place.guest.0);
            start
                .and_then(|start| start.checked_add(len))
                .is_some_and(|end| end <= region.place.size)
        };
        let region = self.regions.iter().find(holds);
        let region = region.ok_or(OutOfMemory { at: at.0, len })?.clone();
        let start = at.0 - region.place.guest.0;
        Ok(Window { region, start, len })
    }
}

/// A range inside one region. Positions are relative to its start; accesses outside of it fail.
#[derive(Clone, Debug)]
pub struct Window {
    region: Arc<Region>,
    start: u64,
    len: u64,
}

impl Window {
    #[inline]
    fn at(&self, at: u64, len: u64) -> Result<u64, Outside> {
        match at.checked_add(len) {
            Some(end) if end <= self.len => Ok(self.start + at),
            _ => Err(Outside { at, len }),
        }
    }

    /// Copies bytes out.
    ///
    /// # Errors
    /// The range is not inside.
    #[inline]
    pub fn read(&self, at: u64, into: &mut [u8]) -> Result<(), Outside> {
        self.region.memory.read(self.at(at, into.len() as u64)?, into)
    }

    /// Copies bytes in.
    ///
    /// # Errors
    /// The range is not inside.
    #[inline]
    pub fn write(&self, at: u64, from: &[u8]) -> Result<(), Outside> {
        self.region.memory.write(self.at(at, from.len() as u64)?, from)
    }

    /// Loads a little-endian field.
    ///
    /// # Errors
    /// The position is outside of the window or not aligned.
    #[inline]
    pub fn load(&self, at: u64, order: Ordering) -> Result<u16, Outside> {
        self.region.memory.load_u16(self.at(at, 2)?, order).map(u16::from_le)
    }

    /// Stores a little-endian field.
    ///
    /// # Errors
    /// The position is outside of the window or not aligned.
    #[inline]
    pub fn store(&self, at: u64, value: u16, order: Ordering) -> Result<(), Outside> {
        self.region.memory.store_u16(self.at(at, 2)?, value.to_le(), order)
    }
}
