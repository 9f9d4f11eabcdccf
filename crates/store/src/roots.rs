//! Reading superblock and volume table, each of which is there twice.

use std::sync::Arc;

use forebay_device::{Device, DeviceError, IoBuf, Queue};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::{PAGE, Superblock, SuperblockError, VolumeRecord, volume};

use crate::error::StoreError;
use crate::planted::{self, PlantedBug};
use crate::retry;

/// What the roots of a device say.
pub struct Roots {
    /// The superblock that counts.
    pub superblock: Superblock,
    /// The volume table.
    pub volumes: Vec<VolumeRecord>,
    /// Copies that could not be used, in words; nothing is lost by them.
    pub notes: Vec<String>,
    /// What those copies are to hold, and where they are.
    pub(crate) mend: Vec<(u64, Vec<u8>)>,
}

pub(crate) fn refused(device: &Arc<dyn Device>, what: impl std::fmt::Display) -> StoreError {
    StoreError::Refused(format!("{}: {what}", device.name()))
}

/// Reads the superblock that counts; the other copy serves if one cannot be read. `notes` gets what is
/// wrong with a copy.
///
/// # Errors
/// The device cannot be read, or is too small. The inner error: there is no superblock that this
/// program can use.
pub async fn read_superblock(
    device: &Arc<dyn Device>,
    queue: &Queue,
    notes: &mut Vec<String>,
) -> Result<Result<Superblock, SuperblockError>, StoreError> {
    if device.size() < COPY_B + PAGE as u64 {
        return Err(refused(device, "too small to be a cache device"));
    }
    let copy_a = retry::read(queue, COPY_A, PAGE).await;
    let copy_b = retry::read(queue, COPY_B, PAGE).await;
    let bytes =
        |copy: &'_ Result<IoBuf, DeviceError>| copy.as_ref().map_or(Vec::new(), |it| it.to_vec());
    let (a, b) = (bytes(&copy_a), bytes(&copy_b));
    let chosen = Superblock::choose(&a, &b);
    if chosen.is_err()
        && let (Err(error), _) | (_, Err(error)) = (copy_a, copy_b)
    {
        // The one that cannot be read may be the one that counts.
        return Err(error.into());
    }
    for (name, bytes, at) in [("first", &a, COPY_A), ("second", &b, COPY_B)] {
        if let Err(error) = Superblock::decode(bytes, at)
            && chosen.is_ok()
        {
            // A crash while one copy is written leaves it torn: that is what the other is for.
            let what =
                if bytes.is_empty() { "it cannot be read".into() } else { error.to_string() };
            notes.push(format!("the {name} copy of the superblock is not usable: {what}"));
        }
    }
    Ok(chosen)
}

/// Reads and checks superblock and volume table; writes nothing.
///
/// # Errors
/// The device is not a cache device that this program can use.
pub async fn read_roots(device: &Arc<dyn Device>, queue: &Queue) -> Result<Roots, StoreError> {
    let mut notes = Vec::new();
    let superblock = read_superblock(device, queue, &mut notes)
        .await?
        .map_err(|error| refused(device, error))?;
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
    let mut mend = Vec::new();
    if !notes.is_empty() {
        for at in [COPY_A, COPY_B] {
            let copy = retry::read(queue, at, PAGE).await;
            if !copy.is_ok_and(|bytes| Superblock::decode(&bytes, at).is_ok()) {
                mend.push((at, superblock.encode(at).to_vec()));
            }
        }
    }
    let volumes = read_volumes(device, queue, &superblock, &mut notes, &mut mend).await?;
    Ok(Roots { superblock, volumes, notes, mend })
}

/// Reads the volume table that the superblock means, in its own area or in the other one.
async fn read_volumes(
    device: &Arc<dyn Device>,
    queue: &Queue,
    superblock: &Superblock,
    notes: &mut Vec<String>,
    mend: &mut Vec<(u64, Vec<u8>)>,
) -> Result<Vec<VolumeRecord>, StoreError> {
    let (table, geometry) = (&superblock.volume_table, &superblock.geometry);
    let len = (table.len as usize).next_multiple_of(PAGE);
    let mut failure = None;
    let copies = if planted::has(PlantedBug::OneRootOnly) { 1 } else { 2 };
    for area in [table.area, 1 - table.area].into_iter().take(copies) {
        let offset = geometry.volume_areas[usize::from(area)];
        let found = match retry::read(queue, offset, len).await {
            Ok(bytes) => volume::decode(&bytes, table, &superblock.cache, geometry.block)
                .map(|volumes| (volumes, bytes))
                .map_err(|error| refused(device, error)),
            Err(error) => Err(error.into()),
        };
        match found {
            Ok((volumes, bytes)) => {
                if let Some(error) = failure {
                    let error: StoreError = error;
                    notes
                        .push(format!("the first copy of the volume table is not usable: {error}"));
                    let first = geometry.volume_areas[usize::from(table.area)];
                    mend.push((first, bytes.to_vec()));
                }
                return Ok(volumes);
            }
            Err(error) => failure = Some(failure.unwrap_or(error)),
        }
    }
    Err(failure.unwrap_or_else(|| refused(device, "there is no volume table")))
}
