//! Ghosts: keys of blocks that are no longer resident, in the order of insertion, at 5.4 bytes
//! each.
//!
//! A ghost is 32 bits in a hash table: a tag of the key, its queue, and its time of insertion.
//! There are no links. Time is counted in **quanta** of a few insertions (one, below 2,048 ghosts).
//! A ghost is alive as long as its quantum is not older than the oldest of its queue, so forgetting
//! the oldest ghosts only advances a counter. Dead ghosts are swept out of the table as new ones
//! are inserted.
//!
//! The price in exactness:
//! - A key that was never inserted is found with a probability of about 1 in 20,000 up to 10^5
//!   ghosts, because tags have 18 bits; beyond that, of about the number of ghosts over 2^32,
//!   because keys are hashed to 32 bits.
//! - In the oldest quantum, the number of ghosts that are still alive is known, but not which ones
//!   they are.
//! - Both buckets of a key may be full although buckets are three quarters full on average; then
//!   the oldest of their sixteen ghosts is forgotten early. This happens to one ghost in a hundred,
//!   after nine tenths of its time.
//! - A queue from which most ghosts were taken covers only three times its length of insertions.

/// Ghosts in a bucket; 32 bytes.
const SLOTS: usize = 8;

/// Bits of a time.
const TIME_BITS: u32 = 13;

/// Number of distinguishable times.
const TIMES: u32 = 1 << TIME_BITS;

/// Number of quanta of a full queue from which nothing was taken.
const QUANTA: u64 = 2048;

/// The most quanta a queue may cover; the rest of [`TIMES`] is the time to sweep.
const MOST_QUANTA: u64 = 3 * QUANTA;

/// One slot: 18 bits of tag, one bit of queue, 13 bits of time. A slot with tag 0 is empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Ghost(u32);

impl Ghost {
    const EMPTY: Ghost = Ghost(0);
    const QUEUE: u32 = 1 << TIME_BITS;
    const TAG_SHIFT: u32 = TIME_BITS + 1;
    const TAG: u32 = 1 << Self::TAG_SHIFT;

    /// Returns the tag of a key; never 0.
    fn tag(hash: u32) -> u32 {
        (hash << Self::TAG_SHIFT >> Self::TAG_SHIFT).max(1)
    }

    fn new(tag: u32, queue: usize, quantum: u64) -> Self {
        let queue = if queue == 0 { 0 } else { Self::QUEUE };
        Ghost((tag << Self::TAG_SHIFT) | queue | (quantum as u32 % TIMES))
    }

    fn has(self, tag: u32) -> bool {
        self.0 >> Self::TAG_SHIFT == tag
    }

    fn queue(self) -> usize {
        usize::from(self.0 & Self::QUEUE != 0)
    }

    /// Returns the number of quanta since its own, if `newest` is the current one.
    fn age(self, newest: u64) -> u64 {
        u64::from((newest as u32).wrapping_sub(self.0) % TIMES)
    }
}

/// Aligned, so that a bucket lies within one CPU cache line.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
struct GhostBucket([Ghost; SLOTS]);

/// State of one queue that is known without examining its ghosts.
#[derive(Debug, Default)]
struct GhostQueue {
    /// The quantum that new ghosts belong to; counted from 0.
    newest: u64,
    /// Ghosts inserted in the newest quantum.
    filled: u32,
    /// The quantum whose ghosts are forgotten next; at most one more than the newest.
    oldest: u64,
    /// Ghosts of the oldest quantum that are forgotten but still in the table; fewer than its
    /// count.
    forgotten: u32,
    len: u32,
    /// Ghosts in the table per quantum, by time.
    counts: Vec<u32>,
    /// The `time` of the last insertion in each quantum; empty unless the queue is timed.
    given: Vec<u64>,
}

impl GhostQueue {
    fn new(timed: bool) -> Self {
        let times = TIMES as usize;
        GhostQueue {
            counts: vec![0; times],
            given: vec![0; if timed { times } else { 0 }],
            ..GhostQueue::default()
        }
    }

    fn place(quantum: u64) -> usize {
        (quantum % u64::from(TIMES)) as usize
    }

