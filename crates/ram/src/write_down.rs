//! Writes deferred data down to the lower tier.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};
use std::future::poll_fn;
use std::ops::Range;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Poll, Waker};
use std::time::Duration;

use forebay_core::{IoError, Nanos, Op, Survives, WriteDown};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Completion, CompletionSink, Request};
use forebay_lane::{Lane, Notify, either, join_all, yield_now};
use forebay_store::planted::{self, PlantedBug};

use crate::block::{REGION_BYTES, Region, in_regions};
use crate::options::Deferral;
use crate::schedule::{self, Situation, WriteDownStep};
use crate::shard::{Take, WriteDownBatch};
use crate::tier::{MOST_ON_THEIR_WAY, Tier};
use put::put;

mod put;

/// Maximum number of requests in flight for one region.
const REGION_DEPTH: usize = 32;

/// Maximum number of regions in flight when all deferred data is written down at once.
const FLUSH_DEPTH: usize = 8;

/// Returns the most RAM for data that is being written down from a tier of `bytes`, in addition to
/// the tier's own.
pub fn memory(bytes: u64) -> u64 {
    bytes.min(MOST_ON_THEIR_WAY as u64 * REGION_BYTES)
}

/// Time without an answer after which a region's write-down has stalled.
const STALLED: Duration = Duration::from_secs(10);

/// Most stalled regions in flight; above this a pass waits for them instead of starting the next.
const MOST_STALLED: usize = 8;

/// Time until a failed write-down is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// Parameters for writing down the rest after deferring was switched off.
const LEFT: Deferral =
    Deferral { within: Duration::ZERO, mode: WriteDown::Buffer, share: 100, ignore_flush: false };

/// The whole volume.
const ALL: Range<u64> = 0..u64::MAX;

/// The completion of one of the tier's own requests.
#[derive(Default)]
pub(crate) struct PendingCompletion {
    completion: RefCell<Option<Completion>>,
    waker: RefCell<Option<Waker>>,
}

impl CompletionSink for PendingCompletion {
    fn complete(&self, completion: Completion) {
        *self.completion.borrow_mut() = Some(completion);
        if let Some(waker) = self.waker.borrow_mut().take() {
            waker.wake();
        }
    }
}

impl PendingCompletion {
    /// Waits for the answer.
    pub(crate) async fn completion(&self) -> Completion {
        poll_fn(|context| match self.completion.borrow_mut().take() {
            Some(completion) => Poll::Ready(completion),
            None => {
                *self.waker.borrow_mut() = Some(context.waker().clone());
                Poll::Pending
            }
        })
        .await
    }
}

/// Sends a request to a service and waits for its end.
async fn ask(lower: &Rc<dyn BlockService>, request: Request) -> Completion {
    let answer = Rc::new(PendingCompletion::default());
    let sink: Rc<dyn CompletionSink> = answer.clone();
    lower.submit(request, &sink);
    answer.completion().await
}

fn request(op: Op, offset: u64, len: u64, data: Option<IoBuf>) -> Request {
    Request {
        tag: 0,
        op,
        offset,
        len,
        survives: Survives::Nothing,
        fast: false,
        no_hole: false,
        data,
    }
}

fn write(offset: u64, data: IoBuf) -> Request {
    request(Op::Write, offset, data.len() as u64, Some(data))
}

/// Reads from the lower tier.
pub(crate) async fn read(
    lower: &Rc<dyn BlockService>,
    offset: u64,
    len: usize,
) -> Result<IoBuf, IoError> {
    let completion = ask(lower, request(Op::Read, offset, len as u64, None)).await;
    completion.result?;
    completion.data.filter(|data| data.len() == len).ok_or(IoError::Io)
}

/// Flushes a volume.
///
/// # Errors
/// The error of the lower tier.
pub async fn flush(lower: &Rc<dyn BlockService>) -> Result<(), IoError> {
    ask(lower, request(Op::Flush, 0, 0, None)).await.result
}

/// A write-down in flight. If it is dropped early, for example by a panic, its data is deferred
/// again.
struct WriteDownGuard<'a> {
    tier: &'a Tier,
    taken: WriteDownBatch,
    urgent: bool,
    /// Ranges that were not written to the lower tier.
    failed: Vec<Range<u64>>,
}

impl Drop for WriteDownGuard<'_> {
    fn drop(&mut self) {
        self.tier.settle(&self.taken, &self.failed, self.urgent);
    }
}

