//! A volume with a RAM tier on one lane.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{IoError, Op, SECTOR_SIZE};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Coming, Completion, CompletionSink, Extent, Request};

use crate::shard::{Hit, Token};
use crate::tier::Tier;

/// Most blocks of a request that is answered at once although it needs the lower tier.
const QUICK_BLOCKS: usize = 8;

/// What to do when the lower tier has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Then {
    /// Nothing.
    #[default]
    Pass,
    /// Cache the data that was read.
    Fill,
    /// Cache the data that was written.
    Written,
    /// Forget the range.
    Zeroed,
}

/// A request that the lower tier serves.
#[derive(Default)]
struct InFlight {
    tag: u64,
    sink: Option<Rc<dyn CompletionSink>>,
    then: Then,
    offset: u64,
    len: u64,
    tokens: Vec<Token>,
}

/// Takes the lower tier's completions and passes them on.
struct Forward {
    tier: Arc<Tier>,
    lower: Rc<dyn BlockService>,
    in_flight: RefCell<Vec<InFlight>>,
    free: RefCell<Vec<usize>>,
}

impl Forward {
    /// Registers a request and returns its tag for the lower tier.
    fn register(&self, request: &Request, then: Then, sink: &Rc<dyn CompletionSink>) -> u64 {
        let mut in_flight = self.in_flight.borrow_mut();
        let number = self.free.borrow_mut().pop().unwrap_or_else(|| {
            in_flight.push(InFlight::default());
            in_flight.len() - 1
        });
        let (offset, len) = (request.offset, request.len);
        let own = &mut in_flight[number];
        (own.tag, own.sink, own.then) = (request.tag, Some(sink.clone()), then);
        (own.offset, own.len) = (offset, len);
        own.tokens.clear();
        match then {
            Then::Pass => (),
            Then::Fill => own.tokens.extend(self.tier.begin_fill(offset, len)),
            Then::Written | Then::Zeroed => own.tokens.extend(self.tier.begin_write(offset, len)),
        }
        number as u64
    }

    /// Brings the tier up to date with what the lower tier has done.
    fn settle(&self, own: &InFlight, completion: &Completion) {
        self.tier.heed(self.lower.losses());
        let done = completion.result.is_ok();
        let data = completion.data.as_deref().filter(|data| done && data.len() as u64 == own.len);
        match own.then {
            Then::Pass => (),
            Then::Fill => {
                if let Some(data) = data {
                    self.tier.end_fill(own.offset, data, &own.tokens);
                }
            }
            // After an error it is not known which sectors were written.
            Then::Written => self.tier.end_write(own.offset, own.len, data, &own.tokens),
            Then::Zeroed => self.tier.end_write(own.offset, own.len, None, &own.tokens),
        }
    }
}

impl CompletionSink for Forward {
    fn complete(&self, completion: Completion) {
        let number = completion.tag as usize;
        let own = match self.in_flight.borrow_mut().get_mut(number) {
            Some(own) if own.sink.is_some() => std::mem::take(own),
            // The lower tier completes each request once.
            _ => return,
        };
        self.settle(&own, &completion);
        let InFlight { tag, sink, tokens, .. } = own;
        if let Some(place) = self.in_flight.borrow_mut().get_mut(number) {
            place.tokens = tokens;
        }
        self.free.borrow_mut().push(number);
        if let Some(sink) = sink {
            sink.complete(Completion { tag, ..completion });
        }
    }
}

/// See the module.
pub struct RamVolume {
    tier: Arc<Tier>,
    lower: Rc<dyn BlockService>,
    forward: Rc<Forward>,
    sink: Rc<dyn CompletionSink>,
}

impl RamVolume {
    /// Puts `tier` in front of `lower`. Every lane and every client of the volume must use the same
    /// tier.
    pub fn new(tier: Arc<Tier>, lower: Rc<dyn BlockService>) -> Rc<Self> {
        let forward = Rc::new(Forward {
            tier: tier.clone(),
            lower: lower.clone(),
            in_flight: RefCell::default(),
            free: RefCell::default(),
        });
        Rc::new(RamVolume { tier, lower, sink: forward.clone(), forward })
    }

