//! One world: disks, a state directory, and a sequence of daemons, with operators and clients.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_admin::operation::OperationList;
use forebay_admin::{ErrorKind, OperationState};
use forebay_core::{Op, Survives};
use forebay_daemon::embedded::{Embedded, Environment};
use forebay_daemon::faults;
use forebay_engine::FrontEnd;
use forebay_threads::{Instant, JoinHandle, Mutex, Simulation, sleep, spawn};
use serde_json::Value;

use crate::client::{BLOCK, OriginClient, STEP, value_of};
use crate::clients::{Clients, clients};
use crate::command::{CACHES, Issued, MOVED, OperatorCommand, Report, VOLUMES, Verb};
use crate::media::{Health, Media};
use crate::model::{BLOCKS, Model, ORIGINS, VolumeModel, origin_of};
use crate::notes::{WorldNotes, note};
use crate::operators::{crowd, end_consent, give};
use crate::script::{DISKS, DaemonLife, DiskChange, LifeEnd, Script};
use crate::shelf::{REMOTE, Shelf};

/// Size of the origins, in bytes.
const ORIGIN: u64 = 16 << 20;
/// Size of the cache devices.
const CACHE: u64 = 64 << 20;
/// Time limit of operations with healthy devices.
const ENDING: Duration = Duration::from_secs(600);

/// Time limit for the daemon's stop, whatever the devices do.
const STOPPING: Duration = Duration::from_secs(80);
/// Interval at which the operations in progress are checked.
const OBSERVING: Duration = Duration::from_millis(70);
/// Time limit for closing a cache once all devices are healthy.
const CLOSING: Duration = Duration::from_secs(3);

/// See the module.
pub(crate) struct World {
    dir: PathBuf,
    shelf: Arc<Shelf>,
    model: Arc<Mutex<Model>>,
    notes: Arc<Mutex<WorldNotes>>,
    script: Script,
    rng: fastrand::Rng,
    hand_overs: u64,
    /// Whether the first cache device has its other name at present.
    renamed: bool,
}

/// The end of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cut {
    /// The process has ended in order, or handed over.
    Orderly,
    Killed,
    /// The machine lost power.
    Power,
}

/// A daemon with its clients and operators.
struct RunningDaemon {
    daemon: Arc<Embedded>,
    clients: Arc<Clients>,
    issued: Arc<Mutex<Vec<Issued>>>,
    ending: Arc<AtomicBool>,
    operators: Vec<JoinHandle<()>>,
    /// Threads of clients and of the trouble with disks.
    others: Vec<JoinHandle<()>>,
    /// Whether something may hang.
    hangs: bool,
}

impl World {
    /// Creates a world in an empty directory.
    pub(crate) fn new(dir: PathBuf, script: Script, notes: Arc<Mutex<WorldNotes>>) -> Self {
        let devices = dir.join("devices");
        let _ = std::fs::create_dir_all(&devices);
        let shelf = Shelf::new(&devices, ORIGIN);
        for (name, size) in DISKS.into_iter().zip([ORIGIN, ORIGIN, CACHE, CACHE, CACHE]) {
            shelf.add(name, size);
        }
        shelf.named("foreign").expect("added").make_foreign(0xa7);
        let rng = fastrand::Rng::with_seed(script.seed ^ 0x5eed);
        let model = Arc::new(Mutex::new(Model::new()));
        World { dir, shelf, model, notes, script, rng, hand_overs: 0, renamed: false }
    }

    fn wrong(&self, what: impl Into<String>) {
        self.notes.lock().wrong.push(what.into());
    }

    fn event(&self, what: impl std::fmt::Display) {
        note(&self.notes, what);
    }

    /// Lives through the script.
    pub(crate) fn run(mut self) {
        let script = self.script.clone();
        let mut lock = None;
        for (number, life) in script.lives.iter().enumerate() {
            self.name_disks(life.renamed);
            if let Some(disk) = life.hung {
                self.event(format_args!("{} hangs", DISKS[disk]));
                self.shelf.named(DISKS[disk]).expect("added").set_health(Health::Hangs);
            }
            let Some(running) = self.begin(lock.take()) else { return };
            if number == 0 {
                for command in &script.before {
                    self.give(&running, *command);
                }
            }
            let running = self.disturb(running, life);
            lock = self.end(running, life);
            if !self.notes.lock().wrong.is_empty() {
                return;
            }
        }
        self.last(lock);
    }

