//! An origin that was replaced, or written by others, after an orderly stop and after a crash.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Mode, Op};
use forebay_device::{Device, DeviceOp};
use forebay_engine::{EngineErrorKind, EngineLane, LaneVolume, Settings};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::volume::samples::{SAMPLE_BYTES, sample_places};
use forebay_format::{PAGE, Superblock, VolumeRecord, crc32c, volume};
use forebay_testkit::{
    Holder, faulty, peek, poke, ram, with_endless_claims, with_holder, with_inode, with_serial,
};

use crate::world::{World, settings};

const SIZE: u64 = 12 << 20;

/// An origin that asserts before each write that no sample in its range counts as untouched on the
/// cache device.
fn watched(disk: &Arc<dyn Device>, cache: &Arc<dyn Device>) -> Arc<dyn Device> {
    let ((device, faults), cache) = (faulty(disk.clone()), cache.clone());
    faults.observe(move |op| {
        let Some(range) = op.range().filter(|_| !matches!(op, DeviceOp::Read { .. })) else {
            return;
        };
        let samples = record(&cache).samples.expect("they were taken");
        for (number, place) in sample_places(SIZE).into_iter().enumerate() {
            let overlaps = place < range.end && range.start < place + SAMPLE_BYTES;
            assert!(
                !overlaps || samples.untouched >> number & 1 == 0,
                "{range:?} is written while sample {number} counts as untouched"
            );
        }
    });
    device
}

/// Reads the record of the volume from the cache device.
fn record(cache: &Arc<dyn Device>) -> VolumeRecord {
    let chosen = Superblock::choose(&peek(cache, COPY_A, PAGE), &peek(cache, COPY_B, PAGE));
    let chosen = chosen.expect("a cache");
    let table = chosen.volume_table;
    let bytes = peek(cache, chosen.geometry.volume_areas[usize::from(table.area)], 2 * PAGE);
    let volumes = volume::decode(&bytes, &table, &chosen.cache, chosen.geometry.block);
    volumes.expect("a table").into_iter().next().expect("a volume")
}

fn change(disk: &Arc<dyn Device>, offset: u64, byte: u8) {
    poke(disk, offset, &[byte; SAMPLE_BYTES as usize]);
}

fn all(device: &Arc<dyn Device>) -> Vec<u8> {
    peek(device, 0, device.size() as usize)
}

/// A cache device and the disk of its volume.
struct Pair {
    cache: Arc<dyn Device>,
    disk: Arc<dyn Device>,
}

/// Returns the offset of a sample beyond the first 256 KiB.
fn sampled() -> u64 {
    sample_places(SIZE)[70]
}

impl Pair {
    /// Creates a volume that has cached the data around [`sampled`], with a dirty block at another
    /// place if `dirty`, in a process that ended in order or crashed.
    fn used(dirty: bool, orderly: bool) -> Pair {
        Self::used_on(ram(SIZE >> 20), dirty, orderly)
    }

    /// Like [`Pair::used`], with an origin that has data.
    fn used_on(disk: Arc<dyn Device>, dirty: bool, orderly: bool) -> Pair {
        let world = World::new();
        let pair = Pair { cache: ram(8), disk };
        // The content distinguishes it from other disks.
        change(&pair.disk, sample_places(SIZE)[90], 0x33);
        let engine = world.new_cache(&pair.cache, BlockSize::DEFAULT);
        let mut settings = settings(Mode::Writeback);
        settings.writeback_running = false;
        let target = world.create(&engine, &with_serial(&pair.disk, Some("A")), settings, 0);
        world.read(&target, sampled() - (256 << 10), 512 << 10);
        if dirty {
            world.write(&target, 1 << 20, &[7; 4096]);
        }
        world.op(&target, Op::Flush, 0, 0);
        if orderly {
            world.close(&engine).expect("closed");
        } else {
            world.lane.abandon();
        }
        pair
    }

    /// Opens the cache again and starts the volume on `origin`. Asserts that a refusal writes
    /// nothing.
    fn start(
        &self,
        origin: &Arc<dyn Device>,
        force: bool,
    ) -> Result<(World, Rc<EngineLane>, Rc<LaneVolume>), EngineErrorKind> {
        let world = World::new();
        let (engine, _) = world.open(&self.cache);
        let before = (all(&self.cache), all(origin));
        match world.try_attach(&engine, origin, force) {
            Ok(target) => Ok((world, engine, target)),
            Err(error) => {
                assert!(before == (all(&self.cache), all(origin)), "written");
                assert!(error.message.contains("origin"), "{error}");
                Err(error.kind)
            }
        }
    }
}

