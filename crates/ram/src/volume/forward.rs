//! Requests on one lane that the lower tier serves, or that must wait.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{IoError, Op};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Completion, CompletionSink, Request};
use forebay_lane::{Lane, yield_now};
use forebay_store::planted::{self, PlantedBug};

use crate::block::{REGION_BYTES, Region, TierChange};
use crate::guard::Token;
use crate::shard::Defer;
use crate::tier::{Tier, Waiter};
use crate::watch::Watcher;
use crate::write_down::{self, PendingCompletion};

/// Longest discard or write of zeroes that is sent in one part: it visits each region, and each
/// block of regions in RAM.
pub(super) const MOST_AT_ONCE: u64 = 256 << 20;

/// Change of the cached copies after the lower tier's answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Then {
    /// No step.
    #[default]
    Pass,
    /// Cache the data that was read.
    Fill,
    /// Cache the data that was written.
    Written,
    /// Forget the range, which is zeroes now.
    Zeroed,
    /// Forget the range, which may be zeroes now.
    Discarded,
}

impl Then {
    /// Returns how the lower tier changes.
    fn change(self) -> TierChange {
        match self {
            Then::Zeroed | Then::Discarded => TierChange::Zeroes,
            Then::Pass | Then::Fill | Then::Written => TierChange::Data,
        }
    }
}

/// A request that the lower tier serves.
struct ForwardedRequest {
    /// The request as the client sent it, without its data.
    request: Request,
    sink: Rc<dyn CompletionSink>,
    then: Then,
    tokens: Vec<Token>,
    /// For a read, the parts of its range for which RAM had data that the lower tier lacks.
    newer: Vec<(usize, Vec<u8>)>,
}

/// Completes a request if its task panics (invariant 25).
struct Promise(u64, Option<Rc<dyn CompletionSink>>);

impl Promise {
    fn keep(mut self, result: Result<(), IoError>, data: Option<IoBuf>) {
        if let Some(sink) = self.1.take() {
            sink.complete(Completion { tag: self.0, result, data });
        }
    }
}

impl Promise {
    /// Leaves the completion to another task.
    fn leave(mut self) {
        self.1 = None;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if let Some(sink) = self.1.take() {
            sink.complete(Completion { tag: self.0, result: Err(IoError::Io), data: None });
        }
    }
}

/// Sends requests to the lower tier, takes its completions and passes them on.
pub(super) struct Forward {
    pub(super) tier: Arc<Tier>,
    pub(super) lower: Rc<dyn BlockService>,
    lane: Rc<Lane>,
    watcher: Watcher,
    /// Requests in flight, by the tag that the lower tier gets.
    in_flight: RefCell<Vec<Option<ForwardedRequest>>>,
    free: RefCell<Vec<usize>>,
    /// Empty lists of tokens, to be used again.
    spare: RefCell<Vec<Vec<Token>>>,
}

impl Forward {
    pub(super) fn new(
        tier: Arc<Tier>,
        lower: Rc<dyn BlockService>,
        lane: Rc<Lane>,
        watcher: Watcher,
    ) -> Rc<Self> {
        let (in_flight, free) = (RefCell::default(), RefCell::default());
        let spare = RefCell::default();
        Rc::new(Forward { tier, lower, lane, watcher, in_flight, free, spare })
    }

    /// Registers a request and returns its tag for the lower tier. Returns `None` if the request
    /// has to wait until data of its range is written down.
    fn register(
        &self,
        request: &Request,
        then: Then,
        sink: &Rc<dyn CompletionSink>,
    ) -> Option<u64> {
        let (offset, len) = (request.offset, request.len);
        let mut tokens = self.spare.borrow_mut().pop().unwrap_or_default();
        let mut newer = Vec::new();
        let begun = match then {
            Then::Pass => true,
            Then::Fill => {
                tokens.extend(self.tier.begin_fill(offset, len));
                let begun = self.tier.deferred_in(offset, len, &mut newer);
                if planted::has(PlantedBug::DeferredNotRead) {
                    newer.clear();
                }
                begun
            }
            Then::Written | Then::Zeroed | Then::Discarded => {
                let replaces = then != Then::Discarded;
                let change = (then.change(), replaces);
                self.tier.begin_write(offset, len, change, |token| tokens.push(token))
            }
        };
        if !begun {
            tokens.clear();
            self.spare.borrow_mut().push(tokens);
            return None;
        }
        let request = Request { data: None, ..*request };
        let own = ForwardedRequest { request, sink: sink.clone(), then, tokens, newer };
        let mut in_flight = self.in_flight.borrow_mut();
        let number = self.free.borrow_mut().pop().unwrap_or_else(|| {
            in_flight.push(None);
            in_flight.len() - 1
        });
        in_flight[number] = Some(own);
        Some(number as u64)
    }

