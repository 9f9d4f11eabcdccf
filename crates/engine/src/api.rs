//! Block device requests, from a front end down to the tier that serves them.
//!
//! A volume is a stack of components that implement [`BlockService`]; each calls the one below. A
//! front end runs on a lane and calls the top of that lane's stack. [`BlockService::read_now`] and
//! [`BlockService::write_now`] answer small requests that need no waiting; every other request is
//! submitted and completes exactly once through a [`CompletionSink`], possibly before `submit`
//! returns.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{IoError, Op, Sectors, Survives};
use forebay_device::{Device, IoBuf};

/// One request of a client.
#[derive(Debug)]
pub struct Request {
    /// Chosen by the front end; comes back in the completion.
    pub tag: u64,
    /// The operation.
    pub op: Op,
    /// First byte of the range, a multiple of 512.
    pub offset: u64,
    /// Length of the range in bytes, a multiple of 512.
    pub len: u64,
    /// Complete the request only when its effect survives this (`Write`, `WriteZeroes`, `Discard`).
    pub survives: Survives,
    /// Refuse with [`IoError::NotSupported`] rather than write zeroes slowly (`WriteZeroes` only).
    pub fast: bool,
    /// Keep the space allocated (`WriteZeroes` only): do not punch a hole.
    pub no_hole: bool,
    /// The data of a write, `len` bytes; for a read, the destination (`len` bytes), or `None` to
    /// let the engine choose a buffer.
    pub data: Option<IoBuf>,
}

/// The outcome of a request.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// Success, or the error.
    pub result: Result<(), IoError>,
    /// The request's buffer; holds the data after a successful read.
    pub data: Option<IoBuf>,
}

/// Receives completions. Called on the lane on which the request was submitted.
pub trait CompletionSink {
    /// Takes one completion. Must not call back into the [`BlockService`].
    fn complete(&self, completion: Completion);
}

/// A run of bytes with one allocation status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// The range is a hole: no data is stored there.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// A run of bytes with one state above the origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateExtent {
    /// Length in bytes.
    pub len: u64,
    /// The cache or RAM has a copy.
    pub cached: bool,
    /// The data is newer than the origin's.
    pub dirty: bool,
}

impl StateExtent {
    /// Appends a run; joins it with the last one if they are equal.
    pub fn push(self, extents: &mut Vec<StateExtent>) {
        match extents.last_mut() {
            _ if self.len == 0 => (),
            Some(last) if (last.cached, last.dirty) == (self.cached, self.dirty) => {
                last.len += self.len;
            }
            _ => extents.push(self),
        }
    }

    /// Returns the states of a range in two tiers combined, as far as both are known.
    pub fn join(upper: &[StateExtent], lower: &[StateExtent]) -> Vec<StateExtent> {
        let (mut joined, mut lower) = (Vec::new(), lower.iter().copied());
        let mut below = lower.next();
        for above in upper {
            let mut left = above.len;
            while let Some(under) = below.as_mut().filter(|_| left > 0) {
                let len = left.min(under.len);
                let (cached, dirty) = (above.cached || under.cached, above.dirty || under.dirty);
                StateExtent { len, cached, dirty }.push(&mut joined);
                (left, under.len) = (left - len, under.len - len);
                if under.len == 0 {
                    below = lower.next();
                }
            }
        }
        joined
    }
}

/// The time at which the front end will submit a request that it has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// The request is submitted next.
    Next,
    /// After other requests.
    Later,
}

/// Serves the requests of one volume on one lane: a cached volume, a device without a cache, or a
/// tier in front of another tier.
pub trait BlockService {
    /// Returns the size in bytes.
    fn size(&self) -> u64;

    /// Returns the preferred request size in bytes: the cache's block size.
    fn preferred_block(&self) -> u64;

    /// Returns the sizes that clients see. Requests of whole 512-byte sectors are served whatever
    /// the logical size.
    fn sectors(&self) -> Sectors {
        Sectors::SMALL
    }

