//! Links with the names of volumes to their devices.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
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
    match DirBuilder::new().create(DIR) {
        // The daemon's mask would leave the links to root.
        Ok(()) => fs::set_permissions(DIR, Permissions::from_mode(0o755))?,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        Err(error) => return Err(error),
    }
    if let Some(target) = target(link) {
        if target == device {
            return Ok(());
        }
        if is_used(&target) {
            let taken = format!("it belongs to {} already", target.display());
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, taken));
        }
        fs::remove_file(link)?;
    }
    symlink(device, link)
}

/// Returns where a link leads. The daemon makes absolute ones, and udev relative ones.
fn target(link: &Path) -> Option<PathBuf> {
    let target = fs::read_link(link).ok()?;
    Some(match target.strip_prefix("..") {
        Ok(rest) => Path::new("/dev").join(rest),
        Err(_) => target,
    })
}

/// Whether a device is there, and if it is a loop device or one of NBD, is set up.
fn is_used(device: &Path) -> bool {
    let Some(name) = device.file_name() else { return false };
    let sysfs = Path::new("/sys/block").join(name);
    let name = name.as_encoded_bytes();
    if name.starts_with(b"loop") {
        return sysfs.join("loop/backing_file").exists();
    }
    if name.starts_with(b"nbd") { sysfs.join("pid").exists() } else { sysfs.exists() }
}

/// Returns the link with the name of a volume if it leads to this device.
pub fn find(volume: &str, device: &Path) -> Option<PathBuf> {
    let link = Path::new(DIR).join(volume);
    target(&link).is_some_and(|target| target == device).then_some(link)
}

/// Removes a link, unless it leads somewhere else by now.
pub fn remove(link: &Path, device: &Path) {
    if target(link).is_some_and(|target| target == device) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_of_udev_and_of_the_daemon_lead_to_the_same_device() {
        let dir = tempfile::tempdir().expect("a directory");
        for (number, text) in ["../ublkb0", "/dev/ublkb0"].into_iter().enumerate() {
            let link = dir.path().join(number.to_string());
            symlink(text, &link).expect("made");
            assert_eq!(target(&link), Some("/dev/ublkb0".into()));
        }
        assert_eq!(target(&dir.path().join("none")), None);
    }
}
