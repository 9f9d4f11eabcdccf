//! The slots of a ring, and their submission to the kernel.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Arc;
use std::task::Waker;
use std::time::Duration;

use io_uring::{EnterFlags, opcode, squeue, types};
use rustix::io::Errno;

use super::op::{RingDone, RingOp};
use super::uring::{Submission, Uring};
use crate::buffer::IoBuf;

/// Marks completions without a slot.
const NO_SLOT: u64 = 1 << 63;
/// Marks the completion of a [`RingOp::prelude`], with the token of its operation.
const PRELUDE: u64 = 1 << 62;
/// Use counts of slots.
const GENERATIONS: u32 = u32::MAX >> 2;
/// Interval at which a ring that is closing repeats its cancellations, for operations that had not
/// begun at the first attempt.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// Identifies one operation on one ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct RingToken {
    index: u32,
    /// 30 bits: use count of the slot.
    generation: u32,
}

impl RingToken {
    fn to_user_data(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.index)
    }

    fn from_user_data(data: u64) -> Option<Self> {
        let generation = (data >> 32) as u32;
        (data & NO_SLOT == 0).then_some(RingToken { index: data as u32, generation })
    }
}

pub(super) enum RingWork {
    /// An operation.
    Op(RingOp),
    /// The ring's own read of the eventfd by which other threads wake it. Never ends.
    Rouse { fd: Arc<OwnedFd>, count: IoBuf },
}

impl RingWork {
    pub(super) fn is_endless(&self) -> bool {
        match self {
            RingWork::Op(op) => op.is_endless(),
            RingWork::Rouse { .. } => true,
        }
    }

    /// See [`RingOp::is_bound`].
    pub(super) fn is_bound(&self) -> bool {
        matches!(self, RingWork::Op(op) if op.is_bound())
    }
}

pub(super) enum State {
    Free,
    /// Waiting in user space, or submitted to the kernel.
    Running {
        work: RingWork,
        /// Bytes moved so far.
        done: usize,
        waker: Option<Waker>,
        with_kernel: bool,
        /// Whether the result was abandoned.
        orphan: bool,
        /// Whether the operation is to end early, with a result.
        cancelled: bool,
    },
    Done(RingDone),
}

pub(super) struct RingSlot {
    generation: u32,
    pub(super) state: State,
}

pub(super) enum Queued {
    Start(RingToken),
    Cancel(RingToken),
}

/// The kernel's `io_uring_getevents_arg`.
#[repr(C)]
struct WaitArgs {
    signals: u64,
    signals_size: u32,
    least_wait: u32,
    /// Address of a [`types::Timespec`]; 0 for none.
    timeout: u64,
}

const _: () = assert!(size_of::<WaitArgs>() == 24);

pub(super) struct Inner {
    uring: Uring,
    pub(super) slots: Vec<RingSlot>,
    free: Vec<u32>,
    /// Submissions that did not fit into the submission queue yet, in order.
    pub(super) queued: VecDeque<Queued>,
    /// Submissions that the kernel has or gets with the next call, and has not completed.
    outstanding: usize,
    /// Outstanding submissions that a device completes, not a client or another thread.
    pub(super) on_devices: usize,
    /// Whether the kernel can be told that a wait is not for I/O (Linux 6.15 and later).
    tells_idle: bool,
    /// Wakers to call once the ring is no longer borrowed.
    pub(super) woken: Vec<Waker>,
    /// Whether a failure to enter the kernel has been logged, because it would repeat endlessly.
    complained: bool,
}

