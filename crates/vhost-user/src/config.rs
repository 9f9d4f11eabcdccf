//! The configuration space, in which the guest reads the properties of the device.

use forebay_core::Sectors;

/// Most data segments of a request that a driver may use.
pub const SEGMENTS_MAX: u32 = 126;

/// Most bytes of a segment that a driver may use: with all segments, a request is within
/// [`REQUEST_MAX`].
pub const SEGMENT_BYTES_MAX: u32 = 256 << 10;

/// Most data of one request, in bytes.
pub const REQUEST_MAX: u64 = 32 << 20;

/// Most bytes of one discard or write-zeroes request.
pub const ZEROED_MAX: u64 = 1 << 30;

/// Most queues. Guests use one for each of their CPUs.
pub const QUEUES_MAX: u16 = 64;

/// Bytes in a sector, the unit of addresses.
pub const SECTOR: u64 = 512;

/// Place of the write-cache byte in the configuration space.
pub const WRITE_CACHE_AT: u32 = 32;

/// Bytes of the configuration space.
pub const CONFIG_BYTES: usize = 60;

/// Properties of the device that the guest reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceConfig {
    /// Size in bytes.
    pub size: u64,
    /// The sizes in which the volume is addressed and works best.
    pub sectors: Sectors,
    /// Bytes of a cache block: the best size of requests, unless the disk below reports one.
    pub preferred: u64,
    /// Whether the write cache is on.
    pub write_cache: bool,
}

impl DeviceConfig {
    /// Returns the configuration space.
    pub fn to_bytes(self) -> [u8; CONFIG_BYTES] {
        let mut bytes = [0; CONFIG_BYTES];
        let mut put = |at: usize, value: &[u8]| {
            if let Some(place) = bytes.get_mut(at..at + value.len()) {
                place.copy_from_slice(value);
            }
        };
        let sectors = |len: u64| u32::try_from(len / SECTOR).unwrap_or(u32::MAX).to_le_bytes();
        let Sectors { logical, physical, io_min, io_opt } = self.sectors;
        let logical = logical.max(SECTOR as u32);
        let exponent = (physical / logical).checked_ilog2().unwrap_or(0);
        let preferred = self.preferred.max(SECTOR);
        let best = if io_opt > 0 { io_opt } else { u32::try_from(preferred).unwrap_or(u32::MAX) };
        put(0, &(self.size / SECTOR).to_le_bytes());
        put(8, &SEGMENT_BYTES_MAX.to_le_bytes());
        put(12, &SEGMENTS_MAX.to_le_bytes());
        put(20, &logical.to_le_bytes());
        // Topology: physical block as a power of two of logical blocks, alignment offset 0, then
        // the smallest and the best request in logical blocks.
        put(24, &[exponent as u8, 0]);
        put(26, &u16::try_from(io_min / logical).unwrap_or(u16::MAX).to_le_bytes());
        put(28, &(best / logical).to_le_bytes());
        put(WRITE_CACHE_AT as usize, &[u8::from(self.write_cache)]);
        put(34, &QUEUES_MAX.to_le_bytes());
        // Discards: most sectors, most segments, alignment. Write-zeroes: most sectors, most
        // segments, whether they may deallocate.
        put(36, &sectors(ZEROED_MAX));
        put(40, &1_u32.to_le_bytes());
        put(44, &sectors(preferred));
        put(48, &sectors(ZEROED_MAX));
        put(52, &1_u32.to_le_bytes());
        put(56, &[1]);
        bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_guest_looks() {
        let sectors = Sectors::told(512, 4096, 4096, 0);
        let (size, preferred) = ((3 << 40) + 512, 16_384);
        let config = DeviceConfig { size, sectors, preferred, write_cache: true };
        let bytes = config.to_bytes();
        assert_eq!(bytes[..8], (((3_u64 << 40) + 512) / 512).to_le_bytes());
        assert_eq!(bytes[24], 3);
        assert_eq!(bytes[26..28], 8_u16.to_le_bytes());
        assert_eq!(bytes[28..32], 32_u32.to_le_bytes(), "a block of the cache");
        assert_eq!(bytes[32], 1);
        assert_eq!(bytes[34..36], QUEUES_MAX.to_le_bytes());
        assert_eq!(bytes[36..40], (2_u32 << 20).to_le_bytes());
        assert_eq!(bytes[56], 1);
        assert!(u64::from(SEGMENTS_MAX) * u64::from(SEGMENT_BYTES_MAX) <= REQUEST_MAX);
    }

    #[test]
    fn sizes_of_the_disk_are_given_in_its_logical_blocks() {
        let of = |sectors| {
            let config =
                DeviceConfig { size: 1 << 30, sectors, preferred: 4096, write_cache: true };
            let bytes = config.to_bytes();
            let least = u16::from_le_bytes([bytes[26], bytes[27]]);
            (
                u32::from_le_bytes(bytes[20..24].try_into().expect("four")),
                bytes[24],
                least,
                bytes[28],
            )
        };
        assert_eq!(of(Sectors::of(512)), (512, 0, 1, 8));
        assert_eq!(of(Sectors::told(512, 4096, 4096, 0)), (512, 3, 8, 8));
        assert_eq!(of(Sectors::of(4096)), (4096, 0, 1, 1));
        assert_eq!(of(Sectors::told(4096, 4096, 65_536, 196_608)), (4096, 0, 16, 48));
    }
}
