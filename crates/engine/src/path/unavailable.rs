//! Going on without the cache device: it has failed, or does not answer.
//!
//! The log then cannot be told what becomes of its blocks: that a clean copy was forgotten because
//! the origin has something newer, or that a dirty one has been written back. If the device comes
//! back after a restart, an older copy would be served, or written over the origin. So before the
//! origin outruns the log, a note goes to the [`Ledger`](crate::state::ledger::Ledger): nothing on the
//! device counts any more but what is dirty now. Whoever attaches the volume the next time drops the
//! rest (invariants 5, 6, 9 and 15).

use std::collections::BTreeSet;
use std::future::Future;
use std::ops::Range;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::Poll;
use std::time::Duration;

use forebay_core::{IoError, OriginBlock};
use forebay_format::VolumeRecord;
use forebay_lane::either;
use forebay_store::StoreError;

use crate::error::EngineError;
use crate::lane::LaneVolume;
use crate::lane::engine::EngineLane;
use crate::path::plan::keeps_dirty;
use crate::state::cache::Cache;
use crate::state::ledger::{self, Note, joined};
use crate::state::volume::{Volume, VolumeState};

/// For so long a flush waits for the origin to have what was written through a cache that has failed.
const THROUGH_PATIENCE: Duration = Duration::from_secs(5);

/// Work on the cache device under way.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = T>>>;

impl Cache {
    /// Waits for the end of some work, unless the cache device hangs: then `None`, and the work goes
    /// on.
    pub(crate) async fn unless_hung<F: Future + Unpin>(&self, work: &mut F) -> Option<F::Output> {
        loop {
            let changed = self.health.changed.listen();
            let mut changed = std::pin::pin!(changed);
            let hung = self.health.is_hung();
            let end = std::future::poll_fn(|context| {
                if let Poll::Ready(end) = Pin::new(&mut *work).poll(context) {
                    return Poll::Ready(Some(end));
                }
                if hung || changed.as_mut().poll(context).is_ready() {
                    return Poll::Ready(None);
                }
                Poll::Pending
            });
            match end.await {
                None if !self.health.is_hung() => {}
                end => return end,
            }
        }
    }
}

impl Cache {
    /// As [`Cache::unless_hung`] for work that may only be left behind if that can be noted: without a
    /// ledger there is no end but its own.
    pub(crate) async fn unless_it_can_be_noted<T>(&self, work: &mut Work<T>) -> Option<T> {
        match self.ledger() {
            Some(_) => self.unless_hung(work).await,
            None => Some(work.await),
        }
    }
}

impl LaneVolume {
    /// Whether reads or writes had better do without the cache device. What it has can often be read
    /// when it takes nothing new.
    #[inline]
    pub(crate) fn is_unavailable_to(&self, write: bool) -> bool {
        self.cache.health.is_hung() || (write && self.store.store().health.failed())
    }

