//! Properties of every policy, and the comparison with the naive versions.

use super::harness::{AccessOutcome, Cache, workload};

use forebay_core::ReplacementKind;

use super::{Key, build};

const CAPACITIES: [u32; 6] = [1, 2, 3, 10, 37, 128];

#[test]
fn never_more_than_the_capacity_and_only_residents_leave() {
    for &kind in ReplacementKind::ALL {
        for capacity in CAPACITIES {
            let mut random = fastrand::Rng::with_seed(u64::from(capacity));
            let keys = u64::from(capacity) * 4;
            let mut cache = Cache::new(kind, capacity, 1);
            // The harness checks after each call.
            for key in workload(&mut random, keys, 20_000) {
                match random.u32(0..20) {
                    0 => cache.remove(random.u64(0..keys)),
                    1 => cache.moved(random.u64(0..keys)),
                    _ => drop(cache.access(key)),
                }
            }
            for key in 0..keys {
                cache.remove(key);
            }
            assert_eq!(cache.policy.resident(), 0, "{kind}");
        }
    }
}

#[test]
fn equal_calls_have_equal_answers() {
    for &kind in ReplacementKind::ALL {
        let run = |seed| {
            let mut cache = Cache::new(kind, 50, seed);
            let keys = workload(&mut fastrand::Rng::with_seed(3), 200, 10_000);
            keys.into_iter().map(|key| cache.access(key)).collect::<Vec<_>>()
        };
        assert_eq!(run(1), run(1), "{kind}");
        assert_eq!(run(1) == run(2), kind != ReplacementKind::Random, "{kind}");
    }
}

/// The number of a node carries no meaning, so moving blocks changes nothing, except for `random`,
/// which draws among nodes.
#[test]
fn a_moved_block_keeps_its_place() {
    for &kind in ReplacementKind::ALL.iter().filter(|kind| **kind != ReplacementKind::Random) {
        for capacity in CAPACITIES {
            let keys = u64::from(capacity) * 4;
            let mut random = fastrand::Rng::with_seed(5);
            let mut still = Cache::new(kind, capacity, 1);
            let mut moving = Cache::new(kind, capacity, 1);
            for key in workload(&mut random, keys, 20_000) {
                let other = random.u64(0..keys);
                match random.u32(0..10) {
                    0 => {
                        still.remove(other);
                        moving.remove(other);
                    }
                    1..5 => moving.moved(other),
                    _ => assert_eq!(still.access(key), moving.access(key), "{kind} {capacity}"),
                }
            }
        }
    }
}

#[test]
fn evict_makes_room_as_long_as_a_block_is_resident() {
    for &kind in ReplacementKind::ALL {
        assert_eq!(build(kind, 0, 0, 1).evict(), None, "{kind}");
        for capacity in CAPACITIES {
            for seed in 1..4 {
                let mut random = fastrand::Rng::with_seed(seed);
                let keys = u64::from(capacity) * 4;
                let mut cache = Cache::new(kind, capacity, seed);
                assert_eq!(cache.evict(), None, "{kind}");
                // The harness checks after each call.
                for key in workload(&mut random, keys, 10_000) {
                    let other = random.u64(0..keys);
                    match random.u32(0..1000) {
                        0..2 => drain(&mut cache),
                        2..100 => drop(cache.evict()),
                        100..150 => cache.remove(other),
                        150..200 => cache.moved(other),
                        _ => drop(cache.access(key)),
                    }
                }
                drain(&mut cache);
            }
        }
    }
}

fn drain(cache: &mut Cache) {
    for _ in 0..cache.policy.resident() {
        assert!(cache.evict().is_some());
    }
    assert_eq!(cache.policy.resident(), 0);
    assert_eq!(cache.evict(), None);
}

/// A full cache, and a key that no policy knows. W-TinyLFU would compare two blocks.
#[test]
fn evict_chooses_as_an_insertion_does() {
    for &kind in ReplacementKind::ALL.iter().filter(|kind| **kind != ReplacementKind::WTinyLfu) {
        let mut compared = 0;
        for seed in 0..200 {
            let mut random = fastrand::Rng::with_seed(seed);
            let capacity = random.u32(1..40);
            let keys = u64::from(capacity) * 4;
            let len = random.usize(1..1000);
            let [mut evicting, mut inserting] = [(); 2].map(|()| Cache::new(kind, capacity, 1));
            for key in workload(&mut random, keys, len) {
                assert_eq!(evicting.access(key), inserting.access(key), "{kind}");
                if random.u32(0..20) == 0 {
                    let gone = random.u64(0..keys);
                    evicting.remove(gone);
                    inserting.remove(gone);
                }
            }
            if inserting.is_full()
                && let AccessOutcome::Miss(left) = inserting.access(1 << 40)
            {
                assert_eq!(evicting.evict(), left, "{kind} {capacity} seed {seed}");
                compared += 1;
            }
        }
        assert!(compared > 0 || kind == ReplacementKind::Smq, "{kind}");
    }
}

