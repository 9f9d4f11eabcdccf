//! Ghosts: what is remembered of blocks that are no longer resident, in the order in which they were put
//! here, in 5.4 bytes each.
//!
//! A ghost is 32 bits in a hash table: a tag of the key, which queue it belongs to, and when it
//! came. There are no links. Time is counted in **quanta** of a few insertions (one, below 2,048
//! ghosts); a ghost is there as long as its quantum is not older than the oldest of its queue, so
//! forgetting the oldest is a matter of counting. What is thus dead is swept away as new ones come.
//!
//! What that costs in exactness:
//! - A key that was never here is found with a probability of about 1 in 20,000 up to 10^5 ghosts,
//!   because of tags of 18 bits, and of about the number of ghosts over 2^32 beyond that, because
//!   keys are remembered by 32 bits.
//! - Of the ghosts of the oldest quantum it is known how many are left, but not which.
//! - Two buckets may be full, although they are three quarters full on average; then the oldest of
//!   their sixteen ghosts is forgotten early. This happens to one ghost in a hundred, which has
//!   nine tenths of its time behind it.
//! - A queue of which most was taken out is remembered for three times its length of insertions.

/// Ghosts in a bucket; 32 bytes.
const SLOTS: usize = 8;

/// Times that can be told apart; 0 is an empty slot.
const TIMES: u64 = (1 << 13) - 1;

/// Quanta of a full queue from which nothing was taken.
const QUANTA: u64 = 2048;

/// Quanta that a queue may cover; what is left of [`TIMES`] is the time to sweep.
const MOST_QUANTA: u64 = 3 * QUANTA;

/// One slot: tag, queue and time. 0 is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ghost(u32);

impl Ghost {
    const EMPTY: Ghost = Ghost(0);

    fn new(hash: u32, queue: usize, quantum: u64) -> Self {
        Ghost(hash << 14 | (queue as u32) << 13 | (quantum % TIMES + 1) as u32)
    }

    fn is_of(self, hash: u32) -> bool {
        self.0 >> 14 == hash & (u32::MAX >> 14) && self != Ghost::EMPTY
    }

    fn queue(self) -> usize {
        (self.0 >> 13 & 1) as usize
    }

    /// Quanta that began after its own, if the newest is this one.
    fn age(self, newest: u64) -> u64 {
        let time = u64::from(self.0 & TIMES as u32) - 1;
        (newest % TIMES + TIMES - time) % TIMES
    }
}

/// What is known of one queue without looking at its ghosts.
#[derive(Debug)]
struct Queue {
    /// The quantum that new ghosts belong to; counted from 0.
    newest: u64,
    /// How many it has got.
    filled: u32,
    /// The quantum whose ghosts are forgotten next; at most one more than the newest.
    oldest: u64,
    /// How many of its ghosts are forgotten already, although still in the table; less than there are.
    forgotten: u32,
    len: u32,
    /// Ghosts in the table for each quantum, by time.
    counts: Vec<u32>,
    /// The largest time that was given for a ghost of the quantum; see [`Ghosts::insert`].
    given: Vec<u64>,
}

impl Queue {
    fn new() -> Self {
        let times = TIMES as usize;
        Queue {
            newest: 0,
            filled: 0,
            oldest: 0,
            forgotten: 0,
            len: 0,
            counts: vec![0; times],
            given: vec![0; times],
        }
    }

    fn place(quantum: u64) -> usize {
        (quantum % TIMES) as usize
    }

    /// The quantum of one of its ghosts, if that is not forgotten.
    fn quantum(&self, ghost: Ghost) -> Option<u64> {
        let quantum = self.newest.checked_sub(ghost.age(self.newest))?;
        (quantum >= self.oldest).then_some(quantum)
    }

    /// Forgets all ghosts of the oldest quantum.
    fn advance(&mut self) {
        let left = std::mem::take(&mut self.counts[Self::place(self.oldest)]);
        self.len -= left - self.forgotten;
        self.forgotten = 0;
        self.oldest += 1;
    }

    /// Forgets the oldest ghost.
    fn forget_one(&mut self) {
        while self.oldest <= self.newest && self.len > 0 {
            let there = self.counts[Self::place(self.oldest)];
            if there > self.forgotten {
                self.forgotten += 1;
                self.len -= 1;
                if there == self.forgotten {
                    self.advance();
                }
                return;
            }
            self.advance();
        }
    }

    /// A ghost of this quantum is out of the table.
    fn removed(&mut self, quantum: u64) {
        let left = &mut self.counts[Self::place(quantum)];
        *left -= 1;
        self.len -= 1;
        if quantum == self.oldest && *left == self.forgotten {
            self.advance();
        }
    }
}

/// Up to two queues of ghosts.
#[derive(Debug)]
pub(super) struct Ghosts {
    buckets: Vec<[Ghost; SLOTS]>,
    queues: Vec<Queue>,
    per_quantum: u32,
    /// The bucket that is swept next.
    sweep: usize,
    /// The ages of ghosts that were forgotten early, as shares of the time that they should have had.
    #[cfg(test)]
    crowded_out: Vec<f64>,
}

