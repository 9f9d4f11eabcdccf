//! A volume's claim to an image, which a thread records in the image's metadata.
//!
//! The call may take longer than the caller waits. A claim whose caller has given up is taken back:
//! that volume has written nothing to the image, and the record names the previous volume again.

use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use parking_lot::{Condvar, Mutex};
use uuid::Uuid;

use crate::handle::CallError;

/// See the module.
pub(crate) struct ImageClaim {
    /// The volume.
    volume: Uuid,
    state: Mutex<State>,
    /// Notified when the caller has the result, or has given up.
    left: Condvar,
}

#[derive(Default)]
struct State {
    result: Option<Result<(), CallError>>,
    waker: Option<Waker>,
    caller: Caller,
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Caller {
    #[default]
    Waiting,
    HasResult,
    GivenUp,
}

impl ImageClaim {
    pub(crate) fn new(volume: Uuid) -> Self {
        ImageClaim { volume, state: Mutex::default(), left: Condvar::new() }
    }

    /// Reports the result of the claim to its caller.
    pub(crate) fn end(&self, result: Result<(), CallError>) {
        let mut state = self.state.lock();
        state.result = Some(result);
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
    }

    /// Records the claim. `holder` is the volume that the image's record names, `write` makes the
    /// record name another volume or none, and `is_owner` returns whether the image's lock is still
    /// held: without the lock, the record may by now be another client's.
    ///
    /// # Errors
    /// The error of taking back a claim that was given up. All other errors are reported to the
    /// caller.
    pub(crate) fn carry_out(
        &self,
        holder: &Mutex<Option<Uuid>>,
        write: impl Fn(Option<Uuid>) -> Result<(), CallError>,
        is_owner: impl FnOnce() -> Result<bool, CallError>,
    ) -> Result<(), CallError> {
        // The lock is held until it is known whether the claim stays: another claim must not be
        // taken back together with this one.
        let mut holder = holder.lock();
        if self.state.lock().caller == Caller::GivenUp {
            return Ok(());
        }
        let result = write(Some(self.volume));
        let is_recorded = result.is_ok();
        self.end(result);
        if !is_recorded {
            return Ok(());
        }
        let mut state = self.state.lock();
        self.left.wait_while(&mut state, |state| state.caller == Caller::Waiting);
        let caller = state.caller;
        drop(state);
        if caller == Caller::GivenUp {
            return match is_owner()? {
                true => write(*holder),
                false => Ok(()),
            };
        }
        *holder = Some(self.volume);
        Ok(())
    }

    /// Collects the result, or stores the waker.
    fn poll(&self, context: &Context<'_>) -> Poll<Result<(), CallError>> {
        let mut state = self.state.lock();
        match state.result.clone() {
            Some(result) => {
                state.caller = Caller::HasResult;
                self.left.notify_all();
                Poll::Ready(result)
            }
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Waits for a claim, and gives the claim up if dropped before its result is known.
pub(crate) struct Claimant(pub(crate) Arc<ImageClaim>);

impl Claimant {
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Result<(), CallError>> {
        self.0.poll(context)
    }
}

impl Drop for Claimant {
    fn drop(&mut self) {
        let mut state = self.0.state.lock();
        if state.caller == Caller::Waiting {
            state.caller = Caller::GivenUp;
            self.0.left.notify_all();
        }
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods, reason = "the simulator has no clusters")]
mod tests {
    use super::*;

    /// An image's record.
    #[derive(Default)]
    struct Record {
        /// The volumes that were written to the record, in order.
        named: Mutex<Vec<Option<Uuid>>>,
        fails: bool,
    }

    impl Record {
        fn write(&self, volume: Option<Uuid>) -> Result<(), CallError> {
            self.named.lock().push(volume);
            match self.fails {
                true => Err(CallError { call: "rbd_metadata_set", errno: libc::EIO }),
                false => Ok(()),
            }
        }
    }

    const OLD: Uuid = Uuid::from_u128(1);
    const NEW: Uuid = Uuid::from_u128(2);

    fn claimed() -> (Arc<ImageClaim>, Claimant) {
        let claim = Arc::new(ImageClaim::new(NEW));
        (claim.clone(), Claimant(claim))
    }

    fn result_of(claimant: &Claimant) -> Poll<Result<(), CallError>> {
        claimant.poll(&Context::from_waker(Waker::noop()))
    }

    #[test]
    fn a_claim_that_is_recorded_late_is_taken_back() {
        for before in [None, Some(OLD)] {
            let (record, holder) = (Record::default(), Mutex::new(before));
            let (claim, claimant) = claimed();
            let claimant = Mutex::new(Some(claimant));
            // The caller gives up during the call.
            let write = |volume| {
                claimant.lock().take();
                record.write(volume)
            };
            claim.carry_out(&holder, write, || Ok(true)).unwrap();
            assert_eq!(*record.named.lock(), [Some(NEW), before]);
            assert_eq!(*holder.lock(), before);
            // Another client has the lock by now, and may have claimed the image.
            let (claim, claimant) = claimed();
            let claimant = Mutex::new(Some(claimant));
            let write = |volume| {
                claimant.lock().take();
                record.write(volume)
            };
            claim.carry_out(&holder, write, || Ok(false)).unwrap();
            assert_eq!(record.named.lock().len(), 3);
            // The caller gives up before the call, which is then not made.
            let (claim, claimant) = claimed();
            drop(claimant);
            claim.carry_out(&holder, |volume| record.write(volume), || Ok(true)).unwrap();
            assert_eq!(record.named.lock().len(), 3);
        }
    }

    #[test]
    fn a_claim_stays_once_its_caller_knows_of_it() {
        let (record, holder) = (Arc::new(Record::default()), Arc::new(Mutex::new(Some(OLD))));
        let (claim, claimant) = claimed();
        assert!(result_of(&claimant).is_pending());
        let (own, at) = (record.clone(), holder.clone());
        let thread = std::thread::spawn(move || {
            claim.carry_out(&at, |volume| own.write(volume), || Ok(true))
        });
        while result_of(&claimant).is_pending() {
            std::thread::yield_now();
        }
        drop(claimant);
        thread.join().unwrap().unwrap();
        // A later claim that is given up leaves this one recorded.
        let claim = Arc::new(ImageClaim::new(OLD));
        let late = Mutex::new(Some(Claimant(claim.clone())));
        let write = |volume| {
            late.lock().take();
            record.write(volume)
        };
        claim.carry_out(&holder, write, || Ok(true)).unwrap();
        assert_eq!(*record.named.lock(), [Some(NEW), Some(OLD), Some(NEW)]);
    }

    #[test]
    fn a_claim_that_fails_is_reported_and_not_taken_back() {
        let (record, holder) = (Record { fails: true, ..Record::default() }, Mutex::new(Some(OLD)));
        let (claim, claimant) = claimed();
        claim.carry_out(&holder, |volume| record.write(volume), || Ok(true)).unwrap();
        assert!(
            matches!(result_of(&claimant), Poll::Ready(Err(error)) if error.errno == libc::EIO)
        );
        assert_eq!((record.named.lock().len(), *holder.lock()), (1, Some(OLD)));
    }
}
