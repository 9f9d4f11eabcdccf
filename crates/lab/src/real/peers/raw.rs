//! The devices as they are: what every cache is compared with.

use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::LabResult;

/// One of the two devices.
#[derive(Clone, Copy)]
pub(crate) enum Raw {
    Ssd,
    Hdd,
}

impl System for Raw {
    fn modes(&self) -> &'static [Mode] {
        &[Mode::Raw]
    }

    fn available(&self, _: &Ground) -> Result<(), WhyNot> {
        Ok(())
    }

    fn set_up(&mut self, _: Mode, ground: &Ground, _: &mut Undo) -> LabResult<Front> {
        let disk = match self {
            Raw::Ssd => &ground.ssd,
            Raw::Hdd => &ground.hdd,
        };
        Ok(Front::Block(disk.path().to_owned()))
    }

    fn drain(&mut self, _: &Ground) -> LabResult<()> {
        Ok(())
    }

    fn origin_offset(&self) -> Option<u64> {
        match self {
            Raw::Ssd => None,
            Raw::Hdd => Some(0),
        }
    }
}
