//! Attaches a volume to its origin: the origin is recognised and outdated cached data is dropped
//! before requests and writeback begin.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{Cancelled, Identity, OriginBlock, SectorSize, Sectors};
use forebay_device::{Claiming, Device, Queue};
use forebay_format::volume::{Left, Samples};
use forebay_format::{Uuid, VolumeRecord};
use forebay_lane::{either, yield_now};
use forebay_policy::Past;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Damage, Entry};

use crate::background;
use crate::control::compare::{self, Compared};
use crate::control::recognise::{OriginCheck, Sign, Verdict, recognise};
use crate::control::samples::SampledOrigin;
use crate::control::sectors::{self, StartSectors};
use crate::control::verify::OnVerify;
use crate::error::{EngineError, EngineErrorKind, Obstacle};
use crate::lane::engine::EngineLane;
use crate::settings::settings_of;
use crate::state::dirty_set::DirtySet;
use crate::state::ledger::{self, Note};
use crate::state::volume::Volume;

/// Ranges of a note that are processed before other tasks of the lane run.
const RANGES_AT_ONCE: usize = 4096;

/// Returns the present identity of an origin, completed with the recorded parts that are unknown
/// now.
fn completed(now: Option<Identity>, record: &VolumeRecord) -> Option<Identity> {
    match (now, record.identity.clone()) {
        (Some(now), Some(before)) => Some(now.completed_by(&before)),
        (now, before) => now.or(before),
    }
}

/// Why a cache device is not trusted.
enum Distrust {
    /// A note says so.
    Noted(Note),
    /// A note exists but cannot be read.
    Unreadable,
}

impl EngineLane {
    /// Like [`EngineLane::attach_verified`], without a comparison of all blocks.
    ///
    /// # Errors
    /// See [`EngineLane::attach_with`].
    pub async fn attach(
        self: &Rc<Self>,
        name: &str,
        origin: Arc<dyn Device>,
        force: bool,
    ) -> Result<Arc<Volume>, EngineError> {
        self.attach_verified(name, origin, force, None).await
    }

    /// Attaches like [`EngineLane::attach_with`], with the sectors that the volume's settings on
    /// the cache device choose.
    ///
    /// # Errors
    /// See [`EngineLane::attach_with`].
    pub async fn attach_verified(
        self: &Rc<Self>,
        name: &str,
        origin: Arc<dyn Device>,
        force: bool,
        on_verify: Option<OnVerify<'_>>,
    ) -> Result<Arc<Volume>, EngineError> {
        let sector_size = settings_of(&self.record_of_stopped(name)?).sector_size;
        self.attach_with(name, origin, sector_size, force, on_verify, &|| Ok(())).await
    }

