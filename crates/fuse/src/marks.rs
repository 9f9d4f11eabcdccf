//! Marks that identify the loop device of a volume. The number of the device does not: another
//! program can get it as soon as the device is detached. The path of its file does not either,
//! because other mount namespaces have the same paths. The kernel assigns a sequence number each
//! time a loop device gets a file, and never reuses it; a note in the state directory records it.
//! Until the number is known, and where the kernel assigns none, the note records the file system
//! whose root the file is, because no other file is on it. A link in a private directory tells udev
//! the same; it is made before the file is attached.

use std::path::{Path, PathBuf};

use forebay_device::loop_device::{self, LoopNumber};
use forebay_export::{Names, Note, Notes};
use forebay_host::files::text;

use crate::helper;

/// The mark in the note of a device whose creation is in progress.
const MAKING: u64 = u64::MAX;
/// The mark of a device whose kernel assigns no sequence numbers.
const UNNUMBERED: u64 = u64::MAX - 1;

/// The device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) number: LoopNumber,
    /// `None` if the kernel assigns none.
    pub(crate) sequence: Option<u64>,
}

impl Mark {
    /// Returns the present mark of a device.
    pub(crate) fn of(number: LoopNumber) -> Self {
        Mark { number, sequence: number.sequence() }
    }

    /// Returns whether the number still belongs to the device that was made.
    pub(crate) fn is_there(&self) -> bool {
        self.number.is(self.sequence)
    }
}

/// The notes about devices.
#[derive(Debug)]
pub(crate) struct Marks {
    notes: Notes,
    /// The directory of the links for udev.
    names: Names,
    /// The directory of the files.
    dir: PathBuf,
    /// The kernel counts anew after each boot.
    boot: String,
}

impl Marks {
    /// Keeps notes in the directory `notes` and links in `names`, about the devices of files in
    /// `dir`.
    pub(crate) fn new(notes: &Path, names: &Path, dir: &Path) -> Self {
        let boot = text("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        Marks { notes: Notes::new(notes), names: Names::new(names), dir: dir.to_owned(), boot }
    }

    /// Returns the directory of the links.
    pub(crate) fn names(&self) -> &Path {
        self.names.dir()
    }

    /// Records that a device for a volume is about to be made, with the root of this file system as
    /// its file.
    ///
    /// # Errors
    /// The error of the system.
    pub(crate) fn begin(&self, volume: &str, file_system: &str) -> std::io::Result<()> {
        self.write(volume, MAKING, file_system)
    }

    /// Records that the device was made.
    pub(crate) fn made(&self, volume: &str, mark: Mark) {
        let noted = match mark.sequence {
            Some(sequence) => {
                let link = helper::name(&self.names, mark.number, volume, &sequence.to_string());
                self.write(volume, sequence, &self.boot).and(link)
            }
            None => loop_device::file_system(mark.number).and_then(|(file_system, _)| {
                let link = helper::name(&self.names, mark.number, volume, &file_system);
                self.write(volume, UNNUMBERED, &file_system).and(link)
            }),
        };
        // The existing note still identifies the device, unless another program detaches it and
        // attaches a file again.
        if let Err(error) = noted {
            tracing::warn!(volume, %error, "the note about its device cannot be written");
        }
    }

    /// Removes note and link of a device that is gone.
    pub(crate) fn forget(&self, volume: &str, number: LoopNumber) {
        self.names.remove_of(volume, &number.path());
        self.notes.remove(volume);
    }

    /// Returns the volumes that may have devices.
    pub(crate) fn volumes(&self) -> Vec<String> {
        self.notes.volumes()
    }

    /// Returns the mark of a loop device if the device belongs to the volume. Queries the file
    /// system of a device only if nothing else decides: that of another program may not answer, and
    /// that of a killed daemon does not.
    pub(crate) fn recognise(&self, volume: &str, number: LoopNumber) -> Option<Mark> {
        let note = self.notes.read(volume)?;
        let mark = Mark::of(number);
        let is_on = || loop_device::file_system(number).ok().map(|(file_system, _)| file_system);
        let known = match (note.mark, mark.sequence) {
            (MAKING, _) | (UNNUMBERED, None) => is_on()?,
            // A former version, which may be handing over, recorded only the number.
            (noted, Some(sequence)) if noted == sequence && note.identity.is_empty() => {
                return Some(mark);
            }
            (noted, Some(sequence)) if noted == sequence => self.boot.clone(),
            _ => return None,
        };
        (note.identity == self.here(&known)).then_some(mark)
    }

    fn here(&self, known: &str) -> String {
        format!("{known} {}", self.dir.display())
    }

    fn write(&self, volume: &str, mark: u64, known: &str) -> std::io::Result<()> {
        self.notes.write(volume, &Note { mark, identity: self.here(known), half: false })
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_device_is_recognised_only_by_its_sequence_of_this_boot() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        let marks = |dir: &str| Marks::new(&at("notes"), &at("names"), Path::new(dir));
        let (own, number) = (marks("/run/a"), LoopNumber(0));
        let Some(sequence) = number.sequence() else { return };
        assert_eq!(own.recognise("v", number), None, "no note says so");
        own.begin("v", "0:1000000").expect("writable");
        assert_eq!(own.recognise("v", number), None, "it is not on that file system");
        let mark = |sequence| Mark { number, sequence: Some(sequence) };
        own.made("v", mark(sequence));
        assert_eq!(own.recognise("v", number), Some(mark(sequence)));
        assert_eq!(own.recognise("w", number), None, "no volume of this daemon");
        assert_eq!(marks("/run/b").recognise("v", number), None, "a file elsewhere");
        let next_boot = Marks { boot: "another".to_owned(), ..marks("/run/a") };
        assert_eq!(next_boot.recognise("v", number), None, "the kernel counts anew");
        let former = Note { mark: sequence, identity: String::new(), half: false };
        own.notes.write("v", &former).expect("writable");
        assert_eq!(own.recognise("v", number), Some(mark(sequence)), "of a former version");
        own.made("v", mark(sequence + 1));
        assert_eq!(own.recognise("v", number), None, "attached again by another program");
        let link = fs::read_link(at("names/loop0")).expect("a link");
        assert_eq!(link, Path::new(&format!("v {}", sequence + 1)));
        own.forget("w", number);
        assert!(at("names/loop0").is_symlink());
        own.forget("v", number);
        assert!(!at("names").exists() && own.recognise("v", number).is_none());
    }
}
