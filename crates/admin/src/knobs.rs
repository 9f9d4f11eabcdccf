//! Everything that can be set on a volume, in one table. The parser, the help, the JSON and the
//! documentation are all made from it.

use std::fmt::Write as _;
use std::time::Duration;

use forebay_core::units::format_size;
use forebay_core::{Admission, Durability, Mode, QuietHours, ReplacementKind};
use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeMap, Serializer};
use serde_json::Value;

use crate::assignments::Assignments;
pub use crate::kind::KnobKind;
use crate::kind::KnobType;

/// One thing that can be set.
pub struct Knob {
    /// Its name, as in `set` and in JSON.
    pub name: &'static str,
    /// What values it takes.
    pub kind: KnobKind,
    /// What it does, in one sentence.
    pub help: &'static str,
    read: fn(&mut Settings, &str, &KnobKind) -> Result<(), String>,
    text: fn(&Settings, &KnobKind) -> String,
    json: fn(&Settings, &KnobKind) -> Value,
}

macro_rules! knobs {
    ($($name:ident: $type:ty = $default:expr, $kind:expr, $help:literal;)*) => {
        /// The value of every knob of one volume.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Settings {
            $(#[doc = $help] pub $name: $type,)*
        }

        impl Default for Settings {
            fn default() -> Self {
                Settings { $($name: $default,)* }
            }
        }

        /// Every knob, in the order in which help prints them.
        pub const KNOBS: &[Knob] = &[$(Knob {
            name: stringify!($name),
            kind: $kind,
            help: $help,
            read: |settings, text, kind| {
                settings.$name = <$type as KnobType>::read(text, kind)?;
                Ok(())
            },
            text: |settings, kind| settings.$name.text(kind),
            json: |settings, kind| settings.$name.json(kind),
        },)*];
    };
}

