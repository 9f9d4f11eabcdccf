//! Device notes: one file per volume, from which the next daemon finds the device that this one
//! created. A note has the mark that the kernel stores with the device, and the identity of the
//! volume.
//!
//! The number of a device does not identify it: another program may have got the number meanwhile.
//! A note is written before its device is added, so that no device is without one. It must survive
//! the end of the process, but not of the machine.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Largest note that is read, in bytes.
const MOST: u64 = 4096;

/// The device of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    /// The device's mark; not 0.
    pub mark: u64,
    /// Identity of the volume, which differs for another volume of the same name; empty if the
    /// volume has none.
    pub identity: String,
    /// A take-over of the device has begun and not ended; the daemon may have been killed during
    /// it.
    pub half: bool,
}

impl Note {
    /// Returns whether another daemon may serve the device, because it can recognise the volume.
    pub fn survives(&self) -> bool {
        !self.identity.is_empty()
    }
}

/// The second line of a note with [`Note::half`].
const HALF: &str = "half\n";

/// Prefix of the names of notes that are set aside. No volume's name begins with a dot.
const ASIDE: &str = "..";

/// The notes of a daemon.
#[derive(Debug)]
pub struct Notes {
    dir: PathBuf,
}

impl Notes {
    /// Keeps notes in a directory, which is created with the first note.
    pub fn new(dir: &Path) -> Self {
        Notes { dir: dir.to_owned() }
    }

    /// Returns the note of a volume; `None` if it is missing or cannot be read.
    pub fn read(&self, volume: &str) -> Option<Note> {
        let path = self.dir.join(volume);
        let small = fs::metadata(&path).is_ok_and(|found| found.len() <= MOST);
        parse(&small.then(|| fs::read_to_string(&path).ok())??)
    }

    /// Writes the note of a volume.
    ///
    /// # Errors
    /// The error of the system.
    pub fn write(&self, volume: &str, note: &Note) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.dir)?;
        // No volume's name begins with a dot. Notes of several volumes may be written at the same
        // time.
        let new = self.dir.join(format!(".{volume}"));
        let half = if note.half { HALF } else { "" };
        fs::write(&new, format!("{:016x} {}\n{half}", note.mark, note.identity))?;
        fs::rename(&new, self.dir.join(volume))
    }

    /// Removes the note of a volume.
    pub fn remove(&self, volume: &str) {
        match fs::remove_file(self.dir.join(volume)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!(volume, %error, "the note about its device cannot be removed");
            }
            _ => {}
        }
    }

    /// Sets the note of a volume aside: the volume may get another device before the kernel has
    /// removed this one.
    pub fn set_aside(&self, volume: &str) {
        let Some(Note { mark, .. }) = self.read(volume) else { return };
        if let Err(error) = fs::rename(self.dir.join(volume), self.place_aside(volume, mark)) {
            tracing::warn!(volume, %error, "the note about its former device cannot be kept");
        }
    }

    /// Returns the marks of the devices of a volume whose notes were set aside.
    pub fn aside(&self, volume: &str) -> Vec<u64> {
        let all = self.all_aside().into_iter();
        all.filter(|(of, _)| of == volume).map(|(_, mark)| mark).collect()
    }

    /// Returns volumes and marks of all notes that were set aside.
    pub fn all_aside(&self) -> Vec<(String, u64)> {
        let parse = |name: &String| {
            let (volume, mark) = name.strip_prefix(ASIDE)?.rsplit_once('.')?;
            Some((volume.to_owned(), u64::from_str_radix(mark, 16).ok()?))
        };
        self.names().iter().filter_map(parse).collect()
    }

    /// Removes a note that was set aside.
    pub fn remove_aside(&self, volume: &str, mark: u64) {
        let _ = fs::remove_file(self.place_aside(volume, mark));
    }

    fn place_aside(&self, volume: &str, mark: u64) -> PathBuf {
        self.dir.join(format!("{ASIDE}{volume}.{mark:016x}"))
    }

    /// Returns the volumes with notes.
    pub fn volumes(&self) -> Vec<String> {
        self.names().into_iter().filter(|name| !name.starts_with('.')).collect()
    }

    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.dir).into_iter().flatten().flatten();
        entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }
}

fn parse(text: &str) -> Option<Note> {
    let (line, rest) = text.split_once('\n')?;
    let half = match rest {
        "" => false,
        HALF => true,
        _ => return None,
    };
    let (mark, identity) = line.split_once(' ')?;
    let mark = u64::from_str_radix(mark, 16).ok().filter(|mark| *mark != 0)?;
    Some(Note { mark, identity: identity.to_owned(), half })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_read_back() {
        let dir = tempfile::tempdir().expect("a directory");
        let notes = Notes::new(&dir.path().join("notes"));
        assert_eq!(notes.read("v"), None);
        assert_eq!(notes.volumes(), Vec::<String>::new());
        let first = Note { mark: 0xabc, identity: "1 2".to_owned(), half: true };
        let second = Note { mark: u64::MAX, identity: String::new(), half: false };
        notes.write("v", &first).expect("written");
        notes.write("w", &second).expect("written");
        assert_eq!((notes.read("v"), notes.read("w")), (Some(first), Some(second.clone())));
        notes.write("v", &second).expect("written");
        assert_eq!(notes.read("v"), Some(second));
        let mut volumes = notes.volumes();
        volumes.sort();
        assert_eq!(volumes, ["v", "w"]);
        notes.remove("v");
        notes.remove("v");
        assert_eq!((notes.read("v"), notes.volumes()), (None, vec!["w".to_owned()]));
    }

    #[test]
    fn a_note_that_is_set_aside_makes_room_for_another() {
        let dir = tempfile::tempdir().expect("a directory");
        let notes = Notes::new(dir.path());
        for (volume, mark) in [("v", 1), ("v", u64::MAX), ("v.1", 2)] {
            notes.write(volume, &Note { mark, identity: String::new(), half: false }).expect("ok");
            notes.set_aside(volume);
            assert_eq!(notes.read(volume), None);
        }
        notes.set_aside("v");
        let mut marks = notes.aside("v");
        marks.sort_unstable();
        assert_eq!((marks, notes.aside("v.1")), (vec![1, u64::MAX], vec![2]));
        assert_eq!((notes.all_aside().len(), notes.volumes()), (3, Vec::<String>::new()));
        notes.remove_aside("v", 1);
        assert_eq!(notes.aside("v"), [u64::MAX]);
    }

    #[test]
    fn anything_else_is_no_note() {
        for bad in
            ["", "\n", "12", "12 a", "x a\n", "0 a\n", "12\n", "11112222333344445 a\n", "1 a\nb\n"]
        {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
