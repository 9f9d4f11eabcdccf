//! The content of a device, as far as it determines whether the device may be overwritten: marks of
//! other systems, or other data.
#![expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "waits for a process, on a thread of an operation"
)]

use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use forebay_core::text::one_line;
use forebay_device::signature::{self, Signature, Usage};
use forebay_device::{Device, blkid};
use forebay_export::helper;
use forebay_format::Digest;

/// Bytes that are read at the start and at the end of a device.
const EDGE: u64 = 1 << 20;
/// Bytes of each sample between the edges.
const PAGE: u64 = 4096;
/// Samples at equal distances.
const SAMPLES: u64 = 64;
/// Number of runs of data in a sparse file up to which their first bytes are read as well.
const MOST_RUNS: usize = 1024;
/// Most marks that are named in messages.
const MOST_NAMED: usize = 4;

/// Argument of the hidden verb [`helper::VERB`] that requests [`print_marks`].
pub(crate) const MARKS_WORD: &str = "marks";
/// Time limit for the helper process; the device has just answered other reads.
const PATIENCE: Duration = Duration::from_secs(60);
/// Interval at which the process is polled.
const STEP: Duration = Duration::from_millis(2);

/// The content that was found on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceContent {
    /// Marks of other systems.
    pub marks: Vec<Signature>,
    /// Whether all bytes that were read are the pattern of a device to which nothing was written.
    pub blank: bool,
    /// Changes if any of the bytes that were read change.
    fingerprint: u128,
}

impl DeviceContent {
    /// Examines a device of `size` bytes: its edges, samples in between, and the bytes at `runs`.
    /// `read` returns bytes at an offset; both are multiples of the device's logical block. `marks`
    /// finds marks; if it returns `None`, the first bytes are searched for the common ones.
    ///
    /// # Errors
    /// The error of `read`.
    pub fn look<E>(
        size: u64,
        runs: &[u64],
        marks: impl FnOnce() -> Option<Vec<Signature>>,
        mut read: impl FnMut(u64, usize) -> Result<Vec<u8>, E>,
    ) -> Result<Self, E> {
        let head_end = EDGE.min(size);
        let tail = head_end.max(size.saturating_sub(EDGE));
        let step = tail.saturating_sub(head_end) / SAMPLES;
        let spread = (0..SAMPLES).map(|index| head_end + index * step);
        let pages = spread.chain(runs.iter().copied()).map(|at| at - at % PAGE);
        let pages = pages.filter(|at| (head_end..tail).contains(at));
        let mut parts = vec![(0, head_end), (tail, size - tail)];
        parts.extend(pages.map(|at| (at, PAGE.min(size - at))));
        parts.dedup();
        let (mut head, mut blank, mut digest) = (Vec::new(), true, Digest::new());
        for (at, len) in parts {
            let bytes = read(at, len as usize)?;
            blank &= is_blank(&bytes);
            digest.add(&bytes);
            if at == 0 {
                head = bytes;
            }
        }
        let marks = marks().unwrap_or_else(|| signature::named(&head).into_iter().collect());
        Ok(DeviceContent { marks, blank, fingerprint: digest.value() })
    }