/// Like the superblock of ext4: a CRC32C follows the data that it covers, so a CRC32C over both is
/// constant.
#[test]
fn a_changed_superblock_with_its_crc_is_noticed_after_a_crash() {
    let superblock = |mounts: u8| {
        let mut page = [0; PAGE];
        page[1024 + 52] = mounts;
        let check = !crc32c(&page[1024..2044]);
        page[2044..2048].copy_from_slice(&check.to_le_bytes());
        page
    };
    assert_eq!(crc32c(&superblock(1)), crc32c(&superblock(2)));
    let disk = ram(SIZE >> 20);
    poke(&disk, 0, &superblock(1));
    let pair = Pair::used_on(disk, true, false);
    let origin = with_serial(&pair.disk, Some("A"));
    drop(pair.start(&origin, false).expect("unchanged"));
    poke(&pair.disk, 0, &superblock(2));
    assert_eq!(pair.start(&origin, false).map(drop), Err(EngineErrorKind::DataAtRisk));
}

#[test]
fn writes_elsewhere_to_an_origin_are_noticed_after_a_crash() {
    for orderly in [true, false] {
        let pair = Pair::used(false, orderly);
        change(&pair.disk, sampled(), 0x55);
        change(&pair.disk, sampled() + SAMPLE_BYTES, 0x66);
        let (world, _, target) =
            pair.start(&with_serial(&pair.disk, Some("A")), false).expect("clean");
        assert_eq!(world.read(&target, sampled(), 4096), [0x55; 4096]);
        assert_eq!(world.read(&target, sampled() + SAMPLE_BYTES, 4096), [0x66; 4096]);

        let pair = Pair::used(true, orderly);
        change(&pair.disk, sampled(), 0x55);
        let disk = with_serial(&pair.disk, Some("A"));
        for _ in 0..2 {
            assert_eq!(pair.start(&disk, false).err(), Some(EngineErrorKind::DataAtRisk));
        }
        let (world, engine, target) = pair.start(&disk, true).expect("forced");
        assert_eq!(world.read(&target, sampled(), 4096), [0x55; 4096]);
        assert_eq!(world.read(&target, 1 << 20, 4096), [7; 4096]);
        // After it was forced once, the origin is accepted from then on.
        world.close(&engine).expect("closed");
        assert!(pair.start(&disk, false).is_ok());
    }
}

#[test]
fn an_origin_that_another_volume_used_is_noticed() {
    // A page without a sample.
    let place = 5 << 20;
    assert!(!sample_places(SIZE).iter().any(|sample| sample.abs_diff(place) < 4096));
    for (orderly, dirty) in [(true, false), (true, true), (false, false), (false, true)] {
        let pair = Pair::used(dirty, orderly);
        let holder = Holder::default();
        // The volume is from a version without claims, and makes one; after that it recognises its
        // own claim.
        for _ in 0..2 {
            let (world, engine, target) =
                pair.start(&with_holder(&pair.disk, &holder), false).expect("its own");
            world.read(&target, place, 4096);
            assert_eq!(*holder.lock(), Some(record(&pair.cache).uuid));
            if orderly {
                world.close(&engine).expect("closed");
            } else {
                world.op(&target, Op::Flush, 0, 0);
                world.lane.abandon();
            }
        }
        // Another volume uses the origin for a while.
        let (world, cache) = (World::new(), ram(8));
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let through = settings(Mode::Writethrough);
        let origin = with_holder(&pair.disk, &holder);
        let target = world.create_as(&engine, "other", &origin, through, 0);
        assert_eq!(*holder.lock(), Some(record(&cache).uuid));
        world.write(&target, place, &[0x99; 4096]);
        world.close(&engine).expect("closed");
        assert_eq!(peek(&pair.disk, place, 512), [0x99; 512], "on the disk");

        let origin = with_holder(&pair.disk, &holder);
        if dirty {
            assert_eq!(pair.start(&origin, false).err(), Some(EngineErrorKind::DataAtRisk));
            assert_eq!(*holder.lock(), Some(record(&cache).uuid), "a refusal claims nothing");
        }
        let (world, _, target) = pair.start(&origin, dirty).expect("nothing is dirty, or forced");
        let found = world.read(&target, place, 4096);
        assert!(found == [0x99; 4096], "{orderly} {dirty}: {:x}", found[0]);
    }
}