    /// Applies the lower tier's completion to the tier.
    fn settle(&self, own: &ForwardedRequest, completion: &mut Completion) {
        self.tier.heed(self.lower.losses());
        let done = completion.result.is_ok();
        if let Some(data) = &mut completion.data {
            for (at, newer) in &own.newer {
                if let Some(place) = data.get_mut(*at..at + newer.len()) {
                    place.copy_from_slice(newer);
                }
            }
        }
        let data =
            completion.data.as_deref().filter(|data| done && data.len() as u64 == own.request.len);
        match own.then {
            Then::Pass => (),
            Then::Fill => {
                if let Some(data) = data {
                    self.tier.end_fill(own.request.offset, data, &own.tokens);
                }
                self.pass_offers();
            }
            // After an error, the sectors that were written are unknown.
            Then::Written => {
                let Request { offset, len, .. } = own.request;
                self.tier.end_write(offset, len, (TierChange::Data, done), data, &own.tokens);
            }
            Then::Zeroed | Then::Discarded => {
                let Request { offset, len, .. } = own.request;
                self.tier.end_write(offset, len, (TierChange::Zeroes, done), None, &own.tokens);
            }
        }
    }

    /// Offers evicted blocks to the lower tier.
    pub(super) fn pass_offers(&self) {
        self.tier.offers.set_welcome(self.lower.takes_offers());
        while let Some(offer) = self.tier.offers.pop() {
            let offset = offer.block.0 << self.tier.block().shift();
            let is_current = || self.tier.is_current(&offer, self.lower.losses());
            self.lower.offer(offset, &offer.data, &is_current);
        }
    }

    /// Sends a request to the lower tier as soon as no data of its range is being written down.
    pub(super) fn send(
        self: &Rc<Self>,
        request: Request,
        then: Then,
        sink: &Rc<dyn CompletionSink>,
    ) {
        let Err(request) = self.send_now(request, then, sink) else { return };
        let (own, sink) = (self.clone(), sink.clone());
        self.lane.spawn(async move { own.send_in_turn(request, then, sink).await });
    }

    fn send_now(
        self: &Rc<Self>,
        request: Request,
        then: Then,
        sink: &Rc<dyn CompletionSink>,
    ) -> Result<(), Request> {
        let Some(tag) = self.register(&request, then, sink) else { return Err(request) };
        self.note_use();
        let own: Rc<dyn CompletionSink> = self.clone();
        self.lower.submit(Request { tag, ..request }, &own);
        Ok(())
    }

    async fn send_in_turn(
        self: Rc<Self>,
        mut request: Request,
        then: Then,
        sink: Rc<dyn CompletionSink>,
    ) {
        loop {
            let changed = self.tier.deferring.changed.listen();
            match self.send_now(request, then, &sink) {
                Ok(()) => return,
                Err(waits) => request = waits,
            }
            changed.await;
        }
    }

    /// Discards a range. Deferred data is not written down: the lower tier gets zeroes there
    /// instead, because it may keep the older data of discarded blocks.
    fn discard(self: &Rc<Self>, request: Request, sink: &Rc<dyn CompletionSink>) {
        let Err(request) = self.send_now(request, Then::Discarded, sink) else { return };
        let (own, sink) = (self.clone(), sink.clone());
        self.lane.spawn(async move {
            let promise = Promise(request.tag, Some(sink));
            let result = own.discard_in_parts(&request).await;
            promise.keep(result, None);
        });
    }

    async fn discard_in_parts(self: Rc<Self>, request: &Request) -> Result<(), IoError> {
        let (mut at, end) = (request.offset, request.offset + request.len);
        while at < end {
            let pinned = self.tier.first_pinned(at, end - at);
            let start = pinned.map_or(end, |pinned| pinned.start);
            let answer = Rc::new(PendingCompletion::default());
            let sink: Rc<dyn CompletionSink> = answer.clone();
            let part = |op, offset, len| Request { op, offset, len, data: None, ..*request };
            if let Some(pinned) = pinned.filter(|_| start == at) {
                // Clean blocks between those with deferred data are zeroed as well, in one request.
                let zeroes = part(Op::WriteZeroes, at, pinned.hull_end - at);
                self.clone().send_whole(zeroes, Then::Zeroed, sink).await;
                at = pinned.hull_end;
            } else if self
                .send_now(part(Op::Discard, at, start - at), Then::Discarded, &sink)
                .is_ok()
            {
                at = start;
            } else {
                // Data was deferred there meanwhile.
                continue;
            }
            answer.completion().await.result?;
        }
        Ok(())
    }

