//! The choice of the next thread to run in a simulation.

use std::fmt::{self, Write as _};
use std::num::ParseIntError;
use std::str::FromStr;
use std::time::Duration;

use fastrand::Rng;

/// A decision of a run between several possibilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Decision {
    chosen: u32,
    /// The number of possibilities; 0: not known.
    of: u32,
    /// Whether the first possibility is to continue the running thread, and all others preempt it.
    stays: bool,
}

impl Decision {
    fn preempts(self) -> bool {
        self.stays && self.chosen > 0
    }
}

/// The decisions of a run, in order. Their text form can be parsed again; [`Plan::repeat`] repeats
/// the run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Decisions(Vec<Decision>);

impl Decisions {
    /// Returns the number of decisions.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns whether no decision was made.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns the first decisions of the next run in the enumeration of runs with at most `most`
    /// preemptions. `None` after the last run.
    fn next(&self, most: usize) -> Option<Decisions> {
        let mut preemptions = self.0.iter().filter(|decision| decision.preempts()).count();
        for (index, decision) in self.0.iter().enumerate().rev() {
            preemptions -= usize::from(decision.preempts());
            let next = Decision { chosen: decision.chosen + 1, ..*decision };
            if next.chosen < next.of && preemptions + usize::from(next.preempts()) <= most {
                return Some(Decisions([&self.0[..index], &[next]].concat()));
            }
        }
        None
    }
}

impl fmt::Display for Decisions {
    /// Writes the choices as numbers; `3x0` stands for `0 0 0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, run) in self.0.chunk_by(|one, other| one.chosen == other.chosen).enumerate() {
            if index > 0 {
                f.write_char(' ')?;
            }
            match run {
                [one] => write!(f, "{}", one.chosen)?,
                all => write!(f, "{}x{}", all.len(), all[0].chosen)?,
            }
        }
        Ok(())
    }
}

impl FromStr for Decisions {
    type Err = ParseIntError;

    fn from_str(text: &str) -> Result<Self, ParseIntError> {
        let mut all = Vec::new();
        for part in text.split_whitespace() {
            let (times, chosen) = part.split_once('x').unwrap_or(("1", part));
            let decision = Decision { chosen: chosen.parse()?, of: 0, stays: false };
            all.extend(std::iter::repeat_n(decision, times.parse()?));
        }
        Ok(Decisions(all))
    }
}

#[derive(Clone, Debug)]
enum DecisionSource {
    Seed(u64),
    Given(Decisions),
}

/// Parameters of a simulation's run.
#[derive(Clone, Debug)]
pub struct Plan {
    source: DecisionSource,
    /// Whether every lock is a yield point, instead of only contended ones. Without this a run has
    /// fewer steps and fewer interleavings.
    pub every_lock: bool,
    /// Whether virtual time may advance while threads are ready, so that timeouts expire early, as
    /// on a machine that is too slow.
    pub early: bool,
    /// Maximum number of steps; a run with more counts as endless.
    pub most_steps: u64,
    /// Maximum virtual time; a run that takes longer counts as endless.
    pub most_time: Duration,
}

impl Plan {
    fn new(source: DecisionSource) -> Self {
        let most_time = Duration::from_secs(7 * 24 * 3600);
        Plan { source, every_lock: true, early: false, most_steps: 10_000_000, most_time }
    }

    /// Chooses at random. The seed also selects the strategy: frequent or rare preemption, by
    /// uniform choice or by priorities that rarely change.
    pub fn seed(seed: u64) -> Self {
        Plan::new(DecisionSource::Seed(seed))
    }

    /// Repeats the decisions of another run, and preempts no thread after the last decision. The
    /// other fields must be the same.
    pub fn repeat(decisions: Decisions) -> Self {
        Plan::new(DecisionSource::Given(decisions))
    }

    /// Sets [`Plan::every_lock`].
    pub fn every_lock(mut self, every_lock: bool) -> Self {
        self.every_lock = every_lock;
        self
    }

    /// Sets [`Plan::early`].
    pub fn early(mut self, early: bool) -> Self {
        self.early = early;
        self
    }

    /// Sets [`Plan::most_steps`].
    pub fn most_steps(mut self, most_steps: u64) -> Self {
        self.most_steps = most_steps;
        self
    }

    /// Sets [`Plan::most_time`].
    pub fn most_time(mut self, most_time: Duration) -> Self {
        self.most_time = most_time;
        self
    }

    pub(crate) fn chooser(&self) -> Chooser {
        let manner = match &self.source {
            DecisionSource::Given(given) => Manner::Given(given.clone()),
            DecisionSource::Seed(seed) => Manner::random(Rng::with_seed(*seed)),
        };
        Chooser { manner, made: Decisions::default() }
    }
}

