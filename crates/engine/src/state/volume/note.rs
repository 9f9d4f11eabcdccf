//! The note of a volume in the daemon's ledger that distrusts its cache device.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64};

use forebay_lane::Gate;
use parking_lot::Mutex;

use crate::state::dirty_set::DirtySet;

/// See the module.
#[derive(Default)]
pub(crate) struct VolumeNote {
    /// Dirty blocks of the distrusting note, if any: nothing else on the cache device is valid.
    pub(crate) dirty: Mutex<Option<Arc<DirtySet>>>,
    /// Whether there is a distrusting note.
    pub(crate) distrusts: AtomicBool,
    /// Held by the periodic update of the note.
    pub(crate) update: Gate,
    /// Held while a note is written.
    pub(crate) writing: Gate,
    /// Number of times that a task relied on the note for a change missing on the cache device.
    pub(crate) uses: AtomicU64,
}