    /// Returns the smallest range that contains this one and can be written without reading
    /// neighbouring data.
    fn whole_blocks(&self, range: Range<u64>) -> Range<u64> {
        let block = self.preferred_block();
        range.start / block * block..range.end.next_multiple_of(block)
    }

    /// Returns whether writes are refused.
    fn read_only(&self) -> bool;

    /// Reads into `into` if that needs no waiting. `None`: the caller must submit the request
    /// instead.
    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>>;

    /// Writes `data` if that needs no waiting. `None`: nothing has changed; the caller must submit
    /// the request.
    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>>;

    /// Prefetch hint: a read or write at `offset` follows. Index and device memory is fetched while
    /// other requests are served. Useful for callers with several requests at hand: call it for
    /// each first with [`Coming::Later`], then with [`Coming::Next`].
    fn expect(&self, _op: Op, _offset: u64, _coming: Coming) {}

    /// Returns the most memory, in bytes, that a request takes from its submission until its data
    /// is no longer needed, including the data.
    fn memory(&self, op: Op, _offset: u64, len: u64) -> u64 {
        const TASK: u64 = 4 << 10;
        TASK + if matches!(op, Op::Read | Op::Write) { len } else { 0 }
    }

    /// Returns a number that changes when acknowledged writes may have been lost, for instance by a
    /// failed sync: the next read may differ from data read or written before. A tier above drops
    /// its copies then.
    fn losses(&self) -> u64 {
        0
    }

    /// Records that a tier above has served a read of this range, so that its blocks do not count
    /// as cold here.
    fn used(&self, _offset: u64, _len: u64) {}

    /// Returns whether [`BlockService::offer`] may be of use at the moment.
    fn takes_offers(&self) -> bool {
        false
    }

    /// Offers clean data that an upper tier evicts after reuse, to be admitted without reading the
    /// origin. May be ignored.
    ///
    /// `is_current` is called at most once. It returns whether a read of the range would return
    /// this data and no write to it has begun.
    fn offer(&self, _offset: u64, _data: &[u8], _is_current: &dyn Fn() -> bool) {}

    /// Starts a request. It completes exactly once through `sink`.
    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>);

    /// Returns the known allocation of a range without doing I/O: extents in order that cover at
    /// least the first byte and at most the range.
    fn extents(&self, offset: u64, len: u64) -> Vec<Extent>;

    /// Returns the state of the tiers above the origin, without I/O and without changing anything:
    /// extents in order that cover at least the first byte and at most the range. Returns `None`
    /// while the index is being loaded. Takes a short time, and covers less of a long range for
    /// that.
    ///
    /// Acknowledged data is dirty until the origin has it. For a run that is not dirty,
    /// [`BlockService::origin`] therefore has the data, if it is read after this call.
    fn states(&self, _offset: u64, len: u64) -> Option<Vec<StateExtent>> {
        Some(vec![StateExtent { len, cached: false, dirty: false }])
    }

    /// Returns the origin, with the same offsets, to look for holes; `None` if only
    /// [`BlockService::extents`] knows them.
    fn origin(&self) -> Option<Arc<dyn Device>> {
        None
    }
}

/// The volumes that a front end may export, as seen from one lane.
pub trait Exports {
    /// Returns the volumes' names in the order of their creation.
    fn names(&self) -> Vec<String>;

    /// Returns the volume with this name if it is started.
    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_of_two_tiers_merge_where_both_are_known() {
        let extent = |len, cached, dirty| StateExtent { len, cached, dirty };
        let upper = [extent(4, true, true), extent(4, false, false), extent(8, true, false)];
        let lower = [extent(2, false, false), extent(8, true, false), extent(3, true, true)];
        let joined = [extent(4, true, true), extent(6, true, false), extent(3, true, true)];
        assert_eq!(StateExtent::join(&upper, &lower), joined);
        assert_eq!(StateExtent::join(&lower, &upper), joined);
        assert_eq!(StateExtent::join(&upper, &[]), []);
        assert_eq!(StateExtent::join(&[], &lower), []);
    }
}
