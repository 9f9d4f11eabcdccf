//! Writes to the origin that are under way, and what they have written until a sync makes it durable.
//!
//! A sync costs a disk a revolution and its queue, so one covers many blocks, and goes on beside the
//! writes that come after it. What it covers is what had been written before it began.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_core::Nanos;
use forebay_core::why::WritebackReason;
use forebay_lane::Notify;
use forebay_store::planted::{self, PlantedBug};

use super::read_turns::ReadTurns;
use super::run::SpanWriter;
use super::span::{Span, Spans, Written};
use crate::error::WritebackError;
use crate::lane::LaneVolume;
use crate::state::volume::VolumeState;
use crate::stats::bump;

/// Bytes that are under way at most, whatever the depth: a disk needs 0.15 s for so many, and whoever
/// comes behind them waits.
const MOST_BYTES: u64 = 16 << 20;

/// Blocks that one sync of the origin covers at most, or this part of the cache if that is less: room
/// is made in small steps.
const MOST_SYNCED: u64 = 16_384;
const PART_SYNCED: u64 = 32;

/// There is a sync after this time if it covers that part of the cache, which is worth one; without
/// that, what was written waits for a while longer.
const SYNC_AFTER: Duration = Duration::from_secs(1);
const WORTH_SYNCING: u64 = 256;
const SYNC_ANYWAY: Duration = Duration::from_secs(5);

/// Blocks that are marked clean before others have their turn.
const MARKED_TOGETHER: usize = 1024;

/// See the module.
pub(crate) struct Flow {
    view: Rc<LaneVolume>,
    under_way: Cell<usize>,
    bytes: Cell<u64>,
    changed: Rc<Notify>,
    written: RefCell<Vec<Written>>,
    reads: ReadTurns,
    /// When the first of them was written.
    since: Cell<Nanos>,
    /// Blocks that a sync under way covers.
    syncing: Cell<Option<usize>>,
    error: RefCell<Option<WritebackError>>,
    /// Bytes that have been written since somebody asked.
    pub(crate) progress: Cell<u64>,
}

impl Flow {
    /// Nothing is under way.
    pub(crate) fn new(view: Rc<LaneVolume>) -> Rc<Self> {
        let changed = Rc::new(Notify::default());
        Rc::new(Flow {
            view,
            under_way: Cell::new(0),
            bytes: Cell::new(0),
            changed: changed.clone(),
            written: RefCell::default(),
            reads: ReadTurns::new(changed),
            since: Cell::new(Nanos(0)),
            syncing: Cell::new(None),
            error: RefCell::default(),
            progress: Cell::new(0),
        })
    }

    /// Waits until another write may be started.
    pub(crate) async fn room(&self, depth: u32) {
        loop {
            let changed = self.changed.listen();
            let crowded = self.written.borrow().len() > 2 * self.most_synced() as usize
                && self.syncing.get().is_some();
            let full =
                self.under_way.get() >= depth.max(1) as usize || self.bytes.get() >= MOST_BYTES;
            if !full && !crowded {
                return;
            }
            changed.await;
        }
    }

    /// Starts a write, and a sync if one is due.
    pub(crate) fn start(self: &Rc<Self>, span: Span, why: WritebackReason) {
        let blocks = span.blocks();
        let bytes = (blocks.end - blocks.start) << self.view.volume.block.shift();
        self.under_way.set(self.under_way.get() + 1);
        self.bytes.set(self.bytes.get() + bytes);
        let this = self.clone();
        self.view.lane().spawn(async move {
            let mut ending = Ending { flow: &this, bytes, error: Some(WritebackError::Panicked) };
            let gap = Spans(&this.view).merging().gap;
            let (written, error) =
                SpanWriter(&this.view).write_back_span(&span, why, gap, &this.reads).await;
            if this.written.borrow().is_empty() {
                this.since.set(this.view.now());
            }
            let bytes = written.len() as u64 * this.view.volume.block.bytes();
            this.progress.set(this.progress.get() + bytes);
            this.written.borrow_mut().extend(written);
            ending.error = error;
        });
        self.sync_if_due();
    }

    /// The most blocks that a sync covers.
    fn most_synced(&self) -> u64 {
        (self.view.cache.store.capacity_blocks() / PART_SYNCED).clamp(1, MOST_SYNCED)
    }

