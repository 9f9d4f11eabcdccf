//! Free space in the log.

use std::time::Duration;

use forebay_core::IoError;
use forebay_lane::either;

use crate::lane::LaneVolume;
use crate::state::volume::VolumeState;

/// Waits for free space in the log on behalf of a volume.
#[derive(Clone, Copy)]
pub(crate) struct Space<'a>(pub(crate) &'a LaneVolume);

impl Space<'_> {
    /// Returns whether writes find no free space in the log and should not wait for it. Writes of
    /// an ordered volume always wait: they must not bypass the log (invariant 28).
    pub(crate) fn is_starved(self) -> bool {
        self.0.cache.is_starved() && !self.0.volume.is_ordered()
    }

    /// Waits until there may be free space in the log, or none is needed any more.
    ///
    /// # Errors
    /// The cache device has failed, so no space will become free, or the volume is stopping.
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
            // Copies become clean without a notification of `space`: poll.
            self.0.volume.writeback.wanted.notify_all();
            either(listening, self.0.lane().sleep(Duration::from_millis(20))).await;
        } else {
            let _waits = self.0.volume.is_ordered().then(|| self.0.cache.wait_for_log());
            listening.await;
        }
        Ok(())
    }

    /// Returns whether there is memory to track another write to an ordered volume until its origin
    /// has it. If not, requests writeback of the next groups.
    #[inline]
    pub(crate) fn has_room_in_order(self) -> bool {
        let (volume, store) = (&self.0.volume, &self.0.cache.store);
        let room = !volume.is_ordered() || store.has_room_in_order(volume.id);
        if !room {
            self.0.cache.volumes().iter().for_each(|volume| volume.writeback.wanted.notify_all());
        }
        room
    }
}
