//! The events of a world: lives of daemons, commands, disk trouble, and ends.

use std::time::Duration;

use forebay_daemon::faults::Fault;

use crate::command::{CACHES, MOVED, OperatorCommand, VOLUMES, Verb};
use crate::media::Health;
use crate::shelf::REMOTE;

/// The end of a life of the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LifeEnd {
    /// SIGTERM, once all commands have ended.
    Rest,
    /// SIGTERM, this long after the start.
    Stop(Duration),
    /// A kill, this long after the start.
    Kill(Duration),
    /// The power fails.
    PowerCut(Duration),
    /// Another program takes over, once all commands have ended.
    HandOver,
}

/// A change of a disk and its time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trouble {
    /// Time since the previous change.
    pub(crate) after: Duration,
    /// Index in [`DISKS`].
    pub(crate) disk: usize,
    pub(crate) change: DiskChange,
}

/// A change of a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum DiskChange {
    Health(Health),
    /// Another system takes the disk for itself, unless the disk is claimed.
    Taken,
    /// The state directory gets a fault, or loses it.
    State(Option<Fault>),
}

/// The disks of a world.
pub(crate) const DISKS: [&str; 6] = ["o1", "o2", "c1", "c2", "foreign", REMOTE];

/// One life of a daemon.
#[derive(Clone, Debug)]
pub(crate) struct DaemonLife {
    /// The commands of each operator, who gives them one after the other with a pause before each.
    pub(crate) operators: Vec<Vec<(Duration, OperatorCommand)>>,
    pub(crate) trouble: Vec<Trouble>,
    /// Index in [`DISKS`] of a disk that hangs when the daemon starts.
    pub(crate) hung: Option<usize>,
    /// Whether the first cache device has another name during this life.
    pub(crate) renamed: bool,
    pub(crate) end: LifeEnd,
}

impl DaemonLife {
    /// Whether something hangs.
    pub(crate) fn hangs(&self) -> bool {
        let hangs = |trouble: &Trouble| {
            matches!(
                trouble.change,
                DiskChange::Health(Health::Hangs) | DiskChange::State(Some(Fault::Hangs))
            )
        };
        self.hung.is_some() || self.trouble.iter().any(hangs)
    }
}

/// A world.
#[derive(Clone, Debug)]
pub(crate) struct Script {
    pub(crate) seed: u64,
    /// Commands that are given one after the other before the lives begin, and that nothing
    /// hinders.
    pub(crate) before: Vec<OperatorCommand>,
    pub(crate) lives: Vec<DaemonLife>,
    /// Whether clients read and write.
    pub(crate) clients: bool,
}

fn millis(rng: &mut fastrand::Rng, most: u64) -> Duration {
    // Each order of magnitude is equally likely.
    let most = most.max(2).ilog2();
    let most = 2u64 << rng.u32(0..=most);
    Duration::from_millis(rng.u64(0..most))
}

/// The volumes to which the commands of most worlds apply: those of one origin, or a single volume,
/// whose commands conflict more often.
const RIVALS: [&[usize]; 4] = [&[0, 2], &[3, 4], &[0], &[3]];

fn random_command(rng: &mut fastrand::Rng, volumes: &[usize]) -> OperatorCommand {
    let verb = match rng.u32(0..15) {
        0..=2 => Verb::Create { cache: rng.usize(0..2), force: rng.u32(0..4) == 0 },
        3 => Verb::Create { cache: 2, force: rng.bool() },
        4 | 5 => Verb::Start { force: rng.u32(0..3) == 0 },
        6 | 7 => Verb::Stop,
        8 => Verb::Set { dirty_high: rng.u64(60..90) },
        9 => Verb::Mode { through: rng.bool() },
        10 => Verb::Flush,
        11 => Verb::Drop,
        12 => Verb::Delete { discard: false },
        13 => Verb::Create { cache: MOVED, force: rng.bool() },
        _ => Verb::Delete { discard: true },
    };
    let cancel = (rng.u32(0..4) == 0).then(|| millis(rng, 4000));
    OperatorCommand { verb, volume: volumes[rng.usize(0..volumes.len())], cancel }
}