    /// Starts a known volume with its origin. If the origin has grown, the volume takes the new
    /// size, provided that the store was opened with space for it. With `on_verify` every clean
    /// block is compared with the origin first, and only blocks that differ are dropped, regardless
    /// of other evidence about the origin.
    ///
    /// # Errors
    /// - The origin is another device, or was changed since the volume left it. `force` accepts
    ///   it, keeps dirty data and drops clean data. Without dirty data, an origin that was written
    ///   elsewhere needs no force.
    /// - The volume may have lost data. `force` acknowledges that for this volume.
    /// - The origin is smaller than the volume, or has other logical sectors than clients have seen
    ///   and `sector_size` does not choose them. `force` does not change this.
    /// - A note lists dirty blocks that the cache device no longer has. `force` accepts the
    ///   origin's data.
    /// - A device cannot be read, or `on_verify` ends the comparison.
    /// - `commit`, which is called right before the volume table is written, returns that the
    ///   command was abandoned. The origin has not been accepted then.
    ///
    /// After the first three errors nothing has been written; after the others, clean blocks may
    /// have been dropped.
    pub async fn attach_with(
        self: &Rc<Self>,
        name: &str,
        origin: Arc<dyn Device>,
        sector_size: SectorSize,
        force: bool,
        on_verify: Option<OnVerify<'_>>,
        commit: &dyn Fn() -> Result<(), Cancelled>,
    ) -> Result<Arc<Volume>, EngineError> {
        let store = &self.cache.store;
        let record = self.record_of_stopped(name)?;
        if let Some(damage) = Damage::of(&record) {
            at_risk(name, damage, force)?;
        }
        let size = large_enough(&record, &*origin)?;
        let StartSectors { sectors, recorded } = sectors::seen(&record, &*origin, sector_size)?;
        let queue = self.context.open(&origin)?;
        let look = SampledOrigin::take(&origin, &queue, record.origin_bytes).await;
        let identity = origin.identity();
        let note = self.distrust_of(name, force)?;
        let distrusted = store.is_distrusted() || note.is_some();
        let (mut check, which) =
            self.check_origin(&record, &*origin, (&queue, &look), !distrusted, on_verify).await?;
        if !check.verdict.is_same() || note.is_some() || size > record.origin_bytes {
            self.index_loaded().await?;
        }
        if !check.verdict.is_same() {
            check.dropped = self.drop_clean(&record, &origin, &check.verdict, which, force).await?;
            // Barrier for invariant 12: the blocks dropped here stay dropped after the evidence
            // against them is overwritten in the volume table.
            self.store.sync_marks().await?;
        }
        if let Some(note) = &note {
            self.drop_what_is_outlived(&record, note, force).await?;
            self.store.sync_marks().await?;
        }
        // Barrier for invariant 12: claim the origin for this volume's UUID. An earlier owner then
        // sees a foreign UUID and distrusts its clean blocks. Our own invalidated blocks were
        // dropped durably above.
        self.claim(&*origin, record.uuid).await?;
        let settled = self.sync_origin(&origin).await?;
        let grown = size > record.origin_bytes && self.ready_to_grow(&record, size).await?;
        let size = if grown { size } else { record.origin_bytes };
        // The cache has not written to the origin since the samples were read, so the sync covers
        // them.
        let samples = match (settled, grown) {
            (false, _) => None,
            (true, false) => Some(look.samples()),
            (true, true) => Some(SampledOrigin::take(&origin, &queue, size).await.samples()),
        };
        // An origin recognised by its content may be on another device now, so its new identity is
        // recorded; one recognised by its identity keeps it.
        let anew = record.fingerprint.is_some() || !check.verdict.is_same();
        let identity = if anew { identity } else { completed(identity, &record) };
        // Barrier for invariant 12: if the command was given up, the origin may have been exchanged
        // since, and the consent of `force` does not cover the new one.
        commit()?;
        if note.is_some() {
            self.take_note_back(name).await?;
        }
        // From now on the cache writes to the origin. Barrier for invariant 12: the samples are
        // durable before the first write to the origin, which removes those that it touches.
        self.store
            .change_volumes(|volumes, _| {
                for volume in volumes.iter_mut().filter(|volume| volume.name == name) {
                    // Any damage has been acknowledged for this volume.
                    Damage::acknowledge(volume);
                    volume.fingerprint = None;
                    volume.left = Left::default();
                    volume.started = true;
                    volume.origin_bytes = size;
                    volume.identity.clone_from(&identity);
                    volume.samples.clone_from(&samples);
                    if recorded {
                        sectors::record(sectors, &mut volume.settings);
                    }
                }
                Ok(())
            })
            .await?;
        let volume = self.bring_up(name, origin, sectors, settled).await?;
        volume.checked.get_or_init(|| check);
        Ok(volume)
    }

    /// Returns the record of a volume that is not started.
    fn record_of_stopped(&self, name: &str) -> Result<VolumeRecord, EngineError> {
        if self.cache.volume(name).is_some() {
            return Err(EngineError::caused(
                EngineErrorKind::Refused,
                format!("the volume '{name}' is started already"),
                Obstacle::Started,
            ));
        }
        let mut records = self.cache.store.volumes().into_iter();
        records.find(|record| record.name == name).ok_or_else(|| EngineError::no_volume(name))
    }

    /// Checks whether an origin is in the state in which its volume left it. Returns the result,
    /// and, if all clean blocks were compared, those that differ. `trusted`: the record's samples
    /// and the cached copies are up to date.
    async fn check_origin(
        &self,
        record: &VolumeRecord,
        origin: &dyn Device,
        (queue, look): (&Queue, &SampledOrigin),
        trusted: bool,
        on_verify: Option<OnVerify<'_>>,
    ) -> Result<(OriginCheck, Option<Vec<OriginBlock>>), EngineError> {
        let mut verdict = recognise(record, look, origin, trusted)?;
        if planted::has(PlantedBug::AnyOriginWillDo) {
            verdict = Verdict::Same;
        }
        let compared = match on_verify {
            Some(on_verify) => {
                self.index_loaded().await?;
                self.compare_all(record, queue, on_verify).await?
            }
            None => self.compare_if_unclear(record, queue, &verdict, trusted).await?,
        };
        let differing = compared.differing.len() as u64;
        if verdict.is_same() && differing > 0 {
            // A block becomes clean only when the origin has it durably, and is forgotten durably
            // before the origin changes below it. So a crash alone causes no difference.
            let after_crash = record.fingerprint.is_none();
            verdict = Verdict::Changed(Sign::Blocks { after_crash });
        }
        let check = OriginCheck { verdict, compared: compared.blocks, differing, dropped: 0 };
        Ok((check, on_verify.map(|_| compared.differing)))
    }

