//! The miss-ratio curve of a volume: what caches of other sizes would have hit. `serve::observe`
//! feeds it.
//!
//! Each lane counts blocks and checks whether a request touches the sample. Only those requests,
//! one in some dozens or thousands, are passed to the volume's [`Live`], which all lanes share, so
//! its lock is seldom taken.
//!
//! Requests must not be slowed down by this. The first sample is therefore a constant, so most
//! requests are ruled out without touching memory, and the counters lie beside others that are
//! updated anyway.

use std::cell::Cell;

use forebay_policy::curve::{Live, Sample};
use parking_lot::Mutex;

/// Chooses the sampled blocks of all volumes.
const SEED: u64 = 0;

/// The first sample; later samples are subsets of it.
pub(crate) const FIRST: Sample = Live::first_sample(SEED);

/// The curve of one volume.
pub(crate) struct Watched(pub(crate) Mutex<Live>);

impl Watched {
    pub(crate) fn new() -> Self {
        Watched(Mutex::new(Live::new(SEED)))
    }

    /// Returns a copy of the curve's state. A lane may wait some tenths of a millisecond while it
    /// is made.
    pub(crate) fn copy(&self) -> Live {
        self.0.lock().clone()
    }
}

/// One lane's copy of the sample; may be outdated. Blocks only ever leave the sample.
pub(crate) struct Watch(pub(crate) Cell<Sample>);

impl Watch {
    pub(crate) fn new() -> Self {
        Watch(Cell::new(FIRST))
    }
}
