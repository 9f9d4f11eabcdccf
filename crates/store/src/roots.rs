//! Reading superblock and volume table, both of which exist twice.

use std::sync::Arc;

use forebay_device::{Device, DeviceError, IoBuf, Queue};
use forebay_format::superblock::{
    COPY_A, COPY_B, DAMAGED, ORDERED, ORIGINS_KNOWN, PROTECTED, VolumeTableRef,
};
use forebay_format::{PAGE, Superblock, SuperblockError, VolumeRecord, volume};

use crate::damage::Damage;
use crate::error::StoreError;
use crate::ordered::Horizon;
use crate::planted::{self, PlantedBug};
use crate::retry;

/// The roots of a device.
pub struct Roots {
    /// The current superblock.
    pub superblock: Superblock,
    /// The volume table.
    pub volumes: Vec<VolumeRecord>,
    /// Messages about copies that could not be used, without a loss.
    pub notes: Vec<String>,
    /// The content that these copies should have, with their offsets.
    pub(crate) mend: Vec<(u64, Vec<u8>)>,
}

pub(crate) fn refused(device: &Arc<dyn Device>, what: impl std::fmt::Display) -> StoreError {
    StoreError::Refused(format!("{}: {what}", device.name()))
}

/// The two copies of the superblock as they are read.
struct Copies([Result<IoBuf, DeviceError>; 2]);

impl Copies {
    async fn read(device: &Arc<dyn Device>, queue: &Queue) -> Result<Self, StoreError> {
        if device.size() < COPY_B + PAGE as u64 {
            return Err(refused(device, "too small to be a cache device"));
        }
        let copy_a = retry::read(queue, COPY_A, PAGE).await;
        Ok(Copies([copy_a, retry::read(queue, COPY_B, PAGE).await]))
    }

    fn bytes(&self, index: usize) -> &[u8] {
        self.0[index].as_ref().map_or(&[], |bytes| bytes)
    }

    fn decode(&self, index: usize) -> Result<Superblock, SuperblockError> {
        Superblock::decode(self.bytes(index), PLACES[index])
    }

    /// Returns the current superblock. Appends messages about bad copies to `notes`.
    fn choose(
        &self,
        notes: &mut Vec<String>,
    ) -> Result<Result<Superblock, SuperblockError>, StoreError> {
        let chosen = Superblock::choose(self.bytes(0), self.bytes(1));
        if chosen.is_err()
            && let Some(Err(error)) = self.0.iter().find(|copy| copy.is_err())
        {
            // The unreadable copy may be the current one.
            return Err(error.clone().into());
        }
        for (index, name) in ["first", "second"].into_iter().enumerate() {
            if let Err(error) = self.decode(index)
                && chosen.is_ok()
            {
                // A crash during the write of one copy leaves it torn; the other copy covers that
                // case.
                let unread = self.0[index].is_err();
                let what = if unread { "it cannot be read".into() } else { error.to_string() };
                notes.push(format!("the {name} copy of the superblock is not usable: {what}"));
            }
        }
        Ok(chosen)
    }

    /// Returns the previous superblock, if `newest` may be part of an incomplete change on which
    /// nothing relies yet: its writer keeps the previous superblock and its table until both are
    /// replaced.
    fn before(&self, newest: &Superblock) -> Option<Superblock> {
        let both = [self.decode(0).ok()?, self.decode(1).ok()?];
        let mut older = both.into_iter().filter(|one| one.generation + 1 == newest.generation);
        older.next().filter(|older| older.compat & newest.compat & PROTECTED != 0)
    }
}

/// Offsets of the copies of the superblock.
const PLACES: [u64; 2] = [COPY_A, COPY_B];

/// Reads the current superblock; one unreadable copy is tolerated. Messages about bad copies are
/// added to `notes`.
///
/// # Errors
/// The device cannot be read, or is too small. The inner error: there is no superblock that this
/// program can use.
pub async fn read_superblock(
    device: &Arc<dyn Device>,
    queue: &Queue,
    notes: &mut Vec<String>,
) -> Result<Result<Superblock, SuperblockError>, StoreError> {
    Copies::read(device, queue).await?.choose(notes)
}

