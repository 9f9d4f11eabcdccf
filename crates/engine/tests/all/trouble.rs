//! Devices that fail or lack operations: errors that are counted, data that is kept, and cases that
//! are no error.

use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op, Survives};
use forebay_engine::{Request, Settings};
use forebay_testkit::{OpKind, peek, ram};

use crate::world::{World, settings};

#[test]
fn failed_reads_are_counted_by_device() {
    let world = World::new();
    let ((cache, cache_faults), (origin, origin_faults)) =
        (world.faulty(ram(8)), world.faulty(ram(12)));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    let counted = || {
        let totals = target.volume().stats.totals();
        (totals.origin_read_errors, totals.cache_read_errors)
    };
    assert_eq!(counted(), (0, 0));
    origin_faults.fail(&[OpKind::Read]);
    for _ in 0..3 {
        assert_eq!(world.outcome(&target, Op::Read, 0, 4096, None), Err(IoError::Io));
    }
    assert_eq!(counted(), (3, 0));
    // Clean blocks that the cache device cannot read come from the origin; each is counted once.
    origin_faults.heal();
    world.read(&target, 0, 64 << 10);
    world.op(&target, Op::Flush, 0, 0);
    world.advance(Duration::from_secs(3));
    for number in 0..64u64 {
        // Fill the log buffers, so that the blocks above must be read from the device.
        world.write(&target, (1 << 20) + number * 65536, &[1; 65536]);
    }
    world.op(&target, Op::Flush, 0, 0);
    cache_faults.fail(&[OpKind::Read]);
    let before = counted();
    world.read(&target, 0, 4096);
    let (origin_errors, cache_errors) = counted();
    assert_eq!(origin_errors, before.0);
    assert!(cache_errors > before.1, "a failed read of the cache device is not counted");
}

#[test]
fn a_discard_keeps_cached_blocks_if_the_origin_cannot_discard() {
    for can in [false, true] {
        let world = World::new();
        let (cache, (origin, faults)) = (ram(8), world.faulty(ram(12)));
        if !can {
            faults.refuse(OpKind::Discard);
        }
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
        world.write(&target, 0, &[9; 256 << 10]);
        world.drain(&engine).expect("drained");
        world.write(&target, 1 << 20, &[8; 4096]);
        let cached = engine.cache.store.index.len();
        for _ in 0..3 {
            assert_eq!(world.outcome(&target, Op::Discard, 0, 2 << 20, None), Ok(()));
        }
        let expected = if can { 0 } else { 9 };
        assert_eq!(world.read(&target, 0, 4096), [expected; 4096]);
        assert_eq!(faults.has_seen_discards(), can, "it is asked, and then known");
        if !can {
            assert_eq!(engine.cache.store.index.len(), cached, "clean copies were forgotten");
            assert_eq!(world.read(&target, 1 << 20, 4096), [8; 4096]);
        }
        // Write zeroes works with or without discards.
        world.op(&target, Op::WriteZeroes, 0, 2 << 20);
        assert_eq!(world.read(&target, 0, 2 << 20), vec![0; 2 << 20]);
        world.drain(&engine).expect("drained");
        assert!(peek(&origin, 0, 2 << 20) == vec![0; 2 << 20]);
    }
}

#[test]
fn zeroes_begin_and_end_within_a_block() {
    for mode in [Mode::Writeback, Mode::Writethrough, Mode::Passthrough] {
        let world = World::new();
        let (cache, origin) = (ram(8), ram(12));
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let target = world.create(&engine, &origin, settings(mode), 0);
        let mut expected = vec![9; 2 << 20];
        world.write(&target, 0, &expected);
        let zeroes = 512..(1 << 20) + 1536;
        world.op(&target, Op::WriteZeroes, zeroes.start as u64, zeroes.len() as u64);
        expected[zeroes].fill(0);
        assert!(world.read(&target, 0, 2 << 20) == expected, "{mode}");
    }
}