impl Inner {
    /// Creates a ring of the calling thread that permanently reads `rouse`.
    pub(super) fn new(rouse: Arc<OwnedFd>, wide: bool) -> io::Result<Self> {
        let uring = Uring::new(wide)?;
        let params = uring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err(io::Error::new(
                io::ErrorKind::Unsupported,
                "the kernel's io_uring is too old; Linux 5.11 or later is needed",
            ));
        }
        let mut inner = Inner {
            tells_idle: params.is_feature_no_iowait(),
            uring,
            slots: Vec::new(),
            free: Vec::new(),
            queued: VecDeque::new(),
            outstanding: 0,
            on_devices: 0,
            woken: Vec::new(),
            complained: false,
        };
        inner.add(RingWork::Rouse { fd: rouse, count: IoBuf::zeroed(size_of::<u64>()) });
        Ok(inner)
    }

    pub(super) fn add(&mut self, work: RingWork) -> RingToken {
        let state = State::Running {
            work,
            done: 0,
            waker: None,
            with_kernel: false,
            orphan: false,
            cancelled: false,
        };
        let token = match self.free.pop() {
            Some(index) => {
                let slot = &mut self.slots[index as usize];
                slot.state = state;
                RingToken { index, generation: slot.generation }
            }
            None => {
                let index = self.slots.len() as u32;
                self.slots.push(RingSlot { generation: 0, state });
                RingToken { index, generation: 0 }
            }
        };
        if !self.queued.is_empty() || !self.push(token) {
            self.queued.push_back(Queued::Start(token));
        }
        token
    }

    pub(super) fn state(&mut self, token: RingToken) -> Option<&mut State> {
        let slot = self.slots.get_mut(token.index as usize)?;
        (slot.generation == token.generation).then_some(&mut slot.state)
    }

    /// Makes the slot of an ended operation available again.
    pub(super) fn release(&mut self, token: RingToken) {
        if let Some(slot) = self.slots.get_mut(token.index as usize) {
            slot.generation = (slot.generation + 1) & GENERATIONS;
            self.free.push(token.index);
        }
    }

    /// Puts one step of an operation into the submission queue. Returns `false` if there is no
    /// room.
    fn push(&mut self, token: RingToken) -> bool {
        let Inner { uring, slots, outstanding, on_devices, .. } = self;
        let Some(slot) = slots.get_mut(token.index as usize) else { return true };
        let State::Running { work, done, with_kernel, orphan, cancelled, .. } = &mut slot.state
        else {
            return true;
        };
        if (*orphan || *cancelled) && work.is_endless() {
            // Received bytes must not be lost.
            let result = match work {
                RingWork::Op(RingOp::Recv { .. }) if *done > 0 => Ok(*done as u32),
                _ => Err(Errno::CANCELED.into()),
            };
            self.end(token, result, None);
            return true;
        }
        let prepared = match work {
            RingWork::Op(op) => op.prepare(*done, uring.is_wide()),
            RingWork::Rouse { fd, count } => {
                let len = count.len() as u32;
                let read = opcode::Read::new(types::Fd(fd.as_raw_fd()), count.as_io_ptr(), len);
                Ok(read.build().into())
            }
        };
        let entry = match prepared {
            Ok(entry) => entry.user_data(token.to_user_data()),
            Err(error) => {
                self.end(token, Err(error), None);
                return true;
            }
        };
        let prelude = match work {
            RingWork::Op(op) => op.prelude(),
            RingWork::Rouse { .. } => None,
        };
        let first = prelude.map(|first| {
            let first: squeue::Entry = first.user_data(PRELUDE | token.to_user_data());
            first.flags(squeue::Flags::IO_LINK)
        });
        // SAFETY: the addresses in the entry point into the buffer that `work` owns (log buffers:
        // shares, and their published bytes are not written) and the descriptor is one that it
        // shares. `work` stays in its slot, which frees it in `end` and there only after the
        // kernel has completed the entry: `end` is called from here before an entry is pushed,
        // and from `complete`. If this value goes away first, `Drop` waits for the kernel or leaks
        // the slots. A first entry has no buffer, and the kernel takes a share of its descriptor
        // when both are submitted. It is not counted: its completion precedes that of the second
        // one, which comes in any case.
        let pushed = unsafe { uring.push(first, entry) };
        *with_kernel = pushed;
        *outstanding += usize::from(pushed);
        *on_devices += usize::from(pushed && !work.is_endless());
        pushed
    }

    fn push_cancel(&mut self, token: RingToken) -> bool {
        let has_prelude = match self.state(token) {
            Some(State::Running { with_kernel: true, work: RingWork::Op(op), .. }) => {
                op.prelude().is_some()
            }
            Some(State::Running { with_kernel: true, .. }) => false,
            _ => return true,
        };
        let cancel = |data| opcode::AsyncCancel::new(data).build().user_data(NO_SLOT);
        let own = cancel(token.to_user_data());
        let first = has_prelude.then(|| cancel(PRELUDE | token.to_user_data()));
        let entries = 1 + usize::from(has_prelude);
        // SAFETY: these entries have neither buffers nor descriptors.
        let pushed = unsafe { self.uring.push(first, Submission::Narrow(own)) };
        self.outstanding += if pushed { entries } else { 0 };
        pushed
    }

    /// Moves waiting operations into the submission queue while there is room.
    pub(super) fn fill(&mut self) {
        while let Some(next) = self.queued.pop_front() {
            let pushed = match next {
                Queued::Start(token) => self.push(token),
                Queued::Cancel(token) => self.push_cancel(token),
            };
            if !pushed {
                self.queued.push_front(next);
                return;
            }
        }
    }

    /// Fills the submission queue and enters the kernel if necessary. Returns `false` if the kernel
    /// could not take any submission now.
    pub(super) fn enter(&mut self) -> bool {
        self.fill();
        if !self.uring.is_due() {
            return true;
        }
        let result = self.uring.submitter().submit();
        self.entered(result)
    }

    /// Like [`Inner::enter`], and waits until something completes or `timeout` has passed. May
    /// return early.
    ///
    /// The kernel counts a thread that waits for a ring as waiting for I/O, even if it waits only
    /// for clients: an idle daemon would look like an overloaded disk in `top` and in
    /// `/proc/pressure/io`. So the kernel is told that the wait is not for I/O, unless a device is
    /// to answer.
    pub(super) fn wait(&mut self, timeout: Option<Duration>) -> bool {
        self.fill();
        // An operation that failed before it reached the kernel has ended already.
        if !self.woken.is_empty() {
            return self.enter();
        }
        let result = self.enter_to_wait(timeout);
        self.entered(result)
    }

    /// Submits, and waits for one completion.
    fn enter_to_wait(&mut self, timeout: Option<Duration>) -> io::Result<usize> {
        let timeout = timeout.map(types::Timespec::from);
        let timeout =
            timeout.as_ref().map_or(0, |time| std::ptr::from_ref(time).expose_provenance() as u64);
        let args = WaitArgs { signals: 0, signals_size: 0, least_wait: 0, timeout };
        let mut flags = EnterFlags::EXT_ARG | EnterFlags::GETEVENTS;
        flags.set(EnterFlags::NO_IOWAIT, self.tells_idle && self.on_devices == 0);
        let submissions = self.uring.waiting() as u32;
        // SAFETY: the entries in the submission queue are those of `push` and `push_cancel`, which
        // say why they are valid. `args` has the layout that `EXT_ARG` stands for, and it and the
        // time that it points to outlive the call.
        unsafe { self.uring.submitter().enter(submissions, 1, flags.bits(), Some(&args)) }
    }

    /// Evaluates the result of a system call. Returns `false` if the kernel could not take any
    /// submission now.
    fn entered(&mut self, result: io::Result<usize>) -> bool {
        match result.map_err(|error| (Errno::from_io_error(&error), error)) {
            Ok(_) | Err((Some(Errno::INTR | Errno::TIME), _)) => true,
            // Completions must be collected, or memory must become available, first.
            Err((Some(Errno::BUSY | Errno::AGAIN), _)) => false,
            Err((_, error)) => {
                if !std::mem::replace(&mut self.complained, true) {
                    tracing::error!(%error, "the kernel refuses submissions from a ring; its lane can start no operations");
                }
                false
            }
        }
    }

    /// Collects completions; returns their number.
    pub(super) fn reap(&mut self) -> usize {
        let mut count = 0;
        loop {
            let Some(completion) = self.uring.completion().next() else { return count };
            count += 1;
            let data = completion.user_data();
            if data & NO_SLOT == 0 && data & PRELUDE != 0 {
                continue;
            }
            self.outstanding = self.outstanding.saturating_sub(1);
            if let Some(token) = RingToken::from_user_data(completion.user_data()) {
                self.complete(token, completion.result());
            }
        }
    }

    /// Handles the completion of one step of an operation.
    fn complete(&mut self, token: RingToken, code: i32) {
        if let Some(State::Running { work, .. }) = self.state(token)
            && !work.is_endless()
        {
            self.on_devices = self.on_devices.saturating_sub(1);
        }
        let Some(State::Running { work, done, with_kernel, orphan, .. }) = self.state(token) else {
            return;
        };
        *with_kernel = false;
        let again = match work {
            RingWork::Rouse { .. } => {
                let sound = code >= 0
                    || [Errno::INTR, Errno::AGAIN]
                        .map(|errno| -errno.raw_os_error())
                        .contains(&code);
                if !sound && !*orphan {
                    tracing::error!(
                        code,
                        "the eventfd of a ring cannot be read; other threads can no longer wake its lane"
                    );
                }
                sound && !*orphan
            }
            RingWork::Op(op) => {
                if let Ok(moved) = usize::try_from(code) {
                    *done += moved;
                    moved > 0 && op.whole().is_some_and(|whole| *done < whole)
                } else {
                    // Interrupted by a signal, or a disk's queue was full.
                    let disk = matches!(op, RingOp::Read { .. } | RingOp::Write { .. });
                    code == -Errno::INTR.raw_os_error()
                        || (disk && code == -Errno::AGAIN.raw_os_error())
                }
            }
        };
        if again {
            self.queued.push_back(Queued::Start(token));
            return;
        }
        let (done, accepting, receiving) = match work {
            RingWork::Op(op) => {
                (*done, matches!(op, RingOp::Accept { .. }), matches!(op, RingOp::Recv { .. }))
            }
            RingWork::Rouse { .. } => (0, false, false),
        };
        if code < 0 {
            // Received bytes must not be lost; the next receive returns the error.
            let result = match receiving && done > 0 {
                true => Ok(done as u32),
                false => Err(io::Error::from_raw_os_error(-code)),
            };
            self.end(token, result, None);
        } else if accepting {
            // SAFETY: the kernel has just made this descriptor for this request, so nothing else
            // owns it.
            let accepted = unsafe { OwnedFd::from_raw_fd(code) };
            self.end(token, Ok(0), Some(accepted));
        } else {
            self.end(token, Ok(done as u32), None);
        }
    }

    /// Ends an operation that the kernel does not have, or has completed.
    fn end(&mut self, token: RingToken, result: io::Result<u32>, accepted: Option<OwnedFd>) {
        let Some(state) = self.state(token) else { return };
        match std::mem::replace(state, State::Free) {
            State::Running { orphan: true, .. }
            | State::Running { work: RingWork::Rouse { .. }, .. } => {
                self.release(token);
            }
            State::Running { work: RingWork::Op(op), waker, .. } => {
                if let Err(error) = &result
                    && is_invalid(error)
                {
                    tracing::debug!(%error, ?op, "refused");
                }
                let (buf, entry) = op.into_parts();
                *state = State::Done(RingDone { result, buf, accepted, entry });
                self.woken.extend(waker);
            }
            other => *state = other,
        }
    }

    /// Returns the number of operations in the kernel that end only with this thread.
    fn bound(&self) -> usize {
        let bound = |slot: &&RingSlot| matches!(&slot.state, State::Running { work, with_kernel: true, .. } if work.is_bound());
        self.slots.iter().filter(bound).count()
    }

    /// Ends every operation and waits until the kernel has completed all that can be cancelled.
    fn close(&mut self) {
        self.cancel_all();
        loop {
            let bound = self.bound();
            if self.outstanding <= bound && self.queued.is_empty() {
                if bound > 0 {
                    // The kernel releases these buffers when this thread has ended.
                    std::mem::forget(std::mem::take(&mut self.slots));
                }
                return;
            }
            let waits = self.outstanding > bound;
            let entered = if waits { self.wait(Some(ASK_AGAIN)) } else { self.enter() };
            let noticed = self.reap();
            if noticed == 0 && !entered && self.complained {
                // The kernel may still write to these buffers, so they are never freed.
                tracing::error!("a ring is closed with operations in flight; memory is leaked");
                std::mem::forget(std::mem::take(&mut self.slots));
                return;
            }
            if noticed == 0 {
                self.cancel_all();
            }
        }
    }

    /// Abandons every operation, and cancels those that may wait for ever.
    fn cancel_all(&mut self) {
        let mut cancels = Vec::new();
        for (index, slot) in self.slots.iter_mut().enumerate() {
            if let State::Running { work, with_kernel, orphan, waker, .. } = &mut slot.state {
                *orphan = true;
                *waker = None;
                if *with_kernel && work.is_endless() && !work.is_bound() {
                    let token = RingToken { index: index as u32, generation: slot.generation };
                    cancels.push(Queued::Cancel(token));
                }
            }
        }
        self.queued.extend(cancels);
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.close();
    }
}

pub(super) fn is_invalid(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::InvalidInput
}
