//! A cache device that no program has written is dumped, checked, opened and used, see
//! [`crate::hostile`].
//!
//! Each of these steps may refuse the device. None may panic, run on, read more than a few times
//! the device's size, or take more memory than allowed; and the steps that only look may write
//! nothing.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::Op;
use forebay_device::{Device, Queue, RamDevice};
use forebay_engine::{EngineLane, LaneContext};
use forebay_format::{PAGE, record};
use forebay_lane::MemoryBudget;
use forebay_store::check::{CheckOptions, check};
use forebay_store::{CheckpointSource, StoreOptions, read_roots};
use forebay_testkit::LaneWorld;

use crate::device::ImageDevice;
use crate::hostile::{Choices, Hostile};
use crate::image::submit;
use crate::{memory, say};

/// Rounds of the lane that any one thing may take on these devices.
const ROUNDS: usize = 200_000;
/// The memory limit that each of them is told, in bytes.
const LIMIT: u64 = 128 << 20;
/// Memory that may be taken beside it: reads in flight, and the device's own changes.
const BESIDE: usize = 160 << 20;
/// Bytes that may be read of a device that is refused for its size.
const FEW: u64 = 64 << 20;
/// Number of times that the bytes of a small device may be read.
const TIMES: u64 = 12;
/// A device of more bytes than this is large.
const SMALL: u64 = 64 << 20;
const ORIGIN_BYTES: u64 = 4 << 20;

fn options() -> StoreOptions {
    StoreOptions { memory: Arc::new(MemoryBudget::new(LIMIT)), ..StoreOptions::default() }
}

/// Checks how much was read of a device.
fn check_work(what: &str, device: &ImageDevice) {
    let (reads, bytes) = device.reads();
    say!("{what}: {reads} reads, {bytes} bytes, {} writes", device.writes());
    let size = device.bytes();
    let most = if size > SMALL { FEW } else { FEW.max(TIMES * size) };
    assert!(bytes <= most, "{what} reads {bytes} bytes of a device of {size}");
}

/// Reads what a dump prints.
fn dump(hostile: &Hostile) {
    let image = hostile.device.copy();
    let device: Arc<dyn Device> = Arc::new(image.clone());
    let world = LaneWorld::with_steps(ROUNDS);
    let queue = world.queue(&device);
    world.block_on(async move {
        let Ok(roots) = read_roots(&device, &queue).await else { return };
        if let Ok(Some(mut source)) = CheckpointSource::open(&queue, &roots.superblock).await {
            while let Ok(Some(chunk)) = source.read().await {
                let Ok(items) = source.items(&chunk) else { break };
                let _ = (items.segments().count(), items.entries().count(), items.masks().count());
            }
            let _ = source.finish();
        }
    });
    check_work("dump", &image);
    assert_eq!(image.writes(), 0, "a dump writes");
    // Every page of the first segments as a header.
    let geometry = &hostile.geometry;
    let first = geometry.segments_offset as usize;
    for number in 0..256.min((image.bytes() as usize).saturating_sub(first) / PAGE) {
        let mut page = [0; PAGE];
        image.read(first + number * PAGE, &mut page);
        let _ = record::decode(&page, geometry, &crate::CACHE);
    }
}

/// Does the same as `forebay check`. Returns whether the cache could be recovered.
fn check_only(hostile: &Hostile, quick: bool) -> bool {
    let image = hostile.device.copy();
    let device: Arc<dyn Device> = Arc::new(image.clone());
    let world = LaneWorld::with_steps(ROUNDS);
    let (lane, queues) = (world.lane.clone(), world.queues.clone());
    let checked = world.block_on(async move {
        let open = move |device: &Arc<dyn Device>| device.open_queue(&queues).map(Queue::new);
        let progress = Rc::new(|_, _| ());
        let options = CheckOptions { open: &open, store: options(), quick, progress };
        check(&lane, device, options).await
    });
    check_work("check", &image);
    assert_eq!(image.writes(), 0, "a check writes");
    match checked {
        Ok(report) => {
            say!("checked: {report:?}");
            report.recovered
        }
        Err(error) => {
            say!("check: {error}");
            false
        }
    }
}

fn open(world: &LaneWorld, device: &Arc<dyn Device>) -> Option<Rc<EngineLane>> {
    let (lane, queues) = (world.lane.clone(), world.queues.clone());
    let context = LaneContext { lane, queues, register: Rc::new(|_| ()) };
    let device = device.clone();
    let opened = world.block_on(async move { EngineLane::open(context, device, options()).await });
    opened.inspect_err(|error| say!("open: {error}")).ok().map(|(engine, _)| engine)
}

/// As a daemon would: opens it, starts a volume, reads, writes, drains and closes.
fn serve(image: &ImageDevice) -> bool {
    let device: Arc<dyn Device> = Arc::new(image.clone());
    let origin: Arc<dyn Device> = RamDevice::new("origin", ORIGIN_BYTES).expect("memory");
    let world = LaneWorld::with_steps(ROUNDS);
    let Some(engine) = open(&world, &device) else { return false };
    check_work("open", image);
    let inner = engine.clone();
    let attached = world.block_on(async move { inner.attach("data", origin, false).await });
    say!("attached: {:?}", attached.as_ref().map(|_| ()));
    if attached.is_ok()
        && let Some(target) = engine.target("data")
    {
        for (op, offset) in [(Op::Read, 0), (Op::Write, 4096), (Op::Read, 65536), (Op::Flush, 0)] {
            let len = if op == Op::Flush { 0 } else { 32768 };
            let _ = submit(&world, &target, op, offset, len, 0x55);
        }
        let inner = engine.clone();
        let drained = world.block_on(async move { inner.drain("data", |_| Ok(())).await });
        say!("drained: {:?}", drained.map(|_| ()));
    }
    let closed = world.block_on(async move { engine.close().await });
    say!("closed: {:?}", closed.map(|_| ()));
    true
}

fn try_all(data: &[u8]) {
    let mut choices = Choices::new(data);
    let what = choices.byte();
    let Some(hostile) = Hostile::make(&mut choices) else { return };
    dump(&hostile);
    let recovered = check_only(&hostile, what & 1 != 0);
    let image = hostile.device.copy();
    let opened = serve(&image);
    assert_eq!(recovered, opened, "a check says something else than the start");
    if opened {
        // A device that was opened once stays good, or is refused in order.
        serve(&image);
    }
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    memory::within(LIMIT as usize + BESIDE, || try_all(data));
}