    fn begin(&mut self, lock: Option<std::os::fd::OwnedFd>) -> Option<RunningDaemon> {
        // A daemon cannot start while its state directory does not answer.
        faults::set(&self.state_dir(), None);
        let clients = clients();
        let front_end: Arc<dyn FrontEnd> = clients.clone();
        let opened = Embedded::open(Environment {
            state_dir: self.state_dir(),
            state_lock: lock,
            hand_overs: self.hand_overs,
            front_ends: vec![front_end],
            opener: self.shelf.clone(),
            lanes: 2,
            memory_limit: 1 << 30,
        });
        match opened.and_then(|daemon| daemon.restore().map(|()| daemon)) {
            Ok(daemon) => Some(RunningDaemon {
                daemon: Arc::new(daemon),
                clients,
                issued: Arc::default(),
                ending: Arc::default(),
                operators: Vec::new(),
                others: Vec::new(),
                hangs: false,
            }),
            Err(error) => {
                self.wrong(format!("the daemon does not start: {error}"));
                None
            }
        }
    }

    fn give(&self, running: &RunningDaemon, command: OperatorCommand) -> Report {
        give(&running.daemon, &self.shelf, &self.model, (&running.issued, &self.notes), command)
    }

    /// Starts operators, clients and trouble.
    fn disturb(&self, mut running: RunningDaemon, life: &DaemonLife) -> RunningDaemon {
        let hangs = |media: &Arc<Media>| media.health() == Health::Hangs;
        running.hangs = life.hangs() || self.shelf.all().iter().any(hangs);
        for commands in &life.operators {
            let (daemon, shelf, model) =
                (running.daemon.clone(), self.shelf.clone(), self.model.clone());
            let (issued, notes, commands) =
                (running.issued.clone(), self.notes.clone(), commands.clone());
            let ending = running.ending.clone();
            let operator = spawn("operator", move || {
                for (pause, command) in commands {
                    sleep(pause);
                    if !ending.load(Ordering::SeqCst) {
                        give(&daemon, &shelf, &model, (&issued, &notes), command);
                    }
                }
            });
            running.operators.extend(operator);
        }
        let (shelf, notes, trouble) =
            (self.shelf.clone(), self.notes.clone(), life.trouble.clone());
        let state_dir = self.state_dir();
        let ending = running.ending.clone();
        let troubled = spawn("trouble", move || {
            for change in trouble {
                sleep(change.after);
                if !ending.load(Ordering::SeqCst) {
                    let name = DISKS[change.disk];
                    let media = shelf.named(name).expect("added");
                    match change.change {
                        DiskChange::Health(health) => {
                            note(&notes, format_args!("{name}: {health:?}"));
                            media.set_health(health);
                        }
                        DiskChange::Taken if media.make_foreign(0xb8) => {
                            note(&notes, format_args!("{name}: taken by another system"));
                        }
                        DiskChange::Taken => {}
                        DiskChange::State(fault) => {
                            note(&notes, format_args!("state directory: {fault:?}"));
                            faults::set(&state_dir, fault);
                        }
                    }
                }
            }
        });
        running.others.extend(troubled);
        let (daemon, notes, ending) =
            (running.daemon.clone(), self.notes.clone(), running.ending.clone());
        let observer = spawn("observer", move || {
            while !ending.load(Ordering::SeqCst) {
                let wrong = crowd(&daemon);
                notes.lock().wrong.extend(wrong);
                sleep(OBSERVING);
            }
        });
        running.others.extend(observer);
        if self.script.clients {
            for origin in 0..ORIGINS.len() {
                let client = OriginClient {
                    clients: running.clients.clone(),
                    model: self.model.clone(),
                    notes: self.notes.clone(),
                    ending: running.ending.clone(),
                    origin,
                    rng: fastrand::Rng::with_seed(self.script.seed ^ (origin as u64 + 77)),
                };
                running.others.extend(spawn("client", move || client.run()));
            }
        }
        running
    }

    fn state_dir(&self) -> PathBuf {
        self.dir.join("state")
    }

