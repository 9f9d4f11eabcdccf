//! The policies with memory of blocks that are not resident.

use std::collections::HashMap;

use super::super::Key;
use super::super::sketch::Sketch;
use super::{Naive, take};

/// 2Q, full version.
#[derive(Default)]
pub(in crate::exact) struct TwoQ {
    pub(in crate::exact) capacity: usize,
    pub(in crate::exact) once: Vec<u64>,
    pub(in crate::exact) hot: Vec<u64>,
    pub(in crate::exact) out: Vec<u64>,
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
        let full = self.once.len() + self.hot.len() == self.capacity;
        let left = if full { self.evict() } else { None };
        if known { &mut self.hot } else { &mut self.once }.push(key);
        left
    }

    fn evict(&mut self) -> Option<u64> {
        if self.once.len() <= (self.capacity / 4).max(1) && !self.hot.is_empty() {
            return Some(self.hot.remove(0));
        }
        let key = *self.once.first()?;
        self.once.remove(0);
        self.out.push(key);
        if self.out.len() > (self.capacity / 2).max(1) {
            self.out.remove(0);
        }
        Some(key)
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.once, key);
        take(&mut self.hot, key);
    }
}

/// ARC, with the names of the paper.
#[derive(Default)]
pub(in crate::exact) struct Arc {
    pub(in crate::exact) c: usize,
    pub(in crate::exact) p: f64,
    pub(in crate::exact) t1: Vec<u64>,
    pub(in crate::exact) t2: Vec<u64>,
    pub(in crate::exact) b1: Vec<u64>,
    pub(in crate::exact) b2: Vec<u64>,
}

impl Arc {
    fn replace_if_full(&mut self, in_b2: bool) -> Option<u64> {
        if self.t1.len() + self.t2.len() < self.c { None } else { self.replace(in_b2) }
    }

    fn replace(&mut self, in_b2: bool) -> Option<u64> {
        let t1 = self.t1.len() as f64;
        let first = !self.t1.is_empty() && (t1 > self.p || (in_b2 && t1 == self.p));
        let (from, to) = if first || self.t2.is_empty() {
            (&mut self.t1, &mut self.b1)
        } else {
            (&mut self.t2, &mut self.b2)
        };
        let key = *from.first()?;
        from.remove(0);
        to.push(key);
        // Our rule after removals: never more ghosts than the capacity, not counting the one being
        // hit.
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
            let left = self.replace_if_full(false);
            self.t2.push(key);
            return left;
        }
        if take(&mut self.b2, key) {
            self.p = (self.p - (b1 / b2).max(1.0)).max(0.0);
            let left = self.replace_if_full(true);
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
                self.replace_if_full(false)
            } else {
                Some(self.t1.remove(0))
            }
        } else {
            if all >= 2 * self.c && !self.b2.is_empty() {
                self.b2.remove(0);
            }
            self.replace_if_full(false)
        };
        self.t1.push(key);
        left
    }

    fn evict(&mut self) -> Option<u64> {
        self.replace(false)
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.t1, key);
        take(&mut self.t2, key);
    }
}

/// S3-FIFO.
#[derive(Default)]
pub(in crate::exact) struct S3Fifo {
    pub(in crate::exact) capacity: usize,
    pub(in crate::exact) small: Vec<u64>,
    pub(in crate::exact) main: Vec<u64>,
    pub(in crate::exact) ghosts: Vec<u64>,
    pub(in crate::exact) hits: HashMap<u64, u32>,
}