fn random_life(rng: &mut fastrand::Rng, failing: bool, volumes: &[usize]) -> DaemonLife {
    let operators = (0..rng.usize(1..=3))
        .map(|_| {
            let commands =
                (0..rng.usize(1..=4)).map(|_| (millis(rng, 2000), random_command(rng, volumes)));
            commands.collect()
        })
        .collect();
    let mut trouble = Vec::new();
    for _ in 0..rng.usize(0..3) {
        let disk = rng.usize(0..DISKS.len());
        let health = match rng.u32(0..4) {
            0 if failing => Health::FailsWrites,
            1 if failing => Health::Fails,
            _ => Health::Hangs,
        };
        trouble.push(Trouble {
            after: millis(rng, 3000),
            disk,
            change: DiskChange::Health(health),
        });
        let most = if rng.bool() { 3000 } else { 200_000 };
        let lasts = millis(rng, most);
        trouble.push(Trouble { after: lasts, disk, change: DiskChange::Health(Health::Good) });
    }
    if rng.u32(0..3) == 0 {
        let (after, disk) = (millis(rng, 3000), rng.usize(3..5));
        let place = rng.usize(0..=trouble.len());
        trouble.insert(place, Trouble { after, disk, change: DiskChange::Taken });
    }
    if rng.u32(0..6) == 0 {
        let fault = [Fault::Hangs, Fault::Full, Fault::NotSynced][rng.usize(0..3)];
        let place = rng.usize(0..=trouble.len());
        let most = if rng.bool() { 3000 } else { 60_000 };
        let state = |after, fault| Trouble { after, disk: 0, change: DiskChange::State(fault) };
        trouble.insert(place, state(millis(rng, most), None));
        trouble.insert(place, state(millis(rng, 3000), Some(fault)));
    }
    let hung = (rng.u32(0..6) == 0).then(|| rng.usize(0..DISKS.len()));
    if let Some(disk) = hung {
        let heals = DiskChange::Health(Health::Good);
        trouble.insert(0, Trouble { after: millis(rng, 60_000), disk, change: heals });
    }
    let renamed = rng.u32(0..6) == 0;
    let end = match rng.u32(0..7) {
        // The end must be an idle daemon, so that it is known which volumes use the other name.
        _ if renamed => LifeEnd::Rest,
        0 | 1 => LifeEnd::Rest,
        2 => LifeEnd::HandOver,
        3 => LifeEnd::Stop(millis(rng, 8000)),
        4 => LifeEnd::PowerCut(millis(rng, 8000)),
        _ => LifeEnd::Kill(millis(rng, 8000)),
    };
    DaemonLife { operators, trouble, hung, renamed, end }
}

/// Obstacles for the commands of an enumerated script.
#[derive(Clone, Copy, Debug)]
enum ScriptObstacle {
    None,
    /// The first command is cancelled after this time.
    Cancel(u64),
    /// A disk hangs, for less or more time than commands wait.
    Hang(usize, u64),
    /// A disk hangs from this number of milliseconds on. The command at this position is cancelled
    /// while it hangs.
    HangAndCancel(usize, u64, usize),
    /// The writes to a disk fail from so many milliseconds on.
    FailsWrites(usize, u64),
    /// The daemon is killed, ended, or replaced this long after the first command began.
    Kill(u64),
    Stop(u64),
    HandOver,
    /// The state directory hangs from this number of microseconds on, and the daemon is killed.
    StateHangs(u64),
    /// Another system takes the spare disks while an origin on another machine hangs.
    Taken,
}

const OBSTACLES: [ScriptObstacle; 24] = [
    ScriptObstacle::None,
    ScriptObstacle::Cancel(0),
    ScriptObstacle::Cancel(3),
    ScriptObstacle::Hang(0, 2),
    ScriptObstacle::Hang(0, 45),
    ScriptObstacle::Hang(2, 2),
    ScriptObstacle::Hang(2, 45),
    ScriptObstacle::Kill(2),
    ScriptObstacle::Kill(15),
    ScriptObstacle::Kill(40),
    ScriptObstacle::Stop(5),
    ScriptObstacle::HandOver,
    ScriptObstacle::Taken,
    ScriptObstacle::Hang(5, 45),
    ScriptObstacle::HangAndCancel(2, 0, 0),
    // By then, a creation has begun to format the device.
    ScriptObstacle::HangAndCancel(2, 36, 0),
    ScriptObstacle::HangAndCancel(2, 0, 1),
    ScriptObstacle::HangAndCancel(5, 0, 0),
    ScriptObstacle::StateHangs(1500),
    ScriptObstacle::StateHangs(2500),
    ScriptObstacle::StateHangs(20_000),
    ScriptObstacle::FailsWrites(0, 0),
    ScriptObstacle::FailsWrites(2, 0),
    ScriptObstacle::FailsWrites(2, 3),
];

/// The state in which the first command finds the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Served,
    Stopped,
    /// The volume does not exist. Its origin is on another machine, so no claim of a device
    /// prevents a second volume from using it.
    Absent,
}

impl Before {
    fn commands(self) -> Vec<OperatorCommand> {
        let plain = |verb, volume| OperatorCommand { verb, volume, cancel: None };
        let create = |volume| plain(Verb::Create { cache: 0, force: false }, volume);
        match self {
            Before::Served => vec![create(0), create(1)],
            Before::Stopped => vec![create(0), create(1), plain(Verb::Stop, 0)],
            Before::Absent => vec![create(1)],
        }
    }
}

