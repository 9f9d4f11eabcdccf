//! The roots: superblock and volume table.
//!
//! The superblock is the commit point of everything that is not in the log: what it refers to is
//! durable before it is written, and the copy that is overwritten is always the older one. Once it
//! is durable, the other copy is brought up to date, and so is the other volume table: that is
//! *settling*. So there are two copies of both, except for a moment after each change.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use forebay_core::VolumeId;
use forebay_device::IoBuf;
use forebay_format::superblock::{
    COPY_A, COPY_B, DAMAGED, ORDERED, ORIGINS_KNOWN, PROTECTED, WIDE_GENERATIONS,
};
use forebay_format::volume::EncodedTable;
use forebay_format::{CheckSeed, Superblock, VolumeRecord, VolumeTableError, volume};

use crate::damage::{Damage, note_records};
use crate::error::StoreError;
use crate::lane::StoreLane;
use crate::ordered::Horizon;
use crate::store::{Store, VolumeSpace};

/// Feature bit in `compat`: the device failed while it was in use, and versions that it never took
/// may have been written to the origins since. Clean copies and samples of origins are dropped when
/// it is opened again.
pub const CLEAN_DISTRUSTED: u64 = 1;

/// Superblocks say that generations may be wide from this one on: it is durable long before one is.
const WIDE_FROM: u64 = forebay_format::MAX_NARROW_GENERATION / 2;

/// What is there only once.
#[derive(Default)]
pub(crate) struct Unsettled {
    superblock: bool,
    /// The volume table that counts.
    table: Option<Vec<u8>>,
}

/// Where a superblock goes first, and where it goes then.
fn copies(superblock: &Superblock) -> (u64, u64) {
    match superblock.generation.is_multiple_of(2) {
        true => (COPY_A, COPY_B),
        false => (COPY_B, COPY_A),
    }
}

/// The table of these volumes. If it is too large, samples of origins are left out, the newest
/// volume's first: volumes come before what recognises their origins.
fn encode_what_fits(
    volumes: &mut [VolumeRecord],
    encode: impl Fn(&[VolumeRecord]) -> Result<EncodedTable, VolumeTableError>,
) -> Result<EncodedTable, VolumeTableError> {
    loop {
        match encode(volumes) {
            Err(VolumeTableError::TooLarge(bytes)) => {
                let sampled = volumes.iter_mut().rfind(|volume| volume.samples.is_some());
                let Some(volume) = sampled else { return Err(VolumeTableError::TooLarge(bytes)) };
                tracing::warn!(
                    volume = volume.name,
                    "the volume table has no room for samples of its origin: after a crash it is recognised by its identity alone"
                );
                volume.samples = None;
            }
            result => return result,
        }
    }
}

/// A buffer with these bytes, padded with zeroes to whole pages.
pub(crate) fn page_buffer(bytes: &[u8]) -> IoBuf {
    let mut buf = IoBuf::zeroed(bytes.len().next_multiple_of(forebay_format::PAGE));
    buf[..bytes.len()].copy_from_slice(bytes);
    buf
}

impl Store {
    /// What the volume table says at the moment.
    pub fn volumes(&self) -> Vec<VolumeRecord> {
        self.volumes.lock().clone()
    }

    /// The part of the index that belongs to a volume.
    pub fn space_of(&self, id: VolumeId) -> Option<VolumeSpace> {
        self.spaces.lock().iter().find(|space| space.id == id).copied()
    }

    /// The number of a new volume; `next` is the counter that [`StoreLane::change_volumes`] gives. Numbers
    /// come again when all have been used. One that was in use rests until a checkpoint has taken the
    /// records of its volume out of the log.
    ///
    /// # Errors
    /// All numbers are in use or rest.
    pub fn new_volume_id(
        &self,
        volumes: &[VolumeRecord],
        next: &mut u16,
    ) -> Result<VolumeId, StoreError> {
        let resting = self.resting.lock();
        for _ in 0..=u16::MAX {
            let id = VolumeId(*next);
            *next = next.checked_add(1).unwrap_or(1);
            if !resting.contains(&id) && volumes.iter().all(|volume| volume.id != id) {
                return Ok(id);
            }
        }
        Err(StoreError::Refused(
            "so many volumes were deleted lately that their numbers cannot be used again yet: stop all volumes of this cache and start them again".into(),
        ))
    }

