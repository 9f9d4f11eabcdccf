//! Drains volumes: all dirty data is written to the origin, durably.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};
use std::time::Duration;

use forebay_core::why::WakeReason;
use forebay_core::{Cancelled, IoError, Mode};
use forebay_lane::either;

use crate::error::{EngineError, EngineErrorKind, WritebackError};
use crate::io::commit::{Commits, Forgotten};
use crate::io::origin::OriginIo;
use crate::lane::engine::EngineLane;
use crate::state::drains::Draining;
use crate::state::volume::Volume;

/// Whether the attempts to write back still lead anywhere.
struct Attempts {
    /// Number of dirty blocks at the last check, and number of successive checks at which writeback
    /// failed and not fewer blocks were dirty.
    left: u64,
    failing: u32,
    /// Numbers of good and of failed sweeps seen; the fewest dirty blocks after a failed one, and
    /// the number of successive failed ones that did not go below it.
    good: u64,
    failed: u64,
    least: u64,
    vain: u32,
    /// The last error.
    error: Option<WritebackError>,
}

impl Attempts {
    fn new(volume: &Volume) -> Self {
        let (good, failed) = (volume.sweeps(), volume.failed_sweeps());
        Attempts { left: u64::MAX, failing: 0, good, failed, least: u64::MAX, vain: 0, error: None }
    }

    /// Checks a volume with `left` dirty blocks. Returns the error if writeback has made no
    /// progress for a while: it fails and the number of dirty blocks does not fall, or sweep after
    /// sweep fails at the same blocks while clients write others.
    fn in_vain(&mut self, volume: &Volume, left: u64) -> Option<WritebackError> {
        const LOOKS: u32 = 50;
        const SWEEPS: u32 = 3;
        let error = volume.writeback_error();
        self.failing =
            if volume.writeback_fails() && left >= self.left { self.failing + 1 } else { 0 };
        self.left = left;
        self.error = error.or(self.error.take());
        let (good, failed) = (volume.sweeps(), volume.failed_sweeps());
        if good > self.good {
            self.vain = 0;
        }
        if failed > self.failed {
            self.vain = if left < self.least { 0 } else { self.vain + 1 };
            self.least = self.least.min(left);
        }
        (self.good, self.failed) = (good, failed);
        if self.failing >= LOOKS || self.vain >= SWEEPS { self.error.clone() } else { None }
    }
}

