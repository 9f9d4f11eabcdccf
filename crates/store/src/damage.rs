//! Damaged volumes: volumes that may have lost data with records of the log.
//!
//! A lost record may have contained the newest version of any block, or marks for older ones.
//! Recovery cannot tell which volumes lost data, so every volume that may have lost some becomes
//! *damaged*. This is made durable before the gap in the log disappears, and stays until the
//! operator acknowledges it for that volume, or deletes the volume.

use std::fmt;
use std::rc::Rc;

use forebay_core::{Mode, RecordNumber, VolumeId};
use forebay_format::VolumeRecord;
use forebay_format::volume::{CREATED_RECORD, DAMAGE_COUNT, DAMAGE_FIRST, QUIET_RECORD};

use crate::error::StoreError;
use crate::lane::StoreLane;
use crate::store::Store;

/// Lost records of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Damage {
    /// The number of the first lost record.
    pub first: u64,
    /// Upper limit of the number of lost records: from the first one to the last.
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
    /// Returns the damage recorded for a volume; `None` if there is none or it has been
    /// acknowledged.
    pub fn of(volume: &VolumeRecord) -> Option<Damage> {
        let first = setting(volume, DAMAGE_FIRST)?;
        Some(Damage { first, count: setting(volume, DAMAGE_COUNT).unwrap_or(1) })
    }

    /// Removes the damage from a volume's record.
    pub fn acknowledge(volume: &mut VolumeRecord) {
        volume.settings.retain(|(tag, _)| ![DAMAGE_FIRST, DAMAGE_COUNT].contains(tag));
    }

    fn end(self) -> u64 {
        self.first.saturating_add(self.count)
    }

    /// Adds this damage to that already noted in the volume's record.
    pub(crate) fn add_to(self, volume: &mut VolumeRecord) {
        let known = Damage::of(volume).unwrap_or(self);
        let first = known.first.min(self.first);
        set(volume, DAMAGE_FIRST, first);
        set(volume, DAMAGE_COUNT, known.end().max(self.end()) - first);
    }

    /// Returns whether all lost records are older than the volume.
    pub(crate) fn precedes(self, volume: &VolumeRecord) -> bool {
        setting(volume, CREATED_RECORD)
            .is_some_and(|created| created.saturating_add(1) >= self.end())
    }

    /// Returns whether a volume may have lost data. `dirty`: it has dirty blocks, or had some in
    /// the checkpoint, which contains the records up to `base`. Clean copies are dropped in any
    /// case. A volume that had no dirty block then and has made none dirty since is therefore
    /// complete on its origin.
    pub(crate) fn concerns(self, volume: &VolumeRecord, base: RecordNumber, dirty: bool) -> bool {
        let quiet = setting(volume, QUIET_RECORD).is_some_and(|quiet| quiet <= base.0);
        !self.precedes(volume) && (dirty || !quiet)
    }
}

/// Notes in new volumes the last closed record at their creation, and in volumes that entered a
/// mode that makes nothing dirty, the last closed record at that moment.
pub(crate) fn note_records(before: &[VolumeRecord], after: &mut [VolumeRecord], last: u64) {
    for volume in after {
        // Compare by number: a volume that gets another name and UUID is still the same one.
        if !before.iter().any(|old| old.id == volume.id) {
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
    /// Returns the unacknowledged damage of a volume.
    pub fn damage_of(&self, id: VolumeId) -> Option<Damage> {
        self.volumes.lock().iter().find(|volume| volume.id == id).and_then(Damage::of)
    }
}

impl StoreLane {
    /// Notes damage durably in all concerned volumes.
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
