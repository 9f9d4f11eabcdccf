//! Ordered volumes: the versions that their origins still have to receive, and in which order
//! (invariant 28).
//!
//! The writes of a volume's clients between two flushes form a *group*. Groups reach the origin one
//! after the other, so that it is at every moment in a state that a power cut between two flushes
//! could have left on a disk: all earlier groups, and any part of one. Within a group only the
//! newest version of a block matters. A version of a closed group must stay readable until the
//! origin has it, even after a newer one has replaced it in the index: it is *held*, and so is its
//! segment.
//!
//! Groups are separated by sequences, the order that the index assigns to versions: a flush takes a
//! *cut*, the highest sequence assigned so far, before it commits, and when the commit succeeds,
//! everything up to the cut is a group. So the versions of one block are always in the order of
//! their groups, whichever lanes wrote them. Versions are collected from records when these are
//! about to be written; appending costs nothing extra.
//!
//! The volume table records the progress of the origin: the [`Horizon`]. It is made durable before
//! the origin receives anything of the next group; only after that are versions marked clean and
//! released. See `ordering::recover` for how groups are recovered.

pub(crate) mod queue;
pub(crate) mod room;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use forebay_core::{RecordNumber, VolumeId};
use forebay_format::VolumeRecord;
use forebay_format::volume::{ORDERED_RECORD, ORDERED_SEQUENCE};
use forebay_lane::{MemoryBudget, OverLimit};
use parking_lot::RwLock;

use queue::GroupQueue;
pub use queue::{Front, OrderedVersion};
use room::HeldMemory;

/// Progress of an origin: it has every version with a sequence up to one number, and every version
/// in records up to another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Horizon {
    /// Every version with a sequence up to this.
    pub sequence: u64,
    /// Every version in a record up to this; used after recovery, where groups consist of records.
    pub record: RecordNumber,
}

impl Horizon {
    /// Reads the horizon from a volume's record; `None` if the volume is not in order.
    pub fn of(volume: &VolumeRecord) -> Option<Horizon> {
        let value = |wanted| volume.settings.iter().find(|(tag, _)| *tag == wanted).map(|it| it.1);
        let sequence = value(ORDERED_SEQUENCE)?;
        Some(Horizon { sequence, record: RecordNumber(value(ORDERED_RECORD).unwrap_or(0)) })
    }

    /// Stores the horizon in a volume's record, or removes it.
    pub(crate) fn put(volume: &mut VolumeRecord, horizon: Option<Horizon>) {
        volume.settings.retain(|(tag, _)| ![ORDERED_SEQUENCE, ORDERED_RECORD].contains(tag));
        if let Some(horizon) = horizon {
            volume.settings.push((ORDERED_SEQUENCE, horizon.sequence));
            volume.settings.push((ORDERED_RECORD, horizon.record.0));
        }
    }

    pub(crate) fn max(self, other: Horizon) -> Horizon {
        Horizon {
            sequence: self.sequence.max(other.sequence),
            record: self.record.max(other.record),
        }
    }
}

/// The queues of all ordered volumes.
pub(crate) struct Ordered {
    pub(crate) any: AtomicBool,
    pub(crate) room: HeldMemory,
    pub(crate) queues: RwLock<HashMap<VolumeId, Arc<GroupQueue>>>,
}

impl Ordered {
    /// Creates the queues from the groups that recovery has found.
    ///
    /// # Errors
    /// There is no memory for their versions.
    pub(crate) fn new(
        queues: HashMap<VolumeId, GroupQueue>,
        memory: &Arc<MemoryBudget>,
    ) -> Result<Self, OverLimit> {
        let room = HeldMemory::new(memory);
        queues.values().for_each(|queue| queue.each(|version| room.add(version)));
        room.restore()?;
        let queues: HashMap<_, _> =
            queues.into_iter().map(|(id, queue)| (id, Arc::new(queue))).collect();
        Ok(Ordered { any: AtomicBool::new(!queues.is_empty()), room, queues: RwLock::new(queues) })
    }

    /// Whether any volume is ordered.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.any.load(Ordering::Relaxed)
    }

    pub(crate) fn queue(&self, id: VolumeId) -> Option<Arc<GroupQueue>> {
        if !self.any() {
            return None;
        }
        self.queues.read().get(&id).cloned()
    }
}
