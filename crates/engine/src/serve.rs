//! Dispatch of requests: implements [`BlockService`] for [`LaneVolume`], runs each request as a
//! task and completes it.

use std::convert::Infallible;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{IoError, Nanos, Op, OriginBlock, Sectors};
use forebay_device::{Device, IoBuf};
use forebay_lane::{JobInbox, Lane, Pool};
use forebay_policy::curve::Access;
use forebay_store::Entry;
use forebay_store::planted::{self, PlantedBug};

use crate::api::{BlockService, Coming, Completion, CompletionSink, Extent, Request, StateExtent};
use crate::io::policy::Policy;
use crate::lane::{LaneVolume, Start};
use crate::path::discard::Discarder;
use crate::path::discard::Zeroes;
use crate::path::flush::Flusher;
use crate::path::memory;
use crate::path::offer::Offers;
use crate::path::read::VolumeReader;
use crate::path::write::VolumeWriter;
use crate::serve::observe::Observer;
use crate::state::volume::VolumeState;
use crate::stats::{Kind, LaneStats, QUICK_SAMPLE, bump};

pub(crate) mod limited;
mod observe;

/// Interval at which a request that waits for a hung cache device checks whether its volume stops.
const ASKED_EVERY: Duration = Duration::from_millis(100);

/// Maximum number of blocks and vacant regions that are looked up for one answer about states: some
/// dozens of microseconds.
const STATES_LOOKED_UP: u64 = 512;

/// A request that was submitted.
struct Submitted {
    volume: Rc<LaneVolume>,
    request: Request,
    sink: Rc<dyn CompletionSink>,
}

impl<F, M> Start for Pool<F, Submitted, M>
where
    F: Future<Output = Infallible> + 'static,
    M: Fn(JobInbox<Submitted>) -> F,
{
    fn start(
        &self,
        lane: &Lane,
        volume: Rc<LaneVolume>,
        request: Request,
        sink: Rc<dyn CompletionSink>,
    ) {
        lane.spawn_in(self, Submitted { volume, request, sink });
    }
}

/// Returns a lane's pool of request tasks, shared by all of its volumes.
pub(crate) fn requests() -> Rc<dyn Start> {
    Rc::new(Pool::new(|inbox: JobInbox<Submitted>| async move {
        loop {
            let Submitted { volume, request, sink } = inbox.next().await;
            let promise = Promise { volume: &volume, tag: request.tag, sink: &*sink };
            let completion = Dispatch(&volume).serve(request).await;
            std::mem::forget(promise);
            Dispatch(&volume).request_ended();
            sink.complete(completion);
        }
    }))
}

/// Completes a request whose task panics (invariant 25).
struct Promise<'a> {
    volume: &'a LaneVolume,
    tag: u64,
    sink: &'a dyn CompletionSink,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            Dispatch(self.volume).request_ended();
            self.sink.complete(Completion { tag: self.tag, result: Err(IoError::Io), data: None });
        }
    }
}

/// Dispatches a volume's requests on one lane.
#[derive(Clone, Copy)]
pub(crate) struct Dispatch<'a>(pub(crate) &'a LaneVolume);