    /// Sends a long change in parts, and lets other tasks of the lane run between them.
    pub(super) fn in_parts(self: &Rc<Self>, request: Request, sink: &Rc<dyn CompletionSink>) {
        let (own, sink) = (self.clone(), sink.clone());
        self.lane.spawn(async move {
            let promise = Promise(request.tag, Some(sink));
            let (mut at, end) = (request.offset, request.offset + request.len);
            let mut result = Ok(());
            while at < end && result.is_ok() {
                let len = MOST_AT_ONCE.min(end - at);
                let part = Request { offset: at, len, data: None, ..request };
                let answer = Rc::new(PendingCompletion::default());
                let sink: Rc<dyn CompletionSink> = answer.clone();
                own.change(part, &sink);
                result = answer.completion().await.result;
                at += len;
                yield_now().await;
            }
            promise.keep(result, None);
        });
    }

    /// Discards a range, or fills it with zeroes.
    pub(super) fn change(self: &Rc<Self>, request: Request, sink: &Rc<dyn CompletionSink>) {
        match request.op {
            Op::Discard => self.discard(request, sink),
            _ => self.zero(request, sink),
        }
    }

    /// Reads only the parts that RAM does not have, after the read of the whole range has failed.
    fn read_again(&self, own: ForwardedRequest, mut data: IoBuf) {
        let ForwardedRequest { request, sink, newer, .. } = own;
        let (lower, promise) = (self.lower.clone(), Promise(request.tag, Some(sink)));
        self.lane.spawn(async move {
            let result = read_gaps(&lower, request.offset, &mut data, &newer).await;
            promise.keep(result, Some(data));
        });
    }

    /// Records that a client needs the lower tier.
    pub(super) fn note_use(&self) {
        self.tier.deferring.note_use(|| self.lane.now());
    }

    /// Writes data to RAM from byte `at` of the request on, and advances `at`.
    fn defer_from(
        &self,
        offset: u64,
        data: &[u8],
        at: &mut usize,
        waiter: Option<&Waiter<'_>>,
    ) -> Defer {
        let rest = (data.len() - *at) as u64;
        let start = *at;
        for piece in self.tier.pieces(offset + start as u64, rest) {
            let bytes = start + piece.bytes.start..start + piece.bytes.end;
            match self.tier.defer(&piece, &data[bytes.clone()], waiter) {
                Defer::Done { .. } => *at = bytes.end,
                other => return other,
            }
        }
        Defer::Done { wakes: false }
    }

    /// Writes a request to RAM, to be written down later, or at once if it must be `durable`. Waits
    /// for space if necessary.
    pub(super) fn defer(
        self: &Rc<Self>,
        mut request: Request,
        durable: bool,
        sink: &Rc<dyn CompletionSink>,
    ) {
        let mut at = 0;
        let data = request.data.take().unwrap_or_default();
        let deferred = self.defer_from(request.offset, &data, &mut at, None);
        if !durable && matches!(deferred, Defer::Done { .. }) {
            self.watcher.ram_write(request.len);
            let data = Some(data);
            return sink.complete(Completion { tag: request.tag, result: Ok(()), data });
        }
        let (own, sink) = (self.clone(), sink.clone());
        self.lane.spawn(async move {
            let promise = Promise(request.tag, Some(sink));
            let (mut result, data) = own.defer_in_turn(&request, data, at).await;
            if durable && result.is_ok() {
                result = own.make_durable(request.offset, request.len).await;
            }
            promise.keep(result, data);
        });
    }

    /// Makes the data of a range durable, as FUA demands. Data that must only survive the daemon is
    /// flushed as well.
    async fn make_durable(&self, offset: u64, len: u64) -> Result<(), IoError> {
        let within = self.lower.whole_blocks(offset..offset + len);
        write_down::range(&self.tier, &self.lower, within).await?;
        write_down::flush(&self.lower).await
    }

    /// Zeroes a range in the lower tier.
    fn zero(self: &Rc<Self>, request: Request, sink: &Rc<dyn CompletionSink>) {
        if !self.tier.has_deferred() {
            return self.send(request, Then::Zeroed, sink);
        }
        let (own, sink) = (self.clone(), sink.clone());
        self.lane.spawn(async move { own.send_whole(request, Then::Zeroed, sink).await });
    }

    /// Sends a change to the lower tier. To change a part of a block, that tier needs the rest, and
    /// its copy may be unreadable. Deferred data beside the change is therefore written down first.
    async fn send_whole(
        self: Rc<Self>,
        request: Request,
        then: Then,
        sink: Rc<dyn CompletionSink>,
    ) {
        let promise = Promise(request.tag, Some(sink.clone()));
        let range = request.offset..request.offset + request.len;
        let whole = self.lower.whole_blocks(range.clone());
        for beside in [whole.start..range.start, range.end..whole.end] {
            if beside.start < beside.end
                && self.tier.is_pinned(beside.start, beside.end - beside.start)
            {
                // If that fails, the change will fail as well.
                let _ = write_down::range(&self.tier, &self.lower, beside).await;
            }
        }
        promise.leave();
        self.send_in_turn(request, then, sink).await;
    }

