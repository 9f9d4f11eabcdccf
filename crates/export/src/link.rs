//! Links with the names of volumes to their devices.

use std::fs::{self, DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use forebay_device::loop_device::{self, LoopNumber};
use forebay_host::files::text;
use forebay_host::mounts::mounts;
use forebay_host::sysfs;

/// Directory of the links. The path for unit tests cannot be created.
const DIR: &str = if cfg!(test) { "/proc/forebay" } else { "/dev/forebay" };

/// The type of the file systems below loop devices of daemons.
const FUSE: &str = "fuse.forebay";

/// Makes `/dev/forebay/VOLUME` and returns its path. `None`: the link cannot be made on this
/// machine, or belongs to another daemon.
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

/// Returns the target of a link. The daemon makes absolute links, and udev relative ones.
fn target(link: &Path) -> Option<PathBuf> {
    let target = fs::read_link(link).ok()?;
    Some(match target.strip_prefix("..") {
        Ok(rest) => Path::new("/dev").join(rest),
        Err(_) => target,
    })
}

/// Returns whether a daemon serves a device. If another program's device got the number, a link to
/// it is out of date.
fn is_used(device: &Path) -> bool {
    let Some(name) = device.file_name() else { return false };
    let own = sysfs::of_disk(device);
    let name = name.as_encoded_bytes();
    if let Some(number) = name.strip_prefix(b"loop") {
        // The daemon must be in this mount namespace. A path would not tell, because other
        // namespaces have the same paths.
        let number = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
        let found = number.and_then(|it| loop_device::file_system(LoopNumber(it)).ok());
        return found.is_some_and(|(file_system, _)| {
            mounts().iter().any(|mount| mount.kind == FUSE && mount.device == file_system)
        });
    }
    match name.starts_with(b"nbd") {
        true => text(own.join("backend"))
            .is_some_and(|text| text.starts_with("forebay ") && own.join("pid").exists()),
        false => own.exists(),
    }
}

/// Returns the link with the name of a volume if its target is this device.
pub fn find(volume: &str, device: &Path) -> Option<PathBuf> {
    let link = Path::new(DIR).join(volume);
    target(&link).is_some_and(|target| target == device).then_some(link)
}

/// Removes a link unless its target has changed.
pub fn remove(link: &Path, device: &Path) {
    if target(link).is_some_and(|target| target == device) {
        let _ = fs::remove_file(link);
        // This succeeds only for the last link.
        let _ = fs::remove_dir(DIR);
    }
}

/// Removes the link with the name of a volume if its target is this device.
pub fn remove_of(volume: &str, device: &Path) {
    if let Some(link) = find(volume, device) {
        remove(&link, device);
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
