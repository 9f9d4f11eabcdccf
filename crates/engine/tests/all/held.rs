//! Versions held for ordered writeback, and the free space that they leave to other volumes.

use std::time::Duration;

use forebay_core::{Durability, Mode, Op, Survives};
use forebay_device::IoBuf;
use forebay_engine::{Request, Settings};
use forebay_testkit::{OpKind, peek};

use crate::world::settings;
use crate::world::two::*;

/// Held versions cannot be moved: each keeps a whole segment, and the writers of their volume must
/// not take all segments.
#[test]
fn held_versions_for_a_hung_origin_leave_room_to_others() {
    let mut ordered = Settings { ordered: true, ..settings(Mode::Writeback) };
    // Makes each write a group of its own.
    ordered.durability = Durability::Strict;
    let two = two(16, ordered, settings(Mode::Writeback));
    two.world.write(&two.a, 0, &pattern(0));
    two.world.advance(Duration::from_secs(2));
    two.faults.hang(&OpKind::ALL);
    let mut waits = None;
    for number in 0..8000 {
        let tag =
            two.world.submit(&two.a, Op::Write, number % 64 * 4096, 4096, Some(&pattern(number)));
        for other in 0..8 {
            assert!(write_soon(&two, &two.b, (number * 8 + other) % 8000), "b stops at {number}");
        }
        if !answered(&two, tag) {
            waits = Some(tag);
            break;
        }
    }
    let held = two.engine.cache.store.held_versions(two.a.volume().id);
    assert!(waits.is_some() && held < 1500, "{held} versions are held");
    for block in 0..8000 {
        assert!(write_soon(&two, &two.b, block), "b stops after {block} blocks, {held} are held");
    }
    two.faults.heal();
    assert!(answered(&two, waits.expect("it waits")), "it goes on when the origin is back");
}

/// Blocks in a segment with a held version stay as long as the version, so they count as dirty for
/// the watermarks.
#[test]
fn few_held_versions_in_many_segments_are_written_back_soon() {
    let mut ordered = Settings { ordered: true, ..settings(Mode::Writeback) };
    (ordered.dirty_age, ordered.idle) = (Duration::ZERO, Duration::ZERO);
    (ordered.dirty_high, ordered.dirty_low) = (40, 10);
    (ordered.cache_dirty_high, ordered.cache_dirty_low) = (40, 10);
    let two = two(16, ordered, settings(Mode::Writethrough));
    let dirty = || two.a.volume().dirty_blocks();
    // One held version per segment; the other versions were replaced before any flush.
    let write = |segments: std::ops::Range<u64>| {
        for number in segments {
            two.world.write(&two.a, number * 4096, &pattern(number));
            (0..63).for_each(|_| two.world.write(&two.a, 0, &pattern(number)));
        }
        two.world.advance(Duration::from_secs(10));
    };
    write(1..20);
    assert_eq!(dirty(), 20);
    write(20..40);
    assert!(dirty() < 20, "{} are dirty", dirty());
}

/// An origin that fails a few writes of each attempt would never accept a group that is repeated as
/// a whole.
#[test]
fn only_those_writes_of_a_group_are_repeated_that_failed() {
    let ordered = Settings { ordered: true, ..settings(Mode::Writeback) };
    let two = two(16, ordered, settings(Mode::Writeback));
    two.world.write(&two.a, 0, &pattern(0));
    assert!(two.drain_a().is_ok());
    // No two are adjacent on the origin.
    let blocks = || (100..300).step_by(2);
    blocks().for_each(|block| two.world.write(&two.a, block * 4096, &pattern(block)));
    let before = two.faults.writes();
    for (failing, times) in [(120, 1), (180, 2), (298, 3)] {
        let range = failing * 4096..(failing + 1) * 4096;
        two.faults.fail_next(OpKind::Write, range, times);
    }
    assert!(two.drain_a().is_ok());
    // The counter includes only writes that were executed.
    assert_eq!(two.faults.writes() - before, 100);
    for block in blocks() {
        assert_eq!(peek(&two.origin_of_a, block * 4096, 4096), pattern(block), "block {block}");
    }
}

