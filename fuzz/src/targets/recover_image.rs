//! A cache device that was damaged on purpose, at several places and with corrected checksums, is
//! opened; every block is read; it is used, and opened once more.
//!
//! The first byte of the input chooses the image and the later steps. Then follow
//! [patches](crate::patches).
//!
//! FOREBAY_FUZZ_VERBOSE=1 prints the effects of an input.

use std::rc::Rc;
use std::sync::Arc;

use crate::device::ImageDevice;
use crate::image::IMAGES;
use crate::patches::{mend_all, patch};
use crate::{memory, mend, mutation, say};
use forebay_core::OriginBlock;
use forebay_device::Device;
use forebay_store::{
    Appended, Class, Condition, RecoveryReport, Store, StoreError, StoreLane, StoreOptions, Version,
};
use forebay_testkit::LaneWorld;

/// Bits of the first byte.
const IMAGE: u8 = 3;
const NO_MENDING: u8 = 1 << 3;
const APPEND: u8 = 1 << 4;
const CLOSE: u8 = 1 << 5;

/// Rounds of the lane that any one thing may take on these images.
const ROUNDS: usize = 50_000;
/// Memory that a small cache needs, buffers of the log included, in bytes.
const MEMORY: usize = 96 << 20;
/// Patches that are applied; further ones are left out.
const PATCHES: usize = 32;

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let mut rng = fastrand::Rng::with_seed(u64::from(seed));
    if rng.bool() || size == 0 || size + 12 > max_size {
        return mutation::change(data, size, max_size);
    }
    // A further patch: one number, at a place that is likely to be a field.
    let numbers = [0, 1, 2, 0x7f, 0x80, 0xff, 0xffff, 1 << 31, u64::MAX, u64::MAX - 1, 1 << 44];
    let number = match rng.u32(0..3) {
        0 => rng.u64(0..64),
        1 => rng.u64(..),
        _ => numbers[rng.usize(0..numbers.len())],
    };
    let len = 1 << rng.u8(0..4);
    let reach = 1 << rng.u32(3..12);
    let offset = rng.u16(0..reach) & if rng.bool() { !3 } else { !0 };
    data[size] = rng.u8(0..24);
    mend::put(data, size + 1, &offset.to_le_bytes());
    data[size + 3] = len;
    mend::put(data, size + 4, &number.to_le_bytes()[..usize::from(len)]);
    size + 4 + usize::from(len)
}

type Opened = Result<(Rc<StoreLane>, RecoveryReport), StoreError>;

fn open(world: &LaneWorld, device: &Arc<dyn Device>) -> Opened {
    let (lane, device, queue) = (world.lane.clone(), device.clone(), world.queue(device));
    let options = StoreOptions::default();
    world.block_on(async move { Store::open(&lane, device, queue, options).await })
}

/// Reads every block that the index has; each is good or known to be bad.
fn read_all(world: &LaneWorld, lane: &Rc<StoreLane>) -> u64 {
    let store = lane.store().clone();
    let mut addresses = Vec::new();
    store.index.scan(|address, _| addresses.push(address));
    let spaces: Vec<_> = store.volumes().iter().filter_map(|v| store.space_of(v.id)).collect();
    let count = addresses.len() as u64;
    let lane = lane.clone();
    world.block_on(async move {
        for address in addresses {
            let found = spaces.iter().find_map(|space| Some((space, space.block(address)?)));
            let (space, block) = found.expect("every block belongs to a volume");
            let pinned = store.look_up(space, block).expect("it was in the index");
            // A bad block is reported, which is good.
            let _ = lane.read_block(space, pinned).await;
        }
    });
    count
}

/// Blocks in the index, and how many of them are dirty.
fn content(lane: &StoreLane) -> (u64, u64) {
    let (mut blocks, mut dirty) = (0, 0);
    lane.store().index.scan(|_, entry| {
        blocks += 1;
        dirty += u64::from(entry.dirty);
    });
    (blocks, dirty)
}

/// Appends a few blocks and reads them back.
fn append(world: &LaneWorld, lane: &Rc<StoreLane>) {
    let store = lane.store().clone();
    let Some(space) = store.volumes().first().and_then(|volume| store.space_of(volume.id)) else {
        return;
    };
    let mut done = Vec::new();
    for block in (0..space.blocks.min(4)).map(OriginBlock) {
        let condition = Condition::Always;
        let version = Version { space: &space, block, dirty: true, mask: None, rank: 0, condition };
        let byte = 0xa0 + block.0 as u8;
        if let Appended::Done { .. } = lane.append(version, Class::Foreground, |to| to.fill(byte)) {
            done.push((block, byte));
        }
    }
    let inner = lane.clone();
    if world.block_on(async move { inner.commit().await }).is_err() {
        return;
    }
    let lane = lane.clone();
    world.block_on(async move {
        for (block, byte) in done {
            let pinned = store.look_up(&space, block).expect("it was appended");
            let data = lane.read_block(&space, pinned).await.expect("it was durable");
            assert!(data.iter().all(|found| *found == byte), "{block:?} is not what was appended");
        }
    });
}

fn open_and_use(data: &[u8]) {
    let Some((&choice, mut rest)) = data.split_first() else { return };
    let image = &IMAGES[usize::from(choice & IMAGE)];
    let overlay = ImageDevice::new(&image.bytes);
    let mut touched = Vec::new();
    while touched.len() < PATCHES {
        let Some(number) = patch(&overlay, &image.spots, &mut rest) else { break };
        touched.push(number);
    }
    if choice & NO_MENDING == 0 {
        mend_all(&overlay, &image.spots, image.cache.as_bytes(), &touched);
    }
    say!("image {}, {choice:#x}, places:", choice & IMAGE);
    for (number, spot) in image.spots.iter().enumerate() {
        say!("  {number}: {spot}");
    }
    let device: Arc<dyn Device> = Arc::new(overlay);
    let before = {
        let world = LaneWorld::with_steps(ROUNDS);
        let (lane, report) = match open(&world, &device) {
            Ok(opened) => opened,
            Err(error) => {
                say!("refused: {error}");
                assert!(!touched.is_empty(), "a good cache does not open: {error}");
                return;
            }
        };
        say!("opened: {report:?}");
        assert_eq!(read_all(&world, &lane), report.blocks);
        if choice & APPEND != 0 {
            append(&world, &lane);
        }
        let content = content(&lane);
        if choice & CLOSE != 0 {
            let inner = lane.clone();
            if world.block_on(async move { inner.checkpoint(true).await }).is_err() {
                return;
            }
        } else if choice & APPEND != 0 {
            let inner = lane.clone();
            if world.block_on(async move { inner.commit().await }).is_err() {
                return;
            }
        }
        content
    };
    // After any damage by a disk, records that recovery has accepted stay good. With forged
    // checksums it must only end.
    let forged = choice & NO_MENDING == 0 && !touched.is_empty();
    let world = LaneWorld::with_steps(ROUNDS);
    match open(&world, &device) {
        Ok((lane, report)) => {
            say!("opened again: {report:?}");
            assert!(forged || (report.blocks, report.dirty) == before, "another content");
            read_all(&world, &lane);
        }
        Err(error) => assert!(forged, "a cache that was opened does not open again: {error}"),
    }
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    // Made before memory is bounded.
    let _ = IMAGES.len();
    memory::within(MEMORY, || open_and_use(data));
}