impl Dispatch<'_> {
    async fn serve(self, mut request: Request) -> Completion {
        let started = self.0.now();
        let Request { tag, op, offset, len, survives, fast, no_hole, .. } = request;
        let data = request.data.take();
        let write = matches!(op, Op::Write | Op::WriteZeroes | Op::Discard);
        let range =
            if op == Op::Flush { Ok(()) } else { self.0.volume.check_range(offset, len, write) };
        if range.is_ok() && len > 0 {
            match op {
                Op::Read => Observer(self.0).watch(Access::Read, offset, len),
                Op::Write => Observer(self.0).watch(Access::Write, offset, len),
                Op::WriteZeroes | Op::Discard => Observer(self.0).watch_zeroed(op, offset, len),
                Op::Flush | Op::Prefetch => (),
            }
        }
        let range = match range {
            Ok(()) if op != Op::Flush => self.load(offset, len).await,
            range => range,
        };
        let (result, data) = match range {
            Err(error) => (Err(error), data),
            Ok(()) if len == 0 && op != Op::Flush => (Ok(()), data),
            Ok(()) => match op {
                Op::Read => {
                    let buf = data.unwrap_or_else(|| IoBuf::for_overwrite(len as usize));
                    let (result, buf) = VolumeReader(self.0).read(offset, len, buf).await;
                    (result, Some(buf))
                }
                Op::Prefetch => (VolumeReader(self.0).prefetch(offset, len).await, data),
                Op::Write => match data {
                    Some(data) if data.len() as u64 == len => {
                        let (result, data) =
                            VolumeWriter(self.0).write(offset, data, survives).await;
                        (result, Some(data))
                    }
                    other => (Err(IoError::Invalid), other),
                },
                Op::WriteZeroes => {
                    let zeroes = Zeroes { fast, no_hole };
                    (Discarder(self.0).write_zeroes(offset, len, survives, zeroes).await, data)
                }
                Op::Discard => (Discarder(self.0).discard(offset, len, survives).await, data),
                Op::Flush => (Flusher(self.0).flush().await, data),
            },
        };
        let result = match result {
            // The origin did not answer while the volume was stopped, so the request was abandoned.
            Err(IoError::Io) if self.0.volume.waits.is_closed() => Err(IoError::ShuttingDown),
            result => result,
        };
        self.count_ended(started, &request, result);
        Completion { tag, result, data }
    }

    /// Counts a request that has ended, and its latency.
    fn count_ended(self, started: Nanos, request: &Request, result: Result<(), IoError>) {
        let stats = self.0.stats();
        let now = self.0.now();
        stats.foreground(now);
        let kind = match request.op {
            // The client or the front end writes zeroes instead, which is counted then. This answer
            // is not a failure.
            _ if result == Err(IoError::NotSupported) => return,
            Op::Read | Op::Prefetch => Kind::Read,
            Op::Flush => Kind::Flush,
            Op::WriteZeroes if !request.fast && request.len <= memory::WRITTEN_ZEROES => {
                Kind::Write
            }
            Op::Write => Kind::Write,
            Op::WriteZeroes | Op::Discard => Kind::Discard,
        };
        stats.latency(kind, now.since(started), 1);
        if kind == Kind::Discard {
            bump(&stats.counters.discards, 1);
        }
        if result.is_err() {
            bump(&stats.counters.errors, 1);
        }
    }

    /// Returns whether the blocks of a request can be looked up.
    #[inline]
    fn has_loaded(self, offset: u64, len: u64) -> bool {
        self.0.store.store().is_loaded() || self.has_loaded_range(offset, len)
    }

    #[cold]
    fn has_loaded_range(self, offset: u64, len: u64) -> bool {
        let volume = &self.0.volume;
        volume.check_range(offset, len, false).is_ok() && {
            let (first, end) = self.touched(offset, len);
            self.0.store.store().has_loaded(&volume.space, first, end)
        }
    }

    /// Returns the blocks that a request may look up, as first block and end. If blocks are not
    /// aligned to the origin's logical blocks, their neighbours are included, because they are read
    /// along.
    fn touched(self, offset: u64, len: u64) -> (OriginBlock, OriginBlock) {
        let volume = &self.0.volume;
        let (logical, block) = (volume.origin.logical_block(), volume.block.bytes());
        let fits = [volume.alignment(), block].iter().all(|part| part.is_multiple_of(logical));
        let more = if fits { 0 } else { (2 * logical).div_ceil(block) };
        let blocks = volume.blocks(offset..offset + len);
        let end = (blocks.end + more).min(volume.space.blocks);
        (OriginBlock(blocks.start.saturating_sub(more)), OriginBlock(end))
    }

    /// Loads the index entries for the blocks of a request whose range was checked.
    async fn load(self, offset: u64, len: u64) -> Result<(), IoError> {
        if self.0.store.store().is_loaded() || planted::has(PlantedBug::NotLoadedIsAbsent) {
            return Ok(());
        }
        let (cache, volume) = (&self.0.cache, &self.0.volume);
        let blocks = self.touched(offset, len);
        let on_load = |address, entry: &Entry| cache.on_load(self.0.lane(), address, entry);
        let mut load = std::pin::pin!(self.0.store.load(&volume.space, blocks, &on_load));
        loop {
            match cache.unless_hung(&mut load).await {
                // If the checkpoint cannot be read, it is unknown which blocks are dirty.
                Some(loaded) => return loaded.map_err(|_| IoError::Io),
                None if volume.state() != VolumeState::Running => {
                    return Err(IoError::ShuttingDown);
                }
                None => self.0.lane().sleep(ASKED_EVERY).await,
            }
        }
    }

    fn request_ended(self) {
        let in_flight = &self.0.stats().in_flight;
        in_flight.store(in_flight.load(Ordering::Relaxed) - 1, Ordering::SeqCst);
        if self.0.volume.state() != VolumeState::Running {
            self.0.volume.writeback.progress.notify_all();
        }
    }

    /// Runs `act`, which does not wait, counted as a request in flight. Returns `None` if the
    /// volume stops.
    #[inline]
    fn while_running<T>(self, act: impl FnOnce(&LaneStats) -> T) -> Option<T> {
        // Count before checking the state, as in `submit`.
        let stats = self.0.stats();
        let _answering = stats.answer();
        (self.0.volume.state() == VolumeState::Running).then(|| act(stats))
    }

    /// Answers a request by `act`, which does not wait.
    #[inline]
    fn quickly(
        self,
        access: Access,
        (offset, len): (u64, usize),
        act: impl FnOnce() -> Option<Result<(), IoError>>,
    ) -> Option<Result<(), IoError>> {
        if !self.has_loaded(offset, len as u64) {
            return None;
        }
        self.while_running(|stats| {
            let started = self.sample(stats);
            let done = act()?;
            Observer(self.0).watch_on(stats, access, offset, len as u64);
            let kind = if access == Access::Read { Kind::Read } else { Kind::Write };
            self.sampled(stats, kind, started);
            Some(done)
        })?
    }

    /// Returns the start time of a request that is answered at once, if its latency is to be
    /// sampled.
    fn sample(self, stats: &LaneStats) -> Option<Nanos> {
        let quick = &stats.quick;
        bump(quick, 1);
        quick.load(Ordering::Relaxed).is_multiple_of(QUICK_SAMPLE).then(|| self.0.now())
    }

    fn sampled(self, stats: &LaneStats, kind: Kind, started: Option<Nanos>) {
        if let Some(started) = started {
            let now = self.0.now();
            stats.foreground(now);
            stats.latency(kind, now.since(started), QUICK_SAMPLE);
        }
    }
}