knobs! {
    mode: Mode = Mode::Writeback,
        KnobKind::Choice { words: &["writeback (wb)", "writethrough (wt)", "writearound (wa, readonly, ro)", "writeonly (wo)", "passthrough (pt)"] },
        "What the cache does with reads and writes; leaving writeback copies dirty blocks first.";
    policy: ReplacementKind = ReplacementKind::S3Fifo,
        KnobKind::Choice { words: &["lru", "fifo", "random (rand)", "lfu", "lfu-r", "smq", "clock", "2q", "arc", "lirs", "sieve", "s3-fifo (s3fifo)", "w-tinylfu (wtinylfu)"] },
        "How blocks are chosen to make room; the volumes of one cache device share it.";
    durability: Durability = Durability::Flush,
        KnobKind::Choice { words: &["strict", "flush"] },
        "When a write is acknowledged: on stable media (strict), or in RAM until a flush or commit_interval (flush).";
    sequential_cutoff: u64 = 4 << 20,
        KnobKind::Bytes { min: 0, max: 1 << 40 },
        "A sequential stream goes round the cache once it is this long; 0 is off.";
    admission: Admission = Admission::Always,
        KnobKind::CountedChoice { words: &["always", "second-hit"], counted: "ghost", min: 1, max: Admission::MOST as u64 },
        "Which blocks enter the cache when they are missed: always all; second-hit those that were missed before, as long as that is remembered, which is for as many blocks as the cache has; ghost:N for N times as many, at 2 bytes of RAM each.";
    write_budget: u64 = 0,
        KnobKind::Bytes { min: 0, max: 1 << 50 },
        "Bytes that may be written to the cache device in a day before clean data is kept out; dirty data never is; 0 is no limit.";
    promote: u64 = 0,
        KnobKind::PowerOfTwo { min: 2 << 10, max: 4 << 20 },
        "A miss whose block enters brings in its neighbours in the aligned range of this many bytes.";
    congested_read_threshold: Duration = Duration::ZERO,
        KnobKind::Duration { min_ms: 1, max_ms: 60_000, zero_is_off: true },
        "When reads of the cache device take longer than this on average, clean data is read from the origin for a while.";
    congested_write_threshold: Duration = Duration::ZERO,
        KnobKind::Duration { min_ms: 1, max_ms: 60_000, zero_is_off: true },
        "The same when writes to the cache device take longer than this on average.";
    dirty_high: u8 = 50,
        KnobKind::Percent { min: 0, max: 100 },
        "Writeback starts when this share of the cache is dirty, whatever the load.";
    dirty_low: u8 = 40,
        KnobKind::Percent { min: 0, max: 100 },
        "Writeback that dirty_high started goes on down to this share.";
    cache_dirty_high: u8 = 60,
        KnobKind::Percent { min: 0, max: 100 },
        "As dirty_high, for all volumes of a cache device together, which share this.";
    cache_dirty_low: u8 = 50,
        KnobKind::Percent { min: 0, max: 100 },
        "As dirty_low, for all volumes of a cache device together, which share this.";
    dirty_age: Duration = Duration::from_secs(600),
        KnobKind::Duration { min_ms: 100, max_ms: 30 * 86_400_000, zero_is_off: true },
        "A block that has been dirty for this long is written back.";
    idle: Duration = Duration::from_secs(10),
        KnobKind::Duration { min_ms: 10, max_ms: 86_400_000, zero_is_off: true },
        "After this long without a request all dirty blocks are written back.";
    writeback_running: bool = true,
        KnobKind::Switch,
        "Whether dirty blocks are written back in the background at all.";
    writeback_depth: u32 = 64,
        KnobKind::Count { min: 1, max: 1024 },
        "Writes to the origin that background writeback keeps in flight.";
    ordered: bool = false,
        KnobKind::Switch,
        "Whether the origin gets what was written in the order of flushes, so that it is at every moment what a power cut leaves on a disk; for mode=writeback and mode=writeonly.";
    writeback_gap: u32 = 64 << 10,
        KnobKind::Bytes { min: 0, max: 1 << 20 },
        "Clean cached blocks between two dirty ones are written along if they are at most so many bytes; 0 is never.";
    writeback_rate_min: u64 = 128 << 10,
        KnobKind::Bytes { min: 0, max: 1 << 40 },
        "Bytes per second to which writeback may be slowed down in favour of clients; 0 is no limit.";
    writeback_rate_max: u64 = 0,
        KnobKind::Bytes { min: 0, max: 1 << 40 },
        "Bytes per second of writeback at most, unless somebody waits for it; 0 is no limit.";
    writeback_latency: Duration = Duration::from_millis(50),
        KnobKind::Duration { min_ms: 1, max_ms: 60_000, zero_is_off: true },
        "Mean time of clients' requests on the origin beyond which writeback slows down; up to twice that at dirty_high.";
    quiet_hours: Option<QuietHours> = None,
        KnobKind::Hours,
        "Local time of day in which clients are quiet: then all dirty blocks are written back at full rate; at other times dirty_age and idle keep to writeback_rate_min.";
    commit_interval: Duration = Duration::from_secs(1),
        KnobKind::Duration { min_ms: 1, max_ms: 3_600_000, zero_is_off: false },
        "With durability=flush, the longest time that an unflushed write stays in RAM only.";
}

/// Why a setting was turned down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum KnobError {
    /// There is no knob of this name.
    #[error("'{given}' is not a setting; choose one of {}", names())]
    Unknown {
        /// What was given.
        given: String,
    },
    /// The same knob twice in one request.
    #[error("{name}: given twice; give each setting once")]
    Duplicate {
        /// The knob.
        name: String,
    },
    /// Not of the form `key=value`.
    #[error("'{given}' is not a setting; write key=value, like dirty_high=60")]
    NoValue {
        /// What was given.
        given: String,
    },
    /// A value that the knob does not take, alone or beside the others.
    #[error("{name}: {reason}")]
    Value {
        /// The knob.
        name: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

impl KnobError {
    /// The name of the knob at fault, as far as it is known.
    pub fn field(&self) -> &str {
        match self {
            KnobError::Unknown { given } | KnobError::NoValue { given } => given,
            KnobError::Duplicate { name } => name,
            KnobError::Value { name, .. } => name,
        }
    }
}

fn names() -> String {
    KNOBS.iter().map(|knob| knob.name).collect::<Vec<_>>().join(", ")
}

pub(crate) fn shortened(text: &str) -> String {
    text.escape_debug().take(60).collect()
}

impl Knob {
    /// The knob of this name.
    ///
    /// # Errors
    /// [`KnobError::Unknown`].
    pub fn find(name: &str) -> Result<&'static Knob, KnobError> {
        let known = KNOBS.iter().find(|knob| knob.name == name);
        known.ok_or_else(|| KnobError::Unknown { given: shortened(name) })
    }

    /// The value in `settings`, as text that [`Assignments`] reads back.
    pub fn text(&self, settings: &Settings) -> String {
        (self.text)(settings, &self.kind)
    }

    /// The default, as text.
    pub fn default(&self) -> String {
        self.text(&Settings::default())
    }

    /// Reads `text` into `settings`.
    ///
    /// # Errors
    /// [`KnobError::Value`]; `settings` is then unchanged.
    pub fn read(&self, settings: &mut Settings, text: &str) -> Result<(), KnobError> {
        (self.read)(settings, text, &self.kind)
            .map_err(|reason| KnobError::Value { name: self.name, reason })
    }
}