    /// Compares some clean blocks with the origin, unless their copies or the origin are distrusted
    /// anyway, or it is known that nothing was written.
    async fn compare_if_unclear(
        &self,
        record: &VolumeRecord,
        origin: &Queue,
        verdict: &Verdict,
        trusted: bool,
    ) -> Result<Compared, EngineError> {
        if !trusted || !matches!(verdict, Verdict::Unclear(_)) {
            return Ok(Compared::default());
        }
        let regions = if record.fingerprint.is_some() { compare::FEW } else { compare::MORE };
        self.compare_recent(record, origin, regions).await
    }

    /// Drops the clean blocks of a volume whose origin has changed, if `force` or the verdict
    /// allows it; only `which`, if these are known. Returns their number. No other task changes
    /// these blocks, because the volume is not attached.
    async fn drop_clean(
        self: &Rc<Self>,
        record: &VolumeRecord,
        origin: &Arc<dyn Device>,
        verdict: &Verdict,
        which: Option<Vec<OriginBlock>>,
        force: bool,
    ) -> Result<u64, EngineError> {
        let Some(space) = self.cache.store.space_of(record.id) else { return Ok(0) };
        let (mut clean, mut dirty) = (0u64, 0u64);
        let mut count = |entry: &Entry| if entry.dirty { dirty += 1 } else { clean += 1 };
        let counted = self.store.visit(
            |_| true,
            |address, entry| {
                if space.block(address).is_some() {
                    count(entry);
                }
            },
        );
        counted.await;
        if !force {
            verdict.allow(&record.name, origin.name(), dirty)?;
        }
        let dropped = which.as_ref().map_or(clean, |which| which.len() as u64);
        tracing::warn!(
            volume = record.name,
            dropped,
            dirty,
            ?verdict,
            "the origin is not as it was left: clean blocks are dropped"
        );
        let memory = self.cache.memory().ghost;
        let forget = |block| {
            self.cache.store.forget(&space, block, |entry| !entry.dirty);
            memory.note(space.unique(block), Past::Invalidated);
        };
        match which {
            Some(which) => self.in_steps(&which, &mut 0, forget).await?,
            None => self.forget_where(&space, |_, entry| !entry.dirty, forget).await?,
        }
        Ok(dropped)
    }

    /// Returns the reason why the cache device is not trusted, if there is one. A note that cannot
    /// be read may contain such a reason, so it needs `force`.
    fn distrust_of(&self, name: &str, force: bool) -> Result<Option<Distrust>, EngineError> {
        let Some(ledger) = self.cache.ledger() else { return Ok(None) };
        match ledger.distrusts(name, self.cache.store.uuid()) {
            Ok(note) => Ok(note.map(Distrust::Noted)),
            Err(_) if force => Ok(Some(Distrust::Unreadable)),
            Err(error) => Err(EngineError::caused(
                EngineErrorKind::DataAtRisk,
                format!(
                    "the state directory has a note about '{name}' that cannot be read ({error}): its cache device may have failed, and have older data than was written; restore the state directory, or go on with 'forebay start --force {name}', which keeps the dirty blocks of the cache device"
                ),
                error,
            )),
        }
    }

