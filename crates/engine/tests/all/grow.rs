//! An origin that grows while its volume is stopped, with every state of the last block.

use std::sync::Arc;

use forebay_core::{BlockSize, Mode, Op, VolumeId};
use forebay_device::Device;
use forebay_engine::{BlockService, EngineErrorKind, Settings};
use forebay_store::StoreOptions;
use forebay_testkit::{peek, poke, ram, shortened};

use crate::world::{World, settings};

const OLD: u64 = (3 << 20) + 1536;
const NEW: u64 = 8 << 20;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Last {
    Absent,
    Clean,
    Dirty,
    PartlyDirty,
}

/// Returns cache, disk and expected content of a used volume on the first [`OLD`] bytes of a disk
/// that has further data.
fn used(last: Last, alignment: u64, orderly: bool) -> (Arc<dyn Device>, Arc<dyn Device>, Vec<u8>) {
    used_by(last, alignment, orderly, false)
}

/// Like [`used`], for an ordered volume or not.
fn used_by(
    last: Last,
    alignment: u64,
    orderly: bool,
    ordered: bool,
) -> (Arc<dyn Device>, Arc<dyn Device>, Vec<u8>) {
    let world = World::new();
    let (cache, disk) = (ram(8), ram(NEW >> 20));
    let mut model = vec![0; NEW as usize];
    for (number, sector) in model.chunks_mut(512).enumerate() {
        sector.fill((number % 251) as u8 + 1);
    }
    poke(&disk, 0, &model);
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let cut = shortened(&disk, OLD);
    let mut settings = settings(Mode::Writeback);
    settings.writeback_running = ordered;
    settings.ordered = ordered;
    let target = world.create(&engine, &cut, settings.clone(), alignment);
    assert_eq!(target.size(), OLD);
    if ordered {
        world.run(|| engine.cache.store.is_in_order(VolumeId(1)).then_some(()));
        settings.writeback_running = false;
        world.set(&engine, settings).expect("set");
    }
    let start = match last {
        Last::Absent => OLD,
        Last::Clean => {
            world.read(&target, OLD - 4096, 4096);
            OLD
        }
        Last::Dirty => OLD - 16384,
        Last::PartlyDirty => OLD - 512,
    };
    if start < OLD {
        let data = vec![0xee; (OLD - start) as usize];
        world.write(&target, start, &data);
        model[start as usize..OLD as usize].copy_from_slice(&data);
    }
    world.op(&target, Op::Flush, 0, 0);
    if orderly {
        world.close(&engine).expect("closed");
    } else {
        world.lane.abandon();
    }
    (cache, disk, model)
}

fn room_for(bytes: u64) -> StoreOptions {
    StoreOptions { grown: vec![(VolumeId(1), bytes / 4096 + 1)], ..StoreOptions::default() }
}

#[test]
fn a_grown_origin_is_taken_over_with_what_is_behind_the_old_end() {
    for last in [Last::Absent, Last::Clean, Last::Dirty, Last::PartlyDirty] {
        for (alignment, orderly) in [(0, true), (0, false), (512, false), (2560, false)] {
            let what = format!("{last:?}, alignment {alignment}, orderly {orderly}");
            let (cache, disk, mut model) = used(last, alignment, orderly);
            for round in 0..2 {
                let world = World::new();
                let (engine, _) = world.open_with(&cache, room_for(NEW));
                let target = world.try_attach(&engine, &disk, false).expect(&what);
                assert_eq!(target.size(), NEW, "{what}");
                let found = world.read(&target, OLD - 32768, 65536);
                assert!(found == model[OLD as usize - 32768..][..65536], "{what}, round {round}");
                if round == 1 {
                    world.write(&target, NEW - 4096, &[0x77; 4096]);
                    model[NEW as usize - 4096..].fill(0x77);
                    let drained = world.drain(&engine);
                    drained.expect("drained");
                    assert!(peek(&disk, 0, NEW as usize) == model, "{what}: the origin");
                }
                world.lane.abandon();
            }
        }
    }
}