impl Settings {
    /// Takes over what the volumes of one cache device share. `true` if anything has changed.
    pub fn share(&mut self, other: &Settings) -> bool {
        let before = self.clone();
        self.policy = other.policy;
        self.cache_dirty_high = other.cache_dirty_high;
        self.cache_dirty_low = other.cache_dirty_low;
        *self != before
    }

    /// Whether the values fit together.
    ///
    /// # Errors
    /// [`KnobError::Value`] with the first knob that does not.
    pub fn validate(&self) -> Result<(), KnobError> {
        if self.dirty_low > self.dirty_high {
            let reason = format!(
                "{} % is above dirty_high, which is {} %; set both, the low one not above the high",
                self.dirty_low, self.dirty_high
            );
            return Err(KnobError::Value { name: "dirty_low", reason });
        }
        if self.ordered && !matches!(self.mode, Mode::Writeback | Mode::Writeonly) {
            let reason = format!(
                "with mode={} every write goes to the origin at once; choose mode=writeback or mode=writeonly, or set ordered=off",
                self.mode
            );
            return Err(KnobError::Value { name: "ordered", reason });
        }
        if self.cache_dirty_low > self.cache_dirty_high {
            let reason = format!(
                "{} % is above cache_dirty_high, which is {} %; set both, the low one not above the high",
                self.cache_dirty_low, self.cache_dirty_high
            );
            return Err(KnobError::Value { name: "cache_dirty_low", reason });
        }
        if self.writeback_rate_max > 0 && self.writeback_rate_min > self.writeback_rate_max {
            let reason = format!(
                "{} is above writeback_rate_max, which is {}; set both, the min not above the max",
                format_size(self.writeback_rate_min),
                format_size(self.writeback_rate_max)
            );
            return Err(KnobError::Value { name: "writeback_rate_min", reason });
        }
        Ok(())
    }
}

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(KNOBS.len()))?;
        for knob in KNOBS {
            map.serialize_entry(knob.name, &(knob.json)(self, &knob.kind))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Settings {
    /// Reads settings; a knob that is absent has its default.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut settings = Settings::default();
        Assignments::deserialize(deserializer)?.apply(&mut settings).map_err(D::Error::custom)?;
        Ok(settings)
    }
}

/// The text in lines of at most `width` characters, where its words allow that.
pub(crate) fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.len() + 1 + word.len() <= width => {
                line.push(' ');
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines
}

/// The table as aligned text, for help: names on the left, lines of at most 80 characters.
pub fn help_text() -> String {
    let width = KNOBS.iter().map(|knob| knob.name.len()).max().unwrap_or(0);
    let mut text = String::from("Settings:\n");
    for knob in KNOBS {
        let values = format!("{}; default {}", knob.kind.range(), knob.default());
        let lines = [wrapped(knob.help, 76 - width), wrapped(&values, 76 - width)].concat();
        for (index, line) in lines.iter().enumerate() {
            let name = if index == 0 { knob.name } else { "" };
            let _ = writeln!(text, "  {name:width$}  {line}");
        }
    }
    text
}

