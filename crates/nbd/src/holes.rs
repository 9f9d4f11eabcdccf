//! Holes of origins, which are looked for off the lanes: the filesystem may wait for its disk.
#![allow(clippy::disallowed_methods, reason = "the simulator has no front ends")]

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_device::Device;
use forebay_lane::Notify;
use parking_lot::Mutex;

/// Most threads that look for holes. A device that hangs keeps some of them; if all are taken, nothing is
/// known about holes.
const THREADS_MAX: usize = 16;

/// A run of bytes of an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OriginExtent {
    /// Length in bytes.
    pub(crate) len: u64,
    /// It reads as zeroes; nothing is stored there.
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

#[derive(Default)]
struct Answer {
    found: Mutex<Option<Vec<OriginExtent>>>,
    there: Notify,
}

impl HoleFinder {
    /// Returns the extents of a range in order, at most `most` of them; what they do not cover is
    /// unknown.
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
        let answer = Arc::new(Answer::default());
        let theirs = answer.clone();
        let thread = std::thread::Builder::new().name("holes".to_owned());
        let spawned = thread.spawn(move || {
            let _place = place;
            *theirs.found.lock() = Some(look(&*device, range, most));
            theirs.there.notify_all();
        });
        if let Err(error) = spawned {
            tracing::debug!(%error, "no thread can look for holes");
            return Vec::new();
        }
        loop {
            let there = answer.there.listen();
            if let Some(found) = answer.found.lock().take() {
                return found;
            }
            there.await;
        }
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
