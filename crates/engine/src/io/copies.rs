//! Cached copies, read back: what is retried, and what becomes of a copy that cannot be read.
//!
//! A clean copy that cannot be read is forgotten: the origin has the data. A dirty one is nowhere
//! else, so it is read again, block by block and a few times, before its addresses give errors
//! (invariant 11). Errors of a device pass as often as not: a reset, a path that comes back. So a
//! copy that was called unreadable is tried once more whenever a client asks for it, an operator
//! flushes, deletes or changes the mode, or some time has passed; if it can be read then, nothing
//! was lost.

use std::time::Duration;

use forebay_core::why::EvictionReason;
use forebay_core::{OriginBlock, Slot};
use forebay_device::IoBuf;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Entry, Pinned, ReadFailure};

use crate::io::admission::AdmissionControl;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::stats::bump;

/// Pauses before a dirty copy is read again: together a third of a second, which a reset link or
/// a busy controller needs, and a client can wait for.
const RETRY_AFTER: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
];

/// What became of a copy that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// It is not the block's copy any more, or does without the cache device: look the block up
    /// again.
    Gone,
    /// It is dirty, and its block's addresses give errors from now on.
    Lost,
}

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Copies<'a>(pub(crate) &'a LaneVolume);

impl Copies<'_> {
    /// Reads copies that lie next to each other on the cache device into `buf`, which is as long.
    /// Gives it back, with those that could not be read, by their place in the run.
    pub(crate) async fn read_copies(
        self,
        run: &[Pinned<'_>],
        buf: IoBuf,
    ) -> (IoBuf, Vec<(usize, Unreadable)>) {
        let len = buf.len();
        let mut read = std::pin::pin!(self.read_patiently(run, buf));
        let read = if run.iter().all(|pinned| pinned.found.entry.dirty) {
            read.await
        } else {
            // What is clean need not wait for a device that hangs.
            let Some(read) = self.0.cache.unless_hung(&mut read).await else {
                let gone = (0..run.len()).map(|at| (at, Unreadable::Gone)).collect();
                return (IoBuf::for_overwrite(len), gone);
            };
            read
        };
        let (buf, failed) = read;
        let volume = &self.0.volume;
        if volume.has_bad() {
            let good = |at: &usize| failed.iter().all(|(failed, _)| failed != at);
            (0..run.len()).filter(good).for_each(|at| volume.reads_again(run[at].block));
        }
        let unreadable = |(at, failure): (usize, _)| (at, self.unreadable(&run[at], &failure));
        (buf, failed.into_iter().map(unreadable).collect())
    }

    /// As [`Copies::read_copies`], and leaves it to the caller what becomes of copies that cannot
    /// be read.
    pub(crate) async fn read_patiently(
        self,
        run: &[Pinned<'_>],
        buf: IoBuf,
    ) -> (IoBuf, Vec<(usize, ReadFailure)>) {
        let (mut buf, results) = self.0.store.read_run(&self.0.volume.space, run, buf).await;
        let mut failed: Vec<(usize, ReadFailure)> = Vec::new();
        for (at, result) in results.into_iter().enumerate() {
            if let Err(failure) = result {
                self.count_failure(&failure);
                failed.push((at, failure));
            }
        }
        if failed.iter().any(|(at, _)| run[*at].found.entry.dirty) {
            self.read_again(run, &mut buf, &mut failed).await;
        }
        (buf, failed)
    }

    /// Reads dirty copies again that could not be read, one by one: a single bad sector fails the
    /// read of a whole run. A copy that is known to be bad has one attempt, so that those who ask
    /// for it do not wait each time.
    async fn read_again(
        self,
        run: &[Pinned<'_>],
        buf: &mut IoBuf,
        failed: &mut Vec<(usize, ReadFailure)>,
    ) {
        let size = self.0.volume.block.as_usize();
        for (round, pause) in RETRY_AFTER.into_iter().enumerate() {
            let worth = |(at, failure): &(usize, ReadFailure)| {
                let passes = matches!(failure, ReadFailure::Device(_));
                let known = self.0.volume.is_bad(run[*at].block);
                run[*at].found.entry.dirty && (round == 0 || (passes && !known))
            };
            if !failed.iter().any(worth) {
                return;
            }
            self.0.lane().sleep(pause).await;
            for index in (0..failed.len()).rev() {
                if !worth(&failed[index]) {
                    continue;
                }
                let at = failed[index].0;
                let one = IoBuf::for_overwrite(size);
                let pinned = std::slice::from_ref(&run[at]);
                let (one, results) = self.0.store.read_run(&self.0.volume.space, pinned, one).await;
                match results.into_iter().next() {
                    Some(Err(failure)) => {
                        self.count_failure(&failure);
                        failed[index].1 = failure;
                    }
                    _ => {
                        buf[at * size..(at + 1) * size].copy_from_slice(&one);
                        failed.remove(index);
                    }
                }
            }
        }
    }

    /// A copy cannot be read. A clean one is forgotten; a dirty one is lost until it is overwritten,
    /// discarded, or can be read after all (invariant 11).
    fn unreadable(self, pinned: &Pinned<'_>, failure: &ReadFailure) -> Unreadable {
        let (volume, store) = (&self.0.volume, self.0.store.store());
        let entry = &pinned.found.entry;
        tracing::warn!(
            volume = volume.name,
            block = pinned.block.0,
            ?failure,
            dirty = entry.dirty,
            "a cached block cannot be read back"
        );
        let slot = entry.slot;
        if self.forget_copy(pinned.block, slot) {
            return Unreadable::Gone;
        }
        let now = store.peek(&volume.space, pinned.block);
        if now.is_some_and(|found| found.entry.slot == slot && found.entry.dirty) {
            volume.add_bad(pinned.block);
            return Unreadable::Lost;
        }
        Unreadable::Gone
    }

    /// Forgets the copy of a block in this slot, if it is still there and clean: the origin has it.
    pub(crate) fn forget_copy(self, block: OriginBlock, slot: Slot) -> bool {
        let is_it = |now: &Entry| {
            now.slot == slot && (!now.dirty || planted::has(PlantedBug::BadBlockFromOrigin))
        };
        let forgotten = self.0.store.store().forget(&self.0.volume.space, block, is_it);
        if let Some(entry) = &forgotten {
            Policy(self.0).gone(entry);
            AdmissionControl(self.0).evicted(block, EvictionReason::Damaged);
        }
        forgotten.is_some()
    }

    /// Counts why a cached block could not be read, if the device is to blame.
    fn count_failure(self, failure: &ReadFailure) {
        if let ReadFailure::Device(_) = failure {
            bump(&self.0.stats().counters.cache_read_errors, 1);
        }
    }
}
