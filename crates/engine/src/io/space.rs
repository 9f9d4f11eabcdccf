//! Free space in the log.

use std::time::Duration;

use forebay_core::IoError;
use forebay_lane::either;

use crate::lane::LaneVolume;
use crate::state::volume::VolumeState;

/// See the module.
#[derive(Clone, Copy)]
pub(crate) struct Space<'a>(pub(crate) &'a LaneVolume);

impl Space<'_> {
    /// Whether writes find no room in the log, and need not wait for any. Those of a volume in order do:
    /// nothing of it goes round the log (invariant 28).
    pub(crate) fn is_starved(self) -> bool {
        self.0.cache.is_starved() && !self.0.volume.is_ordered()
    }

    /// Waits until there may be room in the log, or none is needed any more.
    ///
    /// # Errors
    /// The cache device has failed: there will be none.
    pub(crate) async fn wait_for_space(
        self,
        listening: forebay_lane::Notified<'_>,
    ) -> Result<(), IoError> {
        let store = self.0.store.store();
        if store.health.failed() {
            return Err(IoError::Io);
        }
        if self.0.volume.state() != VolumeState::Running {
            return Err(IoError::ShuttingDown);
        }
        store.space_wanted.notify_all();
        if self.is_starved() {
            // Dirty copies turn clean, which nobody tells.
            self.0.volume.writeback_wanted.notify_all();
            either(listening, self.0.lane().sleep(Duration::from_millis(20))).await;
        } else {
            listening.await;
        }
        Ok(())
    }

    /// Whether there is memory for what is written to an ordered volume and its origin has to get. If not,
    /// the next groups are wanted there.
    #[inline]
    pub(crate) fn has_room_in_order(self) -> bool {
        let (volume, store) = (&self.0.volume, &self.0.cache.store);
        let room = !volume.is_ordered() || store.has_room_in_order(volume.id);
        if !room {
            self.0.cache.volumes().iter().for_each(|volume| volume.writeback_wanted.notify_all());
        }
        room
    }
}
