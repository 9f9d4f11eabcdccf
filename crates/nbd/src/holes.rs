//! Holes of origins. Helper threads look for them, because the filesystem may wait for its disk.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_device::Device;

use forebay_lane::off_lane;

/// Most threads that look for holes. A device that hangs keeps some of them; if all are taken,
/// nothing is known about holes.
const THREADS_MAX: usize = 16;

/// A run of bytes of an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginExtent {
    /// Length in bytes.
    pub(crate) len: u64,
    /// The run is a hole: it reads as zeroes and nothing is stored there.
    pub(crate) hole: bool,
}

/// Looks for holes, for all lanes.
#[derive(Clone, Debug, Default)]
pub(crate) struct HoleFinder {
    threads: Arc<AtomicUsize>,
}

/// A thread's place, given back on drop.
struct Place(Arc<AtomicUsize>);

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl HoleFinder {
    /// Returns the extents of a range in order, at most `most` of them; the state of the rest of
    /// the range is unknown.
    pub(crate) async fn find(
        &self,
        device: Arc<dyn Device>,
        range: Range<u64>,
        most: usize,
    ) -> Vec<OriginExtent> {
        let place = Place(self.threads.clone());
        if self.threads.fetch_add(1, Ordering::SeqCst) >= THREADS_MAX {
            return Vec::new();
        }
        let look = move || {
            let _place = place;
            look(&*device, range, most)
        };
        off_lane::run("holes", look).await.unwrap_or_default()
    }
}

fn look(device: &dyn Device, range: Range<u64>, most: usize) -> Vec<OriginExtent> {
    let (mut at, mut found) = (range.start, Vec::new());
    while at < range.end && found.len() < most {
        let Some(extent) = device.extent_at(at).filter(|extent| extent.end > at) else { break };
        let end = extent.end.min(range.end);
        found.push(OriginExtent { len: end - at, hole: extent.hole });
        at = end;
    }
    found
}
