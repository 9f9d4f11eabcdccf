//! The top of a volume's stack. It admits clients' requests at the rate that the volume's settings
//! allow. It refuses writes while the origin accepts none, and all requests once another machine
//! has taken over the origin, because cached blocks may then be outdated.
//!
//! Flushes are not limited, so that a limit delays no commit of earlier writes. Background work is
//! not limited either, but has its own settings.
//!
//! While recording is on, requests are recorded here in the form in which clients send them.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{IoError, Op, Sectors};
use forebay_device::Device;
use forebay_lane::either;

use crate::api::{BlockService, Coming, Completion, CompletionSink, Extent, Request, StateExtent};
use crate::lane::LaneVolume;
use crate::path::memory::WRITTEN_ZEROES;
use crate::state::limits::Admitted;
use crate::state::recording::Recorded;
use crate::state::volume::VolumeState;
use crate::stats::bump;

/// A volume whose requests are limited as its settings say.
pub struct LimitedVolume {
    volume: Rc<LaneVolume>,
    below: Rc<dyn BlockService>,
    admitted: Admitted,
}

impl LimitedVolume {
    /// Puts the limits of `volume` in front of `below`, which is the volume, or a tier in front of
    /// it.
    pub fn new(volume: Rc<LaneVolume>, below: Rc<dyn BlockService>) -> Rc<Self> {
        Rc::new(LimitedVolume { volume, below, admitted: Admitted::default() })
    }

    /// Returns why a request is refused, if it is.
    #[inline]
    fn refusal(&self, op: Op) -> Option<IoError> {
        refusal(&self.volume, op)
    }

    /// Answers a request at once, if the limits allow it now.
    #[inline]
    fn now(
        &self,
        (op, offset, bytes): (Op, u64, usize),
        act: impl FnOnce() -> Option<Result<(), IoError>>,
    ) -> Option<Result<(), IoError>> {
        let volume = &self.volume.volume;
        if let Some(error) = self.refusal(op) {
            return Some(Err(error));
        }
        let limits = &volume.limits;
        let limited = limits.are_set();
        if limited && !limits.admit(&self.admitted, bytes as u64, || self.volume.now()) {
            return None;
        }
        let done = act()?;
        if limited {
            self.admitted.spend(bytes as u64);
        }
        self.record(op, offset, bytes as u64);
        Some(done)
    }

    /// Records a request that was answered, or is about to be submitted.
    #[inline]
    fn record(&self, op: Op, offset: u64, len: u64) {
        if self.volume.volume.recorder.is_on.load(Ordering::Relaxed) {
            let op = match op {
                Op::Read | Op::Write | Op::Discard => op,
                Op::WriteZeroes if len <= WRITTEN_ZEROES => Op::Write,
                Op::WriteZeroes => Op::Discard,
                Op::Flush | Op::Prefetch => return,
            };
            let request = Recorded { time: self.volume.now(), op, offset, len };
            let lane = usize::from(self.volume.lane().id().0);
            self.volume.volume.recorder.record(lane, request);
        }
    }
}

/// Returns why a request of a client is refused, if it is.
#[inline]
fn refusal(view: &LaneVolume, op: Op) -> Option<IoError> {
    if view.volume.is_fenced() {
        return Some(IoError::Io);
    }
    let writes = matches!(op, Op::Write | Op::WriteZeroes | Op::Discard);
    (writes && view.volume.refuses_writes()).then_some(IoError::ReadOnly)
}

fn refuse(request: Request, error: IoError, sink: &Rc<dyn CompletionSink>) {
    let Request { tag, data, .. } = request;
    sink.complete(Completion { tag, result: Err(error), data });
}

/// Waits for the turn of a request of this many bytes, or until the volume stops.
async fn wait(view: &LaneVolume, bytes: u64) {
    let limits = &view.volume.limits;
    let asked = view.now();
    let mut turn = limits.take(asked, bytes);
    while turn > view.now() {
        let changed = limits.changed.listen();
        if view.volume.state() != VolumeState::Running {
            break;
        }
        let mut again = true;
        either(changed, async {
            view.lane().sleep_until(turn).await;
            again = false;
        })
        .await;
        if again {
            turn = limits.take(view.now(), bytes);
        }
    }
    let counters = &view.stats().counters;
    bump(&counters.limited_requests, 1);
    let waited = view.now().since(asked).as_nanos();
    bump(&counters.limited_wait_ns, u64::try_from(waited).unwrap_or(u64::MAX));
}

impl BlockService for LimitedVolume {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn preferred_block(&self) -> u64 {
        self.below.preferred_block()
    }

    fn sectors(&self) -> Sectors {
        self.below.sectors()
    }

    fn whole_blocks(&self, range: Range<u64>) -> Range<u64> {
        self.below.whole_blocks(range)
    }

    fn read_only(&self) -> bool {
        self.below.read_only()
    }

    #[inline]
    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        self.now((Op::Read, offset, into.len()), || self.below.read_now(offset, into))
    }

    #[inline]
    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        self.now((Op::Write, offset, data.len()), || self.below.write_now(offset, data))
    }

    fn expect(&self, op: Op, offset: u64, coming: Coming) {
        self.below.expect(op, offset, coming);
    }

    fn memory(&self, op: Op, offset: u64, len: u64) -> u64 {
        self.below.memory(op, offset, len)
    }

    fn losses(&self) -> u64 {
        self.below.losses()
    }

    fn used(&self, offset: u64, len: u64) {
        self.below.used(offset, len);
    }

    fn takes_offers(&self) -> bool {
        self.below.takes_offers()
    }

    fn offer(&self, offset: u64, data: &[u8], is_current: &dyn Fn() -> bool) {
        self.below.offer(offset, data, is_current);
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        let limits = &self.volume.volume.limits;
        let bytes = match request.op {
            Op::Read | Op::Prefetch | Op::Write => Some(request.len),
            // These requests move no data.
            Op::WriteZeroes | Op::Discard => Some(0),
            Op::Flush => None,
        };
        if let Some(error) = self.refusal(request.op) {
            return refuse(request, error, sink);
        }
        self.record(request.op, request.offset, request.len);
        let Some(bytes) = bytes.filter(|_| limits.are_set()) else {
            return self.below.submit(request, sink);
        };
        if limits.admit(&self.admitted, bytes, || self.volume.now()) {
            self.admitted.spend(bytes);
            return self.below.submit(request, sink);
        }
        let (view, below, sink) = (self.volume.clone(), self.below.clone(), sink.clone());
        self.volume.lane().spawn(async move {
            wait(&view, bytes).await;
            match refusal(&view, request.op) {
                Some(error) => refuse(request, error, &sink),
                None => below.submit(request, &sink),
            }
        });
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        self.below.extents(offset, len)
    }

    fn states(&self, offset: u64, len: u64) -> Option<Vec<StateExtent>> {
        self.below.states(offset, len)
    }

    fn origin(&self) -> Option<Arc<dyn Device>> {
        self.below.origin()
    }
}