/// Calls `work` for each item, for at most `depth` at a time, until all are done or the lower tier
/// accepts no more requests. Yields to other tasks of the lane after each item that did not wait.
///
/// # Errors
/// The first failure. It does not stop the other items, so all data that can be written is written.
pub(crate) async fn each<T, F: Future<Output = Result<(), IoError>>>(
    depth: usize,
    items: impl Iterator<Item = T>,
    work: impl Fn(T) -> F,
) -> Result<(), IoError> {
    let (items, result) = (RefCell::new(items), Cell::new(Ok(())));
    let worker = || async {
        while result.get() != Err(IoError::ShuttingDown) {
            let next = items.borrow_mut().next();
            let Some(item) = next else { break };
            let (mut one, mut waited) = (pin!(work(item)), false);
            let ended = poll_fn(|context| {
                let polled = one.as_mut().poll(context);
                waited |= polled.is_pending();
                polled
            })
            .await;
            if !waited {
                yield_now().await;
            }
            if let Err(error) = ended
                && (result.get().is_ok() || error == IoError::ShuttingDown)
            {
                result.set(Err(error));
            }
        }
    };
    join_all((0..depth).map(|_| worker())).await;
    result.get()
}

/// Writes down the present deferred data in blocks of a region that touch `within`. Calls
/// `answered` at each answer of the lower tier.
///
/// # Errors
/// Some of the data could not be written and is still deferred.
async fn region(
    tier: &Tier,
    lower: &Rc<dyn BlockService>,
    region: Region,
    within: &Range<u64>,
    urgent: bool,
    answered: &impl Fn(),
) -> Result<(), IoError> {
    let mut taker = tier.taker(region);
    loop {
        let permit = tier.deferring.permit().await;
        let changed = tier.changed_in(region).listen();
        let mut taken = match tier.take(region, within, &mut taker) {
            // A closed tier has forgotten the data.
            Take::None if tier.deferring.is_closed() => return Err(IoError::ShuttingDown),
            Take::None => return Ok(()),
            Take::Busy => {
                drop(permit);
                changed.await;
                continue;
            }
            Take::Taken(taken) => taken,
        };
        let (partly, losses) = (taken.partly, lower.losses());
        let runs = std::mem::take(&mut taken.runs);
        let mut in_flight = WriteDownGuard { tier, taken, urgent, failed: vec![ALL] };
        let failed = RefCell::new(Vec::new());
        let send =
            |(offset, data)| put(lower, tier.block().bytes(), offset, data, answered, &failed);
        let result = each(REGION_DEPTH.min(runs.len()), runs.into_iter(), send).await;
        // A failed sync may have lost some of the data already; RAM still has it.
        let lost = lower.losses() != losses;
        if !lost && result != Err(IoError::ShuttingDown) {
            in_flight.failed = failed.into_inner();
        }
        drop(in_flight);
        result?;
        if !partly && !lost {
            return Ok(());
        }
    }
}

/// Writes down everything that was acknowledged before this call.
///
/// # Errors
/// Some of the data could not be written and is still deferred.
pub async fn all(tier: &Tier, lower: &Rc<dyn BlockService>) -> Result<(), IoError> {
    let mut regions = tier.regions(0.0);
    if planted::has(PlantedBug::FlushOvertakesWriteDown) {
        regions.retain(|(_, since)| since.is_some());
    }
    let depth = FLUSH_DEPTH.min(regions.len());
    let one = |(number, _)| region(tier, lower, number, &ALL, false, &|| ());
    each(depth, regions.into_iter(), one).await
}

/// The result of a pass, which runs as a separate task.
#[derive(Default)]
struct PassResult {
    result: Cell<Option<Result<(), IoError>>>,
    told: Notify,
}

impl PassResult {
    fn tell(&self, result: Result<(), IoError>) {
        self.result.set(Some(result));
        self.told.notify_all();
    }
}

/// Writes down the deferred data in blocks that touch a range.
///
/// # Errors
/// Some of the data could not be written and is still deferred.
pub(crate) async fn range(
    tier: &Tier,
    lower: &Rc<dyn BlockService>,
    within: Range<u64>,
) -> Result<(), IoError> {
    for (number, _) in in_regions(within.clone()) {
        region(tier, lower, number, &within, false, &|| ()).await?;
    }
    Ok(())
}

/// Writes deferred data down before its age limit, and makes space. Each tier that defers writes
/// needs one such task on one lane; `lower` is the lower tier there. Ends when the tier is closed.
pub async fn keep(tier: Arc<Tier>, lower: Rc<dyn BlockService>, lane: Rc<Lane>) {
    let (oldest, restored, rate) = Default::default();
    let (under_way, passes) = Default::default();
    let task = WriteDownTask { tier, lower, lane, oldest, restored, rate, under_way, passes };
    Rc::new(task).run().await;
}

/// One pass over the deferred data.
#[derive(Clone, Copy)]
struct Pass {
    /// Number of the pass. Only the newest pass begins write-downs.
    number: u64,
    /// The parameters of deferring at the start of the pass.
    how: Deferral,
    depth: usize,
    spread: Duration,
    urgent: bool,
    idle: bool,
}