impl Ghosts {
    /// One queue or two, for so many ghosts together, at least 1. The caller sees to it that there are
    /// not more; if there are, older ones are lost.
    pub(super) fn new(limit: u32, queues: usize) -> Self {
        let limit = u64::from(limit.max(1));
        // In small tables buckets differ more, and memory does not matter.
        let slots = if limit <= 4096 { limit * 4 + 64 } else { (limit * 4).div_ceil(3) };
        Ghosts {
            buckets: vec![[Ghost::EMPTY; SLOTS]; slots.div_ceil(SLOTS as u64) as usize],
            queues: (0..queues.clamp(1, 2)).map(|_| Queue::new()).collect(),
            per_quantum: limit.div_ceil(QUANTA) as u32,
            sweep: 0,
            #[cfg(test)]
            crowded_out: Vec::new(),
        }
    }

    /// How many ghosts a queue has.
    pub(super) fn len(&self, queue: usize) -> u32 {
        self.queues[queue].len
    }

    /// The two buckets of a key, which may be the same.
    fn homes(&self, hash: u32) -> [usize; 2] {
        let other = hash.rotate_left(15).wrapping_mul(0x85eb_ca6b) ^ hash.wrapping_mul(0x9e37_79b9);
        [hash, other].map(|hash| ((u64::from(hash) * self.buckets.len() as u64) >> 32) as usize)
    }

    /// Its queue and quantum, if it is not forgotten.
    fn alive(&self, ghost: Ghost) -> Option<(usize, u64)> {
        if ghost == Ghost::EMPTY {
            return None;
        }
        let queue = ghost.queue();
        let quantum = self.queues.get(queue)?.quantum(ghost)?;
        Some((queue, quantum))
    }

    /// Puts a key at the end of a queue. `time` is for [`forget_before`](Ghosts::forget_before), and
    /// does not decrease within a queue.
    pub(super) fn insert(&mut self, queue: usize, hash: u32, time: u64) {
        self.sweep_one();
        let per_quantum = self.per_quantum;
        let at = &mut self.queues[queue];
        // All that were put here may have been forgotten, and the newest quantum with them.
        if at.filled == per_quantum || at.oldest > at.newest {
            at.newest += 1;
            at.filled = 0;
            while at.newest - at.oldest > MOST_QUANTA {
                at.advance();
            }
        }
        at.filled += 1;
        let place = Queue::place(at.newest);
        at.counts[place] += 1;
        at.given[place] = time;
        at.len += 1;
        let ghost = Ghost::new(hash, queue, at.newest);
        let (bucket, slot) = self.room(hash);
        let before = std::mem::replace(&mut self.buckets[bucket][slot], ghost);
        if let Some((queue, quantum)) = self.alive(before) {
            let queue = &mut self.queues[queue];
            #[cfg(test)]
            {
                let quanta = queue.newest + 1 - queue.oldest;
                self.crowded_out.push((queue.newest - quantum) as f64 / quanta as f64);
            }
            queue.removed(quantum);
        }
    }

    /// Where a new ghost goes: into the emptier one of its buckets, or else to the place of the
    /// oldest.
    fn room(&self, hash: u32) -> (usize, usize) {
        let mut emptiest = (0, (0, 0));
        let mut oldest = (0, (0, 0));
        for bucket in self.homes(hash) {
            let mut free = 0;
            let mut at = 0;
            for (slot, ghost) in self.buckets[bucket].iter().enumerate() {
                match self.alive(*ghost) {
                    None => {
                        free += 1;
                        at = slot;
                    }
                    Some((queue, quantum)) => {
                        let age = self.queues[queue].newest - quantum;
                        if age >= oldest.0 {
                            oldest = (age, (bucket, slot));
                        }
                    }
                }
            }
            if free > emptiest.0 {
                emptiest = (free, (bucket, at));
            }
        }
        if emptiest.0 > 0 { emptiest.1 } else { oldest.1 }
    }

    /// Clears one bucket of what is forgotten, before its times come round again.
    fn sweep_one(&mut self) {
        self.sweep = if self.sweep + 1 < self.buckets.len() { self.sweep + 1 } else { 0 };
        let bucket = self.buckets[self.sweep];
        let kept = bucket.map(|ghost| self.alive(ghost).map_or(Ghost::EMPTY, |_| ghost));
        self.buckets[self.sweep] = kept;
    }

    /// Takes a key out, wherever it is in its queue; says which queue that was.
    pub(super) fn take(&mut self, hash: u32) -> Option<usize> {
        for bucket in self.homes(hash) {
            for slot in 0..SLOTS {
                let ghost = self.buckets[bucket][slot];
                if !ghost.is_of(hash) {
                    continue;
                }
                if let Some((queue, quantum)) = self.alive(ghost) {
                    self.buckets[bucket][slot] = Ghost::EMPTY;
                    self.queues[queue].removed(quantum);
                    return Some(queue);
                }
            }
        }
        None
    }

