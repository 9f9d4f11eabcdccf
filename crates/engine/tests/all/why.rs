//! Every miss, bypass, eviction and writeback has a reason, and the counts add up.

use std::rc::Rc;
use std::time::Duration;

use forebay_core::why::{MissCounts, Why};
use forebay_core::{BlockSize, CounterTotals, Mode, Op, QuietHours};
use forebay_engine::{EngineLane, LaneVolume, Settings};
use forebay_testkit::ram;

use crate::world::{World, settings};

const BLOCK: u64 = 4096;

fn start(
    cache_mib: u64,
    origin_mib: u64,
    settings: Settings,
) -> (World, Rc<EngineLane>, Rc<LaneVolume>) {
    let world = World::new();
    let cache = ram(cache_mib);
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &ram(origin_mib), settings, 0);
    // Without a sync the origin could still lose writes of an earlier run, so nothing would be
    // filled.
    world.op(&target, Op::Flush, 0, 0);
    (world, engine, target)
}

fn why(target: &Rc<LaneVolume>) -> Why {
    let volume = target.volume();
    let (why, totals) = (volume.stats.why(), volume.stats.totals());
    assert_eq!(why.miss.total(), totals.read_misses + totals.read_partial, "{why:?}");
    assert_eq!(why.written_back.total(), totals.written_back_blocks, "{why:?}");
    why
}

fn set(world: &World, engine: &Rc<EngineLane>, settings: Settings) {
    world.set(engine, settings).expect("set");
}

#[test]
fn a_block_that_was_never_here_is_cold_and_then_a_hit() {
    let (world, _engine, target) = start(32, 32, settings(Mode::Writeback));
    for block in 0..50 {
        world.read(&target, block * BLOCK, BLOCK as usize);
        world.read(&target, block * BLOCK, BLOCK as usize);
    }
    let expected = Why { miss: MissCounts { cold: 50, ..MissCounts::default() }, ..Why::default() };
    assert_eq!(why(&target), expected);
    assert_eq!(target.volume().stats.totals().read_hits, 50);
}

#[test]
fn misses_have_the_cause_of_the_blocks_removal() {
    let (world, engine, target) = start(16, 64, settings(Mode::Writethrough));
    // Invalidated: overwritten on the origin.
    world.read(&target, 0, 4 * BLOCK as usize);
    set(&world, &engine, settings(Mode::Writearound));
    world.write(&target, BLOCK, &[1; 2 * BLOCK as usize]);
    world.op(&target, Op::Flush, 0, 0);
    world.read(&target, BLOCK, BLOCK as usize);
    let now = why(&target);
    assert_eq!((now.miss.cold, now.miss.invalidated, now.invalidated.write_around), (1, 1, 2));
    assert_eq!((now.bypass.mode, now.bypass.total()), (1, 1));
    // Evicted: read more than the cache holds, twice.
    for _ in 0..2 {
        for block in 0..(64 << 20) / BLOCK {
            world.read(&target, block * BLOCK, BLOCK as usize);
        }
        // Let reclaim catch up.
        world.advance(Duration::from_secs(1));
    }
    let now = why(&target);
    assert!(now.evicted.reclaim > 10_000, "{now:?}");
    assert_eq!(now.evicted.total(), now.evicted.reclaim + now.evicted.no_room);
    // A pass over four times the capacity exceeds the reach of the ghosts.
    assert!(now.miss.cold > 25_000 && now.miss.evicted < 2_000, "{now:?}");
}

#[test]
fn a_second_look_at_what_was_just_evicted_says_so() {
    let (world, engine, target) = start(16, 64, settings(Mode::Writearound));
    let blocks = (64 << 20) / BLOCK;
    for block in 0..blocks {
        world.read(&target, block * BLOCK, BLOCK as usize);
    }
    world.advance(Duration::from_secs(1));
    let before = why(&target);
    // The blocks that were evicted last, approximately.
    let held = engine.cache.store.index.len();
    for block in blocks - held - 1000..blocks - held - 500 {
        world.read(&target, block * BLOCK, BLOCK as usize);
    }
    let evicted = why(&target).miss.evicted - before.miss.evicted;
    assert!(evicted > 400, "{evicted} of 500");
    // The blocks that were evicted first no longer have ghosts.
    let cold = why(&target).miss.cold;
    for block in 0..100 {
        world.read(&target, block * BLOCK, BLOCK as usize);
    }
    let cold = why(&target).miss.cold - cold;
    assert!(cold > 80, "{cold} of 100");
}

#[test]
fn a_discarded_block_is_invalidated() {
    let (world, _engine, target) = start(32, 32, settings(Mode::Writeback));
    world.read(&target, 0, 64 * BLOCK as usize);
    world.op(&target, Op::Discard, 0, 64 * BLOCK);
    world.op(&target, Op::Flush, 0, 0);
    let discards = why(&target).invalidated.discard;
    world.read(&target, 0, BLOCK as usize);
    let now = why(&target);
    // The device may or may not support discards.
    assert!(discards == 0 || discards == 64, "{discards}");
    assert_eq!(now.miss.invalidated, u64::from(discards > 0), "{now:?}");
}

