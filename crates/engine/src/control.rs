//! What an operator does: volumes come, change and go while requests are served.
//!
//! All of this runs on the lane that opened the cache.

mod attach;
mod grow;
mod open;
mod patience;
pub(crate) mod recognise;
pub(crate) mod samples;
mod table;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::{IoError, ReplacementKind};
use forebay_device::Device;
use forebay_format::{Uuid, VolumeRecord};
use forebay_lane::{either, join_all};
use forebay_settings::Settings;
use forebay_store::StoreError;
use forebay_store::planted::{self, PlantedBug};

use crate::control::attach::usable;
use crate::control::samples::Look;
use crate::error::{EngineError, EngineErrorKind};
use crate::io::commit::Commits;
use crate::io::notes::Notes;
use crate::io::origin::OriginIo;
use crate::lane::engine::EngineLane;
use crate::plan::keeps_dirty;
use crate::settings::settings_of;
use crate::state::volume::{Volume, VolumeState};

/// For so long a cache waits for its background work when a volume could not be stopped in order.
const CLOSING_ANYWAY: Duration = Duration::from_secs(1);

/// A new volume.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// Its name.
    pub name: String,
    /// The origin as the operator named it.
    pub origin: String,
    /// Its identity for the world.
    pub uuid: Uuid,
    /// Bytes by which the block grid is shifted, a multiple of 512 below the block size.
    pub alignment: u64,
    /// Its settings.
    pub settings: Settings,
}

/// A drain that is wanted until this is dropped: whoever waits for it may give up.
struct Draining<'a>(&'a Volume);

