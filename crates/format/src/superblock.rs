//! The superblock: two copies; the valid one with the higher generation is current.

use std::mem::{offset_of, size_of};

use forebay_core::{BlockSize, RecordNumber};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::checkpoint::CheckpointRef;
use crate::geometry::Geometry;
pub use crate::geometry::{COPY_A, COPY_B};
use crate::{MAX_COUNT, PAGE, crc32c};
use accepted::OnDiskAccepted;
pub use accepted::{AcceptedLog, MAX_LEFT_OUT, MAX_TORN};

mod accepted;

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"FOREBAY1";
/// The format's version.
pub const VERSION: u32 = 1;
/// Feature bit in `compat`: segments begin with openings, checkpoints are followed by parity, and
/// superblock and volume table are written twice. A reader must not rely on openings and parity:
/// both can be missing.
pub const PROTECTED: u64 = 2;
/// Feature bit in `incompat`: the volume table contains identities or samples of origins.
pub const ORIGINS_KNOWN: u64 = 1;
/// Feature bit in `incompat`: a volume is in order: its origin receives versions in the order of
/// flushes.
pub const ORDERED: u64 = 2;
/// Feature bit in `incompat`: generations of segments may be beyond 31 bits.
pub const WIDE_GENERATIONS: u64 = 4;
/// Feature bit in `incompat`: a volume may have lost data, and its operator has not acknowledged
/// that.
pub const DAMAGED: u64 = 8;
/// Feature bit in `incompat`: there is an [`AcceptedLog`].
pub const ACCEPTED: u64 = 16;
/// The `incompat` bits that this program knows; with any other the device must not be used.
pub const KNOWN_INCOMPAT: u64 = ORIGINS_KNOWN | ORDERED | WIDE_GENERATIONS | DAMAGED | ACCEPTED;
/// The `ro_compat` bits that this program knows; with any other the device must not be written to.
/// None is defined yet.
pub const KNOWN_RO_COMPAT: u64 = 0;

const CLEAN_SHUTDOWN: u32 = 1;
const NO_CHECKPOINT: u32 = u32::MAX;
const CHECKSUM_AT: usize = PAGE - 4;

/// The superblock as stored on the device.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskSuperblock {
    magic: [u8; 8],
    version: U32,
    flags: U32,
    compat: U64,
    incompat: U64,
    ro_compat: U64,
    cache: [u8; 16],
    generation: U64,
    own_offset: U64,
    device_bytes: U64,
    block_size: U32,
    granule: U32,
    segment_bytes: U64,
    segments_offset: U64,
    segment_count: U32,
    next_volume_id: U16,
    reserved_a: [u8; 2],
    volume_area_offsets: [U64; 2],
    volume_area_bytes: U64,
    volume_table_area: U32,
    volume_table_len: U32,
    volume_table_crc: U32,
    checkpoint_area: U32,
    checkpoint_area_offsets: [U64; 2],
    checkpoint_area_bytes: U64,
    checkpoint_len: U64,
    checkpoint_number: U64,
    checkpoint_header_crc: U32,
    reserved_b: [u8; 4],
    last_record: U64,
    accepted: OnDiskAccepted,
    reserved_c: [u8; 780],
    checksum: U32,
}