    /// Gives the first cache device its other name, or its original one. The original name is not
    /// restored while a volume uses the other one.
    fn name_disks(&mut self, renamed: bool) {
        let is = |volume: &Option<VolumeModel>| volume.as_ref().is_some_and(|it| it.cache == MOVED);
        let keeps = self.model.lock().volumes.iter().flatten().any(is);
        if renamed && !self.renamed {
            self.shelf.rename(CACHES[0], CACHES[MOVED]);
            self.event("c1 is called moved");
        } else if self.renamed && !renamed && !keeps {
            self.shelf.rename(CACHES[MOVED], CACHES[0]);
            self.event("c1 has its own name");
        } else {
            return;
        }
        self.renamed = renamed;
    }

    fn heal(&self) {
        faults::set(&self.state_dir(), None);
        let remote = self.shelf.named(REMOTE);
        self.shelf.all().iter().chain(&remote).for_each(|media| media.set_health(Health::Good));
    }

    /// Waits until the daemon is idle, and compares it with the model.
    fn rest(&self, running: &mut RunningDaemon, settled: bool) {
        let begun = Instant::now();
        // Operators end by themselves, or when hanging devices answer again.
        while running.operators.iter().any(|it| !it.is_finished()) && begun.elapsed() < ENDING {
            sleep(Duration::from_millis(200));
        }
        running.ending.store(true, Ordering::SeqCst);
        self.heal();
        for thread in running.operators.drain(..).chain(running.others.drain(..)) {
            let _ = thread.join();
        }
        self.heal();
        while let Some(operation) = self.in_progress(running) {
            if begun.elapsed() > 2 * ENDING {
                self.wrong(format!("does not end although all devices are well: {operation}"));
                return;
            }
            sleep(Duration::from_millis(100));
        }
        self.learn(running);
        let list = self.list_at_rest(running);
        let wrong = self.model.lock().check(&list, &self.shelf, settled);
        self.notes.lock().wrong.extend(wrong);
        self.check_claims(&list);
        self.complaints();
    }

    /// Returns the list of volumes once operations that were given up have ended, shortly after
    /// their devices have answered.
    fn list_at_rest(&self, running: &RunningDaemon) -> Value {
        let begun = Instant::now();
        let ends = ["recovering", "waiting", "stopping"];
        loop {
            let list = running.daemon.ask("GET", "/v1/reports", &Value::Null).body;
            let volumes = list["volumes"].as_array().into_iter().flatten();
            let mut states = volumes.filter_map(|volume| volume["state"].as_str());
            if begun.elapsed() > CLOSING || !states.any(|state| ends.contains(&state)) {
                return list;
            }
            sleep(Duration::from_millis(50));
        }
    }

    fn in_progress(&self, running: &RunningDaemon) -> Option<String> {
        let answer = running.daemon.ask("GET", "/v1/operations", &Value::Null);
        let list: OperationList = serde_json::from_value(answer.body).ok()?;
        let first = list.operations.iter().find(|it| it.state == OperationState::Running)?;
        Some(format!("{} of {}: {:?}", first.verb, first.volume, first.error))
    }

    /// Applies the reports of all commands; those that were in progress have ended by now.
    fn learn(&self, running: &RunningDaemon) {
        let answer = running.daemon.ask("GET", "/v1/operations", &Value::Null);
        let list: OperationList = serde_json::from_value(answer.body).unwrap_or_default();
        let mut issued = std::mem::take(&mut *running.issued.lock());
        for issued in &mut issued {
            if issued.report != Report::UnderWay {
                continue;
            }
            if let Some(ended) = list.operations.iter().find(|it| Some(it.id) == issued.id) {
                issued.report = match &ended.error {
                    None => Report::Done,
                    // The command has taken effect; an earlier command that was given up still uses
                    // a device.
                    Some(error) if error.kind == ErrorKind::UnderWay => Report::Done,
                    Some(error) => Report::Failed(error.kind, error.message.clone()),
                };
                self.event(format_args!("in the end: {issued}"));
            }
            end_consent(&self.shelf, &self.model, issued);
        }
        for behind in issued.iter().filter(|it| !running.hangs && it.report.is_behind_abandoned()) {
            let is_one = |it: &Issued| it.command.volume == behind.command.volume;
            if !issued.iter().any(|it| is_one(it) && it.command.cancel.is_some()) {
                self.wrong(format!("no command was given up: {behind}"));
            }
        }
        self.model.lock().apply(issued, self.script.fails());
    }

