//! Messages to the lanes: queues that they are to serve.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use crate::wire::DeviceInfo;

/// A volume, as its device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeFacts {
    /// Bytes, a multiple of 512.
    pub(crate) size: u64,
    /// Writes are refused.
    pub(crate) read_only: bool,
    /// Bytes of a cached block.
    pub(crate) block: u64,
}

/// A message to one lane.
pub(crate) enum Post {
    /// Describe a volume; no answer if it is not served.
    Describe(String, Sender<VolumeFacts>),
    /// Serve a queue.
    Serve(NewQueue),
    /// Answer all requests to this volume with an error, those in flight too.
    Fail(String),
}

/// A queue for one lane.
pub(crate) struct NewQueue {
    pub(crate) volume: String,
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) info: DeviceInfo,
    /// The queue, from 0.
    pub(crate) number: u16,
    /// Gets the queue when the lane serves it, or nothing if it cannot.
    pub(crate) begun: Sender<u16>,
    /// Dropped when the queue has ended.
    pub(crate) ended: Sender<()>,
}

/// What lanes are to do next.
pub(crate) type Board = forebay_export::Board<Post>;