const _: () = {
    assert!(size_of::<OnDiskSuperblock>() == PAGE);
    assert!(offset_of!(OnDiskSuperblock, version) == 8);
    assert!(offset_of!(OnDiskSuperblock, flags) == 12);
    assert!(offset_of!(OnDiskSuperblock, compat) == 16);
    assert!(offset_of!(OnDiskSuperblock, cache) == 40);
    assert!(offset_of!(OnDiskSuperblock, generation) == 56);
    assert!(offset_of!(OnDiskSuperblock, own_offset) == 64);
    assert!(offset_of!(OnDiskSuperblock, device_bytes) == 72);
    assert!(offset_of!(OnDiskSuperblock, block_size) == 80);
    assert!(offset_of!(OnDiskSuperblock, segment_bytes) == 88);
    assert!(offset_of!(OnDiskSuperblock, segments_offset) == 96);
    assert!(offset_of!(OnDiskSuperblock, segment_count) == 104);
    assert!(offset_of!(OnDiskSuperblock, next_volume_id) == 108);
    assert!(offset_of!(OnDiskSuperblock, volume_area_offsets) == 112);
    assert!(offset_of!(OnDiskSuperblock, volume_area_bytes) == 128);
    assert!(offset_of!(OnDiskSuperblock, volume_table_area) == 136);
    assert!(offset_of!(OnDiskSuperblock, checkpoint_area) == 148);
    assert!(offset_of!(OnDiskSuperblock, checkpoint_area_offsets) == 152);
    assert!(offset_of!(OnDiskSuperblock, checkpoint_area_bytes) == 168);
    assert!(offset_of!(OnDiskSuperblock, checkpoint_len) == 176);
    assert!(offset_of!(OnDiskSuperblock, checkpoint_number) == 184);
    assert!(offset_of!(OnDiskSuperblock, checkpoint_header_crc) == 192);
    assert!(offset_of!(OnDiskSuperblock, last_record) == 200);
    assert!(offset_of!(OnDiskSuperblock, accepted) == 208);
    assert!(offset_of!(OnDiskSuperblock, checksum) == CHECKSUM_AT);
};

/// Why a superblock is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SuperblockError {
    /// The magic is missing.
    #[error("this is not a Forebay cache device: there is no superblock")]
    NotForebay,
    /// Fewer bytes than a superblock has.
    #[error("the superblock is cut off")]
    Truncated,
    /// The bytes are damaged, or were written in part.
    #[error("the superblock is damaged: its checksum does not match")]
    Checksum,
    /// A version of the format that this program does not know.
    #[error("the cache device has format version {0}; this program knows version {VERSION} only")]
    Version(u32),
    /// Incompatible features that this program does not know.
    #[error(
        "the cache device uses features that this program does not know (bits {0:#x}); use a newer program"
    )]
    Incompatible(u64),
    /// A valid superblock for another position: a part of a device was copied.
    #[error(
        "the superblock at byte {at} was written for byte {own}: this is a copy of a part of another device"
    )]
    Misplaced {
        /// Offset at which the superblock was found, in bytes.
        at: u64,
        /// Offset that the superblock records as its own, in bytes.
        own: u64,
    },
    /// A field with an impossible value under a valid checksum.
    #[error("the superblock has an impossible value in its field '{0}'")]
    Absurd(&'static str),
    /// The two copies belong to two caches: formatting was interrupted.
    #[error(
        "the two superblock copies belong to different caches ({0} and {1}): formatting was interrupted, format the device again"
    )]
    Mixed(Uuid, Uuid),
}

/// The current volume table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeTableRef {
    /// Number of the area: 0 or 1.
    pub area: u8,
    /// Length in bytes, without the padding to whole pages.
    pub len: u32,
    /// The checksum of the table itself.
    pub crc: u32,
}

/// The root of all structures on a cache device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The cache's identity; every structure on the device repeats it.
    pub cache: Uuid,
    /// Incremented with every superblock; the copy with the higher generation is current.
    pub generation: u64,
    /// Features that any program may ignore.
    pub compat: u64,
    /// Features that a program must know to use the device.
    pub incompat: u64,
    /// Features that a program must know to write to the device.
    pub ro_compat: u64,
    /// The layout of the device.
    pub geometry: Geometry,
    /// The current volume table.
    pub volume_table: VolumeTableRef,
    /// The current checkpoint. `None` before the first.
    pub checkpoint: Option<CheckpointRef>,
    /// Whether the last user shut down cleanly. Only a hint that there is nothing to recover.
    pub clean_shutdown: bool,
    /// The number of the next volume, unless it is in use.
    pub next_volume_id: u16,
    /// The highest record number when this superblock was written. Informational: recovery does not
    /// use it.
    pub last_record: RecordNumber,
    /// The part of the log since the checkpoint that recoveries accepted; set with
    /// [`Superblock::accept`].
    pub accepted: Option<AcceptedLog>,
}

impl Superblock {
    /// Sets the accepted part of the log, which must fit: see [`AcceptedLog::fits`].
    pub fn accept(&mut self, accepted: Option<AcceptedLog>) {
        self.incompat &= !ACCEPTED;
        self.incompat |= if accepted.is_some() { ACCEPTED } else { 0 };
        self.accepted = accepted;
    }

