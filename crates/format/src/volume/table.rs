//! The table as a whole: header, checksum, and uniqueness among volumes.

use std::collections::HashSet;
use std::mem::{offset_of, size_of};

use forebay_core::BlockSize;
use uuid::Uuid;
use zerocopy::little_endian::U32;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{VolumeDefect, VolumeRecord};
use crate::layout::VOLUME_AREA_BYTES;
use crate::superblock::VolumeTableRef;
use crate::{PAGE, crc32c};

/// First bytes of a volume table.
pub const MAGIC: [u8; 8] = *b"FBVOLUME";
/// Maximum number of volumes in one cache.
pub const MAX_VOLUMES: usize = 256;

const CHECKSUM: usize = 8;
const CHECKSUM_FROM: usize = 12;
const NAMED_BY: usize = 36;

/// The start of the table as stored on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskTable {
    magic: [u8; 8],
    checksum: U32,
    len: U32,
    cache: [u8; 16],
    count: U32,
    named_by: U32,
}

const _: () = {
    assert!(size_of::<OnDiskTable>() == 40);
    assert!(offset_of!(OnDiskTable, len) == CHECKSUM_FROM);
    assert!(offset_of!(OnDiskTable, cache) == 16);
    assert!(offset_of!(OnDiskTable, count) == 32);
    assert!(offset_of!(OnDiskTable, named_by) == NAMED_BY);
};

/// Why a volume table is rejected, or cannot be written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VolumeTableError {
    /// The area contains no volume table.
    #[error("there is no volume table where the superblock says")]
    NotATable,
    /// Fewer bytes than needed.
    #[error("the volume table is cut off")]
    Truncated,
    /// The table is torn, damaged, or not the one that the superblock names.
    #[error("the volume table is damaged: its checksum does not match")]
    Checksum,
    /// The table is intact, but of another cache.
    #[error("the volume table belongs to another cache")]
    OtherCache,
    /// A volume with an impossible value.
    #[error("volume '{volume}' has an impossible value in its field '{field}'")]
    Volume {
        /// The volume's name, or its position in the table if the name cannot be used.
        volume: String,
        /// The field.
        field: &'static str,
    },
    /// The table's header has an impossible value.
    #[error("the volume table has an impossible value in its field '{0}'")]
    Absurd(&'static str),
    /// Two volumes with the same name, number or UUID.
    #[error("two volumes have the same {field}: {value}")]
    Duplicate {
        /// `name`, `id` or `uuid`.
        field: &'static str,
        /// The shared value.
        value: String,
    },
    /// Too many volumes.
    #[error("{0} volumes are too many for one cache; the most is {MAX_VOLUMES}")]
    TooMany(usize),
    /// The table does not fit its area.
    #[error(
        "the volume table has {0} bytes; the most is {VOLUME_AREA_BYTES}: shorten names or paths of origins, or remove volumes"
    )]
    TooLarge(usize),
}

/// An encoded volume table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EncodedTable {
    /// The bytes, padded to whole pages, for the start of a volume-table area.
    pub bytes: Vec<u8>,
    /// Length in bytes without the padding.
    pub len: u32,
    /// The checksum of the table itself.
    pub crc: u32,
}

impl EncodedTable {
    /// Stores the low 32 bits of the generation of the superblock that will name this table: if
    /// that superblock is lost, [`own_reference`] finds the table that it named.
    #[must_use]
    pub fn named_by(mut self, generation: u64) -> Self {
        self.bytes[NAMED_BY..NAMED_BY + 4].copy_from_slice(&(generation as u32).to_le_bytes());
        self.crc = crc32c(&self.bytes[CHECKSUM_FROM..self.len as usize]);
        self.bytes[CHECKSUM..CHECKSUM + 4].copy_from_slice(&self.crc.to_le_bytes());
        self
    }

    /// Returns the reference for the superblock once the bytes are durable in `area` (0 or 1).
    pub fn reference(&self, area: u8) -> VolumeTableRef {
        VolumeTableRef { area, len: self.len, crc: self.crc }
    }
}

