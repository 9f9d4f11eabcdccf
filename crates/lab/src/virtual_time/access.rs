//! Requests of the reports' clients: random, zipf, sequential, backwards, strided.

use std::sync::Arc;

/// One request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Access {
    pub(crate) offset: u64,
    pub(crate) len: u64,
    pub(crate) write: bool,
}

/// The order of addresses.
#[derive(Clone, Debug)]
pub(crate) enum Shape {
    /// Independent and uniform.
    Random,
    /// Independent; the k-th most popular place has a share that falls with a power of k.
    Zipf(Arc<Zipf>),
    /// One position for all clients, from the start, and again from the start at the end.
    Sequential,
    /// From the end to the start.
    Backwards,
    /// Every so many-th request's length; when the end is reached, from the next one on.
    Stride(u64),
}

/// Requests of the clients of one run.
#[derive(Clone, Debug)]
pub(crate) struct Workload {
    pub(crate) shape: Shape,
    /// First byte of the range, and its length; a multiple of `len`.
    pub(crate) start: u64,
    pub(crate) span: u64,
    /// Bytes of a request.
    pub(crate) len: u64,
    /// Writes among a hundred requests.
    pub(crate) writes: u32,
    /// Requests that are under way together: jobs times depth.
    pub(crate) depth: usize,
}

/// Makes the requests of a workload, one after the other.
pub(crate) struct Generator {
    workload: Workload,
    rng: fastrand::Rng,
    at: u64,
    lap: u64,
}

impl Generator {
    pub(crate) fn new(workload: Workload, seed: u64) -> Self {
        let rng = fastrand::Rng::with_seed(seed);
        Generator { workload, rng, at: 0, lap: 0 }
    }

    /// Requests that the range has room for.
    pub(crate) fn places(&self) -> u64 {
        (self.workload.span / self.workload.len).max(1)
    }

    fn forward(&mut self, places: u64) -> u64 {
        let place = self.at;
        self.at = (self.at + 1) % places;
        place
    }

    /// The next request.
    #[inline]
    pub(crate) fn next(&mut self) -> Access {
        let places = self.places();
        let place = match &self.workload.shape {
            Shape::Random => self.rng.u64(0..places),
            Shape::Zipf(zipf) => zipf.place(&mut self.rng, places),
            Shape::Sequential => self.forward(places),
            Shape::Backwards => places - 1 - self.forward(places),
            &Shape::Stride(stride) => {
                let place = self.at;
                self.at += stride;
                if self.at >= places {
                    self.lap = (self.lap + 1) % stride.min(places);
                    self.at = self.lap;
                }
                place
            }
        };
        let Workload { start, len, writes, .. } = self.workload;
        let write = match writes {
            0 => false,
            100.. => true,
            some => self.rng.u32(0..100) < some,
        };
        Access { offset: start + place * len, len, write }
    }
}

/// Ranks with shares of `rank ^ -(6/5)`, by Walker's alias method: one draw, one look.
///
/// The powers are computed with additions, multiplications, divisions and square roots alone,
/// which give the same bits on every machine.
#[derive(Debug)]
pub(crate) struct Zipf {
    /// For each slot the share of draws that stay, in 1/2^32, and who gets the others.
    slots: Vec<(u32, u32)>,
}

/// The fifth root, by Newton's method.
fn fifth_root(x: f64) -> f64 {
    let mut root = x.sqrt().sqrt().max(1.0);
    for _ in 0..60 {
        let power = root * root * root * root;
        let next = root - (power * root - x) / (5.0 * power);
        if next == root {
            break;
        }
        root = next;
    }
    root
}

