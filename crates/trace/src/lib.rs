//! Traces: requests that a machine once made, read from files in the formats in which such traces
//! are published or written by tools.
//!
//! A trace is read as a stream, request by request; a line or record that cannot be read is an
//! error that names the file and the position. Lines and records that are not requests (comments,
//! flushes, other commands) are skipped.
//!
//! - `format`: the formats, and the detection of a file's format
//! - `blkparse`, `csv`, `iolog`, `lis`, `msr`, `vscsi`: one format each
//! - `text`: lines and their fields; `zst`: compressed files
//! - `align`: whether requests start where blocks do
//! - `blocks`: the blocks that a request touches
//! - `error`: why a trace cannot be read

#![forbid(unsafe_code)]

mod align;
mod blkparse;
mod blocks;
mod csv;
mod error;
mod format;
mod iolog;
mod lis;
mod msr;
mod text;
mod vscsi;
mod zst;

use std::fs::File;
use std::io::{BufReader, Cursor, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_core::{Nanos, Op};

use error::unreadable;

pub use align::{Alignment, Suggestion};
pub use blocks::BLOCK;
pub use error::{TraceError, TraceResult};
pub use format::Format;

/// Bytes of a sector, the unit of most formats.
const SECTOR: u64 = 512;

/// Number of bytes that are examined to detect the format.
const HEAD: u64 = 16 << 10;

/// One request of a trace: a read, a write or a discard.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Since the first request, if the trace has times.
    pub time: Option<Nanos>,
    /// Operation of the request.
    pub op: Op,
    /// The first byte, as an offset on the device.
    pub offset: u64,
    /// Bytes, at least 1; the end is not beyond 2^64.
    pub len: u64,
    /// Number of the device in the trace.
    pub device: u32,
}

/// A format's result for a line or record: a request, `None` for anything else, or the error.
type Parsed = Result<Option<Request>, String>;

/// Returns a request unless its length is 0; fails if it ends beyond 2^64. Times are those of the
/// trace's own clock.
fn request(time: Option<u64>, op: Op, offset: u64, len: u64, device: u32) -> Parsed {
    if len == 0 {
        return Ok(None);
    }
    match offset.checked_add(len) {
        Some(_) => Ok(Some(Request { time: time.map(Nanos), op, offset, len, device })),
        None => Err(format!("the request at {offset} of {len} bytes ends beyond 2^64")),
    }
}

/// Sectors as bytes.
fn sectors(count: u64) -> Result<u64, String> {
    count.checked_mul(SECTOR).ok_or_else(|| format!("sector {count} is beyond 2^64 bytes"))
}

/// The requests of a trace, in order. After an error the iterator ends.
pub struct Requests {
    format: Format,
    requests: Box<dyn Iterator<Item = TraceResult<Request>> + Send>,
    /// The time of the first request.
    first: Option<Nanos>,
    shift: u64,
    failed: bool,
    file_bytes: u64,
    bytes_read: Arc<AtomicU64>,
}

/// A file that counts the bytes that are read from it.
struct CountingFile {
    file: File,
    bytes: Arc<AtomicU64>,
}

impl Read for CountingFile {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.bytes.fetch_add(count as u64, Ordering::Relaxed);
        Ok(count)
    }
}

impl std::fmt::Debug for Requests {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Requests").field("format", &self.format).finish_non_exhaustive()
    }
}

impl Requests {
    /// Returns the detected format.
    pub fn format(&self) -> Format {
        self.format
    }

    /// Returns the size of the file, in bytes as stored.
    pub fn file_bytes(&self) -> u64 {
        self.file_bytes
    }

    /// Returns the number of bytes of the file that were read so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read.load(Ordering::Relaxed)
    }
}

/// Opens a trace, compressed with zstd or not; `shift` bytes are added to every offset. Unless a
/// format is given, the file's content and name determine it.
///
/// # Errors
/// The file cannot be read, or its format is unknown.
pub fn open(path: &Path, format: Option<Format>, shift: u64) -> TraceResult<Requests> {
    let name = path.display().to_string();
    let failed = |error: std::io::Error| unreadable(format!("{name} cannot be read: {error}"));
    let file = File::open(path).map_err(failed)?;
    let metadata = file.metadata().map_err(failed)?;
    if metadata.is_dir() {
        return Err(TraceError::Usage(format!(
            "{name} is a directory; a file with a trace, please"
        )));
    }
    let bytes_read = Arc::new(AtomicU64::new(0));
    let raw: Box<dyn Read + Send> = Box::new(CountingFile { file, bytes: bytes_read.clone() });
    let (magic, raw) = begin(raw, 4).map_err(failed)?;
    let plain = if zst::is_compressed(&magic) { Box::new(zst::Frames::new(raw)) } else { raw };
    let (head, plain) = begin(plain, HEAD).map_err(failed)?;
    let format = match format.or_else(|| format::tell(&head, path)) {
        Some(format) => format,
        None => {
            let words = format::WORDS;
            let what = format!("the format of {name} is not known; say it with --format: {words}");
            return Err(TraceError::Usage(what));
        }
    };
    let source = BufReader::with_capacity(1 << 17, plain);
    let requests: Box<dyn Iterator<Item = TraceResult<Request>> + Send> = match format {
        Format::Csv => text::lines(name, source, csv::Csv::default()),
        Format::Lis => text::lines(name, source, lis::Lis),
        Format::Msr => text::lines(name, source, msr::Msr::default()),
        Format::Blkparse => text::lines(name, source, blkparse::Blkparse::default()),
        Format::Iolog => text::lines(name, source, iolog::Iolog::default()),
        Format::Vscsi => Box::new(vscsi::VscsiRecords::new(name, source)),
    };
    let file_bytes = metadata.len();
    Ok(Requests { format, requests, first: None, shift, failed: false, file_bytes, bytes_read })
}

