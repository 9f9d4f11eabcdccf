//! Commands of an operator: create, change, stop and delete volumes while requests are served.
//!
//! All of this runs on the lane that opened the cache.

mod attach;
mod compare;
mod delete;
pub mod displaced;
mod drain;
mod forget;
mod grow;
mod open;
mod patience;
mod pins;
pub(crate) mod recognise;
pub(crate) mod rename;
pub(crate) mod samples;
pub(crate) mod sectors;
mod starts;
pub(crate) mod table;
pub(crate) mod verify;

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use forebay_core::why::WakeReason;
use forebay_core::{Cancelled, Evidence, ReplacementKind, VolumeId};
use forebay_device::Device;
use forebay_format::volume::Left;
use forebay_format::{Uuid, VolumeRecord};
use forebay_lane::{either, join_all};
use forebay_settings::Settings;
use forebay_store::StoreError;
use forebay_store::planted::{self, PlantedBug};

use crate::control::attach::usable;
use crate::control::samples::{SampledOrigin, write_evidence};
use crate::error::{EngineError, EngineErrorKind};
use crate::io::commit::Commits;
use crate::io::notes::NoteKeeper;
use crate::io::origin::OriginIo;
use crate::lane::engine::EngineLane;
use crate::plan::keeps_dirty;
use crate::settings::settings_of;
use crate::state::volume::{Volume, VolumeState};

/// Longest wait for background work on close when a volume could not be stopped in order.
const CLOSING_ANYWAY: Duration = Duration::from_secs(1);

/// Longer than a tick of any kernel's clock.
const TICK: Duration = Duration::from_millis(20);

/// The parameters of a new volume.
#[derive(Clone, Debug)]
pub struct VolumeSpec {
    /// The volume's name.
    pub name: String,
    /// The origin, by the name that the operator gave it.
    pub origin: String,
    /// The volume's UUID.
    pub uuid: Uuid,
    /// Bytes by which the block grid is shifted, a multiple of 512 below the block size.
    pub alignment: u64,
    /// The volume's settings.
    pub settings: Settings,
}

/// Refuses settings that contradict each other.
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
        withdrawn_policy: None,
        settings: settings.to_tags_beside(&old.settings),
        ..old.clone()
    }
}