/// The policy evicts exactly the same blocks as its model. With so few keys, no ghost mistakes one
/// for another. A mix is a seed, and a number of steps of which one removes or evicts blocks.
#[test]
fn policies_do_what_their_papers_say() {
    for &kind in ReplacementKind::ALL {
        for capacity in CAPACITIES {
            let mixes = [(1, 0, 0), (2, 30, 0), (3, 30, 0), (4, 0, 30), (5, 30, 30), (6, 0, 2)];
            for (seed, removals, evictions) in mixes {
                let Some(mut model) = super::naive_model(kind, capacity as usize) else { continue };
                let mut cache = Cache::new(kind, capacity, 1);
                let keys = u64::from(capacity) * 3 + 2;
                let mut random = fastrand::Rng::with_seed(seed);
                for (step, key) in workload(&mut random, keys, 20_000).into_iter().enumerate() {
                    if removals > 0 && random.u32(0..removals) == 0 {
                        let gone = random.u64(0..keys);
                        model.remove(gone);
                        cache.remove(gone);
                    }
                    if evictions > 0 && random.u32(0..evictions) == 0 {
                        // Several at once, so that single lists of a policy run empty.
                        for _ in 0..random.u32(1..=capacity.min(10)) {
                            assert_eq!(cache.evict(), model.evict(), "{kind} {capacity} {step}");
                        }
                    }
                    let expected = if model.holds(key) {
                        model.hit(key);
                        AccessOutcome::Hit
                    } else {
                        AccessOutcome::Miss(model.insert(key))
                    };
                    assert_eq!(cache.access(key), expected, "{kind} {capacity} step {step}");
                }
            }
        }
    }
}

#[test]
fn keys_of_the_tests_do_not_look_alike() {
    let mut hashes: Vec<u32> = (0..1000).map(|key| Key(key).hash() & (u32::MAX >> 14)).collect();
    hashes.sort_unstable();
    hashes.dedup();
    assert!(hashes.len() > 990, "{}", hashes.len());
}

/// Bytes per block as stated in the table of the module, resident and ghosts.
fn stated(kind: ReplacementKind) -> (f64, f64) {
    let source = include_str!("../exact.rs");
    let name = match kind {
        ReplacementKind::LfuR => "lfu".to_owned(),
        ReplacementKind::TwoQ => "two_q".to_owned(),
        kind => kind.name().replace('-', "_"),
    };
    let start = format!("//! | [`{name}`]");
    let line = source.lines().find(|line| line.starts_with(&start)).expect("a line of the table");
    let cell = line.trim_end_matches('|').trim().rsplit('|').next().expect("a cell");
    let mut numbers = cell.split('+').map(|number| number.trim().parse().expect("a number"));
    (numbers.next().expect("resident"), numbers.next().unwrap_or(0.0))
}

/// Measured at a capacity where constant parts do not matter; nothing is allocated later on.
#[test]
fn bytes_for_a_block_are_as_stated() {
    let capacity = 4_000_000;
    for &kind in ReplacementKind::ALL {
        let policy = build(kind, capacity, capacity + 1, 1);
        let bytes = policy.state_bytes();
        let (resident, ghosts) = stated(kind);
        for (what, bytes, stated) in
            [("resident", bytes.resident, resident), ("ghosts", bytes.ghosts, ghosts)]
        {
            let measured = bytes as f64 / f64::from(capacity);
            let off = (measured - stated).abs();
            assert!(off <= 0.06, "{kind}, {what}: {measured:.3} measured, {stated} stated");
        }

        let mut cache = Cache::new(kind, 1000, 1);
        let before = cache.policy.state_bytes();
        for key in workload(&mut fastrand::Rng::with_seed(9), 5000, 50_000) {
            cache.access(key);
        }
        assert_eq!(cache.policy.state_bytes(), before, "{kind}");
    }
}