struct WriteDownTask {
    tier: Arc<Tier>,
    lower: Rc<dyn BlockService>,
    lane: Rc<Lane>,
    /// Lower bound of the time at which the oldest dirty data was acknowledged; `None` if unknown.
    oldest: Cell<Option<Nanos>>,
    /// Value of `Deferring::restored` for which `oldest` is valid: since then, older data may have
    /// become dirty again.
    restored: Cell<u64>,
    /// Bytes per second of the last pass.
    rate: Cell<f64>,
    /// Regions being written down: the number of the pass, and the time of the start or of the last
    /// answer.
    under_way: RefCell<BTreeMap<Region, (u64, Nanos)>>,
    /// Number of passes that have begun.
    passes: Cell<u64>,
}

impl WriteDownTask {
    async fn run(self: &Rc<Self>) {
        let own = &self.tier.deferring;
        while !own.is_closed() {
            let work = own.work.listen();
            own.expect_first();
            // After deferring was switched off, remaining data is written down at once.
            let how = self.tier.deferral().unwrap_or(LEFT);
            let mut next = schedule::next(&how, &self.situation(false));
            if matches!(next, WriteDownStep::Write { urgent: false, .. }) {
                next = schedule::next(&how, &self.situation(true));
            }
            let result = match next {
                WriteDownStep::Wait if !self.under_way.borrow().is_empty() => {
                    // While a stalled region has dirty data, new deferred data does not notify.
                    either(self.lane.sleep(RETRY), work).await;
                    Ok(())
                }
                WriteDownStep::Wait => {
                    work.await;
                    Ok(())
                }
                WriteDownStep::WaitUntil(then) => {
                    either(self.lane.sleep_until(then), work).await;
                    Ok(())
                }
                WriteDownStep::Write { depth, spread, urgent, idle } => {
                    let number = self.passes.get() + 1;
                    self.passes.set(number);
                    self.begin(Pass { number, how, depth, spread, urgent, idle }).await
                }
            };
            if result.is_err() {
                // A flush or stop of the volume does not wait for this: it retries at once and gets
                // the error.
                either(self.lane.sleep(RETRY), self.closed()).await;
            }
        }
    }

    async fn closed(&self) {
        loop {
            let work = self.tier.deferring.work.listen();
            if self.tier.deferring.is_closed() {
                return;
            }
            work.await;
        }
    }

    /// Returns the situation. Unless `exact`, `oldest` may be a lower bound, which avoids visiting
    /// all regions each time.
    fn situation(&self, exact: bool) -> Situation {
        let (own, load) = (&self.tier.deferring, self.tier.load());
        let restored = own.restored();
        let known = !exact && self.restored.replace(restored) == restored;
        let stalled = !self.under_way.borrow().is_empty();
        if load.bytes == 0 || stalled {
            self.oldest.set(None);
        } else if !known || self.oldest.get().is_none() {
            self.oldest.set(self.tier.oldest());
        }
        // Dirty data of a stalled region cannot be written down yet, so it is no reason for a pass.
        let apart = || self.regions(0.0).into_iter().filter_map(|(_, since)| since).min();
        Situation {
            now: self.lane.now(),
            oldest: if stalled { apart() } else { self.oldest.get() },
            bytes: load.bytes,
            fill: load.fill,
            waiting: own.has_waiting(),
            used: own.last_use(),
            rate: self.rate.get(),
        }
    }

    /// Runs a pass as a separate task, and waits until the pass has ended or all regions that it is
    /// writing down have stalled. In the latter case its task continues, because write-downs of the
    /// same data must not overlap.
    async fn begin(self: &Rc<Self>, pass: Pass) -> Result<(), IoError> {
        let end = Rc::new(PassResult::default());
        let (own, task) = (end.clone(), self.clone());
        self.lane.spawn(async move {
            own.tell(task.write(pass).await);
            // A stalled region may have dirty data that is due by now.
            task.tier.deferring.work.notify_all();
        });
        loop {
            let told = end.told.listen();
            if let Some(result) = end.result.get() {
                return result;
            }
            if self.has_stalled(&pass) {
                return Ok(());
            }
            either(self.lane.sleep(STALLED), told).await;
        }
    }

    fn has_stalled(&self, pass: &Pass) -> bool {
        let (under_way, now) = (self.under_way.borrow(), self.lane.now());
        let mut own = under_way.values().filter(|(of, _)| *of == pass.number).peekable();
        // The limit keeps passes from accumulating on a device that is merely slow.
        under_way.len() <= MOST_STALLED
            && own.peek().is_some()
            && own.all(|(_, since)| *since + STALLED <= now)
    }

