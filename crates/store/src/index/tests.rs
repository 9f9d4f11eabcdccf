//! Scans and look-ups beside changes, masks within their memory.

use std::sync::atomic::{AtomicBool, Ordering};

use forebay_lane::MemoryUse;

use super::*;
use crate::table::Check;

/// Lets another thread remove and insert blocks in a full index, which moves others at nearly every
/// insertion, while `observe` examines it. The first `stays` blocks are never removed; their slots
/// equal their addresses.
fn while_others_move(observe: impl FnOnce(&Index, u64)) {
    let entries = if cfg!(miri) { 200 } else { 40_000 };
    let index = Index::new(TableGeometry::new(entries, 1, 24, 20).expect("fits"), 1);
    let put = |address: u64| {
        let entry = Entry {
            slot: Slot(address as u32 & 0xfffff),
            dirty: false,
            partial: false,
            rank: 1,
            check: Check::new(0),
        };
        let version = NewVersion { entry, mask: None };
        matches!(index.put(Address(address), version, Condition::Always), Put::Done { .. })
    };
    let mut full = 0;
    while put(full) {
        full += 1;
    }
    let stays = full / 2;
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut random = fastrand::Rng::with_seed(1);
            let mut others: Vec<u64> = (stays..full).collect();
            let mut next = full;
            while !done.load(Ordering::Relaxed) {
                let victim = random.usize(..others.len());
                assert!(index.remove(Address(others[victim]), |_| true).is_some());
                while !put(next) {
                    next += 1;
                }
                others[victim] = next;
                next = (next + 1) & 0xff_ffff;
                next = next.max(full);
            }
        });
        observe(&index, stays);
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn a_scan_sees_what_stays_once_while_other_threads_move_it() {
    while_others_move(|index, stays| {
        for _ in 0..if cfg!(miri) { 2 } else { 100 } {
            let mut seen = vec![0u32; stays as usize];
            index.scan(|address, _| {
                if let Some(count) = seen.get_mut(address.0 as usize) {
                    *count += 1;
                }
            });
            assert!(seen.iter().all(|count| *count == 1), "an entry was missed or seen twice");
        }
    });
}

#[test]
fn unlocked_look_ups_find_entries_that_other_threads_move() {
    while_others_move(|index, stays| {
        let mut without_lock = 0u64;
        for round in 0..if cfg!(miri) { 2 } else { 20 * stays } {
            let address = round * 7919 % stays;
            match index.find_unlocked(Address(address), |_| true) {
                Unlocked::Found(entry) => {
                    without_lock += 1;
                    assert_eq!(entry.slot, Slot(address as u32));
                }
                Unlocked::Absent => panic!("block {address} stays"),
                Unlocked::Undecided => (),
            }
            let found = index.peek(Address(address)).expect("it stays");
            assert_eq!(found.entry.slot, Slot(address as u32));
        }
        assert!(without_lock > 0, "each one met a change");
    });
}

#[test]
fn unlocked_look_ups_find_only_whole_blocks_of_loaded_shards() {
    let index = Index::new(TableGeometry::new(100, 1, 20, 20).expect("fits"), 1);
    let find = |index: &Index| index.find_unlocked(Address(3), |_| true);
    let entry = Entry { slot: Slot(5), dirty: true, partial: false, rank: 1, check: Check::new(0) };
    assert_eq!(find(&index), Unlocked::Absent);
    index.restore(Address(3), entry).expect("there is room");
    assert_eq!(find(&index), Unlocked::Found(entry));
    assert_eq!(index.find_unlocked(Address(3), |_| false), Unlocked::Undecided);
    let mut shard = index.shards[0].lock();
    assert_eq!(find(&index), Unlocked::Found(entry), "the lock alone changes nothing");
    let changing = shard.table_mut();
    assert_eq!(find(&index), Unlocked::Undecided, "entries may be between two buckets");
    drop(changing);
    assert_eq!(find(&index), Unlocked::Found(entry));
    drop(shard);
    index.restore(Address(3), Entry { partial: true, ..entry }).expect("there is room");
    assert_eq!(find(&index), Unlocked::Undecided, "its mask is needed as well");

    index.unload();
    assert_eq!(find(&index), Unlocked::Undecided, "its shard is not loaded");
    let mut content = ShardContent { entries: vec![(Address(3), entry)], ..Default::default() };
    let other = Index::new(TableGeometry::new(100, 1, 20, 20).expect("fits"), 1);
    other.unload();
    content.entries.push((Address(3), entry));
    assert!(other.load_shard(0, &mut content).is_err(), "a block twice");
    assert_eq!(find(&other), Unlocked::Undecided, "a half loaded shard counts for nothing");
    content.entries.pop();
    let third = Index::new(TableGeometry::new(100, 1, 20, 20).expect("fits"), 1);
    third.unload();
    third.load_shard(0, &mut content).expect("it fits");
    assert_eq!(find(&third), Unlocked::Found(entry));
}

