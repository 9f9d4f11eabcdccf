//! `forebay-sim-control`: the simulator of the control plane.
//!
//! Commands of several operators, some of them cancelled, run concurrently with clients, hanging
//! and failing disks, and ends, hand-overs and kills of the daemon. The daemon's code is the real
//! one, on threads of which one runs at a time, in an order that the seed determines; disks and
//! time are simulated. In the end each command must have done what it reported to its operator.
//!
//! - [`media`], [`disk`], [`shelf`]: the state of disks, their queues in the daemon, and their
//!   names
//! - [`clients`], [`client`]: the front end of clients, and a single client
//! - [`command`], [`operators`]: commands and their reports, and the operators that give them
//! - [`script`]: the events of a world
//! - [`model`]: the conditions that must hold in the end
//! - [`world`], [`notes`]: one world, and the record of its events
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "the program measures real time")]

mod client;
mod clients;
mod command;
mod disk;
mod media;
mod model;
mod notes;
mod operators;
mod script;
mod shelf;
mod world;

use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::{Parser, ValueEnum};
use forebay_daemon::planted::{self, PlantedBug};
use forebay_threads::{Plan, Simulation};
use parking_lot::Mutex;
use tracing_subscriber::EnvFilter;

use notes::WorldNotes;
use script::{Enumerated, Script};

/// Puts commands in each other's way, and judges their effects by their reports.
#[derive(Clone, Debug, Parser)]
#[command(name = "forebay-sim-control", version)]
struct Args {
    /// Run this one seed
    #[arg(long, value_name = "N", conflicts_with_all = ["seeds", "start", "seconds"])]
    seed: Option<u64>,

    /// Number of seeds to run (default 100, or no limit if --seconds is given)
    #[arg(long, value_name = "N")]
    seeds: Option<u64>,

    /// The first seed
    #[arg(long, value_name = "S", default_value_t = 0)]
    start: u64,

    /// Start no new seed after this many seconds
    #[arg(long, value_name = "T")]
    seconds: Option<u64>,

    /// Start no new seed after this many failures
    #[arg(long, value_name = "N", default_value_t = 5)]
    max_failures: usize,

    /// Threads; each runs whole seeds
    #[arg(long, value_name = "N", default_value_t = 2)]
    jobs: usize,

    /// Run enumerated scripts instead of random ones; a seed is the number of a script
    #[arg(long, value_name = "WHAT")]
    all: Option<Enumerated>,

    /// Plant each known bug in turn, and look for a seed that fails; --seconds limits the search
    /// for each
    #[arg(long, conflicts_with = "seed")]
    planted: bool,

    /// Plant this bug
    #[arg(long, value_name = "BUG")]
    plant: Option<String>,

    /// Print every event and the daemon's log, as they come (with --seed)
    #[arg(long, requires = "seed")]
    trace: bool,
}

/// Identifies a world: the seed of a random script, or the number of an enumerated one.
type WorldId = (Option<Enumerated>, u64);

/// Maximum number of steps of a world; one that takes more counts as endless. Most worlds take a
/// hundredth of them.
const MOST_STEPS: u64 = 1_000_000;

/// The result of a seed.
struct Ran {
    notes: WorldNotes,
    steps: u64,
    time: Duration,
}

fn run((enumerated, seed): WorldId) -> Ran {
    let script = match enumerated {
        Some(what) => Script::enumerated(what, seed),
        None => Script::random(seed),
    };
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
    let dir = dir.expect("a directory for the world");
    let notes = Arc::new(forebay_threads::Mutex::new(WorldNotes::default()));
    let (own_notes, path) = (notes.clone(), dir.path().to_owned());
    let plan = Plan::seed(seed).every_lock(false).most_steps(MOST_STEPS);
    let outcome = Simulation::run(plan, move || world::World::new(path, script, own_notes).run());
    let mut notes = std::mem::take(&mut *notes.lock());
    notes.wrong.extend(outcome.failures.iter().map(ToString::to_string));
    Ran { notes, steps: outcome.steps, time: outcome.time }
}

