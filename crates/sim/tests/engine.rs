//! The engine itself: some seeds of every kind of fault, a repetition of the same steps, and (in
//! builds with the feature) the bugs planted in it. Long runs are left to the binary.

use forebay_sim::engine::Engine;
use forebay_sim::features::{Feature, Features};
use forebay_sim::profile::FaultProfile;
use forebay_sim::run::run_seed;
use forebay_sim::runner::{RunPlan, catch_panics, run_many};
use forebay_sim::world::RunOptions;

fn plan(seeds: u64, fault_profile: Option<FaultProfile>) -> RunPlan {
    let options = RunOptions { fault_profile, ..RunOptions::default() };
    RunPlan { start: 1, seeds, time: None, jobs: 2, max_failures: 3, options, progress: false }
}

fn keeps_every_promise(fault_profile: FaultProfile) {
    catch_panics();
    let summary = run_many(plan(25, Some(fault_profile)), || Engine(None));
    let failures: Vec<_> = summary
        .failures
        .iter()
        .filter_map(|outcome| Some((outcome.seed, outcome.violation.as_ref()?.to_string())))
        .collect();
    assert!(failures.is_empty(), "forebay-sim --faults {}: {failures:#?}", fault_profile.name());
}

#[test]
fn crashes_lose_nothing_that_was_promised() {
    keeps_every_promise(FaultProfile::Crashes);
}

#[test]
fn failing_origins_lose_nothing_that_was_promised() {
    keeps_every_promise(FaultProfile::OriginErrors);
}

#[test]
fn a_failing_cache_device_never_gives_wrong_data() {
    keeps_every_promise(FaultProfile::CacheErrors);
}

#[test]
fn damage_is_found_and_costs_what_was_damaged() {
    keeps_every_promise(FaultProfile::Damage);
}

/// Features that only some worlds have, in crashes where possible.
#[test]
fn every_feature_keeps_every_promise() {
    catch_panics();
    for feature in Feature::ALL {
        let fitting = FaultProfile::ALL.into_iter().find(|profile| feature.fits(*profile));
        let mut plan = plan(8, fitting);
        plan.options.with = Features::of(Some(feature));
        let summary = run_many(plan, || Engine(None));
        assert_eq!(summary.counts.features.get(feature.name()), Some(&8));
        let failures: Vec<_> = summary
            .failures
            .iter()
            .filter_map(|outcome| Some((outcome.seed, outcome.violation.as_ref()?.to_string())))
            .collect();
        assert!(failures.is_empty(), "forebay-sim --with {}: {failures:#?}", feature.name());
    }
}

#[test]
fn the_same_seed_takes_the_same_steps() {
    for seed in 1..=10 {
        let run = || run_seed(seed, &Engine(None), RunOptions::default());
        let (first, second) = (run(), run());
        assert_eq!(first.hash, second.hash, "seed {seed}");
        assert_eq!(first.counts.steps, second.counts.steps, "seed {seed}");
    }
}

/// Checks a seed without features, so that features added later leave the seed as it is.
fn keeps_every_promise_of(seed: u64) {
    catch_panics();
    let options = RunOptions { without: Features::all(), ..RunOptions::default() };
    let outcome = run_seed(seed, &Engine(None), options);
    assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
}

/// A restart failed just when everything in progress had ended. The world had stopped, and took the
/// orderly stop, which could no longer run, for a successful one.
#[test]
fn a_stop_that_the_world_did_not_live_to_see_is_a_crash() {
    keeps_every_promise_of(1387);
}

/// All space was occupied by versions held for an ordered origin, in segments that reclaim had
/// emptied: marks that found no space requested it, which woke reclaim, and reclaim tried to log
/// the marks.
#[test]
fn reclaim_does_not_wake_itself() {
    keeps_every_promise_of(558);
}

/// A sync of the origin had failed permanently when its volume was to be ordered. Its dirty blocks
/// waited for an order that could not begin, until the log had no space for any volume.
#[test]
fn an_order_that_cannot_begin_keeps_no_room() {
    keeps_every_promise_of(734_515_030);
}

