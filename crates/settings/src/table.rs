//! All settings of a volume, in one table. The parser, the help, the JSON, the documentation and
//! the encoding in the volume table are generated from it.

use std::time::Duration;

use forebay_core::text::nearest;
use forebay_core::{
    Admission, Caching, Durability, ExportSet, Laziness, Mode, NbdReach, QuietHours, RamStrategy,
    ReplacementKind, Rotational, SectorSize, WriteDown,
};
use serde_json::Value;

use crate::error::{SettingError, shortened};
use crate::kind::{SettingKind, SettingValue};

/// Whether a setting belongs to a volume or to a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each volume has its own value.
    Volume,
    /// The volumes of one cache device share the value: setting it on one sets it on all.
    Cache,
}

/// One setting.
pub struct Setting {
    /// Its name, as in `set` and in JSON.
    pub name: &'static str,
    /// Whether it belongs to a volume or to a cache.
    pub scope: Scope,
    /// Its number in the volume table, never reused for another setting; `None`: it has a field of
    /// its own there.
    pub tag: Option<u16>,
    /// The values that it accepts.
    pub kind: SettingKind,
    /// Its effect, in one sentence.
    pub help: &'static str,
    pub(crate) read: fn(&mut Settings, &str, &SettingKind) -> Result<(), String>,
    pub(crate) text: fn(&Settings, &SettingKind) -> String,
    pub(crate) json: fn(&Settings, &SettingKind) -> Value,
    pub(crate) copy: fn(&mut Settings, &Settings),
    pub(crate) to_number: fn(&Settings) -> u64,
    pub(crate) apply_number: fn(&mut Settings, u64, &SettingKind),
}

macro_rules! rows {
    ($($name:ident: $type:ty, $scope:ident, $tag:expr, $kind:expr, $help:literal;)*) => {
        &[$(Setting {
            name: stringify!($name),
            scope: Scope::$scope,
            tag: $tag,
            kind: $kind,
            help: $help,
            read: |settings, text, kind| {
                settings.$name = <$type as SettingValue>::read(text, kind)?;
                Ok(())
            },
            text: |settings, kind| settings.$name.text(kind),
            json: |settings, kind| settings.$name.json(kind),
            copy: |settings, other| settings.$name = other.$name.clone(),
            to_number: |settings| settings.$name.to_number(),
            apply_number: |settings, number, kind| {
                if let Some(value) = <$type as SettingValue>::from_number(number, kind) {
                    settings.$name = value;
                }
            },
        },)*]
    };
}