    /// Does something on the cache device. `None`: the device hangs, and the work goes on by itself.
    pub(crate) async fn unless_hung<T: 'static>(
        &self,
        work: impl Future<Output = T> + 'static,
    ) -> Option<T> {
        let mut work: Work<T> = Box::pin(work);
        let end = self.cache.unless_it_can_be_noted(&mut work).await;
        if end.is_none() {
            self.lane().spawn(async move { drop(work.await) });
        }
        end
    }

    /// Makes every write that was acknowledged before this call durable, on the cache device or, if
    /// nothing is dirty, without it.
    pub(crate) async fn commit_or_outlive(&self) -> Result<(), IoError> {
        let Some(this) = self.shared() else { return Err(IoError::ShuttingDown) };
        let mut commit: Work<Result<(), StoreError>> = Box::pin(async move { this.commit().await });
        loop {
            match self.cache.unless_it_can_be_noted(&mut commit).await {
                Some(Ok(())) => return Ok(()),
                Some(Err(error))
                    if self.volume.dirty.total() > 0 && !self.is_all_through().await =>
                {
                    return Err(self.store_failed(&error));
                }
                // By regions, as a block is counted by one counter while it comes and goes.
                None if self.volume.dirty.total() > 0 => {
                    let changed = self.cache.health.changed.listen();
                    let timer = self.lane().sleep(Duration::from_millis(100));
                    either(changed, timer).await;
                }
                end => {
                    if end.is_none() {
                        self.lane().spawn(async move { drop(commit.await) });
                    }
                    // Barrier for invariant 1: everything is on the origin, durably, and nothing on
                    // the cache device may go over it.
                    return self.settle_forgotten(&(0..self.volume.size()), false).await;
                }
            }
        }
    }

    /// Whether everything dirty was written through the cache and is on the origin now, durably. Who
    /// asks may find writes under way that nobody was promised anything about: they end soon, and no
    /// more of them begin once the cache device has failed.
    async fn is_all_through(&self) -> bool {
        let (volume, began) = (&self.volume, self.now());
        while !keeps_dirty(volume.mode()) && self.sync_origin().await.is_ok() {
            let progress = volume.progress.listen();
            if volume.dirty.total() == 0 {
                return true;
            }
            if volume.has_bad() || self.now().since(began) >= THROUGH_PATIENCE {
                return false;
            }
            either(progress, self.lane().sleep(Duration::from_millis(20))).await;
        }
        false
    }

    /// Waits until nothing can come back from the log that has been taken out of it in a range: the
    /// origin may have something newer from now on. `records`: and until everything that was appended
    /// is durable.
    ///
    /// # Errors
    /// Neither the log nor the ledger could be told.
    pub(crate) async fn settle_forgotten(
        &self,
        range: &Range<u64>,
        records: bool,
    ) -> Result<(), IoError> {
        let store = self.store.store();
        if !records && store.marks_settled() {
            return Ok(());
        }
        if !store.health.failed() {
            let lane = self.store.clone();
            let settled = self.unless_hung(async move {
                if records {
                    lane.commit().await?;
                }
                lane.settle_marks().await
            });
            match settled.await {
                Some(Ok(())) => return Ok(()),
                Some(Err(error)) if !store.health.failed() => return Err(self.store_failed(&error)),
                Some(Err(_)) | None => {}
            }
        }
        self.note_dirty(range).await.map_err(|error| {
            tracing::warn!(error, volume = self.volume.name, "the origin may not outrun the log");
            IoError::Io
        })
    }

    /// Sees to it that no clean copy and no sample of the origin is trusted when the cache device is
    /// opened again. `false`: neither the ledger nor the device could be told.
    pub(crate) async fn distrust(&self) -> bool {
        self.note_dirty(&(0..0)).await.is_ok()
            || (!self.cache.health.is_hung() && self.store.distrust_clean().await)
    }

    /// Notes durably that nothing on the cache device counts but what is dirty; in `free` nothing is.
    async fn note_dirty(&self, free: &Range<u64>) -> Result<(), String> {
        let volume = &self.volume;
        let Some(ledger) = self.cache.ledger() else {
            return Err("the cache device cannot be told, and nobody else is there".into());
        };
        let _turn = volume.note_gate.enter().await;
        volume.note_uses.fetch_add(1, Ordering::SeqCst);
        let noted = volume.noted.lock().clone();
        let blocks = volume.blocks(free.clone());
        let dirty = |block: &OriginBlock| self.is_dirty(*block);
        let blocks: BTreeSet<OriginBlock> = match noted {
            Some(noted) => {
                let mut within = noted
                    .range(OriginBlock(blocks.start)..OriginBlock(blocks.end.max(blocks.start)));
                if within.all(dirty) {
                    return Ok(());
                }
                noted.iter().copied().filter(dirty).collect()
            }
            None => self.all_dirty(),
        };
        let note = Note {
            cache: self.cache.store.uuid(),
            distrusted: true,
            exact: true,
            dirty: volume.byte_ranges(blocks.iter().copied()),
        };
        // Barrier for invariants 5, 6 and 9: the note, before the origin has anything newer.
        ledger::write(&*ledger, &volume.name, note).await?;
        *volume.noted.lock() = Some(Arc::new(blocks));
        volume.is_noted.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn is_dirty(&self, block: OriginBlock) -> bool {
        let found = self.cache.store.peek(&self.volume.space, block);
        found.is_some_and(|found| found.entry.dirty)
    }

    /// Every dirty block, from a pass over the index.
    pub(crate) fn all_dirty(&self) -> BTreeSet<OriginBlock> {
        let mut blocks = BTreeSet::new();
        self.cache.store.index.visit(
            |entry| entry.dirty,
            |address, _| blocks.extend(self.volume.space.block(address)),
        );
        blocks
    }

    /// After the cache device has hung and answers again: everything that it had not been told, it is
    /// told now, and counts again. To be called before anything new is called durable.
    ///
    /// # Errors
    /// The device has failed, or the note cannot be taken back.
    pub(crate) async fn trust_again(&self) -> Result<(), StoreError> {
        if !self.volume.is_noted.load(Ordering::Relaxed) {
            return Ok(());
        }
        let _turn = loop {
            let uses = self.volume.note_uses.load(Ordering::SeqCst);
            self.store.commit().await?;
            self.store.settle_marks().await?;
            self.settle_samples().await?;
            let turn = self.volume.note_gate.enter().await;
            if self.volume.note_uses.load(Ordering::SeqCst) == uses {
                break turn;
            }
            // Somebody has relied on the note meanwhile, for what the device was not told before.
        };
        if let Some(ledger) = self.cache.ledger() {
            let note = self.region_note();
            let written = ledger::write(&*ledger, &self.volume.name, note).await;
            written.map_err(StoreError::Refused)?;
        }
        *self.volume.noted.lock() = None;
        self.volume.is_noted.store(false, Ordering::SeqCst);
        Ok(())
    }

    /// Writes down what only a failed cache device has, and takes back what was written down of one
    /// that answers again. Of a device that is well, where its volume may be dirty.
    pub(crate) async fn write_down(&self) {
        let volume = &self.volume;
        if self.cache.ledger().is_none() || volume.state() == VolumeState::Removed {
            return;
        }
        // A look later it is tried again, if this one takes long.
        let Some(_turn) = volume.write_down.try_enter() else { return };
        let noted = volume.is_noted.load(Ordering::Relaxed);
        if self.cache.store.health.failed() {
            let more = || volume.noted.lock().as_ref().map_or(0, |noted| noted.len() as u64);
            if !noted || volume.dirty.total() < more() {
                self.write_down_now().await;
            }
        } else if self.cache.health.is_hung() {
            // Clients that go on have it written down.
        } else if noted {
            if let Err(error) = self.trust_again().await {
                tracing::warn!(%error, volume = volume.name, "the cache device is not trusted yet");
            }
        } else {
            self.note_regions().await;
            self.shorten_note().await;
        }
    }

    pub(crate) async fn write_down_now(&self) {
        if let Err(error) = self.note_dirty(&(0..self.volume.size())).await {
            tracing::warn!(error, volume = self.volume.name, "what is dirty cannot be noted");
        }
    }
}