/// The origin of a volume that was giving up its order was judged once more, because the engine had
/// not processed the action yet.
#[test]
fn an_order_that_is_given_up_is_not_judged_again() {
    keeps_every_promise_of(98_765_436_312);
}

/// One copy of the superblock had rotted, and the next superblock was written over the other copy:
/// a crash tore it, and no valid copy was left.
#[test]
fn a_rotten_root_is_mended_before_the_other_one_is_written() {
    catch_panics();
    let with = Features::default().and(Feature::Hang).and(Feature::Decay);
    let fault_profile = Some(FaultProfile::Crashes);
    let options = RunOptions { with, fault_profile, ..RunOptions::default() };
    let outcome = run_seed(61_004, &Engine(None), options);
    assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
}

/// A write had been appended, and read, when its commit failed. It was repeated around the cache,
/// and overwrote a later write.
#[test]
fn a_write_that_a_failing_cache_has_is_not_done_twice() {
    catch_panics();
    let with = Features::of(Some(Feature::Ledger));
    let fault_profile = Some(FaultProfile::CacheErrors);
    let options = RunOptions { with, fault_profile, ..RunOptions::default() };
    let outcome = run_seed(9_100_056, &Engine(None), options);
    assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
}

/// A partial write found no memory for its mask and no space in the log of a cache that had failed,
/// and read the rest of its block from the origin for ever.
#[test]
fn a_write_without_a_mask_does_not_ask_a_failed_cache_for_ever() {
    catch_panics();
    let with = Features::of(Some(Feature::Ledger));
    let options = RunOptions { with, ..RunOptions::default() };
    let outcome = run_seed(173, &Engine(None), options);
    assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
}

/// Ordered writeback was enabled while zeroes waited for a hung origin. Zeroes that were in the log
/// had already been read, and were then written again over later writes.
#[test]
fn zeroes_are_not_written_twice() {
    catch_panics();
    let with =
        [Feature::Absence, Feature::Hang, Feature::Ledger, Feature::OwnPower, Feature::Shards];
    let with = with.into_iter().fold(Features::default(), Features::and);
    let without = Features::default().and(Feature::Ram).and(Feature::Deferred);
    let options = RunOptions { with, without, ..RunOptions::default() };
    let outcome = run_seed(300_005_102, &Engine(None), options);
    assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
}

/// Reclaim moved pinned blocks, and other blocks that were kept with them, from one segment to the
/// next for ever, without gaining space.
#[test]
fn reclaim_does_not_move_pinned_blocks_in_a_circle() {
    catch_panics();
    for seed in [840_405_582_583, 840_405_584_677] {
        let outcome = run_seed(seed, &Engine(None), RunOptions::default());
        assert!(outcome.violation.is_none(), "{seed}: {:?}", outcome.violation);
    }
}

/// All segments were full of blocks that a share protected. Most of them could be evicted after the
/// next count, but that changed nothing, because some could be evicted before.
#[test]
fn segments_are_not_packed_for_ever_with_what_a_share_guards() {
    catch_panics();
    let outcome = run_seed(1_191_014_463, &Engine(None), RunOptions::default());
    assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
}

/// An origin that failed one write in a hundred and lost connections never accepted a group of 300
/// blocks, because all of them were rewritten each time.
#[test]
fn an_origin_that_fails_some_writes_takes_a_group() {
    catch_panics();
    let outcome = run_seed(1_200_002_595, &Engine(None), RunOptions::default());
    assert!(outcome.violation.is_none(), "{:?}", outcome.violation);
}

#[cfg(feature = "planted-bugs")]
#[test]
fn every_planted_bug_is_found() {
    catch_panics();
    for bug in forebay_store::PlantedBug::ALL.iter().copied() {
        let mut plan = RunPlan { max_failures: 1, ..plan(2_000, None) };
        plan.options.with = Features::of(Feature::that_shows(bug));
        let summary = run_many(plan, || Engine(Some(bug)));
        assert!(!summary.failures.is_empty(), "{} was not found", bug.name());
    }
}