    /// Checks that an idle daemon claims the devices of served volumes and no others. A cache that
    /// waited for the origin of a stopped volume closes shortly after that origin has answered.
    fn check_claims(&self, list: &Value) {
        let mut wanted = Vec::new();
        for volume in list["volumes"].as_array().into_iter().flatten() {
            if volume["state"] != "stopped" && volume["state"] != "failed" {
                let paths = [&volume["origin"]["path"], &volume["cache"]["path"]];
                wanted.extend(paths.iter().filter_map(|path| self.shelf.at(path.as_str()?)));
            }
        }
        let should = |media: &Arc<Media>| wanted.iter().any(|wanted| Arc::ptr_eq(wanted, media));
        let begun = Instant::now();
        while self.shelf.all().iter().any(|media| media.is_claimed() != should(media))
            && begun.elapsed() < CLOSING
        {
            sleep(Duration::from_millis(50));
        }
        for media in self.shelf.all() {
            let is = media.is_claimed();
            if is != should(&media) {
                self.wrong(format!("{} is claimed: {is}, and should not be so", media.name));
            }
        }
    }

    fn complaints(&self) {
        for media in self.shelf.all() {
            self.notes.lock().wrong.extend(media.take_complaints());
        }
    }

    /// Ends a life. Returns the objects that the next program inherits.
    fn end(
        &mut self,
        mut running: RunningDaemon,
        life: &DaemonLife,
    ) -> Option<std::os::fd::OwnedFd> {
        match life.end {
            LifeEnd::Rest => {
                self.rest(&mut running, false);
                self.stop(running);
            }
            LifeEnd::Stop(after) => {
                sleep(after);
                running.ending.store(true, Ordering::SeqCst);
                self.stop(running);
            }
            LifeEnd::HandOver => {
                self.rest(&mut running, false);
                return self.hand_over(running);
            }
            LifeEnd::Kill(after) => {
                sleep(after);
                self.event("killed");
                self.cut_off(running, Cut::Killed);
            }
            LifeEnd::PowerCut(after) => {
                sleep(after);
                self.event("the power fails");
                self.cut_off(running, Cut::Power);
            }
        }
        None
    }

    fn stop(&mut self, running: RunningDaemon) {
        let begun = Instant::now();
        let ended = running.daemon.shut_down();
        if begun.elapsed() > STOPPING {
            self.wrong(format!("the daemon took {:?} to stop", begun.elapsed()));
        }
        self.event(format_args!("stopped: {ended:?}"));
        let clean = ended.is_ok();
        let disks = self.shelf.all();
        if let Err(error) = &ended
            && !self.script.fails()
            && disks.iter().all(|media| media.health() == Health::Good)
            && !running.hangs
        {
            self.wrong(format!("did not stop cleanly: {error}"));
        }
        // An operation that was given up because a disk hung may still be in progress and use its
        // disks; its thread ends with the process.
        for media in disks.iter().filter(|media| media.is_claimed() && clean && !running.hangs) {
            self.wrong(format!("{} is still in use after an orderly end", media.name));
        }
        // Threads that are still running end with the process.
        self.cut_off(running, if clean { Cut::Orderly } else { Cut::Killed });
    }

    fn hand_over(&mut self, running: RunningDaemon) -> Option<std::os::fd::OwnedFd> {
        match running.daemon.hand_over() {
            Ok((_, lock)) => {
                self.event("handed over");
                self.hand_overs += 1;
                self.cut_off(running, Cut::Orderly);
                Some(lock)
            }
            Err(error) => {
                self.event(format_args!("not handed over: {error}"));
                self.stop(running);
                None
            }
        }
    }

    fn cut_off(&mut self, running: RunningDaemon, cut: Cut) {
        Simulation::current().expect("in a simulation").crash();
        let RunningDaemon { daemon, clients, issued, operators, others, .. } = running;
        drop((operators, others, clients));
        if Arc::strong_count(&daemon) > 1 {
            self.wrong("a thread of the killed process lives on");
        }
        drop(daemon);
        let issued = std::mem::take(&mut *issued.lock());
        let mut model = self.model.lock();
        model.apply(issued, self.script.fails());
        if cut == Cut::Orderly {
            model.settle();
        }
        model.crash();
        drop(model);
        for media in self.shelf.all() {
            media.crash(&mut self.rng, cut == Cut::Power);
        }
        self.complaints();
    }

