//! Writes to the origin in progress, and written blocks that wait for a sync.
//!
//! A sync costs a disk a revolution and its queue, so one sync covers many blocks and runs
//! concurrently with later writes. It covers the writes that ended before it began.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::time::Duration;

use forebay_core::Nanos;
use forebay_core::why::{WakeReason, WritebackReason};
use forebay_lane::Notify;
use forebay_store::planted::{self, PlantedBug};

use super::read_turns::ReadTurns;
use super::run::SpanWriter;
use super::span::{Span, Spans, Written};
use crate::error::WritebackError;
use crate::io::origin::OriginIo;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::state::volume::VolumeState;
use crate::stats::bump;

/// Maximum number of bytes in flight, whatever the depth. A disk takes 0.15 s to write them, during
/// which later requests wait.
const MOST_BYTES: u64 = 16 << 20;

/// Number of written blocks that triggers a sync of the origin: this many, or `1 / PART_SYNCED` of
/// the cache if that is less, so that space is freed in small steps.
const MOST_SYNCED: u64 = 16_384;
const PART_SYNCED: u64 = 32;

/// A sync starts after `SYNC_AFTER` if it covers at least `1 / WORTH_SYNCING` of the cache, and
/// after `SYNC_ANYWAY` however little it covers.
const SYNC_AFTER: Duration = Duration::from_secs(1);
const WORTH_SYNCING: u64 = 256;
const SYNC_ANYWAY: Duration = Duration::from_secs(5);

/// Blocks to mark clean before yielding to other tasks.
const MARKED_TOGETHER: usize = 1024;

/// Writeback of one volume: its writes in progress, and the sync that covers finished ones.
pub(crate) struct Flow {
    view: Rc<LaneVolume>,
    under_way: Cell<usize>,
    bytes: Cell<u64>,
    changed: Rc<Notify>,
    written: RefCell<Vec<Written>>,
    reads: ReadTurns,
    /// When the first of `written` was written.
    since: Cell<Nanos>,
    /// The number of blocks that the sync in progress covers; `None` if none is in progress.
    syncing: Cell<Option<usize>>,
    error: RefCell<Option<WritebackError>>,
    /// Bytes written since the caller last reset this.
    pub(crate) progress: Cell<u64>,
}

impl Flow {
    /// Returns a flow without writes.
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
            let mut ending =
                FlowGuard { flow: &this, bytes, error: Some(WritebackError::Panicked) };
            let gap = Spans(&this.view).merging().gap;
            let (written, error) =
                SpanWriter(&this.view).write_back_parts(span, why, gap, &this.reads).await;
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

    /// Returns how many written blocks trigger a sync.
    fn most_synced(&self) -> u64 {
        (self.view.cache.store.capacity_blocks() / PART_SYNCED).clamp(1, MOST_SYNCED)
    }

    /// Starts a sync if enough blocks wait for one, or have waited long enough.
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

    /// Returns the number of written blocks that are not marked clean yet.
    pub(crate) fn unmarked(&self) -> u64 {
        (self.written.borrow().len() + self.syncing.get().unwrap_or(0)) as u64
    }

    /// Returns whether a write is in progress, waits for a sync, or has failed.
    pub(crate) fn is_busy(&self) -> bool {
        let waiting = self.unmarked() > 0 || self.syncing.get().is_some();
        self.under_way.get() > 0 || waiting || self.has_failed()
    }

    /// Returns whether a write or a sync has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.error.borrow().is_some()
    }

    /// Waits for all writes in progress, syncs the origin and marks the blocks clean.
    ///
    /// # Errors
    /// The first failure since the last call; blocks that were not written stay dirty.
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

    /// Syncs the origin and marks the written blocks clean.
    async fn sync(&self) {
        let ending = SyncEnding(self);
        // Taken before the sync starts, because the sync does not cover later writes.
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
        // Barrier for invariants 8 and 9: the origin is synced before a block is marked clean.
        OriginIo(&self.view).sync_device(WakeReason::Other).await?;
        let mut stale = false;
        for some in written.chunks(MARKED_TOGETHER) {
            // Another task's sync may have failed and lost writes that were sent before it.
            let failures = volume.syncs.failures();
            let is_lost = |written: &Written| written.failures != failures;
            // A removed volume keeps its dirty blocks, because it may already be attached again,
            // with new counters.
            if volume.state() == VolumeState::Removed {
                break;
            }
            for run in some.chunk_by(|one, other| is_lost(one) == is_lost(other)) {
                let lost = run.iter().any(is_lost);
                stale |= lost;
                if !lost && !early {
                    self.mark(run);
                }
            }
            forebay_lane::yield_now().await;
        }
        if stale { Err(WritebackError::SyncLost) } else { Ok(()) }
    }

    fn mark(&self, written: &[Written]) {
        let view = &self.view;
        for Written { block, version, why, .. } in written {
            let stays = || view.volume.is_being_zeroed(*block);
            if view.cache.store.written_back(&view.volume.space, *block, version, stays) {
                Policy(view).cleaned(*block, version);
                view.volume.cleaned(view.lane(), *block);
                bump(&view.stats().counters.written_back_blocks, 1);
                view.stats().why.written_back.count(*why, 1);
            }
        }
    }
}

/// Ends a write on drop, so that one whose task panics counts as failed.
struct FlowGuard<'a> {
    flow: &'a Flow,
    bytes: u64,
    error: Option<WritebackError>,
}

impl Drop for FlowGuard<'_> {
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

/// Ends a sync on drop, so that one whose task panics counts as failed.
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
