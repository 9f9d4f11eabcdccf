//! The last hours: a sample of all volumes every ten seconds, in memory and in a file of the state
//! directory.
//!
//! The file is replaced as a whole. If it is absent or has damaged lines, only the samples in them
//! are missing.

use std::collections::VecDeque;
use std::io::Read;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::private;
use crate::replace::replace;
use forebay_admin::activity::{Activity, Interval};

/// Most samples: six hours.
const MAX_SAMPLES: usize = 2160;

/// Most bytes, in memory and in the file. With many volumes they cover fewer hours.
const MAX_BYTES: usize = 1 << 20;

const FILE: &str = "history.jsonl";

/// The activity of all volumes, on average over ten seconds.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct ActivitySample {
    /// Seconds since 1970, at the end.
    time: u64,
    volumes: Vec<Point>,
}

/// The activity of a volume.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
struct Point {
    name: String,
    hit_ratio: Option<f32>,
    iops: u64,
    bytes_per_second: u64,
    p50_us: Option<u64>,
    p99_us: Option<u64>,
    dirty_bytes: Option<u64>,
}

impl Point {
    fn of(activity: &Activity) -> Self {
        let times = activity.times();
        let whole = |number: f64| number.round() as u64;
        Point {
            name: activity.name.as_str().to_owned(),
            hit_ratio: activity.hit_ratio.map(|ratio| (ratio * 1e4).round() as f32 / 1e4),
            iops: whole(activity.iops),
            bytes_per_second: whole(activity.bytes_per_second()),
            p50_us: times.p50_us.map(whole),
            p99_us: times.p99_us.map(whole),
            dirty_bytes: activity.unwritten_bytes(),
        }
    }
}

/// See the module.
pub(super) struct ActivityHistory {
    dir: PathBuf,
    /// A line of JSON for each sample, oldest first.
    lines: VecDeque<String>,
    bytes: usize,
}

impl ActivityHistory {
    /// Reads the history in a state directory.
    pub(super) fn read(dir: &Path) -> Self {
        let mut history = ActivityHistory { dir: dir.to_owned(), lines: VecDeque::new(), bytes: 0 };
        let mut bytes = Vec::new();
        let file = private::open(&dir.join(FILE));
        match file.and_then(|file| file.take(MAX_BYTES as u64).read_to_end(&mut bytes)) {
            Ok(_) => {}
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!("the history cannot be read: {error}"),
        }
        let text = String::from_utf8_lossy(&bytes);
        for line in text.lines() {
            if let Ok(sample) = serde_json::from_str::<ActivitySample>(line) {
                history.push(&sample);
            }
        }
        history
    }

    /// Adds the activity of an interval.
    pub(super) fn add(&mut self, interval: &Interval) {
        let volumes = interval.volumes.iter().map(Point::of).collect();
        self.push(&ActivitySample { time: interval.time as u64, volumes });
    }

    fn push(&mut self, sample: &ActivitySample) {
        let line = serde_json::to_string(sample).unwrap_or_default();
        self.bytes += line.len() + 1;
        self.lines.push_back(line);
        while (self.bytes > MAX_BYTES || self.lines.len() > MAX_SAMPLES)
            && let Some(line) = self.lines.pop_front()
        {
            self.bytes -= line.len() + 1;
        }
    }

    /// Returns everything as JSON.
    pub(super) fn json(&self) -> String {
        let samples: Vec<&str> = self.lines.iter().map(String::as_str).collect();
        format!("{{\"samples\":[{}]}}", samples.join(","))
    }

    /// Returns the text to write, so that the caller can write it without the lock.
    pub(super) fn to_write(&self) -> ToWrite {
        let text = self.lines.iter().flat_map(|line| [line, "\n"]).collect();
        ToWrite { dir: self.dir.clone(), text }
    }
}

/// A history to be written.
pub(super) struct ToWrite {
    dir: PathBuf,
    text: String,
}

impl ToWrite {
    /// Replaces the file; a failure costs the new samples.
    pub(super) fn write(&self) {
        if let Err(error) = replace(&self.dir.join(FILE), self.text.as_bytes()) {
            tracing::debug!("the history cannot be written: {error}");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use forebay_testkit::TempDir;

    fn sample(time: u64, volumes: usize) -> ActivitySample {
        let point = |number| Point {
            name: format!("volume-{number}"),
            hit_ratio: Some(0.5),
            iops: 1,
            bytes_per_second: 4096,
            p50_us: Some(10),
            p99_us: None,
            dirty_bytes: Some(0),
        };
        ActivitySample { time, volumes: (0..volumes).map(point).collect() }
    }

    fn times(history: &ActivityHistory) -> Vec<u64> {
        let parsed =
            |line: &String| serde_json::from_str::<ActivitySample>(line).expect("valid").time;
        history.lines.iter().map(parsed).collect()
    }

    #[test]
    fn the_history_survives_a_restart_and_is_bounded() {
        let dir = TempDir::new("history");
        let mut history = ActivityHistory::read(dir.path());
        for time in 0..3000 {
            history.push(&sample(time, 1));
        }
        history.to_write().write();
        let again = ActivityHistory::read(dir.path());
        assert_eq!(times(&again), (3000 - MAX_SAMPLES as u64..3000).collect::<Vec<_>>());
        let parsed: serde_json::Value = serde_json::from_str(&again.json()).expect("JSON");
        assert_eq!(parsed["samples"][0]["volumes"][0]["name"], "volume-0");
        for time in 3000..3100 {
            history.push(&sample(time, 1000));
        }
        history.to_write().write();
        let size = fs::metadata(dir.path().join(FILE)).expect("written").len();
        assert!(history.bytes as u64 == size && size <= MAX_BYTES as u64, "{size} bytes");
        assert_eq!(times(&history).last(), Some(&3099));
    }

    #[test]
    fn a_file_that_is_torn_or_damaged_costs_only_the_lines_that_are() {
        let dir = TempDir::new("history-torn");
        let mut history = ActivityHistory::read(&dir.path().join("absent"));
        assert_eq!(history.json(), "{\"samples\":[]}");
        history.to_write().write();
        (1..=3).for_each(|time| history.push(&sample(time, 1)));
        let text = history.to_write().text;
        for cut in 0..text.len() {
            fs::write(dir.path().join(FILE), &text.as_bytes()[..cut]).expect("writable");
            let found = times(&ActivityHistory::read(dir.path()));
            assert_eq!(found, (1..=found.len() as u64).collect::<Vec<_>>());
        }
        fs::write(dir.path().join(FILE), format!("\0\u{1}[]\n{{}}\n{text}")).expect("writable");
        assert_eq!(times(&ActivityHistory::read(dir.path())), [1, 2, 3]);
    }
}
