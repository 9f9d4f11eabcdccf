//! Users of a block device, of its partitions, or of the file below it.
#![expect(clippy::disallowed_methods, reason = "waits for processes, on a thread of an operation")]

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::files::text;
use crate::mounts::{self, Mount};
use crate::{processes, sysfs};

/// Time limit for processes that only examine a device that is to be removed.
const LOOKING: Duration = Duration::from_secs(2);
/// Interval at which such processes are checked.
const STEP: Duration = Duration::from_millis(100);

/// The users of one export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users(Vec<User>);

/// One user.
#[derive(Clone, Debug, PartialEq, Eq)]
struct User {
    /// The partition that is used; `None` for the whole device.
    partition: Option<String>,
    what: Use,
}

/// A kind of use.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Use {
    /// The device is mounted at this point; `viewer` is a process of the mount namespace if it is
    /// not that of this process.
    Mount { point: PathBuf, viewer: Option<u32> },
    /// Another block device is on top of the device.
    Holder(String),
    /// The device is used for swap.
    Swap,
    /// A process has the device open.
    Process(u32),
}

/// A device, or one of its partitions.
struct Part {
    /// Name of the partition; `None` for the whole device.
    partition: Option<String>,
    path: PathBuf,
    sysfs: PathBuf,
    /// Number of the device, like `7:0`.
    id: String,
}

impl Users {
    /// Finds the users of a device, such as `/dev/loop0`, of its partitions, and of the file below
    /// it. A mount is found in every mount namespace that has a process.
    pub fn of(device: &Path, file: Option<&Path>) -> Self {
        let parts = parts(device);
        let mut all = mounted(&parts);
        let swaps = mounts::swap_areas();
        for part in &parts {
            let mut add = |what| all.push(part.user(what));
            sysfs::holders(&part.sysfs).into_iter().for_each(|name| add(Use::Holder(name)));
            if swaps.iter().any(|area| part.is(area)) {
                add(Use::Swap);
            }
        }
        all.extend(opened(&parts, file));
        Users(all)
    }

    /// Finds users like [`Users::of`], but gives processes time to close the device: udev opens a
    /// device that has changed for a moment.
    pub fn remaining(device: &Path, file: Option<&Path>) -> Self {
        let end = Instant::now() + LOOKING;
        loop {
            let users = Users::of(device, file);
            if !users.may_pass() || users.is_empty() || Instant::now() >= end {
                return users;
            }
            std::thread::sleep(STEP);
        }
    }

    /// Returns whether the device has no users.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns whether all users are processes that have the device open. They may only be
    /// examining a device that has changed, as udev does.
    pub fn may_pass(&self) -> bool {
        self.0.iter().all(|user| matches!(user.what, Use::Process(_)))
    }

    /// Returns the paths by which this process reaches the file systems on the device.
    pub fn file_systems(&self) -> Vec<PathBuf> {
        let find = |user: &User| match &user.what {
            Use::Mount { point, viewer: None } => Some(point.clone()),
            Use::Mount { point, viewer: Some(pid) } => {
                let root = PathBuf::from(format!("/proc/{pid}/root"));
                Some(root.join(point.strip_prefix("/").unwrap_or(point)))
            }
            _ => None,
        };
        self.0.iter().filter_map(find).collect()
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(User::to_string).collect();
        f.write_str(&all.join(", "))
    }
}

impl fmt::Display for User {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.what {
            Use::Mount { point, viewer: None } => write!(f, "mounted on {}", point.display())?,
            Use::Mount { point, viewer: Some(pid) } => {
                write!(
                    f,
                    "mounted on {} in the view of process {}",
                    point.display(),
                    processes::with_name(*pid)
                )?;
            }
            Use::Holder(device) => write!(f, "a part of /dev/{device}")?,
            Use::Swap => f.write_str("used for swap")?,
            Use::Process(pid) => {
                write!(f, "open in process {}", processes::with_name(*pid))?;
            }
        }
        match &self.partition {
            Some(partition) => write!(f, " (partition {partition})"),
            None => Ok(()),
        }
    }
}

impl Part {
    fn new(path: PathBuf, sysfs: PathBuf, partition: Option<String>) -> Self {
        let id = text(sysfs.join("dev")).unwrap_or_default();
        Part { partition, path, sysfs, id }
    }

    fn user(&self, what: Use) -> User {
        User { partition: self.partition.clone(), what }
    }

