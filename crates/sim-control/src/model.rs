//! The conditions that must hold for volumes, from the reports to operators and clients.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::command::{CACHES, Issued, MOVED, Report, VOLUMES, Verb};
use crate::shelf::{REMOTE, Shelf};

/// A possible state of a volume, as far as its operators know.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct VolumeModel {
    pub(crate) started: bool,
    pub(crate) dirty_high: u64,
    pub(crate) through: bool,
    /// Index in [`CACHES`].
    pub(crate) cache: usize,
}

/// The default of `dirty_high`.
const DIRTY_HIGH: u64 = 50;

/// A block of an origin, as clients read it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Block {
    /// Values that a read may return.
    pub(crate) allowed: BTreeSet<u64>,
    /// Values that a read may return after a crash.
    crashed: BTreeSet<u64>,
    /// All values that were ever written.
    all: BTreeSet<u64>,
}

/// Number of blocks of an origin that clients use.
pub(crate) const BLOCKS: usize = 5;

/// The model of a world.
#[derive(Clone, Debug)]
pub(crate) struct Model {
    /// The possible states of each volume; `None` means that it does not exist.
    pub(crate) volumes: [BTreeSet<Option<VolumeModel>>; VOLUMES.len()],
    /// The blocks of the origins, in the order of [`origin_of`].
    pub(crate) blocks: [[Block; BLOCKS]; ORIGINS.len()],
    /// Number of commands in progress that may discard dirty blocks, for each origin.
    discarding: [u32; ORIGINS.len()],
    /// Number of commands begun so far that may discard dirty blocks, for each origin.
    discards: [u64; ORIGINS.len()],
    /// The value of `discards` at the beginning of each write, or `u64::MAX` if such a command was
    /// in progress. The value of a write is its position in this list plus one.
    begun: Vec<u64>,
}

/// The origins.
pub(crate) const ORIGINS: [&str; 3] = ["o1", "o2", REMOTE];

/// Index of the origin of a volume in [`Model::blocks`].
pub(crate) fn origin_of(volume: usize) -> usize {
    ORIGINS.iter().position(|origin| *origin == VOLUMES[volume].1).unwrap_or(0)
}

impl Model {
    pub(crate) fn new() -> Self {
        let block = || {
            let zero = BTreeSet::from([0]);
            Block { allowed: zero.clone(), crashed: zero.clone(), all: zero }
        };
        let blocks = || std::array::from_fn(|_| block());
        Model {
            volumes: std::array::from_fn(|_| BTreeSet::from([None])),
            blocks: std::array::from_fn(|_| blocks()),
            discarding: [0; ORIGINS.len()],
            discards: [0; ORIGINS.len()],
            begun: Vec::new(),
        }
    }

    /// Applies the reports of commands, in the order in which the commands began. `failing`:
    /// devices returned errors, instead of only hanging.
    pub(crate) fn apply(&mut self, mut issued: Vec<Issued>, failing: bool) {
        // A command that was cut off before its number was known was the last one on its volume.
        issued.sort_by_key(|issued| issued.id.map_or(u64::MAX, |id| id.0));
        for issued in issued {
            self.apply_one(&issued, failing);
        }
    }

    fn apply_one(&mut self, issued: &Issued, failing: bool) {
        let (verb, volume) = (issued.command.verb, issued.command.volume);
        // Stops, starts and deletions that failed because of an I/O error may have taken effect:
        // the write to the cache device may have succeeded nevertheless.
        let open = failing && matches!(verb, Verb::Stop | Verb::Start { .. } | Verb::Delete { .. });
        let (happens, does_not) = match &issued.report {
            Report::Failed(..) if issued.id.is_none() => (false, true),
            report if report.took_effect() => (true, false),
            Report::Failed(..) => (open, true),
            Report::Done | Report::UnderWay | Report::Unknown => (true, true),
        };
        let before = std::mem::take(&mut self.volumes[volume]);
        for state in before {
            if happens {
                self.volumes[volume].insert(effect(verb, &state));
            }
            if does_not {
                self.volumes[volume].insert(state);
            }
        }
    }

    /// Compares the model with the report of an idle daemon, and drops the possibilities that the
    /// report rules out. `settled`: all disks were available since the daemon started, so it has
    /// completed interrupted deletions.
    pub(crate) fn check(&mut self, list: &Value, shelf: &Shelf, settled: bool) -> Vec<String> {
        let mut wrong = Vec::new();
        let listed = list["volumes"].as_array().cloned().unwrap_or_default();
        for (index, (name, _)) in VOLUMES.iter().enumerate() {
            let listed_as = listed.iter().find(|volume| volume["name"] == *name);
            let found = listed_as.map(|volume| VolumeModel {
                started: volume["state"] != "stopped",
                dirty_high: volume["settings"]["dirty_high"].as_u64().unwrap_or(0),
                through: volume["settings"]["mode"] == "writethrough",
                cache: CACHES
                    .iter()
                    .position(|cache| volume["cache"]["path"] == shelf.path(cache).as_str())
                    .unwrap_or(usize::MAX),
            });
            if !self.volumes[index].contains(&found) {
                let possible: Vec<_> = self.volumes[index].iter().collect();
                wrong
                    .push(format!("volume {name} is {found:?}, and should be one of {possible:?}"));
            }
            let is_served = |it: &Value| it["state"] != "stopped" && it["state"] != "failed";
            let may_vanish = !settled
                && self.volumes[index].contains(&None)
                && !listed_as.is_some_and(is_served);
            self.volumes[index] = BTreeSet::from([found]);
            if may_vanish {
                self.volumes[index].insert(None);
            }
        }
        let has = |cache| {
            let mut caches = self.volumes.iter().flatten().flatten().map(|volume| volume.cache);
            caches.any(|other| other == cache)
        };
        if has(0) && has(MOVED) {
            wrong.push("two caches are on one device, under its two names".to_owned());
        }
        for cache in CACHES.map(|cache| shelf.path(cache)) {
            let users = listed.iter().filter(|volume| volume["cache"]["path"] == cache.as_str());
            let policies: BTreeSet<_> =
                users.map(|it| it["settings"]["policy"].to_string()).collect();
            if policies.len() > 1 {
                wrong.push(format!("volumes of one cache have the policies {policies:?}"));
            }
        }
        for origin in ORIGINS {
            let users =
                listed.iter().filter(|it| it["origin"]["path"] == shelf.path(origin).as_str());
            if users.count() > 1 {
                wrong.push(format!("two volumes have the origin {origin}"));
            }
        }
        wrong
    }

