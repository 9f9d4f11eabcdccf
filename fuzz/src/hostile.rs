//! Cache devices that no program has written: superblock, volume table, checkpoint and records of
//! the format's own types, with right checksums and absurd values. Patches of the bytes add values
//! that the types cannot have.

use forebay_core::{
    Durability, Generation, Mode, OriginBlock, RecordNumber, ReplacementKind, SectorMask,
    SegmentId, Slot, VolumeId,
};
use forebay_format::checkpoint::{ParityPlace, PartialMask, SegmentUse};
use forebay_format::record::{self, DataEntry, Head, Mark, MarkKind};
use forebay_format::superblock::{COPY_A, COPY_B, KNOWN_INCOMPAT};
use forebay_format::volume::{DAMAGE_COUNT, ORDERED_SEQUENCE, SECTOR_BYTES};
use forebay_format::{
    AcceptedLog, CheckpointRef, CheckpointWriter, Geometry, IndexEntry, PAGE, SegmentState,
    Superblock, Uuid, VolumeRecord, VolumeTableRef, volume,
};

use crate::device::ImageDevice;
use crate::image::{Kind, Spot};
use crate::patches::{mend_all, patch};
use crate::{CACHE, block_size};

/// Maximum number of segments of a cache that gets a checkpoint.
const SEGMENTS: u32 = 256;
/// Patches that are applied; further ones are left out.
const PATCHES: usize = 16;

/// The choices that an input makes; zeroes follow its end.
pub(crate) struct Choices<'a>(&'a [u8]);

impl<'a> Choices<'a> {
    /// Begins at the front.
    pub(crate) fn new(input: &'a [u8]) -> Self {
        Choices(input)
    }

    /// The next byte.
    pub(crate) fn byte(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    /// A number below `end`, which is at least 1 and at most 65536.
    fn below(&mut self, end: u64) -> u64 {
        let high = if end > 256 { u64::from(self.byte()) << 8 } else { 0 };
        (high | u64::from(self.byte())) % end
    }

    /// Returns `true` for `in_256` of 256 drawn bytes.
    fn rarely(&mut self, in_256: u8) -> bool {
        // Zeroes behind the end are the usual case.
        self.byte() > u8::MAX - in_256
    }

    /// A number: small, a border of a field or of a range, or beside one.
    fn number(&mut self) -> u64 {
        const BORDERS: [u64; 16] = [
            0,
            1,
            511,
            512,
            4096,
            1 << 16,
            1 << 28,
            1 << 31,
            1 << 32,
            1 << 40,
            1 << 44,
            1 << 61,
            1 << 62,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ];
        let byte = self.byte();
        match byte >> 6 {
            0 | 1 => u64::from(byte & 0x7f),
            2 => BORDERS[usize::from(byte & 15)].wrapping_sub(u64::from(byte >> 4 & 1)),
            _ => (1u64 << (byte & 63)).wrapping_add(self.below(3)).wrapping_sub(1),
        }
    }

    /// A number that counts, which the types keep below 2^62.
    fn count(&mut self) -> u64 {
        self.number() & ((1 << 62) - 1)
    }

    fn cache(&mut self) -> Uuid {
        if self.rarely(8) { Uuid::from_u128(1) } else { CACHE }
    }
}

/// A hostile cache device.
pub(crate) struct Hostile {
    /// The device.
    pub(crate) device: ImageDevice,
    /// Geometry of the device before patches.
    pub(crate) geometry: Geometry,
    /// The structures, and their places.
    spots: Vec<Spot>,
}

impl Hostile {
    /// Makes the device that an input decides on.
    pub(crate) fn make(choices: &mut Choices<'_>) -> Option<Hostile> {
        let geometry = geometry(choices)?;
        // A device may be larger than the cache on it, and smaller only if someone cut it.
        let size = match choices.rarely(8) {
            true => geometry.device_bytes / 2 / PAGE as u64 * PAGE as u64,
            false => geometry.device_bytes,
        };
        let device = ImageDevice::sparse(size);
        let mut hostile = Hostile { device, geometry, spots: Vec::new() };
        let table = hostile.volumes(choices)?;
        let checkpoint = hostile.checkpoint(choices);
        for _ in 0..choices.below(24) {
            hostile.record(choices);
        }
        hostile.superblocks(choices, table, checkpoint);
        hostile.patches(choices);
        Some(hostile)
    }