impl EngineLane {
    /// Creates a volume on an open cache and starts it. The content of the origin is accepted
    /// without a check. Settings that all volumes share, such as the policy, keep the values of the
    /// cache's volumes.
    ///
    /// # Errors
    /// The name is taken, the settings contradict each other, the origin is empty or cannot be
    /// opened, there are too many volumes, or the cache device fails.
    pub async fn create(
        self: &Rc<Self>,
        mut spec: VolumeSpec,
        origin: Arc<dyn Device>,
    ) -> Result<Arc<Volume>, EngineError> {
        fitting(&spec.settings)?;
        self.index_loaded().await?;
        let block = self.cache.store.block_size();
        let size = usable(&*origin);
        if size == 0 {
            return Err(EngineError::new(
                EngineErrorKind::Usage,
                format!("the origin {} is empty", spec.origin),
            ));
        }
        let name = spec.name.clone();
        let sectors = sectors::of_new(&*origin, spec.settings.sector_size)?;
        let (samples, settled) = self.sample(&origin, size).await?;
        self.store.rest_volume_ids().await?;
        let turn = self.cache.settings_gate.enter().await;
        // While the cache device does not answer, the volume table may lack the latest change.
        let served = self.cache.volumes().first().map(|other| other.settings());
        let stored = || self.cache.store.volumes().first().map(settings_of);
        if let Some(other) = served.or_else(stored) {
            spec.settings.share(&other);
        }
        let mut tags = spec.settings.to_tags();
        sectors::record(sectors, &mut tags);
        let id = self
            .store
            .change_volumes(|volumes, next| {
                if volumes.iter().any(|volume| volume.name == spec.name) {
                    return Err(StoreError::Exists(spec.name.clone()));
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
                    withdrawn_policy: None,
                    started: true,
                    fingerprint: None,
                    identity: origin.identity(),
                    left: Left::default(),
                    samples,
                    settings: tags,
                });
                Ok(id)
            })
            .await?;
        drop(turn);
        let blocks = (size + spec.alignment).div_ceil(block.bytes());
        let added = self.take_space(id, blocks, &*origin, spec.uuid).await;
        if let Err(error) = added {
            self.store
                .change_volumes(|volumes, _| {
                    volumes.retain(|volume| volume.id != id);
                    Ok(())
                })
                .await?;
            return Err(error);
        }
        self.switch_policy(spec.settings.policy).await;
        self.bring_up(&name, origin, sectors, settled).await
    }

    /// Assigns addresses to a new volume, and claims the origin for it.
    async fn take_space(
        &self,
        id: VolumeId,
        blocks: u64,
        origin: &dyn Device,
        uuid: Uuid,
    ) -> Result<(), EngineError> {
        let space = self.store.add_space(id, blocks).await?;
        let claimed = self.claim(origin, uuid).await;
        if claimed.is_err() {
            self.store.remove_space(&space).await;
        }
        claimed
    }

    /// Switches the replacement policy. The new policy gets the cached blocks in no particular
    /// order; it learns only from later requests which ones are used.
    async fn switch_policy(&self, policy: ReplacementKind) {
        if self.cache.set_policy(policy) {
            for shard in 0..self.cache.store.index.shard_count() {
                self.cache.show_cached(shard);
                forebay_lane::yield_now().await;
            }
        }
    }

    /// Changes a volume's settings online. Leaving a mode that keeps dirty blocks drains the volume
    /// in the background; [`EngineLane::drain`] waits for that.
    ///
    /// # Errors
    /// The volume does not exist, the settings contradict each other, or the cache device fails.
    pub async fn set(self: &Rc<Self>, name: &str, settings: Settings) -> Result<(), EngineError> {
        self.change(name, |_| settings, || Ok(())).await
    }

    /// Changes settings like [`EngineLane::set`], to those that `next` derives from the present
    /// ones, without another change of the cache's volumes in between. `commit` is called right
    /// before the settings are stored.
    ///
    /// # Errors
    /// As for [`EngineLane::set`], or the command is cancelled.
    pub async fn change(
        self: &Rc<Self>,
        name: &str,
        next: impl FnOnce(Settings) -> Settings,
        commit: impl FnOnce() -> Result<(), Cancelled>,
    ) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        self.index_loaded().await?;
        let _turn = self.cache.settings_gate.enter().await;
        let settings = next(volume.settings());
        fitting(&settings)?;
        // The new settings of all volumes. None takes effect before all are durable.
        let mut wanted: Vec<(Arc<Volume>, Settings)> = Vec::new();
        for started in self.cache.volumes() {
            let own = Arc::ptr_eq(&started, &volume);
            let mut own_settings = if own { settings.clone() } else { started.settings() };
            own_settings.share(&settings);
            wanted.push((started, own_settings));
        }
        commit()?;
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

    /// Stores the settings of started volumes, and those that all volumes share.
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
        .map(drop)
    }

    /// Makes the acknowledged writes of all volumes durable, so that the cache may be abandoned.
    ///
    /// # Errors
    /// The cache device fails.
    pub async fn settle(self: &Rc<Self>) -> Result<(), EngineError> {
        self.store.commit().await?;
        Ok(())
    }

    /// Stops a volume: new requests are refused, those in flight end, and every acknowledged write
    /// becomes durable. Dirty blocks stay in the cache. `keep_stopped`: the volume does not start
    /// by itself the next time.
    ///
    /// # Errors
    /// The cache device or the origin fails, or the origin does not answer. The volume is stopped
    /// nevertheless; requests that wait for the origin end when it answers.
    pub async fn stop_volume(
        self: &Rc<Self>,
        name: &str,
        keep_stopped: bool,
    ) -> Result<(), EngineError> {
        let volume = self.cache.volume(name).ok_or_else(|| EngineError::no_volume(name))?;
        let early = planted::has(PlantedBug::EvidenceTooEarly);
        let early = if early { write_evidence(&volume.origin).await } else { None };
        let mut result = self.patiently(&volume, self.quiesce(&volume)).await;
        let (mut print, mut samples, mut left) = (None, None, Left::default());
        if let Some(view) = self.lane_volume(volume.id) {
            let syncing = view.clone();
            let sync = async move { OriginIo(&syncing).sync(WakeReason::Other).await };
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
            NoteKeeper(&view).note_the_end().await;
            // Barrier for invariant 12: fingerprint and evidence are taken of durable data only,
            // and after our own last write. Writeback may have written after the sync above. The
            // evidence comes first, so that a write during the reading of the content counts as
            // foreign.
            let look = async {
                OriginIo(&view).sync_device(WakeReason::Other).await.ok()?;
                let evidence = match &early {
                    Some(_) => early.clone(),
                    None => self.evidence_of(&volume.origin).await,
                };
                let read = async |place, buf| view.origin.read(place, buf, WakeReason::Other).await;
                Some(SampledOrigin::read(volume.size(), evidence, read).await)
            };
            if result.is_ok() && !volume.access.leaves_no_print.load(Ordering::Relaxed) {
                match self.patiently(&volume, look).await {
                    Ok(Some(look)) => {
                        (print, samples) = (look.fingerprint().ok(), Some(look.samples()));
                        left = look.left();
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
                record.left = std::mem::take(&mut left);
                // If no new samples could be taken, the untouched ones remain valid.
                record.samples = samples.take().or(record.samples.take());
                record.started = !keep_stopped;
            }
            Ok(())
        });
        let changed = changed.await;
        volume.waits.close();
        self.cache.detach(&volume);
        self.drop_view(volume.id);
        result.and(changed.map(drop))
    }

    /// Returns the system's evidence of writes to an origin whose writes have ended.
    async fn evidence_of(&self, origin: &Arc<dyn Device>) -> Option<Evidence> {
        let evidence = write_evidence(origin).await?;
        if evidence.exact {
            return Some(evidence);
        }
        // A later write in the same tick of the kernel's clock as our last write would not be
        // detected.
        self.lane.sleep(TICK).await;
        write_evidence(origin).await
    }

    /// Returns the error about dirty blocks that only a failed cache device has.
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

    /// Refuses new requests and waits for those in flight to end.
    async fn quiesce(&self, volume: &Arc<Volume>) {
        volume.set_state(VolumeState::Stopped);
        loop {
            // Wakes writes that wait for free space, so that they end.
            self.cache.store.space.notify_all();
            let changed = volume.writeback.progress.listen();
            if volume.stats.in_flight() == 0 {
                return;
            }
            either(changed, self.lane.sleep(Duration::from_millis(20))).await;
        }
    }

    /// Waits until the volume's writeback, and reclaim on its behalf, no longer use the origin:
    /// every task that acquires a range after this sees that the volume is removed.
    async fn wait_for_writeback(&self, volume: &Arc<Volume>) {
        let _all = volume.ranges.exclusive(0..u64::MAX).await;
    }

    /// Closes the cache: stops all volumes, makes everything durable, and marks the device clean.
    ///
    /// # Errors
    /// Some data could not be made durable. The cache is closed nevertheless.
    pub async fn close(self: &Rc<Self>) -> Result<(), EngineError> {
        let mut result = Ok(());
        if planted::has(PlantedBug::CleanTooEarly) {
            self.store.checkpoint(true).await?;
        }
        // All are stopped at once: an origin that does not answer then does not delay the other
        // volumes.
        let volumes = self.cache.volumes();
        let stops = volumes.iter().map(|volume| self.stop_volume(&volume.name, false));
        for stopped in join_all(stops).await {
            result = result.and(stopped);
        }
        self.cache.stopping.store(1, Ordering::SeqCst);
        self.cache.store.abandon_loading();
        self.cache.store.space_wanted.notify_all();
        // Background work may wait forever for an origin that does not answer.
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
        // Commit pending marks first, so that the checkpoint covers everything.
        self.store.commit().await?;
        if planted::has(PlantedBug::CleanTooEarly) || !self.cache.store.is_loaded() {
            // Without the whole index no checkpoint can be written: the next opening replays the
            // log over the existing one.
            return Ok(());
        }
        self.store.checkpoint(true).await?;
        Ok(())
    }
}
