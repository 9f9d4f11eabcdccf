//! Small cache devices, made by the real engine: each has been used, stopped suddenly, recovered
//! and used again, so that there is a checkpoint and a log behind it.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::{Arc, LazyLock};

use forebay_core::{BlockSize, Mode, Op, SegmentId, Survives};
use forebay_device::{Device, IoBuf, RamDevice};
use forebay_engine::{
    BlockService, Completion, CompletionSink, EngineLane, LaneContext, LaneVolume, Request,
    Settings, VolumeSpec,
};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::{Body, Geometry, PAGE, RecordHeader, Superblock, Uuid, record};
use forebay_store::{FormatOptions, StoreOptions};
use forebay_testkit::{LaneWorld, peek};

/// The structure at a place that is worth mutating.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A superblock copy.
    Superblock,
    /// The volume table that counts.
    VolumeTable,
    /// The header of the checkpoint that counts.
    CheckpointHeader,
    /// The only chunk of the checkpoint.
    Chunk,
    /// A record header that counts, or did once.
    Record,
    /// Anything else.
    Plain,
}

/// A place that is worth mutating.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    /// The structure.
    pub(crate) kind: Kind,
    /// Offset of the structure, in bytes.
    pub(crate) offset: usize,
    /// Length of the structure, in bytes.
    pub(crate) len: usize,
    /// The record, if it is one.
    pub(crate) record: Option<RecordHeader>,
}

impl fmt::Display for Spot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} at {:#x}", self.kind, self.offset)?;
        let Some(record) = &self.record else { return Ok(()) };
        let (kind, count) = match &record.body {
            Body::Data(entries) => ("data", entries.len()),
            Body::Marks(marks) => ("marks", marks.len()),
            Body::Opening(_) => ("opening", 0),
        };
        write!(
            f,
            ": number {}, durable through {}, segment {}, generation {}, position {}, {count} {kind}",
            record.number.0,
            record.durable_through.0,
            record.segment.0,
            record.generation.0,
            record.position
        )
    }
}

/// A cache device.
pub(crate) struct Image {
    /// All bytes of the device.
    pub(crate) bytes: Vec<u8>,
    /// UUID of the cache.
    pub(crate) cache: Uuid,
    /// Places that are worth mutating, structures first.
    pub(crate) spots: Vec<Spot>,
}

/// The images. Made once, in a few milliseconds each.
pub(crate) static IMAGES: LazyLock<Vec<Image>> = LazyLock::new(|| {
    [(4096, 6, false), (4096, 6, true), (2048, 6, false), (64 << 10, 12, false)]
        .map(|(block, mib, clean)| Image::make(block, mib << 20, clean))
        .into()
});

const ORIGIN_BYTES: u64 = 4 << 20;

#[derive(Default)]
struct Sink(RefCell<Option<Completion>>);

impl CompletionSink for Sink {
    fn complete(&self, completion: Completion) {
        *self.0.borrow_mut() = Some(completion);
    }
}

/// Submits a request that cannot fail, and waits for its end.
fn request(world: &LaneWorld, target: &Rc<LaneVolume>, op: Op, offset: u64, len: u64, byte: u8) {
    submit(world, target, op, offset, len, byte).result.expect("nothing fails on RAM");
}

/// Submits a request, and waits for its end.
pub(crate) fn submit(
    world: &LaneWorld,
    target: &Rc<LaneVolume>,
    op: Op,
    offset: u64,
    len: u64,
    byte: u8,
) -> Completion {
    let data = (op == Op::Write).then(|| IoBuf::copy_from(&vec![byte; len as usize]));
    let request = Request {
        tag: 1,
        op,
        offset,
        len,
        survives: Survives::Nothing,
        fast: false,
        no_hole: false,
        data,
    };
    let sink = Rc::new(Sink::default());
    let as_sink: Rc<dyn CompletionSink> = sink.clone();
    target.submit(request, &as_sink);
    world.run(|| sink.0.borrow_mut().take())
}

fn open(world: &LaneWorld, cache: &Arc<dyn Device>) -> Rc<EngineLane> {
    let (lane, queues) = (world.lane.clone(), world.queues.clone());
    let (context, device) =
        (LaneContext { lane, queues, register: Rc::new(|_| ()) }, cache.clone());
    let opened = async move { EngineLane::open(context, device, StoreOptions::default()).await };
    world.block_on(opened).expect("a good cache opens").0
}

