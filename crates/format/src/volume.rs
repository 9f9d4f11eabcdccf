//! The volume table: the persistent state of each volume.

use std::collections::HashSet;
use std::mem::{offset_of, size_of};

use forebay_core::{BlockSize, Durability, Identity, Mode, ReplacementKind, SECTOR_SIZE, VolumeId};
use uuid::Uuid;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MAX_BLOCKS;

pub mod left;
pub mod samples;
mod table;

pub use left::Left;
pub use samples::{SampleCheck, Samples};
pub use table::{
    EncodedTable, MAGIC, MAX_VOLUMES, VolumeTableError, decode, encode, own_reference,
};

/// The longest name of a volume, in bytes.
pub const MAX_NAME: usize = 64;
/// The longest path or URI of an origin, in bytes.
pub const MAX_ORIGIN: usize = 1024;
/// Maximum number of settings of one volume.
pub const MAX_SETTINGS: usize = 64;

/// Setting tag: the origin has all versions with a sequence up to the value. A volume with this
/// setting is in order.
pub const ORDERED_SEQUENCE: u16 = 33;
/// Setting tag: the origin has all versions in records with a number up to the value.
pub const ORDERED_RECORD: u16 = 34;

/// Setting tag: number of the first record that the volume may have lost. A volume with this
/// setting does not start before its operator acknowledges the damage.
pub const DAMAGE_FIRST: u16 = 35;
/// Setting tag: number of records that the volume may have lost, from the first to the last.
pub const DAMAGE_COUNT: u16 = 36;
/// Setting tag: the last closed record when the volume was created.
pub const CREATED_RECORD: u16 = 37;
/// Setting tag: the last closed record when the volume entered a mode that makes nothing dirty.
pub const QUIET_RECORD: u16 = 38;

/// Setting tag: bytes of the logical sectors that clients saw when the volume was started last.
pub const SECTOR_BYTES: u16 = 39;

/// Setting tags of samples whose checksums are digests: the sum of these, and the bits of untouched
/// ones.
const SAMPLES_SUM: u16 = 96;
const SAMPLES_LOW: u16 = 97;
const SAMPLES_HIGH: u16 = 98;

const STARTED: u8 = 1;
const FINGERPRINT: u8 = 2;
const IDENTITY: u8 = 4;
const SAMPLES: u8 = 8;
const SETTING_BYTES: usize = size_of::<OnDiskSetting>();

/// The fixed part of a volume; the name, the origin and the settings follow.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskVolume {
    id: U16,
    mode: u8,
    durability: u8,
    policy: u8,
    flags: u8,
    name_len: U16,
    origin_len: U16,
    settings: U16,
    alignment: U32,
    uuid: [u8; 16],
    origin_bytes: U64,
    fingerprint: [u8; 32],
}

/// A setting.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskSetting {
    tag: U16,
    value: U64,
}

const _: () = {
    assert!(size_of::<OnDiskVolume>() == 72);
    assert!(offset_of!(OnDiskVolume, flags) == 5);
    assert!(offset_of!(OnDiskVolume, name_len) == 6);
    assert!(offset_of!(OnDiskVolume, alignment) == 12);
    assert!(offset_of!(OnDiskVolume, uuid) == 16);
    assert!(offset_of!(OnDiskVolume, origin_bytes) == 32);
    assert!(offset_of!(OnDiskVolume, fingerprint) == 40);
    assert!(SETTING_BYTES == 10);
};