fn main() -> ExitCode {
    let args = Args::parse();
    if let Some(name) = &args.plant {
        let Some(bug) = PlantedBug::ALL.iter().find(|bug| bug.name() == name) else {
            println!("there is no bug '{name}'");
            return ExitCode::from(2);
        };
        planted::plant(Some(*bug));
    }
    if let Some(seed) = args.seed {
        if args.trace {
            // Events contain the virtual time themselves. RUST_LOG selects how much of the log is
            // shown.
            tracing_subscriber::fmt()
                .with_env_filter(EnvFilter::from_default_env())
                .without_time()
                .with_ansi(false)
                .init();
        }
        let ran = run((args.all, seed));
        for event in ran.notes.events.iter().filter(|_| !args.trace) {
            println!("{event}");
        }
        ran.notes.wrong.iter().for_each(|wrong| println!("WRONG: {wrong}"));
        println!("{} steps, {:?} of virtual time", ran.steps, ran.time);
        return ExitCode::from(u8::from(!ran.notes.wrong.is_empty()));
    }
    if args.planted {
        return hunt(&args);
    }
    let most = match args.all {
        Some(what) => args.seeds.unwrap_or(what.count().saturating_sub(args.start)),
        None => args.seeds.unwrap_or(if args.seconds.is_some() { u64::MAX } else { 100 }),
    };
    let summary = many(&args, most, args.max_failures, |number| (args.all, number));
    for ((_, seed), wrong) in &summary.failed {
        println!("seed {seed} failed:");
        wrong.iter().for_each(|wrong| println!("    {wrong}"));
    }
    println!("{:<24} {:>12}", "seeds", summary.seeds);
    println!("{:<24} {:>12}", "commands", summary.commands);
    println!("{:<24} {:>12}", "requests of clients", summary.requests);
    println!("{:<24} {:>12}", "steps of threads", summary.steps);
    println!("{:<24} {:>12}", "failures", summary.failed.len());
    println!("{:<24} {:>12.1}", "seconds", summary.time.as_secs_f64());
    ExitCode::from(u8::from(!summary.failed.is_empty()))
}

#[derive(Default)]
struct Summary {
    next: u64,
    seeds: u64,
    commands: u64,
    requests: u64,
    steps: u64,
    failed: Vec<(WorldId, Vec<String>)>,
    time: Duration,
}

/// Runs worlds on several threads. `world` returns the world of a number.
fn many(
    args: &Args,
    most: u64,
    max_failures: usize,
    world: impl Fn(u64) -> WorldId + Sync,
) -> Summary {
    let (begun, summary) = (Instant::now(), Mutex::new(Summary::default()));
    let work = || {
        loop {
            let number = {
                let mut summary = summary.lock();
                let is_over = args.seconds.is_some_and(|most| begun.elapsed().as_secs() >= most);
                if is_over || summary.next == most || summary.failed.len() >= max_failures {
                    return;
                }
                summary.next += 1;
                args.start + summary.next - 1
            };
            let world = world(number);
            let Ran { notes, steps, .. } = run(world);
            let mut summary = summary.lock();
            summary.seeds += 1;
            summary.commands += notes.commands;
            summary.requests += notes.requests;
            summary.steps += steps;
            if !notes.wrong.is_empty() {
                summary.failed.push((world, notes.wrong));
            }
        }
    };
    std::thread::scope(|scope| (0..args.jobs.max(1)).for_each(|_| drop(scope.spawn(work))));
    let mut summary = summary.into_inner();
    summary.time = begun.elapsed();
    summary
}

/// A world that has found each bug: "random" or an enumeration, and its number. It is tried first,
/// so that a test that runs often takes seconds; with another `--start` the search ignores it.
const KNOWN: &str = include_str!("../planted-seeds.txt");

fn known_world(bug: &str) -> Option<WorldId> {
    let mut lines = KNOWN.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    match lines.find(|words| words.first() == Some(&bug))?[..] {
        [_, kind, number] => Some((Enumerated::from_str(kind, true).ok(), number.parse().ok()?)),
        _ => None,
    }
}

/// Searches for each planted bug.
fn hunt(args: &Args) -> ExitCode {
    // Enumerated scripts reach cases that random scripts rarely reach.
    let alternate = |number: u64| {
        let of = |what: Enumerated| (Some(what), number.wrapping_mul(7919) % what.count());
        match number % 4 {
            0 | 1 => (None, number),
            2 => of(Enumerated::Pairs),
            _ => of(Enumerated::HungStarts),
        }
    };
    let mut missed = 0;
    println!("{:<26} {:>9} {:>7}  world and first violation", "planted bug", "seconds", "worlds");
    for bug in PlantedBug::ALL {
        planted::plant(Some(*bug));
        let known = known_world(bug.name()).filter(|_| args.start == 0);
        let tried = known.map(|world| many(args, 1, 1, |_| world));
        let summary = tried.filter(|summary| !summary.failed.is_empty());
        let summary = summary.unwrap_or_else(|| many(args, u64::MAX, 1, alternate));
        planted::plant(None);
        let found = match summary.failed.first() {
            Some(((all, number), wrong)) => {
                let kind = all.and_then(|all| all.to_possible_value());
                let kind = kind.as_ref().map_or("random", |kind| kind.get_name());
                format!("{kind} {number}: {}", wrong.first().map_or("", |wrong| wrong))
            }
            None => {
                missed += 1;
                "NOT FOUND".to_owned()
            }
        };
        let (seconds, worlds) = (summary.time.as_secs_f64(), summary.seeds);
        println!("{:<26} {seconds:>9.1} {worlds:>7}  {found}", bug.name());
    }
    println!("{} planted, {missed} not found", PlantedBug::ALL.len());
    ExitCode::from(u8::from(missed > 0))
}