    /// Starts a sync if enough has been written, or long enough ago.
    pub(crate) fn sync_if_due(self: &Rc<Self>) {
        let written = self.written.borrow().len() as u64;
        let waits = self.view.now().since(self.since.get());
        let worth = written >= self.view.cache.store.capacity_blocks() / WORTH_SYNCING;
        let due =
            written >= self.most_synced() || waits >= SYNC_AFTER && worth || waits >= SYNC_ANYWAY;
        if written > 0 && due && self.syncing.get().is_none() {
            self.syncing.set(Some(0));
            let this = self.clone();
            self.view.lane().spawn(async move { this.sync().await });
        }
    }

    /// Blocks that are on their way to being clean.
    pub(crate) fn unmarked(&self) -> u64 {
        (self.written.borrow().len() + self.syncing.get().unwrap_or(0)) as u64
    }

    /// Whether there is anything to settle.
    pub(crate) fn is_busy(&self) -> bool {
        let waiting = self.unmarked() > 0 || self.syncing.get().is_some();
        self.under_way.get() > 0 || waiting || self.has_failed()
    }

    /// Whether a write or a sync has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.error.borrow().is_some()
    }

    /// Waits for everything under way, makes it durable and marks it.
    ///
    /// # Errors
    /// What failed first since this was last asked; what is not on the origin stays dirty.
    pub(crate) async fn settle(self: &Rc<Self>) -> Result<(), WritebackError> {
        loop {
            let changed = self.changed.listen();
            if self.under_way.get() > 0 || self.syncing.get().is_some() {
                changed.await;
            } else if self.written.borrow().is_empty() {
                break;
            } else {
                self.syncing.set(Some(0));
                self.sync().await;
            }
        }
        match self.error.borrow_mut().take() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    /// Makes durable what has been written, and marks it clean.
    async fn sync(&self) {
        let ending = SyncEnding(self);
        // Taken before the sync starts: it covers what is in here, and nothing that comes later.
        let written = std::mem::take(&mut *self.written.borrow_mut());
        self.syncing.set(Some(written.len()));
        if let Err(error) = self.sync_and_mark(&written).await {
            self.error.borrow_mut().get_or_insert(error);
        }
        drop(ending);
    }

    async fn sync_and_mark(&self, written: &[Written]) -> Result<(), WritebackError> {
        let volume = &self.view.volume;
        let early = planted::has(PlantedBug::CleanBeforeOriginSync);
        if early {
            self.mark(written);
        }
        // Barrier for invariants 8 and 9: the origin is durable before anything is called clean.
        if let Err(error) = self.view.origin.sync().await {
            volume.origin_sync_fails();
            return Err(error.into());
        }
        let mut stale = false;
        for some in written.chunks(MARKED_TOGETHER) {
            // Somebody else's sync may have failed, and may have taken these writes with it.
            let failures = volume.sync_failures();
            stale |= some.iter().any(|written| written.failures != failures);
            // A volume that leaves keeps its dirty blocks: it may be back already, under other counters.
            if stale || volume.state() == VolumeState::Removed {
                break;
            }
            if !early {
                self.mark(some);
            }
            forebay_lane::yield_now().await;
        }
        if stale { Err(WritebackError::SyncLost) } else { Ok(()) }
    }

    fn mark(&self, written: &[Written]) {
        let view = &self.view;
        for Written { block, version, why, .. } in written {
            if view.cache.store.written_back(&view.volume.space, *block, version) {
                view.volume.cleaned(view.lane(), *block);
                bump(&view.stats().counters.written_back_blocks, 1);
                view.stats().why.written_back.count(*why, 1);
            }
        }
    }
}

/// A write ends in any case: one whose task panics has failed.
struct Ending<'a> {
    flow: &'a Flow,
    bytes: u64,
    error: Option<WritebackError>,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        let flow = self.flow;
        flow.view.cache.store.fail_if_panicking("a write to the origin");
        flow.under_way.set(flow.under_way.get() - 1);
        flow.bytes.set(flow.bytes.get() - self.bytes);
        if let Some(error) = self.error.take() {
            flow.error.borrow_mut().get_or_insert(error);
        }
        flow.changed.notify_all();
    }
}

/// So does a sync.
struct SyncEnding<'a>(&'a Flow);

impl Drop for SyncEnding<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.view.cache.store.fail_if_panicking("a sync of the origin");
            self.0.error.borrow_mut().get_or_insert(WritebackError::Panicked);
        }
        self.0.syncing.set(None);
        self.0.changed.notify_all();
    }
}