/// A volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeRecord {
    /// Number of the volume in this cache.
    pub id: VolumeId,
    /// Identity of the volume across caches.
    pub uuid: Uuid,
    /// Name of the volume: 1 to 64 of `A-Z a-z 0-9 . _ -`, not `.` or `..`.
    pub name: String,
    /// The path or URI of the origin as the operator specified it: 1 to 1024 bytes without control
    /// characters.
    pub origin: String,
    /// Size of the origin in bytes.
    pub origin_bytes: u64,
    /// Bytes by which block 0 starts before the origin's first byte, so that blocks match the
    /// boundaries of partitions inside: below the block size, a multiple of 512.
    pub alignment: u32,
    /// Caching mode for reads and writes.
    pub mode: Mode,
    /// When writes are acknowledged.
    pub durability: Durability,
    /// Replacement policy.
    pub policy: ReplacementKind,
    /// Name of the withdrawn policy that the table contains instead; the next table contains
    /// `policy`.
    pub withdrawn_policy: Option<&'static str>,
    /// Whether the volume starts automatically.
    pub started: bool,
    /// Fingerprint of the origin at the last orderly stop. `None` while the volume runs.
    pub fingerprint: Option<[u8; 32]>,
    /// Identity of the origin, independent of its content; 1 to 16 parts.
    pub identity: Option<Identity>,
    /// State of the origin at the last orderly stop, in addition to the fingerprint; empty while
    /// the volume runs.
    pub left: Left,
    /// Samples of the origin; their number follows from its size.
    pub samples: Option<Samples>,
    /// Further settings, each tag at most once. Unknown tags are kept.
    pub settings: Vec<(u16, u64)>,
}

impl VolumeRecord {
    /// Returns whether `name` is a valid name of a volume.
    pub fn is_valid_name(name: &str) -> bool {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        (1..=MAX_NAME).contains(&name.len())
            && name.bytes().all(allowed)
            && name != "."
            && name != ".."
    }