impl<'a> Draining<'a> {
    fn begin(volume: &'a Volume) -> Self {
        volume.draining.fetch_add(1, Ordering::SeqCst);
        Draining(volume)
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        self.0.draining.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Settings that do not fit together are a mistake of whoever made them.
fn fitting(settings: &Settings) -> Result<(), EngineError> {
    if settings.ordered && !keeps_dirty(settings.mode) {
        return Err(EngineError::new(
            EngineErrorKind::Usage,
            format!(
                "ordered: with mode={} every write goes to the origin at once; choose mode=writeback or mode=writeonly, or set ordered=off",
                settings.mode
            ),
        ));
    }
    Ok(())
}

fn record_with(settings: &Settings, old: &VolumeRecord) -> VolumeRecord {
    VolumeRecord {
        mode: settings.mode,
        durability: settings.durability,
        policy: settings.policy,
        settings: settings.to_tags_beside(&old.settings),
        ..old.clone()
    }
}

impl EngineLane {
    /// Creates a volume on a cache that is open, and starts it. The origin is taken as it is. The
    /// watermarks of the cache stay what they are, if it has volumes.
    ///
    /// # Errors
    /// The name is taken or not possible, or there is no room.
    pub async fn create(
        self: &Rc<Self>,
        mut spec: VolumeSpec,
        origin: Arc<dyn Device>,
    ) -> Result<Arc<Volume>, EngineError> {
        fitting(&spec.settings)?;
        let block = self.cache.store.block_size();
        let size = usable(&*origin);
        if size == 0 {
            return Err(EngineError::new(
                EngineErrorKind::Usage,
                format!("the origin {} is empty", spec.origin),
            ));
        }
        if let Some(other) = self.cache.store.volumes().first() {
            let policy = spec.settings.policy;
            spec.settings.share(&settings_of(other));
            spec.settings.policy = policy;
        }
        let name = spec.name.clone();
        let (samples, settled) = self.sample(&origin, size).await?;
        let id = self
            .store
            .change_volumes(|volumes, next| {
                if volumes.iter().any(|volume| volume.name == spec.name) {
                    return Err(StoreError::Refused(format!(
                        "there is a volume '{}' already",
                        spec.name
                    )));
                }
                let id = self.cache.store.new_volume_id(volumes, next)?;
                volumes.push(VolumeRecord {
                    id,
                    uuid: spec.uuid,
                    name: spec.name.clone(),
                    origin: spec.origin.clone(),
                    origin_bytes: size,
                    alignment: spec.alignment as u32,
                    mode: spec.settings.mode,
                    durability: spec.settings.durability,
                    policy: spec.settings.policy,
                    started: true,
                    fingerprint: None,
                    identity: origin.identity(),
                    samples,
                    settings: spec.settings.to_tags(),
                });
                Ok(id)
            })
            .await?;
        let blocks = (size + spec.alignment).div_ceil(block.bytes());
        if let Err(error) = self.store.add_space(id, blocks) {
            self.store
                .change_volumes(|volumes, _| {
                    volumes.retain(|volume| volume.id != id);
                    Ok(())
                })
                .await?;
            return Err(error.into());
        }
        self.switch_policy(spec.settings.policy).await;
        self.bring_up(&name, origin, settled)
    }

    /// Makes room by another policy from now on. What is cached is shown to it in no particular order:
    /// it knows what was used lately no sooner than it is used again.
    async fn switch_policy(&self, policy: ReplacementKind) {
        if self.cache.set_policy(policy) {
            for shard in 0..self.cache.store.index.shard_count() {
                self.cache.show_cached(shard);
                forebay_lane::yield_now().await;
            }
        }
    }

    /// Changes a volume's settings; online. Leaving a mode that keeps dirty data drains it, in the
    /// background: see [`EngineLane::drain`] to wait for that.
    ///
    /// # Errors
    /// The cache device fails.
    pub async fn set(self: &Rc<Self>, name: &str, settings: Settings) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        fitting(&settings)?;
        // What all volumes will have; nothing changes before that is durable.
        let mut wanted: Vec<(Arc<Volume>, Settings)> = Vec::new();
        for started in self.cache.volumes() {
            let own = Arc::ptr_eq(&started, &volume);
            let mut own_settings = if own { settings.clone() } else { started.settings() };
            own_settings.share(&settings);
            wanted.push((started, own_settings));
        }
        self.keep_settings(&wanted, &settings).await?;
        for (volume, settings) in wanted {
            if volume.settings() != settings {
                volume.set_settings(settings);
            }
        }
        self.switch_policy(settings.policy).await;
        self.cache.settings_changed();
        Ok(())
    }

    /// Keeps the settings of volumes that are started, and what all volumes have in common.
    async fn keep_settings(
        self: &Rc<Self>,
        wanted: &[(Arc<Volume>, Settings)],
        shared: &Settings,
    ) -> Result<(), EngineError> {
        let started: Vec<(String, Settings)> = wanted
            .iter()
            .map(|(volume, settings)| (volume.name.clone(), settings.clone()))
            .collect();
        let shared = shared.clone();
        self.change_volumes(move |volumes, _| {
            for record in volumes.iter_mut() {
                let own = started.iter().find(|(name, _)| *name == record.name);
                let settings = match own {
                    Some((_, settings)) => settings.clone(),
                    None => {
                        let mut settings = settings_of(record);
                        settings.share(&shared);
                        settings
                    }
                };
                *record = record_with(&settings, record);
            }
            Ok(())
        })
        .await
    }

    /// Writes all dirty data of a volume to its origin, durably; requests are served meanwhile, and
    /// what they make dirty again does not keep this from ending. `progress` is told how many dirty
    /// blocks are left.
    ///
    /// # Errors
    /// The origin cannot be written, or blocks cannot be read back; both are tried for a while.
    pub async fn drain(
        self: &Rc<Self>,
        name: &str,
        progress: impl Fn(u64),
    ) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        // The sweep that is under way may have passed a block that is dirty now; the next one has
        // not.
        let enough = volume.sweeps() + 2;
        self.drain_volume(&volume, enough, progress).await
    }

