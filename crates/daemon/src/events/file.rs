//! The file of events: one line of JSON per event. It consists of two files; the older one is
//! dropped when the newer one is full.
//!
//! A crash may tear the last line. A line that cannot be read is skipped, and the next one is
//! written after a line end.

use std::collections::VecDeque;
use std::fs::{self, File};
use std::io::{ErrorKind as Io, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use forebay_admin::Event;

use crate::private;

/// Most bytes of both files together.
pub(crate) const MAX_BYTES: u64 = 1 << 20;

/// Most bytes of one file.
const MAX_FILE: u64 = MAX_BYTES / 2;

/// Most lines that are kept while the file cannot be written.
const MAX_WAITING: usize = 1024;

const NEWER: &str = "events.jsonl";
const OLDER: &str = "events.old.jsonl";

/// Returns the events in a state directory, oldest first, with their lines. Changes nothing.
pub fn read(dir: &Path) -> Vec<(String, Event)> {
    let mut found = Vec::new();
    for name in [OLDER, NEWER] {
        let path = dir.join(name);
        match tail(&path) {
            Ok(text) => found.extend(text.lines().filter_map(|line| {
                let event = serde_json::from_str(line).ok()?;
                Some((line.to_owned(), event))
            })),
            Err(error) if error.kind() == Io::NotFound => {}
            Err(error) => {
                tracing::warn!(path = %path.display(), "events cannot be read: {error}");
            }
        }
    }
    found
}

/// Returns the end of a file, at most as many bytes as this program writes.
fn tail(path: &Path) -> std::io::Result<String> {
    let mut file = private::open(path)?;
    let len = file.metadata()?.len();
    file.seek(SeekFrom::Start(len.saturating_sub(MAX_FILE)))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Appends events.
pub(super) struct EventFile {
    dir: PathBuf,
    /// The newer file with its length; absent until it is needed, and after a failure.
    open: Option<(File, u64)>,
    /// Lines that could not be written yet.
    waiting: VecDeque<Vec<u8>>,
    /// Whether a failure was reported and nothing has been written since.
    failing: bool,
}

impl EventFile {
    /// Creates the file of a state directory; nothing is opened yet.
    pub(super) fn new(dir: &Path) -> Self {
        EventFile { dir: dir.to_owned(), open: None, waiting: VecDeque::new(), failing: false }
    }

    /// Writes a line with its end, after those that wait.
    pub(super) fn add(&mut self, line: Vec<u8>) {
        self.waiting.push_back(line);
        if self.waiting.len() > MAX_WAITING {
            self.waiting.pop_front();
        }
        self.write();
    }

    /// Writes the waiting lines as far as possible. A failure is reported once.
    pub(super) fn write(&mut self) {
        let wrote = !self.waiting.is_empty();
        while let Some(line) = self.waiting.front() {
            match append(&self.dir, &mut self.open, line) {
                Ok(()) => _ = self.waiting.pop_front(),
                Err(error) => {
                    // The next attempt examines the file again.
                    self.open = None;
                    if !self.failing {
                        tracing::warn!(dir = %self.dir.display(), "events cannot be written, and are kept in memory: {error}");
                    }
                    self.failing = true;
                    return;
                }
            }
        }
        if wrote {
            self.failing = false;
            if let Some((file, _)) = &self.open
                && let Err(error) = file.sync_data()
            {
                tracing::debug!("events cannot be synced: {error}");
            }
        }
    }
}

fn append(dir: &Path, open: &mut Option<(File, u64)>, line: &[u8]) -> std::io::Result<()> {
    if open.as_ref().is_some_and(|(_, len)| len + line.len() as u64 > MAX_FILE) {
        *open = None;
        fs::rename(dir.join(NEWER), dir.join(OLDER))?;
    }
    let (file, len) = match open {
        Some(there) => there,
        None => open.insert(open_at_end(&dir.join(NEWER))?),
    };
    if let Err(error) = file.write_all(line) {
        // On a full filesystem a part of the line may have been written, which would only take
        // space.
        let _ = file.set_len(*len);
        return Err(error);
    }
    *len += line.len() as u64;
    Ok(())
}

/// Opens a file for appending whole lines; cuts off an incomplete last line.
fn open_at_end(path: &Path) -> std::io::Result<(File, u64)> {
    let mut file = private::append(path)?;
    let all = file.metadata()?.len();
    let from = all.saturating_sub(MAX_FILE);
    file.seek(SeekFrom::Start(from))?;
    let mut bytes = Vec::new();
    (&file).take(MAX_FILE).read_to_end(&mut bytes)?;
    let whole = bytes.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at as u64 + 1);
    let len = from + whole;
    if len < all {
        file.set_len(len)?;
    }
    Ok((file, len))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::TempDir;

    fn line(id: u64) -> Vec<u8> {
        let text = format!(
            r#"{{"id":{id},"time":"2026-01-02T03:04:05Z","kind":"drained","severity":"info","message":"m"}}"#
        );
        (text + "\n").into_bytes()
    }

    fn ids(dir: &Path) -> Vec<u64> {
        read(dir).into_iter().map(|(_, event)| event.id.0).collect()
    }

    #[test]
    fn the_oldest_events_go_first_and_the_files_stay_small() {
        let dir = TempDir::new("events-size");
        let most = MAX_BYTES as usize / line(10_000).len();
        let mut file = EventFile::new(dir.path());
        for id in 0..3 * most as u64 {
            // Most lines are written together, because each write is synced.
            file.waiting.push_back(line(id));
            if id % 500 == 0 {
                file.write();
            }
        }
        file.write();
        let size = |name| fs::metadata(dir.path().join(name)).expect("it is there").len();
        assert!(size(NEWER) <= MAX_FILE && size(OLDER) <= MAX_FILE);
        let ids = ids(dir.path());
        assert!(ids.len() >= most / 2 && ids.is_sorted());
        assert_eq!(ids.last(), Some(&(3 * most as u64 - 1)));
        assert_eq!(ids.len() as u64, ids[ids.len() - 1] - ids[0] + 1, "there is no gap");
    }

    #[test]
    fn a_line_that_is_torn_anywhere_costs_only_itself() {
        let torn = line(2);
        for cut in 0..torn.len() {
            let dir = TempDir::new("events-torn");
            let path = dir.path().join(NEWER);
            fs::write(&path, [line(1), torn[..cut].to_vec()].concat()).expect("writable");
            assert_eq!(ids(dir.path())[0], 1);
            EventFile::new(dir.path()).add(line(3));
            assert_eq!(ids(dir.path()), [1, 3], "cut after {cut} bytes");
        }
    }

    #[test]
    fn lines_that_are_damaged_or_of_later_versions_are_skipped() {
        let dir = TempDir::new("events-damaged");
        let later = String::from_utf8(line(4)).expect("text").replace("drained", "teleported");
        let parts = [line(1), b"\0\0\xff\n{}\n[1]\n".to_vec(), later.into_bytes(), line(5)];
        fs::write(dir.path().join(NEWER), parts.concat()).expect("writable");
        assert_eq!(ids(dir.path()), [1, 5]);
    }

    #[test]
    fn a_full_device_costs_nothing_but_what_does_not_fit() {
        let dir = TempDir::new("events-full");
        std::os::unix::fs::symlink("/dev/full", dir.path().join(NEWER)).expect("writable");
        let mut file = EventFile::new(dir.path());
        for id in 0..2 * MAX_WAITING as u64 {
            file.add(line(id));
        }
        assert!(file.failing);
        fs::remove_file(dir.path().join(NEWER)).expect("removable");
        file.write();
        assert_eq!(ids(dir.path()).len(), MAX_WAITING);
        assert_eq!(ids(dir.path())[0], MAX_WAITING as u64, "the oldest went first");
    }
}
