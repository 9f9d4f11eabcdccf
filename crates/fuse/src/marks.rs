//! By which the loop device of a volume is known. Its number says nothing, because another program gets it as soon as
//! the device is detached; nor does the path of its file, which other mount namespaces have too. The kernel gives
//! out a sequence number with each file of a loop device, once: a note in the state directory has it. A link in a
//! private directory names the volume for udev, and is made before the device has the file.

use std::path::{Path, PathBuf};

use forebay_device::loop_device::LoopNumber;
use forebay_export::{Note, Notes};

use crate::helper;

/// The mark in the note of a device that is being made.
const MAKING: u64 = u64::MAX;
/// The mark of a device whose kernel gives out no sequence numbers.
const UNNUMBERED: u64 = u64::MAX - 1;

/// The device of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mark {
    pub(crate) number: LoopNumber,
    /// `None`: the kernel gives out none.
    pub(crate) sequence: Option<u64>,
}

impl Mark {
    /// Returns the mark that a device has now.
    pub(crate) fn of(number: LoopNumber) -> Self {
        Mark { number, sequence: number.sequence() }
    }

    /// Returns whether the device is still the one that was made.
    pub(crate) fn is_there(&self) -> bool {
        self.number.is(self.sequence)
    }
}

/// The notes about devices.
#[derive(Debug)]
pub(crate) struct Marks {
    notes: Notes,
    /// The directory of the links for udev.
    names: PathBuf,
    /// The former daemon was of a version that wrote no notes.
    begins: bool,
}

impl Marks {
    /// Keeps notes in one directory, and links in another.
    pub(crate) fn new(notes: &Path, names: &Path) -> Self {
        Marks { notes: Notes::new(notes), names: names.to_owned(), begins: !notes.exists() }
    }

    /// Returns the directory of the links.
    pub(crate) fn names(&self) -> &Path {
        &self.names
    }

    /// A device for a volume is about to be made.
    ///
    /// # Errors
    /// That of the system.
    pub(crate) fn begin(&self, volume: &str) -> std::io::Result<()> {
        self.write(volume, MAKING)
    }

    /// It was made.
    pub(crate) fn made(&self, volume: &str, mark: Mark) {
        // The note that is there serves as well, but for a device that is detached and attached by others.
        if let Err(error) = self.write(volume, mark.sequence.unwrap_or(UNNUMBERED)) {
            tracing::warn!(volume, %error, "the note about its device cannot be written");
        }
        helper::name(&self.names, mark.number, Path::new(volume));
    }

    /// It is there no more.
    pub(crate) fn forget(&self, volume: &str, number: LoopNumber) {
        if std::fs::read_link(helper::name_of(&self.names, number)).is_ok_and(|it| it == *volume) {
            helper::unname(&self.names, number);
        }
        self.notes.remove(volume);
    }

    /// Returns the mark of a loop device that has the path of a volume's file, if it is the volume's.
    pub(crate) fn recognise(&self, volume: &str, number: LoopNumber) -> Option<Mark> {
        let mark = Mark::of(number);
        let is_own = match self.notes.read(volume) {
            Some(note) => note.mark == MAKING || note.mark == mark.sequence.unwrap_or(UNNUMBERED),
            None => self.begins,
        };
        is_own.then_some(mark)
    }

    fn write(&self, volume: &str, mark: u64) -> std::io::Result<()> {
        self.notes.write(volume, &Note { mark, identity: String::new(), half: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_with_the_path_of_a_volume_is_the_volumes_only_with_its_sequence_number() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        // No machine has that many, so it has no sequence number.
        let number = LoopNumber(1_000_000);
        let marks = Marks::new(&at("notes"), &at("names"));
        assert!(marks.recognise("v", number).is_some(), "a former version wrote no notes");
        marks.begin("v").expect("writable");
        let marks = Marks::new(&at("notes"), &at("names"));
        assert!(marks.recognise("v", number).is_some(), "killed while it was made");
        assert!(marks.recognise("w", number).is_none(), "no volume of this daemon");
        marks.made("v", Mark { number, sequence: Some(7) });
        assert!(marks.recognise("v", number).is_none(), "attached again by another program");
        assert_eq!(std::fs::read_link(at("names/loop1000000")).expect("a link"), Path::new("v"));
        marks.made("v", Mark { number, sequence: None });
        assert_eq!(marks.recognise("v", number), Some(Mark { number, sequence: None }));
        marks.forget("w", number);
        assert!(at("names/loop1000000").is_symlink());
        marks.forget("v", number);
        assert!(!at("names").exists() && marks.recognise("v", number).is_none());
    }
}
