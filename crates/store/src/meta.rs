//! The roots: superblock and volume table.
//!
//! The superblock is the commit point of everything that is not in the log: the structures that it
//! refers to are durable before it is written, and the older copy is always overwritten first. Both
//! roots exist twice. A change makes four writes, each durable before the next: the new table in
//! the unused area, the older superblock, the table in the other area, the other superblock. If any
//! single one of them is lost at any moment, the change is there as a whole or not at all, and
//! nothing relies on it before all four are durable.

use std::rc::Rc;
use std::sync::atomic::Ordering;

use forebay_core::{OriginBlock, VolumeId};
use forebay_device::IoBuf;
use forebay_format::superblock::{COPY_A, COPY_B, PROTECTED, WIDE_GENERATIONS};
use forebay_format::volume::{EncodedTable, Left};
use forebay_format::{Superblock, VolumeRecord, VolumeTableError, volume};

use crate::damage::note_records;
use crate::error::StoreError;
use crate::index::Address;
use crate::lane::StoreLane;
use crate::planted::{self, PlantedBug};
use crate::roots::describe;
use crate::store::{SpaceUse, Store, VolumeSpace};

/// Feature bit in `compat`: the device failed in use, and versions that it never received may have
/// been written to the origins since. Clean copies and samples of origins are dropped when it is
/// opened again.
pub const CLEAN_DISTRUSTED: u64 = 1;

/// Feature bit in `compat`: a part of the checkpoint could not be loaded while requests were
/// served, so that the next opening has to load it as a whole, and rebuild the index if need be.
pub(crate) const LOAD_AT_ONCE: u64 = 4;

/// Generation of the next segment from which superblocks announce wide generations. This is durable
/// long before the first wide generation is used.
const WIDE_FROM: u64 = forebay_format::MAX_NARROW_GENERATION / 2;

/// Returns the offsets of the two copies, in the order in which they are written.
fn copies(superblock: &Superblock) -> (u64, u64) {
    match superblock.generation.is_multiple_of(2) {
        true => (COPY_A, COPY_B),
        false => (COPY_B, COPY_A),
    }
}