#[test]
fn sectors_that_were_not_written_are_a_partial_miss() {
    let (world, _engine, target) = start(32, 32, settings(Mode::Writeback));
    world.write(&target, 0, &[7; 512]);
    world.read(&target, 512, 512);
    world.read(&target, 1024, 512);
    assert_eq!(why(&target).miss, MissCounts { partial: 1, ..MissCounts::default() });
}

#[test]
fn streams_and_modes_are_told_apart_in_misses_and_bypasses() {
    let cutoff = Settings { sequential_cutoff: 64 << 10, ..settings(Mode::Writeback) };
    let (world, engine, target) = start(16, 64, cutoff.clone());
    // Fill the cache, because streams do not bypass it while there is spare space.
    for block in (4096..16384).step_by(2) {
        world.read(&target, block * BLOCK, BLOCK as usize);
    }
    let cold = why(&target).miss.cold;
    for step in 0..32 {
        world.read(&target, step * BLOCK, BLOCK as usize);
    }
    for step in 0..32 {
        world.write(&target, (8 << 20) + step * BLOCK, &[1; BLOCK as usize]);
    }
    let now = why(&target);
    assert_eq!((now.miss.cold - cold, now.miss.sequential), (16, 16));
    assert_eq!((now.bypass.sequential, now.bypass.total()), (32, 32));
    // These modes give the same result without the cut-off.
    for (mode, at, writes) in [(Mode::Writeonly, 16, 0), (Mode::Passthrough, 24, 1)] {
        set(&world, &engine, Settings { mode, ..cutoff.clone() });
        let before = why(&target);
        world.read(&target, at << 20, BLOCK as usize);
        world.write(&target, (at + 1) << 20, &[1; BLOCK as usize]);
        let after = why(&target);
        assert_eq!(after.miss.mode - before.miss.mode, 1, "{mode}");
        assert_eq!(after.bypass.mode - before.bypass.mode, 1 + writes, "{mode}");
    }
}

#[test]
fn writes_acknowledged_by_the_origin_are_counted() {
    let (world, engine, target) = start(32, 32, settings(Mode::Writeback));
    let modes = [
        (Mode::Writeback, 0),
        (Mode::Writeonly, 0),
        (Mode::Writethrough, 2),
        (Mode::Writearound, 2),
        (Mode::Passthrough, 2),
    ];
    for (turn, (mode, through)) in modes.into_iter().enumerate() {
        set(&world, &engine, settings(mode));
        let before = target.volume().stats.totals();
        let at = turn as u64 * (1 << 20);
        world.write(&target, at, &[1; 4 * BLOCK as usize]);
        world.write(&target, at + BLOCK, &[2; 512]);
        let after = target.volume().stats.totals();
        let all = |totals: &CounterTotals| totals.write_hits + totals.write_misses;
        assert_eq!(all(&after) - all(&before), 2, "{mode}");
        assert_eq!(after.write_through - before.write_through, through, "{mode}");
    }
}

#[test]
fn writeback_says_what_started_it() {
    let quiet = || {
        let mut quiet = settings(Mode::Writeback);
        quiet.idle = Duration::ZERO;
        quiet.dirty_age = Duration::ZERO;
        quiet
    };
    let mut idle = quiet();
    idle.idle = Duration::from_secs(2);
    let mut age = quiet();
    age.dirty_age = Duration::from_secs(2);
    let mut high = quiet();
    (high.dirty_high, high.dirty_low) = (0, 0);
    let mut hours = quiet();
    hours.quiet_hours = QuietHours::new(0, 24 * 60 - 1);
    for (name, settings) in [
        ("idle", idle),
        ("dirty_age", age),
        ("dirty_high", high),
        ("quiet_hours", hours),
        ("drain", quiet()),
        ("mode", quiet()),
    ] {
        let (world, engine, target) = start(32, 32, settings);
        world.write(&target, 0, &[1; 8 * BLOCK as usize]);
        match name {
            "drain" => {
                world.drain(&engine).expect("drained");
            }
            "mode" => set(&world, &engine, self::settings(Mode::Writearound)),
            _ => (),
        }
        world.advance(Duration::from_secs(5));
        let mut counted = Vec::new();
        why(&target).each(|group, reason, count| {
            if group == "written_back" && count > 0 {
                counted.push((reason, count));
            }
        });
        assert_eq!(counted, [(name, 8)]);
    }
}

#[test]
fn room_that_only_writeback_can_make_is_counted_as_that() {
    let mut never = settings(Mode::Writeback);
    never.writeback_running = false;
    let (world, _engine, target) = start(16, 64, never);
    for block in 0..(48 << 20) / BLOCK {
        world.write(&target, block * BLOCK, &[1; BLOCK as usize]);
    }
    let now = why(&target);
    let made = now.written_back.full + now.written_back.reclaim;
    assert!(made > 4_000 && now.written_back.full > 0, "{now:?}");
    assert_eq!(now.written_back.total(), made);
    assert!(now.evicted.reclaim > 4_000, "{now:?}");
}