impl BlockService for LaneVolume {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn preferred_block(&self) -> u64 {
        self.volume.block.bytes()
    }

    fn sectors(&self) -> Sectors {
        self.volume.sectors()
    }

    fn whole_blocks(&self, range: Range<u64>) -> Range<u64> {
        self.volume.widen(range)
    }

    fn read_only(&self) -> bool {
        self.volume.is_read_only()
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        let range = (offset, into.len());
        Dispatch(self)
            .quickly(Access::Read, range, || VolumeReader(self).read_quickly(offset, into))
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        let range = (offset, data.len());
        Dispatch(self)
            .quickly(Access::Write, range, || VolumeWriter(self).write_quickly(offset, data))
    }

    fn expect(&self, op: Op, offset: u64, coming: Coming) {
        let volume = &self.volume;
        if offset >= volume.size() {
            return;
        }
        let block = volume.block.block_of(offset + volume.alignment());
        match (coming, op) {
            (Coming::Later, Op::Read | Op::Write) => {
                self.store.store().expect(&volume.space, block, op == Op::Write);
            }
            // The hint is not worth loading a part of the index.
            (Coming::Next, Op::Read) if self.store.store().is_loaded() => {
                self.store.expect_read(&volume.space, block);
            }
            _ => (),
        }
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        let stats = self.stats();
        // Count before checking the state: a task that stops the volume either sees this request in
        // flight, or this request sees the new state.
        stats.in_flight.store(stats.in_flight.load(Ordering::Relaxed) + 1, Ordering::SeqCst);
        if self.volume.state() != VolumeState::Running {
            stats.in_flight.store(stats.in_flight.load(Ordering::Relaxed) - 1, Ordering::SeqCst);
            let Request { tag, data, .. } = request;
            sink.complete(Completion { tag, result: Err(IoError::ShuttingDown), data });
            return;
        }
        // Always `Some`: callers reach a view only through its `Rc`.
        if let Some(this) = self.shared() {
            self.requests.start(self.store.lane(), this, request, sink.clone());
        }
    }

    fn used(&self, offset: u64, len: u64) {
        let volume = &self.volume;
        if !Dispatch(self).has_loaded(offset, len) {
            return;
        }
        for piece in volume.pieces(offset, len) {
            if let Some(found) = self.store.store().peek(&volume.space, piece.block) {
                Policy(self).used(piece.block, &found.entry);
            }
        }
    }

    fn takes_offers(&self) -> bool {
        Offers(self).are_welcome()
    }

    fn offer(&self, offset: u64, data: &[u8], is_current: &dyn Fn() -> bool) {
        let len = data.len() as u64;
        if self.volume.check_range(offset, len, false).is_ok()
            && Dispatch(self).has_loaded(offset, len)
        {
            Dispatch(self).while_running(|_| Offers(self).take(offset, data, is_current));
        }
    }

    fn losses(&self) -> u64 {
        self.volume.syncs.failures()
    }

    fn memory(&self, op: Op, offset: u64, len: u64) -> u64 {
        let logical = self.volume.origin.logical_block();
        let aligned = offset.is_multiple_of(logical) && len.is_multiple_of(logical);
        memory::of_request(op, len, self.volume.block.bytes(), aligned)
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        let len = len.min(self.volume.size().saturating_sub(offset));
        vec![Extent { len, hole: false, zero: false }]
    }

    fn states(&self, offset: u64, len: u64) -> Option<Vec<StateExtent>> {
        let volume = &self.volume;
        if volume.check_range(offset, len, false).is_err()
            || !Dispatch(self).has_loaded(offset, len)
        {
            return None;
        }
        let store = self.store.store();
        let (mut states, mut at, end) = (Vec::new(), offset, offset + len);
        let blocks = volume.blocks(offset..end);
        let (mut block, behind) = (OriginBlock(blocks.start), OriginBlock(blocks.end));
        let mut looked_up = 0;
        while block < behind && looked_up < STATES_LOOKED_UP {
            let vacant = store.vacant_to(&volume.space, block, behind);
            let found = match vacant == block {
                true => store.peek(&volume.space, block),
                false => None,
            };
            block = vacant.max(OriginBlock(block.0 + 1));
            let next = volume.block_range(OriginBlock(block.0 - 1)).end.min(end);
            let dirty = found.as_ref().is_some_and(|found| found.entry.dirty);
            StateExtent { len: next - at, cached: found.is_some(), dirty }.push(&mut states);
            at = next;
            looked_up += 1;
        }
        Some(states)
    }

    fn origin(&self) -> Option<Arc<dyn Device>> {
        Some(self.volume.origin.clone())
    }
}