    /// Drops cached blocks after the device failed while the volume was in use, except blocks that
    /// are dirty both in the index and in the note, if the note is readable. Noted blocks that are
    /// no longer dirty on the device are lost, which needs `force`.
    async fn drop_what_is_outlived(
        self: &Rc<Self>,
        record: &VolumeRecord,
        distrust: &Distrust,
        force: bool,
    ) -> Result<(), EngineError> {
        let store = &self.cache.store;
        let Some(space) = store.space_of(record.id) else { return Ok(()) };
        let (block, alignment) = (store.block_size(), u64::from(record.alignment));
        let blocks_of = |range: &Range<u64>| {
            block.block_of(range.start + alignment).0
                ..block.block_of(range.end.max(range.start + 1) - 1 + alignment).0 + 1
        };
        let mut was_dirty = DirtySet::default();
        let (noted, is_noted) = match distrust {
            Distrust::Noted(note) => (&note.dirty[..], true),
            Distrust::Unreadable => (&[][..], false),
        };
        for some in noted.chunks(RANGES_AT_ONCE) {
            some.iter().for_each(|range| was_dirty.insert_range(blocks_of(range)));
            yield_now().await;
        }
        let counts = |block: OriginBlock, entry: &Entry| {
            entry.dirty && (!is_noted || was_dirty.contains(block))
        };
        let (mut kept, mut outlived, mut held) = (0, 0u64, false);
        let mut see = |block, entry: &Entry| match counts(block, entry) {
            true => kept += 1,
            false => {
                outlived += 1;
                held = held || store.is_held(record.id, block);
            }
        };
        let seen = self.store.visit(
            |_| true,
            |address, entry| {
                if let Some(block) = space.block(address) {
                    see(block, entry);
                }
            },
        );
        seen.await;
        let lost = was_dirty.len().saturating_sub(kept);
        if lost > 0 && !force {
            let name = &record.name;
            return Err(EngineError::new(
                EngineErrorKind::DataAtRisk,
                format!(
                    "{lost} blocks of '{name}' were dirty when its cache device failed, and are not on it any more: 'forebay show --lost {name}' lists what was dirty; 'forebay start --force {name}' goes on with the origin's older data there"
                ),
            ));
        }
        tracing::warn!(
            volume = record.name,
            dropped = outlived,
            dirty = kept,
            lost,
            "the cache device failed when it was last in use: its outdated blocks are dropped"
        );
        if held {
            // Barrier for invariants 1 and 28: writeback writes held versions regardless of the
            // index, and the origin has newer data there. This precedes forgetting the blocks:
            // without them nothing would show after a crash that the order has ended. The volume is
            // put in order again automatically.
            self.store.leave_order(record.id).await?;
        }
        let forget = |block| _ = store.forget(&space, block, |_| true);
        self.forget_where(&space, |block, entry| !counts(block, entry), forget).await
    }

    /// Replaces the distrusting note: the outdated blocks are durably dropped, so the others are
    /// valid again.
    async fn take_note_back(&self, name: &str) -> Result<(), EngineError> {
        let Some(ledger) = self.cache.ledger() else { return Ok(()) };
        let cache = self.cache.store.uuid();
        let note = Note { cache, distrusted: false, exact: false, dirty: Vec::new() };
        Ok(ledger::write(&*ledger, name, note).await?)
    }

    /// Syncs the origin, because an earlier run may have left data in its write cache on which
    /// readers rely from now on (invariant 6). Returns whether that succeeded.
    async fn sync_origin(&self, origin: &Arc<dyn Device>) -> Result<bool, EngineError> {
        let queue = self.context.open(origin)?;
        let synced = queue.sync().await;
        if let Err(error) = &synced {
            // Cached data is still served (invariant 16); the first flush syncs again.
            tracing::warn!(%error, "the origin cannot be synced");
        }
        Ok(synced.is_ok())
    }

    /// Syncs a new origin, and takes its samples if that succeeded. Returns the samples, and
    /// whether the sync succeeded.
    pub(crate) async fn sample(
        &self,
        origin: &Arc<dyn Device>,
        size: u64,
    ) -> Result<(Option<Samples>, bool), EngineError> {
        if !self.sync_origin(origin).await? {
            return Ok((None, false));
        }
        let queue = self.context.open(origin)?;
        Ok((Some(SampledOrigin::take(origin, &queue, size).await.samples()), true))
    }

