//! Reference versions of the policies, slow and short, from the text of the papers. Keys instead of
//! nodes, vectors instead of lists; the first of a vector is the oldest.

mod remembering;

pub(super) use remembering::{Arc, Lirs, S3Fifo, TwoQ, WTinyLfu};

/// A cache that reports the key it evicts.
pub(super) trait Naive {
    fn holds(&self, key: u64) -> bool;
    fn hit(&mut self, key: u64);
    /// Inserts a key that is not resident.
    fn insert(&mut self, key: u64) -> Option<u64>;
    fn evict(&mut self) -> Option<u64>;
    fn remove(&mut self, key: u64);
}

fn take(from: &mut Vec<u64>, key: u64) -> bool {
    let place = from.iter().position(|other| *other == key);
    place.map(|place| from.remove(place)).is_some()
}

/// LRU, or FIFO if hits do not count.
pub(super) struct NaiveLru {
    pub(super) capacity: usize,
    pub(super) hits_count: bool,
    pub(super) line: Vec<u64>,
}

impl Naive for NaiveLru {
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
        if self.line.len() > self.capacity { self.evict() } else { None }
    }

    fn evict(&mut self) -> Option<u64> {
        (!self.line.is_empty()).then(|| self.line.remove(0))
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.line, key);
    }
}

/// Second chance.
pub(super) struct NaiveClock {
    pub(super) capacity: usize,
    pub(super) line: Vec<(u64, bool)>,
}

impl Naive for NaiveClock {
    fn holds(&self, key: u64) -> bool {
        self.line.iter().any(|(other, _)| *other == key)
    }

    fn hit(&mut self, key: u64) {
        for entry in self.line.iter_mut().filter(|(other, _)| *other == key) {
            entry.1 = true;
        }
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        let left = if self.line.len() == self.capacity { self.evict() } else { None };
        self.line.push((key, false));
        left
    }

    fn evict(&mut self) -> Option<u64> {
        while !self.line.is_empty() {
            let (first, used) = self.line.remove(0);
            if !used {
                return Some(first);
            }
            self.line.push((first, false));
        }
        None
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
        let left = if self.line.len() == self.capacity { self.evict() } else { None };
        self.line.push((key, false));
        left
    }

    fn evict(&mut self) -> Option<u64> {
        let mut place = self.hand.and_then(|hand| self.place(hand)).unwrap_or(0);
        while self.line.get(place)?.1 {
            self.line[place].1 = false;
            place = (place + 1) % self.line.len();
        }
        self.hand = Some(self.line[place].0);
        Some(self.take(place))
    }

    fn remove(&mut self, key: u64) {
        if let Some(place) = self.place(key) {
            self.take(place);
        }
    }
}

/// Least frequently used; with `per_epoch` all frequencies are halved after that many accesses.
/// Blocks of equal frequency keep their order.
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
            // Of blocks whose frequencies become equal, the more frequent one counts as younger.
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
        let left = if self.line.len() == self.capacity { self.evict() } else { None };
        self.line.push((key, 1));
        self.count();
        left
    }

    fn evict(&mut self) -> Option<u64> {
        let place = (0..self.line.len()).min_by_key(|place| self.line[*place].1)?;
        Some(self.line.remove(place).0)
    }

    fn remove(&mut self, key: u64) {
        self.line.retain(|(other, _)| *other != key);
    }
}