    pub(crate) fn add_space(&self, id: VolumeId, blocks: u64) -> Result<VolumeSpace, StoreError> {
        let mut spaces = self.spaces.lock();
        let base = spaces.iter().map(|space| space.base + space.blocks).max().unwrap_or(0);
        let room = 1u64 << self.index.geometry().key_bits();
        if base.checked_add(blocks).is_none_or(|end| end > room) {
            return Err(StoreError::Refused(format!(
                "the index of this cache was opened for {room} blocks of origins and has no room for another {blocks}: restart the daemon, which opens it anew"
            )));
        }
        let space = VolumeSpace { id, base, blocks, seed: CheckSeed::new(&self.uuid, id) };
        spaces.push(space);
        Ok(space)
    }
}

impl StoreLane {
    /// Writes a new superblock; `change` says how it differs from the present one.
    pub(crate) async fn write_superblock(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), StoreError> {
        let _turn = self.store().meta_gate.enter().await;
        self.write_superblock_inside(change).await
    }

    async fn write_superblock_inside(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), StoreError> {
        let store = self.store();
        let failed = store.health.failed();
        let mut superblock = store.meta.lock().clone();
        superblock.generation += 1;
        superblock.last_record = store.log.last_closed();
        superblock.compat |= PROTECTED;
        if store.segments.next_generation().0 >= WIDE_FROM {
            superblock.incompat |= WIDE_GENERATIONS;
        }
        change(&mut superblock);
        let (at, _) = copies(&superblock);
        self.write_root(at, page_buffer(&superblock.encode(at))).await?;
        // Barrier for invariants 7 and 8: nothing may rely on the new roots before they are durable.
        self.sync_since(failed).await?;
        *store.meta.lock() = superblock;
        store.unsettled.lock().superblock = true;
        Ok(())
    }

    async fn write_root(&self, at: u64, buf: IoBuf) -> Result<(), StoreError> {
        self.queue().write(at, buf).await.map_err(|error| {
            self.store().fail(&error);
            StoreError::from(error)
        })?;
        Ok(())
    }

    /// Writes what copies of the roots are to hold that cannot be used. A device that does not take it
    /// is left as it is.
    ///
    /// # Errors
    /// The device failed a sync.
    pub(crate) async fn mend_roots(&self, mend: &[(u64, Vec<u8>)]) -> Result<(), StoreError> {
        if mend.is_empty() {
            return Ok(());
        }
        let failed = self.store().health.failed();
        for (at, bytes) in mend {
            if let Err(error) = self.queue().write(*at, page_buffer(bytes)).await {
                tracing::warn!(%error, "a damaged copy of a root cannot be written");
            }
        }
        // Barrier for invariant 7: the next root may be written over the copy that counts now, and a
        // crash may tear it.
        self.sync_since(failed).await
    }

    /// Brings the other copy of the superblock up to date, and then the other volume table.
    ///
    /// # Errors
    /// The device failed; the copies that count are as they were.
    pub(crate) async fn settle_roots(&self) -> Result<(), StoreError> {
        let store = self.store();
        let _turn = store.meta_gate.enter().await;
        self.settle_superblock_inside().await?;
        let table = store.unsettled.lock().table.take();
        if let Some(table) = table {
            let area = 1 - store.meta.lock().volume_table.area;
            let offset = store.geometry.volume_areas[usize::from(area)];
            self.write_root(offset, page_buffer(&table)).await?;
        }
        Ok(())
    }

    async fn settle_superblock_inside(&self) -> Result<(), StoreError> {
        let store = self.store();
        if !std::mem::take(&mut store.unsettled.lock().superblock) {
            return Ok(());
        }
        let failed = store.health.failed();
        let (at, buf) = {
            let superblock = store.meta.lock();
            let (_, other) = copies(&superblock);
            (other, page_buffer(&superblock.encode(other)))
        };
        self.write_root(at, buf).await?;
        // Barrier for invariant 7: while one copy refers to it, the older table stays.
        self.sync_since(failed).await
    }