    /// Checks the end of a world: every volume starts, and reads and the origin return the
    /// acknowledged data.
    fn last(&mut self, lock: Option<std::os::fd::OwnedFd>) {
        self.heal();
        self.name_disks(false);
        let Some(mut running) = self.begin(lock) else { return };
        self.rest(&mut running, true);
        for (volume, (name, _)) in VOLUMES.into_iter().enumerate() {
            let known = self.model.lock().volumes[volume].clone();
            if !matches!(known.first(), Some(Some(_))) {
                continue;
            }
            if !self.is_served(&running, volume) {
                continue;
            }
            self.read_all(&running, volume);
            let flush = OperatorCommand { verb: Verb::Flush, volume, cancel: None };
            if self.give(&running, flush) != Report::Done {
                self.wrong(format!("{name} cannot be flushed in the end"));
            }
            self.look_at_origin(volume);
        }
        self.rest(&mut running, true);
        self.create_again(&running);
        self.stop(running);
    }

    /// Checks the end of a world: an origin without a volume has the acknowledged data too, and a
    /// volume on it can be created on each cache device that others use. No remains of a failed
    /// creation exist.
    fn create_again(&self, running: &RunningDaemon) {
        for (volume, (name, _)) in VOLUMES.into_iter().enumerate() {
            let volumes = self.model.lock().volumes.clone();
            let known: Vec<(usize, &VolumeModel)> =
                volumes.iter().enumerate().filter_map(known).collect();
            if known.iter().any(|(other, _)| origin_of(*other) == origin_of(volume)) {
                continue;
            }
            self.look_at_origin(volume);
            let Some(cache) = known.first().map(|(_, other)| other.cache) else { continue };
            let verb = Verb::Create { cache, force: false };
            let created = self.give(running, OperatorCommand { verb, volume, cancel: None });
            if created != Report::Done {
                self.wrong(format!("{name} cannot be created in the end: {created:?}"));
            }
            self.learn(running);
        }
    }

    /// Returns whether a volume is served in the end. If a cache device failed or did not answer,
    /// its dirty blocks may be lost. The operator accepts this with a forced start, after which
    /// reads may return older data of the origin.
    fn is_served(&self, running: &RunningDaemon, volume: usize) -> bool {
        let name = VOLUMES[volume].0;
        let state = || {
            let path = format!("/v1/reports/{name}");
            running.daemon.ask("GET", &path, &Value::Null).body["state"].clone()
        };
        let is_served = |state: &Value| *state != "stopped" && *state != "failed";
        if is_served(&state()) {
            return true;
        }
        let start = |force| {
            let start = OperatorCommand { verb: Verb::Start { force }, volume, cancel: None };
            self.give(running, start)
        };
        let mut started = start(false);
        if matches!(started, Report::Failed(ErrorKind::DataAtRisk, _))
            && self.script.troubles_caches()
        {
            self.model.lock().discard(volume, true);
            started = start(true);
            self.model.lock().discard(volume, false);
        }
        if started != Report::Done || !is_served(&state()) {
            self.wrong(format!("{name} is {} in the end, and its start: {started:?}", state()));
            return false;
        }
        true
    }

    fn read_all(&self, running: &RunningDaemon, volume: usize) {
        for block in 0..BLOCKS {
            let at = (Op::Read, block as u64 * STEP, BLOCK);
            let read = running.clients.ask(VOLUMES[volume].0, at, None, Survives::Nothing);
            match read {
                Ok(Some(data)) => self.compare(volume, block, &data, "read"),
                other => self.wrong(format!("{} block {block}: {other:?}", VOLUMES[volume].0)),
            }
        }
    }

    fn look_at_origin(&self, volume: usize) {
        let origin = self.shelf.named(VOLUMES[volume].1).expect("added");
        for block in 0..BLOCKS {
            let mut data = vec![0; 8];
            origin.peek(block as u64 * STEP, &mut data);
            self.compare(volume, block, &data, "found on the origin");
        }
    }

    fn compare(&self, volume: usize, block: usize, data: &[u8], what: &str) {
        let value = value_of(data);
        let allowed = self.model.lock().blocks[origin_of(volume)][block].allowed.clone();
        if !allowed.contains(&value) {
            let name = VOLUMES[volume].0;
            self.wrong(format!("{name} block {block}: {value} was {what}, allowed is {allowed:?}"));
        }
    }
}

/// Returns a volume that certainly exists, and its index.
fn known(
    (volume, states): (usize, &BTreeSet<Option<VolumeModel>>),
) -> Option<(usize, &VolumeModel)> {
    Some((volume, states.first()?.as_ref()?))
}
