//! The closed loop: every job keeps a number of its own requests in flight, all on one lane. The
//! same loop runs over the engine and over a bare device, so that one can be a share of the other.
//!
//! A request that completes at once (a hit, a write that the log has room for, any request to a RAM
//! device) is never in flight: the depth is then the number of requests that a job makes before the
//! next job, and in the end the lane's own work, has its turn.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use forebay_core::Op;
use forebay_device::{Device, DeviceOp, IoBuf, IoData, Queue};
use forebay_engine::{BlockService, Coming, Completion, CompletionSink, LaneVolume};
use serde::Serialize;

use crate::bench::driver::{Sink, stamp};
use crate::bench::engine::worker::Worker;
use crate::bench::measure::{Sample, Stopwatch};
use crate::bench::pattern::Step;
use crate::error::{LabResult, other};
use crate::rig::BLOCK;

/// Path of a request into the engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Way {
    /// First attempted synchronously, as by front ends; submitted if that fails.
    FrontEnd,
    /// Always submitted, and completed through a sink.
    Submitted,
}

/// Number of requests in flight, and duration.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// Jobs on this lane, at least 1.
    pub(crate) jobs: usize,
    /// Requests in flight for each of them, at least 1.
    pub(crate) depth: usize,
    pub(crate) time: Duration,
    /// Whether to end when the steps of a job are over.
    pub(crate) once: bool,
}

/// The steps of one job, again and again.
struct Stream {
    steps: Arc<[Step]>,
    at: usize,
    over: bool,
}

impl Stream {
    fn new(steps: Arc<[Step]>) -> Self {
        Stream { over: steps.is_empty(), steps, at: 0 }
    }

    /// The step after `skipped` others.
    #[inline]
    fn peek(&self, skipped: usize) -> Option<Step> {
        let at = self.at + skipped;
        self.steps.get(if at < self.steps.len() { at } else { at - self.steps.len() }).copied()
    }

    #[inline]
    fn next(&mut self) -> Option<Step> {
        let step = self.steps.get(self.at).copied();
        self.at += 1;
        if self.at >= self.steps.len() {
            self.at = 0;
            self.over = true;
        }
        step
    }
}

/// One job on the engine: its steps, its requests in flight, a payload for each.
struct Job {
    stream: Stream,
    sink: Rc<JobSink>,
    payloads: Vec<Vec<u8>>,
}

#[derive(Default)]
struct JobSink {
    in_flight: Cell<usize>,
    common: Rc<Sink>,
}

impl CompletionSink for JobSink {
    fn complete(&self, completion: Completion) {
        self.in_flight.set(self.in_flight.get() - 1);
        self.common.complete(completion);
    }
}

/// Keeps the engine busy until the time is over, then waits for the requests in flight. `steps`
/// returns the steps of each job.
pub(crate) fn engine(
    worker: &mut Worker,
    way: Way,
    load: Load,
    steps: impl Fn(usize) -> Arc<[Step]>,
) -> LabResult<Sample> {
    let common: Rc<Sink> = Rc::default();
    let mut jobs: Vec<Job> = (0..load.jobs)
        .map(|job| Job {
            stream: Stream::new(steps(job)),
            sink: Rc::new(JobSink { in_flight: Cell::new(0), common: common.clone() }),
            payloads: vec![vec![0x5a; BLOCK as usize]; load.depth],
        })
        .collect();
    let target = worker.driver.target.clone();
    let watch = Stopwatch::start();
    let mut at_once = 0;
    loop {
        let mut over = false;
        for job in &mut jobs {
            at_once += job.round(&target, way, load)?;
            over |= load.once && job.stream.over;
        }
        worker.driver.local.turn();
        common.check()?;
        if over || watch.wall() >= load.time {
            break;
        }
    }
    worker.driver.local.run_until("the last requests", || {
        jobs.iter().all(|job| job.sink.in_flight.get() == 0).then_some(())
    })?;
    common.check()?;
    worker.driver.requests += at_once + common.done.get();
    worker.driver.submitted += common.done.get();
    Ok(watch.sample(at_once + common.done.get()))
}