    /// Describes the content, in words that can follow "it holds".
    pub fn describe(&self) -> String {
        if self.marks.is_empty() {
            let what = if self.blank { "nothing" } else { "data of an unknown kind (not blank)" };
            return what.to_owned();
        }
        let named: Vec<String> =
            self.marks.iter().take(MOST_NAMED).map(Signature::to_string).collect();
        let more = match self.marks.len().saturating_sub(MOST_NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        // Labels are the device's words.
        one_line(&format!("{}{more}", named.join(" and ")))
    }
}

/// Returns whether each page has the single value that it has on a device that was never written,
/// or was discarded.
fn is_blank(bytes: &[u8]) -> bool {
    bytes.chunks(PAGE as usize).all(|page| {
        let first = page.first().copied().unwrap_or(0);
        (first == 0 || first == 0xff) && page.iter().all(|byte| *byte == first)
    })
}

/// Returns the offsets at which runs of data begin in a sparse file. May wait for the device.
pub(crate) fn runs(device: &dyn Device) -> Vec<u64> {
    let (mut found, mut at) = (Vec::new(), 0);
    while at < device.size() && found.len() < MOST_RUNS && device.knows_holes() {
        let Some(extent) = device.extent_at(at).filter(|extent| extent.end > at) else { break };
        if !extent.hole {
            found.push(at);
        }
        at = extent.end;
    }
    found
}

/// Returns the marks of [`blkid::marks`], found by a separate process: libblkid parses bytes that
/// any writer of the device controls, and must not end the daemon. `None` if there is no libblkid
/// or it has failed.
pub(crate) fn marks_apart(device: OwnedFd) -> Option<Vec<Signature>> {
    match ask(device) {
        Ok(marks) => Some(marks),
        Err(error) => {
            tracing::warn!(%error, "libblkid cannot examine the device; only the common marks are looked for");
            None
        }
    }
}

fn ask(device: OwnedFd) -> io::Result<Vec<Signature>> {
    let mut child = Command::new("/proc/self/exe")
        .args([helper::VERB, MARKS_WORD])
        .stdin(device)
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()?;
    let end = Instant::now() + PATIENCE;
    while child.try_wait()?.is_none() {
        if Instant::now() >= end {
            let _ = child.kill();
            let _ = std::thread::Builder::new().spawn(move || child.wait());
            return Err(io::ErrorKind::TimedOut.into());
        }
        std::thread::sleep(STEP);
    }
    let mut answer = String::new();
    if let Some(mut out) = child.stdout.take() {
        out.read_to_string(&mut answer)?;
    }
    parse(&answer).ok_or_else(|| io::Error::other("there is no libblkid.so.1, or it has failed"))
}

/// A mark in the form in which it is passed on: usage, kind, label, UUID, offset.
type Passed = (String, String, Option<String>, Option<String>, u64);

/// Prints the marks of the device that is standard input, for [`marks_apart`].
///
/// # Errors
/// There is no libblkid, or the device cannot be read.
pub(crate) fn print_marks() -> io::Result<String> {
    let marks = blkid::marks(io::stdin().as_fd())?;
    let passed: Vec<Passed> = marks
        .into_iter()
        .map(|mark| (mark.usage.name().to_owned(), mark.kind, mark.label, mark.uuid, mark.offset))
        .collect();
    Ok(serde_json::to_string(&passed)?)
}

fn parse(answer: &str) -> Option<Vec<Signature>> {
    let passed: Vec<Passed> = serde_json::from_str(answer).ok()?;
    let mark = |(usage, kind, label, uuid, offset): Passed| Signature {
        usage: Usage::of(&usage),
        kind,
        label,
        uuid,
        offset,
    };
    Some(passed.into_iter().map(mark).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Examines these bytes without libblkid.
    fn look(bytes: &[u8], runs: &[u64]) -> DeviceContent {
        let read = |at: u64, len: usize| {
            let from = usize::try_from(at).expect("small");
            Ok::<_, ()>(bytes[from..from + len].to_vec())
        };
        DeviceContent::look(bytes.len() as u64, runs, || None, read).expect("readable")
    }

    #[test]
    fn blank_is_what_nothing_was_written_to() {
        for size in [0, 512, 4096, 1 << 20, (1 << 20) + 512, 3 << 20, 9 << 20] {
            for value in [0, 0xff] {
                let mut bytes = vec![value; size];
                let content = look(&bytes, &[]);
                assert!(content.blank, "{size} bytes of {value}");
                assert_eq!(content.describe(), "nothing");
                // A difference of one byte at either edge suffices.
                for at in [0, size.wrapping_sub(1)].into_iter().filter(|at| *at < size) {
                    bytes[at] ^= 1;
                    let other = look(&bytes, &[]);
                    assert!(!other.blank && other != content, "byte {at} of {size}");
                    assert_eq!(other.describe(), "data of an unknown kind (not blank)");
                    bytes[at] ^= 1;
                }
            }
            let other = look(&vec![7; size], &[]);
            assert_eq!(other.blank, size == 0);
        }
        // A discarded disk whose partition table was zeroed.
        assert!(look(&[vec![0; 4096], vec![0xff; 4 << 20]].concat(), &[]).blank);
    }

    /// Like the superblock of ext4, which each mount writes: its CRC32C follows it, so that a
    /// CRC32C over both is constant.
    #[test]
    fn a_mount_meanwhile_changes_what_was_seen() {
        let mounted = |times: u8| {
            let mut bytes = vec![0; 3 << 20];
            bytes[1024 + 52] = times;
            let check = !forebay_format::crc32c(&bytes[1024..2044]);
            bytes[2044..2048].copy_from_slice(&check.to_le_bytes());
            bytes
        };
        assert_eq!(forebay_format::crc32c(&mounted(1)), forebay_format::crc32c(&mounted(2)));
        assert!(look(&mounted(1), &[]) == look(&mounted(1), &[]));
        assert!(look(&mounted(1), &[]) != look(&mounted(2), &[]));
    }

    #[test]
    fn samples_and_runs_of_a_sparse_file_find_data_in_the_middle() {
        let mut bytes = vec![0; 66 << 20];
        bytes[1 << 20..65 << 20].fill(9);
        assert!(!look(&bytes, &[]).blank, "all of the middle");
        bytes.fill(0);
        bytes[(5 << 20) + 8192] = 1;
        assert!(look(&bytes, &[]).blank, "samples cannot see one byte");
        assert!(!look(&bytes, &[0, (5 << 20) + 8192]).blank, "but the file knows where it is");
    }

    #[test]
    fn marks_are_named_on_one_line() {
        let mark = |label: &str| Signature {
            usage: Usage::Filesystem,
            kind: "ext4".to_owned(),
            label: Some(label.to_owned()),
            uuid: None,
            offset: 1080,
        };
        let content = |marks| DeviceContent { marks, blank: false, fingerprint: 0 };
        let said = content(vec![mark("a\nb\u{1b}[2J")]).describe();
        assert_eq!(said, "an ext4 filesystem labelled 'a b [2J'");
        let many = content(vec![mark("a"); 6]).describe();
        assert!(many.ends_with("labelled 'a' and 2 more"), "{many}");
        let known = look(&[&[0; 4086][..], b"SWAPSPACE2", &[0; 512]].concat(), &[]);
        assert_eq!(known.describe(), "swap space", "without libblkid");
        let passed =
            parse(r#"[["raid","zfs_member","tank",null,7],["partitions","gpt",null,"u",512]]"#);
        let said = content(passed.expect("good")).describe();
        assert_eq!(said, "a zfs_member labelled 'tank' and a GPT partition table with UUID u");
        assert_eq!(parse("no number"), None);
    }
}
