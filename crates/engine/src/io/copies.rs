//! Reads of cached copies: retries, and handling of a copy that cannot be read.
//!
//! A clean copy that cannot be read is forgotten: the origin has the data. A dirty one exists
//! nowhere else, so it is read again several times, block by block, before its addresses return
//! errors (invariant 11). Device errors are often transient: a reset, a path that returns. So an
//! unreadable dirty copy is tried again whenever a client reads it, when an operator flushes,
//! deletes or changes the mode, and after some time; if it can be read then, nothing was lost.

use std::cell::Cell;
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

/// Pauses before each retry of a dirty copy. Together a third of a second: enough for a link reset
/// or a busy controller, and short enough for a client to wait.
const RETRY_AFTER: [Duration; 4] = [
    Duration::ZERO,
    Duration::from_millis(10),
    Duration::from_millis(50),
    Duration::from_millis(250),
];

/// Number of consecutive unreadable copies after which the device counts as failing as a whole, so
/// that clean copies are not retried.
const CLEAN_IN_VAIN: u32 = 8;

/// The treatment of a copy that could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unreadable {
    /// The copy was forgotten or replaced, or the cache device hangs: look the block up again.
    Gone,
    /// The copy is dirty: its block's addresses return errors from now on.
    Lost,
}

/// Reads a volume's cached copies.
#[derive(Clone, Copy)]
pub(crate) struct Copies<'a>(pub(crate) &'a LaneVolume);

impl Copies<'_> {
    /// Reads adjacent copies on the cache device into `buf`, which has their total length. Returns
    /// it with the copies that could not be read, by their index in `run`.
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
            // The origin has the clean copies, so do not wait for a device that hangs.
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

    /// Like [`Copies::read_copies`], but leaves handling of unreadable copies to the caller.
    pub(crate) async fn read_patiently(
        self,
        run: &[Pinned<'_>],
        buf: IoBuf,
    ) -> (IoBuf, Vec<(usize, ReadFailure)>) {
        let (mut buf, mut failed) = self.0.store.read_run(&self.0.volume.space, run, buf).await;
        failed.iter().for_each(|(_, failure)| self.count_failure(failure));
        let one_of_many = |(_, failure): &(usize, ReadFailure)| {
            run.len() > 1 && matches!(failure, ReadFailure::Device(_))
        };
        let is_dirty = |(at, _): &(usize, ReadFailure)| run[*at].found.entry.dirty;
        if failed.iter().any(|failed| is_dirty(failed) || one_of_many(failed)) {
            self.read_again(run, &mut buf, &mut failed).await;
        }
        (buf, failed)
    }

    /// Retries copies that could not be read, one by one: a single bad sector fails the read of a
    /// whole run. Clean ones, which the origin has as well, are retried once, and not if many in a
    /// row are bad; dirty ones several times. Copies already known to be bad are retried once, so
    /// that clients do not wait each time; so are copies that fail verification.
    async fn read_again(
        self,
        run: &[Pinned<'_>],
        buf: &mut IoBuf,
        failed: &mut Vec<(usize, ReadFailure)>,
    ) {
        let (size, in_vain) = (self.0.volume.block.as_usize(), Cell::new(0));
        for (round, pause) in RETRY_AFTER.into_iter().enumerate() {
            let worth = |(at, failure): &(usize, ReadFailure)| {
                let passes = matches!(failure, ReadFailure::Device(_));
                let known = self.0.volume.is_bad(run[*at].block);
                match run[*at].found.entry.dirty {
                    true => round == 0 || (passes && !known),
                    false => round == 0 && passes && run.len() > 1 && in_vain.get() < CLEAN_IN_VAIN,
                }
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
                let (one, again) = self.0.store.read_run(&self.0.volume.space, pinned, one).await;
                match again.into_iter().next() {
                    Some((_, failure)) => {
                        self.count_failure(&failure);
                        failed[index].1 = failure;
                        in_vain.set(in_vain.get() + 1);
                    }
                    None => {
                        buf[at * size..(at + 1) * size].copy_from_slice(&one);
                        failed.remove(index);
                        in_vain.set(0);
                    }
                }
            }
        }
    }

    /// Handles a copy that cannot be read. A clean one is forgotten; a dirty one is lost until it
    /// is overwritten, discarded, or becomes readable again (invariant 11).
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
        let is_it = |entry: &Entry| entry.slot == slot && entry.dirty;
        let now = store.peek(&volume.space, pinned.block);
        if !now.is_some_and(|found| is_it(&found.entry)) {
            return Unreadable::Gone;
        }
        volume.add_bad(pinned.block);
        // A writer that has just replaced the block may have read the flag before. Both take the
        // lock of the shard, so one of them sees the change of the other.
        let now = store.look_up(&volume.space, pinned.block);
        if now.is_some_and(|pinned| is_it(&pinned.found.entry)) {
            return Unreadable::Lost;
        }
        volume.remove_bad(pinned.block);
        Unreadable::Gone
    }

    /// Forgets the block's copy in this slot if it is still there and clean, because the origin has
    /// the data. Returns whether it was forgotten.
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

    /// Counts a failed read of a cached block if the device reported the error.
    fn count_failure(self, failure: &ReadFailure) {
        if let ReadFailure::Device(_) = failure {
            bump(&self.0.stats().counters.cache_read_errors, 1);
        }
    }
}