    /// Writes to RAM from byte `at` on, or to the lower tier from the first byte that cannot be
    /// deferred. Each byte is written once: as soon as a read may have returned it, later writes
    /// may be newer. Also returns the buffer, for the answer.
    async fn defer_in_turn(
        self: &Rc<Self>,
        request: &Request,
        data: IoBuf,
        mut at: usize,
    ) -> (Result<(), IoError>, Option<IoBuf>) {
        let mut waiter: Option<Waiter<'_>> = None;
        loop {
            let region_at = |at: usize| Region((request.offset + at as u64) / REGION_BYTES);
            let region = region_at(at);
            let changed = self.tier.changed_in(region).listen();
            match self.defer_from(request.offset, &data, &mut at, waiter.as_ref()) {
                Defer::Done { .. } => {
                    self.watcher.ram_write(request.len);
                    return (Ok(()), Some(data));
                }
                // No space will become free, so the write goes to the lower tier, whose error
                // reaches the client.
                Defer::NoSpace if self.tier.is_failing(region_at(at)) => break,
                Defer::NoSpace => {
                    let offset = request.offset + at as u64;
                    if !waiter.as_ref().is_some_and(|waiter| waiter.waits_at(offset)) {
                        waiter = Some(self.tier.wait_at(offset));
                    }
                    // The next byte may be in another region, and need space of another shard.
                    if region_at(at) == region {
                        changed.await;
                    }
                }
                Defer::Through => break,
            }
        }
        drop(waiter);
        self.watcher.passed_write(request.len);
        // Data that was written to RAM must not be written again.
        let rest = if at == 0 { data } else { IoBuf::copy_from(&data[at..]) };
        let (offset, len) = (request.offset + at as u64, rest.len() as u64);
        let rest = Request { offset, len, data: Some(rest), ..*request };
        let answer = Rc::new(PendingCompletion::default());
        self.clone().send_whole(rest, Then::Written, answer.clone()).await;
        let completion = answer.completion().await;
        (completion.result, completion.data.filter(|data| data.len() as u64 == request.len))
    }

    /// Writes down the deferred data, then flushes the lower tier.
    pub(super) fn flush(self: &Rc<Self>, request: Request, sink: &Rc<dyn CompletionSink>) {
        let (own, sink) = (self.clone(), sink.clone());
        self.lane.spawn(async move {
            let promise = Promise(request.tag, Some(sink.clone()));
            match write_down::all(&own.tier, &own.lower).await {
                Ok(()) => {
                    promise.leave();
                    own.send(request, Then::Pass, &sink);
                }
                Err(error) => promise.keep(Err(error), None),
            }
        });
    }
}

/// Reads only the parts that RAM did not have.
async fn read_gaps(
    lower: &Rc<dyn BlockService>,
    offset: u64,
    data: &mut IoBuf,
    newer: &[(usize, Vec<u8>)],
) -> Result<(), IoError> {
    let mut at = 0;
    let ends = newer.iter().map(|(start, bytes)| (*start, start + bytes.len()));
    for (start, next) in ends.chain([(data.len(), data.len())]) {
        if at < start {
            let read = write_down::read(lower, offset + at as u64, start - at).await?;
            data[at..start].copy_from_slice(&read);
        }
        at = next;
    }
    for (start, bytes) in newer {
        data[*start..start + bytes.len()].copy_from_slice(bytes);
    }
    Ok(())
}

impl CompletionSink for Forward {
    fn complete(&self, mut completion: Completion) {
        let number = completion.tag as usize;
        let own = self.in_flight.borrow_mut().get_mut(number).and_then(Option::take);
        // The lower tier completes each request once.
        let Some(mut own) = own else { return };
        self.free.borrow_mut().push(number);
        self.settle(&own, &mut completion);
        let mut tokens = std::mem::take(&mut own.tokens);
        tokens.clear();
        self.spare.borrow_mut().push(tokens);
        completion.tag = own.request.tag;
        let (op, offset, len) = (own.request.op, own.request.offset, own.request.len);
        if op == Op::Prefetch && self.tier.is_pinned(offset, len) {
            // RAM may have newer data for parts that the lower tier could not read.
            completion.result = Ok(());
        }
        match completion.data.take() {
            Some(data) if completion.result.is_err() && !own.newer.is_empty() => {
                self.read_again(own, data);
            }
            data => own.sink.complete(Completion { data, ..completion }),
        }
    }
}
