//! The daemon's persistent state: one small file, replaced as a whole.

use std::fs::{File, Metadata, symlink_metadata};
use std::io::{ErrorKind as Io, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind, Settings, VolumeName};
use forebay_core::text::nearest;
use forebay_format::Uuid;
use forebay_threads::Mutex;
use serde::{Deserialize, Serialize};

use super::events::Events;
use super::host_api::Definition;
use super::known::{Facts, Known, Position};
use super::private;
use super::replace::{ReplaceError, replace};
use super::socket::lock_file;
use super::work::Work;
use super::writer::{ChangeStage, StateWriter, Turn};
use crate::paths::io_error;

/// Version of the file that is written.
const VERSION: u32 = 2;

/// Oldest version that can be read. It has no caches and no deleted volumes.
const OLDEST: u32 = 1;

/// Largest file that is read, in bytes.
const MAX_FILE: u64 = 16 << 20;

/// Most volumes in the file.
const MAX_VOLUMES: usize = 4096;

/// Blocks that a volume left in its cache when it was stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LeftBlocks {
    /// Clean and dirty blocks.
    pub(crate) cached: u64,
    /// Dirty blocks.
    pub(crate) dirty: u64,
}

/// One volume in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Remembered {
    /// Its definition.
    pub(crate) volume: Definition,
    /// Whether it is served when the daemon starts.
    pub(crate) started: bool,
    /// Size of the origin in bytes when it was last served; 0: unknown.
    #[serde(default)]
    pub(crate) origin_bytes: u64,
    /// A delete has begun. It has succeeded if the cache no longer contains the volume.
    #[serde(default)]
    pub(crate) deleting: bool,
    /// Its blocks in the cache when it was stopped; absent while it is served, and if they were not
    /// known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) left: Option<LeftBlocks>,
    /// See [`Facts::behind`]. Only in the file.
    #[serde(default)]
    behind: bool,
}

impl Remembered {
    /// Returns the entry of a volume that is served.
    pub(crate) fn served(volume: Definition, origin_bytes: u64) -> Self {
        let (started, deleting, behind) = (true, false, false);
        Remembered { volume, started, origin_bytes, deleting, left: None, behind }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Contents {
    version: u32,
    volumes: Vec<Remembered>,
    #[serde(default)]
    caches: Vec<KnownCache>,
    #[serde(default)]
    deleted: Vec<Uuid>,
}

/// A cache in the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct KnownCache {
    uuid: Uuid,
    #[serde(flatten)]
    position: Position,
}

/// The state directory of a daemon, locked for the lifetime of this.
pub(crate) struct State {
    dir: PathBuf,
    /// Turns of writers of the file; readers do not wait for it.
    writer: StateWriter,
    volumes: Arc<Mutex<Vec<Remembered>>>,
    known: Arc<Known>,
    events: Arc<Events>,
    /// The facts as last written to the file.
    written: Mutex<Facts>,
    /// Why the file as last written may not survive a power failure.
    doubt: Mutex<Option<ApiError>>,
    /// Claims the directory.
    lock: File,
}

impl State {
    /// Opens the directory, creates it if it is absent, and reads the state. `lock`: the claim on
    /// the directory, if the previous program of this process has handed it over.
    ///
    /// # Errors
    /// [`ErrorKind::Refused`] if another daemon uses it; [`ErrorKind::Invalid`] if this version
    /// cannot read the file. Nothing is changed then.
    pub(crate) fn go_on(dir: &Path, lock: Option<OwnedFd>) -> Result<Self, ApiError> {
        private::make_directory(dir)?;
        private::warn_of_parents(dir);
        let in_use = format!(
            "another daemon uses the state directory {}; stop it, or choose another with --state-dir",
            dir.display()
        );
        let path = dir.join("lock");
        // The path may lead to another directory by now.
        let lock = match lock.map(File::from).filter(|lock| is_at(lock, &path)) {
            Some(lock) => lock,
            None => lock_file(&path, &in_use)?,
        };
        let Contents { mut volumes, caches, deleted, .. } = read(&dir.join("state.json"))?;
        let behind = volumes
            .iter_mut()
            .filter_map(|entry| std::mem::take(&mut entry.behind).then_some(entry.volume.uuid)?)
            .collect();
        let facts = Facts {
            behind,
            caches: caches.into_iter().map(|cache| (cache.uuid, cache.position)).collect(),
            deleted: deleted.into_iter().collect(),
        };
        Ok(State {
            dir: dir.to_owned(),
            writer: StateWriter::new(dir.to_owned()),
            volumes: Arc::new(Mutex::new(volumes)),
            known: Arc::new(Known::new(facts.clone())),
            events: Events::open(dir),
            written: Mutex::new(facts),
            doubt: Mutex::default(),
            lock,
        })
    }

