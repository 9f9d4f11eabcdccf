//! dm-cache with the smq policy: blocks of 256 KiB, as in the published comparison, and its
//! metadata on the fast device too.

use super::disk::Disk;
use super::dm;
use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::{LabResult, other};
use crate::process::STEP_LIMIT;

/// Sectors of a cached block.
const BLOCK: u64 = 512;
const MIB: u64 = 2048;
/// The word of the status that counts dirty blocks.
const DIRTY: usize = 10;

#[derive(Default)]
pub(crate) struct DmCache {
    mode: Option<Mode>,
}

/// The line of the cache itself.
fn table(origin: &Disk, mode: Mode, policy: &str) -> String {
    let (sectors, origin, mode) = (origin.sectors(), origin.name(), mode.name());
    let (meta, data) = (format!("{}meta", dm::PREFIX), format!("{}data", dm::PREFIX));
    format!(
        "{sectors} cache /dev/mapper/{meta} /dev/mapper/{data} {origin} {BLOCK} 2 metadata2 {mode} {policy} 0"
    )
}

/// Sectors that the metadata takes: 4 MiB and 16 bytes for each block, as the kernel's
/// documentation says, and then some.
fn metadata_sectors(ssd_sectors: u64) -> u64 {
    (4 * MIB + ssd_sectors / BLOCK * 16 / 512).next_multiple_of(MIB).max(8 * MIB)
}

impl System for DmCache {
    fn modes(&self) -> &'static [Mode] {
        &[Mode::Writethrough, Mode::Writeback]
    }

    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        dm::available(ground, "dm_cache_smq", "cache")
    }

    fn set_up(&mut self, mode: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let ssd = ground.ssd.name();
        let meta = metadata_sectors(ground.ssd.sectors());
        let data = (ground.ssd.sectors().saturating_sub(meta)) / BLOCK * BLOCK;
        if data == 0 {
            return Err(other(format!("{ssd} is too small for dm-cache")));
        }
        // A first block of zeroes says that there are no metadata yet; the device was wiped.
        dm::create("meta", &format!("{meta} linear {ssd} 0"), undo)?;
        dm::create("data", &format!("{data} linear {ssd} {meta}"), undo)?;
        self.mode = Some(mode);
        dm::create("cache", &table(&ground.hdd, mode, "smq"), undo).map(Front::Block)
    }

    fn drain(&mut self, ground: &Ground) -> LabResult<()> {
        let Some(mode) = self.mode else { return Ok(()) };
        dm::reload("cache", &table(&ground.hdd, mode, "cleaner"))?;
        ground.stop.wait("dm-cache's writeback", STEP_LIMIT * 10, || {
            Ok(dm::number(&dm::status("cache")?, DIRTY)? == 0)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_room_for_the_metadata_and_whole_megabytes() {
        for (size, mib) in [(64 << 20, 8), (256 << 20, 8), (100 << 30, 11), (1 << 40, 68)] {
            assert_eq!(metadata_sectors(size / 512), mib * MIB, "{size}");
        }
    }
}