/// Encodes the volume table of a cache with blocks of `block`.
///
/// # Errors
/// A volume has an impossible value, two volumes share a name, number or UUID, there are too many
/// volumes, or the table does not fit its area.
pub fn encode(
    volumes: &[VolumeRecord],
    cache: &Uuid,
    block: BlockSize,
) -> Result<EncodedTable, VolumeTableError> {
    check_all(volumes, block)?;
    let mut bytes = vec![0; size_of::<OnDiskTable>()];
    for volume in volumes {
        volume.encode_into(&mut bytes);
    }
    let len = bytes.len();
    if len as u64 > VOLUME_AREA_BYTES {
        return Err(VolumeTableError::TooLarge(len));
    }
    let mut head = OnDiskTable {
        magic: MAGIC,
        checksum: 0.into(),
        len: (len as u32).into(),
        cache: *cache.as_bytes(),
        count: (volumes.len() as u32).into(),
        named_by: 0.into(),
    };
    bytes[..size_of::<OnDiskTable>()].copy_from_slice(head.as_bytes());
    let crc = crc32c(&bytes[CHECKSUM_FROM..]);
    head.checksum = crc.into();
    bytes[..size_of::<OnDiskTable>()].copy_from_slice(head.as_bytes());
    bytes.resize(len.next_multiple_of(PAGE), 0);
    Ok(EncodedTable { bytes, len: len as u32, crc })
}

/// Returns the reference that the table at the start of `area` contains for itself, if it was
/// written for the superblock of `generation`; [`decode`] determines whether it is intact. Its
/// first page suffices.
pub fn own_reference(bytes: &[u8], area: u8, generation: u64) -> Option<VolumeTableRef> {
    let (head, _) = OnDiskTable::ref_from_prefix(bytes).ok()?;
    let fits = u64::from(head.len.get()) <= VOLUME_AREA_BYTES;
    let named = head.magic == MAGIC && head.named_by.get() == generation as u32;
    let reference = VolumeTableRef { area, len: head.len.get(), crc: head.checksum.get() };
    (named && fits).then_some(reference)
}

/// Reads the volume table that `reference` names from the start of its area. The bytes must reach
/// at least to its end.
///
/// # Errors
/// The bytes are not exactly that table, or could not have been written.
pub fn decode(
    bytes: &[u8],
    reference: &VolumeTableRef,
    cache: &Uuid,
    block: BlockSize,
) -> Result<Vec<VolumeRecord>, VolumeTableError> {
    use VolumeTableError::{Absurd, Checksum, NotATable, OtherCache, TooMany, Truncated};
    let magic = &bytes[..bytes.len().min(MAGIC.len())];
    if magic != &MAGIC[..magic.len()] {
        return Err(NotATable);
    }
    let bytes = bytes.get(..reference.len as usize).ok_or(Truncated)?;
    let (head, mut rest) = OnDiskTable::ref_from_prefix(bytes).map_err(|_| Truncated)?;
    let crc = crc32c(&bytes[CHECKSUM_FROM..]);
    if crc != head.checksum.get() || crc != reference.crc {
        return Err(Checksum);
    }
    if head.cache != *cache.as_bytes() {
        return Err(OtherCache);
    }
    if head.len.get() != reference.len {
        return Err(Absurd("len"));
    }
    let count = head.count.get() as usize;
    if count > MAX_VOLUMES {
        return Err(TooMany(count));
    }
    let mut volumes = Vec::with_capacity(count);
    for index in 0..count {
        let (volume, after) = VolumeRecord::decode(rest).map_err(|bad| match bad {
            VolumeDefect::Cut => Absurd("len"),
            VolumeDefect::Field(field) => {
                VolumeTableError::Volume { volume: index.to_string(), field }
            }
        })?;
        volumes.push(volume);
        rest = after;
    }
    if !rest.is_empty() {
        return Err(Absurd("len"));
    }
    check_all(&volumes, block)?;
    Ok(volumes)
}

fn check_all(volumes: &[VolumeRecord], block: BlockSize) -> Result<(), VolumeTableError> {
    if volumes.len() > MAX_VOLUMES {
        return Err(VolumeTableError::TooMany(volumes.len()));
    }
    let (mut ids, mut names, mut uuids) = (HashSet::new(), HashSet::new(), HashSet::new());
    for (index, volume) in volumes.iter().enumerate() {
        volume.check(block).map_err(|field| {
            let named = VolumeRecord::is_valid_name(&volume.name);
            let volume = if named { volume.name.clone() } else { index.to_string() };
            VolumeTableError::Volume { volume, field }
        })?;
        let duplicate = |field, value| Err(VolumeTableError::Duplicate { field, value });
        if !ids.insert(volume.id) {
            return duplicate("id", volume.id.to_string());
        }
        if !names.insert(volume.name.as_str()) {
            return duplicate("name", volume.name.clone());
        }
        if !uuids.insert(volume.uuid) {
            return duplicate("uuid", volume.uuid.to_string());
        }
    }
    Ok(())
}
