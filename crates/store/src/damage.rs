//! What a volume may have lost with records of the log, and who has to know of it.
//!
//! A lost record may have held the newest version of any block, or what became of an older one. Which
//! volumes it was about nobody can tell, so every volume that it may have been about is *damaged* from
//! then on. That is durable before the loss can no longer be seen in the log, and stays until the
//! operator acknowledges it for that volume, or deletes it.

use std::fmt;
use std::rc::Rc;

use forebay_core::{Mode, RecordNumber, VolumeId};
use forebay_format::VolumeRecord;
use forebay_format::volume::{CREATED_RECORD, DAMAGE_COUNT, DAMAGE_FIRST, QUIET_RECORD};

use crate::error::StoreError;
use crate::lane::StoreLane;
use crate::store::Store;

/// Records of the log that are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The number of the first one.
    pub first: u64,
    /// How many, at most: from the first to the last.
    pub count: u64,
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Damage { first, count } = self;
        write!(f, "up to {count} log records from number {first} on are lost")
    }
}

fn setting(volume: &VolumeRecord, wanted: u16) -> Option<u64> {
    volume.settings.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value)
}

fn set(volume: &mut VolumeRecord, tag: u16, value: u64) {
    volume.settings.retain(|(other, _)| *other != tag);
    volume.settings.push((tag, value));
}

impl Damage {
    /// What a volume's record says; `None`: nothing, or it has been acknowledged.
    pub fn of(volume: &VolumeRecord) -> Option<Damage> {
        let first = setting(volume, DAMAGE_FIRST)?;
        Some(Damage { first, count: setting(volume, DAMAGE_COUNT).unwrap_or(1) })
    }

    /// Takes it out of a volume's record.
    pub fn acknowledge(volume: &mut VolumeRecord) {
        volume.settings.retain(|(tag, _)| ![DAMAGE_FIRST, DAMAGE_COUNT].contains(tag));
    }

    fn end(self) -> u64 {
        self.first.saturating_add(self.count)
    }

    /// Adds it to what the volume's record says.
    pub(crate) fn add_to(self, volume: &mut VolumeRecord) {
        let known = Damage::of(volume).unwrap_or(self);
        let first = known.first.min(self.first);
        set(volume, DAMAGE_FIRST, first);
        set(volume, DAMAGE_COUNT, known.end().max(self.end()) - first);
    }

    /// Whether any of the lost records may have been about the volume.
    pub(crate) fn precedes(self, volume: &VolumeRecord) -> bool {
        setting(volume, CREATED_RECORD)
            .is_some_and(|created| created.saturating_add(1) >= self.end())
    }

    /// Whether a volume can have lost anything; `dirty`: it has dirty blocks, or had some when everything
    /// up to `base` was there. Clean copies are dropped anyway. So a volume that had nothing dirty
    /// then, and made nothing dirty since, has all of it on its origin.
    pub(crate) fn concerns(self, volume: &VolumeRecord, base: RecordNumber, dirty: bool) -> bool {
        let quiet = setting(volume, QUIET_RECORD).is_some_and(|quiet| quiet <= base.0);
        !self.precedes(volume) && (dirty || !quiet)
    }
}

/// Notes after which record volumes came that are new in the table, and after which one volumes came
/// into a mode that makes nothing dirty.
pub(crate) fn note_records(before: &[VolumeRecord], after: &mut [VolumeRecord], last: u64) {
    for volume in after {
        if !before.iter().any(|old| old.uuid == volume.uuid) {
            set(volume, CREATED_RECORD, last);
        }
        if matches!(volume.mode, Mode::Writeback | Mode::Writeonly) {
            volume.settings.retain(|(tag, _)| *tag != QUIET_RECORD);
        } else if setting(volume, QUIET_RECORD).is_none() {
            set(volume, QUIET_RECORD, last);
        }
    }
}

impl Store {
    /// What a volume may have lost, unless that has been acknowledged.
    pub fn damage_of(&self, id: VolumeId) -> Option<Damage> {
        self.volumes.lock().iter().find(|volume| volume.id == id).and_then(Damage::of)
    }
}

impl StoreLane {
    /// Makes damage durable, for all volumes that it concerns.
    pub(crate) async fn note_damage(
        self: &Rc<Self>,
        damage: Damage,
        concerned: &[VolumeId],
    ) -> Result<(), StoreError> {
        self.change_volumes(|volumes, _| {
            for volume in volumes.iter_mut().filter(|volume| concerned.contains(&volume.id)) {
                damage.add_to(volume);
            }
            Ok(())
        })
        .await
    }
}
