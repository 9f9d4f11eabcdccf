//! What an operator may change on a volume, and how it is kept on the cache device.

use std::time::Duration;

use forebay_core::{Admission, BlockSize, Durability, Mode, QuietHours, ReplacementKind};
use forebay_format::VolumeRecord;
use forebay_format::volume::{CREATED_RECORD, DAMAGE_COUNT, DAMAGE_FIRST, QUIET_RECORD};
use forebay_policy::writeback::WritebackSettings;

/// Settings of one volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeSettings {
    /// What the cache does with reads and writes.
    pub mode: Mode,
    /// When writes are acknowledged.
    pub durability: Durability,
    /// How room is made. Belongs to the cache: the volumes of one cache device share it, as they do
    /// the watermarks of the cache in `writeback`.
    pub policy: ReplacementKind,
    /// Streams longer than this many bytes go round the cache; 0: none does.
    pub sequential_cutoff: u64,
    /// Which of the blocks that are missed may enter.
    pub admission: Admission,
    /// Bytes that may be written to the cache device in a day before fills are refused; 0: any
    /// number.
    pub write_budget: u64,
    /// When reads of the cache device take longer than this on average, clean data is read from the
    /// origin and nothing is filled; zero: never.
    pub congested_read: Duration,
    /// The same for writes to the cache device.
    pub congested_write: Duration,
    /// A miss that is admitted fills the aligned neighbourhood of this many bytes, a power of two
    /// and at most [`VolumeSettings::MOST_PROMOTED`]; 0: the blocks that were asked for.
    pub promote: u64,
    /// When and how much is written back.
    pub writeback: WritebackSettings,
    /// The origin gets what was written in the order of flushes. For modes that keep dirty blocks only.
    pub ordered: bool,
    /// At the latest after this time, acknowledged writes are made durable.
    pub commit_interval: Duration,
    /// How often an operator has changed the volume, as far as the cache device was told.
    pub version: u64,
}

impl Default for VolumeSettings {
    fn default() -> Self {
        VolumeSettings {
            mode: Mode::default(),
            durability: Durability::default(),
            policy: ReplacementKind::default(),
            sequential_cutoff: 4 << 20,
            admission: Admission::default(),
            write_budget: 0,
            congested_read: Duration::ZERO,
            congested_write: Duration::ZERO,
            promote: 0,
            writeback: WritebackSettings::default(),
            ordered: false,
            commit_interval: Duration::from_secs(1),
            version: 0,
        }
    }
}

// Numbers of settings in the volume table, as in docs/format.md; never used again for anything else.
const SEQUENTIAL_CUTOFF: u16 = 1;
const WRITEBACK_RUNNING: u16 = 2;
const DIRTY_HIGH: u16 = 3;
const DIRTY_LOW: u16 = 4;
const DIRTY_AGE_MILLIS: u16 = 5;
const IDLE_MILLIS: u16 = 6;
const WRITEBACK_DEPTH: u16 = 7;
const MERGE_BYTES: u16 = 8;
const COMMIT_INTERVAL_MILLIS: u16 = 9;
const ADMISSION: u16 = 16;
const WRITE_BUDGET: u16 = 17;
const CONGESTED_READ_MILLIS: u16 = 18;
const CONGESTED_WRITE_MILLIS: u16 = 19;
const PROMOTE: u16 = 20;
const CACHE_DIRTY_HIGH: u16 = 21;
const CACHE_DIRTY_LOW: u16 = 22;
const WRITEBACK_RATE_MIN: u16 = 23;
const WRITEBACK_RATE_MAX: u16 = 24;
const WRITEBACK_LATENCY_MILLIS: u16 = 25;
const WRITEBACK_GAP: u16 = 26;
const QUIET_HOURS: u16 = 27;
const ORDERED: u16 = 32;
const VERSION: u16 = 48;

