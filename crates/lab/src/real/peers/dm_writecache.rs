//! dm-writecache: caches writes on an SSD, never reads; it has no other mode than writeback.

use super::dm;
use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::{LabResult, other};
use crate::process::STEP_LIMIT;

/// Words of the status: an error, blocks, free blocks.
const ERROR: usize = 0;
const BLOCKS: usize = 1;
const FREE: usize = 2;

#[derive(Default)]
pub(crate) struct DmWritecache;

impl System for DmWritecache {
    fn modes(&self) -> &'static [Mode] {
        &[Mode::Writeback]
    }

    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        dm::available(ground, "dm_writecache", "writecache")
    }

    fn set_up(&mut self, _: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let (hdd, ssd) = (&ground.hdd, ground.ssd.name());
        let table = format!("{} writecache s {} {ssd} 4096 0", hdd.sectors(), hdd.name());
        dm::create("cache", &table, undo).map(Front::Block)
    }

    fn drain(&mut self, ground: &Ground) -> LabResult<()> {
        // Everything is written back, and what has been leaves the cache.
        dm::message("cache", "cleaner")?;
        dm::message("cache", "flush")?;
        ground.stop.wait("dm-writecache's writeback", STEP_LIMIT * 10, || {
            let status = dm::status("cache")?;
            if dm::number(&status, ERROR)? != 0 {
                return Err(other("dm-writecache reports an error of its cache device"));
            }
            Ok(dm::number(&status, FREE)? == dm::number(&status, BLOCKS)?)
        })
    }
}
