//! Concurrent commands in a simulation of threads. In every run a seed decides which thread runs
//! next, which device fails, hangs or answers late, which commands are cancelled, and whether the
//! process is killed. Every report must be true.

use forebay_threads::{Plan, RunOutcome, Simulation, sleep, spawn, step};

use super::*;
use crate::host_api::Reports as _;

/// A command on a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Create,
    Start,
    Stop,
    Set,
    Flush,
    Drop,
    Delete,
    Discard,
}

use Command::{Create, Delete, Discard, Drop as DropClean, Flush, Set, Start, Stop};

const COMMANDS: [Command; 8] = [Create, Start, Stop, Set, Flush, DropClean, Delete, Discard];

/// A volume. All volumes are on the same cache device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Volume {
    name: &'static str,
    origin: &'static str,
}

const VOLUMES: [Volume; 2] =
    [Volume { name: "a", origin: "origin" }, Volume { name: "b", origin: "other" }];

/// The state's record of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Facts {
    exists: bool,
    started: bool,
    /// Whether the settings are those of [`Command::Set`].
    is_set: bool,
}

const ABSENT: Facts = Facts { exists: false, started: false, is_set: false };

impl Command {
    fn begin(self, daemon: &Daemon, volume: Volume) -> Result<OperationId, ApiError> {
        let (volumes, name) = (&daemon.volumes, name(volume.name));
        match self {
            Create => volumes.create(&daemon.request(volume.name, volume.origin)),
            Start => volumes.start(&name, StartRequest::default()),
            Stop => volumes.stop(&name, Stopping::default()),
            Set => {
                let settings = Assignments::parse(["dirty_high=70"]).expect("good");
                volumes.set(&name, SetRequest { settings })
            }
            Flush => volumes.run(&name, BlockTask::Flush),
            DropClean => volumes.run(&name, BlockTask::Drop(DropRequest::default())),
            Delete => volumes.delete(&name, deleting(false)),
            Discard => volumes.delete(&name, deleting(true)),
        }
    }

    /// Returns the request to the host.
    fn asks(self, Volume { name, .. }: Volume) -> String {
        match self {
            Create => format!("create {name}"),
            Start => format!("start {name}"),
            Stop => format!("stop {name}"),
            Set => format!("set {name}"),
            Flush => format!("flush {name}"),
            DropClean => format!("drop {name}"),
            Delete => format!("delete {name}"),
            Discard => format!("delete {name} discard"),
        }
    }

    /// Returns the state after the command has succeeded; `None` if it cannot succeed.
    fn after(self, facts: Facts) -> Option<Facts> {
        let possible = match self {
            Create => !facts.exists,
            Flush => facts.started,
            Start | Stop | Set | DropClean | Delete | Discard => facts.exists,
        };
        let facts = match self {
            Create => Facts { exists: true, started: true, is_set: false },
            Start => Facts { started: true, ..facts },
            Stop => Facts { started: false, ..facts },
            Set => Facts { is_set: true, ..facts },
            Flush | DropClean => facts,
            Delete | Discard => ABSENT,
        };
        possible.then_some(facts)
    }
}

/// Returns whether `found` is the state after all commands in `must` have had an effect, and some
/// of those in `may`, in any order.
fn is_reachable(from: Facts, found: Facts, must: &[Command], may: &[Command]) -> bool {
    let without = |all: &[Command], index: usize| [&all[..index], &all[index + 1..]].concat();
    let one = |index: usize| {
        must[index]
            .after(from)
            .is_some_and(|next| is_reachable(next, found, &without(must, index), may))
    };
    let other = |index: usize| {
        may[index]
            .after(from)
            .is_some_and(|next| is_reachable(next, found, must, &without(may, index)))
    };
    (must.is_empty() && from == found) || (0..must.len()).any(one) || (0..may.len()).any(other)
}

