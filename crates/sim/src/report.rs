//! Counters of runs, and their output.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use forebay_core::why::Why;
use serde::Serialize;

use crate::features::Features;
use crate::profile::FaultProfile;
use crate::violation::Violation;

/// Counters of one run, or the sum over many.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RunCounts {
    /// Runs.
    pub seeds: u64,
    /// Runs by fault profile.
    pub fault_profile: BTreeMap<&'static str, u64>,
    /// Runs by feature.
    pub features: BTreeMap<&'static str, u64>,
    /// Requests of clients and of verifications.
    pub requests: u64,
    /// Requests answered without waiting.
    pub at_once: u64,
    /// Requests that failed for a known cause.
    pub failed_requests: u64,
    /// Crashes, nested ones included: each is a crash point that was checked.
    pub crashes: u64,
    /// Recoveries that ended with an open cache.
    pub recoveries: u64,
    /// Crashes during a recovery.
    pub nested_crashes: u64,
    /// Origins written to or exchanged while the system was down.
    pub external_writers: u64,
    /// Visits of external writers after an orderly stop.
    pub edited_elsewhere: u64,
    /// Orderly stops.
    pub clean_stops: u64,
    /// Actions of operators.
    pub admin_actions: u64,
    /// Sectors compared with the oracle.
    pub sectors_verified: u64,
    /// Origins of ordered volumes judged during runs.
    pub origins_judged: u64,
    /// Injected faults by kind.
    pub faults: BTreeMap<&'static str, u64>,
    /// Reasons for misses, refused blocks and so on, from volumes that still existed at the end.
    pub reasons: BTreeMap<String, u64>,
    /// Steps of the scheduler.
    pub steps: u64,
    /// Virtual time, in nanoseconds.
    pub virtual_nanos: u64,
}

impl RunCounts {
    /// Creates the counters of one run.
    pub fn new(fault_profile: FaultProfile, features: Features) -> Self {
        let fault_profile = BTreeMap::from([(fault_profile.name(), 1)]);
        let features = features.each().map(|feature| (feature.name(), 1)).collect();
        RunCounts { seeds: 1, fault_profile, features, ..RunCounts::default() }
    }

    /// Adds the counters of another run.
    pub fn add(&mut self, other: &RunCounts) {
        self.seeds += other.seeds;
        self.requests += other.requests;
        self.at_once += other.at_once;
        self.failed_requests += other.failed_requests;
        self.crashes += other.crashes;
        self.recoveries += other.recoveries;
        self.nested_crashes += other.nested_crashes;
        self.external_writers += other.external_writers;
        self.edited_elsewhere += other.edited_elsewhere;
        self.clean_stops += other.clean_stops;
        self.admin_actions += other.admin_actions;
        self.sectors_verified += other.sectors_verified;
        self.origins_judged += other.origins_judged;
        self.steps += other.steps;
        self.virtual_nanos += other.virtual_nanos;
        for (kind, count) in &other.fault_profile {
            *self.fault_profile.entry(kind).or_default() += count;
        }
        for (feature, count) in &other.features {
            *self.features.entry(feature).or_default() += count;
        }
        for (kind, count) in &other.faults {
            *self.faults.entry(kind).or_default() += count;
        }
        for (reason, count) in &other.reasons {
            *self.reasons.entry(reason.clone()).or_default() += count;
        }
    }

    /// Adds the reasons that volumes have counted.
    pub(crate) fn add_reasons(&mut self, volumes: &[Why]) {
        for why in volumes {
            why.each(|group, name, count| {
                *self.reasons.entry(format!("{group}.{name}")).or_default() += count;
            });
        }
    }

    /// Returns a table for people.
    pub fn table(&self) -> String {
        let mut text = String::new();
        let rows = [
            ("seeds", self.seeds),
            ("requests", self.requests),
            ("  answered without waiting", self.at_once),
            ("  failed with a cause", self.failed_requests),
            ("crash points checked", self.crashes),
            ("  nested, during a recovery", self.nested_crashes),
            ("recoveries", self.recoveries),
            ("external writers at the origins", self.external_writers),
            ("origins written elsewhere after a stop", self.edited_elsewhere),
            ("clean stops", self.clean_stops),
            ("operator actions", self.admin_actions),
            ("sectors verified", self.sectors_verified),
            ("origins judged in order", self.origins_judged),
            ("virtual seconds", self.virtual_nanos / 1_000_000_000),
        ];
        for (name, value) in rows {
            let _ = writeln!(text, "{name:<28} {value:>14}");
        }
        for (kind, count) in &self.fault_profile {
            let _ = writeln!(text, "runs with {kind:<18} {count:>14}");
        }
        for (feature, count) in &self.features {
            let _ = writeln!(text, "worlds with {feature:<16} {count:>14}");
        }
        for (kind, count) in &self.faults {
            let _ = writeln!(text, "injected: {kind:<18} {count:>14}");
        }
        for (reason, count) in &self.reasons {
            let _ = writeln!(text, "{reason:<28} {count:>14}");
        }
        text
    }
}

/// The result of one seed.
#[derive(Clone, Debug)]
pub struct SeedResult {
    /// The seed.
    pub seed: u64,
    /// Hash of the trace.
    pub hash: u64,
    /// The counters.
    pub counts: RunCounts,
    /// The first broken promise, if any.
    pub violation: Option<Violation>,
}

/// A failed seed as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct FailureReport {
    /// The seed.
    pub seed: u64,
    /// Number of the invariant in the contract.
    pub invariant: u32,
    /// Volume, if it is about data.
    pub volume: Option<u16>,
    /// Sector, if it is about data.
    pub sector: Option<u64>,
    /// Admissible values.
    pub expected: Vec<String>,
    /// The value found.
    pub got: String,
    /// The message for people.
    pub message: String,
    /// Hash of the trace, in hexadecimal.
    pub trace_hash: String,
    /// The command that replays it.
    pub replay: String,
}

impl FailureReport {
    /// Creates the report of a run that broke a promise. `extra` are further arguments that the
    /// replay needs.
    pub fn new(outcome: &SeedResult, violation: &Violation, extra: &str) -> Self {
        FailureReport {
            seed: outcome.seed,
            invariant: violation.invariant,
            volume: violation.place.map(|place| place.volume),
            sector: violation.place.map(|place| place.sector),
            expected: violation.expected.iter().map(ToString::to_string).collect(),
            got: violation.got.clone(),
            message: violation.to_string(),
            trace_hash: format!("{:016x}", outcome.hash),
            replay: format!("forebay-sim --seed {}{extra}", outcome.seed),
        }
    }

    /// Returns the report for people.
    pub fn text(&self) -> String {
        format!(
            "seed {} FAILED: {}\n  trace hash {}\n  replay: {} --trace\n",
            self.seed, self.message, self.trace_hash, self.replay
        )
    }
}

/// The whole report as JSON.
#[derive(Clone, Debug, Serialize)]
pub struct JsonReport<'a> {
    /// All counters.
    pub counts: &'a RunCounts,
    /// All failed seeds.
    pub failures: &'a [FailureReport],
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Hash of the trace if only one seed was run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub trace_hash: Option<String>,
}
