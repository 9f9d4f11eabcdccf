//! Notes about a cache that are kept outside of its device, in case the device fails, hangs or is
//! lost.

use std::future::{Future, poll_fn};
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use forebay_format::Uuid;
use forebay_lane::{Lane, Notify};
use parking_lot::Mutex;

use crate::error::LedgerError;

/// The blocks of a volume that are newer on its cache device than on its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The UUID of the cache.
    pub cache: Uuid,
    /// The cache device could not record changes to its blocks: only blocks that are dirty on it
    /// and listed in `dirty` are valid.
    pub distrusted: bool,
    /// Whether `dirty` is exact; otherwise it may list more blocks than are dirty.
    pub exact: bool,
    /// Dirty byte ranges of the volume, ascending.
    pub dirty: Vec<Range<u64>>,
}

/// Called once, from any thread, when a note is durable or has failed.
pub type Noted = Box<dyn FnOnce(Result<(), LedgerError>) + Send>;

/// Keeps one [`Note`] for each volume, on something other than the cache device.
pub trait Ledger: Send + Sync {
    /// Returns the note of a volume, if it has a readable one.
    fn note_of(&self, volume: &str) -> Option<Note>;

    /// Returns the note of a volume. For a ledger without files, every note is readable.
    ///
    /// # Errors
    /// The note exists but cannot be read.
    fn read(&self, volume: &str) -> Result<Option<Note>, LedgerError> {
        Ok(self.note_of(volume))
    }

    /// Returns the volume's note if it distrusts this cache's device.
    ///
    /// # Errors
    /// The note exists but cannot be read.
    fn distrusts(&self, volume: &str, cache: Uuid) -> Result<Option<Note>, LedgerError> {
        Ok(self.read(volume)?.filter(|note| note.distrusted && note.cache == cache))
    }

    /// Returns whether the volume's note distrusts this cache's device, or cannot be read.
    fn may_distrust(&self, volume: &str, cache: Uuid) -> bool {
        self.distrusts(volume, cache).map_or(true, |note| note.is_some())
    }

    /// Replaces the note of a volume durably, without waiting. Notes of one volume become durable
    /// in the order of calls.
    fn write(&self, volume: &str, note: Note, noted: Noted);
}

/// Longest time that a request waits for a note on which the safety of its data does not depend.
const PATIENCE: Duration = Duration::from_secs(1);

/// A note that is being written.
#[derive(Default)]
struct Writing {
    result: Mutex<Option<Result<(), LedgerError>>>,
    told: Notify,
    /// Set while the note is late.
    late: Arc<AtomicBool>,
}

impl Writing {
    fn begin(ledger: &dyn Ledger, volume: &str, note: Note, late: &Arc<AtomicBool>) -> Arc<Self> {
        let writing = Arc::new(Writing { late: late.clone(), ..Writing::default() });
        let own = writing.clone();
        let noted = Box::new(move |result| {
            let mut place = own.result.lock();
            *place = Some(result);
            own.late.store(false, Ordering::SeqCst);
            drop(place);
            own.told.notify_all();
        });
        ledger.write(volume, note, noted);
        writing
    }

    async fn end(&self) -> Result<(), LedgerError> {
        loop {
            let changed = self.told.listen();
            if let Some(result) = self.result.lock().take() {
                return result;
            }
            changed.await;
        }
    }

    /// Stops waiting, unless the note has just ended.
    fn give_up(&self) -> Result<(), LedgerError> {
        let mut place = self.result.lock();
        place.take().unwrap_or_else(|| {
            // Set under the lock, so that the end of the note resets it.
            self.late.store(true, Ordering::SeqCst);
            Err(LedgerError::Late)
        })
    }
}

/// Replaces the note of a volume, and waits until it is durable.
///
/// # Errors
/// The note is not durable.
pub(crate) async fn write(
    ledger: &dyn Ledger,
    volume: &str,
    note: Note,
) -> Result<(), LedgerError> {
    Writing::begin(ledger, volume, note, &Arc::default()).end().await
}

/// Replaces a note like [`write`], but waits for at most a second, and not at all while an earlier
/// note of the volume is `late`. An abandoned note may still become durable, before any later note
/// of the volume.
///
/// # Errors
/// Like [`write`]; [`LedgerError::Late`].
pub(crate) async fn write_in_time(
    lane: &Rc<Lane>,
    ledger: &dyn Ledger,
    volume: &str,
    note: Note,
    late: &Arc<AtomicBool>,
) -> Result<(), LedgerError> {
    if late.load(Ordering::SeqCst) {
        return Err(LedgerError::Late);
    }
    let writing = Writing::begin(ledger, volume, note, late);
    in_time(lane, writing.end()).await.unwrap_or_else(|| writing.give_up())
}

/// Waits at most as long as [`write_in_time`]; returns `None` after that time.
pub(crate) async fn in_time<T>(lane: &Rc<Lane>, what: impl Future<Output = T>) -> Option<T> {
    let mut what = pin!(what);
    let mut over = pin!(lane.sleep(PATIENCE));
    let ended = poll_fn(|context| match what.as_mut().poll(context) {
        Poll::Ready(result) => Poll::Ready(Some(result)),
        Poll::Pending => over.as_mut().poll(context).map(|()| None),
    });
    ended.await
}

/// Joins adjacent ranges; the input is ascending.
pub(crate) fn joined(ranges: impl Iterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut all: Vec<Range<u64>> = Vec::new();
    for next in ranges {
        match all.last_mut() {
            Some(last) if last.end == next.start => last.end = next.end,
            _ => all.push(next),
        }
    }
    all
}