    fn put(&mut self, kind: Kind, offset: u64, bytes: &[u8]) {
        let size = self.device.bytes();
        if bytes.len() as u64 > size || offset > size - bytes.len() as u64 {
            return;
        }
        self.device.write(offset as usize, bytes);
        let (offset, len) = (offset as usize, bytes.len());
        self.spots.push(Spot { kind, offset, len, record: None });
    }

    fn volumes(&mut self, choices: &mut Choices<'_>) -> Option<VolumeTableRef> {
        let volumes: Vec<_> = (0..choices.below(5)).map(|n| volume_record(choices, n)).collect();
        let cache = choices.cache();
        let block = self.geometry.block;
        let table = volume::encode(&volumes, &cache, block);
        let table = table.or_else(|_| volume::encode(&[], &cache, block)).ok()?;
        let area = choices.byte() & 1;
        self.put(Kind::VolumeTable, self.geometry.volume_areas[usize::from(area)], &table.bytes);
        Some(table.reference(area))
    }

    /// Writes a checkpoint, as far as its writer takes what is in it.
    fn checkpoint(&mut self, choices: &mut Choices<'_>) -> Option<CheckpointRef> {
        let geometry = self.geometry.clone();
        if choices.rarely(64) || geometry.segment_count > SEGMENTS {
            return None;
        }
        let (area, bits) = (choices.byte() & 1, choices.below(29) as u8);
        let number = choices.count();
        let mut writer =
            CheckpointWriter::new(&geometry, choices.cache(), area, number, bits).ok()?;
        let segments: Vec<_> =
            (0..geometry.segment_count).map(|_| segment_state(choices)).collect();
        let start = geometry.checkpoint_areas[usize::from(area)];
        writer.push_segments(&segments).ok()?;
        let entries: Vec<_> = (0..choices.below(64)).map(|_| entry(choices, &geometry)).collect();
        // One by one: an entry that is refused leaves the others.
        for entry in &entries {
            let _ = writer.push_entries(std::slice::from_ref(entry));
        }
        let sectors = geometry.block.sectors();
        for entry in entries.iter().filter(|entry| entry.partial) {
            let mask = mask(choices, sectors);
            let _ = writer.push_masks(&[PartialMask {
                volume: entry.volume,
                block: entry.block,
                mask,
            }]);
        }
        let mut chunks = Vec::new();
        while let Ok(Some(chunk)) = writer.take_chunk() {
            chunks.push((chunk.offset, chunk.bytes.to_vec()));
        }
        let (base, sequence) = (RecordNumber(choices.count()), choices.count());
        let finished = writer.finish(base, sequence, Generation(choices.count())).ok()?;
        for (offset, bytes) in chunks {
            self.put(Kind::Chunk, start + offset, &bytes);
        }
        self.put(Kind::CheckpointHeader, start, &finished.header);
        let place = ParityPlace::of(&finished.reference, &geometry);
        if let Some(place) = place
            && choices.rarely(128)
        {
            self.put(Kind::Plain, start + place.offset, &finished.parity);
        }
        Some(finished.reference)
    }

