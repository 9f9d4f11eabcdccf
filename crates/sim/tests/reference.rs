//! The simulator accepts a correct system, finds every bug of an incorrect one, and repeats the
//! same steps.

use forebay_sim::reference::{ReferenceBug, ReferenceModel};
use forebay_sim::run::run_seed;
use forebay_sim::runner::{RunPlan, run_many};
use forebay_sim::world::RunOptions;

fn plan(seeds: u64) -> RunPlan {
    RunPlan {
        start: 1,
        seeds,
        time: None,
        jobs: 2,
        max_failures: 1,
        options: RunOptions::default(),
        progress: false,
    }
}

#[test]
fn the_reference_model_keeps_every_promise() {
    let summary = run_many(plan(300), || ReferenceModel(None));
    let failures: Vec<_> =
        summary.failures.iter().map(|outcome| (outcome.seed, &outcome.violation)).collect();
    assert!(failures.is_empty(), "{failures:?}");
    let counts = summary.counts;
    assert!(
        counts.crashes > 500 && counts.nested_crashes > 100 && counts.clean_stops > 300,
        "{counts:?}"
    );
    assert_eq!(counts.fault_profile.len(), 4, "{counts:?}");
    for fault in ["read error", "write error", "sync error", "outage", "slow episode"] {
        assert!(counts.faults.contains_key(fault), "{counts:?}");
    }
}

#[test]
fn every_bug_of_the_reference_model_is_found() {
    for bug in ReferenceBug::ALL {
        let summary = run_many(plan(100), || ReferenceModel(Some(bug)));
        assert!(!summary.failures.is_empty(), "{bug:?} was not found in 100 seeds");
    }
}

#[test]
fn the_same_seed_takes_the_same_steps() {
    let mut hashes = std::collections::BTreeSet::new();
    for seed in 0..20 {
        let run = || run_seed(seed, &ReferenceModel(None), RunOptions::default());
        let (first, second) = (run(), run());
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.counts.steps, second.counts.steps, "seed {seed}");
        hashes.insert(first.hash);
    }
    assert_eq!(hashes.len(), 20);
}
