//! Shadow caches: one for each rule, all fed with the same sampled accesses.
//!
//! A shadow does what the engine does with ranks, without segments: a small queue, a main queue that
//! is a clock, demoted blocks that stay readable until the space is needed, and ghosts. Blocks that
//! any of them knows are in one table with a [`Place`] for each. Queues hold entries of eight bytes
//! that name a block and a stamp; an entry is out of date once the block has another stamp, and is
//! then passed over.

use std::collections::VecDeque;
use std::ops::Range;

use crate::curve::Access;
use crate::exact::Key;

use super::rules::{REACHES, RULES, Rule};

/// Uses are counted up to this number, as in [`crate::Rank`].
const MOST_USES: u8 = 3;

/// Which shadows hit, one bit for each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Hits(u16);

impl Hits {
    pub(super) fn has(self, rule: usize) -> bool {
        self.0 & (1 << rule) != 0
    }

    /// Whether some hit and others missed.
    pub(super) fn disagree(self) -> bool {
        self.0 != 0 && self.0 != (1 << RULES.len()) - 1
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Queue {
    #[default]
    Absent,
    Demoted,
    Small,
    Main,
}

/// A block's state in one shadow.
#[derive(Clone, Copy, Debug, Default)]
struct Place {
    queue: Queue,
    uses: u8,
    /// Of its entry in `queue`.
    stamp: u32,
    /// Of its ghost; 0: there is none.
    ghost: u32,
}

/// The blocks that any shadow knows.
type Table = crate::table::Table<[Place; RULES.len()]>;

/// A queue of blocks with the stamps that they got.
#[derive(Debug, Default)]
struct Line {
    entries: VecDeque<(u32, u32)>,
    /// Entries that are not out of date.
    live: u32,
}

/// One shadow cache.
#[derive(Debug)]
struct Shadow {
    rule: &'static Rule,
    /// Its index in [`RULES`].
    number: usize,
    room: u32,
    most_kept: u32,
    most_small: u32,
    most_ghosts: u32,
    small: Line,
    main: Line,
    demoted: Line,
    ghosts: Line,
    stamp: u32,
    /// Blocks that left the small queue unused.
    given_up: u64,
}

impl Shadow {
    fn new(number: usize, rule: &'static Rule, room: u32, percent: u64) -> Self {
        let most_kept = ((u64::from(room) * percent / 100) as u32).max(1);
        let reach = u64::from(room) * u64::from(rule.reach) / u64::from(REACHES);
        Shadow {
            rule,
            number,
            room,
            most_kept,
            most_small: ((u64::from(most_kept) / rule.small) as u32).max(1),
            most_ghosts: (reach as u32).max(1),
            small: Line::default(),
            main: Line::default(),
            demoted: Line::default(),
            ghosts: Line::default(),
            stamp: 0,
            given_up: 0,
        }
    }

    fn place<'a>(&self, table: &'a mut Table, block: u32) -> &'a mut Place {
        &mut table.blocks[block as usize].places[self.number]
    }

    fn line(&mut self, queue: Queue) -> Option<&mut Line> {
        match queue {
            Queue::Absent => None,
            Queue::Demoted => Some(&mut self.demoted),
            Queue::Small => Some(&mut self.small),
            Queue::Main => Some(&mut self.main),
        }
    }

    fn next_stamp(&mut self) -> u32 {
        // 0 means that there is no ghost.
        self.stamp = self.stamp.wrapping_add(1).max(1);
        self.stamp
    }

    /// Moves a block to the end of a queue.
    fn push(&mut self, table: &mut Table, block: u32, queue: Queue, uses: u8) {
        self.take(table, block);
        let stamp = self.next_stamp();
        let (number, most) = (self.number, self.room as usize * 2 + 64);
        let Some(line) = self.line(queue) else { return };
        table.hold(block);
        let place = &mut table.blocks[block as usize].places[number];
        (place.queue, place.uses, place.stamp) = (queue, uses, stamp);
        line.entries.push_back((block, stamp));
        line.live += 1;
        if line.entries.len() > most {
            line.entries.retain(|(block, stamp)| {
                let place = &table.blocks[*block as usize].places[number];
                place.queue == queue && place.stamp == *stamp
            });
        }
    }

    /// Takes a block out of its queue, of which the entry stays. The caller holds it otherwise, or
    /// releases it.
    fn take(&mut self, table: &mut Table, block: u32) {
        let place = self.place(table, block);
        let queue = std::mem::take(&mut place.queue);
        if let Some(line) = self.line(queue) {
            line.live -= 1;
            // Not released: `access` holds every block that it works on.
            table.blocks[block as usize].holders -= 1;
        }
    }

    /// Returns the first block of a queue and its uses; it stays there.
    fn first(&mut self, table: &Table, queue: Queue) -> Option<(u32, u8)> {
        let number = self.number;
        let line = self.line(queue)?;
        while let Some((block, stamp)) = line.entries.pop_front() {
            let place = &table.blocks[block as usize].places[number];
            if place.queue == queue && place.stamp == stamp {
                return Some((block, place.uses));
            }
        }
        None
    }