    /// Writes a record anywhere in a segment, also into the payload of another one.
    fn record(&mut self, choices: &mut Choices<'_>) {
        let geometry = &self.geometry;
        let segment = SegmentId(choices.below(u64::from(geometry.segment_count).min(4)) as u32);
        let pages = geometry.segment_bytes / PAGE as u64;
        let page = choices.below(pages.min(64));
        let number = RecordNumber(choices.count());
        let durable_through = match choices.rarely(128) {
            true => RecordNumber(choices.count()),
            false => RecordNumber(number.0.saturating_sub(1)),
        };
        let says = if choices.rarely(16) { SegmentId(choices.number() as u32) } else { segment };
        let head = Head {
            cache: choices.cache(),
            segment: says,
            generation: Generation(choices.count()),
            position: (page * geometry.granules_per_header()) as u32,
            number,
            durable_through,
        };
        let mut bytes = [0; PAGE];
        let count = choices.below(8) + 1;
        let made = match choices.below(4) {
            0 => {
                let mark = |choices: &mut Choices<'_>| Mark {
                    slot: slot(choices, geometry),
                    generation: Generation(choices.count()),
                    kind: if choices.rarely(128) { MarkKind::Gone } else { MarkKind::Clean },
                };
                let marks: Vec<_> = (0..count).map(|_| mark(choices)).collect();
                record::encode_marks(&mut bytes, &head, &marks)
            }
            1 => {
                let free: Vec<_> = (0..count).map(|_| SegmentId(choices.number() as u32)).collect();
                record::encode_opening(&mut bytes, &head, &free)
            }
            _ => {
                let entries: Vec<_> = (0..count).map(|_| data_entry(choices, geometry)).collect();
                record::encode_data(&mut bytes, &head, geometry.block, &entries)
            }
        };
        let offset = geometry.segment_offset(segment) + page * PAGE as u64;
        if made.is_ok() {
            self.put(Kind::Record, offset, &bytes);
        }
    }

    fn superblocks(
        &mut self,
        choices: &mut Choices<'_>,
        volume_table: VolumeTableRef,
        checkpoint: Option<CheckpointRef>,
    ) {
        let accepted = choices.rarely(96).then(|| accepted(choices));
        let mut superblock = Superblock {
            cache: CACHE,
            generation: choices.number(),
            compat: choices.number(),
            incompat: choices.number() & KNOWN_INCOMPAT,
            ro_compat: if choices.rarely(8) { choices.number() } else { 0 },
            geometry: self.geometry.clone(),
            volume_table,
            checkpoint,
            clean_shutdown: choices.rarely(128),
            next_volume_id: choices.number() as u16,
            last_record: RecordNumber(choices.count()),
            accepted: None,
        };
        superblock.accept(accepted.filter(AcceptedLog::fits));
        self.put(Kind::Superblock, COPY_A, &superblock.encode(COPY_A));
        if choices.rarely(64) {
            superblock.generation = superblock.generation.wrapping_add(1);
        }
        self.put(Kind::Superblock, COPY_B, &superblock.encode(COPY_B));
    }

    /// Changes written bytes, and corrects the checksums.
    fn patches(&mut self, choices: &mut Choices<'_>) {
        let mut touched = Vec::new();
        // A clean image remains where nothing is patched.
        for _ in 0..choices.below(PATCHES as u64) {
            let Some(number) = patch(&self.device, &self.spots, &mut choices.0) else { break };
            touched.push(number);
        }
        mend_all(&self.device, &self.spots, CACHE.as_bytes(), &touched);
    }
}

/// A small geometry, which leaves work to do, or one that no block size makes small enough for the
/// limit of memory: it has to be refused for little. Those in between are read once, which takes
/// long.
fn geometry(choices: &mut Choices<'_>) -> Option<Geometry> {
    let bytes = match choices.rarely(32) {
        true => (1 << (44 + choices.below(18))) + choices.below(4096) * 512,
        false => (5 + choices.below(28)) << 20,
    };
    let block = block_size(choices.byte());
    let segment = choices.rarely(64).then(|| 1 << (18 + choices.below(13)));
    Geometry::plan(bytes, block, 512, segment).ok()
}

