//! Removes the remains of a daemon that was killed: mounted files without a server, and the loop
//! devices on top of them.

use std::fs;
use std::path::{Path, PathBuf};

use forebay_device::loop_device::{self, LoopNumber};
use forebay_export::link;
use forebay_host::files::numbers;
use forebay_host::mounts::mounts;
use forebay_host::users::Users;
use rustix::mount::{UnmountFlags, unmount};

use crate::marks::{Mark, Marks};

/// The type of these file systems, by which they are recognised.
pub(crate) const FS_TYPE: &str = "fuse.forebay";

/// Removes from a directory all files that no daemon uses any more, except those that are `kept`.
pub(crate) fn clean(dir: &Path, marks: &Marks, kept: impl Fn(&Path) -> bool) {
    // The devices first: their users read from the files.
    for (Mark { number, sequence }, file) in attached(dir, marks) {
        if kept(&file) {
            continue;
        }
        let users = Users::of(&number.path(), Some(&file));
        if !users.is_empty() {
            let device = number.path();
            tracing::warn!(device = %device.display(), "a device of the previous daemon is still {users}: they get I/O errors until they close it, and the volume gets another device");
        }
        // As soon as the device is detached, another daemon may get its number and make a link to
        // it.
        link::remove_all(&number.path());
        if let Err(error) = loop_device::detach(number, sequence) {
            tracing::warn!(device = %number.path().display(), %error, "a loop device of the previous daemon cannot be detached");
        }
        let volume = file.file_name().unwrap_or_default().to_string_lossy();
        marks.forget(&volume, number);
    }
    for mount in mounts() {
        let ours =
            mount.kind == FS_TYPE && mount.point.parent() == Some(dir) && !kept(&mount.point);
        if ours && let Err(error) = unmount(&mount.point, UnmountFlags::DETACH) {
            tracing::warn!(file = %mount.point.display(), %error, "a file of the previous daemon cannot be unmounted");
        }
    }
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        // Mount points are empty files; anything else is not ours. Mount points in use cannot be
        // removed.
        if !kept(&entry.path())
            && entry.metadata().is_ok_and(|found| found.is_file() && found.len() == 0)
        {
            let _ = fs::remove_file(entry.path());
        }
    }
}

/// Returns the loop devices of volumes with files in `dir`, according to the notes. The kernel no
/// longer knows the path of a file whose mount namespace is gone, like that of a service, and
/// another file may have the same path.
pub(crate) fn attached(dir: &Path, marks: &Marks) -> Vec<(Mark, PathBuf)> {
    let numbers = numbers("/sys/block", "loop").into_iter().map(LoopNumber);
    let with_file = numbers.filter(|number| number.sysfs().join("loop/backing_file").exists());
    let volumes = marks.volumes();
    let known = with_file.filter_map(|number| {
        let found = |volume: &String| Some((marks.recognise(volume, number)?, dir.join(volume)));
        volumes.iter().find_map(found)
    });
    known.collect()
}
