//! The engine on RAM devices, driven from one thread: data paths, modes, recovery.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Durability, Mode, Op};
use forebay_engine::{
    BlockService, EngineErrorKind, EngineLane, LaneContext, LaneVolume, Settings, TableChange,
};
use forebay_lane::{Lane, LaneId};
use forebay_store::StoreOptions;
use forebay_testkit::{peek, ram};

use crate::world::{World, settings};

/// Runs random requests on a volume and on a model, and compares them.
fn exercise(
    world: &World,
    target: &Rc<LaneVolume>,
    model: &mut [u8],
    rng: &mut fastrand::Rng,
    steps: usize,
) {
    let sectors = (model.len() / 512) as u64;
    for step in 0..steps {
        let first = rng.u64(0..sectors);
        let most = if rng.bool() { 8 } else { 300 };
        let count = rng.u64(1..=(sectors - first).min(most));
        let (offset, len) = (first * 512, (count * 512) as usize);
        let range = offset as usize..offset as usize + len;
        match rng.u32(0..100) {
            0..45 => {
                let data = vec![rng.u8(1..); len];
                world.write(target, offset, &data);
                model[range].copy_from_slice(&data);
            }
            45..90 => {
                let data = world.read(target, offset, len);
                assert!(data == model[range], "step {step}: {len} bytes at {offset} differ");
            }
            90..94 => {
                world.op(target, Op::WriteZeroes, offset, len as u64);
                model[range].fill(0);
            }
            94..96 => world.op(target, Op::Prefetch, offset, len as u64),
            96..98 => world.op(target, Op::Flush, 0, 0),
            _ => world.advance(Duration::from_millis(rng.u64(1..3000))),
        }
    }
}

fn verify(world: &World, target: &Rc<LaneVolume>, model: &[u8]) {
    for (number, chunk) in model.chunks(128 << 10).enumerate() {
        let data = world.read(target, (number * (128 << 10)) as u64, chunk.len());
        for (sector, (got, expected)) in data.chunks(512).zip(chunk.chunks(512)).enumerate() {
            assert!(
                got == expected,
                "sector {} differs: {} instead of {}",
                number * 256 + sector,
                got[0],
                expected[0]
            );
        }
    }
}

#[test]
fn every_mode_and_block_size_returns_what_was_written() {
    for mode in Mode::ALL {
        for (block, cache_mib, alignment) in
            [(2048, 8, 512), (4096, 8, 0), (4096, 8, 512), (65536, 24, 1024), (1 << 20, 160, 0)]
        {
            for durability in Durability::ALL {
                let world = World::new();
                let (cache, origin) = (ram(cache_mib), ram(12));
                let engine = world.new_cache(&cache, BlockSize::new(block).expect("valid"));
                let settings = Settings { durability: *durability, ..settings(*mode) };
                let target = world.create(&engine, &origin, settings, alignment);
                let mut model = vec![0u8; target.size() as usize];
                let mut rng = fastrand::Rng::with_seed(block + cache_mib);
                exercise(&world, &target, &mut model, &mut rng, 150);
                verify(&world, &target, &model);
                world.drain(&engine).expect("drained");
                assert!(
                    peek(&origin, 0, model.len()) == model,
                    "{mode} {block}: the origin differs"
                );
                world.close(&engine).expect("closed");
            }
        }
    }
}

#[test]
fn data_survives_an_orderly_stop_and_a_sudden_end() {
    for sudden in [false, true] {
        let (cache, origin) = (ram(8), ram(12));
        let mut model = vec![0u8; 12 << 20];
        let mut rng = fastrand::Rng::with_seed(3);
        for round in 0..6 {
            let world = World::new();
            let target;
            let engine;
            if round == 0 {
                engine = world.new_cache(&cache, BlockSize::DEFAULT);
                target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
            } else {
                let (opened, report) = world.open(&cache);
                engine = opened;
                assert_eq!(report.clean, !sudden, "round {round}");
                assert!(report.blocks > 0, "the cache is cold");
                target = world.attach(&engine, &origin);
            }
            verify(&world, &target, &model);
            exercise(&world, &target, &mut model, &mut rng, 200);
            world.op(&target, Op::Flush, 0, 0);
            if sudden {
                world.lane.abandon();
            } else {
                world.close(&engine).expect("closed");
            }
        }
    }
}