    /// Drains until nothing is dirty, or until so many sweeps have been made; then syncs the origin.
    async fn drain_volume(
        self: &Rc<Self>,
        volume: &Arc<Volume>,
        enough: u64,
        progress: impl Fn(u64),
    ) -> Result<(), EngineError> {
        self.until_clean(volume, enough, progress).await?;
        if let Some(shrunk) = volume.origin_shrunk() {
            let name = &volume.name;
            return Err(EngineError::new(
                EngineErrorKind::Failed,
                format!("{shrunk}; 'forebay delete --discard-dirty {name}' gives it up"),
            ));
        }
        if let Some(view) = self.lane_volume(volume.id) {
            let sync = async move { OriginIo(&view).sync().await };
            self.patiently_to_its_end(volume, sync).await?.map_err(|_| {
                EngineError::new(
                    EngineErrorKind::Failed,
                    format!("the origin of '{}' cannot be synced", volume.name),
                )
            })?;
        }
        if self.cache.store.health.failed() && volume.dirty_blocks() == 0 {
            let view = self.lane_volume(volume.id);
            let settled = match &view {
                Some(view) => Commits(view).settle_forgotten(&(0..volume.size()), false).await,
                None => Err(IoError::Io),
            };
            if settled.is_err() {
                self.retire(volume).await?;
            }
        }
        Ok(())
    }

    /// Waits until nothing is dirty, or until so many sweeps have been made.
    async fn until_clean(
        &self,
        volume: &Arc<Volume>,
        enough: u64,
        progress: impl Fn(u64),
    ) -> Result<(), EngineError> {
        const PATIENCE: u32 = 50;
        let failed = |message: String| EngineError::new(EngineErrorKind::Failed, message);
        let _draining = Draining::begin(volume);
        volume.try_bad_again();
        volume.writeback_wanted.notify_all();
        let (name, mut failures) = (&volume.name, 0);
        loop {
            let changed = volume.progress.listen();
            let left = volume.dirty_blocks();
            progress(left);
            let swept = volume.sweeps() >= enough;
            if left == 0 || (swept && !volume.has_bad()) {
                return Ok(());
            }
            let bad = volume.bad_count();
            if bad >= if swept { 1 } else { left } {
                return Err(failed(format!(
                    "{bad} dirty blocks of '{name}' cannot be read back; see 'forebay show {name}'"
                )));
            }
            if let Some(stuck) = volume.unanswered().or_else(|| self.cache.hung()) {
                return Err(stuck);
            }
            match volume.writeback_error() {
                Some(error) if failures + 1 >= PATIENCE => {
                    let message =
                        format!("the dirty data of '{name}' cannot be written back: {error}");
                    return Err(EngineError::caused(EngineErrorKind::Failed, message, error));
                }
                Some(_) => failures += 1,
                None => failures = 0,
            }
            either(changed, self.lane.sleep(Duration::from_millis(100))).await;
        }
    }

    /// After the cache device has failed and everything is on the origin: gives the volume another
    /// number, so that nothing in the log counts as its any more. The log still has older dirty
    /// versions, and marks can no longer be written.
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

    /// Makes durable what was acknowledged, of all volumes: nothing of it is lost when the cache is
    /// left as it is.
    ///
    /// # Errors
    /// The cache device fails.
    pub async fn settle(self: &Rc<Self>) -> Result<(), EngineError> {
        self.store.commit().await?;
        Ok(())
    }

