//! A stochastic multi-queue: levels of equal length in which nodes rise when they are hit.
//!
//! A hit node moves some levels up, and the oldest node of that level sinks to the level that the
//! hit node left. No hits are counted; the order emerges from many such exchanges. A node rises at
//! most once per period. Each access evens out the levels a little, by moving the oldest node of a
//! level down or the newest one up. 10 bytes per node.

use super::list::Lists;

/// Number of levels.
pub(super) const LEVELS: usize = 64;

/// Number of distinguishable periods.
const PERIODS: u16 = 1 << 10;

/// Nodes moved at once to even out levels.
const MOVED_AT_ONCE: u32 = 2;

/// See the module.
#[derive(Debug)]
pub(super) struct Levels {
    lists: Lists,
    /// Per node, its level and the last period in which it rose.
    states: Vec<u16>,
    len: u32,
    period: u16,
    /// The level to even out next.
    balance: usize,
}

impl Levels {
    /// Makes empty levels for nodes `0..nodes`.
    pub(super) fn new(nodes: u32) -> Self {
        Levels {
            lists: Lists::new(nodes, LEVELS as u32),
            states: vec![0; nodes as usize],
            len: 0,
            period: 0,
            balance: 0,
        }
    }

    pub(super) fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn holds(&self, node: u32) -> bool {
        self.lists.holds(node)
    }

    pub(super) fn level(&self, node: u32) -> usize {
        usize::from(self.states[node as usize]) % LEVELS
    }

    fn set_level(&mut self, node: u32, level: usize) {
        let state = &mut self.states[node as usize];
        *state = *state / LEVELS as u16 * LEVELS as u16 + level as u16;
    }

    /// Inserts a node at a level.
    pub(super) fn push(&mut self, level: usize, node: u32) {
        self.states[node as usize] = self.period * LEVELS as u16 + level as u16;
        self.lists.push(level, node);
        self.len += 1;
    }

    pub(super) fn remove(&mut self, node: u32) {
        self.lists.remove(self.level(node), node);
        self.len -= 1;
    }

    /// Removes the oldest node of the lowest level.
    pub(super) fn pop(&mut self) -> Option<u32> {
        let level = (0..LEVELS).find(|level| self.lists.len(*level) > 0)?;
        self.len -= 1;
        self.lists.pop(level)
    }

    /// Raises a hit node by `rise` levels, at most once per period. Returns its new level.
    pub(super) fn hit(&mut self, node: u32, rise: usize) -> usize {
        let level = self.level(node);
        if self.states[node as usize] / LEVELS as u16 == self.period {
            return level;
        }
        let above = (level + rise).min(LEVELS - 1);
        self.lists.remove(level, node);
        if above > level
            && let Some(sinking) = self.lists.pop(above)
        {
            self.set_level(sinking, level);
            self.lists.push(level, sinking);
        }
        self.states[node as usize] = self.period * LEVELS as u16 + above as u16;
        self.lists.push(above, node);
        above
    }

    /// Starts a new period, in which nodes may rise again.
    pub(super) fn new_period(&mut self) {
        self.period = (self.period + 1) % PERIODS;
    }

    /// Evens out one level with the one above it.
    pub(super) fn balance(&mut self) {
        let level = self.balance;
        self.balance = if level + 2 < LEVELS { level + 1 } else { 0 };
        // The first levels take the remainder.
        let left_over = self.len as usize % LEVELS;
        let target = self.len / LEVELS as u32 + u32::from(level < left_over);
        for _ in 0..MOVED_AT_ONCE {
            if self.lists.len(level) < target {
                let Some(node) = self.lists.pop(level + 1) else { return };
                self.set_level(node, level);
                self.lists.push(level, node);
            } else if self.lists.len(level) > target {
                let Some(node) = self.lists.newest(level) else { return };
                self.lists.remove(level, node);
                self.set_level(node, level + 1);
                self.lists.push_oldest(level + 1, node);
            } else {
                return;
            }
        }
    }

    pub(super) fn replace(&mut self, from: u32, to: u32) {
        self.lists.replace(from, to);
        self.states[to as usize] = self.states[from as usize];
    }

    pub(super) fn bytes(&self) -> usize {
        self.lists.bytes() + self.states.capacity() * size_of::<u16>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lens(levels: &Levels) -> Vec<u32> {
        (0..LEVELS).map(|level| levels.lists.len(level)).collect()
    }

    #[test]
    fn levels_become_equal() {
        let mut levels = Levels::new(1000);
        for node in 0..1000 {
            levels.push(if node % 2 == 0 { 0 } else { LEVELS - 1 }, node);
        }
        for _ in 0..40_000 {
            levels.balance();
        }
        let lens = lens(&levels);
        assert_eq!(lens.iter().sum::<u32>(), 1000);
        assert!(lens.iter().all(|len| (15..=16).contains(len)), "{lens:?}");
        for node in 0..1000 {
            assert!(levels.holds(node) && levels.level(node) < LEVELS);
        }
    }

    #[test]
    fn a_hit_changes_places_once_in_a_period() {
        let mut levels = Levels::new(10);
        levels.push(5, 0);
        levels.push(7, 1);
        levels.push(7, 2);
        levels.new_period();
        assert_eq!(levels.hit(0, 2), 7);
        assert_eq!([0, 1, 2].map(|node| levels.level(node)), [7, 5, 7]);
        assert_eq!(levels.hit(0, 2), 7);
        levels.new_period();
        assert_eq!(levels.hit(0, 2), 9);
        // At the top level, a hit makes the node the newest.
        levels.push(LEVELS - 1, 3);
        levels.push(LEVELS - 1, 4);
        levels.new_period();
        levels.hit(3, 1);
        assert_eq!(levels.lists.oldest(LEVELS - 1), Some(4));
        assert_eq!(levels.pop(), Some(1));
        assert_eq!(levels.len(), 4);
    }

    /// Nodes that are hit more often end up higher.
    #[test]
    fn frequent_nodes_rise() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut levels = Levels::new(640);
        for node in 0..640 {
            levels.push(0, node);
        }
        for step in 0..400_000 {
            let node = if random.bool() { random.u32(0..64) } else { random.u32(0..640) };
            levels.hit(node, 1);
            levels.balance();
            if step % 640 == 0 {
                levels.new_period();
            }
        }
        let mean = |nodes: std::ops::Range<u32>| {
            let count = f64::from(nodes.end - nodes.start);
            nodes.map(|node| levels.level(node) as f64).sum::<f64>() / count
        };
        assert!(mean(0..64) > 50.0 && mean(64..640) < 35.0, "{} {}", mean(0..64), mean(64..640));
    }
}
