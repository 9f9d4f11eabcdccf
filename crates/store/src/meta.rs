//! The roots: superblock and volume table.
//!
//! The superblock is the commit point of everything that is not in the log: what it refers to is
//! durable before it is written, and the copy that is overwritten is always the older one. Both roots
//! are there twice. A change writes four pages or tables, each durable before the next: the new table
//! in the area that is not in use, the older superblock, the table in the other area, the other
//! superblock. Whatever single one is lost at any moment, the change is there as a whole or not at all,
//! and nobody relies on it before all four are there.

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
use crate::planted::{self, PlantedBug};
use crate::store::{Store, VolumeSpace};

/// Feature bit in `compat`: the device failed while it was in use, and versions that it never took
/// may have been written to the origins since. Clean copies and samples of origins are dropped when
/// it is opened again.
pub const CLEAN_DISTRUSTED: u64 = 1;

/// Superblocks say that generations may be wide from this one on: it is durable long before one is.
const WIDE_FROM: u64 = forebay_format::MAX_NARROW_GENERATION / 2;

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

    /// Leaves out volume numbers up to this one, for tests near limits.
    pub fn skip_volume_ids(&self, next: u16) {
        self.meta.lock().next_volume_id = next;
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
    /// Writes a new superblock, both copies; `change` says how it differs from the present one.
    ///
    /// # Errors
    /// The device failed; one copy may be new.
    pub(crate) async fn write_superblock(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), StoreError> {
        let _turn = self.store().meta_gate.enter().await;
        self.write_roots(change, None).await?
    }

    /// Replaces the superblock, and with it the volume table if there is another `table`: its bytes, and
    /// the area into which they go first.
    ///
    /// # Errors
    /// The device failed and the change is not made. The inner error: the change is made, but each root
    /// is there only once.
    async fn write_roots(
        &self,
        change: impl FnOnce(&mut Superblock),
        table: Option<(&[u8], u8)>,
    ) -> Result<Result<(), StoreError>, StoreError> {
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
        if let Some((bytes, area)) = table {
            // Barrier for invariant 7: the table before the superblock that refers to it.
            self.write_root(self.table_offset(area), bytes, failed).await?;
        }
        let (first, second) = copies(&superblock);
        // Barrier for invariants 7 and 8: nothing may rely on the new roots before they are durable.
        self.write_root(first, &superblock.encode(first), failed).await?;
        *store.meta.lock() = superblock.clone();
        if planted::has(PlantedBug::RootsOnce) {
            return Ok(Ok(()));
        }
        let again = async {
            if let Some((bytes, area)) = table {
                // Barrier for invariant 7: the older superblock counts if the newer one is lost, until
                // the table that it refers to is overwritten; then the newer table counts without one.
                self.write_root(self.table_offset(1 - area), bytes, failed).await?;
            }
            self.write_root(second, &superblock.encode(second), failed).await
        };
        Ok(again.await)
    }

    fn table_offset(&self, area: u8) -> u64 {
        self.store().geometry.volume_areas[usize::from(area)]
    }

    /// Writes a root durably. `failed`: the device had failed before this change began.
    async fn write_root(&self, at: u64, bytes: &[u8], failed: bool) -> Result<(), StoreError> {
        self.queue().write(at, page_buffer(bytes)).await.map_err(|error| {
            self.store().fail(&error);
            StoreError::from(error)
        })?;
        self.sync_since(failed).await
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

    /// After the device has failed: sees to it that no clean copy and no sample of an origin is trusted
    /// when it is opened again, so that versions which it never took may go to the origin (invariants
    /// 6 and 15). `false`: not even that could be written.
    pub async fn distrust_clean(&self) -> bool {
        if self.store().distrust.load(Ordering::SeqCst) {
            return true;
        }
        let _turn = self.store().meta_gate.enter().await;
        // One copy is enough here, as the device has failed already.
        let written =
            self.write_roots(|superblock| superblock.compat |= CLEAN_DISTRUSTED, None).await;
        if written.is_ok() {
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
        let before = store.volumes();
        let mut volumes = before.clone();
        let (mut next, area, generation) = {
            let meta = store.meta.lock();
            (meta.next_volume_id, 1 - meta.volume_table.area, meta.generation)
        };
        let output = change(&mut volumes, &mut next)?;
        note_records(&before, &mut volumes, store.log.last_closed().0);
        let encoded = encode_what_fits(&mut volumes, |volumes| {
            volume::encode(volumes, &store.uuid, store.block_size())
        })
        .map_err(|error| StoreError::Refused(error.to_string()))?
        .named_by(generation + 1);
        let origins =
            volumes.iter().any(|volume| volume.identity.is_some() || volume.samples.is_some());
        let ordered = volumes.iter().any(|volume| Horizon::of(volume).is_some());
        let damaged = volumes.iter().any(|volume| Damage::of(volume).is_some());
        let reference = encoded.reference(area);
        let change = |superblock: &mut Superblock| {
            superblock.volume_table = reference;
            // The bits stand for what this very table has.
            superblock.incompat &= !(ORIGINS_KNOWN | ORDERED | DAMAGED);
            superblock.incompat |= if origins { ORIGINS_KNOWN } else { 0 };
            superblock.incompat |= if ordered { ORDERED } else { 0 };
            superblock.incompat |= if damaged { DAMAGED } else { 0 };
            superblock.next_volume_id = next;
        };
        // The change is made if one copy has it; that the device has failed is latched.
        let _ = self.write_roots(change, Some((&encoded.bytes, area))).await?;
        let gone = before.iter().map(|old| old.id);
        let gone = gone.filter(|id| volumes.iter().all(|volume| volume.id != *id));
        store.resting.lock().extend(gone);
        *store.volumes.lock() = volumes;
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