    /// Stops a volume: requests are refused from now on, those in flight end, everything that was
    /// acknowledged becomes durable. Dirty data stays in the cache. `keep_stopped`: it does not
    /// come up by itself the next time.
    ///
    /// # Errors
    /// The cache device or the origin fails, or the origin does not answer; the volume is stopped all the
    /// same. Requests that wait for the origin then end when it answers.
    pub async fn stop_volume(
        self: &Rc<Self>,
        name: &str,
        keep_stopped: bool,
    ) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        let mut result = self.patiently(&volume, self.quiesce(&volume)).await;
        let (mut print, mut samples) = (None, None);
        if let Some(view) = self.lane_volume(volume.id) {
            let syncing = view.clone();
            let sync = async move { OriginIo(&syncing).sync().await };
            match self.patiently_to_its_end(&volume, sync).await {
                Ok(Ok(())) => (),
                Ok(Err(_)) => {
                    result = Err(EngineError::new(
                        EngineErrorKind::Failed,
                        format!("the origin of '{name}' cannot be synced"),
                    ));
                }
                Err(unanswered) => result = result.and(Err(unanswered)),
            }
            if Commits(&view).commit_or_outlive().await.is_err() {
                result = Err(self.left_behind(&volume));
            }
            volume.set_state(VolumeState::Removed);
            let ended = self.patiently(&volume, self.wait_for_writeback(&volume)).await;
            result = result.and(ended);
            Notes(&view).note_the_end().await;
            // Barrier for invariant 12: what the fingerprint is taken of cannot change its mind. The
            // last writes of writeback may have come after the sync above.
            let look = async {
                view.origin.sync().await.ok()?;
                let read = async |place, buf| view.origin.read(place, buf).await;
                Some(Look::read(volume.size(), read).await)
            };
            if result.is_ok() {
                match self.patiently(&volume, look).await {
                    Ok(Some(look)) => {
                        (print, samples) = (look.fingerprint().ok(), Some(look.samples()));
                    }
                    Ok(None) => (),
                    Err(unanswered) => result = Err(unanswered),
                }
            }
        }
        let own = name.to_owned();
        let changed = self.change_volumes(move |volumes, _| {
            for record in volumes.iter_mut().filter(|record| record.name == own) {
                record.fingerprint = print;
                // If they could not be taken anew, those that are untouched are still good.
                record.samples = samples.take().or(record.samples.take());
                record.started = !keep_stopped;
            }
            Ok(())
        });
        let changed = changed.await;
        volume.waits.close();
        self.cache.detach(&volume);
        self.drop_view(volume.id);
        result.and(changed)
    }

    /// The error about dirty blocks that only a failed cache device has.
    fn left_behind(&self, volume: &Volume) -> EngineError {
        let cause = self.cache.store.health.cause();
        EngineError::new(
            EngineErrorKind::DataAtRisk,
            format!(
                "{} blocks of '{}' are dirty on a cache device that fails ({}): 'forebay show --lost {}' lists them; start it again to try and write them back, or give them up with 'forebay delete --discard-dirty {}'",
                volume.dirty_blocks(),
                volume.name,
                cause.as_deref().unwrap_or("it does not answer"),
                volume.name,
                volume.name,
            ),
        )
    }

    /// Refuses new requests and waits for those in flight.
    async fn quiesce(&self, volume: &Arc<Volume>) {
        volume.set_state(VolumeState::Stopped);
        loop {
            // Writes that wait for room give up.
            self.cache.store.space.notify_all();
            let changed = volume.progress.listen();
            if volume.stats.in_flight() == 0 {
                return;
            }
            either(changed, self.lane.sleep(Duration::from_millis(20))).await;
        }
    }

    /// Waits until the volume's writeback, and reclaim on its behalf, touch the origin no more:
    /// whoever gets a range after this sees that the volume is removed.
    async fn wait_for_writeback(&self, volume: &Arc<Volume>) {
        let _all = volume.ranges.exclusive(0..u64::MAX).await;
    }

    /// Deletes a volume: its dirty data goes to the origin first, unless it is to be discarded.
    /// The origin is whole afterwards, and nothing of the volume is left in the cache.
    ///
    /// # Errors
    /// The dirty data cannot be written back; the volume is then as it was.
    pub async fn delete(
        self: &Rc<Self>,
        name: &str,
        discard_dirty: bool,
        progress: impl Fn(u64),
    ) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        let discard_dirty = discard_dirty || planted::has(PlantedBug::DeletesUndrained);
        if !discard_dirty {
            self.drain_volume(&volume, u64::MAX, &progress).await?;
        }
        if let Err(unanswered) = self.patiently(&volume, self.quiesce(&volume)).await
            && !discard_dirty
        {
            volume.set_state(VolumeState::Running);
            return Err(unanswered);
        }
        if !discard_dirty && let Err(error) = self.drain_volume(&volume, u64::MAX, progress).await {
            volume.set_state(VolumeState::Running);
            return Err(error);
        }
        // First the table, while everything can still go on as it was.
        if let Err(error) = self.strike(name).await {
            volume.set_state(VolumeState::Running);
            return Err(error);
        }
        volume.set_state(VolumeState::Removed);
        if let Err(unanswered) = self.patiently(&volume, self.wait_for_writeback(&volume)).await {
            tracing::warn!(%unanswered, "writes to it may still be under way");
        }
        volume.waits.close();
        self.store.remove_space(&volume.space);
        self.cache.detached.remove(volume.id);
        self.cache.remove_volume(name);
        self.drop_view(volume.id);
        Ok(())
    }

    /// Deletes a volume that is not started. Its dirty data is lost: `discard_dirty` says that this
    /// is meant.
    ///
    /// # Errors
    /// There is dirty data and it is not to be discarded.
    pub async fn delete_stopped(
        self: &Rc<Self>,
        name: &str,
        discard_dirty: bool,
    ) -> Result<(), EngineError> {
        let records = self.cache.store.volumes();
        let record = records
            .iter()
            .find(|record| record.name == name)
            .ok_or_else(|| EngineError::no_volume(name))?;
        let dirty = self.cache.occupancy().get(&record.id).map_or(0, |own| own.dirty);
        if let Some(damage) = self.cache.store.damage_of(record.id).filter(|_| !discard_dirty) {
            return Err(EngineError::new(
                EngineErrorKind::DataAtRisk,
                format!(
                    "the volume '{name}' may have lost data: {damage}; 'forebay start --force {name}' goes on with what is left, --discard-dirty gives up what is not on the origin"
                ),
            ));
        }
        if dirty > 0 && !discard_dirty {
            return Err(EngineError::new(
                EngineErrorKind::DataAtRisk,
                format!(
                    "the volume '{name}' is stopped and has {dirty} blocks that are not on its origin: start it to have them written back, or use --discard-dirty"
                ),
            ));
        }
        self.strike(name).await?;
        if let Some(space) = self.cache.store.space_of(record.id) {
            self.store.remove_space(&space);
        }
        self.cache.detached.remove(record.id);
        Ok(())
    }

    /// Takes a volume out of the volume table.
    async fn strike(self: &Rc<Self>, name: &str) -> Result<(), EngineError> {
        let name = name.to_owned();
        let change = self.change_volumes(move |volumes, _| {
            volumes.retain(|volume| volume.name != name);
            Ok(())
        });
        change.await
    }

    /// Closes the cache: all volumes stop, everything is durable, the device is clean.
    ///
    /// # Errors
    /// Something could not be made durable; it is still closed.
    pub async fn close(self: &Rc<Self>) -> Result<(), EngineError> {
        let mut result = Ok(());
        if planted::has(PlantedBug::CleanTooEarly) {
            self.store.checkpoint(true).await?;
        }
        // All at once: an origin that does not answer keeps the others waiting no longer than itself.
        let volumes = self.cache.volumes();
        let stops = volumes.iter().map(|volume| self.stop_volume(&volume.name, false));
        for stopped in join_all(stops).await {
            result = result.and(stopped);
        }
        self.cache.stopping.store(1, Ordering::SeqCst);
        self.cache.store.space_wanted.notify_all();
        // Background work that waits for an origin that does not answer never ends.
        let patient = result.is_err().then(|| self.lane.now() + CLOSING_ANYWAY);
        loop {
            self.cache.background_changed.notify_all();
            let changed = self.cache.background_changed.listen();
            let late = patient.is_some_and(|until| self.lane.now() >= until);
            if late || self.cache.background.load(Ordering::SeqCst) == 0 {
                break;
            }
            either(changed, self.lane.sleep(Duration::from_millis(20))).await;
        }
        result?;
        // Marks that are still pending go first, so that the checkpoint is behind everything.
        self.store.commit().await?;
        if planted::has(PlantedBug::CleanTooEarly) {
            return Ok(());
        }
        self.store.checkpoint(true).await?;
        Ok(())
    }
}
