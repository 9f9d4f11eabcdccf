//! The control file of a faulty device.

use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_core::Nanos;
use parking_lot::Mutex;

use super::rules::{OpFate, Rules, Shape};

/// Longest time for which a change of the file may remain unnoticed.
const LOOK: Duration = Duration::from_millis(2);

/// Identifies one version of the file: inode, size, and the times of the last change of the content
/// and of the inode.
type FileStamp = (u64, u64, (i64, i64), (i64, i64));

struct State {
    stamp: Option<FileStamp>,
    /// Number of contents seen.
    edition: u64,
    rules: Result<Rules, String>,
    looked: Option<Nanos>,
}

/// The control file of an open device.
pub(crate) struct ControlFile {
    path: PathBuf,
    state: Mutex<State>,
}

/// The decision about an operation.
#[derive(Debug)]
pub(super) struct Judged {
    /// Number of the version of the file on which the decision is based.
    pub(super) edition: u64,
    /// The delay before it takes effect.
    pub(super) delay: Duration,
    /// The verdict, or the reason why the file is invalid.
    pub(super) verdict: Result<OpFate, String>,
}

impl ControlFile {
    pub(super) fn new(path: PathBuf) -> Self {
        let state = State { stamp: None, edition: 0, rules: Ok(Rules::default()), looked: None };
        ControlFile { path, state: Mutex::new(state) }
    }

    /// Returns the rules in the file; no rules if it does not exist.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub(super) fn read(path: &Path) -> Result<Rules, String> {
        let text = match std::fs::read_to_string(path) {
            Ok(text) => text,
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(format!("{}: {error}", path.display())),
        };
        Rules::parse(&text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Reads the file again if it has changed, unless it was checked within [`LOOK`]. Returns the
    /// number of its version, and whether held writes are to be dropped.
    pub(super) fn look(&self, now: Nanos) -> (u64, bool) {
        let state = &mut *self.state.lock();
        if state.looked.is_some_and(|looked| now.since(looked) < LOOK) {
            return (state.edition, false);
        }
        state.looked = Some(now);
        let stamp = std::fs::metadata(&self.path).ok().map(|stat| {
            let changed = (stat.mtime(), stat.mtime_nsec());
            (stat.ino(), stat.size(), changed, (stat.ctime(), stat.ctime_nsec()))
        });
        if stamp == state.stamp {
            return (state.edition, false);
        }
        state.stamp = stamp;
        state.edition += 1;
        state.rules = ControlFile::read(&self.path);
        if let Err(error) = &state.rules {
            tracing::error!(%error, "the control file is not usable; every operation fails");
        }
        (state.edition, state.rules.as_ref().is_ok_and(|rules| rules.forget))
    }

    /// Decides about an operation.
    pub(super) fn judge(&self, device: &str, shape: &Shape) -> Judged {
        let state = &mut *self.state.lock();
        let (delay, verdict) = match &mut state.rules {
            Ok(rules) => {
                let told = |rule: &str| tracing::info!(device, rule, "an injected fault strikes");
                let (delay, verdict) = rules.judge(shape, told);
                (delay, Ok(verdict))
            }
            Err(error) => (Duration::ZERO, Err(error.clone())),
        };
        Judged { edition: state.edition, delay, verdict }
    }

    /// Returns whether writes are held until they are synced.
    pub(super) fn is_volatile(&self) -> bool {
        self.state.lock().rules.as_ref().is_ok_and(|rules| rules.volatile)
    }
}
