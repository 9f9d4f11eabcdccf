//! The logical sectors that the clients of a volume see. They must stay the same, because partition
//! tables and many filesystems count in them and cannot be read with others (invariant 37).

use forebay_core::{SectorSize, Sectors};
use forebay_device::Device;
use forebay_format::VolumeRecord;
use forebay_format::volume::SECTOR_BYTES;

use crate::error::{EngineError, EngineErrorKind};

/// The sectors of a volume that is being started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct StartSectors {
    /// Sizes that clients see.
    pub(crate) sectors: Sectors,
    /// Whether the record is to have their size.
    pub(crate) recorded: bool,
}

/// Returns the sectors of a new volume.
///
/// # Errors
/// The size of the origin is no multiple of these sectors.
pub(crate) fn of_new(origin: &dyn Device, chosen: SectorSize) -> Result<Sectors, EngineError> {
    let sectors = origin.sectors();
    let sectors = chosen.bytes().map_or(sectors, |bytes| sectors.with_logical(bytes));
    fitting(origin, sectors)
}

fn fitting(origin: &dyn Device, sectors: Sectors) -> Result<Sectors, EngineError> {
    if origin.size().is_multiple_of(sectors.logical.into()) {
        return Ok(sectors);
    }
    Err(EngineError::new(
        EngineErrorKind::Usage,
        format!(
            "sector_size: the {} bytes of the origin {} are not in whole sectors of {} bytes; choose 512, or grow it",
            origin.size(),
            origin.name(),
            sectors.logical
        ),
    ))
}

/// Checks that the clients of a known volume see the same logical sectors as before, unless they
/// were `chosen` by the operator.
///
/// # Errors
/// [`EngineErrorKind::Refused`]: the origin has other sectors now, for example because the disk is
/// in another USB enclosure.
pub fn check_sectors(
    record: &VolumeRecord,
    origin: &dyn Device,
    chosen: SectorSize,
) -> Result<(), EngineError> {
    seen(record, origin, chosen).map(|_| ())
}

/// Like [`check_sectors`]. Returns the sectors.
pub(crate) fn seen(
    record: &VolumeRecord,
    origin: &dyn Device,
    chosen: SectorSize,
) -> Result<StartSectors, EngineError> {
    let own = origin.sectors();
    let seen = choose(sector_bytes(record), own, chosen).map_err(|before| {
        EngineError::new(
            EngineErrorKind::Refused,
            format!(
                "the origin {} has logical sectors of {} bytes, and the clients of '{name}' have seen {before}: its partitions could not be read. Connect it as it was, because USB enclosures can change this, or have clients see what they saw with 'forebay set {name} sector_size={before}'",
                origin.name(),
                own.logical,
                name = record.name,
            ),
        )
    })?;
    fitting(origin, seen.sectors)?;
    Ok(seen)
}

/// Chooses the sectors of a volume whose clients have seen sectors of `before` bytes, if that is
/// known, and whose origin has its `own`. Fails with the former ones if the sizes differ.
fn choose(before: Option<u64>, own: Sectors, chosen: SectorSize) -> Result<StartSectors, u64> {
    if let Some(bytes) = chosen.bytes() {
        return Ok(StartSectors { sectors: own.with_logical(bytes), recorded: true });
    }
    match before {
        Some(before) if before != u64::from(own.logical) => Err(before),
        Some(_) => Ok(StartSectors { sectors: own, recorded: true }),
        // Versions that recorded no size exported sectors of 512 bytes. If the origin has others,
        // 512 is kept but not recorded, so that it is not taken for a change of the origin.
        None => {
            let recorded = own.logical == Sectors::SMALL.logical;
            Ok(StartSectors { sectors: own.with_logical(Sectors::SMALL.logical), recorded })
        }
    }
}

/// Returns the sector size in a record.
fn sector_bytes(record: &VolumeRecord) -> Option<u64> {
    let mut tags = record.settings.iter();
    tags.find(|(tag, _)| *tag == SECTOR_BYTES).map(|(_, bytes)| *bytes)
}

/// Records the sectors that clients see.
pub(crate) fn record(sectors: Sectors, tags: &mut Vec<(u16, u64)>) {
    tags.retain(|(tag, _)| *tag != SECTOR_BYTES);
    tags.push((SECTOR_BYTES, sectors.logical.into()));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_of_an_older_version_keeps_the_sectors_that_it_had() {
        let large = Sectors::of(4096);
        let kept = StartSectors { sectors: large.with_logical(512), recorded: false };
        assert_eq!(choose(None, large, SectorSize::Auto), Ok(kept));
        let small = StartSectors { sectors: Sectors::SMALL, recorded: true };
        assert_eq!(choose(None, Sectors::SMALL, SectorSize::Auto), Ok(small));
        let chosen = StartSectors { sectors: large, recorded: true };
        assert_eq!(choose(None, large, SectorSize::Large), Ok(chosen));
    }

    #[test]
    fn a_record_has_one_size() {
        let mut tags = vec![(1, 2), (SECTOR_BYTES, 512)];
        record(Sectors::of(4096), &mut tags);
        assert_eq!(tags, [(1, 2), (SECTOR_BYTES, 4096)]);
    }
}
