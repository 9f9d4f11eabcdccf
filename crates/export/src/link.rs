//! Links with the names of volumes to their devices.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

/// Where they are.
const DIR: &str = "/dev/forebay";

/// Makes `/dev/forebay/VOLUME`. `None`: that is impossible here, or the link belongs to another daemon.
pub fn make(volume: &str, device: &Path) -> Option<PathBuf> {
    let link = Path::new(DIR).join(volume);
    match try_make(&link, device) {
        Ok(()) => Some(link),
        Err(error) => {
            tracing::info!(volume, %error, "there is no link {}", link.display());
            None
        }
    }
}

fn try_make(link: &Path, device: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(DIR) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if let Ok(target) = fs::read_link(link) {
        if target != device && is_used(&target) {
            let taken = format!("it belongs to {} already", target.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, taken));
        }
        fs::remove_file(link)?;
    }
    symlink(device, link)
}

/// Whether a device is there, and if it is a loop device, has a file.
fn is_used(device: &Path) -> bool {
    let Some(name) = device.file_name() else { return false };
    let sysfs = Path::new("/sys/block").join(name);
    let is_loop = name.as_encoded_bytes().starts_with(b"loop");
    if is_loop { sysfs.join("loop/backing_file").exists() } else { sysfs.exists() }
}

/// Removes a link, unless it leads somewhere else by now.
pub fn remove(link: &Path, device: &Path) {
    if fs::read_link(link).is_ok_and(|target| target == device) {
        let _ = fs::remove_file(link);
        // Only the last one succeeds.
        let _ = fs::remove_dir(DIR);
    }
}

/// Removes every link to a device.
pub fn remove_all(device: &Path) {
    for entry in fs::read_dir(DIR).into_iter().flatten().flatten() {
        remove(&entry.path(), device);
    }
}