    /// Opens a directory that no program has handed over.
    #[cfg(test)]
    pub(crate) fn open(dir: &Path) -> Result<Self, ApiError> {
        Self::go_on(dir, None)
    }

    /// Returns the lock of the directory, for the next program of this process.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub(crate) fn lock(&self) -> std::io::Result<OwnedFd> {
        self.lock.as_fd().try_clone_to_owned()
    }

    /// Returns the facts about caches.
    pub(crate) fn known(&self) -> &Arc<Known> {
        &self.known
    }

    /// Returns the events.
    pub(crate) fn events(&self) -> &Arc<Events> {
        &self.events
    }

    /// Returns the directory.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Returns the volumes in the view of the data path.
    pub(crate) fn newest(&self) -> NewestSettings {
        NewestSettings(self.volumes.clone())
    }

    /// Returns every volume, in the order of creation.
    pub(crate) fn volumes(&self) -> Vec<Remembered> {
        self.volumes.lock().clone()
    }

    /// Returns the names of all volumes.
    pub(crate) fn names(&self) -> Vec<VolumeName> {
        let volumes = self.volumes.lock();
        volumes.iter().map(|entry| entry.volume.name.clone()).collect()
    }

    /// Returns one volume.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub(crate) fn volume(&self, name: &VolumeName) -> Result<Remembered, ApiError> {
        entry_of(&mut self.volumes(), name).cloned()
    }

    /// Adds a volume, or replaces it.
    ///
    /// # Errors
    /// See [`State::change`].
    #[cfg(test)]
    pub(crate) fn put(&self, entry: Remembered) -> Result<(), ApiError> {
        self.change(&Work::default(), |volumes, _| {
            put(volumes, entry);
            Ok(())
        })
    }

    /// Changes fields of a volume, and returns the volume with them. Concurrent changes of other
    /// fields are kept.
    ///
    /// # Errors
    /// As [`State::change`], and [`ErrorKind::NotFound`].
    pub(crate) fn edit(
        &self,
        name: &VolumeName,
        work: &Work,
        edit: impl FnOnce(&mut Remembered),
    ) -> Result<Remembered, ApiError> {
        self.change(work, |volumes, _| {
            let entry = entry_of(volumes, name)?;
            edit(entry);
            Ok(entry.clone())
        })
    }

    /// Removes a volume. In this process it is removed even if that cannot be written.
    ///
    /// # Errors
    /// See [`State::change`].
    pub(crate) fn remove(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError> {
        let removed = self.complete(work, |volumes, _| {
            volumes.retain(|entry| entry.volume.name != *name);
            Ok(())
        });
        if removed.is_err() {
            let mut volumes = self.volumes.lock();
            volumes.retain(|entry| entry.volume.name != *name);
        }
        removed
    }

    /// Changes the newest state durably, completely or not at all.
    ///
    /// # Errors
    /// The error of `change`, the change cannot be written, or `work` was given up while it waited
    /// for its turn; the old state remains.
    pub(crate) fn change<T>(
        &self,
        work: &Work,
        change: impl FnOnce(&mut Vec<Remembered>, &mut Facts) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        self.change_if(Write::IfChanged, (work, ChangeStage::Begins), change)
    }

    /// Changes like [`State::change`], to complete or revert a command: the change is made even if
    /// `work` was given up.
    ///
    /// # Errors
    /// The error of `change`, or the change cannot be written; the old state remains.
    pub(crate) fn complete<T>(
        &self,
        work: &Work,
        change: impl FnOnce(&mut Vec<Remembered>, &mut Facts) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        self.change_if(Write::IfChanged, (work, ChangeStage::Ends), change)
    }

    /// Checks that the state can be written, before a command has an effect that must be stored.
    ///
    /// # Errors
    /// The state cannot be written.
    pub(crate) fn check(&self, work: &Work) -> Result<(), ApiError> {
        self.change_if(Write::Always, (work, ChangeStage::Begins), |_, _| Ok(()))
    }

    fn change_if<T>(
        &self,
        write: Write,
        (work, kind): (&Work, ChangeStage),
        change: impl FnOnce(&mut Vec<Remembered>, &mut Facts) -> Result<T, ApiError>,
    ) -> Result<T, ApiError> {
        let turn = self.writer.turn(work, kind)?;
        let old = self.volumes();
        let mut volumes = old.clone();
        let mut facts = self.known.facts().clone();
        let before = facts.clone();
        let result = change(&mut volumes, &mut facts)?;
        if volumes.len() > MAX_VOLUMES {
            let message = format!("a daemon has at most {MAX_VOLUMES} volumes; delete one first");
            return Err(ApiError::new(ErrorKind::Refused, message));
        }
        // Facts about caches without volumes are of no use.
        let used = |key: &Uuid| {
            let keys = |entry: &Remembered| [entry.volume.uuid, entry.volume.cache_uuid];
            volumes.iter().any(|entry| keys(entry).contains(&Some(*key)))
        };
        facts.caches.retain(|key, _| used(key));
        facts.behind.retain(used);
        let written = self.written.lock().clone();
        if write == Write::Always || volumes != old || facts != written || self.is_doubtful() {
            self.write((&turn, work), &volumes, &facts)?;
        }
        *self.volumes.lock() = volumes;
        *self.written.lock() = facts.clone();
        let mut known = self.known.facts();
        // The host may have recorded more meanwhile: apply only the changes made here.
        known
            .deleted
            .retain(|volume| !before.deleted.contains(volume) || facts.deleted.contains(volume));
        known.deleted.extend(facts.deleted.difference(&before.deleted));
        known.caches.retain(|cache, _| {
            !before.caches.contains_key(cache) || facts.caches.contains_key(cache)
        });
        known.behind.clone_from(&facts.behind);
        Ok(result)
    }

    fn write(
        &self,
        (turn, work): (&Turn<'_>, &Work),
        volumes: &[Remembered],
        facts: &Facts,
    ) -> Result<(), ApiError> {
        let failed = |error| io_error("cannot write the state in", &self.dir, &error);
        let (dir, volumes, facts) = (self.dir.clone(), volumes.to_vec(), facts.clone());
        let replaced = turn.run(work, move || write(&dir, &volumes, &facts));
        let mut doubt = self.doubt.lock();
        *doubt = match replaced {
            Ok(()) => None,
            Err(ReplaceError::Unchanged(error)) => return Err(failed(error)),
            // The new file is in place, so the state in memory must match it.
            Err(ReplaceError::Doubtful(error)) => Some(failed(error)),
        };
        Ok(())
    }

    fn is_doubtful(&self) -> bool {
        self.doubt.lock().is_some()
    }

    /// Checks that the last write survives a power failure; repeats the write if that is in doubt.
    ///
    /// # Errors
    /// The state is in force, but may be lost.
    pub(crate) fn settle(&self, work: &Work) -> Result<(), ApiError> {
        if self.is_doubtful() {
            self.change_if(Write::Always, (work, ChangeStage::Ends), |_, _| Ok(()))?;
        }
        let doubt = self.doubt.lock();
        match &*doubt {
            None => Ok(()),
            Some(error) => {
                let message = format!("it is in force, but a power cut may undo it: {error}");
                Err(ApiError::failed(message))
            }
        }
    }

    /// Writes the facts that the host has recorded, if they have changed.
    ///
    /// # Errors
    /// See [`State::change`].
    pub(crate) fn keep_known(&self) -> Result<(), ApiError> {
        let written = self.written.lock().clone();
        let news = *self.known.facts() != written || self.is_doubtful();
        if news { self.change(&Work::default(), |_, _| Ok(())) } else { Ok(()) }
    }
}

/// The newest settings of all volumes, for code that applies some of them.
#[derive(Clone, Default)]
pub(crate) struct NewestSettings(Arc<Mutex<Vec<Remembered>>>);

impl NewestSettings {
    /// Returns the settings of a volume; `None` if the state does not contain it yet.
    pub(crate) fn settings(&self, name: &VolumeName) -> Option<Settings> {
        let volumes = self.0.lock();
        let mut entries = volumes.iter().map(|entry| &entry.volume);
        entries.find(|volume| volume.name == *name).map(|volume| volume.settings.clone())
    }
}

/// When the file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    Always,
    IfChanged,
}

