//! Notes about a cache that are kept outside of its device, for when that fails, hangs or is lost.

use std::ops::Range;
use std::sync::Arc;

use forebay_format::Uuid;
use forebay_lane::Notify;
use parking_lot::Mutex;

use crate::error::LedgerError;

/// Which blocks of a volume are newer on its cache device than on its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The UUID of the cache.
    pub cache: Uuid,
    /// The cache device could not record changes to its blocks: only blocks that are dirty on it
    /// and listed in `dirty` still count.
    pub distrusted: bool,
    /// `dirty` is exactly what is dirty; otherwise it may list more.
    pub exact: bool,
    /// Dirty byte ranges of the volume, ascending.
    pub dirty: Vec<Range<u64>>,
}

/// Called once, from any thread, when a note is durable or has failed.
pub type Noted = Box<dyn FnOnce(Result<(), LedgerError>) + Send>;

/// Keeps one [`Note`] for each volume, on something other than the cache device.
pub trait Ledger: Send + Sync {
    /// Returns the note of a volume.
    fn note_of(&self, volume: &str) -> Option<Note>;

    /// Returns the volume's note if it distrusts this cache's device.
    fn distrusts(&self, volume: &str, cache: Uuid) -> Option<Note> {
        self.note_of(volume).filter(|note| note.distrusted && note.cache == cache)
    }

    /// Replaces the note of a volume durably, without waiting. Notes of one volume are written one
    /// at a time.
    fn write(&self, volume: &str, note: Note, noted: Noted);
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
    #[derive(Default)]
    struct End {
        result: Mutex<Option<Result<(), LedgerError>>>,
        told: Notify,
    }

    let end: Arc<End> = Arc::default();
    let own = end.clone();
    let noted = Box::new(move |result| {
        *own.result.lock() = Some(result);
        own.told.notify_all();
    });
    ledger.write(volume, note, noted);
    loop {
        let changed = end.told.listen();
        if let Some(result) = end.result.lock().take() {
            return result;
        }
        changed.await;
    }
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
