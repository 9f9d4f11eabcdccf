//! One queue of a device on the lane that serves it. Each tag has a task: it waits for a request,
//! executes it, and passes the result to the kernel together with the wait for the next request.

use std::cell::{Cell, RefCell};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{IoError, Op, Survives};
use forebay_device::IoBuf;
use forebay_device::ring::{Ring, RingOp};
use forebay_device::ublk::{Descriptors, QueueCommand};
use forebay_engine::{BlockService, Completion, CompletionSink, Request, Tags};
use forebay_lane::{Lane, LaneMemory, Signal};
use rustix::io::Errno;

use crate::request::{DeviceFacts, VolumeRequest, convert, errno};

/// The treatment of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mood {
    /// Requests are executed.
    Serving,
    /// Requests are left to the next server.
    Leaving,
    /// Requests fail.
    Failing,
}

/// The kernel's side of a queue. It is dropped when no task serves a tag any more; then another
/// process can serve the device.
pub(crate) struct Source {
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) descriptors: Descriptors,
}

/// The result of a request that the volume executes, for the task that waits for it.
#[derive(Default)]
struct Outcome {
    completion: RefCell<Option<Completion>>,
    /// Raised when the request completes, or when its task stops waiting for it.
    changed: Signal,
}

/// A request that was submitted to the volume.
struct InFlight {
    outcome: Rc<Outcome>,
    held: u64,
}

/// See the module.
pub(crate) struct ServedQueue {
    volume: String,
    number: u16,
    facts: DeviceFacts,
    /// `None`: the volume is gone.
    target: RefCell<Option<Rc<dyn BlockService>>>,
    mood: Cell<Mood>,
    ring: Rc<Ring>,
    memory: Rc<LaneMemory>,
    in_flight: RefCell<Tags<InFlight>>,
    /// For each tag of the kernel, the outcome of its current or last request.
    outcomes: RefCell<Vec<Rc<Outcome>>>,
    /// Bytes of memory held by the requests.
    held: Cell<u64>,
    complained: Cell<bool>,
    /// Raised when a request has been answered.
    pub(crate) quieter: Signal,
}

impl ServedQueue {
    pub(crate) fn new(
        (volume, number): (&str, u16),
        (target, facts): (Rc<dyn BlockService>, DeviceFacts),
        (ring, memory): (Rc<Ring>, Rc<LaneMemory>),
    ) -> Rc<Self> {
        Rc::new(ServedQueue {
            volume: volume.to_owned(),
            number,
            facts,
            target: RefCell::new(Some(target)),
            mood: Cell::new(Mood::Serving),
            ring,
            memory,
            in_flight: RefCell::default(),
            outcomes: RefCell::default(),
            held: Cell::new(0),
            complained: Cell::new(false),
            quieter: Signal::default(),
        })
    }

    /// Returns the volume's name.
    pub(crate) fn volume(&self) -> &str {
        &self.volume
    }

