//! dm-writeboost: a log of writes on an SSD. It has no other mode than writeback, and caches reads
//! only if told to; it is run as it comes, without. It is no part of the kernel.

use std::fs::File;
use std::process::Command;

use super::dm;
use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::LabResult;
use crate::process::STEP_LIMIT;

/// The word of the status that counts dirty blocks.
const DIRTY: usize = 6;

#[derive(Default)]
pub(crate) struct DmWriteboost;

impl System for DmWriteboost {
    fn modes(&self) -> &'static [Mode] {
        &[Mode::Writeback]
    }

    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        dm::available(ground, "dm_writeboost", "writeboost")
            .map_err(|why| WhyNot(format!("{why}; in Debian: dm-writeboost-dkms")))
    }

    fn set_up(&mut self, _: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let (hdd, ssd) = (&ground.hdd, ground.ssd.name());
        let table = format!("{} writeboost {} {ssd}", hdd.sectors(), hdd.name());
        dm::create("cache", &table, undo).map(Front::Block)
    }

    fn drain(&mut self, ground: &Ground) -> LabResult<()> {
        // What is in its buffer in RAM goes to the SSD first.
        let device = format!("/dev/mapper/{}cache", dm::PREFIX);
        File::open(&device)?.sync_all()?;
        // This message returns when nothing is dirty.
        let mut command = Command::new("dmsetup");
        command.args(["message", &format!("{}cache", dm::PREFIX), "0", "drop_caches"]);
        ground.stop.run(&mut command, STEP_LIMIT * 10)?;
        ground.stop.wait("dm-writeboost's writeback", STEP_LIMIT, || {
            Ok(dm::number(&dm::status("cache")?, DIRTY)? == 0)
        })
    }
}