/// Encodes the table of these volumes. If it is too large, evidence and samples of origins are left
/// out, those of the newest volume first: the volumes matter more than the samples that recognise
/// their origins.
fn encode_what_fits(
    volumes: &mut [VolumeRecord],
    encode: impl Fn(&[VolumeRecord]) -> Result<EncodedTable, VolumeTableError>,
) -> Result<EncodedTable, VolumeTableError> {
    loop {
        match encode(volumes) {
            Err(VolumeTableError::TooLarge(bytes)) => {
                if let Some(volume) = volumes.iter_mut().rfind(|volume| !volume.left.is_empty()) {
                    volume.left = Left::default();
                    continue;
                }
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

/// Returns a buffer with these bytes, padded with zeroes to whole pages.
pub(crate) fn page_buffer(bytes: &[u8]) -> IoBuf {
    let mut buf = IoBuf::zeroed(bytes.len().next_multiple_of(forebay_format::PAGE));
    buf[..bytes.len()].copy_from_slice(bytes);
    buf
}

impl Store {
    /// Returns the current volume table.
    pub fn volumes(&self) -> Vec<VolumeRecord> {
        self.volumes.lock().clone()
    }

    /// Returns the address range of a volume in the index.
    pub fn space_of(&self, id: VolumeId) -> Option<VolumeSpace> {
        self.spaces.lock().of(id)
    }

    /// Returns the volume of an address, and the block's number in it. For many addresses, see
    /// [`Store::spaces`].
    pub fn find_space(&self, address: Address) -> Option<(VolumeSpace, OriginBlock)> {
        self.spaces.lock().find(address)
    }

    /// Keeps the addresses of a volume from being reused: see [`SpaceUse`]. Returns `None` if the
    /// volume does not exist.
    pub fn use_space_of(&self, id: VolumeId) -> Option<SpaceUse> {
        self.spaces.lock().use_of(id)
    }

    /// Returns the number for a new volume; `next` is the counter that
    /// [`StoreLane::change_volumes`] passes on. Numbers are reused once all have been used; the
    /// number of a deleted volume rests until a checkpoint makes its records in the log obsolete.
    ///
    /// # Errors
    /// All numbers are in use or rest: see [`StoreLane::rest_volume_ids`].
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
            "so many volumes were deleted lately that their numbers cannot be used again yet: try again".into(),
        ))
    }

    /// Limit of resting numbers, half of all; above it a new volume waits for a checkpoint.
    const MOST_REST: usize = 1 << 15;

    /// Skips volume numbers below `next`, for tests near limits.
    pub fn skip_volume_ids(&self, next: u16) {
        self.meta.lock().next_volume_id = next;
    }
}

impl StoreLane {
    /// Writes a new superblock, both copies; `change` edits the current one.
    ///
    /// # Errors
    /// The device failed; one copy may already be the new one.
    pub(crate) async fn write_superblock(
        &self,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), StoreError> {
        let _turn = self.store().meta_gate.enter().await;
        self.write_roots(change, None).await?
    }

    /// Replaces the superblock, and with it the volume table if `table` is given: its bytes, and
    /// the area that is written first.
    ///
    /// # Errors
    /// The device failed and the change is not made. The inner error: the change is made, but the
    /// second copies are not.
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
            // Barrier for invariant 7: the table must be durable before a superblock refers to it.
            self.write_root(self.table_offset(area), bytes, failed).await?;
        }
        let (first, second) = copies(&superblock);
        // Barrier for invariants 7 and 8: the new roots must be durable before anything relies on
        // them.
        self.write_root(first, &superblock.encode(first), failed).await?;
        *store.meta.lock() = superblock.clone();
        if planted::has(PlantedBug::RootsOnce) {
            return Ok(Ok(()));
        }
        let again = async {
            if let Some((bytes, area)) = table {
                // Barrier for invariant 7: if the newer superblock is lost, the older one is
                // current until the table that it refers to is overwritten; then the newer table
                // names its superblock itself.
                self.write_root(self.table_offset(1 - area), bytes, failed).await?;
            }
            self.write_root(second, &superblock.encode(second), failed).await
        };
        Ok(again.await)
    }

    fn table_offset(&self, area: u8) -> u64 {
        self.store().geometry.volume_areas[usize::from(area)]
    }

    /// Writes a root durably. `failed`: the device had already failed when this change began.
    async fn write_root(&self, at: u64, bytes: &[u8], failed: bool) -> Result<(), StoreError> {
        self.queue().write(at, page_buffer(bytes)).await.map_err(|error| {
            self.store().fail(&error);
            StoreError::from(error)
        })?;
        self.sync_since(failed).await
    }

    /// Rewrites damaged copies of the roots. A write that the device refuses is skipped.
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
                tracing::warn!(%error, "a damaged copy of the superblock or the volume table cannot be rewritten");
            }
        }
        // Barrier for invariant 7: the next root may be written over the copy that is current now,
        // and a crash may tear it.
        self.sync_since(failed).await
    }

    /// Records, after the device has failed, that no clean copy and no sample of an origin can be
    /// trusted when it is opened again. Versions that the device never received may then be written
    /// to the origin (invariants 6 and 15). Returns `false` if this could not be written.
    pub async fn distrust_clean(&self) -> bool {
        if self.store().distrust.load(Ordering::SeqCst) {
            return true;
        }
        let _turn = self.store().meta_gate.enter().await;
        // One copy suffices here, as the device has failed already.
        let written =
            self.write_roots(|superblock| superblock.compat |= CLEAN_DISTRUSTED, None).await;
        if written.is_ok() {
            self.store().distrust.store(true, Ordering::SeqCst);
        }
        written.is_ok()
    }

    /// Replaces the volume table; `change` edits the list, and may take new volume numbers from the
    /// counter that it receives.
    ///
    /// # Errors
    /// The error that `change` returns, an impossible table, or a failure of the device; the table
    /// is then unchanged.
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
        let reference = encoded.reference(area);
        let change = |superblock: &mut Superblock| {
            superblock.volume_table = reference;
            describe(&volumes, superblock);
            superblock.next_volume_id = next;
        };
        // The change is made once one copy has it; a failure of the device is latched.
        let _ = self.write_roots(change, Some((&encoded.bytes, area))).await?;
        let gone = before.iter().map(|old| old.id);
        let gone = gone.filter(|id| volumes.iter().all(|volume| volume.id != *id));
        store.resting.lock().extend(gone);
        *store.volumes.lock() = volumes;
        Ok(output)
    }

    /// Makes sure that some volume numbers are free for [`Store::new_volume_id`]: writes a
    /// checkpoint if too many rest.
    ///
    /// # Errors
    /// The device failed.
    pub async fn rest_volume_ids(self: &Rc<Self>) -> Result<(), StoreError> {
        if self.store().resting.lock().len() < Store::MOST_REST {
            return Ok(());
        }
        self.checkpoint(false).await
    }
}
