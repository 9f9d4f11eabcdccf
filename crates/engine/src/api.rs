//! The requests of a block device, from a front end down to the tier that serves them.
//!
//! A volume is a stack of components that implement [`BlockService`], each of which calls the one below. A
//! front end runs on a lane and calls the top of the stack, as that lane sees it. Small
//! requests that need no waiting are answered by [`BlockService::read_now`] and [`BlockService::write_now`];
//! everything else is submitted and completes exactly once through a [`CompletionSink`], possibly
//! before `submit` returns.

use std::rc::Rc;

use forebay_core::{IoError, Op};
use forebay_device::IoBuf;

/// One request of a client.
#[derive(Debug)]
pub struct Request {
    /// Chosen by the front end; comes back in the completion.
    pub tag: u64,
    /// What to do.
    pub op: Op,
    /// First byte of the range, a multiple of 512.
    pub offset: u64,
    /// Length of the range in bytes, a multiple of 512.
    pub len: u64,
    /// The effect must be durable when the request completes.
    pub fua: bool,
    /// Refuse with [`IoError::NotSupported`] rather than write zeroes slowly (`WriteZeroes` only).
    pub fast: bool,
    /// The zeroes must have space on the device (`WriteZeroes` only): no hole is made for them.
    pub no_hole: bool,
    /// The data of a write, `len` bytes; for a read, where the data goes (`len` bytes), or `None`
    /// to let the engine choose a buffer.
    pub data: Option<IoBuf>,
}

/// How a request ended.
#[derive(Debug)]
pub struct Completion {
    /// The request's tag.
    pub tag: u64,
    /// Success, or why not.
    pub result: Result<(), IoError>,
    /// The buffer of the request: filled, if it was a read that succeeded.
    pub data: Option<IoBuf>,
}

/// Where completions go. Called on the lane on which the request was submitted.
pub trait CompletionSink {
    /// Takes one completion. Must not call back into the target.
    fn complete(&self, completion: Completion);
}

/// A run of bytes with one allocation status.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// Nothing is stored there.
    pub hole: bool,
    /// Reads as zeroes.
    pub zero: bool,
}

/// A request that a front end has received and not begun with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coming {
    /// It is next.
    Next,
    /// Another one is before it.
    Later,
}

/// Serves the requests of one volume on one lane: a cached volume, a device without a cache, or a tier in
/// front of another one.
pub trait BlockService {
    /// Size in bytes.
    fn size(&self) -> u64;

    /// The request size that is handled best, in bytes: the cache's block size.
    fn preferred_block(&self) -> u64;

    /// Whether writes are refused.
    fn read_only(&self) -> bool;

    /// Reads into `into` if that needs no waiting; `None` means: submit it.
    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>>;

    /// Writes `data` if that needs no waiting; `None` means: nothing has happened, submit it.
    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>>;

    /// A hint: a read or write at `offset` is coming, so that what it needs of memory can be on its way
    /// while other requests are served. Worth it for who has several requests at hand; to be
    /// called for each of them as [`Coming::Later`] first, then as [`Coming::Next`].
    fn expect(&self, _op: Op, _offset: u64, _coming: Coming) {}

    /// Bytes of memory that a request takes at most from when it is submitted until its data are no
    /// longer needed, those data included.
    fn memory(&self, op: Op, _offset: u64, len: u64) -> u64 {
        const TASK: u64 = 4 << 10;
        TASK + if matches!(op, Op::Read | Op::Write) { len } else { 0 }
    }

    /// Starts a request. It completes exactly once through `sink`.
    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>);

    /// What is known without I/O about the allocation of a range, in order, covering at least the
    /// first byte and at most the range.
    fn extents(&self, offset: u64, len: u64) -> Vec<Extent>;
}

/// The volumes that a front end may offer, as one lane sees them.
pub trait Exports {
    /// The names, in the order of their creation.
    fn names(&self) -> Vec<String>;

    /// The volume of this name, if it is started.
    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>>;
}