    /// Returns the quantum of one of its ghosts, unless that ghost is forgotten.
    fn quantum(&self, ghost: Ghost) -> Option<u64> {
        // The newest quantum may be forgotten too.
        let quanta = self.newest + 1 - self.oldest;
        let age = ghost.age(self.newest);
        (age < quanta).then(|| self.newest - age)
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

    /// Accounts for a ghost of this quantum that left the table.
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
    buckets: Vec<GhostBucket>,
    queues: [GhostQueue; 2],
    per_quantum: u32,
    /// The bucket that is swept next.
    sweep: usize,
    /// Ages of ghosts that were forgotten early, as shares of their full time.
    #[cfg(test)]
    crowded_out: Vec<f64>,
}

impl Ghosts {
    /// Makes two queues for `limit` ghosts together, at least 1. The caller keeps to the limit;
    /// above it, old ghosts are lost.
    pub(super) fn new(limit: u32) -> Self {
        Self::with(limit, [GhostQueue::new(false), GhostQueue::new(false)])
    }

    /// Makes one queue, the first, that supports [`forget_before`](Ghosts::forget_before).
    pub(super) fn timed(limit: u32) -> Self {
        Self::with(limit, [GhostQueue::new(true), GhostQueue::default()])
    }

    fn with(limit: u32, queues: [GhostQueue; 2]) -> Self {
        let limit = u64::from(limit.max(1));
        // The load of small tables varies more, and their memory does not matter.
        let slots = if limit <= 4096 { limit * 4 + 64 } else { (limit * 4).div_ceil(3) };
        let buckets = slots.div_ceil(SLOTS as u64) as usize;
        Ghosts {
            buckets: vec![GhostBucket([Ghost::EMPTY; SLOTS]); buckets],
            queues,
            per_quantum: limit.div_ceil(QUANTA) as u32,
            sweep: 0,
            #[cfg(test)]
            crowded_out: Vec::new(),
        }
    }

    /// Returns the number of ghosts in a queue.
    pub(super) fn len(&self, queue: usize) -> u32 {
        self.queues[queue].len
    }

    /// Returns the two buckets of a key, which may be the same.
    fn homes(&self, hash: u32) -> [usize; 2] {
        let other = hash.rotate_left(15).wrapping_mul(0x85eb_ca6b) ^ hash.wrapping_mul(0x9e37_79b9);
        [hash, other].map(|hash| ((u64::from(hash) * self.buckets.len() as u64) >> 32) as usize)
    }

    /// Returns queue and quantum of a ghost, unless it is forgotten.
    fn alive(&self, ghost: Ghost) -> Option<(usize, u64)> {
        if ghost.has(0) {
            return None;
        }
        let queue = ghost.queue();
        let quantum = self.queues[queue].quantum(ghost)?;
        Some((queue, quantum))
    }

