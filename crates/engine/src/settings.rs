//! What an operator may change on a volume, and how it is kept on the cache device.

use std::time::Duration;

use forebay_core::{Durability, Mode, ReplacementKind};
use forebay_format::VolumeRecord;
use forebay_policy::writeback::WritebackSettings;

/// Settings of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    /// What the cache does with reads and writes.
    pub mode: Mode,
    /// When writes are acknowledged.
    pub durability: Durability,
    /// How room is made. Belongs to the cache: the volumes of one cache device share it.
    pub policy: ReplacementKind,
    /// Streams longer than this many bytes go round the cache; 0: none does.
    pub sequential_cutoff: u64,
    /// When and how much is written back.
    pub writeback: WritebackSettings,
    /// At the latest after this time, acknowledged writes are made durable.
    pub commit_interval: Duration,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        VolumeSettings {
            mode: Mode::default(),
            durability: Durability::default(),
            policy: ReplacementKind::default(),
            sequential_cutoff: 4 << 20,
            writeback: WritebackSettings::default(),
            commit_interval: Duration::from_secs(1),
        }
    }
}

// Numbers of settings in the volume table; never used again for anything else.
const SEQUENTIAL_CUTOFF: u16 = 1;
const WRITEBACK_RUNNING: u16 = 2;
const DIRTY_HIGH: u16 = 3;
const DIRTY_LOW: u16 = 4;
const DIRTY_AGE_MILLIS: u16 = 5;
const IDLE_MILLIS: u16 = 6;
const WRITEBACK_DEPTH: u16 = 7;
const MERGE_BYTES: u16 = 8;
const COMMIT_INTERVAL_MILLIS: u16 = 9;

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

impl VolumeSettings {
    /// The settings that a volume's record says.
    pub fn of(record: &VolumeRecord) -> Self {
        let mut settings = VolumeSettings {
            mode: record.mode,
            durability: record.durability,
            policy: record.policy,
            ..VolumeSettings::default()
        };
        settings.apply_tags(&record.settings);
        settings
    }

    /// The settings that have no field of their own in the volume table.
    pub fn to_tags(&self) -> Vec<(u16, u64)> {
        let writeback = &self.writeback;
        vec![
            (SEQUENTIAL_CUTOFF, self.sequential_cutoff),
            (WRITEBACK_RUNNING, u64::from(writeback.running)),
            (DIRTY_HIGH, u64::from(writeback.dirty_high)),
            (DIRTY_LOW, u64::from(writeback.dirty_low)),
            (DIRTY_AGE_MILLIS, millis(writeback.max_age)),
            (IDLE_MILLIS, millis(writeback.idle)),
            (WRITEBACK_DEPTH, u64::from(writeback.depth)),
            (MERGE_BYTES, u64::from(writeback.merge_bytes)),
            (COMMIT_INTERVAL_MILLIS, millis(self.commit_interval)),
        ]
    }

    /// Takes what [`VolumeSettings::to_tags`] wrote; unknown numbers and values out of range are
    /// passed over.
    pub fn apply_tags(&mut self, tags: &[(u16, u64)]) {
        for &(tag, value) in tags {
            let small = u32::try_from(value).ok();
            let percent = u8::try_from(value).ok().filter(|percent| *percent <= 100);
            let writeback = &mut self.writeback;
            match tag {
                SEQUENTIAL_CUTOFF => self.sequential_cutoff = value,
                WRITEBACK_RUNNING => writeback.running = value != 0,
                DIRTY_HIGH => writeback.dirty_high = percent.unwrap_or(writeback.dirty_high),
                DIRTY_LOW => writeback.dirty_low = percent.unwrap_or(writeback.dirty_low),
                DIRTY_AGE_MILLIS => writeback.max_age = Duration::from_millis(value),
                IDLE_MILLIS => writeback.idle = Duration::from_millis(value),
                WRITEBACK_DEPTH => writeback.depth = small.unwrap_or(writeback.depth).max(1),
                MERGE_BYTES => writeback.merge_bytes = small.unwrap_or(writeback.merge_bytes),
                COMMIT_INTERVAL_MILLIS if value > 0 => {
                    self.commit_interval = Duration::from_millis(value);
                }
                _ => (),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_volume_table() {
        let mut settings = VolumeSettings { sequential_cutoff: 7, ..VolumeSettings::default() };
        settings.writeback.dirty_high = 77;
        settings.writeback.running = false;
        settings.commit_interval = Duration::from_millis(250);
        let mut read = VolumeSettings::default();
        read.apply_tags(&settings.to_tags());
        assert_eq!(read, settings);
        read.apply_tags(&[(DIRTY_HIGH, 101), (9999, 1), (COMMIT_INTERVAL_MILLIS, 0)]);
        assert_eq!(read, settings);
    }
}