    /// Returns whether the volume has no request of this queue.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_flight.borrow().is_empty()
    }

    /// Begins to serve all tags, with a buffer for each. Calls `at_end` when no tag is served any
    /// more.
    pub(crate) fn serve(
        self: &Rc<Self>,
        lane: &Lane,
        buffers: Vec<IoBuf>,
        source: Source,
        at_end: impl FnOnce() + 'static,
    ) {
        let (source, end) = (Rc::new(source), Rc::new(AtEnd(Some(at_end))));
        self.outcomes.replace(buffers.iter().map(|_| Rc::default()).collect());
        for (tag, buf) in (0..).zip(buffers) {
            let (queue, source, end) = (self.clone(), source.clone(), end.clone());
            lane.spawn(async move {
                queue.serve_tag(tag, buf, source).await;
                drop(end);
            });
        }
    }

    async fn serve_tag(self: &Rc<Self>, tag: u16, mut buf: IoBuf, source: Rc<Source>) {
        let sink: Rc<dyn CompletionSink> = self.clone();
        let mut result = None;
        loop {
            let command = QueueCommand { queue: self.number, tag, result };
            let done = self.ring.run(RingOp::Serve { fd: source.fd.clone(), command, buf }).await;
            buf = done.buf.unwrap_or_default();
            if buf.len() != self.facts.max_io as usize {
                buf = self.buffer();
            }
            match done.result.map_err(|error| Errno::from_io_error(&error)) {
                Ok(_) => {}
                // The device is being removed.
                Err(Some(Errno::NODEV | Errno::CANCELED)) => return,
                Err(error) => return self.complain(error),
            }
            if self.mood.get() == Mood::Leaving {
                return;
            }
            let descriptor = source.descriptors.get(tag).unwrap_or_default();
            let answer = match convert(&descriptor, &self.facts) {
                Ok(request) => {
                    let executed = self.execute(tag, &request, buf, &sink).await;
                    buf = executed.1;
                    // The volume may have failed the request because the volume ends; the next
                    // server executes it again.
                    if executed.0.is_err() && self.mood.get() == Mood::Leaving {
                        return;
                    }
                    executed.0.map(|()| request.done())
                }
                Err(errno) => Err(errno),
            };
            result = Some(answer.unwrap_or_else(|errno| -errno.raw_os_error()));
        }
    }

    /// Returns the buffer of a tag.
    fn buffer(&self) -> IoBuf {
        IoBuf::for_overwrite(self.facts.max_io as usize)
    }

    fn complain(&self, error: Option<Errno>) {
        if !self.complained.replace(true) {
            let error = error.map_or_else(|| "unknown".to_owned(), |error| error.to_string());
            tracing::error!(
                volume = self.volume,
                queue = self.number,
                error,
                "the kernel does not give the requests of its device; some are not served any more"
            );
        }
    }

    /// Executes a request. Returns its result, and the buffer with the data of a read.
    async fn execute(
        &self,
        tag: u16,
        request: &VolumeRequest,
        mut buf: IoBuf,
        sink: &Rc<dyn CompletionSink>,
    ) -> (Result<(), Errno>, IoBuf) {
        let target = self.target.borrow().clone();
        let Some(target) = target.filter(|_| self.mood.get() != Mood::Failing) else {
            return (Err(Errno::IO), buf);
        };
        let VolumeRequest { op, offset, len, survives, no_hole } = *request;
        let now = match (op, buf.get_mut(..request.data())) {
            (Op::Read, Some(into)) => target.read_now(offset, into),
            (Op::Write, Some(data)) if survives == Survives::Nothing => {
                target.write_now(offset, data)
            }
            _ => None,
        };
        if let Some(result) = now {
            return (result.map_err(errno), buf);
        }
        // The data are in the tag's own memory, which is not counted again.
        let held = target.memory(op, offset, len).saturating_sub(request.data() as u64);
        if !self.memory.budget().can_have(held) {
            return (Err(errno(IoError::NoSpace)), buf);
        }
        if !self.memory.take(held, self.held.get()) {
            self.memory.wait(held).await;
            if self.mood.get() == Mood::Failing {
                self.memory.give(held);
                return (Err(Errno::IO), buf);
            }
        }
        self.held.set(self.held.get() + held);
        let (data, rest) = match request.data() {
            0 => (None, buf),
            // `convert` has checked that the length does not exceed the buffer.
            len => {
                let rest = buf.split_off(len.min(buf.len()));
                (Some(buf), rest)
            }
        };
        let outcome = self.outcomes.borrow().get(usize::from(tag)).cloned().unwrap_or_default();
        let own = self.in_flight.borrow_mut().add(InFlight { outcome: outcome.clone(), held });
        let (tag, fast) = (own, false);
        target.submit(Request { tag, op, offset, len, survives, fast, no_hole, data }, sink);
        outcome.changed.wait().await;
        let completion = outcome.completion.take();
        let Some(Completion { result, data, .. }) = completion else {
            // The request fails now; the volume completes it later, without effect on the answer.
            return (Err(Errno::IO), self.buffer());
        };
        (result.map_err(errno), self.whole(data, rest))
    }

    /// Puts the buffer of a tag together again.
    fn whole(&self, data: Option<IoBuf>, rest: IoBuf) -> IoBuf {
        let Some(data) = data else {
            let whole = rest.len() == self.facts.max_io as usize;
            return if whole { rest } else { self.buffer() };
        };
        data.unsplit(rest).unwrap_or_else(|(data, _)| {
            let mut buf = self.buffer();
            if let Some(place) = buf.get_mut(..data.len()) {
                place.copy_from_slice(&data);
            }
            buf
        })
    }

    /// Releases the volume: from now on every request fails, except those in flight.
    pub(crate) fn let_go(&self) {
        drop(self.target.take());
    }

    /// Leaves all requests from now on to the next server of the device. They fail if the device
    /// cannot have another server.
    pub(crate) fn leave(&self) {
        match self.facts.outlives {
            true => self.mood.set(Mood::Leaving),
            false => self.fail(),
        }
    }

    /// Fails every request from now on; fails those in flight at once.
    pub(crate) fn fail(&self) {
        self.mood.set(Mood::Failing);
        self.outcomes.borrow().iter().for_each(|outcome| outcome.changed.raise());
    }
}

impl CompletionSink for ServedQueue {
    fn complete(&self, completion: Completion) {
        let Some(InFlight { outcome, held }) = self.in_flight.borrow_mut().remove(completion.tag)
        else {
            debug_assert!(false, "a request completes twice");
            return;
        };
        self.held.set(self.held.get() - held);
        self.memory.give(held);
        outcome.completion.replace(Some(completion));
        outcome.changed.raise();
        self.quieter.raise();
    }
}

/// Calls a function on drop, also when a task panics.
struct AtEnd<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for AtEnd<F> {
    fn drop(&mut self) {
        if let Some(run) = self.0.take() {
            run();
        }
    }
}

#[cfg(test)]
mod tests;
