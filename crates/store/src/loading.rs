//! Loading state of the index: which shards are loaded, loading, or failed. See [`crate::loader`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, Ordering};

use forebay_lane::{Gate, Notify};
use parking_lot::Mutex;

use crate::changes::Changes;
use crate::chunks::Chunks;
use crate::index::Address;
use crate::spaces::VolumeSpace;
use crate::table::Entry;

pub(crate) const ABSENT: u8 = 0;
pub(crate) const UNDER_WAY: u8 = 1;
pub(crate) const PRESENT: u8 = 2;

/// The part of the index that is only in the checkpoint.
pub(crate) struct Loading {
    /// Whether the whole index is loaded.
    pub(crate) complete: AtomicBool,
    pub(crate) source: Option<EntrySource>,
    pub(crate) shards: Box<[AtomicU8]>,
    pub(crate) left: AtomicU32,
    pub(crate) lanes: Box<[Loader]>,
    /// Number of requests that wait for shards.
    pub(crate) waiting: AtomicU32,
    /// Notified when a shard was loaded or failed to load, and when the last waiting request ends.
    pub(crate) changed: Notify,
    /// Held while a shard becomes visible: see [`Store::while_none_is_loaded`].
    pub(crate) publishing: Mutex<()>,
    /// Whether to write another checkpoint after the loading: a part of this one was rebuilt from
    /// parity, or there is a log to replay over it.
    pub(crate) outdated: AtomicBool,
    /// Whether the checkpoint could not be read, or a task panicked while loading it.
    pub(crate) failed: AtomicBool,
    /// Whether the cache was closed before the whole index was loaded.
    pub(crate) abandoned: AtomicBool,
}

/// One lane's part of the loading.
#[derive(Default)]
pub(crate) struct Loader {
    /// Held while the lane loads a shard. Many requests at once would take memory for as many
    /// shards.
    pub(crate) turn: Gate,
    kept: Mutex<LoadBuffers>,
}

/// Buffers that a lane keeps from one shard to the next: its shards follow each other in the
/// checkpoint, and fresh memory costs more time than decoding an entry.
#[derive(Default)]
pub(crate) struct LoadBuffers {
    /// The chunk that was read last.
    pub(crate) chunk: Option<u32>,
    /// Entries of the chunk.
    pub(crate) decoded: Vec<Decoded>,
    /// Empty buffer for the entries of a shard.
    pub(crate) entries: Vec<(Address, Entry)>,
}

/// An entry of the checkpoint.
pub(crate) struct Decoded {
    pub(crate) shard: u32,
    pub(crate) meaning: Entries,
    pub(crate) address: Address,
    pub(crate) entry: Entry,
}

/// Source of the entries that are not loaded yet.
pub(crate) struct EntrySource {
    pub(crate) checkpoint: Chunks,
    /// The volumes' address ranges, as of the checkpoint.
    pub(crate) spaces: Vec<VolumeSpace>,
    /// Meaning of the entries in each segment.
    pub(crate) segments: Vec<Entries>,
    /// Whether there is a log behind the checkpoint.
    pub(crate) has_log: bool,
    /// The log's changes to the entries, until all are loaded.
    pub(crate) changes: Mutex<Option<Arc<Changes>>>,
    /// The shard of the first entry of each chunk that was read.
    pub(crate) firsts: Mutex<BTreeMap<u32, u32>>,
}

/// The meaning of the checkpoint's entries in a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Entries {
    /// The entries are valid, unless the log supersedes them.
    Valid,
    /// The segment was opened again since, so the entries are superseded.
    Superseded,
    /// The segment was empty at the checkpoint or became empty since, so the log supersedes all
    /// entries.
    None,
}

impl EntrySource {
    /// Returns the number of entries, and of dirty ones.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let header = self.checkpoint.header();
        (header.entry_count, header.arrangement.map_or(0, |arrangement| arrangement.dirty))
    }
}

impl Loading {
    /// State of an index with nothing left to load.
    pub(crate) fn nothing() -> Self {
        Loading {
            complete: AtomicBool::new(true),
            source: None,
            shards: Box::default(),
            lanes: Box::default(),
            left: AtomicU32::new(0),
            waiting: AtomicU32::new(0),
            changed: Notify::default(),
            publishing: Mutex::default(),
            outdated: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            abandoned: AtomicBool::new(false),
        }
    }

    /// Returns the state of an index with all `shards` left to load, by this number of lanes.
    pub(crate) fn of(source: EntrySource, shards: u32, lanes: usize) -> Self {
        let outdated = AtomicBool::new(source.has_log);
        Loading {
            complete: AtomicBool::new(false),
            source: Some(source),
            shards: (0..shards).map(|_| AtomicU8::new(ABSENT)).collect(),
            lanes: (0..lanes.max(1)).map(|_| Loader::default()).collect(),
            left: AtomicU32::new(shards),
            outdated,
            ..Loading::nothing()
        }
    }

    /// Records that the whole index is loaded.
    pub(crate) fn completed(&self) {
        if let Some(source) = &self.source {
            source.changes.lock().take();
        }
        self.complete.store(true, Ordering::Release);
        self.lanes.iter().for_each(|lane| *lane.kept.lock() = LoadBuffers::default());
    }

    /// Takes a lane's buffers, while the lane has its turn.
    pub(crate) fn take_kept(&self, lane: usize) -> LoadBuffers {
        std::mem::take(&mut self.lanes[lane].kept.lock())
    }

    /// Returns a lane's buffers.
    pub(crate) fn keep(&self, lane: usize, new: LoadBuffers) {
        let mut kept = self.lanes[lane].kept.lock();
        // Under the lock: the thread that completes the loading frees the buffers afterwards.
        if !self.is_complete() {
            *kept = new;
        }
    }

    #[inline]
    pub(crate) fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Acquire)
    }

    pub(crate) fn is_present(&self, shard: u32) -> bool {
        let state = self.shards.get(shard as usize);
        state.is_none_or(|state| state.load(Ordering::Acquire) == PRESENT)
    }
}

/// A request that waits for shards. Loading in the background yields to it.
pub(crate) struct LoadWaiter<'a>(&'a Loading);

impl<'a> LoadWaiter<'a> {
    pub(crate) fn begin(loading: &'a Loading) -> Self {
        loading.waiting.fetch_add(1, Ordering::SeqCst);
        LoadWaiter(loading)
    }
}

impl Drop for LoadWaiter<'_> {
    fn drop(&mut self) {
        if self.0.waiting.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.changed.notify_all();
        }
    }
}

/// Resets a shard if its loading ends early, so that another request tries again. After a panic
/// none does: the index then cannot be loaded, and waiters continue without it.
pub(crate) struct LoadGuard<'a> {
    pub(crate) loading: &'a Loading,
    pub(crate) shard: u32,
}

impl Drop for LoadGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.loading.failed.store(true, Ordering::SeqCst);
        }
        let state = &self.loading.shards[self.shard as usize];
        let _ = state.compare_exchange(UNDER_WAY, ABSENT, Ordering::SeqCst, Ordering::SeqCst);
        self.loading.changed.notify_all();
    }
}
