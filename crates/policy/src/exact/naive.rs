//! The policies once more, slow and short, from the words of their papers. Keys instead of nodes, vectors
//! instead of lists; the first of a vector is the oldest.

use std::collections::HashMap;

/// A cache that says who leaves for a key.
pub(super) trait Naive {
    fn holds(&self, key: u64) -> bool;
    fn hit(&mut self, key: u64);
    /// The key is not resident.
    fn insert(&mut self, key: u64) -> Option<u64>;
    fn remove(&mut self, key: u64);
}

fn take(from: &mut Vec<u64>, key: u64) -> bool {
    let place = from.iter().position(|other| *other == key);
    place.map(|place| from.remove(place)).is_some()
}

/// LRU, or FIFO if hits do not count.
pub(super) struct Line {
    pub(super) capacity: usize,
    pub(super) hits_count: bool,
    pub(super) line: Vec<u64>,
}

impl Naive for Line {
    fn holds(&self, key: u64) -> bool {
        self.line.contains(&key)
    }

    fn hit(&mut self, key: u64) {
        if self.hits_count {
            take(&mut self.line, key);
            self.line.push(key);
        }
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        self.line.push(key);
        (self.line.len() > self.capacity).then(|| self.line.remove(0))
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.line, key);
    }
}

/// Second chance.
pub(super) struct Clock {
    pub(super) capacity: usize,
    pub(super) line: Vec<(u64, bool)>,
}

impl Naive for Clock {
    fn holds(&self, key: u64) -> bool {
        self.line.iter().any(|(other, _)| *other == key)
    }

    fn hit(&mut self, key: u64) {
        for entry in self.line.iter_mut().filter(|(other, _)| *other == key) {
            entry.1 = true;
        }
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        let mut left = None;
        while self.line.len() == self.capacity {
            let (first, used) = self.line.remove(0);
            if used {
                self.line.push((first, false));
            } else {
                left = Some(first);
            }
        }
        self.line.push((key, false));
        left
    }

    fn remove(&mut self, key: u64) {
        self.line.retain(|(other, _)| *other != key);
    }
}

/// SIEVE. The hand is the key that it points to.
pub(super) struct Sieve {
    pub(super) capacity: usize,
    pub(super) line: Vec<(u64, bool)>,
    pub(super) hand: Option<u64>,
}

impl Sieve {
    fn place(&self, key: u64) -> Option<usize> {
        self.line.iter().position(|(other, _)| *other == key)
    }

    fn take(&mut self, place: usize) -> u64 {
        let (key, _) = self.line.remove(place);
        if self.hand == Some(key) {
            self.hand = self.line.get(place).map(|(next, _)| *next);
        }
        key
    }
}

impl Naive for Sieve {
    fn holds(&self, key: u64) -> bool {
        self.place(key).is_some()
    }

    fn hit(&mut self, key: u64) {
        if let Some(place) = self.place(key) {
            self.line[place].1 = true;
        }
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        let mut left = None;
        if self.line.len() == self.capacity {
            let mut place = self.hand.and_then(|hand| self.place(hand)).unwrap_or(0);
            while self.line[place].1 {
                self.line[place].1 = false;
                place = (place + 1) % self.line.len();
            }
            self.hand = Some(self.line[place].0);
            left = Some(self.take(place));
        }
        self.line.push((key, false));
        left
    }

    fn remove(&mut self, key: u64) {
        if let Some(place) = self.place(key) {
            self.take(place);
        }
    }
}

/// Least frequently used; with `per_epoch` all frequencies are halved after so many accesses. Blocks
/// of one frequency keep their order.
pub(super) struct Lfu {
    pub(super) capacity: usize,
    pub(super) per_epoch: Option<u64>,
    pub(super) accesses: u64,
    pub(super) line: Vec<(u64, u32)>,
}

impl Lfu {
    fn count(&mut self) {
        self.accesses += 1;
        if self.per_epoch.is_some_and(|epoch| self.accesses.is_multiple_of(epoch)) {
            // What was more frequent is younger among those that become equal.
            self.line.sort_by_key(|(_, frequency)| *frequency);
            for entry in &mut self.line {
                entry.1 /= 2;
            }
        }
    }
}

impl Naive for Lfu {
    fn holds(&self, key: u64) -> bool {
        self.line.iter().any(|(other, _)| *other == key)
    }

