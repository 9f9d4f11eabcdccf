//! A volume with a RAM tier on one lane.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{IoError, Op, SECTOR_SIZE, Sectors, Survives};
use forebay_device::{Device, IoBuf};
use forebay_engine::{
    BlockService, Coming, Completion, CompletionSink, Extent, Request, StateExtent,
};
use forebay_lane::Lane;

use forebay_policy::curve::Access;

use crate::block::{REGION_BYTES, TierChange};
use crate::guard::Token;
use crate::shard::Hit;
use crate::tier::Tier;
use crate::watch::Watcher;

mod forward;

use forward::{Forward, MOST_AT_ONCE, Then};

/// Maximum number of blocks of a request that is answered at once although it needs the lower tier.
const QUICK_BLOCKS: usize = 8;

/// Zeroes up to this many bytes are deferred like data. The lower tier may zero longer ranges more
/// cheaply.
const MOST_DEFERRED_ZEROES: u64 = 64 << 10;

/// See the module.
pub struct RamVolume {
    tier: Arc<Tier>,
    lower: Rc<dyn BlockService>,
    forward: Rc<Forward>,
    watcher: Watcher,
}

impl RamVolume {
    /// Puts `tier` in front of `lower`. Every lane and every client of the volume must use the same
    /// tier. If it defers writes, [`crate::write_down::keep`] must run on one lane.
    pub fn new(tier: Arc<Tier>, lower: Rc<dyn BlockService>, lane: Rc<Lane>) -> Rc<Self> {
        let watcher = Watcher::new(&tier.watched, &*lower);
        let forward = Forward::new(tier.clone(), lower.clone(), lane, watcher.clone());
        Rc::new(RamVolume { tier, lower, forward, watcher })
    }

    /// Returns whether a range is inside the volume and consists of whole sectors. Requests with
    /// other ranges are left to the lower tier.
    fn is_valid(&self, offset: u64, len: u64) -> bool {
        let whole = offset.is_multiple_of(SECTOR_SIZE) && len.is_multiple_of(SECTOR_SIZE);
        whole && len > 0 && offset.checked_add(len).is_some_and(|end| end <= self.lower.size())
    }

    /// Reads from RAM. Returns `false` if some of the range is not cached.
    #[inline]
    fn read(&self, offset: u64, into: &mut [u8]) -> bool {
        self.watcher.expect();
        let (hit, len) = (self.tier.read(offset, into), into.len() as u64);
        if hit == Some(Hit::Tell) {
            self.lower.used(offset, len);
        }
        if hit.is_some() {
            self.watcher.ram_read(offset, len);
        }
        hit.is_some()
    }

    /// Notes the changes of a request for the miss-ratio curve.
    fn watch_change(&self, request: &Request) {
        let Request { op, offset, len, .. } = *request;
        let written = op == Op::Write || (op == Op::WriteZeroes && len <= MOST_DEFERRED_ZEROES);
        match op {
            Op::Write | Op::WriteZeroes | Op::Discard if !self.is_valid(offset, len) => (),
            _ if written => self.watcher.accessed(Access::Write, offset, len),
            Op::WriteZeroes | Op::Discard => self.watcher.removed(offset, len),
            _ => (),
        }
    }

    /// Returns whether a valid write goes to RAM first.
    fn defers(&self, request: &Request) -> bool {
        let whole = request.data.as_ref().is_some_and(|data| data.len() as u64 == request.len);
        self.tier.is_deferring() && whole && !self.lower.read_only()
    }

    /// Returns whether zeroes are written to RAM as data.
    fn is_small_zero(&self, request: &Request) -> bool {
        let small = request.len <= MOST_DEFERRED_ZEROES && !request.fast;
        self.tier.is_deferring() && small && !self.lower.read_only()
    }

    /// Returns whether a range is valid and touches few enough blocks to be answered at once.
    fn is_quick(&self, offset: u64, len: u64) -> bool {
        self.is_valid(offset, len) && self.tier.blocks(offset, len) <= QUICK_BLOCKS as u64
    }
}

/// The tokens of a quick request.
#[derive(Default)]
struct Tokens {
    tokens: [Token; QUICK_BLOCKS],
    count: usize,
}

impl Tokens {
    fn push(&mut self, token: Token) {
        if let Some(place) = self.tokens.get_mut(self.count) {
            *place = token;
            self.count += 1;
        }
    }

    fn all(&self) -> &[Token] {
        &self.tokens[..self.count]
    }
}

impl BlockService for RamVolume {
    fn size(&self) -> u64 {
        self.lower.size()
    }

    fn preferred_block(&self) -> u64 {
        self.lower.preferred_block().max(self.tier.block().bytes())
    }