/// Returns the entry of a volume.
///
/// # Errors
/// [`ErrorKind::NotFound`].
pub(crate) fn entry_of<'a>(
    volumes: &'a mut [Remembered],
    name: &VolumeName,
) -> Result<&'a mut Remembered, ApiError> {
    match volumes.iter().position(|entry| entry.volume.name == *name) {
        Some(place) => Ok(&mut volumes[place]),
        None => Err(not_found(name, volumes)),
    }
}

/// Whether a path leads to this file.
fn is_at(file: &File, path: &Path) -> bool {
    let identity = |found: Metadata| (found.dev(), found.ino());
    let own = file.metadata().map(identity).ok();
    own.is_some() && own == symlink_metadata(path).map(identity).ok()
}

/// Replaces a volume of the same name, or appends it.
pub(crate) fn put(volumes: &mut Vec<Remembered>, entry: Remembered) {
    match volumes.iter_mut().find(|old| old.volume.name == entry.volume.name) {
        Some(old) => *old = entry,
        None => volumes.push(entry),
    }
}

/// Returns the error for a volume that is not among those that exist.
pub(crate) fn not_found(name: &VolumeName, volumes: &[Remembered]) -> ApiError {
    let names = volumes.iter().map(|entry| entry.volume.name.as_str());
    let remedy = match nearest(name.as_str(), names) {
        Some(meant) => format!("did you mean '{meant}'?"),
        None if volumes.is_empty() => "there is none yet: 'forebay create' makes one".to_owned(),
        None => "'forebay list' shows the existing ones".to_owned(),
    };
    let message = format!("there is no volume '{name}'; {remedy}");
    ApiError::new(ErrorKind::NotFound, message).about("name")
}

