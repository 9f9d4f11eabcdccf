//! The search for planted bugs: a simulator that finds none of them would prove nothing.

use std::process::ExitCode;
use std::time::Duration;

use forebay_sim::runner::{self, RunPlan};
use forebay_sim::world::RunOptions;

use crate::args::{Args, FIRST, SystemKind};

/// Number of seeds after which a search ends, unless the command line sets it.
const PATIENCE: u64 = 20_000;

/// A seed that has found each bug. It is tried first, so that a test that runs often takes seconds;
/// with another `--start` the search ignores it.
const KNOWN: &str = include_str!("../planted-seeds.txt");

fn known_seed(bug: &str) -> Option<u64> {
    let mut lines = KNOWN.lines().filter_map(|line| line.split_once(' '));
    lines.find(|(name, _)| *name == bug)?.1.trim().parse().ok()
}

/// Runs each planted bug until it is found.
pub(crate) fn hunt(args: &Args) -> ExitCode {
    println!("{:<32} {:>10} {:>10} {:>10}  found as", "planted bug", "seeds", "seconds", "seed");
    let (mut missed, options) = (0, args.run_options());
    for choice in SystemKind::planted() {
        let plan = RunPlan {
            start: args.start,
            seeds: args.seeds.unwrap_or(PATIENCE),
            time: Some(args.time().unwrap_or(Duration::from_secs(600))),
            jobs: args.jobs,
            max_failures: 1,
            options: RunOptions {
                fault_profile: options.fault_profile.or(choice.fault_profile()),
                with: options.with.union(choice.features()),
                without: options.without.union(choice.hidden_by()),
                ..options
            },
            progress: false,
        };
        let known = known_seed(&choice.name()).filter(|_| args.start == FIRST);
        let tried =
            known.map(|start| runner::run_many(RunPlan { start, seeds: 1, ..plan }, || choice));
        let summary = tried.filter(|summary| !summary.failures.is_empty());
        let summary = summary.unwrap_or_else(|| runner::run_many(plan, || choice));
        let (seeds, seconds) = (summary.counts.seeds, summary.time.as_secs_f64());
        let found = summary.failures.first();
        let (seed, words) = match found.and_then(|it| Some((it.seed, it.violation.as_ref()?))) {
            Some((seed, violation)) => {
                let words = format!("invariant {}: {}", violation.invariant, violation.what);
                (seed.to_string(), words)
            }
            None => {
                missed += 1;
                ("-".to_owned(), "NOT FOUND".to_owned())
            }
        };
        println!("{:<32} {seeds:>10} {seconds:>10.1} {seed:>10}  {words}", choice.name());
    }
    ExitCode::from(u8::from(missed > 0))
}
