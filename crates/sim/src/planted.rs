//! The search for planted bugs: a simulator that finds none of them would prove nothing.

use std::process::ExitCode;
use std::time::Duration;

use forebay_sim::runner::{self, Plan};
use forebay_sim::world::RunOptions;

use crate::args::{Args, Choice};

/// Seeds after which a search ends, unless the command line says otherwise.
const PATIENCE: u64 = 20_000;

/// Runs each planted bug until it is found.
pub(crate) fn hunt(args: &Args) -> ExitCode {
    println!("{:<32} {:>10} {:>10}  found as", "planted bug", "seeds", "seconds");
    let (mut missed, options) = (0, args.run_options());
    for choice in Choice::planted() {
        let plan = Plan {
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
        let summary = runner::run_many(plan, || choice);
        let (seeds, seconds) = (summary.counts.seeds, summary.time.as_secs_f64());
        let found = summary.failures.first().and_then(|outcome| outcome.violation.as_ref());
        let words = match found {
            Some(violation) => format!("invariant {}: {}", violation.invariant, violation.what),
            None => {
                missed += 1;
                "NOT FOUND".to_owned()
            }
        };
        println!("{:<32} {seeds:>10} {seconds:>10.1}  {words}", choice.name());
    }
    ExitCode::from(u8::from(missed > 0))
}