/// Returns the first bytes of a stream, at most `most`, and a stream that still begins with them.
fn begin(
    mut source: Box<dyn Read + Send>,
    most: u64,
) -> std::io::Result<(Vec<u8>, Box<dyn Read + Send>)> {
    let mut head = Vec::new();
    source.by_ref().take(most).read_to_end(&mut head)?;
    let whole = Cursor::new(head.clone()).chain(source);
    Ok((head, Box::new(whole)))
}

impl Iterator for Requests {
    type Item = TraceResult<Request>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed {
            return None;
        }
        let mut request = match self.requests.next()? {
            Ok(request) => request,
            Err(error) => {
                self.failed = true;
                return Some(Err(error));
            }
        };
        if let Some(time) = request.time {
            let first = *self.first.get_or_insert(time);
            request.time = Some(Nanos(time.0.saturating_sub(first.0)));
        }
        let moved = request.offset.checked_add(self.shift);
        match moved.filter(|offset| offset.checked_add(request.len).is_some()) {
            Some(offset) => {
                request.offset = offset;
                Some(Ok(request))
            }
            None => {
                self.failed = true;
                let what = format!("with --align a request at {} ends beyond 2^64", request.offset);
                Some(Err(TraceError::Usage(what)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(name: &str, content: &[u8], format: Option<Format>) -> TraceResult<Vec<Request>> {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join(name);
        std::fs::write(&path, content).expect("written");
        open(&path, format, 0)?.collect()
    }

    const CSV: &str = "ts_us,op,offset,size\n5,R,4096,512\n7,W,0,8192\n";

    #[test]
    fn a_compressed_trace_reads_as_the_plain_one() {
        let plain = read("a.csv", CSV.as_bytes(), None).expect("reads");
        let expected =
            Request { time: Some(Nanos(2000)), op: Op::Write, offset: 0, len: 8192, device: 0 };
        assert_eq!((plain.len(), plain[1], plain[0].time), (2, expected, Some(Nanos(0))));
        let compress = |text: &str| {
            let level = ruzstd::encoding::CompressionLevel::Fastest;
            ruzstd::encoding::compress_to_vec(text.as_bytes(), level)
        };
        assert_eq!(read("a.csv.zst", &compress(CSV), None).expect("reads"), plain);
        // Several frames, as when files were put together.
        let (one, other) = CSV.split_at(30);
        let frames = [compress(one), compress(other)].concat();
        assert_eq!(read("b", &frames, None).expect("reads"), plain);
        let error = read("c.zst", &frames[..frames.len() - 5], None).unwrap_err().to_string();
        assert!(error.contains("c.zst"), "{error}");
    }

    #[test]
    fn an_error_names_file_and_line_and_ends_the_trace() {
        let text = format!("{CSV}9,R,x,1\n10,R,0,1\n");
        let error = read("bad.csv", text.as_bytes(), None).unwrap_err().to_string();
        assert!(error.contains("bad.csv") && error.contains("line 4"), "{error}");
        assert!(!error.contains('\n'));

        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("bad.csv");
        std::fs::write(&path, text).expect("written");
        let all: Vec<_> = open(&path, None, 0).expect("opens").collect();
        assert_eq!(all.len(), 3);
        assert!(all[2].is_err());
    }

    #[test]
    fn an_unknown_format_is_asked_for() {
        let error = read("a.txt", b"hello\n", None).unwrap_err();
        assert!(matches!(error, TraceError::Usage(_)));
        assert!(error.to_string().contains("--format"));
        assert!(read("empty", b"", None).is_err());
        assert_eq!(read("empty", b"", Some(Format::Lis)).expect("nothing is fine").len(), 0);
    }

    #[test]
    fn offsets_are_shifted_but_never_round() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.csv");
        std::fs::write(&path, CSV).expect("written");
        let shifted: Vec<_> =
            open(&path, None, 512).expect("opens").collect::<TraceResult<_>>().expect("reads");
        assert_eq!(shifted[0].offset, 4608);
        assert!(open(&path, None, u64::MAX).expect("opens").next().is_some_and(|r| r.is_err()));
    }

    /// Reading a file of any content ends without a panic.
    #[test]
    fn rubbish_does_no_harm() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("x");
        let mut random = fastrand::Rng::with_seed(1);
        for round in 0..400 {
            let len = random.usize(0..300);
            let content: Vec<u8> = match round % 3 {
                0 => (0..len).map(|_| random.u8(..)).collect(),
                1 => {
                    let letters = b"0123456789,,  \n\nRWDQ+-8:.fio version";
                    (0..len).map(|_| letters[random.usize(0..letters.len())]).collect()
                }
                _ => {
                    let mut content = CSV.as_bytes().to_vec();
                    let at = random.usize(0..content.len());
                    content[at] = random.u8(..);
                    content
                }
            };
            std::fs::write(&path, content).expect("written");
            let formats = Format::ALL.iter().copied().map(Some);
            for format in formats.chain([None]) {
                if let Ok(requests) = open(&path, format, 0) {
                    assert!(requests.count() <= 300);
                }
            }
        }
    }
}
