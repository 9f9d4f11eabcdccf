//! Requests for long ranges in which little or nothing is cached. If each block were looked up,
//! these tests would not end.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{BlockSize, Mode, Op, OriginBlock};
use forebay_device::{Device, DeviceOp};
use forebay_engine::{BlockService, EngineLane, LaneVolume, StateExtent};
use forebay_store::{Address, StoreOptions};
use forebay_testkit::{ram, void};
use parking_lot::Mutex;

use crate::world::{World, settings};

const TIB: u64 = 1 << 40;
const BLOCK: u64 = 4096;

/// Creates a volume over an origin of any size.
fn create(world: &World, origin: &Arc<dyn Device>, mode: Mode) -> (Rc<EngineLane>, Rc<LaneVolume>) {
    let cache = ram(8);
    world.format(&cache, BlockSize::DEFAULT);
    let room = StoreOptions { room_for_blocks: origin.size() / BLOCK, ..StoreOptions::default() };
    let (engine, _) = world.open_with(&cache, room);
    let target = world.create(&engine, origin, settings(mode), 0);
    (engine, target)
}

/// Returns the states of a whole volume, joined, and the number of answers that they took.
fn map(target: &dyn BlockService) -> (Vec<StateExtent>, u64) {
    let (mut states, mut at, mut answers) = (Vec::new(), 0, 0);
    while at < target.size() {
        for extent in target.states(at, target.size() - at).expect("all is loaded") {
            at += extent.len;
            extent.push(&mut states);
        }
        answers += 1;
    }
    (states, answers)
}

#[test]
fn a_map_and_a_discard_of_64_tib_look_up_only_what_is_cached() {
    let world = World::new();
    let (origin, faults) = world.faulty(void(64 * TIB));
    let (engine, target) = create(&world, &origin, Mode::Writeback);
    let extent = |len, cached, dirty| StateExtent { len, cached, dirty };
    assert_eq!(map(&*target), (vec![extent(64 * TIB, false, false)], 1));

    let cached = [3 * BLOCK, 40 * TIB];
    world.write(&target, cached[0], &[1; BLOCK as usize]);
    world.drain(&engine).expect("drained");
    world.write(&target, cached[1], &[2; BLOCK as usize]);
    let (states, answers) = map(&*target);
    let expected = [
        extent(cached[0], false, false),
        extent(BLOCK, true, false),
        extent(cached[1] - cached[0] - BLOCK, false, false),
        extent(BLOCK, true, true),
        extent(64 * TIB - cached[1] - BLOCK, false, false),
    ];
    assert_eq!(states, expected);
    // The blocks of two regions are looked up.
    assert!(answers < 1000, "{answers}");

    let discarded = Arc::new(Mutex::new((0, 0)));
    let seen = discarded.clone();
    faults.observe(move |op| {
        if let DeviceOp::Discard { offset, len } = op {
            let mut seen = seen.lock();
            assert_eq!(*offset, if *len == 0 { 0 } else { seen.1 }, "one after the other");
            *seen = (seen.0 + 1, seen.1 + len);
        }
    });
    world.op(&target, Op::Discard, 0, 64 * TIB);
    let (pieces, end) = *discarded.lock();
    assert_eq!(end, 64 * TIB);
    assert!(pieces < 70_000, "{pieces}");
    for block in cached {
        assert_eq!(world.read(&target, block, BLOCK as usize), [0; BLOCK as usize]);
    }
}

#[test]
fn regions_that_a_discard_found_empty_are_not_looked_up_again() {
    let world = World::new();
    let (engine, target) = create(&world, &void(TIB), Mode::Writearound);
    let store = &engine.cache.store;
    let spaces = store.spaces();
    let (space, first) = spaces.find(Address(0)).expect("the only volume");
    let vacant = || store.vacant_to(space, first, OriginBlock(space.blocks)).0 == space.blocks;
    assert!(vacant());
    let places: Vec<u64> = (0..50).map(|number| (number * 7919 * BLOCK) % (TIB / 2)).collect();
    for place in &places {
        world.read(&target, *place, BLOCK as usize);
    }
    assert!(!vacant() && store.index.len() >= 50);
    world.op(&target, Op::Discard, 0, TIB);
    assert!(vacant() && store.index.is_empty());
    world.op(&target, Op::Flush, 0, 0);
    world.read(&target, places[3], BLOCK as usize);
    world.read(&target, places[3], BLOCK as usize);
    assert!(!vacant());
}