#[test]
fn there_are_as_many_masks_as_memory_allows_and_no_more() {
    let memory = Arc::new(MemoryBudget::new(256 << 20));
    // Of the 160 MiB that can be held, masks leave 16 for other uses.
    let hold = |bytes| memory.hold(MemoryUse::Process, bytes, "the rest").expect("it fits");
    let _rest = hold((144 << 20) - (100 << 10));
    let geometry = TableGeometry::new(10_000, 1, 20, 20).expect("fits");
    let index = Index::within(geometry, 1, BlockSize::DEFAULT, &memory);
    let version = |partial| {
        let (slot, check) = (Slot(5), Check::new(0));
        let entry = Entry { slot, dirty: true, partial, rank: 1, check };
        NewVersion { entry, mask: partial.then(|| SectorMask::of(8, 0..1)) }
    };
    let in_part = |address| {
        matches!(index.put(Address(address), version(true), Condition::Absent), Put::Done { .. })
    };
    let masks = (0..).take_while(|address| in_part(*address)).count() as u64;
    assert!((500..700).contains(&masks), "{masks}");
    assert!(memory.used(MemoryUse::Index) <= 100 << 10);
    assert!(!index.has_room_for_mask(Address(masks)));
    let ticket = index.begin_fill(Address(masks));
    assert!(matches!(
        index.put(Address(masks), version(true), Condition::Fill(&ticket)),
        Put::NoMask
    ));
    assert!(index.look_up(Address(masks), |_| None).is_none(), "nothing has changed");
    // Whole blocks need no mask, and a block that already has one may replace it.
    assert!(matches!(
        index.put(Address(masks), version(false), Condition::Fill(&ticket)),
        Put::Done { .. }
    ));
    drop(ticket);
    assert!(matches!(
        index.put(Address(0), version(true), Condition::Slot(Slot(5))),
        Put::Done { .. }
    ));
    index.put(Address(0), version(false), Condition::Always);
    assert!(in_part(masks + 1) && !in_part(masks + 2));
    // Restored masks may use the memory that is reserved for other uses.
    let entry = version(true).entry;
    index.restore(Address(masks + 3), entry).expect("there is room");
    let mask = || SectorMask::of(8, 0..1);
    index.restore_mask(Address(masks + 3), mask()).expect("some is left");
    let _all = hold(15 << 20);
    let refused = (masks + 4..9000).find_map(|address| {
        index.restore(Address(address), entry).expect("there is room");
        index.restore_mask(Address(address), mask()).err()
    });
    assert!(matches!(refused, Some(Unfit::Masks(_))), "{refused:?}");
    for address in 0..9000 {
        index.remove(Address(address), |_| true);
    }
    assert!(memory.used(MemoryUse::Index) < 50 << 10, "it is given back");
}

#[test]
fn a_mask_goes_when_its_block_is_whole_or_gone() {
    let index = Index::new(TableGeometry::new(100, 1, 20, 20).expect("fits"), 1);
    let put = |address, mask: Option<SectorMask>| {
        let (slot, partial) = (Slot(5), mask.is_some());
        let entry = Entry { slot, dirty: true, partial, rank: 1, check: Check::new(0) };
        index.put(Address(address), NewVersion { entry, mask }, Condition::Always);
    };
    let masks = || {
        let shard = index.shards[0].lock();
        shard.masks.all().clone()
    };
    let mask = |sectors| SectorMask::of(8, 0..sectors);
    (1..4).for_each(|sectors| put(u64::from(sectors), Some(mask(sectors))));
    assert_eq!(masks(), [1, 2, 3].map(|it| (u64::from(it), mask(it))).into());
    put(1, Some(mask(7)));
    put(2, None);
    index.remove(Address(3), |_| true).expect("it is there");
    assert_eq!(masks(), [(1, mask(7))].into());
    put(1, None);
    assert_eq!(masks(), [].into());
}