    /// Returns whether a range is inside the volume and in whole sectors. The lower tier answers all
    /// others.
    fn is_valid(&self, offset: u64, len: u64) -> bool {
        let whole = offset.is_multiple_of(SECTOR_SIZE) && len.is_multiple_of(SECTOR_SIZE);
        whole && len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.lower.size())
    }

    /// Reads from RAM. `false`: not all of it is there.
    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        let hit = self.tier.read(offset, into);
        if hit == Some(Hit::Tell) {
            self.lower.used(offset, into.len() as u64);
        }
        hit.is_some()
    }

    /// Returns whether a range is valid and has few enough blocks for a request that is answered at
    /// once.
    fn is_quick(&self, offset: u64, len: u64) -> bool {
        self.is_valid(offset, len) && self.tier.blocks(offset, len) <= QUICK_BLOCKS as u64
    }
}

/// Collects the tokens of a quick request.
fn collect(from: impl Iterator<Item = Token>, into: &mut [Token; QUICK_BLOCKS]) -> &[Token] {
    let mut count = 0;
    for (place, token) in into.iter_mut().zip(from) {
        *place = token;
        count += 1;
    }
    &into[..count]
}

impl BlockService for RamVolume {
    fn size(&self) -> u64 {
        self.lower.size()
    }

    fn preferred_block(&self) -> u64 {
        self.lower.preferred_block().max(self.tier.block().bytes())
    }

    fn read_only(&self) -> bool {
        self.lower.read_only()
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        let len = into.len() as u64;
        if !self.is_valid(offset, len) {
            return self.lower.read_now(offset, into);
        }
        self.tier.heed(self.lower.losses());
        if self.read(offset, into) {
            return Some(Ok(()));
        }
        if !self.is_quick(offset, len) {
            return None;
        }
        let mut tokens = Default::default();
        let tokens = collect(self.tier.begin_fill(offset, len), &mut tokens);
        let result = self.lower.read_now(offset, into)?;
        if result.is_ok() {
            self.tier.heed(self.lower.losses());
            self.tier.end_fill(offset, into, tokens);
        }
        Some(result)
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        let len = data.len() as u64;
        if !self.is_quick(offset, len) {
            return None;
        }
        let mut tokens = Default::default();
        let tokens = collect(self.tier.begin_write(offset, len), &mut tokens);
        match self.lower.write_now(offset, data) {
            Some(result) => {
                self.tier.heed(self.lower.losses());
                let written = result.is_ok().then_some(data);
                self.tier.end_write(offset, len, written, tokens);
                Some(result)
            }
            None => {
                self.tier.cancel_write(offset, len);
                None
            }
        }
    }

    fn expect(&self, op: Op, offset: u64, coming: Coming) {
        // A write goes to the lower tier as well.
        let cached = match coming {
            Coming::Later => {
                self.tier.expect_later(offset);
                false
            }
            Coming::Next => self.tier.expect_next(offset),
        };
        if !cached || op != Op::Read {
            self.lower.expect(op, offset, coming);
        }
    }

    fn memory(&self, op: Op, offset: u64, len: u64) -> u64 {
        let tokens = self.tier.blocks(offset, len);
        self.lower.memory(op, offset, len) + tokens * size_of::<Token>() as u64
    }

    fn submit(&self, mut request: Request, sink: &Rc<dyn CompletionSink>) {
        let Request { op, offset, len, .. } = request;
        let then = match op {
            Op::Flush | Op::Prefetch => Then::Pass,
            _ if !self.is_valid(offset, len) => Then::Pass,
            Op::Read => Then::Fill,
            Op::Write => Then::Written,
            Op::WriteZeroes | Op::Discard => Then::Zeroed,
        };
        if then == Then::Fill {
            self.tier.heed(self.lower.losses());
            let mut buf = request.data.take().unwrap_or_else(|| IoBuf::for_overwrite(len as usize));
            if buf.len() as u64 == len && self.read(offset, &mut buf) {
                let data = Some(buf);
                sink.complete(Completion { tag: request.tag, result: Ok(()), data });
                return;
            }
            request.data = Some(buf);
        }
        let tag = self.forward.register(&request, then, sink);
        self.lower.submit(Request { tag, ..request }, &self.sink);
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        self.lower.extents(offset, len)
    }
}

#[cfg(test)]
mod tests;