/// The origin of an ordered volume gets the versions of a block one after the other, in the order
/// of their records. Each includes a tail beyond the old end that no client wrote.
#[test]
fn an_ordered_origin_grows_when_it_has_its_last_block() {
    for alignment in [0, 512] {
        let (cache, disk, model) = used_by(Last::Dirty, alignment, false, true);
        let world = World::new();
        let (engine, _) = world.open_with(&cache, room_for(NEW));
        let target = world.try_attach(&engine, &disk, false).expect("started");
        assert_eq!(target.size(), OLD, "it has to wait");
        let mut running = settings(Mode::Writeback);
        running.ordered = true;
        world.set(&engine, running).expect("set");
        world.drain(&engine).expect("drained");
        assert!(peek(&disk, 0, NEW as usize) == model, "alignment {alignment}");
        world.close(&engine).expect("closed");
        let world = World::new();
        let (engine, _) = world.open_with(&cache, room_for(NEW));
        let target = world.try_attach(&engine, &disk, false).expect("started");
        assert_eq!(target.size(), NEW);
        assert!(world.read(&target, 0, NEW as usize) == model, "alignment {alignment}");
    }
}

/// The index has blocks of the other volume before and after the range that grows.
#[test]
fn a_volume_grows_in_a_cache_that_serves_another() {
    for last in [Last::Absent, Last::Clean, Last::Dirty, Last::PartlyDirty] {
        for orderly in [true, false] {
            let (cache, disk, mut model) = used(last, 512, orderly);
            let world = World::new();
            let (engine, _) = world.open(&cache);
            let other = ram(1);
            let neighbour = world.create_as(&engine, "other", &other, settings(Mode::Writeback), 0);
            world.write(&neighbour, 0, &[0x33; 1 << 20]);
            let target = world.try_attach(&engine, &disk, false).expect("started");
            assert_eq!(target.size(), NEW, "{last:?}");
            assert!(world.read(&target, 0, NEW as usize) == model, "{last:?}");
            for at in [OLD - 4096, NEW - 4096] {
                world.write(&target, at, &[0x77; 4096]);
                model[at as usize..][..4096].fill(0x77);
            }
            assert!(world.read(&neighbour, 0, 1 << 20) == [0x33; 1 << 20], "{last:?}");
            world.op(&target, Op::Flush, 0, 0);
            world.lane.abandon();
            let world = World::new();
            let (engine, _) = world.open(&cache);
            let neighbour = world.attach_as(&engine, "other", &other);
            assert!(world.read(&neighbour, 0, 1 << 20) == [0x33; 1 << 20], "{last:?}");
            let target = world.try_attach(&engine, &disk, false).expect("started");
            assert!(world.read(&target, 0, NEW as usize) == model, "{last:?}");
            world.drain(&engine).expect("drained");
            assert!(peek(&disk, 0, NEW as usize) == model, "{last:?}: the origin");
        }
    }
}

/// Requests of the volume's last run may still insert blocks at its old addresses.
#[test]
fn an_unmovable_volume_keeps_its_size_and_refuses_to_shrink() {
    let (cache, disk, model) = used(Last::Dirty, 0, false);
    let world = World::new();
    let (engine, _) = world.open(&cache);
    let _used = engine.cache.store.use_space_of(VolumeId(1)).expect("it is there");
    world.create_as(&engine, "other", &ram(1), settings(Mode::Writeback), 0);
    let target = world.try_attach(&engine, &disk, false).expect("started");
    assert_eq!(target.size(), OLD);
    assert!(world.read(&target, 0, OLD as usize) == model[..OLD as usize]);
    world.lane.abandon();
    let world = World::new();
    let (engine, _) = world.open(&cache);
    let smaller = shortened(&disk, OLD - 512);
    let refused = world.try_attach(&engine, &smaller, true).map(drop).expect_err("cut");
    assert_eq!(refused.kind, EngineErrorKind::Refused);
}

/// A fill of the neighbourhood of the last block ends at the end of the volume even if the origin
/// is larger, because the following addresses belong to the next volume of the cache.
#[test]
fn a_fill_at_the_end_stays_within_the_volume() {
    let (cache, disk, model) = used(Last::Absent, 0, true);
    let world = World::new();
    let (engine, _) = world.open(&cache);
    let other = ram(1);
    let neighbour = world.create_as(&engine, "other", &other, settings(Mode::Writeback), 0);
    let _used = engine.cache.store.use_space_of(VolumeId(1)).expect("it is there");
    let target = world.try_attach(&engine, &disk, false).expect("started");
    assert_eq!(target.size(), OLD);
    let promoting = Settings { promote: 64 << 10, ..settings(Mode::Writeback) };
    world.set(&engine, promoting).expect("set");
    let before = engine.cache.store.index.len();
    assert!(world.read(&target, OLD - 512, 512) == model[OLD as usize - 512..OLD as usize]);
    assert_eq!(engine.cache.store.index.len(), before + 1, "the last block, and no other");
    assert!(world.read(&neighbour, 0, 65536).iter().all(|byte| *byte == 0));
}
