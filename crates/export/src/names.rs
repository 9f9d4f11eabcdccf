//! Links in a private directory, from the names of devices to those of their volumes, which udev
//! reads.

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The links of a front end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Names {
    dir: PathBuf,
}

impl Names {
    /// Keeps links in `dir`. The directory is created with the first link and removed with the
    /// last.
    pub fn new(dir: &Path) -> Self {
        Names { dir: dir.to_owned() }
    }

    /// Returns the directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Names a device; `text` begins with the name of its volume.
    ///
    /// # Errors
    /// The error of the system.
    pub fn add(&self, device: &Path, text: &str) -> io::Result<()> {
        let link = self.link(device);
        let _ = fs::create_dir(&self.dir);
        let _ = fs::remove_file(&link);
        symlink(text, link)
    }

    /// Removes the name of a device.
    pub fn remove(&self, device: &Path) {
        let _ = fs::remove_file(self.link(device));
        // Fails while the directory has other links.
        let _ = fs::remove_dir(&self.dir);
    }

    /// Removes the name of a device, unless the device belongs to another volume by now.
    pub fn remove_of(&self, volume: &str, device: &Path) {
        let text = fs::read_link(self.link(device)).ok();
        let text = text.as_deref().and_then(Path::to_str);
        if text.and_then(|text| text.split(' ').next()) == Some(volume) {
            self.remove(device);
        }
    }

    fn link(&self, device: &Path) -> PathBuf {
        self.dir.join(device.file_name().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_removed_only_by_its_own_volume() {
        let dir = tempfile::tempdir().expect("a directory");
        let names = Names::new(&dir.path().join("names"));
        let [a, b] = ["/dev/nbd0", "/dev/nbd1"].map(Path::new);
        names.add(a, "v").expect("writable");
        names.add(a, "w 0:43").expect("writable");
        names.add(b, "v").expect("writable");
        names.remove_of("v", a);
        let read = |name: &str| fs::read_link(names.dir().join(name)).ok();
        assert_eq!(read("nbd0"), Some("w 0:43".into()));
        names.remove_of("w", a);
        assert_eq!((read("nbd0"), read("nbd1")), (None, Some("v".into())));
        names.remove(b);
        assert!(!names.dir().exists());
    }
}