impl EngineLane {
    /// Changes the volume table. If the cache device has failed or hangs, and there is a ledger, it is
    /// enough that the daemon remembers: it is asked first at the next start, and commands are to
    /// work without the device.
    pub(crate) async fn change_volumes(
        self: &Rc<Self>,
        change: impl FnOnce(&mut Vec<VolumeRecord>, &mut u16) -> Result<(), StoreError> + 'static,
    ) -> Result<(), EngineError> {
        let store = self.store.clone();
        let mut work: Work<Result<(), StoreError>> =
            Box::pin(async move { store.change_volumes(change).await });
        let changed = self.cache.unless_it_can_be_noted(&mut work).await;
        if changed.is_none() {
            self.lane.spawn(async move { drop(work.await) });
        }
        let failed = self.cache.store.health.failed() || changed.is_none();
        match changed {
            Some(Ok(())) => Ok(()),
            Some(Err(error)) if !failed || self.cache.ledger().is_none() => Err(error.into()),
            _ => {
                let device = self.cache.store.device().name();
                tracing::warn!(device, "the volume table cannot be changed; the daemon remembers");
                Ok(())
            }
        }
    }
}

impl Volume {
    /// Blocks as byte ranges, neighbours joined.
    pub(crate) fn byte_ranges(&self, blocks: impl Iterator<Item = OriginBlock>) -> Vec<Range<u64>> {
        joined(blocks.map(|block| self.block_range(block)))
    }

    /// What is dirty on a cache device that has failed or hangs, as byte ranges of the volume, if it
    /// has been written down; some of it may have been written back since.
    pub fn noted_ranges(&self) -> Option<Vec<Range<u64>>> {
        let noted = self.noted.lock().clone()?;
        Some(self.byte_ranges(noted.iter().copied()))
    }
}