    fn hit(&mut self, key: u64) {
        let place = self.line.iter().position(|(other, _)| *other == key).expect("is there");
        let (_, frequency) = self.line.remove(place);
        self.line.push((key, frequency + 1));
        self.count();
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        let mut left = None;
        if self.line.len() == self.capacity {
            let place = (0..self.line.len()).min_by_key(|place| self.line[*place].1);
            left = Some(self.line.remove(place.expect("is full")).0);
        }
        self.line.push((key, 1));
        self.count();
        left
    }

    fn remove(&mut self, key: u64) {
        self.line.retain(|(other, _)| *other != key);
    }
}

/// 2Q, full version.
#[derive(Default)]
pub(super) struct TwoQ {
    pub(super) capacity: usize,
    pub(super) once: Vec<u64>,
    pub(super) hot: Vec<u64>,
    pub(super) out: Vec<u64>,
}

impl Naive for TwoQ {
    fn holds(&self, key: u64) -> bool {
        self.once.contains(&key) || self.hot.contains(&key)
    }

    fn hit(&mut self, key: u64) {
        if take(&mut self.hot, key) {
            self.hot.push(key);
        }
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        let known = take(&mut self.out, key);
        let mut left = None;
        if self.once.len() + self.hot.len() == self.capacity {
            if self.once.len() > (self.capacity / 4).max(1) || self.hot.is_empty() {
                let key = self.once.remove(0);
                self.out.push(key);
                if self.out.len() > (self.capacity / 2).max(1) {
                    self.out.remove(0);
                }
                left = Some(key);
            } else {
                left = Some(self.hot.remove(0));
            }
        }
        if known { &mut self.hot } else { &mut self.once }.push(key);
        left
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.once, key);
        take(&mut self.hot, key);
    }
}

/// ARC, with the names of the paper.
#[derive(Default)]
pub(super) struct Arc {
    pub(super) c: usize,
    pub(super) p: f64,
    pub(super) t1: Vec<u64>,
    pub(super) t2: Vec<u64>,
    pub(super) b1: Vec<u64>,
    pub(super) b2: Vec<u64>,
}

impl Arc {
    fn replace(&mut self, in_b2: bool) -> Option<u64> {
        if self.t1.len() + self.t2.len() < self.c {
            return None;
        }
        let t1 = self.t1.len() as f64;
        let first = !self.t1.is_empty() && (t1 > self.p || (in_b2 && t1 == self.p));
        let (from, to) = if first || self.t2.is_empty() {
            (&mut self.t1, &mut self.b1)
        } else {
            (&mut self.t2, &mut self.b2)
        };
        let key = from.remove(0);
        to.push(key);
        // Our rule for the time after removals: never more ghosts than the capacity, the one that is
        // just being hit not counted.
        if self.b1.len() + self.b2.len() > self.c {
            let longer = if self.b1.len() > self.b2.len() { &mut self.b1 } else { &mut self.b2 };
            longer.remove(0);
        }
        Some(key)
    }
}

impl Naive for Arc {
    fn holds(&self, key: u64) -> bool {
        self.t1.contains(&key) || self.t2.contains(&key)
    }

    fn hit(&mut self, key: u64) {
        take(&mut self.t1, key);
        take(&mut self.t2, key);
        self.t2.push(key);
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        let (b1, b2) = (self.b1.len() as f64, self.b2.len() as f64);
        if take(&mut self.b1, key) {
            self.p = (self.p + (b2 / b1).max(1.0)).min(self.c as f64);
            let left = self.replace(false);
            self.t2.push(key);
            return left;
        }
        if take(&mut self.b2, key) {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            let left = self.replace(true);
            self.t2.push(key);
            return left;
        }
        let first = self.t1.len() + self.b1.len();
        let all = first + self.t2.len() + self.b2.len();
        let left = if first >= self.c {
            if self.t1.len() < self.c {
                if !self.b1.is_empty() {
                    self.b1.remove(0);
                }
                self.replace(false)
            } else {
                Some(self.t1.remove(0))
            }
        } else {
            if all >= 2 * self.c && !self.b2.is_empty() {
                self.b2.remove(0);
            }
            self.replace(false)
        };
        self.t1.push(key);
        left
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.t1, key);
        take(&mut self.t2, key);
    }
}

/// S3-FIFO.
#[derive(Default)]
pub(super) struct S3Fifo {
    pub(super) capacity: usize,
    pub(super) has_evicted: bool,
    pub(super) small: Vec<u64>,
    pub(super) main: Vec<u64>,
    pub(super) ghosts: Vec<u64>,
    pub(super) hits: HashMap<u64, u32>,
}