    /// Records the beginning or the end of a command that may discard dirty blocks. After the
    /// beginning, the origin may contain any version of its blocks.
    pub(crate) fn discard(&mut self, volume: usize, begins: bool) {
        let origin = origin_of(volume);
        self.blocks[origin].iter_mut().for_each(Block::forget);
        self.discards[origin] += u64::from(begins);
        self.discarding[origin] =
            if begins { self.discarding[origin] + 1 } else { self.discarding[origin] - 1 };
    }

    /// Records that a client has begun to write to a block. Returns the value of the write, which
    /// no other write has.
    pub(crate) fn begin(&mut self, origin: usize, block: usize) -> u64 {
        // The command may discard a write that begins during it.
        let overtaken = self.discarding[origin] > 0;
        self.begun.push(if overtaken { u64::MAX } else { self.discards[origin] });
        let value = self.begun.len() as u64;
        let block = &mut self.blocks[origin][block];
        block.allowed.insert(value);
        block.crashed.insert(value);
        block.all.insert(value);
        value
    }

    /// Records that a write was acknowledged. `durable`: the write survives a crash. If a command
    /// has begun to discard blocks since the write began, it may have discarded this one.
    pub(crate) fn acknowledge(&mut self, origin: usize, block: usize, value: u64, durable: bool) {
        let is_older = self.begun[value as usize - 1] != self.discards[origin];
        if self.discarding[origin] > 0 || is_older {
            return;
        }
        let block = &mut self.blocks[origin][block];
        block.allowed = BTreeSet::from([value]);
        if durable {
            block.settle();
        }
    }

    /// The write has not happened.
    pub(crate) fn take_back(&mut self, origin: usize, block: usize, value: u64) {
        let block = &mut self.blocks[origin][block];
        block.allowed.remove(&value);
        block.crashed.remove(&value);
        block.all.remove(&value);
    }

    /// A flush of a volume on this origin was acknowledged.
    pub(crate) fn flushed(&mut self, origin: usize) {
        if self.discarding[origin] == 0 {
            self.blocks[origin].iter_mut().for_each(Block::settle);
        }
    }

    /// Records that a volume on this origin was stopped although its cache device or origin failed:
    /// writes that no flush has made durable may be lost.
    pub(crate) fn lose_unflushed(&mut self, origin: usize) {
        self.blocks[origin].iter_mut().for_each(Block::crash);
    }

    /// The daemon was killed.
    pub(crate) fn crash(&mut self) {
        self.blocks.iter_mut().flatten().for_each(Block::crash);
        for origin in 0..self.discarding.len() {
            if std::mem::take(&mut self.discarding[origin]) > 0 {
                self.blocks[origin].iter_mut().for_each(Block::forget);
            }
        }
    }

    /// Records that all acknowledged writes are durable.
    pub(crate) fn settle(&mut self) {
        self.blocks.iter_mut().flatten().for_each(Block::settle);
    }
}

impl Block {
    /// Records that acknowledged writes survive a crash.
    fn settle(&mut self) {
        self.crashed.clone_from(&self.allowed);
    }

    /// Records a crash: each acknowledged write that was not durable may or may not be lost.
    fn crash(&mut self) {
        self.allowed.append(&mut self.crashed);
        self.crashed.clone_from(&self.allowed);
    }

    /// The cache's blocks were discarded: the origin may have any version.
    fn forget(&mut self) {
        self.allowed.clone_from(&self.all);
        self.crashed.clone_from(&self.all);
    }
}

fn effect(verb: Verb, state: &Option<VolumeModel>) -> Option<VolumeModel> {
    let mut next = state.clone();
    match (verb, &mut next) {
        (Verb::Create { cache, .. }, None) => {
            return Some(VolumeModel {
                started: true,
                dirty_high: DIRTY_HIGH,
                through: false,
                cache,
            });
        }
        (Verb::Delete { .. }, _) => return None,
        (Verb::Start { .. }, Some(volume)) => volume.started = true,
        (Verb::Stop, Some(volume)) => volume.started = false,
        (Verb::Set { dirty_high }, Some(volume)) => volume.dirty_high = dirty_high,
        (Verb::Mode { through }, Some(volume)) => volume.through = through,
        _ => {}
    }
    next
}