impl Image {
    fn make(block: u64, cache_bytes: u64, clean: bool) -> Image {
        let block = BlockSize::new(block).expect("a block size");
        let cache: Arc<dyn Device> = RamDevice::new("cache", cache_bytes).expect("memory");
        let origin: Arc<dyn Device> = RamDevice::new("origin", ORIGIN_BYTES).expect("memory");
        format(&cache, block);
        for round in 0..2u64 {
            let world = LaneWorld::new();
            let engine = open(&world, &cache);
            let settings =
                Settings { mode: Mode::Writeback, sequential_cutoff: 0, ..Settings::default() };
            let (inner, device) = (engine.clone(), origin.clone());
            if round == 0 {
                let spec = VolumeSpec {
                    name: "data".into(),
                    origin: "origin".into(),
                    uuid: Uuid::from_u128(9),
                    alignment: 512,
                    settings,
                };
                let made = async move { inner.create(spec, device).await };
                world.block_on(made).expect("a volume is made");
            } else {
                let attached = async move { inner.attach("data", device, false).await };
                world.block_on(attached).expect("a volume comes back");
            }
            let target = engine.target("data").expect("it is started");
            use_volume(&world, &target, block.bytes(), round);
            if round == 0 {
                let inner = engine.clone();
                let drained = async move { inner.drain("data", |_| Ok(())).await };
                world.block_on(drained).expect("everything can be written back");
                use_volume(&world, &target, block.bytes(), 2);
            } else if clean {
                world.block_on(async move { engine.close().await }).expect("closed");
            }
        }
        Self::of(&cache)
    }

    fn of(cache: &Arc<dyn Device>) -> Image {
        let bytes = peek(cache, 0, cache.size() as usize);
        let superblock = Superblock::choose(&bytes[..PAGE], &bytes[COPY_B as usize..][..PAGE])
            .expect("a good superblock");
        let geometry = &superblock.geometry;
        let spot =
            |kind, offset: u64, len| Spot { kind, offset: offset as usize, len, record: None };
        let table = geometry.volume_areas[usize::from(superblock.volume_table.area)];
        let checkpoint = superblock.checkpoint.expect("recovery has written one");
        let area = geometry.checkpoint_areas[usize::from(checkpoint.area)];
        let mut spots = vec![
            spot(Kind::Superblock, COPY_A, PAGE),
            spot(Kind::Superblock, COPY_B, PAGE),
            spot(Kind::VolumeTable, table, PAGE),
            spot(Kind::CheckpointHeader, area, PAGE),
            spot(Kind::Chunk, area + PAGE as u64, checkpoint.len as usize - PAGE),
        ];
        let mut plain = Vec::new();
        for (offset, header) in records(&bytes, geometry, &superblock.cache) {
            plain.push(spot(Kind::Plain, offset + PAGE as u64, PAGE));
            let end = offset + u64::from(header.granules(geometry)) * geometry.granule();
            plain.push(spot(Kind::Plain, end.min(geometry.end() - PAGE as u64), PAGE));
            let record = Some(header);
            spots.push(Spot { record, ..spot(Kind::Record, offset, PAGE) });
        }
        assert!(plain.len() >= 6, "there is nothing to replay");
        spots.append(&mut plain);
        let cache = superblock.cache;
        Image { bytes, cache, spots }
    }
}

fn format(cache: &Arc<dyn Device>, block: BlockSize) {
    let world = LaneWorld::new();
    let (queue, device) = (world.queue(cache), cache.clone());
    let options = FormatOptions { block, segment_bytes: None, uuid: crate::CACHE };
    let formatted = async move { forebay_store::format(&device, &queue, &options).await };
    world.block_on(formatted).expect("large enough");
}

/// Some of everything: whole and partial writes, fills, blocks that are gone, several records.
fn use_volume(world: &LaneWorld, target: &Rc<LaneVolume>, block: u64, round: u64) {
    let first = round * 6 * block;
    for number in 0..5 {
        let offset = first + number * block;
        request(world, target, Op::Write, offset, block, (round * 5 + number + 1) as u8);
        request(world, target, Op::Write, offset + 7 * block + 512, 512, 0x77);
        request(world, target, Op::Read, offset + 20 * block, block, 0);
        if number % 2 == 0 {
            request(world, target, Op::Flush, 0, 0, 0);
        }
    }
    request(world, target, Op::Write, first + block, block, 0x99);
    request(world, target, Op::Discard, first + 2 * block, block, 0);
    request(world, target, Op::Flush, 0, 0, 0);
}

/// Every record header in the segments, and where it is.
fn records(bytes: &[u8], geometry: &Geometry, cache: &Uuid) -> Vec<(u64, RecordHeader)> {
    let mut found = Vec::new();
    for number in 0..geometry.segment_count {
        let start = geometry.segment_offset(SegmentId(number));
        for at in (0..geometry.segment_bytes).step_by(PAGE) {
            let offset = start + at;
            let header = record::decode(&bytes[offset as usize..][..PAGE], geometry, cache);
            found.extend(header.ok().map(|header| (offset, header)));
        }
    }
    found
}