/// Putting a volume in order begins with a sync of its origin. Until that ends, no version is held
/// and dirty blocks may be moved.
#[test]
fn a_volume_that_cannot_be_put_in_order_leaves_room_to_others() {
    let two = two(16, kept_dirty(), settings(Mode::Writeback));
    for number in 0..60 {
        two.world.write(&two.a, number * 4096, &pattern(number));
        for block in 0..60 {
            two.world.write(&two.b, block * 4096, &pattern(block));
        }
    }
    assert_eq!(two.a.volume().dirty_blocks(), 60);
    two.faults.hang(&OpKind::ALL);
    two.set("a", Settings { ordered: true, ..kept_dirty() });
    for block in 0..8000 {
        assert!(write_soon(&two, &two.b, block), "b stops after {block} blocks");
    }
    assert_eq!(two.a.volume().dirty_blocks(), 60);
    two.faults.heal();
}

/// Puts `a` in order with a version in nearly every segment and an origin that accepts none, so
/// that `b` has no free space except the reserve.
fn starve(two: &Two) {
    for number in 0..70 {
        two.world.write(&two.a, number * 4096, &pattern(number));
        for block in 0..60 {
            two.world.write(&two.b, block * 4096, &pattern(block));
        }
    }
    two.faults.hang(&[OpKind::Write]);
    let ordered = Settings { ordered: true, ..kept_dirty() };
    two.set("a", ordered);
    two.world.advance(Duration::from_secs(1));
    let store = &two.engine.cache.store;
    let (held, all) = (store.segments.with_held(), store.segments.count());
    assert!(held + 8 > all, "versions are held in {held} of {all} segments");
}

/// A stopped volume that holds a version in every segment leaves no free space for an unknown time.
/// Meanwhile other volumes bypass the log, even with the rest of a request that is partly in the
/// log.
#[test]
fn a_stopped_volume_with_held_versions_stops_no_other() {
    for mode in [Mode::Writeback, Mode::Writeonly, Mode::Writethrough] {
        let two = two(16, kept_dirty(), settings(Mode::Writeback));
        starve(&two);
        two.set("b", settings(mode));
        let _ = two.stop("a");
        // Requests of many blocks, so that the space ends within one of them; some overwrite dirty
        // blocks.
        let long = |first: u64| (first..first + 64).flat_map(pattern).collect::<Vec<u8>>();
        for number in 0..60 {
            let (block, data) = (number * 32, long(number * 32));
            let request = Request {
                tag: 0,
                op: Op::Write,
                offset: block * 4096,
                len: data.len() as u64,
                survives: [Survives::PowerLoss, Survives::Daemon, Survives::Nothing]
                    [number as usize % 3],
                fast: false,
                no_hole: false,
                data: Some(IoBuf::copy_from(&data)),
            };
            let tag = two.world.submit_as(&two.b, request);
            assert!(answered(&two, tag), "{mode}: b stops at block {block}");
        }
        let zeroes = two.world.submit(&two.b, Op::WriteZeroes, 0, MIB, None);
        assert!(answered(&two, zeroes), "{mode}: zeroes do not end");
        for block in 0..1900 {
            let expected = if block < 256 { [0; 4096] } else { pattern(block) };
            assert!(two.world.read(&two.b, block * 4096, 4096) == expected, "{mode}: {block}");
        }
        let round = |two: &Two| two.b.volume().stats.why().bypass.no_room;
        assert!(round(&two) > 0, "{mode}: all of it found room");

        two.faults.heal();
        let a = two.attach_a();
        two.set("a", settings(Mode::Writeback));
        two.world.advance(Duration::from_secs(5));
        let before = round(&two);
        for block in 0..1000 {
            assert!(write_soon(&two, &two.b, block), "{mode}: b stops after {block} blocks");
        }
        assert_eq!(round(&two), before, "{mode}: there is room again");
        for block in 0..70 {
            assert!(two.world.read(&a, block * 4096, 4096) == pattern(block), "{block} of a");
        }
    }
}