#[test]
fn zeroes_that_must_have_space_make_no_hole() {
    for (len, no_hole) in [(2 << 20, true), (64 << 10, true), (2 << 20, false)] {
        let world = World::new();
        let (cache, (origin, faults)) = (ram(8), world.faulty(ram(12)));
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
        world.write(&target, 0, &vec![9; 3 << 20]);
        let (tag, op, offset, fast) = (0, Op::WriteZeroes, 512, false);
        let request = Request {
            tag,
            op,
            offset,
            len,
            survives: Survives::Nothing,
            fast,
            no_hole,
            data: None,
        };
        let tag = world.submit_as(&target, request);
        world.wait(tag).result.expect("zeroed");
        world.drain(&engine).expect("drained");
        assert!(peek(&origin, 512, len as usize).iter().all(|byte| *byte == 0));
        assert_eq!(peek(&origin, 0, 512), [9; 512]);
        assert_eq!(
            faults.has_seen_discards(),
            !no_hole,
            "{len} bytes of zeroes, no_hole: {no_hole}"
        );
    }
}

#[test]
fn a_stop_in_the_middle_of_writeback_is_no_failure() {
    let world = World::new();
    let (cache, origin) = (ram(8), ram(12));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let mut first = settings(Mode::Writeback);
    first.writeback_running = false;
    let target = world.create(&engine, &origin, first, 0);
    for number in 0..1000 {
        world.write(&target, number * 8192, &[3; 4096]);
    }
    let (inner, volume) = (engine.clone(), target.volume().clone());
    world.block_on(async move {
        // Writeback of the dirty blocks starts here, and the stop follows soon.
        inner.set("data", settings(Mode::Writethrough)).await.expect("set");
        inner.stop_volume("data", true).await.expect("stopped");
        assert!(volume.dirty_blocks() > 0, "everything was written back before the stop");
    });
    world.advance(Duration::from_secs(5));
    assert!(target.volume().writeback_error().is_none());
}

/// After a failed sync of an origin with unsynced writes around the cache, nothing proves that the
/// origin is at a flush, so the volume cannot be put in order. In an earlier version its dirty
/// blocks waited for that, and filled the cache.
#[test]
fn a_volume_that_cannot_be_ordered_is_still_written_back() {
    let world = World::new();
    let (cache, (origin, faults)) = (ram(8), world.faulty(ram(12)));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings(Mode::Passthrough), 0);
    world.write(&target, 0, &[1; 4096]);
    faults.fail(&[OpKind::Sync]);
    assert_eq!(world.outcome(&target, Op::Flush, 0, 0, None), Err(IoError::Io));
    faults.heal();

    let ordered = Settings { ordered: true, ..settings(Mode::Writeback) };
    world.set(&engine, ordered).expect("set");
    // Three times the capacity of the cache.
    for round in 0..3u8 {
        for number in 0..128u64 {
            world.write(&target, number * 65536, &[2 + round; 65536]);
        }
    }
    let store = engine.cache.store.clone();
    assert!(!store.is_in_order(target.volume().id), "nobody knows what the origin has");
    let _ = world.drain(&engine);
    assert_eq!(target.volume().dirty_blocks(), 0);
    assert!(peek(&origin, 0, 8 << 20) == vec![4; 8 << 20]);

    // After a restart it is put in order.
    let inner = engine.clone();
    let _ = world.block_on(async move { inner.stop_volume("data", false).await });
    let target = world.attach(&engine, &origin);
    world.write(&target, 0, &[9; 4096]);
    world.op(&target, Op::Flush, 0, 0);
    world.advance(Duration::from_secs(30));
    assert!(store.is_in_order(target.volume().id));
}

#[test]
fn a_write_that_waits_for_the_cache_device_ends_with_its_volume() {
    let world = World::new();
    let ((cache, cache_faults), (origin, origin_faults)) =
        (world.faulty(ram(8)), world.faulty(ram(12)));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    for number in 0..32u64 {
        // Fill the log buffers, so that the first block must be read from the device.
        world.write(&target, number * 65536, &[1; 65536]);
    }
    world.drain(&engine).expect("drained");
    origin_faults.hang(&[OpKind::Read, OpKind::Write, OpKind::Sync]);
    let read = world.submit(&target, Op::Read, 8 << 20, 4096, None);
    world.advance(Duration::from_secs(30));
    cache_faults.hang(&[OpKind::Read]);
    let write = world.submit(&target, Op::Write, 512, 512, Some(&[2; 512]));
    let stopped = world.stop(&engine, "data");
    stopped.expect_err("the origin does not answer");
    assert!(world.done(write).is_none());
    cache_faults.heal();
    assert_eq!(world.wait(write).result, Err(IoError::ShuttingDown));
    origin_faults.heal();
    world.wait(read);
    let target = world.attach(&engine, &origin);
    assert_eq!(target.volume().dirty_blocks(), 0);
    assert_eq!(world.read(&target, 0, 4096), [1; 4096]);
}
