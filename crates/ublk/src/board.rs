//! Messages to the lanes: queues that they are to serve.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::mpsc::Sender;

use forebay_core::Sectors;
use forebay_device::IoBuf;
use forebay_lane::{MemoryBudget, MemoryUse};

use crate::wire::DeviceInfo;

/// Bytes of memory of a queue, without its buffers and requests.
const QUEUE_BYTES: u64 = 64 << 10;

/// Facts about a volume that its device needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct VolumeFacts {
    /// Bytes, a multiple of 512.
    pub(crate) size: u64,
    /// Writes are refused.
    pub(crate) read_only: bool,
    /// The sizes in which the volume is addressed and works best.
    pub(crate) sectors: Sectors,
    /// Bytes of a cached block.
    pub(crate) block: u64,
}

/// A message to one lane.
pub(crate) enum Post {
    /// Describe a volume; no answer if it is not served.
    Describe(String, Sender<VolumeFacts>),
    /// Serve a queue.
    Serve(NewQueue),
    /// Answer all requests to this volume with an error, including those in flight.
    Fail(String),
}

/// A queue for one lane.
pub(crate) struct NewQueue {
    pub(crate) volume: String,
    pub(crate) fd: Arc<OwnedFd>,
    pub(crate) info: DeviceInfo,
    /// The kernel flushes the device.
    pub(crate) flushes: bool,
    /// The queue, from 0.
    pub(crate) number: u16,
    pub(crate) memory: QueueMemory,
    /// Receives the number of the queue, and whether the lane serves it.
    pub(crate) begun: Sender<(u16, bool)>,
    /// Dropped when the queue has ended.
    pub(crate) ended: Sender<()>,
}

/// The memory of a queue, counted in the daemon's budget until this is dropped.
pub(crate) struct QueueMemory {
    budget: Arc<MemoryBudget>,
    bytes: u64,
    /// A buffer for each tag.
    pub(crate) buffers: Vec<IoBuf>,
}

impl QueueMemory {
    /// Counts and allocates the memory; `None` if the budget does not have enough.
    pub(crate) fn take(budget: &Arc<MemoryBudget>, info: &DeviceInfo) -> Option<Self> {
        let bytes = QUEUE_BYTES + u64::from(info.depth) * u64::from(info.max_io_bytes);
        if !budget.take_for_connection(bytes, false) {
            return None;
        }
        let buffer = |_| IoBuf::for_overwrite(info.max_io_bytes as usize);
        let buffers = (0..info.depth).map(buffer).collect();
        Some(QueueMemory { budget: budget.clone(), bytes, buffers })
    }
}

impl Drop for QueueMemory {
    fn drop(&mut self) {
        self.budget.give(MemoryUse::Connections, self.bytes);
    }
}

/// Tasks for the lanes.
pub(crate) type QueueBoard = forebay_export::Board<Post>;