/// Removes a choice among `most` alternatives from a number and returns it.
fn take(rest: &mut u64, most: usize) -> usize {
    let taken = (*rest % most as u64) as usize;
    *rest /= most as u64;
    taken
}

const BEFORE: [Before; 3] = [Before::Served, Before::Stopped, Before::Absent];

/// The volume of the second command, by the position of the first one's: the same volume, one on
/// the same cache device, one that wants the same origin, and two others.
const OTHERS: [[usize; 5]; 2] = [[0, 1, 2, 3, 4], [3, 1, 4, 0, 2]];

/// Time for which a cancelled command waits for a hung device before the next command is given.
const GIVEN_UP: Duration = Duration::from_secs(2);

/// Scripts that are enumerated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Enumerated {
    /// Each two commands, with each relation of their volumes, begun together and one after the
    /// other, on a served and on a stopped volume, with each obstacle
    Pairs,
    /// Each three commands, likewise, with one obstacle each
    Triples,
    /// Each command, with a kill of the daemon at each of many moments
    Kills,
    /// Each command to a daemon that was started with a disk that hangs, at several moments
    HungStarts,
}

fn hang(disk: usize, after: u64, seconds: u64) -> Vec<Trouble> {
    let change = |after, health| Trouble { after, disk, change: DiskChange::Health(health) };
    vec![
        change(Duration::from_millis(after), Health::Hangs),
        change(Duration::from_secs(seconds), Health::Good),
    ]
}

/// Returns the effect of an obstacle on disks and the state directory.
fn trouble_of(obstacle: ScriptObstacle) -> Vec<Trouble> {
    match obstacle {
        ScriptObstacle::Hang(disk, seconds) => hang(disk, 0, seconds),
        ScriptObstacle::HangAndCancel(disk, after, _) => hang(disk, after, 20),
        ScriptObstacle::FailsWrites(disk, after) => vec![Trouble {
            after: Duration::from_millis(after),
            disk,
            change: DiskChange::Health(Health::FailsWrites),
        }],
        ScriptObstacle::StateHangs(after) => vec![Trouble {
            after: Duration::from_micros(after),
            disk: 0,
            change: DiskChange::State(Some(Fault::Hangs)),
        }],
        ScriptObstacle::Taken => vec![
            Trouble { after: Duration::ZERO, disk: 5, change: DiskChange::Health(Health::Hangs) },
            Trouble { after: Duration::from_secs(1), disk: 3, change: DiskChange::Taken },
            Trouble { after: Duration::ZERO, disk: 4, change: DiskChange::Taken },
            Trouble {
                after: Duration::from_secs(1),
                disk: 5,
                change: DiskChange::Health(Health::Good),
            },
        ],
        _ => Vec::new(),
    }
}

impl Enumerated {
    /// The number of scripts.
    pub(crate) fn count(self) -> u64 {
        let verbs = Verb::ALL.len() as u64;
        let relations = (BEFORE.len() * OTHERS[0].len()) as u64;
        match self {
            Enumerated::Pairs => verbs * verbs * relations * 2 * OBSTACLES.len() as u64,
            Enumerated::Triples => verbs * verbs * verbs * relations,
            Enumerated::Kills => verbs * BEFORE.len() as u64 * KILLS,
            Enumerated::HungStarts => {
                verbs * (2 * HUNG.len() * HEALS.len() * COMMANDED.len() * 2) as u64
            }
        }
    }
}

/// The disks of [`Enumerated::HungStarts`], the time after which they answer, and the time at which
/// the command is given, both in seconds.
const HUNG: [usize; 3] = [0, 1, 2];
const HEALS: [u64; 3] = [2, 45, 120];
const COMMANDED: [u64; 4] = [0, 1, 7, 40];

/// Number of moments of [`Enumerated::Kills`], and the interval between them.
const KILLS: u64 = 300;
const APART: Duration = Duration::from_micros(250);

impl Script {
    /// Returns the script of a number, which also determines the order of threads.
    pub(crate) fn enumerated(what: Enumerated, number: u64) -> Self {
        match what {
            Enumerated::HungStarts => Script::hung_start(number),
            _ => Script::commands(what, number),
        }
    }

    fn hung_start(number: u64) -> Self {
        let mut rest = number;
        let verb = Verb::ALL[take(&mut rest, Verb::ALL.len())];
        let before = BEFORE[take(&mut rest, 2)].commands();
        let volume = take(&mut rest, 2);
        let disk = HUNG[take(&mut rest, HUNG.len())];
        let heals = Duration::from_secs(HEALS[take(&mut rest, HEALS.len())]);
        let given = Duration::from_secs(COMMANDED[take(&mut rest, COMMANDED.len())]);
        let none = DaemonLife {
            operators: Vec::new(),
            trouble: Vec::new(),
            hung: None,
            renamed: false,
            end: LifeEnd::Rest,
        };
        let heals = Trouble { after: heals, disk, change: DiskChange::Health(Health::Good) };
        let hung = DaemonLife {
            operators: vec![vec![(given, OperatorCommand { verb, volume, cancel: None })]],
            trouble: vec![heals],
            hung: Some(disk),
            ..none.clone()
        };
        Script { seed: number, before, lives: vec![none, hung], clients: true }
    }

