//! Links with the names of volumes to their devices.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::{DirBuilderExt, symlink};
use std::path::{Path, PathBuf};

use forebay_device::loop_device::LoopNumber;

/// Where they are.
const DIR: &str = "/dev/forebay";

/// Makes `/dev/forebay/VOLUME`. `None`: that is impossible here, or the link belongs to another daemon.
pub(crate) fn make(volume: &str, number: LoopNumber) -> Option<PathBuf> {
    let link = Path::new(DIR).join(volume);
    match try_make(&link, number) {
        Ok(()) => Some(link),
        Err(error) => {
            tracing::info!(volume, %error, "there is no link {}", link.display());
            None
        }
    }
}

fn try_make(link: &Path, number: LoopNumber) -> io::Result<()> {
    match DirBuilder::new().mode(0o755).create(DIR) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    if let Ok(target) = fs::read_link(link) {
        if leads_to(&target, number) {
            return Ok(());
        }
        if is_used(&target) {
            let taken = format!("it belongs to {} already", target.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, taken));
        }
        fs::remove_file(link)?;
    }
    symlink(number.path(), link)
}

/// Whether the target of a link is this device. A link that udev has made is relative.
fn leads_to(target: &Path, number: LoopNumber) -> bool {
    target.file_name() == number.path().file_name()
}

/// Whether a device is a loop device with a file.
fn is_used(device: &Path) -> bool {
    let Some(name) = device.file_name() else { return false };
    Path::new("/sys/block").join(name).join("loop/backing_file").exists()
}

/// Removes a link, unless it leads somewhere else by now.
pub(crate) fn remove(link: &Path, number: LoopNumber) {
    if fs::read_link(link).is_ok_and(|target| leads_to(&target, number)) {
        let _ = fs::remove_file(link);
        // Only the last one succeeds.
        let _ = fs::remove_dir(DIR);
    }
}

/// Removes every link to a device.
pub(crate) fn remove_all(number: LoopNumber) {
    for entry in fs::read_dir(DIR).into_iter().flatten().flatten() {
        remove(&entry.path(), number);
    }
}
