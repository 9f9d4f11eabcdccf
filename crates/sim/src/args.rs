//! The command line.
#![allow(unreachable_pub, reason = "a module of the binary")]

use std::rc::Rc;
use std::time::Duration;

use clap::Parser;
use forebay_engine::EngineError;
use forebay_sim::engine::Engine;
use forebay_sim::features::{Feature, Features};
use forebay_sim::profile::FaultProfile;
use forebay_sim::reference::{ReferenceBug, ReferenceModel};
use forebay_sim::system::{Instance, LocalFuture, Machine, SystemUnderTest};
use forebay_sim::world::RunOptions;
use forebay_store::PlantedBug;

/// The first seed, unless the command line sets it.
pub const FIRST: u64 = 1;

/// Runs the whole engine on simulated disks under a virtual clock, with crashes and faults, and
/// judges every answer.
#[derive(Clone, Debug, Parser)]
#[command(name = "forebay-sim", version)]
pub struct Args {
    /// Run this one seed; the same seed takes the same steps and ends with the same trace hash
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "start", "seconds"])]
    pub seed: Option<u64>,

    /// Number of seeds to run (default 100, or no limit if --seconds is given)
    #[arg(long, value_name = "N")]
    pub seeds: Option<u64>,

    /// The first seed
    #[arg(long, value_name = "S", default_value_t = FIRST)]
    pub start: u64,

    /// Start no new seed after this many seconds
    #[arg(long, value_name = "T")]
    pub seconds: Option<u64>,

    /// Threads; each runs whole seeds
    #[arg(long, value_name = "N", default_value_t = 2)]
    pub jobs: usize,

    /// Start no new seed after this many failures
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub max_failures: usize,

    /// Print every event (with --seed)
    #[arg(long, requires = "seed")]
    pub trace: bool,

    /// Print the report as JSON
    #[arg(long)]
    pub json: bool,

    /// Print no progress
    #[arg(long)]
    pub quiet: bool,

    /// Exit with 0 if a promise was broken and with 1 if not
    #[arg(long)]
    pub expect_failure: bool,

    /// Switch on a known bug (see --planted for their names)
    #[arg(long, value_name = "NAME")]
    pub plant: Option<String>,

    /// Use this fault profile instead of the seed's: crashes, origin-errors, cache-errors or damage
    #[arg(long = "faults", alias = "weather", value_name = "KIND", value_parser = fault_profile)]
    pub fault_profile: Option<FaultProfile>,

    /// Give every world this feature; may be given several times
    #[arg(long, value_name = "FEATURE", value_parser = feature)]
    pub with: Vec<Feature>,

    /// Give no world this feature; may be given several times
    #[arg(long, value_name = "FEATURE", value_parser = feature)]
    pub without: Vec<Feature>,

    /// Discarded ranges of origins read as zeroes, as in files; otherwise a discard may do nothing
    #[arg(long)]
    pub discards_zero: bool,

    /// Run the reference model without a cache instead of the engine
    #[arg(long, alias = "toy")]
    pub reference: bool,

    /// Run each planted bug until it is found, and print how long that took
    #[arg(long, conflicts_with_all = ["seed", "plant", "reference"])]
    pub planted: bool,
}

impl Args {
    /// Returns the limit of `--seconds`.
    pub fn time(&self) -> Option<Duration> {
        self.seconds.map(Duration::from_secs)
    }

    /// Returns the options with which every seed is run.
    pub fn run_options(&self) -> RunOptions {
        let set = |of: &[Feature]| of.iter().fold(Features::default(), |set, it| set.and(*it));
        RunOptions {
            print: self.trace,
            discards_zero: self.discards_zero,
            fault_profile: self.fault_profile,
            with: set(&self.with),
            without: set(&self.without),
        }
    }

    /// Returns the arguments, besides the number of the seed, that a replay of a seed needs.
    pub fn replay_arguments(&self, choice: SystemKind) -> String {
        let faults = self.fault_profile.map(|profile| format!(" --faults {}", profile.name()));
        let discards = if self.discards_zero { " --discards-zero" } else { "" };
        let each = |name: &str, of: &[Feature]| {
            of.iter().map(|feature| format!(" --{name} {}", feature.name())).collect::<String>()
        };
        let features = each("with", &self.with) + &each("without", &self.without);
        choice.arguments() + &faults.unwrap_or_default() + discards + &features
    }