impl From<u64> for Plan {
    fn from(seed: u64) -> Self {
        Plan::seed(seed)
    }
}

/// Enumerates all runs with a bounded number of preemptions.
#[derive(Debug)]
pub struct Enumeration {
    next: Option<Decisions>,
    most: usize,
}

impl Enumeration {
    /// Begins with the run without preemptions. `most` is the maximum number of preemptions per
    /// run.
    pub fn new(most: usize) -> Self {
        Enumeration { next: Some(Decisions::default()), most }
    }

    /// Returns the next run. Its decisions must be [noted](Enumeration::note) before the next call.
    pub fn next_plan(&mut self) -> Option<Plan> {
        self.next.take().map(Plan::repeat)
    }

    /// Notes the decisions of the latest run.
    pub fn note(&mut self, decisions: &Decisions) {
        self.next = decisions.next(self.most);
    }
}

/// State of the running thread at a decision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum ThreadState {
    /// The thread waits or has ended.
    Waits,
    /// The thread is ready, and comes first among the threads.
    Stays,
    /// The thread has yielded, and comes last among the threads.
    Yields,
}

/// The alternatives of one decision.
pub(crate) struct DecisionOptions<'a> {
    /// The threads that can continue.
    pub(crate) threads: &'a [usize],
    pub(crate) running: ThreadState,
    /// Whether virtual time may advance instead; this is the last possibility.
    pub(crate) time: bool,
}

enum Manner {
    Given(Decisions),
    /// The running thread continues with a probability of `stay` / 64; otherwise all threads have
    /// the same chance.
    Even {
        rng: Rng,
        stay: u32,
    },
    /// The thread with the highest rank continues. A thread falls behind all others at one in
    /// `change` steps, and when it yields.
    Ranked {
        rng: Rng,
        ranks: Vec<u64>,
        lowest: u64,
        change: u32,
    },
}

impl Manner {
    fn random(mut rng: Rng) -> Self {
        let ranked =
            |rng, change| Manner::Ranked { rng, ranks: Vec::new(), lowest: 1 << 32, change };
        match rng.u8(..4) {
            0 => Manner::Even { rng, stay: 0 },
            1 => Manner::Even { rng, stay: 48 },
            2 => ranked(rng, 16),
            _ => ranked(rng, 128),
        }
    }
}

/// Makes the decisions of a run, and records them.
pub(crate) struct Chooser {
    manner: Manner,
    made: Decisions,
}

impl Chooser {
    /// Chooses one of the alternatives, and returns its index.
    pub(crate) fn choose(&mut self, choice: &DecisionOptions) -> usize {
        let of = choice.threads.len() + usize::from(choice.time);
        if of < 2 {
            return 0;
        }
        let passes = match &mut self.manner {
            Manner::Given(_) => false,
            Manner::Even { rng, .. } | Manner::Ranked { rng, .. } => {
                choice.time && rng.u32(..64) == 0
            }
        };
        let chosen = match &mut self.manner {
            Manner::Given(given) => {
                let given = given.0.get(self.made.0.len());
                given.map_or(0, |given| (given.chosen as usize).min(of - 1))
            }
            _ if passes => of - 1,
            Manner::Even { rng, stay } => {
                let stays = choice.running == ThreadState::Stays && rng.u32(..64) < *stay;
                if stays { 0 } else { rng.usize(..choice.threads.len()) }
            }
            Manner::Ranked { rng, ranks, lowest, change } => {
                let most = choice.threads.iter().max().map_or(0, |&thread| thread + 1);
                while ranks.len() < most {
                    ranks.push((1 << 32) + u64::from(rng.u32(..)));
                }
                let falls = match choice.running {
                    ThreadState::Stays if rng.u32(..*change) == 0 => choice.threads.first(),
                    ThreadState::Yields => choice.threads.last(),
                    ThreadState::Stays | ThreadState::Waits => None,
                };
                if let Some(&falls) = falls {
                    *lowest -= 1;
                    ranks[falls] = *lowest;
                }
                let ranked = choice.threads.iter().enumerate();
                ranked.max_by_key(|(_, thread)| ranks[**thread]).map_or(0, |(index, _)| index)
            }
        };
        let stays = choice.running == ThreadState::Stays;
        self.made.0.push(Decision { chosen: chosen as u32, of: of as u32, stays });
        chosen
    }

    /// Returns the decisions so far.
    pub(crate) fn made(&self) -> &Decisions {
        &self.made
    }
}