    fn sectors(&self) -> Sectors {
        self.lower.sectors()
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
        let mut tokens = Tokens::default();
        self.tier.begin_fill(offset, len).for_each(|token| tokens.push(token));
        if self.tier.is_pinned(offset, len) {
            return None;
        }
        self.forward.note_use();
        let result = self.lower.read_now(offset, into)?;
        self.watcher.accessed(Access::Read, offset, len);
        if result.is_ok() {
            self.tier.heed(self.lower.losses());
            self.tier.end_fill(offset, into, tokens.all());
            self.forward.pass_offers();
        }
        Some(result)
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        let len = data.len() as u64;
        if !self.is_quick(offset, len) {
            return None;
        }
        if self.tier.is_deferring() && !self.lower.read_only() {
            if !self.tier.defer_whole(offset, data) {
                return None;
            }
            self.watcher.accessed(Access::Write, offset, len);
            self.watcher.ram_write(len);
            return Some(Ok(()));
        }
        let mut tokens = Tokens::default();
        if !self.tier.begin_write(offset, len, (TierChange::Data, true), |token| tokens.push(token))
        {
            return None;
        }
        match self.lower.write_now(offset, data) {
            Some(result) => {
                self.watcher.accessed(Access::Write, offset, len);
                self.watcher.passed_write(len);
                self.tier.heed(self.lower.losses());
                let written = result.is_ok().then_some(data);
                let done = result.is_ok();
                self.tier.end_write(offset, len, (TierChange::Data, done), written, tokens.all());
                Some(result)
            }
            None => {
                self.tier.cancel_write(offset, len, TierChange::Data);
                None
            }
        }
    }

    fn expect(&self, op: Op, offset: u64, coming: Coming) {
        // The lower tier gets the hint for a write as well, unless the write is deferred.
        let cached = match coming {
            Coming::Later => {
                self.tier.expect_later(offset);
                false
            }
            Coming::Next => self.tier.expect_next(offset),
        };
        let deferred = op == Op::Write && self.tier.is_deferring();
        if !deferred && (!cached || op != Op::Read) {
            self.lower.expect(op, offset, coming);
        }
    }

    fn memory(&self, op: Op, offset: u64, len: u64) -> u64 {
        let tokens = match op {
            Op::Flush | Op::Prefetch => 0,
            Op::Read | Op::Write => self.tier.blocks(offset, len),
            // Only the regions at both ends need tokens.
            Op::Discard | Op::WriteZeroes => self.tier.blocks(offset, len.min(2 * REGION_BYTES)),
        };
        self.lower.memory(op, offset, len) + tokens * size_of::<Token>() as u64
    }

    fn submit(&self, mut request: Request, sink: &Rc<dyn CompletionSink>) {
        let Request { op, offset, len, .. } = request;
        let ignores_flush = self.tier.is_deferring() && self.tier.deferring.ignores_flush();
        let promises = |request: &Request| request.survives != Survives::Nothing && !ignores_flush;
        self.watch_change(&request);
        let then = match op {
            Op::Flush if ignores_flush => {
                return sink.complete(Completion { tag: request.tag, result: Ok(()), data: None });
            }
            Op::Flush if self.tier.has_deferred() => return self.forward.flush(request, sink),
            Op::Flush | Op::Prefetch => Then::Pass,
            _ if !self.is_valid(offset, len) => Then::Pass,
            Op::Read => Then::Fill,
            Op::Write if self.defers(&request) => {
                let durable = promises(&request);
                return self.forward.defer(request, durable, sink);
            }
            Op::WriteZeroes if self.is_small_zero(&request) => {
                let durable = promises(&request);
                let data = Some(IoBuf::zeroed(len as usize));
                return self.forward.defer(Request { data, ..request }, durable, sink);
            }
            Op::Write => {
                self.watcher.passed_write(len);
                Then::Written
            }
            // This includes fast zeroes: if a later part is refused, the earlier parts are zeroes,
            // as requested.
            Op::WriteZeroes | Op::Discard if len > MOST_AT_ONCE => {
                return self.forward.in_parts(request, sink);
            }
            Op::WriteZeroes | Op::Discard => return self.forward.change(request, sink),
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
            self.watcher.accessed(Access::Read, offset, len);
        }
        self.forward.send(request, then, sink);
    }

    fn extents(&self, offset: u64, len: u64) -> Vec<Extent> {
        // Look here first, so that data that is written down meanwhile is seen either here or
        // below.
        let pinned = self.tier.first_pinned(offset, len);
        let mut extents = self.lower.extents(offset, len);
        let Some(pinned) = pinned else { return extents };
        if pinned.start <= offset {
            return vec![Extent { len: pinned.end - pinned.start, hole: false, zero: false }];
        }
        // The lower tier may report a hole where RAM has data.
        let mut left = pinned.start - offset;
        extents.retain_mut(|extent| {
            extent.len = extent.len.min(left);
            left -= extent.len;
            extent.len > 0
        });
        extents
    }

    fn states(&self, offset: u64, len: u64) -> Option<Vec<StateExtent>> {
        // Look here first, so that data that is written down meanwhile is seen either here or
        // below.
        let here = self.tier.states(offset, len);
        let len = here.iter().map(|extent| extent.len).sum();
        Some(StateExtent::join(&here, &self.lower.states(offset, len)?))
    }

    fn origin(&self) -> Option<Arc<dyn Device>> {
        self.lower.origin()
    }
}

#[cfg(test)]
mod tests;