/// Widens an index in steps, to the highest possible number of addresses.
fn widen(index: &Index) {
    for bits in index.geometry().key_bits() + 1.. {
        let Ok(wide) = index.begin_widening(bits) else { return };
        (0..index.shard_count()).for_each(|shard| index.widen_shard(shard, &wide));
        index.widened(&wide);
        assert_eq!(index.room(), 1 << bits);
        std::thread::yield_now();
    }
}

#[test]
fn a_look_up_finds_the_right_entry_while_the_index_is_widened() {
    while_others_move(|index, stays| {
        let before = index.check_bits();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 0..u64::MAX {
                    if done.load(Ordering::Relaxed) && round >= stays {
                        break;
                    }
                    let address = round * 7919 % stays;
                    let found = index.peek(Address(address)).expect("it stays");
                    assert_eq!(found.entry.slot, Slot(address as u32));
                    assert!(index.check_matches(&found.entry, 0));
                }
            });
            widen(index);
            done.store(true, Ordering::Relaxed);
        });
        assert!(index.check_bits() < before && index.check_bits() == 16);
    });
}

#[test]
fn a_widened_index_holds_what_it_held_and_blocks_beyond() {
    let mut random = fastrand::Rng::with_seed(4);
    let entries = if cfg!(miri) { 100 } else { 30_000u64 };
    let index = Index::new(TableGeometry::new(entries, 3, 20, 18).expect("fits"), 3);
    let mut model = std::collections::BTreeMap::new();
    let mut put = |index: &Index, address: u64| {
        let mask = random.bool().then(|| SectorMask::of(8, 0..random.u32(1..8)));
        let entry = Entry {
            slot: Slot(random.u32(..1 << 18)),
            dirty: random.bool(),
            partial: mask.is_some(),
            rank: random.u8(..16),
            check: Check::new(random.u32(..)),
        };
        let version = NewVersion { entry, mask: mask.clone() };
        let put = index.put(Address(address), version, Condition::Always);
        assert!(matches!(put, Put::Done { .. }));
        model.insert(address, (entry, mask));
    };
    // There are enough keys that some are in their second bucket.
    (0..entries / 2).for_each(|address| put(&index, address * 7));
    widen(&index);
    let (last, stride) = (index.room() - 1, index.room() / entries);
    (0..entries / 2 - 1).for_each(|number| put(&index, last - number * stride));
    assert!(index.begin_widening(56).is_err());

    let mut seen = 0;
    index.scan(|address, entry| {
        let (wanted, _) = model[&address.0];
        let same = Entry { check: entry.check, ..wanted } == *entry;
        assert!(same && index.check_matches(entry, wanted.check.high_bits()), "{address:?}");
        assert!(!index.check_matches(entry, !wanted.check.high_bits()));
        seen += 1;
    });
    assert_eq!(seen, model.len());
    for (address, (_, mask)) in &model {
        assert_eq!(index.look_up(Address(*address), |_| None).expect("there").mask, *mask);
    }
}

#[test]
fn a_block_is_at_one_of_two_addresses_while_it_moves() {
    let index = Index::new(TableGeometry::new(1000, 8, 20, 20).expect("fits"), 8);
    let (from, to) = (Address(77), Address(4000));
    assert_ne!(index.shard_of(from), index.shard_of(to));
    let mask = SectorMask::of(8, 0..3);
    let entry = Entry {
        slot: Slot(9),
        dirty: true,
        partial: true,
        rank: 3,
        check: Check::new(0xf000_0000),
    };
    let version = |mask| NewVersion { entry, mask };
    for _ in 0..50 {
        index.put(from, version(Some(mask.clone())), Condition::Always);
    }
    let sequence = index.highest_sequence();
    assert_eq!(index.relocate(Address(78), to), Relocated::Absent);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..if cfg!(miri) { 20 } else { 20_000 } {
                let (from, to) = if round % 2 == 0 { (from, to) } else { (to, from) };
                assert_eq!(index.relocate(from, to), Relocated::Done);
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            for address in [from, to] {
                if let Some(found) = index.look_up(address, |_| None) {
                    assert_eq!((found.entry, found.mask), (entry, Some(mask.clone())));
                }
            }
        }
    });
    assert_eq!((index.len(), index.relocate(from, to)), (1, Relocated::Done));
    let Put::Done { sequence: next, old } = index.put(to, version(None), Condition::Always) else {
        panic!("there is room");
    };
    assert_eq!(old, Some(entry));
    assert!(next > sequence, "a later version would lose against one from before the move");
    // Within a shard too.
    let near = (5000..).map(Address).find(|near| index.shard_of(*near) == index.shard_of(to));
    assert_eq!(index.relocate(to, near.expect("one of eight")), Relocated::Done);
    assert_eq!(index.len(), 1);
}