    /// Fails with the name of the first field that has an impossible value.
    fn check(&self, block: BlockSize) -> Result<(), &'static str> {
        let check = |good: bool, field| if good { Ok(()) } else { Err(field) };
        check(Self::is_valid_name(&self.name), "name")?;
        check((1..=MAX_ORIGIN).contains(&self.origin.len()), "origin")?;
        check(!self.origin.chars().any(char::is_control), "origin")?;
        let alignment = u64::from(self.alignment);
        check(alignment < block.bytes(), "alignment")?;
        check(alignment.is_multiple_of(SECTOR_SIZE), "alignment")?;
        let end = self.origin_bytes.checked_add(alignment).ok_or("origin_bytes")?;
        check(end.div_ceil(block.bytes()) <= MAX_BLOCKS, "origin_bytes")?;
        check(!self.uuid.is_nil(), "uuid")?;
        let samples = self.samples.as_ref();
        let settings = self.settings.len() + samples.map_or(0, |samples| samples.settings().len());
        check(settings <= MAX_SETTINGS, "settings")?;
        check(samples.is_none_or(|samples| samples.check(self.origin_bytes)), "samples")?;
        let tags: HashSet<u16> = self.settings.iter().map(|(tag, _)| *tag).collect();
        check(tags.len() == self.settings.len(), "settings")
    }

    fn encode_into(&self, bytes: &mut Vec<u8>) {
        let parts = self.left.beside(self.identity.as_ref());
        let of_samples = self.samples.as_ref().map(Samples::settings).unwrap_or_default();
        let settings = self.settings.iter().chain(&of_samples);
        let raw = OnDiskVolume {
            id: self.id.0.into(),
            mode: self.mode.code(),
            durability: self.durability.code(),
            policy: self.policy.code(),
            flags: if self.started { STARTED } else { 0 }
                | if self.fingerprint.is_some() { FINGERPRINT } else { 0 }
                | if parts.is_empty() { 0 } else { IDENTITY }
                | if self.samples.is_some() { SAMPLES } else { 0 },
            name_len: (self.name.len() as u16).into(),
            origin_len: (self.origin.len() as u16).into(),
            settings: (settings.clone().count() as u16).into(),
            alignment: self.alignment.into(),
            uuid: *self.uuid.as_bytes(),
            origin_bytes: self.origin_bytes.into(),
            fingerprint: self.fingerprint.unwrap_or_default(),
        };
        bytes.extend_from_slice(raw.as_bytes());
        bytes.extend_from_slice(self.name.as_bytes());
        bytes.extend_from_slice(self.origin.as_bytes());
        for (tag, value) in settings {
            let raw = OnDiskSetting { tag: (*tag).into(), value: (*value).into() };
            bytes.extend_from_slice(raw.as_bytes());
        }
        if !parts.is_empty() {
            bytes.push(parts.len() as u8);
            for (code, text) in &parts {
                bytes.extend_from_slice(&[*code, text.len() as u8]);
                bytes.extend_from_slice(text.as_bytes());
            }
        }
        if let Some(samples) = &self.samples {
            samples.encode_into(bytes);
        }
    }

    /// Reads one volume from the start of `bytes`; returns it and the remaining bytes.
    fn decode(bytes: &[u8]) -> Result<(VolumeRecord, &[u8]), VolumeDefect> {
        let (raw, rest) = OnDiskVolume::ref_from_prefix(bytes).map_err(|_| VolumeDefect::Cut)?;
        let name_len = usize::from(raw.name_len.get());
        let (name, rest) = rest.split_at_checked(name_len).ok_or(VolumeDefect::Cut)?;
        let origin_len = usize::from(raw.origin_len.get());
        let (origin, rest) = rest.split_at_checked(origin_len).ok_or(VolumeDefect::Cut)?;
        let count = usize::from(raw.settings.get());
        let (settings, rest) = <[OnDiskSetting]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| VolumeDefect::Cut)?;
        let text = |bytes: &[u8], field| {
            std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| VolumeDefect::Field(field))
        };
        if raw.flags & !(STARTED | FINGERPRINT | IDENTITY | SAMPLES) != 0 {
            return Err(VolumeDefect::Field("flags"));
        }
        let (mut identity, mut left, mut samples) = (None, Left::default(), None);
        let mut rest = rest;
        if raw.flags & IDENTITY != 0 {
            let (found, after) = decode_identity(rest)?;
            rest = after;
            (left, identity) = Left::taken_from(found).ok_or(VolumeDefect::Field("identity"))?;
        }
        if raw.flags & SAMPLES != 0 {
            let (found, after) = Samples::decode(rest)?;
            (samples, rest) = (Some(found), after);
        }
        let settings = settings.iter().map(|raw| (raw.tag.get(), raw.value.get()));
        let mut settings: Vec<(u16, u64)> = settings.collect();
        Samples::take_settings(samples.as_mut(), &mut settings);
        let record = VolumeRecord {
            id: VolumeId(raw.id.get()),
            uuid: Uuid::from_bytes(raw.uuid),
            name: text(name, "name")?,
            origin: text(origin, "origin")?,
            origin_bytes: raw.origin_bytes.get(),
            alignment: raw.alignment.get(),
            mode: Mode::from_code(raw.mode).ok_or(VolumeDefect::Field("mode"))?,
            durability: Durability::from_code(raw.durability)
                .ok_or(VolumeDefect::Field("durability"))?,
            policy: ReplacementKind::from_code(raw.policy).ok_or(VolumeDefect::Field("policy"))?,
            withdrawn_policy: ReplacementKind::withdrawn_name(raw.policy),
            started: raw.flags & STARTED != 0,
            fingerprint: (raw.flags & FINGERPRINT != 0).then_some(raw.fingerprint),
            identity,
            left,
            samples,
            settings,
        };
        Ok((record, rest))
    }
}

/// Codes and texts of the parts of an identity.
type IdentityParts = Vec<(u8, String)>;

/// Reads the parts of an identity: their number, then for each its code, length and text.
fn decode_identity(bytes: &[u8]) -> Result<(IdentityParts, &[u8]), VolumeDefect> {
    let (count, mut rest) = bytes.split_first().ok_or(VolumeDefect::Cut)?;
    let mut parts = Vec::new();
    for _ in 0..*count {
        let ([code, len], after) = rest.split_first_chunk::<2>().ok_or(VolumeDefect::Cut)?;
        let (text, after) = after.split_at_checked(usize::from(*len)).ok_or(VolumeDefect::Cut)?;
        let text = std::str::from_utf8(text).map_err(|_| VolumeDefect::Field("identity"))?;
        parts.push((*code, text.to_owned()));
        rest = after;
    }
    Ok((parts, rest))
}

/// The reason why a volume could not be read.
enum VolumeDefect {
    Cut,
    Field(&'static str),
}

#[cfg(test)]
mod tests;