/// The table as Markdown, for the documentation.
pub fn markdown() -> String {
    let mut text =
        String::from("| setting | type | values | default | meaning |\n|---|---|---|---|---|\n");
    for knob in KNOBS {
        let (name, kind, help) = (knob.name, knob.kind.word(), knob.help);
        let (range, default) = (knob.kind.range(), knob.default());
        let _ = writeln!(text, "| `{name}` | {kind} | {range} | `{default}` | {help} |");
    }
    text
}

/// The table as JSON, for the API.
pub fn json() -> Value {
    let knob = |knob: &Knob| {
        serde_json::json!({
            "name": knob.name,
            "kind": knob.kind,
            "default": (knob.json)(&Settings::default(), &knob.kind),
            "help": knob.help,
        })
    };
    serde_json::json!({ "knobs": KNOBS.iter().map(knob).collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(text: &str) -> Result<Settings, KnobError> {
        let mut settings = Settings::default();
        Assignments::parse(text.split_whitespace())?.apply(&mut settings)?;
        Ok(settings)
    }

    #[test]
    fn every_default_is_in_range_and_reads_back() {
        for knob in KNOBS {
            let mut settings = Settings::default();
            assert_eq!(knob.read(&mut settings, &knob.default()), Ok(()), "{}", knob.name);
            assert_eq!(settings, Settings::default());
        }
        assert_eq!(Settings::default().validate(), Ok(()));
    }

    #[test]
    fn every_word_of_a_choice_and_every_short_form_is_read() {
        for knob in KNOBS {
            let KnobKind::Choice { words } = knob.kind else { continue };
            let range = words.join(" ");
            for word in range.split([' ', ',', '(', ')']).filter(|w| !w.is_empty()) {
                assert_eq!(knob.read(&mut Settings::default(), word), Ok(()), "{word}");
            }
        }
    }

    #[test]
    fn every_value_that_is_listed_is_read() {
        for knob in KNOBS {
            for value in knob.kind.listed() {
                assert_eq!(knob.read(&mut Settings::default(), value), Ok(()), "{value}");
            }
        }
        let count = |name| Knob::find(name).expect("it is there").kind.listed().len();
        assert_eq!((count("mode"), count("writeback_running"), count("idle")), (5, 2, 0));
    }

    #[test]
    fn json_reads_back_and_keeps_types() {
        let settings =
            set("mode=wt sequential_cutoff=1000001 idle=off dirty_age=90s writeback_running=off \
                 quiet_hours=22:00-06:30 writeback_rate_max=10M")
            .expect("good");
        let json = serde_json::to_value(&settings).expect("plain data");
        assert_eq!(json["mode"], "writethrough");
        assert_eq!(json["sequential_cutoff"], 1_000_001);
        assert_eq!(json["idle"], "0");
        assert_eq!(json["dirty_age"], "90s");
        assert_eq!(json["writeback_running"], false);
        assert_eq!((&json["admission"], &json["promote"]), (&"always".into(), &0.into()));
        assert_eq!(json["quiet_hours"], "22:00-06:30");
        assert_eq!(json["writeback_rate_max"], 10 << 20);
        assert_eq!(serde_json::from_value::<Settings>(json).expect("own output"), settings);
    }

    #[test]
    fn every_rule_of_admission_and_every_size_of_a_neighbourhood_reads_back() {
        for rule in ["always", "second-hit", "ghost:2", "ghost:16"] {
            let settings = set(&format!("admission={rule}")).expect(rule);
            assert_eq!(Knob::find("admission").expect("it is there").text(&settings), rule);
            let json = serde_json::to_value(&settings).expect("plain data");
            assert_eq!(serde_json::from_value::<Settings>(json).expect("own output"), settings);
        }
        for shift in 11..=22 {
            let bytes = 1 << shift;
            assert_eq!(set(&format!("promote={bytes}")).expect("a power of two").promote, bytes);
        }
        assert_eq!(set("promote=256K").expect("a power of two").promote, 256 << 10);
    }

    #[test]
    fn what_is_shared_is_taken_over_and_nothing_else() {
        let one =
            set("policy=fifo cache_dirty_high=90 cache_dirty_low=80 dirty_high=70").expect("good");
        let mut other = Settings::default();
        assert!(other.share(&one) && !other.share(&one));
        let expected = set("policy=fifo cache_dirty_high=90 cache_dirty_low=80").expect("good");
        assert_eq!(other, expected);
    }

    #[test]
    fn bad_settings_are_refused_and_named() {
        let matrix = [
            ("dirty_high", "dirty_high"),
            ("=5", "''"),
            ("dirty_hihg=5", "dirty_hihg"),
            ("dirty_high=5 dirty_high=5", "dirty_high: given twice"),
            ("dirty_high=101", "dirty_high"),
            ("dirty_high=-1", "dirty_high"),
            ("dirty_high=1e1", "dirty_high"),
            ("dirty_high=", "dirty_high"),
            ("dirty_high=18446744073709551616", "dirty_high"),
            ("dirty_low=60", "dirty_low"),
            ("dirty_high=30", "dirty_low"),
            ("mode=WB", "mode"),
            ("mode=", "mode"),
            ("policy=mru", "policy"),
            ("durability=none", "durability"),
            ("sequential_cutoff=10GB", "sequential_cutoff"),
            ("sequential_cutoff=-1", "sequential_cutoff"),
            ("sequential_cutoff=2T", "sequential_cutoff"),
            ("dirty_age=30", "dirty_age"),
            ("dirty_age=1ms", "dirty_age"),
            ("dirty_age=31d", "dirty_age"),
            ("idle=-1s", "idle"),
            ("commit_interval=0", "commit_interval"),
            ("writeback_depth=0", "writeback_depth"),
            ("writeback_depth=+4", "writeback_depth"),
            ("writeback_running=yes", "writeback_running"),
            ("ordered=1", "ordered"),
            ("ordered=on mode=wt", "ordered=off"),
            ("mode=pt ordered=on", "mode=writeback"),
            ("admission=", "admission"),
            ("admission=never", "admission"),
            ("admission=Second-Hit", "admission"),
            ("admission=ghost", "admission"),
            ("admission=ghost:0", "admission"),
            ("admission=ghost:17", "ghost:16"),
            ("admission=ghost:-1", "admission"),
            ("write_budget=-1", "write_budget"),
            ("write_budget=100GB/day", "write_budget"),
            ("write_budget=2P", "write_budget"),
            ("promote=12K", "promote"),
            ("promote=1K", "promote"),
            ("promote=8M", "promote"),
            ("promote=3", "power of two"),
            ("congested_read_threshold=2", "congested_read_threshold"),
            ("congested_read_threshold=500us", "congested_read_threshold"),
            ("congested_write_threshold=61s", "congested_write_threshold"),
            ("congested_write_threshold=-1ms", "congested_write_threshold"),
            ("cache_dirty_high=40", "cache_dirty_low"),
            ("cache_dirty_low=101", "cache_dirty_low"),
            ("writeback_gap=2M", "writeback_gap"),
            ("writeback_gap=-1", "writeback_gap"),
            ("writeback_rate_min=1.5M", "writeback_rate_min"),
            ("writeback_rate_min=2M writeback_rate_max=1M", "writeback_rate_min"),
            ("writeback_rate_max=1K", "writeback_rate_min"),
            ("writeback_rate_max=2T", "writeback_rate_max"),
            ("writeback_rate_max=fast", "writeback_rate_max"),
            ("writeback_latency=50", "writeback_latency"),
            ("writeback_latency=2m", "writeback_latency"),
            ("quiet_hours=", "quiet_hours"),
            ("quiet_hours=on", "quiet_hours"),
            ("quiet_hours=22-6", "quiet_hours"),
            ("quiet_hours=22:00-24:00", "quiet_hours"),
            ("quiet_hours=06:00-06:00", "quiet_hours"),
        ];
        for (text, expected) in matrix {
            let error = set(text).expect_err(text).to_string();
            assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
        }
    }

    #[test]
    fn help_and_markdown_have_a_line_for_every_knob() {
        for knob in KNOBS {
            assert!(help_text().contains(knob.name) && help_text().contains(&knob.default()));
            assert!(help_text().lines().all(|line| line.len() <= 80));
            assert!(markdown().contains(&format!("| `{}` |", knob.name)));
        }
        assert_eq!(markdown().lines().count(), KNOBS.len() + 2);
        assert_eq!(json()["knobs"].as_array().map(Vec::len), Some(KNOBS.len()));
    }
}
