//! The work that one command does without yielding to other tasks of the lane: a few blocks, or one
//! shard of the index.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{BlockSize, Mode, Op, OriginBlock, Slot};
use forebay_device::Device;
use forebay_engine::{EngineErrorKind, EngineLane, LaneVolume};
use forebay_lane::yield_now;
use forebay_store::{Check, Entry, StoreOptions};
use forebay_testkit::{poke, ram};

use crate::world::{Book, World, settings};

const MIB: u64 = 1 << 20;
/// Number of blocks of the volume, which are all cached.
const BLOCKS: u64 = 8192;
const SHARDS: u32 = 16;
/// Maximum number of blocks that are forgotten in one turn.
const STEP: u64 = 1024;

fn options() -> StoreOptions {
    StoreOptions { shards: Some(SHARDS), ..StoreOptions::default() }
}

/// A cache with a volume whose blocks are all cached.
struct Full {
    world: World,
    engine: Rc<EngineLane>,
    target: Rc<LaneVolume>,
    cache: Arc<dyn Device>,
    origin: Arc<dyn Device>,
}

/// Fills the volume with clean blocks, or with dirty ones where `dirty` returns true.
fn full(mode: Mode, dirty: impl Fn(u64) -> bool) -> Full {
    let (world, cache, origin) = (World::new(), ram(64), ram(BLOCKS * 4096 / MIB));
    world.format(&cache, BlockSize::DEFAULT);
    let (engine, _) = world.open_with(&cache, options());
    engine.cache.set_ledger(Arc::<Book>::default());
    let mut settings = settings(mode);
    settings.writeback_running = false;
    let target = world.create(&engine, &origin, settings, 0);
    for at in (0..BLOCKS).step_by(16) {
        match dirty(at) {
            true => world.write(&target, at * 4096, &[3; 16 * 4096]),
            false => _ = world.read(&target, at * 4096, 16 * 4096),
        }
    }
    world.op(&target, Op::Flush, 0, 0);
    Full { world, engine, target, cache, origin }
}

/// Another task of the lane, which sees the progress since its last turn.
#[derive(Default)]
struct Neighbour {
    turns: Cell<u64>,
    most: RefCell<Vec<u64>>,
    ended: Cell<bool>,
}

impl Neighbour {
    /// Observes these numbers.
    fn beside(world: &World, numbers: impl Fn() -> Vec<u64> + 'static) -> Rc<Self> {
        let this = Rc::new(Neighbour::default());
        let (own, mut before) = (this.clone(), numbers());
        *this.most.borrow_mut() = vec![0; before.len()];
        world.lane.spawn(async move {
            while !own.ended.get() {
                let now = numbers();
                let changes = now.iter().zip(&before).map(|(now, before)| now.abs_diff(*before));
                own.most
                    .borrow_mut()
                    .iter_mut()
                    .zip(changes)
                    .for_each(|(most, change)| *most = change.max(*most));
                before = now;
                own.turns.set(own.turns.get() + 1);
                yield_now().await;
            }
        });
        this
    }
}

#[test]
fn a_start_on_a_changed_origin_leaves_turns_to_neighbours() {
    let Full { world, engine, target: _, cache, origin } = full(Mode::Writeback, |at| at < 32);
    world.close(&engine).expect("closed");
    poke(&origin, 5 * MIB, &[9; 1 << 20]);
    poke(&origin, 0, &[9; 1 << 20]);
    let world = World::new();
    let (engine, _) = world.open_with(&cache, options());
    let store = engine.cache.store.clone();
    let own = store.clone();
    let neighbour =
        Neighbour::beside(&world, move || vec![own.index.len(), own.appended_since_checkpoint()]);
    world.try_attach(&engine, &origin, true).expect("started");
    neighbour.ended.set(true);
    assert_eq!(store.index.len(), 32, "the clean ones are gone");
    let most = neighbour.most.borrow().clone();
    assert!(most[0] > 0 && most[0] <= STEP, "{most:?} blocks and bytes of marks in one turn");
    assert!(most[1] <= 6 * 4096, "{most:?} blocks and bytes of marks in one turn");
    // The passes determine which blocks are dirty, which are clean, and how many are dirty in each
    // region.
    let turns = neighbour.turns.get();
    assert!(turns >= 3 * u64::from(SHARDS), "{turns}");
}

#[test]
fn a_start_with_many_dirty_blocks_leaves_turns_to_neighbours() {
    let Full { world, engine, target: _, cache, origin } = full(Mode::Writeback, |at| at < 4096);
    world.close(&engine).expect("closed");
    for load_later_from in [0, u64::MAX] {
        let world = World::new();
        let options = StoreOptions { load_later_from, ..options() };
        let (engine, _) = world.open_with(&cache, options);
        let neighbour = Neighbour::beside(&world, || vec![0]);
        let target = world.try_attach(&engine, &origin, false).expect("started");
        neighbour.ended.set(true);
        if load_later_from > 0 {
            assert!(neighbour.turns.get() >= u64::from(SHARDS), "{}", neighbour.turns.get());
        }
        world.run(|| engine.cache.store.is_loaded().then_some(()));
        assert_eq!(target.volume().dirty_blocks(), 4096);
        assert_eq!(engine.cache.occupancy().values().next().map(|own| own.dirty), Some(4096));
        world.close(&engine).expect("closed");
    }
}

