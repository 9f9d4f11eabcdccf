//! Notes about volumes outside of their cache devices: one file per volume below `dirty` in the
//! state directory. See [`forebay_engine::Ledger`].

use std::fs;
use std::io::ErrorKind as Io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_admin::ApiError;
use forebay_engine::{Ledger, LedgerError, Note, Noted};
use forebay_threads::{Sender, channel};

use super::note_file;
use super::private;
use super::replace::replace;

/// Largest file that is read, in bytes.
const MOST: u64 = 256 << 20;

struct NoteJob {
    volume: String,
    note: Note,
    noted: Noted,
}

/// See the module.
pub(crate) struct FileLedger {
    dir: PathBuf,
    jobs: Sender<NoteJob>,
}

impl FileLedger {
    /// Opens the notes of a state directory, and starts the thread that writes them, so that lanes
    /// need not wait for files.
    ///
    /// # Errors
    /// The directory cannot be created, or the system has no threads left.
    pub(crate) fn open(state_dir: &Path) -> Result<Self, ApiError> {
        let dir = state_dir.join("dirty");
        private::make_directory(&dir)?;
        let (jobs, todo) = channel::<NoteJob>();
        let own = dir.clone();
        let spawned = forebay_threads::spawn("notes", move || {
            for NoteJob { volume, note, noted } in todo {
                noted(
                    write(&own, &volume, &note).map_err(|error| LedgerError::Io(Arc::new(error))),
                );
            }
        });
        spawned.map_err(|error| ApiError::failed(format!("no thread for notes: {error}")))?;
        Ok(FileLedger { dir, jobs })
    }

    /// Removes the note of a deleted volume.
    pub(crate) fn forget(&self, volume: &str) {
        let path = path_of(&self.dir, volume);
        match fs::remove_file(&path) {
            Err(error) if error.kind() != Io::NotFound => {
                tracing::warn!(path = %path.display(), "a note cannot be removed: {error}");
            }
            _ => {}
        }
    }
}

impl Ledger for FileLedger {
    fn note_of(&self, volume: &str) -> Option<Note> {
        self.read(volume).ok().flatten()
    }

    fn read(&self, volume: &str) -> Result<Option<Note>, LedgerError> {
        read(&self.dir, volume)
    }

    fn write(&self, volume: &str, note: Note, noted: Noted) {
        let job = NoteJob { volume: volume.to_owned(), note, noted };
        if let Err(unsent) = self.jobs.send(job) {
            (unsent.0.noted)(Err(LedgerError::Ended));
        }
    }
}

/// Returns whether the note of a volume in a state directory names ranges that may be newer than
/// its origin, or cannot be read.
pub fn may_be_dirty(state_dir: &Path, volume: &str) -> bool {
    read(&state_dir.join("dirty"), volume)
        .map_or(true, |note| note.is_some_and(|note| !note.dirty.is_empty()))
}

fn read(dir: &Path, volume: &str) -> Result<Option<Note>, LedgerError> {
    let path = path_of(dir, volume);
    let unreadable = |why: String| LedgerError::Unreadable(format!("{}: {why}", path.display()));
    match private::read(&path, MOST) {
        Ok(text) => note_file::decode(&text).map(Some).map_err(unreadable),
        Err(error) if error.kind() == Io::NotFound => Ok(None),
        Err(error) => Err(unreadable(error.to_string())),
    }
}

/// Names of volumes are safe as file names.
fn path_of(dir: &Path, volume: &str) -> PathBuf {
    dir.join(format!("{volume}.json"))
}

/// Replaces the file.
fn write(dir: &Path, volume: &str, note: &Note) -> std::io::Result<()> {
    Ok(replace(&path_of(dir, volume), &note_file::encode(note)?)?)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use forebay_format::Uuid;
    use forebay_testkit::TempDir;

    use super::*;

    fn written(notes: &FileLedger, note: &Note) -> Result<(), LedgerError> {
        let (tell, hear) = sync_channel(1);
        notes.write("v", note.clone(), Box::new(move |result| tell.send(result).expect("heard")));
        hear.recv().expect("told")
    }

    #[test]
    fn a_note_is_there_after_a_restart_until_it_is_forgotten() {
        let dir = TempDir::new("notes");
        let note = Note {
            cache: Uuid::from_u128(7),
            distrusted: true,
            exact: true,
            dirty: vec![0..4096, 8192..16384],
        };
        {
            let notes = FileLedger::open(dir.path()).expect("writable");
            assert!(matches!(notes.read("v"), Ok(None)));
            written(&notes, &note).expect("durable");
        }
        let notes = FileLedger::open(dir.path()).expect("writable");
        assert_eq!(notes.note_of("v"), Some(note.clone()));
        fs::write(dir.path().join("dirty/v.json"), "{").expect("writable");
        assert_eq!(notes.note_of("v"), None, "a damaged note");
        assert!(matches!(notes.read("v"), Err(LedgerError::Unreadable(_))));
        notes.forget("v");
        notes.forget("v");
        assert_eq!(notes.note_of("v"), None);
        fs::remove_dir_all(dir.path().join("dirty")).expect("removable");
        assert!(written(&notes, &note).is_err(), "a note that is nowhere");
    }
}
