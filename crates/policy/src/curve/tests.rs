//! Compares the estimator with caches that are plain lists.

use forebay_core::Nanos;

use super::*;

/// An LRU cache.
struct Naive {
    room: usize,
    /// The oldest first.
    blocks: Vec<u64>,
    hits: u64,
}

impl Naive {
    fn access(&mut self, key: u64) {
        let before = self.blocks.len();
        self.blocks.retain(|other| *other != key);
        if self.blocks.len() < before {
            self.hits += 1;
        } else if self.blocks.len() == self.room {
            self.blocks.remove(0);
        }
        self.blocks.push(key);
    }
}

fn keys(range: Range<u64>) -> Range<Key> {
    Key(range.start)..Key(range.end)
}

#[test]
fn a_sample_of_everything_is_exact_also_with_discards() {
    for seed in 0..40 {
        let mut random = fastrand::Rng::with_seed(seed);
        let space = random.u64(1..60);
        let discards = seed % 2 == 0;
        let mut caches: Vec<Naive> =
            (1..=65).map(|room| Naive { room, blocks: Vec::new(), hits: 0 }).collect();
        let mut estimator = Estimator::new(1, usize::MAX, seed);
        let mut accesses = 0;
        for _ in 0..600 {
            // Some blocks are hotter than others.
            let below = random.u64(0..space);
            let first = random.u64(0..=below);
            let end = first + random.u64(0..4);
            if discards && random.u32(0..6) == 0 {
                estimator.discard(keys(first..end));
                for cache in &mut caches {
                    cache.blocks.retain(|key| !(first..end).contains(key));
                }
                continue;
            }
            let access = if random.bool() { Access::Read } else { Access::Write };
            estimator.access(access, keys(first..end));
            accesses += end - first;
            for key in first..end {
                caches.iter_mut().for_each(|cache| cache.access(key));
            }
        }
        assert_eq!(estimator.accesses(Which::All), accesses);
        for cache in &caches {
            let found = estimator.hits(Which::All, cache.room as u64);
            let expected = cache.hits as f64 / accesses as f64;
            assert!((found.share - expected).abs() < 1e-9, "{found:?} {expected} {}", cache.room);
            assert_eq!(found.error, 0.0);
        }
    }
}

#[test]
fn reads_count_by_themselves() {
    let mut estimator = Estimator::new(1, usize::MAX, 1);
    estimator.access(Access::Write, keys(0..3));
    estimator.access(Access::Read, keys(0..4));
    let share = |which, blocks| estimator.hits(which, blocks).share;
    assert_eq!([share(Which::Reads, 2), share(Which::Reads, 3)], [0.0, 0.75]);
    assert_eq!([share(Which::All, 0), share(Which::All, 3)], [0.0, 3.0 / 7.0]);
    assert_eq!(estimator.footprint(), 4);
}

/// Requests of up to 40 blocks, most of them to hot blocks, and a scan that repeats.
fn requests(seed: u64) -> Vec<Range<u64>> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut scan = 0;
    let request = |_| {
        let len = random.u64(1..40);
        let first = match random.u32(0..4) {
            0 => {
                scan = (scan + len) % 40_000;
                100_000 + scan
            }
            _ => (random.f64().powi(4) * 60_000.0) as u64,
        };
        first..first + len
    };
    (0..60_000).map(request).collect()
}

fn estimate(requests: &[Range<u64>], group: u32, most: usize, seed: u64) -> Estimator {
    let mut estimator = Estimator::new(group, most, seed);
    for request in requests {
        estimator.access(Access::Read, keys(request.clone()));
    }
    estimator
}

#[test]
fn a_small_sample_is_near_and_knows_how_near() {
    let requests = requests(5);
    let exact = estimate(&requests, 1, usize::MAX, 0);
    let footprint = exact.footprint();
    let (mut inside, mut all, mut squares) = (0, 0, 0.0);
    for seed in 0..6 {
        let sampled = estimate(&requests, 100, usize::MAX, seed);
        assert!(sampled.footprint().abs_diff(footprint) < footprint / 50);
        for percent in [1, 5, 10, 20, 40, 80] {
            let blocks = footprint * percent / 100;
            let found = sampled.hits(Which::All, blocks);
            let off = (found.share - exact.hits(Which::All, blocks).share).abs();
            assert!(off < 0.05, "seed {seed}, {percent} %: {off} ({found:?})");
            inside += u32::from(off <= found.error + 0.005);
            all += 1;
            squares += off * off;
        }
    }
    let mean = (squares / f64::from(all)).sqrt();
    assert!(mean < 0.015, "{mean}");
    assert!(inside * 10 >= all * 8, "{inside} of {all} are within what is said");
}

#[test]
fn a_sample_that_grows_too_large_is_halved_and_stays_near() {
    let requests = requests(6);
    let exact = estimate(&requests, 1, usize::MAX, 0);
    let bounded = estimate(&requests, 1, 2_000, 1);
    assert!(bounded.sampled_blocks() <= 2_000 && bounded.sampled_blocks() >= 700);
    assert!(bounded.bytes() < 400_000, "{}", bounded.bytes());
    for percent in [1, 5, 10, 20, 40, 80] {
        let blocks = exact.footprint() * percent / 100;
        let (found, exact) = (bounded.hits(Which::All, blocks), exact.hits(Which::All, blocks));
        assert!((found.share - exact.share).abs() < 0.03, "{percent} %: {found:?} {exact:?}");
    }
}