#[test]
fn marks_of_many_blocks_are_logged_in_turns() {
    let Full { world, engine, target, .. } = full(Mode::Writeback, |_| false);
    let store = engine.cache.store.clone();
    let space = store.spaces();
    let (space, _) = space.find(forebay_store::Address(0)).map(|(s, b)| (*s, b)).expect("a volume");
    for block in 0..BLOCKS {
        assert!(store.forget(&space, OriginBlock(block), |_| true).is_some());
    }
    let (before, own) = (store.appended_since_checkpoint(), store.clone());
    let neighbour = Neighbour::beside(&world, move || vec![own.appended_since_checkpoint()]);
    world.op(&target, Op::Flush, 0, 0);
    let lane = engine.clone();
    world.block_on(async move { lane.forget_clean("data", |_| Ok(())).await }).expect("forgotten");
    neighbour.ended.set(true);
    assert!(store.marks_durable());
    let written = store.appended_since_checkpoint() - before;
    assert!(written >= 4 * 6 * 4096 / 2, "{written}");
    let most = neighbour.most.borrow()[0];
    assert!(most <= 6 * 4096, "{most} bytes of marks in one turn");
}

#[test]
fn a_cache_counts_what_is_dirty_in_turns() {
    let Full { world, engine, target: _, cache, .. } = full(Mode::Writeback, |_| true);
    world.close(&engine).expect("closed");
    let mut opened_in = Vec::new();
    for shards in [1, SHARDS] {
        let world = World::new();
        let neighbour = Neighbour::beside(&world, || vec![0]);
        let loaded = StoreOptions { load_later_from: u64::MAX, shards: Some(shards), ..options() };
        let (engine, _) = world.open_with(&cache, loaded);
        opened_in.push(neighbour.turns.get());
        if shards == SHARDS {
            let before = neighbour.turns.get();
            let lane = engine.clone();
            let refused = world.block_on(async move { lane.delete_stopped("data", false).await });
            assert_eq!(refused.map_err(|error| error.kind), Err(EngineErrorKind::DataAtRisk));
            let turns = neighbour.turns.get() - before;
            assert!(turns >= u64::from(SHARDS), "{turns}");
        }
        neighbour.ended.set(true);
    }
    // Two passes of recovery: one that counts dirty blocks, and one for a policy with lists.
    let more = opened_in[1].saturating_sub(opened_in[0]);
    assert!(more >= 4 * u64::from(SHARDS - 1), "{opened_in:?}");
}

#[test]
fn a_checkpoint_on_an_instant_device_leaves_turns_to_neighbours() {
    let mut closed_in = Vec::new();
    for entries in [0, 60_000] {
        let (world, cache, origin) = (World::new(), ram(512), ram(256));
        world.format(&cache, BlockSize::DEFAULT);
        let (engine, _) = world.open_with(&cache, options());
        let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
        let store = engine.cache.store.clone();
        let space = store.space_of(target.volume().id).expect("a volume");
        let geometry = store.geometry();
        let slots = (0..geometry.slot_count()).map(|slot| Slot(slot as u32));
        let places = slots.filter(|slot| geometry.holds_block(*slot)).skip(1 << 14);
        for (block, slot) in (0..entries).zip(places) {
            let entry =
                Entry { slot, dirty: false, partial: false, rank: 0, check: Check::default() };
            let address = space.address(OriginBlock(block));
            store.index.restore(address, entry).expect("room in the index");
        }
        let neighbour = Neighbour::beside(&world, || vec![0]);
        world.close(&engine).expect("closed");
        neighbour.ended.set(true);
        closed_in.push(neighbour.turns.get());
    }
    // A chunk has 16 KiB of entries.
    assert!(closed_in[1] >= closed_in[0] + 3, "{closed_in:?}");
}

#[test]
fn a_sweep_collects_its_blocks_in_turns() {
    let mut swept_in = Vec::new();
    for shards in [1, SHARDS] {
        let Full { world, engine, target: _, cache, origin } = full(Mode::Writeback, |_| true);
        world.close(&engine).expect("closed");
        let world = World::new();
        let options = StoreOptions { load_later_from: u64::MAX, shards: Some(shards), ..options() };
        let (engine, _) = world.open_with(&cache, options);
        let target = world.attach(&engine, &origin);
        let neighbour = Neighbour::beside(&world, || vec![0]);
        world.set(&engine, settings(Mode::Writeback)).expect("set");
        world.drain(&engine).expect("drained");
        neighbour.ended.set(true);
        assert_eq!(target.volume().dirty_blocks(), 0);
        swept_in.push(neighbour.turns.get());
    }
    assert!(swept_in[1] >= swept_in[0] + u64::from(SHARDS - 1), "{swept_in:?}");
}