impl EngineLane {
    /// Writes all dirty data of a volume to its origin, durably. Requests are served meanwhile;
    /// blocks that they make dirty do not keep the drain from ending. Without such requests no
    /// block is dirty at the end. `progress` is called with the number of dirty blocks left, and
    /// may end the drain.
    ///
    /// # Errors
    /// The command is cancelled; or for a while the origin cannot be written, or blocks cannot be
    /// read back; or a device hangs.
    pub async fn drain(
        self: &Rc<Self>,
        name: &str,
        progress: impl Fn(u64) -> Result<(), Cancelled>,
    ) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        self.index_loaded().await?;
        // The sweep in progress may have passed a block that is dirty now; the next one has not.
        let enough = volume.sweeps() + 2;
        self.drain_volume(&volume, enough, progress).await
    }

    /// Drains until no block is dirty or `enough` sweeps have been made; then syncs the origin.
    pub(super) async fn drain_volume(
        self: &Rc<Self>,
        volume: &Arc<Volume>,
        enough: u64,
        progress: impl Fn(u64) -> Result<(), Cancelled>,
    ) -> Result<(), EngineError> {
        if let Some(protected) = volume.kept_from_origin() {
            return Err(EngineError::new(EngineErrorKind::Failed, protected));
        }
        self.until_clean(volume, enough, progress).await?;
        if let Some(shrunk) = volume.origin_shrunk() {
            let name = &volume.name;
            return Err(EngineError::new(
                EngineErrorKind::Failed,
                format!("{shrunk}; 'forebay delete --discard-dirty {name}' gives it up"),
            ));
        }
        if let Some(view) = self.lane_volume(volume.id) {
            let sync = async move { OriginIo(&view).sync(WakeReason::Other).await };
            self.patiently_to_its_end(volume, sync).await?.map_err(|_| {
                EngineError::new(
                    EngineErrorKind::Failed,
                    format!("the origin of '{}' cannot be synced", volume.name),
                )
            })?;
        }
        if volume.dirty_blocks() == 0 {
            let settled = match self.lane_volume(volume.id) {
                // Barrier for invariant 12: blocks that a crash makes dirty again cannot be
                // compared, and would overwrite later writes of others to the origin.
                Some(view) => {
                    Commits(&view).sync_forgotten(&(0..volume.size()), Forgotten::Marks).await
                }
                None => Err(IoError::Io),
            };
            // After any other failure the marks are left to the next commit: after a crash the
            // blocks count as dirty, which is safe.
            if settled.is_err() && self.cache.store.health.failed() {
                self.retire(volume).await?;
            }
        }
        Ok(())
    }

    /// Waits until no lane answers a request any more that may have begun with earlier settings.
    /// The blocks that such requests make dirty are counted then.
    async fn pass_those_answered_at_once(&self, volume: &Volume) {
        fence(Ordering::SeqCst);
        let mut lanes: Vec<usize> = (0..volume.stats.lanes()).collect();
        loop {
            lanes.retain(|lane| volume.stats.is_answering(*lane));
            if lanes.is_empty() {
                return;
            }
            self.lane.sleep(Duration::from_millis(1)).await;
        }
    }

    /// Waits until no block is dirty or, in a mode whose writes make blocks dirty, until `enough`
    /// sweeps were made and a further one has left as many dirty blocks as the one before. A block
    /// that reclaim moves, or that a write still in flight dirties, behind the sweep stays dirty,
    /// so further sweeps follow until one removes none.
    async fn until_clean(
        &self,
        volume: &Arc<Volume>,
        mut enough: u64,
        progress: impl Fn(u64) -> Result<(), Cancelled>,
    ) -> Result<(), EngineError> {
        let _draining = Draining::begin(&volume.writeback.drains);
        self.pass_those_answered_at_once(volume).await;
        volume.try_bad_again();
        volume.writeback.wanted.notify_all();
        let (name, mut least, mut attempts) = (&volume.name, u64::MAX, Attempts::new(volume));
        loop {
            let changed = volume.writeback.progress.listen();
            // See the same fence in `path::write`.
            fence(Ordering::SeqCst);
            let left = volume.dirty_blocks();
            progress(left)?;
            let mut swept = volume.sweeps() >= enough;
            if swept && left < least {
                (least, enough, swept) = (left, volume.sweeps() + 1, false);
            }
            // Until a volume has left the order for good, its clients write to the log alone.
            let leaves = volume.is_ordered() && !volume.settings().wants_order();
            let stuck = volume.has_bad() || volume.has_refused();
            // Writes in these modes leave no block dirty, so the command can report that the origin
            // has all data.
            let all = matches!(volume.mode(), Mode::Writearound | Mode::Passthrough);
            if !leaves && (left == 0 || (swept && !stuck && !all)) {
                return Ok(());
            }
            let bad = volume.bad_count();
            if bad >= if swept { 1 } else { left.max(1) } {
                return Err(given_up(volume, bad));
            }
            if let Some(stuck) = volume.unanswered().or_else(|| self.cache.hung()) {
                return Err(stuck);
            }
            // A block that is found to be refused counts as progress, because the drain no longer
            // waits for it.
            let waited_for = left.saturating_sub(volume.passed_over());
            if let Some(error) = attempts.in_vain(volume, waited_for) {
                let message = format!("the dirty data of '{name}' cannot be written back: {error}");
                return Err(EngineError::caused(EngineErrorKind::Failed, message, error));
            }
            either(changed, self.lane.sleep(Duration::from_millis(100))).await;
        }
    }

    /// Gives the volume another number, so that nothing in the log belongs to it any more. Used
    /// when the cache device has failed and all data is on the origin: the log still has older
    /// dirty versions, and marks can no longer be written.
    async fn retire(self: &Rc<Self>, volume: &Arc<Volume>) -> Result<(), EngineError> {
        let retired = self
            .store
            .change_volumes(|volumes, next| {
                let id = self.cache.store.new_volume_id(volumes, next)?;
                for record in volumes.iter_mut().filter(|record| record.name == volume.name) {
                    record.id = id;
                }
                Ok(())
            })
            .await;
        retired.map_err(|error| {
            EngineError::caused(
                EngineErrorKind::DataAtRisk,
                format!("all data of '{}' is on its origin, but the failed cache device still has older versions and cannot be updated ({error}): do not start the volume from it again", volume.name),
                error,
            )
        })
    }
}

/// Returns the error of a drain after which the only dirty blocks are those that cannot be read
/// back or that the origin refuses.
fn given_up(volume: &Volume, count: u64) -> EngineError {
    let (name, failed) = (&volume.name, EngineErrorKind::Failed);
    let unreadable = volume.unreadable_count();
    match volume.refusal() {
        Some(error) if unreadable == 0 => EngineError::caused(
            failed,
            format!(
                "{count} dirty blocks of '{name}' cannot be written back: {error}; 'forebay show {name}' lists them"
            ),
            error,
        ),
        Some(error) => EngineError::caused(
            failed,
            format!(
                "{unreadable} dirty blocks of '{name}' cannot be read back, and {} not written back: {error}; 'forebay show {name}' lists them",
                count.saturating_sub(unreadable)
            ),
            error,
        ),
        None => EngineError::new(
            failed,
            format!(
                "{count} dirty blocks of '{name}' cannot be read back; see 'forebay show {name}'"
            ),
        ),
    }
}