/// What the number of a setting in the volume table stands for: its name, as an operator knows it, with
/// the unit where that is not bytes or a plain number. `None`: only a later program knows it.
pub fn tag_name(tag: u16) -> Option<&'static str> {
    Some(match tag {
        SEQUENTIAL_CUTOFF => "sequential_cutoff",
        WRITEBACK_RUNNING => "writeback_running",
        DIRTY_HIGH => "dirty_high",
        DIRTY_LOW => "dirty_low",
        DIRTY_AGE_MILLIS => "dirty_age_ms",
        IDLE_MILLIS => "idle_ms",
        WRITEBACK_DEPTH => "writeback_depth",
        MERGE_BYTES => "merge_bytes",
        COMMIT_INTERVAL_MILLIS => "commit_interval_ms",
        ADMISSION => "admission",
        WRITE_BUDGET => "write_budget",
        CONGESTED_READ_MILLIS => "congested_read_threshold_ms",
        CONGESTED_WRITE_MILLIS => "congested_write_threshold_ms",
        PROMOTE => "promote",
        CACHE_DIRTY_HIGH => "cache_dirty_high",
        CACHE_DIRTY_LOW => "cache_dirty_low",
        WRITEBACK_RATE_MIN => "writeback_rate_min",
        WRITEBACK_RATE_MAX => "writeback_rate_max",
        WRITEBACK_LATENCY_MILLIS => "writeback_latency_ms",
        WRITEBACK_GAP => "writeback_gap",
        QUIET_HOURS => "quiet_hours",
        ORDERED => "ordered",
        DAMAGE_FIRST => "damage_first",
        DAMAGE_COUNT => "damage_count",
        CREATED_RECORD => "created_record",
        QUIET_RECORD => "quiet_record",
        VERSION => "version",
        _ => return None,
    })
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// What the volumes of one cache have in common: setting it on one sets it on all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) policy: ReplacementKind,
    pub(crate) cache_dirty_high: u8,
    pub(crate) cache_dirty_low: u8,
}

impl VolumeSettings {
    /// Largest neighbourhood that a miss fills, in bytes.
    pub const MOST_PROMOTED: u64 = 4 << 20;
    pub(crate) fn shared(&self) -> Shared {
        let WritebackSettings { cache_dirty_high, cache_dirty_low, .. } = self.writeback;
        Shared { policy: self.policy, cache_dirty_high, cache_dirty_low }
    }

    /// Takes over what is common; whether anything has changed.
    pub(crate) fn share(&mut self, shared: Shared) -> bool {
        let changed = self.shared() != shared;
        self.policy = shared.policy;
        self.writeback.cache_dirty_high = shared.cache_dirty_high;
        self.writeback.cache_dirty_low = shared.cache_dirty_low;
        changed
    }

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
            (ADMISSION, u64::from(self.admission.times())),
            (WRITE_BUDGET, self.write_budget),
            (CONGESTED_READ_MILLIS, millis(self.congested_read)),
            (CONGESTED_WRITE_MILLIS, millis(self.congested_write)),
            (PROMOTE, self.promote),
            (ORDERED, u64::from(self.ordered)),
            (CACHE_DIRTY_HIGH, u64::from(writeback.cache_dirty_high)),
            (CACHE_DIRTY_LOW, u64::from(writeback.cache_dirty_low)),
            (WRITEBACK_RATE_MIN, writeback.rate_min),
            (WRITEBACK_RATE_MAX, writeback.rate_max),
            (WRITEBACK_LATENCY_MILLIS, millis(writeback.latency)),
            (WRITEBACK_GAP, u64::from(writeback.gap_bytes)),
            (QUIET_HOURS, writeback.quiet_hours.map_or(0, QuietHours::to_number)),
            (VERSION, self.version),
        ]
    }

    /// As [`VolumeSettings::to_tags`], beside those of `old` that only a later program knows.
    pub fn to_tags_beside(&self, old: &[(u16, u64)]) -> Vec<(u16, u64)> {
        let mut tags = self.to_tags();
        let known: Vec<u16> = tags.iter().map(|(tag, _)| *tag).collect();
        tags.extend(old.iter().filter(|(tag, _)| !known.contains(tag)));
        tags
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
                ADMISSION => {
                    self.admission = Admission::from_times(value).unwrap_or(self.admission);
                }
                WRITE_BUDGET => self.write_budget = value,
                CONGESTED_READ_MILLIS => self.congested_read = Duration::from_millis(value),
                CONGESTED_WRITE_MILLIS => self.congested_write = Duration::from_millis(value),
                PROMOTE if can_promote(value) => self.promote = value,
                ORDERED => self.ordered = value != 0,
                CACHE_DIRTY_HIGH => {
                    writeback.cache_dirty_high = percent.unwrap_or(writeback.cache_dirty_high);
                }
                CACHE_DIRTY_LOW => {
                    writeback.cache_dirty_low = percent.unwrap_or(writeback.cache_dirty_low);
                }
                WRITEBACK_RATE_MIN => writeback.rate_min = value,
                WRITEBACK_RATE_MAX => writeback.rate_max = value,
                WRITEBACK_LATENCY_MILLIS => writeback.latency = Duration::from_millis(value),
                WRITEBACK_GAP => writeback.gap_bytes = small.unwrap_or(writeback.gap_bytes),
                QUIET_HOURS => writeback.quiet_hours = QuietHours::from_number(value),
                VERSION => self.version = value,
                _ => (),
            }
        }
    }
}