#[test]
fn another_device_is_refused_whatever_it_holds() {
    for (dirty, kind) in [(false, EngineErrorKind::Refused), (true, EngineErrorKind::DataAtRisk)] {
        // After a crash the content proves too little: a clone is another device.
        let pair = Pair::used(dirty, false);
        let clone = with_serial(&pair.disk, Some("B"));
        for _ in 0..2 {
            assert_eq!(pair.start(&clone, false).err(), Some(kind));
        }
        assert!(pair.start(&with_serial(&pair.disk, Some("A")), false).is_ok());
        // Nothing is known about the device, so it is not known to be another one.
        let pair = Pair::used(dirty, false);
        assert!(pair.start(&with_serial(&pair.disk, None), false).is_ok());
        assert_eq!(pair.start(&clone, false).err(), Some(kind), "the identity was forgotten");
        // After it was forced once, it is the origin from then on.
        let (world, _, target) = pair.start(&clone, true).expect("forced");
        assert_eq!(world.read(&target, 1 << 20, 4096)[0], if dirty { 7 } else { 0 });
        assert_eq!(pair.start(&with_serial(&pair.disk, Some("A")), false).err(), Some(kind));

        // After an orderly stop, another device with other content is refused as well.
        let pair = Pair::used(dirty, true);
        let other = ram(SIZE >> 20);
        change(&other, sampled(), 0x77);
        assert_eq!(pair.start(&with_serial(&other, Some("B")), false).err(), Some(kind));
        assert!(pair.start(&with_serial(&pair.disk, Some("A")), false).is_ok());
    }
}

#[test]
fn a_file_that_was_moved_in_order_is_known_by_its_content() {
    let pair = Pair::used(true, true);
    // Until now only the serial number of the disk below was known.
    let file = |inode| with_inode(&pair.disk, inode);
    let (world, engine, _) = pair.start(&file("7"), false).expect("nothing differs");
    world.close(&engine).expect("closed");
    let (world, engine, _) = pair.start(&file("8"), false).expect("moved");
    assert_eq!(record(&pair.cache).identity.expect("known").to_string(), "inode 8");
    world.lane.abandon();
    drop(engine);
    assert_eq!(pair.start(&file("7"), false).err(), Some(EngineErrorKind::DataAtRisk));
    assert!(pair.start(&file("8"), false).is_ok());
}

#[test]
fn a_clone_of_a_disk_is_another_one_after_an_orderly_stop_too() {
    for (dirty, kind) in [(false, EngineErrorKind::Refused), (true, EngineErrorKind::DataAtRisk)] {
        let pair = Pair::used(dirty, true);
        let clone = with_serial(&pair.disk, Some("B"));
        assert_eq!(pair.start(&clone, false).err(), Some(kind));
        assert!(pair.start(&clone, true).is_ok());
    }
    let pair = Pair::used(true, true);
    assert!(pair.start(&with_serial(&pair.disk, Some("A")), false).is_ok());
}

#[test]
fn a_blank_origin_is_known_by_its_identity_alone() {
    for (dirty, kind) in [(false, EngineErrorKind::Refused), (true, EngineErrorKind::DataAtRisk)] {
        let pair = Pair::used(dirty, true);
        let blank = |place: &Arc<dyn Device>| change(place, sample_places(SIZE)[90], 0);
        // Stopped in order, with no data at the sample places.
        let (world, engine, _) =
            pair.start(&with_serial(&pair.disk, Some("A")), false).expect("the one that it had");
        blank(&pair.disk);
        world.close(&engine).expect("closed");
        let other = ram(SIZE >> 20);
        assert_eq!(pair.start(&with_serial(&other, Some("B")), false).err(), Some(kind));
        assert!(pair.start(&with_serial(&pair.disk, Some("A")), false).is_ok());
    }
}

/// Writes to some samples in every mode, on an origin that checks the record.
fn write_all_ways(world: &World, engine: &Rc<EngineLane>, target: &Rc<LaneVolume>) {
    for mode in Mode::ALL {
        world.set(engine, settings(*mode)).expect("set");
        let last = sample_places(SIZE).len() - 1;
        for (number, place) in sample_places(SIZE).into_iter().enumerate() {
            // Leave the other samples to the other modes.
            if number % 16 == *mode as usize || number == last && *mode == Mode::Passthrough {
                world.write(target, place + 512, &[*mode as u8 + 1; 1024]);
            }
        }
        world.drain(engine).expect("drained");
    }
    world.op(target, Op::Discard, 0, 24 << 10);
    world.op(target, Op::WriteZeroes, sample_places(SIZE)[40], 64 << 10);
    world.op(target, Op::WriteZeroes, sample_places(SIZE)[80], 1 << 20);
    world.advance(Duration::from_secs(2));
}