/// Regions of 16 addresses.
fn regions() -> Index {
    Index::new(TableGeometry::new(1000, 1, 20, 20).expect("fits"), 1)
}

fn insert(index: &Index, address: u64) {
    let entry = Entry { slot: Slot(7), dirty: true, partial: false, rank: 0, check: Check::new(0) };
    let put = index.put(Address(address), NewVersion { entry, mask: None }, Condition::Always);
    assert!(matches!(put, Put::Done { .. }));
}

#[test]
fn a_region_is_vacant_before_insertions_and_after_an_empty_walk() {
    let index = regions();
    assert_eq!(index.vacant_to(3..1 << 20), 1 << 20);
    insert(&index, 100);
    assert_eq!((index.vacant_to(0..1 << 20), index.vacant_to(97..110)), (96, 97));
    assert_eq!(index.vacant_to(112..1 << 20), 1 << 20);
    index.remove(Address(100), |_| true);
    assert_eq!(index.vacant_to(96..112), 96, "nobody has looked");
    for (range, whole) in [(97..200, false), (96..111, false), (96..200, true)] {
        let (end, walk) = index.walk(range.clone());
        assert_eq!(end, range.end.min(112));
        assert_eq!(index.vacant_to(96..112), 96, "it may hold something until the walk ends");
        walk.found_nothing();
        assert_eq!(index.vacant_to(96..112), if whole { 112 } else { 96 }, "{range:?}");
    }
}

#[test]
fn changes_during_a_walk_keep_a_region_occupied() {
    type Act<'a> = (&'a str, &'a dyn Fn(&Index));
    let act: [Act; 4] = [
        ("an insertion", &|index| insert(index, 5)),
        ("a fill", &|index| drop(index.begin_fill(Address(5)))),
        ("a walk that is given up", &|index| drop(index.walk(0..16).1)),
        ("another walk", &|index| index.walk(0..16).1.found_nothing()),
    ];
    for (what, act) in act {
        let index = regions();
        insert(&index, 5);
        index.remove(Address(5), |_| true);
        let (_, walk) = index.walk(0..16);
        act(&index);
        walk.found_nothing();
        let spoils = !what.contains("walk");
        assert_eq!(index.vacant_to(0..16), if spoils { 0 } else { 16 }, "{what}");
    }
    // An insertion, and a walk that begins after it while another walk is in progress.
    let index = regions();
    insert(&index, 5);
    let (_, first) = index.walk(0..16);
    insert(&index, 6);
    let (_, second) = index.walk(0..16);
    first.found_nothing();
    assert_eq!(index.vacant_to(0..16), 0);
    second.found_nothing();
    assert_eq!(index.vacant_to(0..16), 0, "it had no chance");
}

#[test]
fn an_index_of_many_shards_is_made_in_turns() {
    use std::cell::Cell;
    use std::rc::Rc;

    use forebay_testkit::LaneWorld;

    let world = LaneWorld::new();
    let (turns, ended) = (Rc::new(Cell::new(0)), Rc::new(Cell::new(false)));
    let (counted, end) = (turns.clone(), ended.clone());
    world.lane.spawn(async move {
        while !end.get() {
            counted.set(counted.get() + 1);
            yield_now().await;
        }
    });
    let index = world.block_on(async {
        let geometry = TableGeometry::new(1 << 20, 1024, 24, 20).expect("it fits");
        Index::in_turns(geometry, 1024, BlockSize::DEFAULT, &Arc::default()).await
    });
    ended.set(true);
    assert_eq!(index.shard_count(), 1024);
    assert!(turns.get() >= 4, "{}", turns.get());
}