/// Whether a miss can fill so many bytes.
fn can_promote(bytes: u64) -> bool {
    let least = u64::from(BlockSize::MIN);
    let range = least..=VolumeSettings::MOST_PROMOTED;
    bytes == 0 || (bytes.is_power_of_two() && range.contains(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_survive_the_volume_table() {
        let mut settings = VolumeSettings { sequential_cutoff: 7, ..VolumeSettings::default() };
        settings.writeback.dirty_high = 77;
        settings.writeback.running = false;
        settings.writeback.cache_dirty_high = 78;
        settings.writeback.cache_dirty_low = 7;
        settings.writeback.rate_min = 1;
        settings.writeback.rate_max = 1 << 40;
        settings.writeback.latency = Duration::ZERO;
        settings.writeback.gap_bytes = 12_345;
        settings.writeback.quiet_hours = QuietHours::new(60, 59);
        settings.commit_interval = Duration::from_millis(250);
        settings.admission = Admission::Ghost(4);
        settings.write_budget = 5 << 40;
        settings.congested_read = Duration::from_millis(2);
        settings.congested_write = Duration::from_millis(20);
        settings.promote = 256 << 10;
        settings.ordered = true;
        let mut read = VolumeSettings::default();
        read.apply_tags(&settings.to_tags());
        assert_eq!(read, settings);
        read.apply_tags(&[(DIRTY_HIGH, 101), (9999, 1), (COMMIT_INTERVAL_MILLIS, 0)]);
        read.apply_tags(&[(ADMISSION, 17), (ADMISSION, u64::MAX)]);
        for promote in [1, 512, 4095, 12 << 10, 8 << 20, u64::MAX] {
            read.apply_tags(&[(PROMOTE, promote)]);
        }
        read.apply_tags(&[
            (DIRTY_HIGH, 101),
            (CACHE_DIRTY_LOW, 101),
            (WRITEBACK_GAP, 1 << 32),
            (9999, 1),
            (COMMIT_INTERVAL_MILLIS, 0),
        ]);
        assert_eq!(read, settings);
        read.apply_tags(&[(QUIET_HOURS, 0)]);
        assert_eq!(read.writeback.quiet_hours, None);
    }

    #[test]
    fn every_setting_has_a_number_of_its_own() {
        let mut tags: Vec<u16> =
            VolumeSettings::default().to_tags().iter().map(|(tag, _)| *tag).collect();
        let count = tags.len();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), count);
    }

    #[test]
    fn what_is_shared_is_taken_over_and_nothing_else() {
        let mut one = VolumeSettings { policy: ReplacementKind::Fifo, ..VolumeSettings::default() };
        one.writeback.cache_dirty_high = 90;
        one.writeback.dirty_high = 20;
        let mut other = VolumeSettings { sequential_cutoff: 5, ..VolumeSettings::default() };
        assert!(other.share(one.shared()) && !other.share(one.shared()));
        assert_eq!((other.policy, other.writeback.cache_dirty_high), (ReplacementKind::Fifo, 90));
        assert_eq!((other.sequential_cutoff, other.writeback.dirty_high), (5, 50));
    }

    #[test]
    fn every_number_has_a_name_of_its_own() {
        let tags = VolumeSettings::default().to_tags();
        let names: std::collections::HashSet<_> =
            tags.iter().map(|(tag, _)| tag_name(*tag).unwrap_or_else(|| panic!("{tag}"))).collect();
        assert_eq!(names.len(), tags.len());
        assert_eq!(tag_name(60_000), None);
    }

    #[test]
    fn settings_of_a_later_program_are_kept_when_others_are_changed() {
        let settings = VolumeSettings { write_budget: 7, ..VolumeSettings::default() };
        let old = [(WRITE_BUDGET, 5), (60_000, 1), (SEQUENTIAL_CUTOFF, 3), (60_001, 2)];
        let tags = settings.to_tags_beside(&old);
        assert_eq!(tags.len(), settings.to_tags().len() + 2);
        for tag in [(WRITE_BUDGET, 7), (60_000, 1), (60_001, 2), (SEQUENTIAL_CUTOFF, 4 << 20)] {
            assert!(tags.contains(&tag), "{tag:?}");
        }
    }
}