#[test]
fn strict_writes_are_durable_without_a_flush() {
    let (cache, origin) = (ram(8), ram(12));
    let world = World::new();
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let strict = Settings { durability: Durability::Strict, ..settings(Mode::Writeback) };
    let target = world.create(&engine, &origin, strict, 0);
    assert!(target.write_now(0, &[1; 4096]).is_none(), "who does not wait cannot know");
    world.write(&target, 0, &[2; 4096]);
    world.write(&target, 8192 + 512, &[3; 1024]);
    world.lane.abandon();
    let world = World::new();
    let (engine, _) = world.open(&cache);
    let target = world.attach(&engine, &origin);
    assert_eq!(world.read(&target, 0, 4096), [2; 4096]);
    assert_eq!(world.read(&target, 8192 + 512, 1024), [3; 1024]);
}

/// A shifted grid may have one additional block, which must not be the first one of the next
/// volume.
#[test]
fn volumes_side_by_side_have_their_own_first_and_last_blocks() {
    for alignment in [0, 512, 3584] {
        let world = World::new();
        let cache = ram(8);
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let targets = ["a", "b", "c"].map(|name| {
            world.create_as(&engine, name, &ram(4), settings(Mode::Writeback), alignment)
        });
        let ends = [0, (4 << 20) - 4096];
        for (target, byte) in targets.iter().zip(1..) {
            ends.iter().for_each(|end| world.write(target, *end, &[byte; 4096]));
        }
        for (target, byte) in targets.iter().zip(1..) {
            for end in ends {
                let read = world.read(target, end, 4096);
                assert!(read == [byte; 4096], "{} at {end}: {}", target.volume().name, read[0]);
            }
        }
    }
}

#[test]
fn switching_modes_keeps_every_byte() {
    let world = World::new();
    let (cache, origin) = (ram(8), ram(12));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    let mut model = vec![0u8; 12 << 20];
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..20 {
        exercise(&world, &target, &mut model, &mut rng, 60);
        let next = settings(Mode::ALL[round % Mode::ALL.len()]);
        world.set(&engine, next).expect("set");
    }
    verify(&world, &target, &model);
    let inner = engine.clone();
    let deleted =
        world.block_on(async move { inner.delete("data", false, |_| Ok(()), || Ok(())).await });
    assert_eq!(deleted.expect("deleted"), TableChange::OnDevice);
    assert!(peek(&origin, 0, model.len()) == model);
    assert_eq!(engine.cache.store.index.len(), 0);
    drop(target);
    world.advance(Duration::from_secs(1));
    assert_eq!(Arc::strong_count(&origin), 1, "it is still open");
}

#[test]
fn a_checkpoint_names_the_volumes_of_a_large_index() {
    let (world, cache) = (World::new(), ram(64));
    world.format(&cache, BlockSize::DEFAULT);
    let options = StoreOptions { load_later_from: 2, ..StoreOptions::default() };
    let (engine, _) = world.open_with(&cache, options);
    let create = |name| world.create_as(&engine, name, &ram(4), settings(Mode::Writeback), 0);
    let is_due = || engine.cache.store.checkpoint_is_due();
    let pass = || world.advance(Duration::from_secs(3));
    let first = create("a");
    world.write(&first, 0, &[1; 4096]);
    pass();
    assert!(!is_due(), "a small index is loaded first in any case");
    world.write(&first, 4096, &[2; 4096]);
    assert!(is_due());
    pass();
    assert!(!is_due());
    // A checkpoint is due from then on, and may have been written before this ends.
    create("b");
    pass();
    assert!(!is_due());
}

#[test]
fn a_lane_without_counters_does_not_join_a_cache() {
    let (world, cache) = (World::new(), ram(8));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let lane = Lane::new(LaneId(1), world.clock.clone(), || ());
    let context = LaneContext { lane, ..world.context.clone() };
    let refused = EngineLane::join(&engine.cache, context).map(drop);
    assert_eq!(refused.map_err(|error| error.kind), Err(EngineErrorKind::Refused));
}