#[test]
fn nothing_and_odd_ranges_do_no_harm() {
    let mut estimator = Estimator::new(100, 0, 1);
    assert_eq!(estimator.hits(Which::Reads, 10).share, 0.0);
    estimator.access(Access::Read, Key(9)..Key(3));
    estimator.discard(keys(0..u64::MAX));
    assert_eq!((estimator.accesses(Which::All), estimator.footprint()), (0, 0));
    estimator.access(Access::Write, keys(u64::MAX - 500..u64::MAX));
    assert!(estimator.sampled_blocks() <= 1);
    assert!(estimator.hits(Which::All, u64::MAX).share <= 1.0);
}

/// Drives a `Live` as a volume would: all blocks are counted, and only the requests that touch the
/// sample are passed on. Each request takes `nanos`.
fn live(requests: &[Range<u64>], nanos: u64, seed: u64) -> LiveCurve {
    let (mut live, mut reads) = (Live::new(seed), 0);
    let first = Live::first_sample(seed);
    for (number, request) in requests.iter().enumerate() {
        let keys = keys(request.clone());
        reads += request.end - request.start;
        if live.sample().touches(keys.clone()) {
            assert!(first.touches(keys.clone()), "nothing is sampled later that was not at first");
            if live.access(Access::Read, keys) {
                live.settle(Nanos(number as u64 * nanos));
            }
        }
    }
    live.into_curve(reads, 0)
}

#[test]
fn a_live_curve_is_close_and_states_its_error() {
    let requests = requests(7);
    let exact = estimate(&requests, 1, usize::MAX, 0);
    let (mut inside, mut all) = (0, 0);
    for seed in 0..6 {
        let live = live(&requests, 100_000, seed);
        assert_eq!(live.accesses(Which::Reads), exact.accesses(Which::Reads));
        assert!(live.footprint().abs_diff(exact.footprint()) < exact.footprint() / 50);
        for percent in [1, 5, 10, 20, 40, 80] {
            let blocks = exact.footprint() * percent / 100;
            let found = live.hits(Which::All, blocks);
            let off = (found.share - exact.hits(Which::All, blocks).share).abs();
            assert!(off < 0.02, "seed {seed}, {percent} %: {off} ({found:?})");
            inside += u32::from(off <= found.error + 0.002);
            all += 1;
        }
    }
    assert!(inside * 10 >= all * 8, "{inside} of {all} are within what is said");
}

#[test]
fn a_loop_has_a_cliff_where_it_fits() {
    for blocks in [5_000u64, 100_000] {
        // Four rounds in requests of a few blocks: new once, then reused three times.
        let requests: Vec<Range<u64>> =
            (0..4 * blocks / 4).map(|at| (at * 4 % blocks)..(at * 4 % blocks) + 4).collect();
        let live = live(&requests, 1_000_000, 3);
        let hits = |percent: u64| live.hits(Which::Reads, blocks * percent / 100);
        assert!(hits(95).share < 0.02, "{blocks}: {:?}", hits(95));
        assert!((hits(105).share - 0.75).abs() < 0.02, "{blocks}: {:?}", hits(105));
    }
}

#[test]
fn neither_blocks_nor_requests_make_it_costly() {
    let mut random = fastrand::Rng::with_seed(9);
    let block = |_| random.u64(0..4 << 20);
    let requests: Vec<Range<u64>> = (0..1 << 20).map(block).map(|block| block..block + 1).collect();
    // Slow requests: the number of blocks is the limit that applies.
    let wide = live(&requests, 1_000_000, 1);
    assert!((Live::MOST / 3..=Live::MOST).contains(&wide.sampled_blocks()));
    assert!(wide.bytes() < 1_200_000, "{}", wide.bytes());
    assert!(wide.accesses(Which::All) / wide.sample().stands_for() < 1 << 16);
    // A million requests within a second to a thousand blocks: the request rate is the limit.
    let hot: Vec<Range<u64>> =
        requests.iter().map(|range| range.start % 1000..range.start % 1000 + 1).collect();
    let hot = live(&hot, 900, 1);
    assert!(hot.sample().stands_for() >= 256, "one of {}", hot.sample().stands_for());
}

#[test]
fn a_running_volume_that_did_nothing_has_an_empty_curve() {
    let mut live = Live::new(0);
    let curve = live.clone().into_curve(0, 0);
    for which in [Which::All, Which::Reads] {
        assert_eq!(curve.hits(which, 10), Share { share: 0.0, error: 0.0 });
    }
    live.discard(keys(0..u64::MAX));
    assert!(!live.access(Access::Write, keys(0..64)));
    let curve = live.clone().into_curve(0, 64);
    assert_eq!((curve.footprint(), curve.sampled_blocks()), (64, 1));
    assert_eq!(curve.hits(Which::Reads, 1 << 40).share, 0.0);
    live.discard(keys(0..u64::MAX));
    assert_eq!(live.into_curve(0, 64).sampled_blocks(), 0);
    assert!(Live::new(0).access(Access::Write, keys(0..64 * 4096)), "many at once");
}
