//! A cache that opens under a memory limit also opens after a crash.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Mode, Op};
use forebay_device::Device;
use forebay_engine::{EngineError, EngineLane};
use forebay_lane::MemoryBudget;
use forebay_store::StoreOptions;
use forebay_testkit::{peek, poke, ram};

use crate::world::{World, settings};

const BLOCK: u64 = 4096;

/// Returns a copy of the device, so that each attempt finds the state after the crash.
fn copy(device: &Arc<dyn Device>) -> Arc<dyn Device> {
    let copy = ram(device.size() >> 20);
    poke(&copy, 0, &peek(device, 0, device.size() as usize));
    copy
}

fn open(
    cache: &Arc<dyn Device>,
    limit: u64,
    load_later_from: u64,
) -> Result<(World, Rc<EngineLane>), EngineError> {
    let world = World::new();
    let (context, device) = (world.context.clone(), copy(cache));
    let memory = Arc::new(MemoryBudget::new(limit));
    let options = StoreOptions { memory, load_later_from, ..StoreOptions::default() };
    let opened = world.block_on(async move { EngineLane::open(context, device, options).await });
    opened.map(|(engine, _)| (world, engine))
}

#[test]
fn log_changes_kept_in_memory_allow_a_cache_to_open() {
    let (world, cache, origin) = (World::new(), ram(64), ram(64));
    world.format(&cache, BlockSize::DEFAULT);
    let options = StoreOptions { checkpoint_bytes: Some(24 << 20), ..StoreOptions::default() };
    let engine = world.open_with(&cache, options).0;
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    let write = |block: u64, byte: u8| world.write(&target, block * BLOCK, &[byte; BLOCK as usize]);
    (0..8000).for_each(|block| write(block, 1));
    world.advance(Duration::from_secs(3));
    assert!(!engine.cache.store.checkpoint_is_due(), "one was written");
    (0..4000).for_each(|number| write(number * 2, 2));
    world.op(&target, Op::Flush, 0, 0);

    let loads_first = |limit| open(&cache, limit, u64::MAX).is_ok();
    let (mut too_little, mut enough) = (1u64 << 20, 1 << 30);
    while enough - too_little > 4096 {
        let limit = (too_little + enough) / 2;
        *if loads_first(limit) { &mut enough } else { &mut too_little } = limit;
    }
    let (later, engine) = open(&cache, enough, 2).expect("it opens");
    assert!(engine.cache.store.is_loaded(), "what was in the way has gone");
    let checkpoints = || {
        let store = &engine.cache.store;
        store.geometry().checkpoint_areas.map(|area| peek(store.device(), area, BLOCK as usize))
    };
    let before = checkpoints();
    later.advance(Duration::from_secs(3));
    assert!(checkpoints() != before, "the next start need not read the log");
    let target = later.attach(&engine, &origin);
    for block in (0..8000).step_by(97) {
        let byte = if block % 2 == 0 { 2 } else { 1 };
        assert_eq!(
            later.read(&target, block * BLOCK, BLOCK as usize),
            [byte; BLOCK as usize],
            "{block}"
        );
    }
    let (_, engine) = open(&cache, enough + (64 << 20), 2).expect("it opens");
    assert!(!engine.cache.store.is_loaded(), "there is memory for both");
}