    /// Forgets the oldest ghost of a queue.
    pub(super) fn pop(&mut self, queue: usize) {
        self.queues[queue].forget_one();
    }

    /// Forgets all ghosts of a queue whose time is less than this one.
    pub(super) fn forget_before(&mut self, queue: usize, time: u64) {
        let queue = &mut self.queues[queue];
        while queue.len > 0 && queue.given[Queue::place(queue.oldest)] < time {
            queue.advance();
        }
    }

    /// Bytes allocated.
    pub(super) fn bytes(&self) -> usize {
        let queue = |queue: &Queue| {
            queue.counts.capacity() * size_of::<u32>() + queue.given.capacity() * size_of::<u64>()
        };
        self.buckets.capacity() * size_of::<[Ghost; SLOTS]>()
            + self.queues.iter().map(queue).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::Key;

    fn hash(key: u64) -> u32 {
        Key(key).hash()
    }

    /// Beside queues of keys, with as many as there are quanta and fewer, so that nothing is approximate.
    #[test]
    fn small_queues_are_exact() {
        for limit in [1, 7, 100, 2000] {
            let mut random = fastrand::Rng::with_seed(1);
            let mut ghosts = Ghosts::new(limit, 2);
            let mut model: [Vec<u64>; 2] = Default::default();
            for step in 0..60_000u64 {
                let key = random.u64(0..u64::from(limit) * 2 + 1);
                let queue = random.usize(0..2);
                let at = model.iter().position(|queue| queue.contains(&key));
                match random.u32(0..8) {
                    0..5 if at.is_none() => {
                        if model[0].len() + model[1].len() == limit as usize {
                            let longer = usize::from(model[1].len() > model[0].len());
                            ghosts.pop(longer);
                            model[longer].remove(0);
                        }
                        ghosts.insert(queue, hash(key), step);
                        model[queue].push(key);
                    }
                    5 => {
                        assert_eq!(ghosts.take(hash(key)), at, "step {step}, limit {limit}");
                        if let Some(queue) = at {
                            model[queue].retain(|other| *other != key);
                        }
                    }
                    6 if random.u32(0..4) == 0 => {
                        ghosts.pop(queue);
                        if !model[queue].is_empty() {
                            model[queue].remove(0);
                        }
                    }
                    _ => {}
                }
                assert_eq!(ghosts.len(0) as usize, model[0].len());
                assert_eq!(ghosts.len(1) as usize, model[1].len());
            }
            assert_eq!(ghosts.crowded_out, [0.0; 0]);
        }
    }

    #[test]
    fn what_is_older_is_forgotten() {
        let mut ghosts = Ghosts::new(100, 1);
        for key in 0..100 {
            ghosts.insert(0, hash(key), key);
        }
        ghosts.forget_before(0, 60);
        assert_eq!(ghosts.len(0), 40);
        assert_eq!(ghosts.take(hash(59)), None);
        assert_eq!(ghosts.take(hash(60)), Some(0));
        ghosts.forget_before(0, 1000);
        assert_eq!(ghosts.len(0), 0);
        assert_eq!(ghosts.take(hash(99)), None);
        ghosts.insert(0, hash(1), 1000);
        assert_eq!((ghosts.len(0), ghosts.take(hash(1))), (1, Some(0)));
    }

    /// Large queues lose few, find hardly any that were not there, and keep their length.
    #[test]
    fn large_queues_are_nearly_exact() {
        let limit = 200_000;
        let mut ghosts = Ghosts::new(limit, 1);
        let mut random = fastrand::Rng::with_seed(1);
        let mut false_ones = 0;
        for key in 0..3_000_000u64 {
            false_ones += u32::from(ghosts.take(hash(u64::MAX - key)).is_some());
            ghosts.insert(0, hash(key), 0);
            if ghosts.len(0) > limit {
                ghosts.pop(0);
            }
            if random.u32(0..3) == 0 {
                ghosts.take(hash(key - random.u64(0..key.clamp(1, 100_000))));
            }
        }
        let lost = ghosts.crowded_out.len() as f64;
        assert!(lost / 3e6 < 0.012, "{lost} were crowded out");
        let age = ghosts.crowded_out.iter().sum::<f64>() / lost;
        assert!(age > 0.9, "they had {age} of their time");
        assert!(false_ones < 600, "{false_ones} of 3,000,000 were never there");
        assert!(ghosts.len(0) > limit - 1000, "{} are left", ghosts.len(0));

        let mut plain = Ghosts::new(limit, 1);
        for key in 0..1_000_000u64 {
            plain.insert(0, hash(key), 0);
            if plain.len(0) > limit {
                plain.pop(0);
            }
        }
        let per_quantum = u64::from(plain.per_quantum);
        let oldest = 1_000_000 - u64::from(limit);
        let found =
            (oldest + per_quantum..1_000_000).filter(|key| plain.take(hash(*key)).is_some());
        assert!(found.count() as f64 > 0.998 * f64::from(limit));
        let dead = (0..oldest - per_quantum).filter(|key| plain.take(hash(*key)).is_some());
        assert!(dead.count() < 100);
    }
}
