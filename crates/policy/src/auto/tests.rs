//! The choice on synthetic accesses, its steadiness, and the bound of the memory.

use super::shadows::Shadows;
use super::*;

/// Every block is sampled.
const ALL: Sample = Sample::new(1, 0);

fn run(room: u64, keys: impl IntoIterator<Item = u64>) -> Auto {
    let mut auto = Auto::new(room, 88, ALL);
    keys.into_iter().for_each(|key| auto.access(Access::Read, Key(key)));
    auto
}

/// A loop through twice the cache: only a rule that lets few blocks into the main queue hits.
fn looped(len: u64, rounds: u64) -> impl Iterator<Item = u64> {
    (0..len * rounds).map(move |step| step % len)
}

/// Blocks that are used several times within a short time, and then never again.
fn moving(random: &mut fastrand::Rng, accesses: u64) -> Vec<u64> {
    (0..accesses).map(|now| now / 8 + random.u64(0..300)).collect()
}

/// Uses that depend on nothing but a constant frequency.
fn independent(random: &mut fastrand::Rng, accesses: u64) -> Vec<u64> {
    let mut key = || (random.f64().powi(4) * 4000.0) as u64;
    (0..accesses).map(|_| key()).collect()
}

#[test]
fn the_rule_that_fits_is_chosen() {
    assert_eq!(run(400, looped(1600, 30)).rule().name, "sparse-8");
    let mut random = fastrand::Rng::with_seed(1);
    assert_eq!(run(400, moving(&mut random, 60_000)).rule().name, "recent");
}

#[test]
fn a_workload_that_stays_the_same_is_not_decided_again_and_again() {
    for seed in 0..5 {
        let mut random = fastrand::Rng::with_seed(seed);
        let auto = run(400, independent(&mut random, 200_000));
        assert!(auto.changes() <= 3, "{} changes", auto.changes());
        let auto = run(400, (0..200_000).map(|_| random.u64(0..1000)));
        assert!(auto.changes() <= 1, "{} changes", auto.changes());
    }
}

/// What is past fades: the rule follows the workload.
#[test]
fn another_workload_gets_another_rule() {
    let mut random = fastrand::Rng::with_seed(1);
    let mut auto = run(400, looped(1600, 30));
    let offset = 1 << 20;
    moving(&mut random, 60_000)
        .into_iter()
        .for_each(|key| auto.access(Access::Read, Key(key + offset)));
    assert_eq!(auto.rule().name, "recent");
    assert!((2..6).contains(&auto.changes()), "{} changes", auto.changes());
}

#[test]
fn accesses_that_fit_into_the_cache_and_those_used_once_decide_nothing() {
    assert_eq!(run(400, looped(300, 200)).changes(), 0);
    assert_eq!(run(400, 0..50_000).changes(), 0);
}

#[test]
fn shadows_agree_with_themselves_whatever_happens() {
    for room in [1, 2, 7, 50] {
        let mut random = fastrand::Rng::with_seed(u64::from(room));
        let mut shadows = Shadows::new(room, 88);
        let keys = u64::from(room) * 6;
        for step in 0..20_000 {
            let access = if random.bool() { Access::Read } else { Access::Write };
            if random.u32(0..50) == 0 {
                let start = random.u64(0..keys);
                shadows.discard(Key(start)..Key(start + random.u64(0..keys * 2)));
            } else {
                let key = random.u64(0..keys).min(random.u64(0..keys));
                let before = shadows.access(access, Key(key));
                let again = shadows.access(Access::Read, Key(key));
                assert!(before.disagree() || before.has(0) == before.has(1));
                // The smallest shadows have no room for a block of each queue.
                let there = (0..RULES.len()).all(|rule| again.has(rule));
                assert!(there || room < 7, "a block just used is there");
            }
            if step % 16 == 0 {
                shadows.check();
            }
        }
        shadows.discard(Key(0)..Key(u64::MAX));
        shadows.check();
    }
}

#[test]
fn memory_is_bounded_for_a_cache_of_any_size() {
    let first = Sample::new(64, 0);
    for (room, group) in [(0, 64), (10_000, 64), (1 << 28, 1 << 18), (1 << 40, 1 << 30)] {
        let mut auto = Auto::new(room, 88, first);
        assert_eq!(auto.sample().stands_for(), group, "room {room}");
        assert!(auto.most_bytes() <= 4 << 20, "{}", auto.most_bytes());
        let mut random = fastrand::Rng::with_seed(2);
        for step in 0..100_000 {
            let key = if random.bool() { step } else { random.u64(0..step + 1) };
            auto.access(Access::Read, Key(key));
        }
        assert!(auto.bytes() <= auto.most_bytes(), "{} {}", auto.bytes(), auto.most_bytes());
    }
}

#[test]
fn names_are_unique_and_the_published_rule_is_among_them() {
    let mut names: Vec<_> = RULES.iter().map(|rule| rule.name).collect();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), RULES.len());
    assert!(RULES.contains(&Rule::S3_FIFO));
}

#[test]
fn one_in_so_many_is_remembered() {
    for rule in &RULES {
        let remembered = (0..80_000).filter(|number| rule.remembers(*number)).count() as u64;
        let expected = 80_000 / rule.ghost_of;
        assert!(remembered.abs_diff(expected) < expected / 10, "{}: {remembered}", rule.name);
    }
}
