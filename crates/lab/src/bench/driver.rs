//! Requests of one block, one after the other, the way a front end makes them: first the quick
//! way, and if that is not possible, submitted and waited for.

use std::cell::{Cell, RefCell};
use std::hint::black_box;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{IoError, Op};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Coming, Completion, CompletionSink, LaneVolume, Request};
use forebay_ram::{RamVolume, Tier};

use crate::bench::pattern::{Step, permutation};
use crate::error::LabResult;
use crate::progress::Progress;
use crate::rig::{BLOCK, LocalLane, request};

/// Requests between two runs of the lane's tasks, as with a client that has so many in flight.
pub(crate) const BATCH: usize = 32;

/// Counts completions, and keeps their buffers for the next requests.
#[derive(Default)]
pub(crate) struct Sink {
    pub(crate) done: Cell<u64>,
    failed: Cell<Option<IoError>>,
    buffers: RefCell<Vec<IoBuf>>,
}

impl CompletionSink for Sink {
    fn complete(&self, completion: Completion) {
        self.done.set(self.done.get() + 1);
        if let Err(error) = completion.result {
            self.failed.set(Some(error));
        }
        let data = completion.data.filter(|data| data.len() as u64 == BLOCK);
        self.buffers.borrow_mut().extend(data);
    }
}

impl Sink {
    /// The first failure since this was last asked.
    pub(crate) fn check(&self) -> LabResult<()> {
        match self.failed.take() {
            Some(error) => Err(error.into()),
            None => Ok(()),
        }
    }

    /// A request for one block, with a buffer that was used before where there is one.
    pub(crate) fn request(&self, step: Step, tag: u64) -> Request {
        let data = self.buffers.borrow_mut().pop();
        let data = data.unwrap_or_else(|| IoBuf::zeroed(BLOCK as usize));
        let op = if step.write() { Op::Write } else { Op::Read };
        request(tag, op, step.block() * BLOCK, BLOCK, Some(data))
    }
}

pub(crate) struct Driver {
    pub(crate) local: LocalLane,
    pub(crate) target: Rc<LaneVolume>,
    /// Target of the requests: the volume, or the tier in front of it.
    top: Rc<dyn BlockService>,
    sink: Rc<Sink>,
    small: Vec<u8>,
    /// Whether payloads differ from each other.
    stamped: bool,
    pub(crate) requests: u64,
    /// Requests that had to be submitted.
    pub(crate) submitted: u64,
}

impl Driver {
    pub(crate) fn new(local: LocalLane, target: Rc<LaneVolume>) -> Self {
        let small = vec![0x5a; BLOCK as usize];
        let top = target.clone();
        let sink = Rc::default();
        Driver { local, target, top, sink, small, stamped: true, requests: 0, submitted: 0 }
    }

    /// Sends the requests through a RAM tier.
    pub(crate) fn with_ram(self, tier: Arc<Tier>) -> Self {
        let lane = self.local.lane().clone();
        let top = RamVolume::new(tier, self.target.clone(), lane);
        self.with_top(top)
    }

    /// Sends the requests through another layer above the volume.
    pub(crate) fn with_top(mut self, top: Rc<dyn BlockService>) -> Self {
        self.top = top;
        self
    }

    /// Makes all written blocks repeat one byte, for devices that store such blocks compactly.
    pub(crate) fn repeat_payload(&mut self) {
        self.small.fill(0x5a);
        self.stamped = false;
    }

    /// One request.
    #[inline]
    pub(crate) fn step(&mut self, step: Step) -> LabResult<()> {
        let offset = step.block() * BLOCK;
        let done = if step.write() {
            if self.stamped {
                stamp(&mut self.small);
            }
            self.top.write_now(offset, &self.small)
        } else {
            let done = self.top.read_now(offset, &mut self.small);
            black_box(&self.small);
            done
        };
        match done {
            Some(result) => Ok(result?),
            None => self.slowly(step),
        }
    }

    #[cold]
    fn slowly(&mut self, step: Step) -> LabResult<()> {
        self.submitted += 1;
        let mut request = self.sink.request(step, 0);
        if let Some(data) = request.data.as_mut().filter(|_| step.write()) {
            data.copy_from_slice(&self.small);
        }
        self.submit(request)
    }

    /// A request of any kind, to its end.
    pub(crate) fn submit(&self, request: Request) -> LabResult<()> {
        let before = self.sink.done.get();
        let sink: Rc<dyn CompletionSink> = self.sink.clone();
        self.top.submit(request, &sink);
        self.local.run_until("a request", || (self.sink.done.get() > before).then_some(()))?;
        self.sink.check()
    }

    /// A request without data.
    pub(crate) fn plain(&self, op: Op, offset: u64, len: u64) -> LabResult<()> {
        self.submit(request(0, op, offset, len, None))
    }

    /// All of these, with the lane's other work in between.
    pub(crate) fn steps(&mut self, steps: &[Step]) -> LabResult<()> {
        self.requests += steps.len() as u64;
        for batch in steps.chunks(BATCH) {
            self.expect(batch.first(), Coming::Later);
            self.expect(batch.first(), Coming::Next);
            self.expect(batch.get(1), Coming::Later);
            for (number, step) in batch.iter().enumerate() {
                self.expect(batch.get(number + 1), Coming::Next);
                self.expect(batch.get(number + 2), Coming::Later);
                self.step(*step)?;
            }
            self.local.turn();
        }
        Ok(())
    }

    /// Announces a request that was received and not yet executed, as a front end does.
    fn expect(&self, step: Option<&Step>, coming: Coming) {
        if let Some(step) = step {
            let op = if step.write() { Op::Write } else { Op::Read };
            self.top.expect(op, step.block() * BLOCK, coming);
        }
    }
}

/// Makes the next payload differ from the last one.
#[inline]
pub(crate) fn stamp(payload: &mut [u8]) {
    if let Some(first) = payload.first_chunk_mut::<8>() {
        *first = u64::from_le_bytes(*first).wrapping_add(1).to_le_bytes();
    }
}

/// Bytes that are brought in together.
const CHUNK: u64 = 1 << 20;

/// Brings blocks of a range into the cache as they are on the origin.
pub(crate) fn fill_clean(
    driver: &Driver,
    blocks: std::ops::Range<u64>,
    progress: &Progress,
) -> LabResult<()> {
    // Nothing is taken from an origin that might still lose what an earlier run wrote to it.
    driver.plain(Op::Flush, 0, 0)?;
    let end = blocks.end * BLOCK;
    let mut at = blocks.start * BLOCK;
    while at < end {
        let len = CHUNK.min(end - at);
        driver.plain(Op::Prefetch, at, len)?;
        driver.local.turn();
        progress.advance(len / BLOCK);
        at += len;
    }
    Ok(())
}

/// Writes every block below `blocks` once, in random order.
pub(crate) fn fill_dirty(
    driver: &mut Driver,
    order: &[Step],
    progress: &Progress,
) -> LabResult<()> {
    for some in order.chunks(1 << 14) {
        driver.steps(some)?;
        progress.advance(some.len() as u64);
    }
    Ok(())
}

/// The order in which blocks are written: each once.
pub(crate) fn random_order(seed: u64, blocks: u64) -> Vec<Step> {
    permutation(seed, blocks as u32, true)
}