    /// Returns whether a path leads to the device.
    fn is(&self, name: &str) -> bool {
        name.starts_with("/dev/") && fs::canonicalize(name).is_ok_and(|path| path == self.path)
    }

    /// Returns whether a mount is one of the device. File systems on several devices have a number
    /// of their own, so their source is compared.
    fn has(&self, mount: &Mount) -> bool {
        mount.device == self.id || (mount.device.starts_with("0:") && self.is(&mount.source))
    }
}

/// Returns a device and its partitions.
fn parts(device: &Path) -> Vec<Part> {
    let disk = sysfs::of_disk(device);
    let partitions = sysfs::partitions(&disk).into_iter().filter_map(|own| {
        let name = own.file_name()?.to_str()?.to_owned();
        Some(Part::new(Path::new("/dev").join(&name), own, Some(name)))
    });
    let whole = Part::new(device.to_owned(), disk, None);
    std::iter::once(whole).chain(partitions).collect()
}

/// Returns the mounts of these parts. Several namespaces with a mount at the same place count as
/// one, because most inherit it.
fn mounted(parts: &[Part]) -> Vec<User> {
    let mut all: Vec<User> = Vec::new();
    let own = (None, mounts::mounts());
    let others = mounts::elsewhere().into_iter().map(|(pid, mounts)| (Some(pid), mounts));
    for (viewer, mounts) in std::iter::once(own).chain(others) {
        for mount in mounts {
            for part in parts.iter().filter(|part| part.has(&mount)) {
                let known = all.iter().any(|user| {
                    let same = |point: &PathBuf| *point == mount.point;
                    user.partition == part.partition
                        && matches!(&user.what, Use::Mount { point, .. } if same(point))
                });
                if !known {
                    all.push(part.user(Use::Mount { point: mount.point.clone(), viewer }));
                }
            }
        }
    }
    all
}

/// Returns the processes other than this one that have one of these parts or the file open.
fn opened(parts: &[Part], file: Option<&Path>) -> Vec<User> {
    let mut all = Vec::new();
    let own = std::process::id();
    for pid in processes::pids().into_iter().filter(|pid| *pid != own) {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        for target in entries.filter_map(|entry| fs::read_link(entry.path()).ok()) {
            let part = match Some(&*target) == file {
                true => parts.first(),
                false => parts.iter().find(|part| part.path == target),
            };
            let user = part.map(|part| part.user(Use::Process(pid)));
            all.extend(user.filter(|user| !all.contains(user)));
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::files::names;

    #[test]
    fn users_are_named() {
        let partition = Some("loop0p1".to_owned());
        let mount = |viewer| Use::Mount { point: "/mnt".into(), viewer };
        let whole = |what| User { partition: None, what };
        // No process has this ID.
        let pid = u32::MAX;
        let users = Users(vec![
            whole(mount(None)),
            User { partition: partition.clone(), what: mount(Some(pid)) },
            whole(Use::Holder("dm-0".to_owned())),
            User { partition, what: Use::Swap },
            whole(Use::Process(pid)),
        ]);
        let text = format!(
            "mounted on /mnt, mounted on /mnt in the view of process {pid} () (partition loop0p1), \
             a part of /dev/dm-0, used for swap (partition loop0p1), open in process {pid} ()"
        );
        assert_eq!(users.to_string(), text);
        let places = ["/mnt".to_owned(), format!("/proc/{pid}/root/mnt")];
        assert_eq!(users.file_systems(), places.map(PathBuf::from));
        assert!(!users.may_pass() && !users.is_empty());
        let passing = Users(vec![whole(Use::Process(pid))]);
        assert!(passing.may_pass() && !passing.is_empty());
    }

    #[test]
    fn a_device_has_its_partitions() {
        // Checks all disks of this machine: the partitions of a disk belong to it, and nothing else
        // does.
        for disk in names("/sys/block") {
            let all = parts(&Path::new("/dev").join(&disk));
            let expected = names("/sys/class/block").into_iter().filter(|name| {
                let real = fs::canonicalize(Path::new("/sys/class/block").join(name));
                let parent = real.ok().and_then(|path| path.parent()?.file_name().map(Into::into));
                parent == Some(std::ffi::OsString::from(&disk))
            });
            let found = all.iter().filter_map(|part| part.partition.clone());
            assert_eq!(found.collect::<Vec<_>>(), expected.collect::<Vec<_>>(), "{disk}");
            assert!(all.iter().all(|part| part.id.contains(':')), "{disk}");
        }
    }
}