    /// Returns the regions that a new pass can write down, like [`Tier::regions`].
    fn regions(&self, fill: f64) -> Vec<(Region, Option<Nanos>)> {
        let mut regions = self.tier.regions(fill);
        let under_way = self.under_way.borrow();
        regions.retain(|(number, _)| !under_way.contains_key(number));
        regions
    }

    /// Writes down the present deferred data, in the order of addresses.
    async fn write(&self, pass: Pass) -> Result<(), IoError> {
        let Pass { depth, spread, urgent, .. } = pass;
        let load = self.tier.load();
        let fill = if urgent { load.fill - 0.1 } else { 0.0 };
        let regions = self.regions(fill);
        if regions.is_empty() && !self.under_way.borrow().is_empty() {
            // All regions of this pass have stalled: try again later.
            return Err(IoError::Io);
        }
        let count = u32::try_from(regions.len()).unwrap_or(u32::MAX);
        let so_far = || (self.lane.now(), self.tier.deferring.written_down());
        let (started, before) = so_far();
        // The times at which regions begin are fixed, however long earlier regions take.
        let turns = Cell::new(0u32);
        let turn = || {
            turns.set(turns.get().saturating_add(1));
            started + spread.saturating_mul(turns.get()).checked_div(count).unwrap_or_default()
        };
        // The time of all pauses, and the bytes that other tasks, such as a flush, wrote down
        // during them.
        let paused = Cell::new((Duration::ZERO, 0));
        let mut numbers = regions.into_iter().map(|(number, _)| number);
        // Regions whose blocks all fail wait for the next pass: otherwise writes that wait for
        // space would retry them without end (invariant 25).
        let stuck = RefCell::new(BTreeSet::new());
        let mut near = Region(0);
        let wanted = std::iter::from_fn(|| {
            if !self.goes_on(&pass) {
                return None;
            }
            // Regions of a full shard come first, because it stops its writers and soon all
            // clients.
            let left_out = |number: Region| {
                self.under_way.borrow().contains_key(&number) || stuck.borrow().contains(&number)
            };
            let awaited = urgent.then(|| self.tier.awaited(near, left_out)).flatten();
            near = awaited.or_else(|| numbers.next())?;
            Some(near)
        });
        let (turn, paused, so_far, stuck) = (&turn, &paused, &so_far, &stuck);
        let one = |number| async move {
            if !spread.is_zero() {
                let (begun, before) = so_far();
                self.pause(turn(), &pass).await;
                let ((ended, after), (time, bytes)) = (so_far(), paused.get());
                paused.set((time + ended.since(begun), bytes + (after - before)));
                if !self.goes_on(&pass) {
                    return Ok(());
                }
            }
            let answered = || {
                self.under_way.borrow_mut().insert(number, (pass.number, self.lane.now()));
            };
            answered();
            let result = region(&self.tier, &self.lower, number, &ALL, urgent, &answered).await;
            self.under_way.borrow_mut().remove(&number);
            if result.is_err() && self.tier.is_failing(number) {
                stuck.borrow_mut().insert(number);
            }
            result
        };
        let result = each(depth, wanted, one).await;
        if urgent {
            // Yields, so that waiting writes take the new space.
            yield_now().await;
        }
        // A pass with pauses has one worker, so the pauses do not overlap.
        let ((ended, after), (time, bytes)) = (so_far(), paused.get());
        let written = after - before - bytes;
        let took = ended.since(started).saturating_sub(time).as_secs_f64();
        if written > 0 && took > 0.0 && self.passes.get() == pass.number {
            self.rate.set(written as f64 / took);
        }
        result
    }

    /// Waits until the given time, or until the pass is no longer wanted.
    async fn pause(&self, until: Nanos, pass: &Pass) {
        let own = &self.tier.deferring;
        loop {
            // Listens before deciding, so that no change is missed.
            let work = own.work.listen();
            own.expect_first();
            if self.lane.now() >= until || !self.goes_on(pass) {
                return;
            }
            either(self.lane.sleep_until(until), work).await;
        }
    }

    /// Returns whether a pass is still wanted. An urgent pass ends if a much greater depth is
    /// needed. Any pass ends if the parameters of deferring change, because the age limit may be
    /// much shorter.
    fn goes_on(&self, pass: &Pass) -> bool {
        let own = &self.tier.deferring;
        if self.passes.get() != pass.number
            || own.is_closed()
            || self.tier.deferral().unwrap_or(LEFT) != pass.how
        {
            return false;
        }
        let (fill, waiting) = (self.tier.load().fill, own.has_waiting());
        let scarce = schedule::is_scarce(fill, waiting, pass.urgent);
        if pass.urgent {
            return scarce && !schedule::is_overtaken(pass.depth, fill, waiting);
        }
        !scarce && (!pass.idle || schedule::is_idle(own.last_use(), self.lane.now()))
    }
}
