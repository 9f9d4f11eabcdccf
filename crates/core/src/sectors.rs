//! The sizes in which a disk is addressed and works best.

use crate::units::SECTOR_SIZE;

/// Sizes of a disk in bytes, as partition tables, filesystems and databases rely on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sectors {
    /// The unit of addresses: 512 or 4096.
    pub logical: u32,
    /// The unit that the disk writes without reading first: a power of two, at least `logical`.
    pub physical: u32,
    /// The smallest request that the disk serves well: a multiple of `logical`.
    pub io_min: u32,
    /// The best size of requests, such as a stripe: a multiple of `logical`; 0: no size is better
    /// than another.
    pub io_opt: u32,
}

impl Sectors {
    /// The sizes of old disks, and of disks that report none.
    pub const SMALL: Sectors = Sectors::of(SECTOR_SIZE as u32);

    /// Returns the sizes of a disk about which no more is known than its logical sectors.
    pub const fn of(logical: u32) -> Self {
        Sectors { logical, physical: logical, io_min: logical, io_opt: 0 }
    }

    /// Returns the sizes that a disk reports, with impossible ones corrected.
    #[must_use]
    pub fn told(logical: u32, physical: u32, io_min: u32, io_opt: u32) -> Self {
        let whole = |size: u32| size - size % logical.max(1);
        let physical = if physical.is_power_of_two() { physical.max(logical) } else { logical };
        Sectors { logical, physical, io_min: whole(io_min).max(physical), io_opt: whole(io_opt) }
    }

    /// Returns the same disk with other logical sectors.
    #[must_use]
    pub fn with_logical(self, logical: u32) -> Self {
        Sectors::told(logical, self.physical, self.io_min, self.io_opt)
    }
}

impl Default for Sectors {
    fn default() -> Self {
        Sectors::SMALL
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_logical_sectors_leave_the_rest_possible() {
        let raid = Sectors::told(512, 4096, 65_536, 196_608);
        assert_eq!(raid.with_logical(4096), Sectors { logical: 4096, ..raid });
        assert_eq!(Sectors::of(512).with_logical(4096), Sectors::of(4096));
        let large = Sectors::of(4096).with_logical(512);
        assert_eq!(large, Sectors { logical: 512, ..Sectors::of(4096) });
    }

    #[test]
    fn impossible_sizes_are_corrected() {
        assert_eq!(Sectors::told(4096, 512, 0, 512), Sectors::of(4096));
        assert_eq!(Sectors::told(512, 3000, 700, 1000).io_opt, 512);
        assert_eq!(Sectors::told(512, 0, 0, u32::MAX).io_opt % 512, 0);
        assert_eq!(Sectors::told(0, 0, 0, 5).io_opt, 5, "no division by zero");
    }
}