    /// Returns the 4096 bytes of the copy that is to be written at `own_offset`.
    pub fn encode(&self, own_offset: u64) -> [u8; PAGE] {
        let geometry = &self.geometry;
        let checkpoint =
            self.checkpoint.unwrap_or(CheckpointRef { area: 0, len: 0, header_crc: 0, number: 0 });
        let raw = OnDiskSuperblock {
            magic: MAGIC,
            version: VERSION.into(),
            flags: if self.clean_shutdown { CLEAN_SHUTDOWN } else { 0 }.into(),
            compat: self.compat.into(),
            incompat: self.incompat.into(),
            ro_compat: self.ro_compat.into(),
            cache: *self.cache.as_bytes(),
            generation: self.generation.into(),
            own_offset: own_offset.into(),
            device_bytes: geometry.device_bytes.into(),
            block_size: (geometry.block.bytes() as u32).into(),
            granule: (geometry.granule() as u32).into(),
            segment_bytes: geometry.segment_bytes.into(),
            segments_offset: geometry.segments_offset.into(),
            segment_count: geometry.segment_count.into(),
            next_volume_id: self.next_volume_id.into(),
            reserved_a: [0; 2],
            volume_area_offsets: geometry.volume_areas.map(U64::new),
            volume_area_bytes: geometry.volume_area_bytes.into(),
            volume_table_area: u32::from(self.volume_table.area).into(),
            volume_table_len: self.volume_table.len.into(),
            volume_table_crc: self.volume_table.crc.into(),
            checkpoint_area: self
                .checkpoint
                .map_or(NO_CHECKPOINT, |reference| u32::from(reference.area))
                .into(),
            checkpoint_area_offsets: geometry.checkpoint_areas.map(U64::new),
            checkpoint_area_bytes: geometry.checkpoint_area_bytes.into(),
            checkpoint_len: checkpoint.len.into(),
            checkpoint_number: checkpoint.number.into(),
            checkpoint_header_crc: checkpoint.header_crc.into(),
            reserved_b: [0; 4],
            last_record: self.last_record.0.into(),
            accepted: match &self.accepted {
                Some(accepted) => OnDiskAccepted::new(accepted),
                None => OnDiskAccepted::new_zeroed(),
            },
            reserved_c: [0; 780],
            checksum: 0.into(),
        };
        let mut bytes = [0; PAGE];
        bytes.copy_from_slice(raw.as_bytes());
        seal(&mut bytes);
        bytes
    }

    /// Reads the copy that was found at `at` bytes from the start of the device.
    ///
    /// # Errors
    /// The bytes are not a superblock that this program wrote or could have written there.
    pub fn decode(bytes: &[u8], at: u64) -> Result<Superblock, SuperblockError> {
        let magic = &bytes[..bytes.len().min(MAGIC.len())];
        if magic != &MAGIC[..magic.len()] {
            return Err(SuperblockError::NotForebay);
        }
        let (raw, _) =
            OnDiskSuperblock::ref_from_prefix(bytes).map_err(|_| SuperblockError::Truncated)?;
        if crc32c(&raw.as_bytes()[..CHECKSUM_AT]) != raw.checksum.get() {
            return Err(SuperblockError::Checksum);
        }
        if raw.version.get() != VERSION {
            return Err(SuperblockError::Version(raw.version.get()));
        }
        let unknown = raw.incompat.get() & !KNOWN_INCOMPAT;
        if unknown != 0 {
            return Err(SuperblockError::Incompatible(unknown));
        }
        if raw.own_offset.get() != at {
            return Err(SuperblockError::Misplaced { at, own: raw.own_offset.get() });
        }
        raw.fields().map_err(SuperblockError::Absurd)
    }