/// The report about a command.
#[derive(Clone, Debug, Default)]
enum Report {
    /// There is no report yet.
    #[default]
    Open,
    Refused(#[expect(dead_code, reason = "shown when a test fails")] ApiError),
    Begun(OperationId),
    Ended(Result<(), ApiError>),
}

/// A command and its volume.
type Given = (Command, Volume);

type Reports = Arc<Mutex<Vec<Report>>>;

/// Gives a command and waits for its end.
fn client(daemon: &Daemon, (command, volume): Given, number: usize, reports: &Reports) {
    let id = match command.begin(daemon, volume) {
        Ok(id) => id,
        Err(error) => {
            reports.lock()[number] = Report::Refused(error);
            return;
        }
    };
    reports.lock()[number] = Report::Begun(id);
    let ended = loop {
        let operation = daemon.volumes.operations().wait(id, None).expect("known");
        match (operation.state, operation.error) {
            (forebay_admin::OperationState::Running, _) => sleep(Duration::from_millis(100)),
            (_, error) => break error.map_or(Ok(()), Err),
        }
    };
    reports.lock()[number] = Report::Ended(ended);
}

fn facts(volumes: &[Remembered], volume: Volume) -> Facts {
    let own = |entry: &&Remembered| entry.volume.name == name(volume.name);
    volumes.iter().find(own).map_or(ABSENT, |entry| Facts {
        exists: true,
        started: entry.started,
        is_set: entry.volume.settings.dirty_high == 70,
    })
}

/// Brings a volume into a random state before the commands.
fn prepare(daemon: &Daemon, volume: Volume, random: &mut fastrand::Rng) -> Facts {
    if random.u8(..4) == 0 {
        return ABSENT;
    }
    daemon.create(volume.name, volume.origin).expect("good");
    let started = random.bool();
    if !started {
        daemon.end(daemon.volumes.stop(&name(volume.name), Stopping::default())).expect("good");
    }
    Facts { exists: true, started, is_set: false }
}

/// Cancels a command and mends the devices after some time.
fn operator(daemon: &Daemon, reports: &Reports, mut random: fastrand::Rng) {
    if random.bool() {
        sleep(Duration::from_millis(random.u64(..200)));
        let all = reports.lock().clone();
        if let Report::Begun(id) = all[random.usize(..all.len())] {
            daemon.volumes.operations().cancel(id);
        }
    }
    sleep(Duration::from_millis(random.u64(..40_000)));
    daemon.host.failing.lock().clear();
}

/// Checks that the state of a volume is one that the reports about it allow.
fn judge(volume: Volume, before: Facts, found: Facts, commands: &[Given], reports: &[Report]) {
    let of = |is: fn(Command, &Report) -> bool| -> Vec<Command> {
        let all = commands.iter().zip(reports).filter(|((_, other), _)| *other == volume);
        all.filter(|((command, _), report)| is(*command, report))
            .map(|((command, _), _)| *command)
            .collect()
    };
    let mut must = of(|_, report| matches!(report, Report::Ended(Ok(()))));
    // A stop that fails may have ended the service.
    let mut may = of(|command, report| match report {
        Report::Open | Report::Begun(_) => true,
        Report::Ended(Err(_)) => command == Stop,
        Report::Refused(_) | Report::Ended(Ok(())) => false,
    });
    // A command that discards dirty blocks continues beside a deletion that waits for a device;
    // both delete the same volume.
    if must.contains(&Discard) {
        may.extend(must.extract_if(.., |command| *command == Delete));
    }
    let possible = is_reachable(before, found, &must, &may);
    assert!(possible, "{before:?} of {volume:?} became {found:?}: {commands:?}, {reports:?}");
}

/// Gives the commands at the same time, in a world of `seed`. The process may be killed meanwhile.
fn scenario(commands: &[Command], seed: u64) {
    let mut random = fastrand::Rng::with_seed(seed);
    let daemon = Arc::new(Daemon::within(TempDir::in_memory("simulated")));
    let before = VOLUMES.map(|volume| (volume, prepare(&daemon, volume, &mut random)));
    // Most commands are for one volume, where they interfere with each other.
    let volume = |random: &mut fastrand::Rng| VOLUMES[usize::from(random.u8(..4) == 0)];
    let commands: Vec<Given> =
        commands.iter().map(|&command| (command, volume(&mut random))).collect();
    for (command, volume) in &commands {
        let how = ["", "hang ", "late ", "refuse "].get(random.usize(..8));
        let fails = how.map(|how| format!("{how}{}", command.asks(*volume)));
        daemon.host.failing.lock().extend(fails);
    }
    let killed = random.bool().then(|| random.u32(..600));
    let reports: Reports = Arc::new(Mutex::new(vec![Report::Open; commands.len()]));
    let clients = commands.iter().enumerate().map(|(number, &given)| {
        let (daemon, reports) = (daemon.clone(), reports.clone());
        let run = move || client(&daemon, given, number, &reports);
        spawn(&format!("client-{number}"), run).expect("thread")
    });
    let mut threads: Vec<_> = clients.collect();
    let (own, own_reports) = (daemon.clone(), reports.clone());
    let operator = spawn("operator", move || operator(&own, &own_reports, random));
    threads.push(operator.expect("thread"));
    let judge_all = |daemon: &Daemon| {
        let stored = daemon.volumes.state.volumes();
        for (volume, before) in before {
            judge(volume, before, facts(&stored, volume), &commands, &reports.lock());
        }
    };
    if let Some(steps) = killed {
        (0..steps).for_each(|_| step());
        Simulation::current().expect("simulated").crash();
        judge_all(&Arc::into_inner(daemon).expect("all others have ended").restart());
        return;
    }
    for thread in threads {
        thread.join().expect("no panic");
    }
    judge_all(&daemon);
    check_quiet(&daemon, &commands, &reports.lock());
}

/// Checks that no operation runs, and that exactly the volumes that the state lists as started are
/// served.
fn check_quiet(daemon: &Daemon, commands: &[Given], reports: &[Report]) {
    assert!(daemon.volumes.operations().wait_all(Duration::ZERO), "an operation is left");
    let stored = daemon.volumes.state.volumes();
    let deleted = daemon.volumes.state.known().facts().deleted.clone();
    for volume in VOLUMES {
        let is_served = daemon.host.condition(&name(volume.name)).is_some();
        assert_eq!(
            is_served,
            facts(&stored, volume).started,
            "{volume:?}: {commands:?}, {reports:?}"
        );
    }
    for entry in stored {
        assert!(!entry.deleting, "{commands:?}, {reports:?}");
        assert!(entry.volume.uuid.is_none_or(|uuid| !deleted.contains(&uuid)));
    }
    // Something is left of a volume only if the cache device could not record the deletion.
    let discards = commands.iter().any(|(command, _)| *command == Discard);
    assert!(deleted.is_empty() || discards, "{commands:?}, {reports:?}");
    assert!(daemon.volumes.claims.is_empty(), "a claim is left: {:?}", daemon.volumes.claims);
    let overlaps = daemon.host.overlaps.lock();
    assert!(overlaps.is_empty(), "{overlaps:?}");
}

fn run(commands: &[Command], seed: u64) -> RunOutcome<()> {
    // On a slow machine, time limits expire although no wait is endless.
    let plan = Plan::seed(seed).early(seed % 4 == 3).most_time(Duration::from_secs(3600));
    let commands = commands.to_vec();
    Simulation::run(plan, move || scenario(&commands, seed))
}

/// Runs the commands in worlds of `seeds` seeds, or of `FOREBAY_SEEDS`.
fn try_all(commands: &[Command], seeds: u64) {
    let times = std::env::var("FOREBAY_SEEDS").ok().and_then(|times| times.parse().ok());
    for seed in 0..seeds * times.unwrap_or(1) {
        let failures = run(commands, seed).failures;
        let failures: Vec<String> = failures.iter().map(ToString::to_string).collect();
        assert!(failures.is_empty(), "{commands:?}, seed {seed}: {}", failures.join("\n"));
    }
}

#[test]
fn pairs_of_commands_do_what_they_reported() {
    for (index, one) in COMMANDS.into_iter().enumerate() {
        COMMANDS[index..].iter().for_each(|other| try_all(&[one, *other], 16));
    }
}

#[test]
fn triples_of_commands_do_what_they_reported() {
    for (index, one) in COMMANDS.into_iter().enumerate() {
        for (index, other) in COMMANDS.into_iter().enumerate().skip(index) {
            COMMANDS[index..].iter().for_each(|third| try_all(&[one, other, *third], 4));
        }
    }
}

#[test]
fn a_seed_repeats_its_run() {
    for seed in 0..10 {
        let [one, other] = [(); 2].map(|()| run(&[Stop, Set], seed));
        assert_eq!((one.trace, one.steps, one.time), (other.trace, other.steps, other.time));
    }
}