    /// Returns whether the block was there.
    fn access(&mut self, table: &mut Table, access: Access, block: u32) -> bool {
        let place = *self.place(table, block);
        let uses = (place.uses + 1).min(MOST_USES);
        match place.queue {
            // An overwritten block moves to the end of the log.
            Queue::Small if access == Access::Write => self.push(table, block, Queue::Small, uses),
            Queue::Small | Queue::Main => self.place(table, block).uses = uses,
            Queue::Demoted => {
                self.push(table, block, Queue::Main, 0);
                self.demote(table);
            }
            Queue::Absent => {
                let came_back = place.ghost != 0;
                if came_back {
                    self.forget(table, block);
                }
                let queue = if came_back { Queue::Main } else { Queue::Small };
                self.push(table, block, queue, 0);
                self.demote(table);
                while self.small.live + self.main.live + self.demoted.live > self.room
                    && let Some((oldest, _)) = self.first(table, Queue::Demoted)
                {
                    table.hold(oldest);
                    self.take(table, oldest);
                    table.release(oldest);
                }
            }
        }
        place.queue != Queue::Absent
    }

    fn demote(&mut self, table: &mut Table) {
        while self.small.live + self.main.live > self.most_kept {
            if self.small.live > self.most_small || self.main.live == 0 {
                let Some((block, uses)) = self.first(table, Queue::Small) else { return };
                if uses >= self.rule.promoting_uses {
                    self.push(table, block, Queue::Main, 0);
                } else {
                    self.push(table, block, Queue::Demoted, 0);
                    self.remember(table, block);
                }
            } else {
                let Some((block, uses)) = self.first(table, Queue::Main) else { return };
                match uses.checked_sub(1) {
                    Some(uses) => self.push(table, block, Queue::Main, uses),
                    None => self.push(table, block, Queue::Demoted, 0),
                }
            }
        }
    }

    /// Adds or renews a ghost.
    fn remember(&mut self, table: &mut Table, block: u32) {
        self.given_up += 1;
        if !self.rule.remembers(self.given_up) {
            return;
        }
        table.hold(block);
        self.forget(table, block);
        let stamp = self.next_stamp();
        self.place(table, block).ghost = stamp;
        self.ghosts.entries.push_back((block, stamp));
        self.ghosts.live += 1;
        while self.ghosts.live > self.most_ghosts
            && let Some((oldest, stamp)) = self.ghosts.entries.pop_front()
        {
            if self.place(table, oldest).ghost == stamp {
                self.forget(table, oldest);
            }
        }
        if self.ghosts.entries.len() > self.room as usize * 2 + 64 {
            let number = self.number;
            self.ghosts.entries.retain(|(block, stamp)| {
                table.blocks[*block as usize].places[number].ghost == *stamp
            });
        }
    }

    /// Removes a ghost, if there is one.
    fn forget(&mut self, table: &mut Table, block: u32) {
        if std::mem::take(&mut self.place(table, block).ghost) != 0 {
            self.ghosts.live -= 1;
            table.release(block);
        }
    }

    fn entries(&self) -> usize {
        [&self.small, &self.main, &self.demoted, &self.ghosts]
            .iter()
            .map(|line| line.entries.capacity())
            .sum()
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Shadows {
    table: Table,
    shadows: Vec<Shadow>,
    room: u32,
}

impl Shadows {
    /// Makes shadows with space for `room` blocks, at least 1, that keep `percent` of them.
    pub(super) fn new(room: u32, percent: u64) -> Self {
        let rules = RULES.iter().enumerate();
        Shadows {
            table: Table::default(),
            shadows: rules.map(|(n, rule)| Shadow::new(n, rule, room, percent)).collect(),
            room,
        }
    }

    /// Notes an access. Returns which shadows hit.
    pub(super) fn access(&mut self, access: Access, Key(key): Key) -> Hits {
        let block = self.table.number(key);
        self.table.hold(block);
        let mut hits = 0;
        for shadow in &mut self.shadows {
            let hit = shadow.access(&mut self.table, access, block);
            hits |= u16::from(hit) << shadow.number;
        }
        self.table.release(block);
        Hits(hits)
    }

    /// Removes blocks, with their ghosts.
    pub(super) fn discard(&mut self, keys: Range<Key>) {
        for block in self.table.inside(keys.start.0..keys.end.0) {
            self.table.hold(block);
            for shadow in &mut self.shadows {
                shadow.take(&mut self.table, block);
                shadow.forget(&mut self.table, block);
            }
            self.table.release(block);
        }
    }

    /// Returns a bound for the allocated bytes: blocks that no two shadows have in common.
    pub(super) fn most_bytes(&self) -> u64 {
        let held = u64::from(self.room) * 2 * RULES.len() as u64;
        held * (Table::bytes_of_block() + 4 * size_of::<(u32, u32)>()) as u64
    }

    /// Returns an estimate of the allocated bytes.
    pub(super) fn bytes(&self) -> u64 {
        let entries: usize = self.shadows.iter().map(Shadow::entries).sum();
        (self.table.bytes() + entries * size_of::<(u32, u32)>()) as u64
    }

    /// Checks what must always be true.
    #[cfg(test)]
    pub(super) fn check(&self) {
        for shadow in &self.shadows {
            let places = || self.table.blocks.iter().map(|block| block.places[shadow.number]);
            let count = |queue| places().filter(|place| place.queue == queue).count() as u32;
            let lines = [shadow.small.live, shadow.main.live, shadow.demoted.live];
            assert_eq!(lines, [Queue::Small, Queue::Main, Queue::Demoted].map(count));
            assert!(lines.iter().sum::<u32>() <= shadow.room, "{lines:?}");
            let ghosts = places().filter(|place| place.ghost != 0).count() as u32;
            assert_eq!(shadow.ghosts.live, ghosts);
            assert!(ghosts <= shadow.most_ghosts);
        }
        let held = self.table.blocks.iter().filter(|block| block.holders > 0).count();
        assert_eq!(held, self.table.numbers.len());
        assert_eq!(held + self.table.free.len(), self.table.blocks.len());
    }
}
