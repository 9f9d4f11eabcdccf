//! What caches of other sizes would have hit of a volume's requests. `serve::observe` tells it.
//!
//! Each lane counts blocks and looks whether a request touches the sample; of those that do, all
//! lanes tell the volume's [`Live`]. That is one request of some dozens or thousands, so that what
//! they share is seldom locked.
//!
//! A request is not to be slowed down by this. So the sample that volumes begin with is a constant,
//! which most requests need no memory for to see that they do not touch it, and what is counted is
//! beside what is counted anyway.

use std::cell::Cell;

use forebay_policy::curve::{Live, Sample};
use parking_lot::Mutex;

/// Which blocks are sampled, of all volumes.
const SEED: u64 = 0;

/// What is sampled at first, and all that ever will be.
pub(crate) const FIRST: Sample = Live::first_sample(SEED);

/// What a volume knows.
pub(crate) struct Watched(pub(crate) Mutex<Live>);

impl Watched {
    pub(crate) fn new() -> Self {
        Watched(Mutex::new(Live::new(SEED)))
    }

    /// What the sample has shown, as a copy: a lane may wait while it is made, for some tenths of a
    /// millisecond.
    pub(crate) fn copy(&self) -> Live {
        self.0.lock().clone()
    }
}

/// One lane's part: the sample when this lane last looked. Blocks only leave it.
pub(crate) struct Watch(pub(crate) Cell<Sample>);

impl Watch {
    pub(crate) fn new() -> Self {
        Watch(Cell::new(FIRST))
    }
}