fn volume_record(choices: &mut Choices<'_>, number: u64) -> VolumeRecord {
    const ORIGINS: [&str; 6] =
        ["origin", "/dev/other", "ram:1T", "cache", "nbd://192.0.2.1/x", "/proc/self/mem"];
    let settings: Vec<_> = match choices.below(4) {
        0 => vec![],
        1 => vec![(ORDERED_SEQUENCE, choices.number()), (ORDERED_SEQUENCE + 1, choices.number())],
        2 => vec![(DAMAGE_COUNT - 1, choices.number()), (DAMAGE_COUNT, choices.number())],
        _ => vec![(SECTOR_BYTES, choices.number()), (choices.number() as u16, choices.number())],
    };
    VolumeRecord {
        id: VolumeId(if choices.rarely(64) { choices.number() as u16 } else { number as u16 + 1 }),
        uuid: Uuid::from_u128(if choices.rarely(32) { 9 } else { u128::from(number) + 10 }),
        name: if number == 0 { "data".into() } else { format!("v{number}") },
        origin: ORIGINS[choices.below(6) as usize].into(),
        origin_bytes: match choices.rarely(128) {
            true => choices.number() / 512 * 512,
            false => 4 << 20,
        },
        alignment: if choices.rarely(32) { choices.number() as u32 } else { 0 },
        mode: [Mode::Writeback, Mode::Writethrough, Mode::Writearound][choices.below(3) as usize],
        durability: Durability::default(),
        policy: ReplacementKind::default(),
        withdrawn_policy: None,
        started: choices.rarely(128),
        fingerprint: choices.rarely(64).then_some([7; 32]),
        identity: None,
        left: volume::Left::default(),
        samples: None,
        settings,
    }
}

fn segment_state(choices: &mut Choices<'_>) -> SegmentState {
    let byte = choices.byte();
    if byte < 64 {
        return SegmentState::default();
    }
    SegmentState {
        generation: Generation(choices.count()),
        usage: [SegmentUse::Free, SegmentUse::Open, SegmentUse::Closed][usize::from(byte % 3)],
        write_position: choices.number() as u32,
    }
}

/// A slot, in most cases one of the few that others use as well.
fn slot(choices: &mut Choices<'_>, geometry: &Geometry) -> Slot {
    match choices.rarely(32) {
        true => Slot(choices.number() as u32),
        false => {
            let headers = geometry.granules_per_header();
            let position = headers + choices.below(16) * geometry.granules_per_block();
            geometry.slot_at(SegmentId(choices.below(4) as u32), position as u32)
        }
    }
}

fn volume_id(choices: &mut Choices<'_>) -> VolumeId {
    VolumeId(if choices.rarely(16) { choices.number() as u16 } else { 1 + choices.below(3) as u16 })
}

fn block(choices: &mut Choices<'_>) -> OriginBlock {
    OriginBlock(if choices.rarely(32) { choices.number() } else { choices.below(16) })
}

fn entry(choices: &mut Choices<'_>, geometry: &Geometry) -> IndexEntry {
    IndexEntry {
        block: block(choices),
        slot: slot(choices, geometry),
        check: u32::from(choices.byte()),
        volume: volume_id(choices),
        rank: choices.byte() & 15,
        dirty: choices.rarely(128),
        partial: choices.rarely(64),
    }
}

fn mask(choices: &mut Choices<'_>, sectors: u32) -> SectorMask {
    let (first, last) = (choices.below(u64::from(sectors)), choices.below(u64::from(sectors)));
    SectorMask::of(sectors, first.min(last) as u32..first.max(last) as u32 + 1)
}

fn data_entry(choices: &mut Choices<'_>, geometry: &Geometry) -> DataEntry {
    if choices.rarely(16) {
        return DataEntry::void(geometry.block);
    }
    let sectors = geometry.block.sectors();
    DataEntry {
        volume: volume_id(choices),
        block: block(choices),
        sequence: choices.count(),
        dirty: choices.rarely(128),
        void: false,
        mask: if choices.rarely(64) { mask(choices, sectors) } else { SectorMask::all(sectors) },
        check: u32::from(choices.byte()),
    }
}

fn accepted(choices: &mut Choices<'_>) -> AcceptedLog {
    let range = |choices: &mut Choices<'_>| {
        let first = choices.count();
        first..=first.saturating_add(choices.count())
    };
    AcceptedLog {
        through: RecordNumber(choices.count()),
        sequence: choices.count(),
        next_generation: Generation(choices.count()),
        left_out: (0..choices.below(4)).map(|_| range(choices)).collect(),
        torn: (0..choices.below(4)).map(|_| Slot(choices.number() as u32)).collect(),
    }
}