impl S3Fifo {
    fn evict(&mut self) -> u64 {
        let most_small = (self.capacity / 10).max(1);
        loop {
            if self.main.len() > self.capacity - most_small || self.small.is_empty() {
                let key = self.main.remove(0);
                match self.hits[&key] {
                    0 => return key,
                    hits => self.hits.insert(key, hits.min(3) - 1),
                };
                self.main.push(key);
                // Once begun, it goes on until a block leaves.
                while let Some(key) = (!self.main.is_empty()).then(|| self.main.remove(0)) {
                    match self.hits[&key] {
                        0 => return key,
                        hits => self.hits.insert(key, hits.min(3) - 1),
                    };
                    self.main.push(key);
                }
            }
            while !self.small.is_empty() {
                let key = self.small.remove(0);
                if self.hits[&key] < 2 {
                    self.ghosts.push(key);
                    if self.ghosts.len() > (self.capacity * 9 / 10).max(1) {
                        self.ghosts.remove(0);
                    }
                    return key;
                }
                self.hits.insert(key, 0);
                self.main.push(key);
            }
        }
    }
}

impl Naive for S3Fifo {
    fn holds(&self, key: u64) -> bool {
        self.small.contains(&key) || self.main.contains(&key)
    }

    fn hit(&mut self, key: u64) {
        *self.hits.entry(key).or_default() += 1;
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        let known = take(&mut self.ghosts, key);
        let full = self.small.len() + self.main.len() == self.capacity;
        let left = full.then(|| self.evict());
        self.has_evicted |= full;
        self.hits.insert(key, 0);
        let crowded = !self.has_evicted && self.small.len() >= (self.capacity / 10).max(1);
        if known || crowded { &mut self.main } else { &mut self.small }.push(key);
        left
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.small, key);
        take(&mut self.main, key);
    }
}

/// LIRS, with the stack and the queue of the paper. Keys in the stack are LIR, resident HIR or neither.
#[derive(Default)]
pub(super) struct Lirs {
    pub(super) capacity: usize,
    pub(super) stack: Vec<u64>,
    pub(super) queue: Vec<u64>,
    pub(super) lir: Vec<u64>,
}

impl Lirs {
    fn most_lir(&self) -> usize {
        self.capacity - (self.capacity / 100).max(1)
    }

    fn prune(&mut self) {
        while !self.lir.is_empty() && !self.lir.contains(&self.stack[0]) {
            self.stack.remove(0);
        }
    }

    fn use_as_lir(&mut self, key: u64) {
        take(&mut self.stack, key);
        take(&mut self.queue, key);
        take(&mut self.lir, key);
        self.stack.push(key);
        self.lir.push(key);
        self.prune();
        if self.lir.len() > self.most_lir() {
            let bottom = self.stack.remove(0);
            take(&mut self.lir, bottom);
            self.queue.push(bottom);
            if self.lir.is_empty() {
                self.stack.clear();
            }
        }
        self.prune();
    }

    fn use_as_hir(&mut self, key: u64) {
        take(&mut self.stack, key);
        take(&mut self.queue, key);
        self.stack.push(key);
        self.queue.push(key);
    }
}

impl Naive for Lirs {
    fn holds(&self, key: u64) -> bool {
        self.lir.contains(&key) || self.queue.contains(&key)
    }

    fn hit(&mut self, key: u64) {
        if self.stack.contains(&key) {
            self.use_as_lir(key);
        } else {
            self.use_as_hir(key);
        }
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        let known = take(&mut self.stack, key);
        let mut left = None;
        if self.lir.len() + self.queue.len() == self.capacity {
            left = Some(self.queue.remove(0));
            // Ghosts: in the stack, but not resident. The limit counts all of the queue.
            let ghost = |key: &u64| !self.lir.contains(key) && !self.queue.contains(key);
            let ghosts = self.stack.iter().filter(|key| ghost(key)).count();
            if ghosts + self.lir.len() + self.queue.len() > 2 * self.capacity {
                let oldest = self.stack.iter().position(ghost).expect("there is one");
                self.stack.remove(oldest);
            }
        }
        if known || self.lir.len() < self.most_lir() {
            self.use_as_lir(key);
        } else {
            self.use_as_hir(key);
        }
        left
    }

    fn remove(&mut self, key: u64) {
        if take(&mut self.lir, key) | take(&mut self.queue, key) {
            take(&mut self.stack, key);
            self.prune();
        }
    }
}