impl Zipf {
    /// Shares of `places` places for an exponent of 1.2, the one of the reports.
    pub(crate) fn new(places: u32) -> Arc<Self> {
        let weights: Vec<f64> = (1..=places)
            .map(|rank| {
                let rank = f64::from(rank);
                1.0 / (rank * fifth_root(rank))
            })
            .collect();
        let total: f64 = weights.iter().sum();
        let mut scaled: Vec<f64> =
            weights.iter().map(|weight| weight * f64::from(places) / total).collect();
        let mut slots: Vec<(u32, u32)> = (0..places).map(|slot| (u32::MAX, slot)).collect();
        let (mut small, mut large): (Vec<u32>, Vec<u32>) =
            (0..places).partition(|slot| scaled[*slot as usize] < 1.0);
        while let (Some(less), Some(&more)) = (small.pop(), large.last()) {
            let share = scaled[less as usize];
            slots[less as usize] = ((share * 4_294_967_296.0) as u32, more);
            scaled[more as usize] -= 1.0 - share;
            if scaled[more as usize] < 1.0 {
                large.pop();
                small.push(more);
            }
        }
        Arc::new(Zipf { slots })
    }

    /// A rank, from 0.
    #[inline]
    pub(crate) fn rank(&self, rng: &mut fastrand::Rng) -> u64 {
        let drawn = rng.u64(..);
        let slot = (((drawn >> 32) * self.slots.len() as u64) >> 32) as usize;
        let (stays, other) = self.slots[slot];
        if (drawn as u32) < stays { slot as u64 } else { u64::from(other) }
    }

    /// The place of a rank: popular places are spread over the range, the same for every seed.
    #[inline]
    fn place(&self, rng: &mut fastrand::Rng, places: u64) -> u64 {
        scatter(self.rank(rng), places)
    }
}

/// Spreads ranks over places, one to one as long as `places` has no factor in common with the
/// prime that fio uses for it.
#[inline]
fn scatter(rank: u64, places: u64) -> u64 {
    // 128 bits are not needed below 2^27 places; the reports have 5 million.
    (rank.wrapping_mul(0x9e37_0001) + 77_777) % places
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zipf_has_the_shares_that_it_should() {
        let zipf = Zipf::new(1000);
        let mut rng = fastrand::Rng::with_seed(5);
        let mut counts = vec![0u32; 1000];
        for _ in 0..1_000_000 {
            counts[zipf.rank(&mut rng) as usize] += 1;
        }
        let total: f64 = (1..=1000).map(|rank| f64::from(rank).powf(-1.2)).sum();
        for rank in [1, 2, 3, 10, 100] {
            let expected = 1e6 * f64::from(rank).powf(-1.2) / total;
            let found = f64::from(counts[rank as usize - 1]);
            let tolerance = 4.0 * expected.sqrt();
            assert!((found - expected).abs() < tolerance, "rank {rank}: {found}, not {expected}");
        }
    }

    #[test]
    fn fifth_roots_are_roots() {
        for x in [1.0, 2.0, 32.0, 1e6, 5_242_880.0] {
            let root = fifth_root(x);
            assert!((root.powi(5) / x - 1.0).abs() < 1e-12, "{x}: {root}");
        }
    }

    #[test]
    fn popular_places_are_apart_and_different() {
        let places = 20 << 18;
        let mut seen: Vec<u64> = (0..1_000_000).map(|rank| scatter(rank, places)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 1_000_000);
    }

    fn take(shape: Shape, count: usize) -> Vec<u64> {
        let workload = Workload { shape, start: 1000, span: 100, len: 10, writes: 0, depth: 1 };
        let mut generator = Generator::new(workload, 3);
        (0..count).map(|_| (generator.next().offset - 1000) / 10).collect()
    }

    #[test]
    fn orders_are_what_they_say() {
        assert_eq!(take(Shape::Sequential, 12), [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1]);
        assert_eq!(take(Shape::Backwards, 11), [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 9]);
        assert_eq!(take(Shape::Stride(4), 10), [0, 4, 8, 1, 5, 9, 2, 6, 3, 7]);
        assert!(take(Shape::Random, 1000).iter().all(|place| *place < 10));
    }

    #[test]
    fn a_quarter_of_writes_is_a_quarter() {
        let workload =
            Workload { shape: Shape::Random, start: 0, span: 1000, len: 10, writes: 25, depth: 1 };
        let mut generator = Generator::new(workload, 1);
        let writes = (0..100_000).filter(|_| generator.next().write).count();
        assert!((24_500..25_500).contains(&writes), "{writes}");
    }
}