/// Returns the volumes in a state directory that another process may be using; none if there is no
/// state.
///
/// # Errors
/// The file cannot be read by this version.
pub fn peek(dir: &Path) -> Result<Vec<Definition>, ApiError> {
    let Contents { volumes, .. } = read(&dir.join("state.json"))?;
    Ok(volumes.into_iter().map(|entry| entry.volume).collect())
}

fn read(path: &Path) -> Result<Contents, ApiError> {
    let file = match private::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == Io::NotFound => return Ok(Contents::default()),
        Err(error) => return Err(io_error("cannot open", path, &error)),
    };
    let mut text = String::new();
    let unusable = |reason: String| {
        let path = path.display();
        let way_out = "put a good copy in its place, or move it away and create the volumes again";
        ApiError::new(ErrorKind::Invalid, format!("the state file {path} {reason}; {way_out}"))
    };
    file.take(MAX_FILE + 1)
        .read_to_string(&mut text)
        .map_err(|error| unusable(format!("cannot be read: {error}")))?;
    if text.len() as u64 > MAX_FILE {
        return Err(unusable(format!("is over {MAX_FILE} bytes")));
    }
    // The version comes first: a newer file may differ in everything else.
    #[derive(Deserialize)]
    struct Version {
        version: u32,
    }
    let damaged = |error: serde_json::Error| unusable(format!("is damaged: {error}"));
    let Version { version } = serde_json::from_str(&text).map_err(damaged)?;
    if !(OLDEST..=VERSION).contains(&version) {
        let reason = format!("has version {version}, this daemon reads {OLDEST} to {VERSION}");
        return Err(unusable(reason));
    }
    let contents: Contents = serde_json::from_str(&text).map_err(damaged)?;
    super::withdrawn::tell(&text);
    for (index, entry) in contents.volumes.iter().enumerate() {
        let name = &entry.volume.name;
        if contents.volumes.iter().take(index).any(|other| other.volume.name == *name) {
            return Err(unusable(format!("has the volume '{name}' twice")));
        }
    }
    Ok(contents)
}

/// Replaces the file.
fn write(dir: &Path, volumes: &[Remembered], facts: &Facts) -> Result<(), ReplaceError> {
    let caches = facts.caches.iter();
    let mut volumes = volumes.to_vec();
    for entry in &mut volumes {
        entry.behind = entry.volume.uuid.is_some_and(|uuid| facts.behind.contains(&uuid));
    }
    let contents = Contents {
        version: VERSION,
        volumes,
        caches: caches
            .map(|(uuid, position)| KnownCache { uuid: *uuid, position: *position })
            .collect(),
        deleted: facts.deleted.iter().copied().collect(),
    };
    let text = serde_json::to_vec_pretty(&contents);
    let mut text = text.map_err(|error| ReplaceError::Unchanged(error.into()))?;
    text.push(b'\n');
    replace(&dir.join("state.json"), &text)
}

#[cfg(test)]
#[path = "state_tests.rs"]
mod tests;
