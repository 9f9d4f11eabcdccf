//! Begins and ends the recording of a volume's requests, and reads it.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use crate::state::recording::{Recorded, RecordingRings};
use crate::state::volume::{Volume, VolumeState};

/// A recording of a volume's requests; ends when it is dropped.
pub struct Recording {
    /// Weak, so that a slow reader keeps no device open.
    volume: Weak<Volume>,
    rings: Arc<RecordingRings>,
}

impl Recording {
    /// Begins a recording. Returns `None` if the volume is being recorded already.
    pub fn begin(volume: &Arc<Volume>) -> Option<Self> {
        let mut place = volume.recorder.rings.write();
        if place.is_some() {
            return None;
        }
        let rings = Arc::new(RecordingRings::new(volume.stats.lanes()));
        *place = Some(rings.clone());
        volume.recorder.is_on.store(true, Ordering::Relaxed);
        drop(place);
        Some(Recording { volume: Arc::downgrade(volume), rings })
    }

    /// Returns the most requests that can wait to be taken, for this number of lanes.
    pub fn most(lanes: usize) -> usize {
        RecordingRings::EACH * lanes
    }

    /// Returns the bytes of memory of a recording, for this number of lanes.
    pub fn bytes(lanes: usize) -> u64 {
        (Recording::most(lanes) * RecordingRings::BYTES) as u64
    }

    /// Takes the requests recorded since the last call; those of a lane are in order.
    pub fn take(&mut self, into: &mut Vec<Recorded>) {
        self.rings.take(into);
    }

    /// Returns the number of requests so far that found their ring full and were left out.
    pub fn left_out(&self) -> u64 {
        self.rings.left_out()
    }

    /// Returns whether the volume is no longer served.
    pub fn is_over(&self) -> bool {
        self.volume.upgrade().is_none_or(|volume| volume.state() != VolumeState::Running)
    }
}

impl Drop for Recording {
    fn drop(&mut self) {
        if let Some(volume) = self.volume.upgrade() {
            let mut place = volume.recorder.rings.write();
            volume.recorder.is_on.store(false, Ordering::Relaxed);
            *place = None;
        }
    }
}