macro_rules! settings {
    (
        operator { $($name:ident: $type:ty = $default:expr, $scope:ident, $tag:expr, $kind:expr, $help:literal;)* }
        internal { $($own:ident: $own_type:ty = $own_default:expr, $own_tag:expr, $own_kind:expr, $own_help:literal;)* }
    ) => {
        /// The value of every setting of one volume.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {
            $(#[doc = $help] pub $name: $type,)*
            $(#[doc = $own_help] pub $own: $own_type,)*
        }

        impl Default for Settings {
            fn default() -> Self {
                Settings { $($name: $default,)* $($own: $own_default,)* }
            }
        }

        /// All settings of an operator, in the order in which help prints them.
        pub const SETTINGS: &[Setting] = rows! { $($name: $type, $scope, $tag, $kind, $help;)* };

        /// Internal values that are stored with a volume.
        pub(crate) const INTERNAL: &[Setting] =
            rows! { $($own: $own_type, Volume, $own_tag, $own_kind, $own_help;)* };
    };
}

settings! {
operator {
    mode: Mode = Mode::Writeback, Volume, None,
        SettingKind::Choice { words: Mode::WORDS },
        "The way of reads and writes through the cache. Leaving writeback first writes all dirty blocks to the origin.";
    caching: Caching = Caching::On, Volume, Some(49),
        SettingKind::Choice { words: Caching::WORDS },
        "on: the volume caches as its mode says. frozen: cached blocks are served and updated, but no others enter. paused: after writeback of all dirty blocks, all requests go to the origin. See resume, freeze and pause.";
    export: ExportSet = ExportSet::default(), Volume, Some(52),
        SettingKind::List { words: ExportSet::WORDS },
        "The front ends of the volume: NBD at the daemon's addresses (nbd, always included); a block device of this machine, by ublk (ublk), FUSE and a loop device (fuse), the kernel's NBD client (nbd-kernel), or the first of these that the host has (auto); a socket for a virtual machine (vhost-user, or vhost-user=PATH).";
    nbd: NbdReach = NbdReach::Local, Volume, Some(66),
        SettingKind::Choice { words: NbdReach::WORDS },
        "NBD clients that find the volume: those at unix sockets and at TCP addresses (all), those at unix sockets (local), or none (off). Block devices of the volume are not affected. Volumes created by a version without this setting have all.";
    policy: ReplacementKind = ReplacementKind::S3Fifo, Cache, None,
        SettingKind::Choice { words: ReplacementKind::WORDS },
        "The replacement policy, which chooses blocks for eviction; all volumes of a cache device share it.";
    durability: Durability = Durability::Flush, Volume, None,
        SettingKind::Choice { words: Durability::WORDS },
        "The place of a write when it is acknowledged: stable media (strict); RAM, until a flush or for commit_interval (flush); or the RAM tier, until a flush or for defer (deferred).";
    sequential_cutoff: u64 = 4 << 20, Volume, Some(1),
        SettingKind::Bytes { min: 0, max: 1 << 40 },
        "A sequential stream this long bypasses the cache where that loses nothing; 0 is off.";
    admission: Admission = Admission::Always, Volume, Some(16),
        SettingKind::CountedChoice { words: &["always", "second-hit"], counted: "ghost", min: 1, max: Admission::MOST as u64 },
        "Missed blocks that enter the cache. always: all, but below a RAM tier only blocks that were read before. second-hit: blocks that were missed before and are still remembered; as many blocks are remembered as the cache holds. ghost:N: the same, with N times as many, at 2 bytes of RAM per remembered block.";
    write_budget: u64 = 0, Volume, Some(17),
        SettingKind::Bytes { min: 0, max: 1 << 50 },
        "Bytes per day that may be written to the cache device before fills are refused; dirty data is always written; 0 is no limit.";
    limit_iops: u64 = 0, Volume, Some(53),
        SettingKind::Count { min: 0, max: 1_000_000_000 },
        "Requests per second that the volume's clients may make, apart from flushes; 0 is no limit.";
    limit_bandwidth: u64 = 0, Volume, Some(54),
        SettingKind::Bytes { min: 0, max: 1 << 40 },
        "Bytes per second that the volume's clients may read and write, at least 64K; 0 is no limit.";
    share_min: u8 = 0, Volume, Some(57),
        SettingKind::Percent { min: 0, max: 60 },
        "Share of the cache up to which other volumes do not displace clean data of this one. All volumes together get at most 60, pinned ranges included, divided if they ask for more.";
    share_max: u8 = 100, Volume, Some(58),
        SettingKind::Percent { min: 1, max: 100 },
        "Largest share of the cache for the volume. Above it the volume's own blocks are evicted, and its writers are slowed down if those blocks are dirty.";
    promote: u64 = 0, Volume, Some(20),
        SettingKind::PowerOfTwo { min: 2 << 10, max: 4 << 20, zero_is_off: true },
        "When a missed block enters the cache, its neighbours in the aligned range of this many bytes are read and enter with it.";
    congested_read_threshold: Duration = Duration::ZERO, Volume, Some(18),
        SettingKind::Duration { min_ms: 1, max_ms: 60_000, zero_is_off: true },
        "While reads from the cache device take longer than this on average, clean data is read from the origin and nothing is filled.";
    congested_write_threshold: Duration = Duration::ZERO, Volume, Some(19),
        SettingKind::Duration { min_ms: 1, max_ms: 60_000, zero_is_off: true },
        "While writes to the cache device take longer than this on average, clean data is read from the origin and nothing is filled.";
    // 50, as in dm-writecache: dirty blocks cannot be evicted, and half of the cache stays for
    // reads. EnhanceIO starts at 30 and bcache keeps 10, which gives overwrites less time to be
    // absorbed and neighbours less time to arrive.
    dirty_high: u8 = 50, Volume, Some(3),
        SettingKind::Percent { min: 0, max: 100 },
        "Writeback starts when this share of the cache is dirty, whatever the load.";
    // The gap is wider than with dm-writecache's 45, so that one sweep has a tenth of the cache to
    // sort and the origin gets long ascending passes with pauses in between.
    dirty_low: u8 = 40, Volume, Some(4),
        SettingKind::Percent { min: 0, max: 100 },
        "Writeback started by dirty_high continues down to this share.";
    // Above dirty_high, so that a single volume never reaches it. In an evenly written log the
    // oldest segments have no dirty blocks left as long as at most half of it is dirty; somewhat
    // more costs reclaim little.
    cache_dirty_high: u8 = 60, Cache, Some(21),
        SettingKind::Percent { min: 0, max: 100 },
        "As dirty_high, for all volumes of a cache device together; they share this value.";
    cache_dirty_low: u8 = 50, Cache, Some(22),
        SettingKind::Percent { min: 0, max: 100 },
        "As dirty_low, for all volumes of a cache device together; they share this value.";
    // Bounds the data lost with the cache device, and is long enough that repeatedly written blocks
    // are written back once. (dm-writecache: off; bcache: from 30 s on.)
    dirty_age: Duration = Duration::from_secs(600), Volume, Some(5),
        SettingKind::Duration { min_ms: 100, max_ms: 30 * 86_400_000, zero_is_off: true },
        "A block that has been dirty for this long is written back.";
    // Blocks written back in every short pause are soon dirty again. With a virtual machine that
    // often paused for 3 to 5 seconds, dm-writecache's 3 seconds kept the disk writing for 12 %
    // longer, and dm-cache's 1 second for 2.7 times as long.
    idle: Duration = Duration::from_secs(10), Volume, Some(6),
        SettingKind::Duration { min_ms: 10, max_ms: 86_400_000, zero_is_off: true },
        "After this long without a request, all dirty blocks are written back.";
    writeback_running: bool = true, Volume, Some(2),
        SettingKind::Switch,
        "Whether dirty blocks are written back in the background at all.";
    writeback: Laziness = Laziness::Eager, Volume, Some(55),
        SettingKind::Choice { words: Laziness::WORDS },
        "eager: dirty blocks are written back after dirty_age and idle. lazy: they are kept, however old, so that the origin's disk can sleep, until dirty_high or cache_dirty_high is reached, quiet_hours begin, or a client accesses the origin; then all are written back.";
    // As in bcache: twice the 32 that a SATA disk sorts by itself, so that its queue never runs
    // short.
    writeback_depth: u32 = 64, Volume, Some(7),
        SettingKind::Count { min: 1, max: 1024 },
        "Writes to the origin that background writeback keeps in flight.";
    ordered: bool = false, Volume, Some(32),
        SettingKind::Switch,
        "Whether writes reach the origin in the order of flushes. The origin is then always in a state that a power cut could leave on a disk. For mode=writeback and mode=writeonly.";
    read_only: bool = false, Volume, Some(64),
        SettingKind::Switch,
        "Whether clients may only read. The origin is opened for reading only, as a write-protected device requires, and every front end exports the volume as read-only. Takes effect when the volume is next started.";
    sector_size: SectorSize = SectorSize::Auto, Volume, Some(65),
        SettingKind::Choice { words: SectorSize::WORDS },
        "Size of the logical sectors that clients see and that partition tables count in: that of the origin (auto; 512 bytes for a file), 512 bytes, or 4096 bytes. Takes effect when the volume is next started.";
    rotational: Rotational = Rotational::Auto, Volume, Some(56),
        SettingKind::Choice { words: Rotational::WORDS },
        "Whether distance costs time on the origin. auto: as the origin reports. yes: it is a disk whose head has to move. no: it is an SSD or behind a network. Virtual disks often report yes where no is right.";
    // Skipping 64 KiB takes a 7,200 rpm disk 0.5 ms, and writing it not much more. A separate
    // command behind the gap takes 3 ms when few blocks are dirty, or a part of a revolution of 8
    // ms when many are.
    writeback_gap: u32 = 64 << 10, Volume, Some(26),
        SettingKind::Bytes { min: 0, max: 1 << 20 },
        "Largest gap of clean cached blocks, in bytes, that is written back with the dirty blocks on both sides; 0 is never.";
    // A tenth of the random write rate of a 7,200 rpm disk. (bcache: 4 KiB.)
    writeback_rate_min: u64 = 128 << 10, Volume, Some(23),
        SettingKind::Bytes { min: 0, max: 1 << 40 },
        "Writeback is never slowed down below this many bytes per second in favour of clients; 0 means 4K.";
    writeback_rate_max: u64 = 0, Volume, Some(24),
        SettingKind::Bytes { min: 0, max: 1 << 40 },
        "Largest rate of writeback in bytes per second, unless a client or an operator waits for it; 0 is no limit.";
    // About five times the random read latency of an idle 7,200 rpm disk. It is a mean over some
    // seconds, and more latency is tolerated the more is dirty.
    writeback_latency: Duration = Duration::from_millis(50), Volume, Some(25),
        SettingKind::Duration { min_ms: 1, max_ms: 60_000, zero_is_off: true },
        "Writeback slows down while clients' requests on the origin take longer than this on average, or twice this at dirty_high.";
    quiet_hours: Option<QuietHours> = None, Volume, Some(27),
        SettingKind::Hours,
        "Local time of day at which clients are quiet. All dirty blocks are written back at full rate then; at other times dirty_age and idle write back at writeback_rate_min only.";
    ram: u64 = 0, Volume, Some(40),
        SettingKind::Bytes { min: 0, max: 1 << 50 },
        "Bytes of RAM that hold copies of blocks in front of the cache device; 0 is none. Switching it on or off takes effect when the volume is next started.";
    ram_block: u64 = 4096, Volume, Some(41),
        SettingKind::PowerOfTwo { min: 512, max: 64 << 10, zero_is_off: false },
        "Unit of caching in RAM; takes effect when the volume is next started.";
    ram_policy: ReplacementKind = ReplacementKind::S3Fifo, Volume, Some(42),
        SettingKind::Choice { words: ReplacementKind::WORDS },
        "The replacement policy of the RAM tier, which chooses blocks for eviction.";
    ram_strategy: RamStrategy = RamStrategy::ReadWrite, Volume, Some(43),
        SettingKind::Choice { words: RamStrategy::WORDS },
        "The requests that the RAM tier caches.";
    ram_lock: bool = false, Volume, Some(51),
        SettingKind::Switch,
        "Whether the RAM tier is locked in memory, so that it is never swapped out; it then gives nothing back while memory is short.";
    defer: Duration = Duration::from_secs(10), Volume, Some(44),
        SettingKind::Duration { min_ms: 1, max_ms: 24 * 3_600_000, zero_is_off: false },
        "With durability=deferred, the time within which a write is written down from RAM; a crash loses the unflushed writes of this time.";
    write_down: WriteDown = WriteDown::Interval, Volume, Some(45),
        SettingKind::Choice { words: WriteDown::WORDS },
        "The time at which deferred writes are written down: all at once, shortly before the oldest is due (interval); in equal parts (average); while the device is idle (idle); as soon as possible (buffer); only when space runs short, at a stop and on demand (infinite).";
    ram_write_share: u8 = 100, Volume, Some(46),
        SettingKind::Percent { min: 1, max: 100 },
        "Largest share of the RAM tier for deferred writes. Reads have the rest, and the part of this share that writes do not use.";
    prefetch: bool = false, Volume, Some(50),
        SettingKind::Switch,
        "Whether every start of the volume loads the blocks into the RAM tier that it held at the last orderly stop.";
    ignore_flush: bool = false, Volume, Some(47),
        SettingKind::Switch,
        "DANGEROUS, for scratch data only: with durability=deferred, flushes and FUA are acknowledged at once, so that a crash loses data that file systems and databases take for durable.";
    commit_interval: Duration = Duration::from_secs(1), Volume, Some(9),
        SettingKind::Duration { min_ms: 1, max_ms: 3_600_000, zero_is_off: false },
        "With durability=flush, the longest time that an unflushed write stays only in RAM.";
}
internal {
    // Seek and rotation take a 7,200 rpm disk about as long as transferring 2 MiB, and most kernels
    // split requests at 1.25 MiB. (bcache: 2.4 MiB.)
    merge_bytes: u32 = 1 << 20, Some(8),
        SettingKind::Bytes { min: 0, max: 1 << 30 },
        "Largest write to the origin, in bytes, but at least one block.";
    version: u64 = 0, Some(48),
        SettingKind::Count { min: 0, max: u64::MAX },
        "Number of changes of the volume by operators, as recorded on the cache device.";
}
}

impl Setting {
    /// Finds the setting of this name.
    ///
    /// # Errors
    /// [`SettingError::Unknown`].
    pub fn find(name: &str) -> Result<&'static Setting, SettingError> {
        let known = SETTINGS.iter().find(|setting| setting.name == name);
        known.ok_or_else(|| {
            let names: Vec<&str> = SETTINGS.iter().map(|setting| setting.name).collect();
            let remedy = match nearest(name, names.iter().copied()) {
                Some(meant) => format!("did you mean '{meant}'?"),
                None => format!("choose one of {}", names.join(", ")),
            };
            SettingError::Unknown { given: shortened(name), remedy }
        })
    }

    /// Returns the setting with this number in the volume table.
    pub fn of_tag(tag: u16) -> Option<&'static Setting> {
        SETTINGS.iter().chain(INTERNAL).find(|setting| setting.tag == Some(tag))
    }

    /// Returns its name, with the unit of its number in the volume table unless that is bytes or a
    /// plain number.
    pub fn tag_name(&self) -> String {
        let unit = if matches!(self.kind, SettingKind::Duration { .. }) { "_ms" } else { "" };
        format!("{}{unit}", self.name)
    }

    /// Returns the value in `settings`, as text that [`Assignments`] can parse.
    pub fn text(&self, settings: &Settings) -> String {
        (self.text)(settings, &self.kind)
    }

    /// Returns the default, as text.
    pub fn default(&self) -> String {
        self.text(&Settings::default())
    }

    /// Parses `text` into `settings`.
    ///
    /// # Errors
    /// [`SettingError::Value`]; `settings` is then unchanged.
    pub fn read(&self, settings: &mut Settings, text: &str) -> Result<(), SettingError> {
        (self.read)(settings, text, &self.kind)
            .map_err(|reason| SettingError::Value { name: self.name, reason })
    }
}

impl Settings {
    /// Returns the values that hold where stored settings, or those of another version, say
    /// nothing: the defaults, except where a volume from before a setting keeps what it had.
    pub fn unsaid() -> Self {
        Settings { nbd: NbdReach::All, ..Settings::default() }
    }

    /// Copies the values that the volumes of one cache device share. Returns whether any changed.
    pub fn share(&mut self, other: &Settings) -> bool {
        let before = self.clone();
        for setting in SETTINGS.iter().filter(|setting| setting.scope == Scope::Cache) {
            (setting.copy)(self, other);
        }
        *self != before
    }
}