impl S3Fifo {
    /// Evicts from a cache that is not empty. The small queue has a tenth of the capacity, and the
    /// main queue the remaining blocks.
    fn evict_one(&mut self) -> u64 {
        let most_small = (self.capacity / 10).max(1);
        let most_main = (self.small.len() + self.main.len()).saturating_sub(most_small);
        loop {
            if self.main.len() > most_main || self.small.is_empty() {
                let key = self.main.remove(0);
                match self.hits[&key] {
                    0 => return key,
                    hits => self.hits.insert(key, hits.min(3) - 1),
                };
                self.main.push(key);
                // Once started, it continues until a block is evicted.
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
        let left = if full { self.evict() } else { None };
        self.hits.insert(key, 0);
        if known { &mut self.main } else { &mut self.small }.push(key);
        left
    }

    fn evict(&mut self) -> Option<u64> {
        let empty = self.small.is_empty() && self.main.is_empty();
        (!empty).then(|| self.evict_one())
    }

    fn remove(&mut self, key: u64) {
        take(&mut self.small, key);
        take(&mut self.main, key);
    }
}

/// LIRS, with the stack and the queue of the paper. Keys in the stack are LIR, resident HIR or
/// neither.
#[derive(Default)]
pub(in crate::exact) struct Lirs {
    pub(in crate::exact) capacity: usize,
    pub(in crate::exact) stack: Vec<u64>,
    pub(in crate::exact) queue: Vec<u64>,
    pub(in crate::exact) lir: Vec<u64>,
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
        let full = self.lir.len() + self.queue.len() == self.capacity;
        let left = if full { self.evict() } else { None };
        if known || self.lir.len() < self.most_lir() {
            self.use_as_lir(key);
        } else {
            self.use_as_hir(key);
        }
        left
    }

    fn evict(&mut self) -> Option<u64> {
        if self.queue.is_empty() {
            let bottom = *self.lir.first()?;
            self.remove(bottom);
            return Some(bottom);
        }
        let left = self.queue.remove(0);
        // Ghosts: in the stack but not resident. The limit includes the whole queue.
        let ghost = |key: &u64| !self.lir.contains(key) && !self.queue.contains(key);
        let ghosts = self.stack.iter().filter(|key| ghost(key)).count();
        if ghosts + self.lir.len() + self.queue.len() > 2 * self.capacity {
            let oldest = self.stack.iter().position(ghost).expect("there is one");
            self.stack.remove(oldest);
        }
        Some(left)
    }

    fn remove(&mut self, key: u64) {
        if take(&mut self.lir, key) | take(&mut self.queue, key) {
            take(&mut self.stack, key);
            self.prune();
        }
    }
}

/// W-TinyLFU. It shares the sketch, which has tests of its own.
pub(in crate::exact) struct WTinyLfu {
    pub(in crate::exact) sizes: (u32, u32, u32),
    pub(in crate::exact) window: Vec<u64>,
    pub(in crate::exact) probation: Vec<u64>,
    pub(in crate::exact) protected: Vec<u64>,
    pub(in crate::exact) sketch: Sketch,
}

impl WTinyLfu {
    fn count(&self, key: u64) -> u8 {
        self.sketch.estimate(Key(key).hash())
    }
}

impl Naive for WTinyLfu {
    fn holds(&self, key: u64) -> bool {
        [&self.window, &self.probation, &self.protected].iter().any(|line| line.contains(&key))
    }

    fn hit(&mut self, key: u64) {
        if take(&mut self.window, key) {
            self.window.push(key);
            return;
        }
        self.sketch.add(Key(key).hash());
        take(&mut self.probation, key);
        take(&mut self.protected, key);
        self.protected.push(key);
        if self.protected.len() > self.sizes.1 as usize {
            self.probation.push(self.protected.remove(0));
        }
    }

    fn insert(&mut self, key: u64) -> Option<u64> {
        self.sketch.add(Key(key).hash());
        self.window.push(key);
        if self.window.len() <= self.sizes.0 as usize {
            return None;
        }
        let candidate = self.window.remove(0);
        if self.probation.len() + self.protected.len() < self.sizes.2 as usize {
            self.probation.push(candidate);
            return None;
        }
        let victim = self.probation.first().or(self.protected.first()).copied();
        match victim.filter(|victim| self.count(candidate) > self.count(*victim)) {
            Some(victim) => {
                self.remove(victim);
                self.probation.push(candidate);
                Some(victim)
            }
            None => Some(candidate),
        }
    }

    fn evict(&mut self) -> Option<u64> {
        let lines = [&mut self.probation, &mut self.protected, &mut self.window];
        lines.into_iter().find(|line| !line.is_empty()).map(|line| line.remove(0))
    }

    fn remove(&mut self, key: u64) {
        for line in [&mut self.window, &mut self.probation, &mut self.protected] {
            take(line, key);
        }
    }
}
