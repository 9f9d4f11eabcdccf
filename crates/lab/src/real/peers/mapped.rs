//! The caches that are targets of device-mapper: dm-cache, dm-writecache and dm-writeboost.

use std::fs::File;
use std::process::Command;

use super::disk::Disk;
use super::dm::{PREFIX, available, create, message, number, reload, status};
use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::{LabResult, other};
use crate::process::STEP_LIMIT;

/// Sectors of a cached block.
const BLOCK: u64 = 512;
const MIB: u64 = 2048;
/// The word of the status that counts dirty blocks.
const CACHE_DIRTY: usize = 10;

/// dm-cache with the smq policy: blocks of 256 KiB, as in the published comparison, and its
/// metadata on the fast device too.
#[derive(Default)]
pub(crate) struct DmCache {
    mode: Option<Mode>,
}

/// The line of the cache itself.
fn table(origin: &Disk, mode: Mode, policy: &str) -> String {
    let (sectors, origin, mode) = (origin.sectors(), origin.name(), mode.name());
    let (meta, data) = (format!("{}meta", PREFIX), format!("{}data", PREFIX));
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
    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        available(ground, "dm_cache_smq", "cache")
    }

    fn set_up(&mut self, mode: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let ssd = ground.ssd.name();
        let meta = metadata_sectors(ground.ssd.sectors());
        let data = (ground.ssd.sectors().saturating_sub(meta)) / BLOCK * BLOCK;
        if data == 0 {
            return Err(other(format!("{ssd} is too small for dm-cache")));
        }
        // A first block of zeroes says that there are no metadata yet; the device was wiped.
        create("meta", &format!("{meta} linear {ssd} 0"), undo)?;
        create("data", &format!("{data} linear {ssd} {meta}"), undo)?;
        self.mode = Some(mode);
        create("cache", &table(&ground.hdd, mode, "smq"), undo).map(Front::Block)
    }

    fn drain(&mut self, ground: &Ground) -> LabResult<()> {
        let Some(mode) = self.mode else { return Ok(()) };
        reload("cache", &table(&ground.hdd, mode, "cleaner"))?;
        ground.stop.wait("dm-cache's writeback", STEP_LIMIT * 10, || {
            Ok(number(&status("cache")?, CACHE_DIRTY)? == 0)
        })
    }
}

/// Words of the status: an error, blocks, free blocks.
const WRITECACHE_ERROR: usize = 0;
const WRITECACHE_BLOCKS: usize = 1;
const WRITECACHE_FREE: usize = 2;

/// The word of the status of dm-writeboost that counts dirty blocks.
const WRITEBOOST_DIRTY: usize = 6;

/// Caches of writes, which have no other mode than writeback.
pub(crate) enum WriteCache {
    /// dm-writecache: caches writes on an SSD, never reads.
    Plain,
    /// dm-writeboost: a log of writes on an SSD. It caches reads only if told to; it is run as it
    /// comes, without. It is no part of the kernel.
    Boost,
}

impl System for WriteCache {
    fn modes(&self) -> &'static [Mode] {
        &[Mode::Writeback]
    }

    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        match self {
            WriteCache::Plain => available(ground, "dm_writecache", "writecache"),
            WriteCache::Boost => available(ground, "dm_writeboost", "writeboost")
                .map_err(|why| WhyNot(format!("{why}; in Debian: dm-writeboost-dkms"))),
        }
    }

    fn set_up(&mut self, _: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let (sectors, hdd, ssd) = (ground.hdd.sectors(), ground.hdd.name(), ground.ssd.name());
        let table = match self {
            WriteCache::Plain => format!("{sectors} writecache s {hdd} {ssd} 4096 0"),
            WriteCache::Boost => format!("{sectors} writeboost {hdd} {ssd}"),
        };
        create("cache", &table, undo).map(Front::Block)
    }

    fn drain(&mut self, ground: &Ground) -> LabResult<()> {
        if let WriteCache::Plain = self {
            // All dirty blocks are written back, and leave the cache.
            message("cache", "cleaner")?;
            message("cache", "flush")?;
            return ground.stop.wait("dm-writecache's writeback", STEP_LIMIT * 10, || {
                let status = status("cache")?;
                if number(&status, WRITECACHE_ERROR)? != 0 {
                    return Err(other("dm-writecache reports an error of its cache device"));
                }
                Ok(number(&status, WRITECACHE_FREE)? == number(&status, WRITECACHE_BLOCKS)?)
            });
        }
        // Its buffer in RAM goes to the SSD first.
        let device = format!("/dev/mapper/{}cache", PREFIX);
        File::open(&device)?.sync_all()?;
        // This message returns when nothing is dirty.
        let mut command = Command::new("dmsetup");
        command.args(["message", &format!("{}cache", PREFIX), "0", "drop_caches"]);
        ground.stop.run(&mut command, STEP_LIMIT * 10)?;
        ground.stop.wait("dm-writeboost's writeback", STEP_LIMIT, || {
            Ok(number(&status("cache")?, WRITEBOOST_DIRTY)? == 0)
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