    /// Settles the roots later: nobody waits for it.
    fn settle_roots_soon(self: &Rc<Self>) {
        let this = self.clone();
        self.lane().spawn(async move {
            // A failure of the device is latched, and who relies on it is told.
            let _ = this.settle_roots().await;
        });
    }

    /// After the device has failed: sees to it that no clean copy and no sample of an origin is trusted
    /// when it is opened again, so that versions which it never took may go to the origin (invariants
    /// 6 and 15). `false`: not even that could be written.
    pub async fn distrust_clean(&self) -> bool {
        if self.store().distrust.load(Ordering::SeqCst) {
            return true;
        }
        let written =
            self.write_superblock(|superblock| superblock.compat |= CLEAN_DISTRUSTED).await;
        if written.is_ok() {
            // It is durable in one copy, whatever becomes of the other.
            let _ = self.settle_roots().await;
            self.store().distrust.store(true, Ordering::SeqCst);
        }
        written.is_ok()
    }

    /// Replaces the volume table; `change` edits the list, and may take new volume numbers from
    /// the counter that it is given.
    ///
    /// # Errors
    /// What `change` says, a table that is not possible, or the device's failure; the table is
    /// then as it was.
    pub async fn change_volumes<T>(
        self: &Rc<Self>,
        change: impl FnOnce(&mut Vec<VolumeRecord>, &mut u16) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let store = self.store();
        let _turn = store.meta_gate.enter().await;
        let failed = store.health.failed();
        // Changes may follow one another before the roots settle, and the older superblock refers to the
        // table that is overwritten now.
        self.settle_superblock_inside().await?;
        let before = store.volumes();
        let mut volumes = before.clone();
        let (mut next, area) = {
            let meta = store.meta.lock();
            (meta.next_volume_id, 1 - meta.volume_table.area)
        };
        let output = change(&mut volumes, &mut next)?;
        note_records(&before, &mut volumes, store.log.last_closed().0);
        let encoded = encode_what_fits(&mut volumes, |volumes| {
            volume::encode(volumes, &store.uuid, store.block_size())
        })
        .map_err(|error| StoreError::Refused(error.to_string()))?;
        let origins =
            volumes.iter().any(|volume| volume.identity.is_some() || volume.samples.is_some());
        let ordered = volumes.iter().any(|volume| Horizon::of(volume).is_some());
        let damaged = volumes.iter().any(|volume| Damage::of(volume).is_some());
        let offset = store.geometry.volume_areas[usize::from(area)];
        self.write_root(offset, page_buffer(&encoded.bytes)).await?;
        // Barrier for invariant 7: the table before the superblock that refers to it.
        self.sync_since(failed).await?;
        let reference = encoded.reference(area);
        self.write_superblock_inside(|superblock| {
            superblock.volume_table = reference;
            // The bits stand for what this very table has.
            superblock.incompat &= !(ORIGINS_KNOWN | ORDERED | DAMAGED);
            superblock.incompat |= if origins { ORIGINS_KNOWN } else { 0 };
            superblock.incompat |= if ordered { ORDERED } else { 0 };
            superblock.incompat |= if damaged { DAMAGED } else { 0 };
            superblock.next_volume_id = next;
        })
        .await?;
        let gone = before.iter().map(|old| old.id);
        let gone = gone.filter(|id| volumes.iter().all(|volume| volume.id != *id));
        store.resting.lock().extend(gone);
        store.unsettled.lock().table = Some(encoded.bytes);
        *store.volumes.lock() = volumes;
        self.settle_roots_soon();
        Ok(output)
    }

    /// Gives a new volume its part of the index.
    ///
    /// # Errors
    /// There is no room for it.
    pub fn add_space(&self, id: VolumeId, blocks: u64) -> Result<VolumeSpace, StoreError> {
        self.store().add_space(id, blocks)
    }

    /// Takes a deleted volume's blocks out of the index. Its number is not used again before a checkpoint,
    /// so its records in the log mean nothing from now on.
    pub fn remove_space(&self, space: &VolumeSpace) {
        self.store().end_ordered(space.id);
        self.store().purge(space);
        self.store().spaces.lock().retain(|other| other.id != space.id);
    }
}