/// Reads and checks superblock and volume table; writes nothing.
///
/// # Errors
/// The device is not a cache device that this program can use.
pub async fn read_roots(device: &Arc<dyn Device>, queue: &Queue) -> Result<Roots, StoreError> {
    let mut notes = Vec::new();
    let copies = Copies::read(device, queue).await?;
    let mut superblock = copies.choose(&mut notes)?.map_err(|error| refused(device, error))?;
    if superblock.geometry.device_bytes > device.size() {
        return Err(refused(
            device,
            format!(
                "the cache was made on a device of {} bytes, and this one has {}",
                superblock.geometry.device_bytes,
                device.size()
            ),
        ));
    }
    let tables = Tables { device, queue };
    let mut table = tables.find(&superblock).await;
    if table.is_err() && !planted::has(PlantedBug::OneRootOnly) {
        if let Some(older) = copies.before(&superblock)
            && let Ok(found) = tables.find(&older).await
        {
            notes.push(
                "the last change of the volume table was incomplete and is undone; nothing relied on it yet".into(),
            );
            (superblock, table) = (older, Ok(found));
        } else if let Some(next) = tables.next(&superblock).await {
            table = tables.find(&next).await;
            superblock = next;
        }
    }
    let FoundTable { volumes, mend: tables, note } = table?;
    notes.extend(note);
    let mut mend = Vec::new();
    for (index, at) in PLACES.into_iter().enumerate() {
        // A copy of the same generation or an older one stays: the next change overwrites it.
        let usable = copies.decode(index);
        if !usable.is_ok_and(|copy| copy.generation <= superblock.generation) {
            mend.push((at, superblock.encode(at).to_vec()));
        }
    }
    mend.extend(tables);
    Ok(Roots { superblock, volumes, notes, mend })
}

/// Sets the bits of a superblock that describe the volume table that it names.
pub(crate) fn describe(volumes: &[VolumeRecord], superblock: &mut Superblock) {
    let origins = |volume: &VolumeRecord| {
        volume.identity.is_some() || volume.samples.is_some() || !volume.left.is_empty()
    };
    let has = |any: bool, bit| if any { bit } else { 0 };
    superblock.incompat &= !(ORIGINS_KNOWN | ORDERED | DAMAGED);
    superblock.incompat |= has(volumes.iter().any(origins), ORIGINS_KNOWN)
        | has(volumes.iter().any(|volume| Horizon::of(volume).is_some()), ORDERED)
        | has(volumes.iter().any(|volume| Damage::of(volume).is_some()), DAMAGED);
}

/// A volume table that was found.
struct FoundTable {
    volumes: Vec<VolumeRecord>,
    /// The copies that differ from this table and must be rewritten.
    mend: Vec<(u64, Vec<u8>)>,
    note: Option<String>,
}

/// Reader of volume tables.
struct Tables<'a> {
    device: &'a Arc<dyn Device>,
    queue: &'a Queue,
}

impl Tables<'_> {
    /// Finds the volume table that a superblock names, in its own area or in the other one.
    async fn find(&self, superblock: &Superblock) -> Result<FoundTable, StoreError> {
        let table = &superblock.volume_table;
        let first = self.read(superblock, table, table.area).await;
        let second = self.read(superblock, table, 1 - table.area).await;
        let second = second.and_then(|found| match planted::has(PlantedBug::OneRootOnly) {
            true => Err(refused(self.device, "the second copy is not looked at")),
            false => Ok(found),
        });
        let place = |area: u8| superblock.geometry.volume_areas[usize::from(area)];
        let (found, lost, note) = match (first, second) {
            (Ok(found), Ok(_)) => (found, None, None),
            (Ok(found), Err(_)) => (found, Some(1 - table.area), None),
            (Err(error), Ok(found)) => {
                let note = format!("the first copy of the volume table is not usable: {error}");
                (found, Some(table.area), Some(note))
            }
            (Err(error), Err(_)) => return Err(error),
        };
        let (volumes, bytes) = found;
        let mend = lost.map(|area| (place(area), bytes.to_vec())).into_iter().collect();
        Ok(FoundTable { volumes, mend, note })
    }

    /// Returns the successor of this superblock, lost or not yet written, if a volume table says
    /// that the successor names it. Needed when that table has overwritten the one that this
    /// superblock names, or the latter is lost.
    async fn next(&self, superblock: &Superblock) -> Option<Superblock> {
        let generation = superblock.generation + 1;
        for area in [0, 1] {
            let offset = superblock.geometry.volume_areas[usize::from(area)];
            let Ok(start) = retry::read(self.queue, offset, PAGE).await else { continue };
            let reference = volume::own_reference(&start, area, generation);
            let Some(volume_table) = reference else { continue };
            if let Ok((volumes, _)) = self.read(superblock, &volume_table, area).await {
                let mut next = Superblock { volume_table, generation, ..superblock.clone() };
                describe(&volumes, &mut next);
                return Some(next);
            }
        }
        None
    }

    async fn read(
        &self,
        superblock: &Superblock,
        table: &VolumeTableRef,
        area: u8,
    ) -> Result<(Vec<VolumeRecord>, IoBuf), StoreError> {
        let offset = superblock.geometry.volume_areas[usize::from(area)];
        let bytes =
            retry::read(self.queue, offset, (table.len as usize).next_multiple_of(PAGE)).await?;
        let volumes = volume::decode(&bytes, table, &superblock.cache, superblock.geometry.block)
            .map_err(|error| refused(self.device, error))?;
        Ok((volumes, bytes))
    }
}
