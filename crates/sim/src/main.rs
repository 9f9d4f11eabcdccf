//! `forebay-sim`: runs seeds of the simulator, replays one, or searches for planted bugs.
#![forbid(unsafe_code)]

mod args;
mod planted;

use std::process::ExitCode;

use clap::Parser;
use forebay_sim::report::{FailureReport, JsonReport, RunCounts};
use forebay_sim::runner::{self, RunPlan, Summary};

use args::{Args, SystemKind};

fn main() -> ExitCode {
    let args = Args::parse();
    runner::catch_panics();
    if args.planted {
        return planted::hunt(&args);
    }
    let choice = match args.choice() {
        Ok(choice) => choice,
        Err(error) => {
            eprintln!("forebay-sim: {error}");
            return ExitCode::from(2);
        }
    };
    let failed = match args.seed {
        Some(seed) => one(&args, choice, seed),
        None => many(&args, choice),
    };
    ExitCode::from(u8::from(failed != args.expect_failure))
}

/// Runs one seed and prints its result. Returns whether it failed.
fn one(args: &Args, choice: SystemKind, seed: u64) -> bool {
    let outcome = runner::run_caught(seed, &choice, args.run_options());
    let failures: Vec<_> = outcome
        .violation
        .iter()
        .map(|violation| FailureReport::new(&outcome, violation, &args.replay_arguments(choice)))
        .collect();
    let hash = format!("{:016x}", outcome.hash);
    print_report(args, &outcome.counts, &failures, 0.0, Some(hash));
    !failures.is_empty()
}

/// Runs many seeds and prints the results. Returns whether one failed.
fn many(args: &Args, choice: SystemKind) -> bool {
    let plan = RunPlan {
        start: args.start,
        seeds: args.seeds.unwrap_or(if args.seconds.is_some() { u64::MAX } else { 100 }),
        time: args.time(),
        jobs: args.jobs,
        max_failures: args.max_failures,
        options: args.run_options(),
        progress: !args.json && !args.quiet,
    };
    let Summary { counts, failures, time } = runner::run_many(plan, || choice);
    let reports: Vec<_> = failures
        .iter()
        .filter_map(|outcome| {
            let violation = outcome.violation.as_ref()?;
            Some(FailureReport::new(outcome, violation, &args.replay_arguments(choice)))
        })
        .collect();
    print_report(args, &counts, &reports, time.as_secs_f64(), None);
    !reports.is_empty()
}

fn print_report(
    args: &Args,
    counts: &RunCounts,
    failures: &[FailureReport],
    seconds: f64,
    hash: Option<String>,
) {
    if args.json {
        let report = JsonReport { counts, failures, seconds, trace_hash: hash };
        match serde_json::to_string_pretty(&report) {
            Ok(text) => println!("{text}"),
            Err(error) => eprintln!("forebay-sim: the report cannot be written: {error}"),
        }
        return;
    }
    print!("{}", counts.table());
    match hash {
        Some(hash) => println!("{:<28} {hash:>16}", "trace hash"),
        None => println!("{:<28} {seconds:>14.1}", "seconds"),
    }
    for failure in failures {
        print!("{}", failure.text());
    }
    if failures.is_empty() {
        println!("every promise was kept");
    }
}
