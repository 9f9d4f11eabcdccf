//! One shadow cache: a tier on the cache device, and perhaps a tier in RAM in front of it.

use forebay_core::{Admission, Mode};

use crate::admission::{Past, admits};
use crate::curve::Access;

use super::ghosts::Ghosts;
use super::level::{Blocks, Level};
use super::{Rules, Scale};

/// Parts of the sample that are counted separately, to see how much they differ.
pub(super) const PARTS: usize = 8;

/// Counts of a shadow, in sampled blocks times the number of blocks that each stands for.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ShadowCounts {
    /// Reads that no tier answered.
    pub(super) missed_reads: u64,
    /// Reads that RAM did not answer.
    pub(super) missed_in_ram: u64,
    /// Writes of blocks that no tier had.
    pub(super) missed_writes: u64,
    /// Blocks that were copied to the cache device without having been written.
    pub(super) fills: u64,
    /// Writes that were not stored on the cache device.
    pub(super) refused_writes: u64,
}

/// See the module.
pub(super) struct Shadow {
    pub(super) rules: Rules,
    mode: Mode,
    ram: Option<Level>,
    cache: Level,
    ghosts: Option<Ghosts>,
    pub(super) counts: [ShadowCounts; PARTS],
}

/// A sampled access.
#[derive(Clone, Copy)]
pub(super) struct Sampled {
    pub(super) access: Access,
    pub(super) block: u32,
    pub(super) key: u64,
    pub(super) part: usize,
    pub(super) stands_for: u64,
}

impl Shadow {
    /// Creates an empty shadow, whose tiers have the numbers from `first` on. Returns it and the
    /// next free number.
    pub(super) fn new(first: usize, rules: Rules, mode: Mode, scale: Scale) -> (Self, usize) {
        let ram =
            (rules.ram > 0).then(|| Level::new(first + 1, rules.ram_policy, scale.of(rules.ram)));
        let next = first + 1 + usize::from(ram.is_some());
        let cache = Level::in_log(first, rules.policy, scale.of(scale.capacity));
        let remembered = Shadow::remembered(rules, scale);
        let ghosts = (remembered > 0).then(|| Ghosts::new(remembered));
        (Shadow { rules, mode, ram, cache, ghosts, counts: Default::default() }, next)
    }

    /// Returns the rule for data that is read. Below RAM, a single read admits nothing.
    fn rule_of_reads(rules: Rules) -> Admission {
        match rules.admission {
            Admission::Always if rules.ram > 0 => Admission::Ghost(1),
            rule => rule,
        }
    }

    /// Returns how many absent blocks are remembered.
    fn remembered(rules: Rules, scale: Scale) -> u64 {
        u64::from(scale.of(scale.cells)) * u64::from(Shadow::rule_of_reads(rules).times())
    }

    /// Passes an access to the shadow.
    pub(super) fn access(&mut self, blocks: &mut Blocks, sampled: Sampled) {
        let Sampled { access, block, key, part, stands_for } = sampled;
        let mut counts = ShadowCounts::default();
        match access {
            Access::Read => self.read(blocks, block, key, &mut counts),
            Access::Write => self.write(blocks, block, key, &mut counts),
        }
        if let Some(sum) = self.counts.get_mut(part) {
            sum.missed_reads += counts.missed_reads * stands_for;
            sum.missed_in_ram += counts.missed_in_ram * stands_for;
            sum.missed_writes += counts.missed_writes * stands_for;
            sum.fills += counts.fills * stands_for;
            sum.refused_writes += counts.refused_writes * stands_for;
        }
    }

    fn read(&mut self, blocks: &mut Blocks, block: u32, key: u64, counts: &mut ShadowCounts) {
        if let Some(ram) = &mut self.ram
            && ram.hit(blocks, block)
        {
            if !ram.read_again(blocks, block) {
                self.cache.hit(blocks, block);
            }
            return;
        }
        counts.missed_in_ram += 1;
        if !self.cache.hit(blocks, block) {
            counts.missed_reads += 1;
            let rule = Shadow::rule_of_reads(self.rules);
            if self.mode != Mode::Writeonly && self.admits(rule, key) {
                self.enter(blocks, block);
                counts.fills += 1;
            }
        }
        self.enter_ram(blocks, block, counts);
    }