impl Job {
    /// Makes requests up to the depth; returns how many were answered at once.
    #[inline]
    fn round(&mut self, target: &Rc<LaneVolume>, way: Way, load: Load) -> LabResult<u64> {
        let mut at_once = 0;
        let free = load.depth.saturating_sub(self.sink.in_flight.get());
        for slot in 0..free {
            if load.once && self.stream.over {
                break;
            }
            // Announce the requests that were received and not yet executed, as front ends do.
            for (ahead, coming) in [(1, Coming::Next), (2, Coming::Later)] {
                if let Some(step) = self.stream.peek(ahead).filter(|_| slot + ahead < free) {
                    let op = if step.write() { Op::Write } else { Op::Read };
                    target.expect(op, step.block() * BLOCK, coming);
                }
            }
            let Some(step) = self.stream.next() else { break };
            let offset = step.block() * BLOCK;
            let Some(payload) = self.payloads.get_mut(slot) else { break };
            let done = match (way, step.write()) {
                (Way::Submitted, _) => None,
                (Way::FrontEnd, true) => {
                    stamp(payload);
                    target.write_now(offset, payload)
                }
                (Way::FrontEnd, false) => target.read_now(offset, payload),
            };
            std::hint::black_box(&*payload);
            match done {
                Some(result) => {
                    result?;
                    at_once += 1;
                }
                None => self.submit(target, step),
            }
        }
        Ok(at_once)
    }

    fn submit(&self, target: &Rc<LaneVolume>, step: Step) {
        let sink: Rc<dyn CompletionSink> = self.sink.clone();
        let mut request = self.sink.common.request(step, 0);
        if let Some(data) = request.data.as_mut().filter(|_| step.write()) {
            stamp(data);
        }
        self.sink.in_flight.set(self.sink.in_flight.get() + 1);
        target.submit(request, &sink);
    }
}

/// One job on a bare device.
struct RawJob {
    stream: Stream,
    buffers: Vec<IoBuf>,
}

/// Keeps a device in RAM busy in the same manner, `block` bytes at a time: step n goes to byte
/// n * `block`.
pub(crate) fn raw(
    worker: &Worker,
    device: &Arc<dyn Device>,
    block: u64,
    load: Load,
    steps: impl Fn(usize) -> Arc<[Step]>,
) -> LabResult<Sample> {
    let queue = worker.driver.local.context.open(device)?;
    let blocks = (device.size() / block).max(1);
    let mut jobs: Vec<RawJob> = (0..load.jobs)
        .map(|job| RawJob {
            stream: Stream::new(steps(job)),
            buffers: (0..load.depth).map(|_| IoBuf::zeroed(block as usize)).collect(),
        })
        .collect();
    let mut started = Vec::with_capacity(load.depth);
    let watch = Stopwatch::start();
    let mut done = 0;
    loop {
        let mut over = false;
        for job in &mut jobs {
            done += job.round(&queue, block, blocks, &mut started)?;
            over |= load.once && job.stream.over;
        }
        worker.driver.local.turn();
        if over || watch.wall() >= load.time {
            return Ok(watch.sample(done));
        }
    }
}

impl RawJob {
    #[inline]
    fn round(
        &mut self,
        queue: &Queue,
        block: u64,
        blocks: u64,
        started: &mut Vec<forebay_device::OpId>,
    ) -> LabResult<u64> {
        let queue = queue.inner();
        while let Some(mut buf) = self.buffers.pop() {
            let Some(step) = self.stream.next() else { break };
            let offset = step.block() % blocks * block;
            let op = if step.write() {
                stamp(&mut buf);
                DeviceOp::Write { offset, data: IoData::Owned(buf) }
            } else {
                DeviceOp::Read { offset, buf }
            };
            started.push(queue.start(op));
        }
        let mut context = Context::from_waker(Waker::noop());
        let mut done = 0;
        for id in started.drain(..) {
            let Poll::Ready(end) = queue.poll_op(id, &mut context) else {
                return Err(other("the bare device does not complete at once"));
            };
            end.result?;
            self.buffers.extend(end.buf);
            done += 1;
        }
        Ok(done)
    }
}