    fn commands(what: Enumerated, number: u64) -> Self {
        let mut rest = number;
        let mut take = |most| take(&mut rest, most);
        let all = Verb::ALL.len();
        let verbs: Vec<Verb> = match what {
            Enumerated::Pairs => vec![Verb::ALL[take(all)], Verb::ALL[take(all)]],
            Enumerated::Triples => (0..3).map(|_| Verb::ALL[take(all)]).collect(),
            Enumerated::Kills | Enumerated::HungStarts => vec![Verb::ALL[take(all)]],
        };
        let before = BEFORE[take(BEFORE.len())];
        let others = OTHERS[usize::from(before == Before::Absent)];
        let first = others[0];
        let other = if verbs.len() > 1 { others[take(others.len())] } else { first };
        let (together, obstacle) = match what {
            Enumerated::Pairs => (take(2) == 1, OBSTACLES[take(OBSTACLES.len())]),
            Enumerated::Triples => (true, OBSTACLES[number as usize % OBSTACLES.len()]),
            Enumerated::Kills | Enumerated::HungStarts => (true, ScriptObstacle::None),
        };
        let before = before.commands();
        let second = match obstacle {
            _ if together => Duration::ZERO,
            ScriptObstacle::HangAndCancel(..) => GIVEN_UP,
            _ => Duration::from_millis(8),
        };
        let mut operators = Vec::new();
        for (place, verb) in verbs.into_iter().enumerate() {
            let volume = if place == 1 { other } else { first };
            let mut command = OperatorCommand { verb, volume, cancel: None };
            command.cancel = match obstacle {
                ScriptObstacle::Cancel(after) if place == 0 => Some(Duration::from_millis(after)),
                ScriptObstacle::HangAndCancel(_, _, cancelled) if place == cancelled => {
                    Some(GIVEN_UP / 6)
                }
                _ => None,
            };
            operators.push(vec![(second * place as u32, command)]);
        }
        let trouble = trouble_of(obstacle);
        let end = match (what, obstacle) {
            (Enumerated::Kills, _) => LifeEnd::Kill(APART * (take(KILLS as usize) as u32)),
            (_, ScriptObstacle::Kill(after)) => LifeEnd::Kill(Duration::from_millis(after)),
            (_, ScriptObstacle::StateHangs(_)) => LifeEnd::Kill(GIVEN_UP / 2),
            (_, ScriptObstacle::Stop(after)) => LifeEnd::Stop(Duration::from_millis(after)),
            (_, ScriptObstacle::HandOver) => LifeEnd::HandOver,
            _ => LifeEnd::Rest,
        };
        let lives = vec![DaemonLife { operators, trouble, hung: None, renamed: false, end }];
        Script { seed: number, before, lives, clients: true }
    }

    /// Returns the script of a seed.
    pub(crate) fn random(seed: u64) -> Self {
        let rng = &mut fastrand::Rng::with_seed(seed);
        let failing = rng.u32(0..3) == 0;
        let create = |volume, cache| OperatorCommand {
            verb: Verb::Create { cache, force: false },
            volume,
            cancel: None,
        };
        let mut before = Vec::new();
        if rng.u32(0..4) > 0 {
            before.push(create(0, 0));
        }
        if rng.bool() {
            before.push(create(1, rng.usize(0..2)));
        }
        let all: Vec<usize> = (0..VOLUMES.len()).collect();
        let volumes = RIVALS.get(rng.usize(0..6)).copied().unwrap_or(&all);
        let lives = (0..rng.usize(1..=3)).map(|_| random_life(rng, failing, volumes)).collect();
        Script { seed, before, lives, clients: rng.u32(0..4) > 0 }
    }

    /// Whether a cache device fails or hangs.
    pub(crate) fn troubles_caches(&self) -> bool {
        let mut all = self.lives.iter().flat_map(|life| &life.trouble);
        all.any(|trouble| {
            CACHES.contains(&DISKS[trouble.disk]) && matches!(trouble.change, DiskChange::Health(_))
        })
    }

    /// Whether a disk fails, and does not only hang.
    pub(crate) fn fails(&self) -> bool {
        let mut all = self.lives.iter().flat_map(|life| &life.trouble);
        all.any(|trouble| {
            matches!(trouble.change, DiskChange::Health(Health::Fails | Health::FailsWrites))
        })
    }
}