    /// Claims the origin for a volume, unless it is claimed already or cannot be written.
    ///
    /// A claim that is abandoned may be recorded late. That is safe: only a client that may still
    /// write to the origin can record it, and blocks that the volume may no longer serve are
    /// already dropped. The device withdraws such a claim if it can; otherwise the former volume of
    /// the origin takes it for the claim of another volume.
    ///
    /// # Errors
    /// If the claim cannot be recorded, or takes too long.
    pub(crate) async fn claim(&self, origin: &dyn Device, volume: Uuid) -> Result<(), EngineError> {
        if origin.holder() == Some(volume) || origin.for_reading_only() {
            return Ok(());
        }
        let Claiming { recorded, limit } = origin.claim(volume);
        let result = Cell::new(None);
        either(async { result.set(Some(recorded.await)) }, self.lane.sleep(limit)).await;
        match result.into_inner() {
            Some(recorded) => Ok(recorded?),
            None => Err(EngineError::new(
                EngineErrorKind::Failed,
                format!(
                    "the origin {} has not recorded for {} s which volume uses it: start the volume when it answers again",
                    origin.name(),
                    limit.as_secs()
                ),
            )),
        }
    }

    pub(crate) async fn bring_up(
        self: &Rc<Self>,
        name: &str,
        origin: Arc<dyn Device>,
        sectors: Sectors,
        settled: bool,
    ) -> Result<Arc<Volume>, EngineError> {
        let store = &self.cache.store;
        let records = store.volumes();
        let record = records
            .iter()
            .find(|record| record.name == name)
            .ok_or_else(|| EngineError::no_volume(name))?;
        let space = store.space_of(record.id).ok_or_else(|| EngineError::no_volume(name))?;
        let volume =
            Arc::new(Volume::new(record, (origin, sectors), space, self.lane.clock(), store));
        if settled {
            volume.syncs.earlier_run_is_durable();
        }
        if store.has_order(volume.id) {
            // Even if the order is being switched off, because that has to become durable first.
            volume.set_ordered(true);
        }
        if self.cache.ledger().is_none() {
            volume.intent.is_pointless();
        }
        // Entries that are loaded from here on are counted by the loading.
        let loaded = store.while_none_is_loaded(|| {
            if !store.is_loaded() {
                // Any region may have dirty blocks that are not loaded yet.
                (0..volume.dirty.regions()).for_each(|region| volume.intent.dirtied(region));
            }
            self.cache.expect_volume(volume.clone());
            store.loaded_shards()
        });
        for shard in loaded {
            store.index.visit_shard(shard, &mut |entry| entry.dirty, &mut |address, _| {
                if let Some(block) = space.block(address) {
                    volume.appended(&self.lane, block, None, true);
                }
            });
            yield_now().await;
        }
        // Checked before the first client (invariant 36): the origin may have become
        // write-protected since it was opened, and a new volume does not know that.
        volume.look_at_origin();
        self.cache.add_volume(volume.clone());
        let Some(view) = self.lane_volume(volume.id) else {
            self.cache.remove_volume(name);
            return Err(EngineError::new(
                EngineErrorKind::Failed,
                format!("the origin of '{name}' cannot be opened"),
            ));
        };
        self.cache.background_started();
        self.lane.spawn(background::writeback::run(view.clone(), Duration::ZERO));
        self.lane.spawn(background::upkeep::origin_syncs(view));
        Ok(volume)
    }
}

/// Refuses a volume that may have lost data, unless forced.
fn at_risk(name: &str, damage: Damage, force: bool) -> Result<(), EngineError> {
    if force {
        tracing::warn!(volume = name, %damage, "the volume starts by force, without the data that is lost");
        return Ok(());
    }
    Err(EngineError::caused(
        EngineErrorKind::DataAtRisk,
        format!(
            "the cache device is damaged: {damage}, and '{name}' may have had data in them; 'forebay start --force {name}' goes on with what is left, 'forebay delete --discard-dirty {name}' gives up what is not on the origin"
        ),
        Obstacle::Damaged(damage),
    ))
}

/// Returns the size of a device in bytes, rounded down to whole sectors.
pub(crate) fn usable(device: &dyn Device) -> u64 {
    device.size() / forebay_core::SECTOR_SIZE * forebay_core::SECTOR_SIZE
}

/// Returns the size of an origin in bytes.
///
/// # Errors
/// [`EngineErrorKind::Refused`]: the origin is smaller than the volume.
fn large_enough(record: &VolumeRecord, origin: &dyn Device) -> Result<u64, EngineError> {
    let size = usable(origin);
    if size >= record.origin_bytes {
        return Ok(size);
    }
    Err(EngineError::new(
        EngineErrorKind::Refused,
        format!(
            "the origin {} has {size} bytes, the volume '{}' was made for {}: this is another device, or it was truncated",
            origin.name(),
            record.name,
            record.origin_bytes
        ),
    ))
}
