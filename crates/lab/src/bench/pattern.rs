//! Patterns of requests: blocks and their order. Everything is prepared before the clock runs.

/// One request: a block, and whether it is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Step(u32);

impl Step {
    pub(crate) fn new(block: u32, write: bool) -> Self {
        Step(block << 1 | u32::from(write))
    }

    pub(crate) fn block(self) -> u64 {
        u64::from(self.0 >> 1)
    }

    pub(crate) fn write(self) -> bool {
        self.0 & 1 == 1
    }
}

/// The most blocks that a pattern can be over.
pub(crate) const MOST_BLOCKS: u64 = 1 << 31;

/// Independent uniform choices among `blocks` blocks.
pub(crate) fn uniform(seed: u64, blocks: u32, write: bool, count: usize) -> Vec<Step> {
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count).map(|_| Step::new(rng.u32(..blocks), write)).collect()
}

/// Every block once, in random order.
pub(crate) fn permutation(seed: u64, blocks: u32, write: bool) -> Vec<Step> {
    let mut steps: Vec<Step> = (0..blocks).map(|block| Step::new(block, write)).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut steps);
    steps
}

/// Choices of which the k-th most popular block has a share that falls with k to the power of
/// `skew`; which block has which rank follows from `layout` alone, so that several patterns agree
/// on it. `reads` of ten are reads.
pub(crate) fn zipf(
    seed: u64,
    layout: u64,
    blocks: u32,
    skew: f64,
    reads: u32,
    count: usize,
) -> Vec<Step> {
    let mut total = 0.0;
    let sums: Vec<f64> = (1..=blocks)
        .map(|rank| {
            total += f64::from(rank).powf(-skew);
            total
        })
        .collect();
    let mut places: Vec<u32> = (0..blocks).collect();
    fastrand::Rng::with_seed(layout).shuffle(&mut places);
    let mut rng = fastrand::Rng::with_seed(seed);
    (0..count)
        .map(|_| {
            let wanted = rng.f64() * total;
            let rank = sums.partition_point(|sum| *sum < wanted).min(places.len() - 1);
            Step::new(places[rank], rng.u32(0..10) >= reads)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_keep_what_they_are_given() {
        for (block, write) in [(0, false), (0, true), (u32::MAX >> 1, true), (77, false)] {
            let step = Step::new(block, write);
            assert_eq!((step.block(), step.write()), (u64::from(block), write));
        }
    }

    #[test]
    fn a_permutation_has_every_block_once() {
        let mut blocks: Vec<u64> = permutation(3, 1000, true).iter().map(|s| s.block()).collect();
        assert_ne!(blocks, (0..1000).collect::<Vec<u64>>());
        blocks.sort_unstable();
        assert_eq!(blocks, (0..1000).collect::<Vec<u64>>());
    }

    #[test]
    fn zipf_has_the_shares_that_it_should() {
        let steps = zipf(1, 2, 1000, 1.2, 9, 100_000);
        let mut counts = vec![0u32; 1000];
        for step in &steps {
            counts[step.block() as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let total: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-1.2)).sum();
        for rank in [1, 2, 10] {
            let expected = 100_000.0 * f64::from(rank).powf(-1.2) / total;
            let found = f64::from(counts[rank as usize - 1]);
            assert!((found / expected - 1.0).abs() < 0.1, "rank {rank}: {found}, not {expected}");
        }
        let writes = steps.iter().filter(|step| step.write()).count();
        assert!((9_000..11_000).contains(&writes), "{writes}");
        assert_eq!(zipf(1, 2, 1000, 1.2, 9, 100_000), steps);
    }
}