    /// Returns the system under test.
    pub fn choice(&self) -> Result<SystemKind, String> {
        let Some(name) = &self.plant else {
            return Ok(if self.reference {
                SystemKind::ReferenceModel(None)
            } else {
                SystemKind::Engine(None)
            });
        };
        let known = SystemKind::planted();
        known.iter().find(|choice| choice.name() == *name).copied().ok_or_else(|| {
            let names: Vec<_> = known.iter().map(SystemKind::name).collect();
            format!(
                "'{name}' is not a planted bug of this build; choose one of {}",
                names.join(", ")
            )
        })
    }
}

/// A system under test.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SystemKind {
    /// The engine, with at most one planted bug.
    Engine(Option<PlantedBug>),
    /// The reference model, with at most one bug.
    ReferenceModel(Option<ReferenceBug>),
}

impl SystemKind {
    /// Returns every planted bug that was compiled in.
    pub fn planted() -> Vec<SystemKind> {
        let engine = PlantedBug::ALL.iter().copied().filter(|_| cfg!(feature = "planted-bugs"));
        let engine = engine.map(|bug| SystemKind::Engine(Some(bug)));
        engine.chain(ReferenceBug::ALL.map(|bug| SystemKind::ReferenceModel(Some(bug)))).collect()
    }

    /// Returns the bug's name on the command line; empty without a bug.
    pub fn name(&self) -> String {
        match self {
            SystemKind::ReferenceModel(Some(bug)) => {
                format!("reference-{}", kebab(&format!("{bug:?}")))
            }
            SystemKind::Engine(Some(bug)) => bug.name().to_owned(),
            SystemKind::Engine(None) | SystemKind::ReferenceModel(None) => String::new(),
        }
    }

    /// Returns the fault profile in which a bug shows, if it shows in only one.
    pub fn fault_profile(&self) -> Option<FaultProfile> {
        match self {
            // A checksum matters only if payloads come back damaged.
            SystemKind::Engine(Some(PlantedBug::UnboundChecksum)) => Some(FaultProfile::Damage),
            SystemKind::Engine(Some(PlantedBug::FailedSyncRetried)) => {
                Some(FaultProfile::OriginErrors)
            }
            SystemKind::Engine(Some(PlantedBug::CheckpointBeforeRecords)) => {
                Some(FaultProfile::Crashes)
            }
            _ => None,
        }
    }

    /// Returns the features that a world needs for a bug to show.
    pub fn features(&self) -> Features {
        match self {
            SystemKind::Engine(Some(bug)) => Features::of(Feature::that_shows(*bug)),
            SystemKind::Engine(None) | SystemKind::ReferenceModel(_) => Features::default(),
        }
    }

    /// Returns the features of a world in which a bug hardly ever shows.
    pub fn hidden_by(&self) -> Features {
        match self {
            SystemKind::Engine(Some(bug)) => Feature::that_hide(*bug),
            SystemKind::Engine(None) | SystemKind::ReferenceModel(_) => Features::default(),
        }
    }

    /// Returns the arguments, besides the seed, that a replay needs.
    pub fn arguments(&self) -> String {
        match self {
            SystemKind::ReferenceModel(None) => " --reference".into(),
            SystemKind::Engine(None) => String::new(),
            SystemKind::Engine(Some(_)) | SystemKind::ReferenceModel(Some(_)) => {
                format!(" --plant {}", self.name())
            }
        }
    }

    fn system(&self) -> Box<dyn SystemUnderTest> {
        match self {
            SystemKind::Engine(bug) => Box::new(Engine(*bug)),
            SystemKind::ReferenceModel(bug) => Box::new(ReferenceModel(*bug)),
        }
    }
}

impl SystemUnderTest for SystemKind {
    fn lacks(&self) -> Features {
        self.system().lacks()
    }

    fn format(&self, machine: &Machine) -> LocalFuture<Result<(), EngineError>> {
        self.system().format(machine)
    }

    fn open(&self, machine: &Machine) -> LocalFuture<Result<Rc<dyn Instance>, EngineError>> {
        self.system().open(machine)
    }
}

fn fault_profile(name: &str) -> Result<FaultProfile, String> {
    let found = FaultProfile::ALL.into_iter().find(|profile| profile.name() == name);
    found.ok_or_else(|| "choose one of crashes, origin-errors, cache-errors, damage".into())
}

fn feature(name: &str) -> Result<Feature, String> {
    let found = Feature::ALL.into_iter().find(|feature| feature.name() == name);
    found.ok_or_else(|| format!("choose one of {}", Feature::ALL.map(Feature::name).join(", ")))
}

/// Converts `ForgottenSync` to `forgotten-sync`.
fn kebab(name: &str) -> String {
    let mut out = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !out.is_empty() {
            out.push('-');
        }
        out.push(letter.to_ascii_lowercase());
    }
    out
}