    /// Appends a key to a queue. `time` is for [`forget_before`](Ghosts::forget_before), and must
    /// not decrease.
    pub(super) fn insert(&mut self, queue: usize, hash: u32, time: u64) {
        self.sweep_one();
        let per_quantum = self.per_quantum;
        let at = &mut self.queues[queue];
        // All ghosts may have been forgotten, and the newest quantum with them.
        if at.filled == per_quantum || at.oldest > at.newest {
            at.newest += 1;
            at.filled = 0;
            while at.newest - at.oldest > MOST_QUANTA {
                at.advance();
            }
        }
        at.filled += 1;
        let place = GhostQueue::place(at.newest);
        at.counts[place] += 1;
        if let Some(given) = at.given.get_mut(place) {
            *given = time;
        }
        at.len += 1;
        let ghost = Ghost::new(Ghost::tag(hash), queue, at.newest);
        let (bucket, slot) = self.room(hash);
        let before = std::mem::replace(&mut self.buckets[bucket].0[slot], ghost);
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

    /// Chooses the slot for a new ghost: a dead slot in the emptier of its buckets, or else the
    /// slot of the oldest ghost.
    fn room(&self, hash: u32) -> (usize, usize) {
        let homes = self.homes(hash);
        let dead = homes.map(|home| self.dead(home));
        let [first, second] = dead.map(u32::count_ones);
        let choice = usize::from(second > first);
        if dead[choice] != 0 {
            return (homes[choice], dead[choice].trailing_zeros() as usize);
        }
        let mut oldest = (0, (homes[0], 0));
        for home in homes {
            for (slot, ghost) in self.buckets[home].0.iter().enumerate() {
                let age = ghost.age(self.queues[ghost.queue()].newest);
                if age >= oldest.0 {
                    oldest = (age, (home, slot));
                }
            }
        }
        oldest.1
    }

    /// Returns a bit per slot of a bucket that is empty or whose ghost is forgotten. Same as
    /// [`alive`](Ghosts::alive), for the whole bucket and without branches.
    fn dead(&self, bucket: usize) -> u32 {
        let of =
            |queue: &GhostQueue| (queue.newest as u32, (queue.newest + 1 - queue.oldest) as u32);
        let [(newest, quanta), (newest_2, quanta_2)] = [of(&self.queues[0]), of(&self.queues[1])];
        let GhostBucket(ghosts) = &self.buckets[bucket];
        let dead = ghosts.map(|Ghost(bits)| {
            let second = (bits & Ghost::QUEUE).wrapping_shl(31 - TIME_BITS).cast_signed() >> 31;
            let second = second.cast_unsigned();
            let newest = newest & !second | newest_2 & second;
            let quanta = quanta & !second | quanta_2 & second;
            let age = newest.wrapping_sub(bits) % TIMES;
            u32::from(age >= quanta) | u32::from(bits < Ghost::TAG)
        });
        dead.iter().enumerate().fold(0, |mask, (slot, dead)| mask | dead << slot)
    }

    /// Clears dead ghosts from one bucket, before their times wrap around.
    fn sweep_one(&mut self) {
        self.sweep = if self.sweep + 1 < self.buckets.len() { self.sweep + 1 } else { 0 };
        let dead = self.dead(self.sweep);
        for (slot, ghost) in self.buckets[self.sweep].0.iter_mut().enumerate() {
            if dead >> slot & 1 != 0 {
                *ghost = Ghost::EMPTY;
            }
        }
    }

    /// Removes a key from anywhere in its queue, and returns that queue.
    pub(super) fn take(&mut self, hash: u32) -> Option<usize> {
        let tag = Ghost::tag(hash);
        for home in self.homes(hash) {
            let GhostBucket(ghosts) = &self.buckets[home];
            for (slot, ghost) in ghosts.iter().enumerate() {
                if ghost.has(tag)
                    && let Some((queue, quantum)) = self.alive(*ghost)
                {
                    self.buckets[home].0[slot] = Ghost::EMPTY;
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

    /// Forgets all ghosts of the timed queue inserted before `time`.
    pub(super) fn forget_before(&mut self, time: u64) {
        let queue = &mut self.queues[0];
        while queue.len > 0
            && queue.given.get(GhostQueue::place(queue.oldest)).is_some_and(|given| *given < time)
        {
            queue.advance();
        }
    }

    /// Returns the allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        let queue = |queue: &GhostQueue| {
            queue.counts.capacity() * size_of::<u32>() + queue.given.capacity() * size_of::<u64>()
        };
        let queues = self.queues.iter().map(queue).sum::<usize>();
        self.buckets.capacity() * size_of::<GhostBucket>() + queues
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exact::Key;

    fn hash(key: u64) -> u32 {
        Key(key).hash()
    }

    /// Matches plain queues of keys, with at most as many keys as quanta, so that nothing is
    /// approximate.
    #[test]
    fn small_queues_are_exact() {
        for limit in [1, 7, 100, 2000] {
            let mut random = fastrand::Rng::with_seed(1);
            let mut ghosts = Ghosts::new(limit);
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
                let bucket = random.usize(0..ghosts.buckets.len());
                for (slot, ghost) in ghosts.buckets[bucket].0.iter().enumerate() {
                    let dead = ghosts.dead(bucket) >> slot & 1 != 0;
                    assert_eq!(dead, ghosts.alive(*ghost).is_none());
                }
            }
            assert_eq!(ghosts.crowded_out, [0.0; 0]);
        }
    }

    #[test]
    fn older_entries_are_forgotten() {
        let mut ghosts = Ghosts::timed(100);
        for key in 0..100 {
            ghosts.insert(0, hash(key), key);
        }
        ghosts.forget_before(60);
        assert_eq!(ghosts.len(0), 40);
        assert_eq!(ghosts.take(hash(59)), None);
        assert_eq!(ghosts.take(hash(60)), Some(0));
        ghosts.forget_before(1000);
        assert_eq!(ghosts.len(0), 0);
        assert_eq!(ghosts.take(hash(99)), None);
        ghosts.insert(0, hash(1), 1000);
        assert_eq!((ghosts.len(0), ghosts.take(hash(1))), (1, Some(0)));
    }

    /// Large queues lose few ghosts, find hardly any key never inserted, and keep their length.
    #[test]
    fn large_queues_are_nearly_exact() {
        let limit = 200_000;
        let mut ghosts = Ghosts::new(limit);
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

        let mut plain = Ghosts::new(limit);
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