    fn write(&mut self, blocks: &mut Blocks, block: u32, key: u64, counts: &mut ShadowCounts) {
        let in_ram = self.ram.as_mut().is_some_and(|ram| ram.hit(blocks, block));
        let in_cache = self.cache.has(blocks, block);
        counts.missed_writes += u64::from(!in_ram && !in_cache);
        let enters = match self.mode {
            Mode::Writeback | Mode::Writeonly => true,
            Mode::Writethrough => in_cache || self.admits(self.rules.admission, key),
            Mode::Writearound | Mode::Passthrough => false,
        };
        match (enters, in_cache) {
            (true, true) => _ = self.cache.overwrite(blocks, block),
            (true, false) => self.enter(blocks, block),
            (false, true) => {
                self.cache.remove(blocks, block);
                self.note(key, Past::Invalidated);
            }
            (false, false) => (),
        }
        if enters && matches!(self.mode, Mode::Writeback | Mode::Writeonly) {
            self.cache.set_dirty(blocks, block);
        }
        counts.refused_writes += u64::from(!enters);
        if !in_ram {
            self.enter_ram(blocks, block, counts);
        }
    }

    /// Returns whether an absent block may enter, and records a refusal.
    fn admits(&mut self, rule: Admission, key: u64) -> bool {
        let recalled = self.ghosts.as_ref().is_none_or(|ghosts| admits(rule, ghosts.recall(key)));
        let admitted = recalled && self.cache.admits(key);
        if !admitted {
            self.note(key, Past::NotAdmitted);
        }
        admitted
    }

    fn note(&mut self, key: u64, past: Past) {
        if let Some(ghosts) = &mut self.ghosts {
            ghosts.note(key, past);
        }
    }

    fn enter(&mut self, blocks: &mut Blocks, block: u32) {
        if let Some(ghosts) = &self.ghosts {
            ghosts.forget(blocks.blocks[block as usize].key);
        }
        if let Some((left, _)) = self.cache.insert(blocks, block) {
            self.note(blocks.blocks[left as usize].key, Past::Evicted);
            blocks.release(left);
        }
    }

    /// Inserts a block into RAM. The evicted block is offered to the cache if it had been read
    /// again.
    fn enter_ram(&mut self, blocks: &mut Blocks, block: u32, counts: &mut ShadowCounts) {
        let Some((left, again)) = self.ram.as_mut().and_then(|ram| ram.insert(blocks, block))
        else {
            return;
        };
        if again && !self.cache.hit(blocks, left) {
            let key = blocks.blocks[left as usize].key;
            if self.mode != Mode::Writeonly && self.cache.admits(key) {
                self.enter(blocks, left);
                counts.fills += 1;
            }
        }
        blocks.release(left);
    }

    /// Tells the shadow that the last access, to this block, has bypassed the cache: nothing has
    /// entered, and nothing was refused.
    pub(super) fn bypassed(&mut self, blocks: &mut Blocks, sampled: Sampled) {
        let Sampled { access, block, key, part, stands_for } = sampled;
        let has = self.cache.has(blocks, block);
        let entered = has && (access == Access::Write || self.cache.is_unused(blocks, block));
        if entered && let Some(counts) = self.counts.get_mut(part) {
            self.cache.remove(blocks, block);
            match access {
                Access::Read => counts.fills = counts.fills.saturating_sub(stands_for),
                Access::Write => counts.refused_writes += stands_for,
            }
        }
        match (access, &self.ghosts) {
            // The block had a ghost, or it would not have entered.
            (Access::Read, Some(_)) if entered => self.note(key, Past::NotAdmitted),
            // The block had no ghost, or it would have entered. The next ghost takes the free
            // entry.
            (Access::Read, Some(ghosts)) if !has => ghosts.forget(key),
            _ => (),
        }
    }

    /// Sets how many blocks may be dirty.
    pub(super) fn set_most_dirty(&mut self, most: u32) {
        self.cache.set_most_dirty(most);
    }

    /// Removes a block.
    pub(super) fn remove(&mut self, blocks: &mut Blocks, block: u32) {
        self.levels().for_each(|level| level.remove(blocks, block));
    }

    fn levels(&mut self) -> impl Iterator<Item = &mut Level> {
        [&mut self.cache].into_iter().chain(&mut self.ram)
    }

    /// Reduces the shadow to a thinner sample, with those blocks whose keys `stays` accepts.
    pub(super) fn thin(&mut self, blocks: &mut Blocks, scale: Scale, stays: impl Fn(u64) -> bool) {
        self.cache.thin(blocks, scale.of(scale.capacity), &stays);
        if let Some(ram) = &mut self.ram {
            ram.thin(blocks, scale.of(self.rules.ram), &stays);
        }
        if let Some(ghosts) = &mut self.ghosts {
            ghosts.thin(Shadow::remembered(self.rules, scale));
        }
    }

    /// Returns the allocated bytes, and the number of blocks that the shadow can hold.
    pub(super) fn size(&mut self, scale: Scale) -> (usize, u64) {
        let ghost = self.ghosts.as_ref().map_or(0, Ghosts::most_bytes) as usize;
        let blocks = scale.of(scale.capacity)
            + if self.rules.ram > 0 { scale.of(self.rules.ram) } else { 0 };
        (ghost + self.levels().map(|level| level.bytes()).sum::<usize>(), blocks.into())
    }
}
