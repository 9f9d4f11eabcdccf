//! Compares the shadow caches, pair by pair.
//!
//! All shadows see the same accesses, so what counts is only where two of them disagree: one hits
//! and the other misses. The difference of such accesses must exceed what chance explains
//! ([`DEVIATIONS`]), and also a share of all accesses ([`LEAST_GAIN`]). The second limit is there
//! because a change has a price: the blocks that are cached were chosen by the rule before, and
//! phases of a workload end.
//!
//! The counts are halved regularly, so what is past fades.

use super::rules::RULES;
use super::shadows::Hits;

/// The least difference, in standard deviations of the number of accesses that are disagreed on.
const DEVIATIONS: f32 = 4.0;
/// The least difference, as a share of the accesses that are remembered.
const LEAST_GAIN: f32 = 0.02;
/// Counts are halved when they cover twice as many accesses as a shadow has blocks, times this...
const PER_BLOCK: u64 = 4;
/// ... but at least twice this many.
const LEAST: u64 = 1000;

/// See the module.
#[derive(Debug)]
pub(super) struct Chooser {
    /// Row: the shadow that hit; column: the one that missed.
    wins: [[f32; RULES.len()]; RULES.len()],
    accesses: f32,
    most: f32,
    chosen: usize,
    changes: u64,
}

impl Chooser {
    /// Makes a chooser for shadows of so many blocks.
    pub(super) fn new(blocks: u64) -> Self {
        Chooser {
            wins: Default::default(),
            accesses: 0.0,
            most: (blocks * PER_BLOCK).max(LEAST) as f32 * 2.0,
            chosen: 0,
            changes: 0,
        }
    }

    pub(super) fn chosen(&self) -> usize {
        self.chosen
    }

    pub(super) fn changes(&self) -> u64 {
        self.changes
    }

    /// Counts one access: which shadows hit.
    pub(super) fn compare(&mut self, hits: Hits) {
        self.accesses += 1.0;
        if hits.disagree() {
            for (_, row) in self.wins.iter_mut().enumerate().filter(|(rule, _)| hits.has(*rule)) {
                for (_, wins) in row.iter_mut().enumerate().filter(|(other, _)| !hits.has(*other)) {
                    *wins += 1.0;
                }
            }
            self.choose();
        }
        if self.accesses >= self.most {
            self.accesses /= 2.0;
            self.wins.as_flattened_mut().iter_mut().for_each(|wins| *wins /= 2.0);
        }
    }

    fn choose(&mut self) {
        let own = self.chosen;
        let against = |other: usize| (self.wins[other][own], self.wins[own][other]);
        let gain = |other: usize| against(other).0 - against(other).1;
        let best = (0..RULES.len()).max_by(|a, b| gain(*a).total_cmp(&gain(*b))).unwrap_or(own);
        let (won, lost) = against(best);
        let chance = DEVIATIONS * (won + lost).sqrt() + 1.0;
        if won - lost > chance && won - lost > LEAST_GAIN * self.accesses {
            self.chosen = best;
            self.changes += 1;
        }
    }
}