#[test]
fn a_sample_is_given_up_before_the_cache_writes_to_it() {
    for block in [2048, 4096, 65536] {
        let (cache, disk) = (ram(24), ram(SIZE >> 20));
        let watching = watched(&disk, &cache);
        let world = World::new();
        let engine = world.new_cache(&cache, BlockSize::new(block).expect("valid"));
        let target = world.create(&engine, &watching, settings(Mode::Writeback), 0);
        let full = record(&cache).samples.expect("taken").untouched;
        assert_eq!(full.count_ones() as usize, sample_places(SIZE).len());
        write_all_ways(&world, &engine, &target);
        let left = record(&cache).samples.expect("taken").untouched;
        assert!(left != full && left != 0, "{left:x}");
        // The cache's own writes do not count as external, and the remaining samples still prove
        // something.
        world.lane.abandon();
        drop((engine, target, world));
        let pair = Pair { cache, disk };
        let (world, engine, _) = pair.start(&watching, false).expect("unchanged");
        assert_eq!(record(&pair.cache).samples.expect("taken").untouched, full);
        world.close(&engine).expect("closed");
    }
}

#[test]
fn a_cache_of_an_earlier_release_starts_with_its_dirty_data() {
    let pair = Pair::used(true, false);
    // A record of the first versions: no identity, no samples, no feature bit.
    let world = World::new();
    let queue = world.context.open(&pair.cache).expect("RAM");
    let (lane, device) = (world.lane.clone(), pair.cache.clone());
    world.block_on(async move {
        let options = forebay_store::StoreOptions::default();
        let opened = forebay_store::Store::open(&lane, device, queue, options).await;
        let (store, _) = opened.expect("a cache");
        let changed = store.change_volumes(|volumes, _| {
            for volume in volumes.iter_mut() {
                (volume.identity, volume.samples) = (None, None);
            }
            Ok(())
        });
        changed.await.expect("RAM");
    });
    let page = |at| peek(&pair.cache, at, PAGE);
    let chosen = Superblock::choose(&page(COPY_A), &page(COPY_B)).expect("a cache");
    assert_eq!(chosen.incompat, 0);
    let (world, _, target) =
        pair.start(&with_serial(&pair.disk, Some("Z")), false).expect("unknown");
    assert_eq!(world.read(&target, 1 << 20, 4096), [7; 4096]);
    let learnt = record(&pair.cache);
    assert!(learnt.identity.is_some() && learnt.samples.is_some());
    assert_eq!(
        pair.start(&with_serial(&pair.disk, Some("Y")), false).err(),
        Some(EngineErrorKind::DataAtRisk)
    );
}

#[test]
fn a_cache_of_many_volumes_rather_has_no_samples_than_no_volume() {
    let world = World::new();
    let cache = ram(8);
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    for number in 0..256u32 {
        let (inner, disk) = (engine.clone(), ram(4));
        let spec = forebay_engine::VolumeSpec {
            name: format!("volume-{number}"),
            origin: "ram".into(),
            uuid: forebay_format::Uuid::from_u128(u128::from(number) + 1),
            alignment: 0,
            settings: Settings::default(),
        };
        world.block_on(async move { inner.create(spec, disk).await.map(drop) }).expect("room");
    }
    let volumes = engine.cache.store.volumes();
    let sampled = volumes.iter().filter(|volume| volume.samples.is_some()).count();
    assert!((80..256).contains(&sampled), "{sampled} volumes have samples");
    world.close(&engine).expect("closed");
}

#[test]
fn a_claim_that_never_ends_fails_the_start_and_nothing_else() {
    let (world, cache, disk) = (World::new(), ram(16), ram(32));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &disk, settings(Mode::Writeback), 0);
    world.write(&target, 0, &[7; 4096]);
    world.stop(&engine, "data").expect("stopped");

    let limit = Duration::from_secs(30);
    let hanging = with_endless_claims(&disk, limit);
    let before = world.lane.now();
    let error = world.try_attach(&engine, &hanging, false).err().expect("given up");
    assert_eq!(error.kind, EngineErrorKind::Failed);
    assert!(error.to_string().contains("has not recorded for 30 s"), "{error}");
    let took = world.lane.now().since(before);
    assert!(took >= limit && took < limit * 2, "{took:?}");

    // The cache continues, and so does the volume when the origin answers again.
    let target = world.attach(&engine, &disk);
    assert_eq!(world.read(&target, 0, 4096), [7; 4096]);
}