    /// Returns the current one of the copies read at [`COPY_A`] and [`COPY_B`]: the valid copy with
    /// the higher generation.
    ///
    /// # Errors
    /// Both copies are invalid, they belong to different caches, or one is intact with an unknown
    /// version or unknown features: a newer program has then used the device, and the other copy is
    /// out of date.
    pub fn choose(copy_a: &[u8], copy_b: &[u8]) -> Result<Superblock, SuperblockError> {
        use SuperblockError::{Incompatible, Mixed, Version};
        match (Self::decode(copy_a, COPY_A), Self::decode(copy_b, COPY_B)) {
            (Err(newer @ (Version(_) | Incompatible(_))), _)
            | (_, Err(newer @ (Version(_) | Incompatible(_)))) => Err(newer),
            (Ok(a), Ok(b)) if a.cache != b.cache => Err(Mixed(a.cache, b.cache)),
            (Ok(a), Ok(b)) => Ok(if b.generation > a.generation { b } else { a }),
            (Ok(one), Err(_)) | (Err(_), Ok(one)) => Ok(one),
            // The error of a copy with the magic is more informative than that of one without.
            (Err(SuperblockError::NotForebay), Err(error)) | (Err(error), Err(_)) => Err(error),
        }
    }

    /// Returns whether the device may be read but not written: it has features that this program
    /// would have to know to write.
    pub fn is_read_only(&self) -> bool {
        self.ro_compat & !KNOWN_RO_COMPAT != 0
    }
}

impl OnDiskSuperblock {
    fn fields(&self) -> Result<Superblock, &'static str> {
        let check = |good: bool, field| if good { Ok(()) } else { Err(field) };
        check(self.flags.get() & !CLEAN_SHUTDOWN == 0, "flags")?;
        check(self.cache != [0; 16], "cache")?;
        check(self.generation.get() < MAX_COUNT, "generation")?;
        check(self.last_record.get() < MAX_COUNT, "last_record")?;
        let block = BlockSize::new(u64::from(self.block_size.get())).ok_or("block_size")?;
        check(u64::from(self.granule.get()) == block.granule(), "granule")?;
        let geometry = Geometry {
            device_bytes: self.device_bytes.get(),
            block,
            segment_bytes: self.segment_bytes.get(),
            segment_count: self.segment_count.get(),
            segments_offset: self.segments_offset.get(),
            volume_areas: self.volume_area_offsets.map(U64::get),
            volume_area_bytes: self.volume_area_bytes.get(),
            checkpoint_areas: self.checkpoint_area_offsets.map(U64::get),
            checkpoint_area_bytes: self.checkpoint_area_bytes.get(),
        };
        geometry.validate()?;
        let area = |area: U32, field| match area.get() {
            0 => Ok(0),
            1 => Ok(1),
            _ => Err(field),
        };
        let len = u64::from(self.volume_table_len.get());
        check(len <= geometry.volume_area_bytes, "volume_table_len")?;
        let checkpoint = if self.checkpoint_area.get() == NO_CHECKPOINT {
            None
        } else {
            let len = self.checkpoint_len.get();
            let lengths = PAGE as u64..=geometry.checkpoint_area_bytes;
            check(lengths.contains(&len), "checkpoint_len")?;
            check(self.checkpoint_number.get() < MAX_COUNT, "checkpoint_number")?;
            Some(CheckpointRef {
                area: area(self.checkpoint_area, "checkpoint_area")?,
                len,
                header_crc: self.checkpoint_header_crc.get(),
                number: self.checkpoint_number.get(),
            })
        };
        let has_accepted = self.incompat.get() & ACCEPTED != 0;
        let accepted = has_accepted.then(|| self.accepted.fields(&geometry)).transpose()?;
        Ok(Superblock {
            cache: Uuid::from_bytes(self.cache),
            generation: self.generation.get(),
            compat: self.compat.get(),
            incompat: self.incompat.get(),
            ro_compat: self.ro_compat.get(),
            geometry,
            volume_table: VolumeTableRef {
                area: area(self.volume_table_area, "volume_table_area")?,
                len: self.volume_table_len.get(),
                crc: self.volume_table_crc.get(),
            },
            checkpoint,
            clean_shutdown: self.flags.get() & CLEAN_SHUTDOWN != 0,
            next_volume_id: self.next_volume_id.get(),
            last_record: RecordNumber(self.last_record.get()),
            accepted,
        })
    }
}

/// Computes the checksum of a whole superblock and stores it.
fn seal(bytes: &mut [u8; PAGE]) {
    let checksum = crc32c(&bytes[..CHECKSUM_AT]);
    bytes[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
}

#[cfg(test)]
mod tests;
