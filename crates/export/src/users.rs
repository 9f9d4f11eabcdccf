//! Who uses a block device, or the file below it.
#![expect(clippy::disallowed_methods, reason = "waits for processes, on a thread of an operation")]

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long a process may look at a device that is to be removed.
const LOOKING: Duration = Duration::from_secs(2);
/// How often that is checked.
const STEP: Duration = Duration::from_millis(100);

/// One line of `/proc/self/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The number of the device, like `7:0`.
    pub device: String,
    /// Where it is mounted.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// The device as named when it was mounted.
    pub source: String,
}

/// Returns what is mounted in this process's view.
pub fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(mount).collect()
}

/// Parses one line; `None`: it is not one.
fn mount(line: &str) -> Option<Mount> {
    let (first, last) = line.split_once(" - ")?;
    let mut first = first.split(' ').skip(2);
    let (device, point) = (first.next()?, first.nth(1)?);
    let mut last = last.split(' ');
    Some(Mount {
        device: device.to_owned(),
        point: unescaped(point).into(),
        kind: last.next()?.to_owned(),
        source: unescaped(last.next()?),
    })
}

/// Replaces the octal escapes of the kernel, like `\040` for a space.
fn unescaped(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'\\').then(|| after.get(..3)).flatten();
        let code = code.and_then(|digits| std::str::from_utf8(digits).ok());
        match code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The users of one export.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Users {
    /// Where it is mounted.
    pub mounts: Vec<PathBuf>,
    /// Block devices on top of it.
    holders: Vec<String>,
    /// It is swapped to.
    swap: bool,
    /// Processes that have it open, like `1234 (fio)`.
    processes: Vec<String>,
}

impl Users {
    /// Finds the users of a device, such as `/dev/loop0`, and of the file below it. Those in other mount
    /// namespaces are only found as processes.
    pub fn of(device: &Path, file: Option<&Path>) -> Self {
        let sysfs = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
        let id = fs::read_to_string(sysfs.join("dev")).unwrap_or_default();
        let is_device = |name: &str| {
            name.starts_with("/dev/") && fs::canonicalize(name).is_ok_and(|path| path == device)
        };
        let mounted = mounts().into_iter();
        let mounts = mounted
            .filter(|mount| mount.device == id.trim() || is_device(&mount.source))
            .map(|mount| mount.point)
            .collect();
        let swaps = fs::read_to_string("/proc/swaps").unwrap_or_default();
        let swap = swaps.lines().filter_map(|line| line.split_whitespace().next()).any(is_device);
        let processes = processes(device, file);
        Users { mounts, holders: holders(&sysfs), swap, processes }
    }

    /// As [`Users::of`], after processes had the time to look at the device: one that has changed is
    /// opened by udev for a moment.
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

    /// Returns whether there are none.
    pub fn is_empty(&self) -> bool {
        *self == Users::default()
    }

    /// Returns whether there are none but processes that have it open. These may just be looking at a
    /// device that has changed, as udev does.
    fn may_pass(&self) -> bool {
        self.mounts.is_empty() && self.holders.is_empty() && !self.swap
    }
}

impl fmt::Display for Users {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut all = Vec::new();
        all.extend(self.mounts.iter().map(|point| format!("mounted on {}", point.display())));
        all.extend(self.holders.iter().map(|name| format!("a part of /dev/{name}")));
        all.extend(self.swap.then(|| "used for swap".to_owned()));
        all.extend(self.processes.iter().map(|process| format!("open in process {process}")));
        f.write_str(&all.join(", "))
    }
}

/// Returns the names in a directory; none if there is no such directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

fn holders(sysfs: &Path) -> Vec<String> {
    let mut all = names(&sysfs.join("holders"));
    all.sort_unstable();
    all
}

/// Returns the processes, other than this one, that have the device or the file open.
fn processes(device: &Path, file: Option<&Path>) -> Vec<String> {
    let own = std::process::id();
    let mut all: Vec<u32> = names(Path::new("/proc"))
        .into_iter()
        .filter_map(|name| name.parse().ok())
        .filter(|pid| *pid != own)
        .filter(|pid| {
            let entries = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            entries
                .filter_map(|entry| fs::read_link(entry.path()).ok())
                .any(|target| target == device || Some(&*target) == file)
        })
        .collect();
    all.sort_unstable();
    all.into_iter().map(process).collect()
}

/// Returns a process as operators read it, like `1234 (fio)`.
pub fn process(pid: u32) -> String {
    let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
    format!("{pid} ({})", name.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read() {
        let line =
            r"36 35 7:3 / /mnt/a\040b\134 rw,noatime master:1 - ext4 /dev/loop3 rw,errors=continue";
        let read = mount(line).expect("a line");
        assert_eq!((&*read.device, read.point), ("7:3", PathBuf::from("/mnt/a b\\")));
        assert_eq!((&*read.kind, &*read.source), ("ext4", "/dev/loop3"));
        let line = r"36 35 0:50 / /run/x/v rw - fuse.forebay forebay rw";
        assert_eq!(mount(line).expect("a line").kind, "fuse.forebay");
        for bad in ["", " - ", "36 35 7:3 / - ext4 x", "36 35 7:3 / /mnt rw", "1 2 3 - ext4"] {
            assert_eq!(mount(bad), None, "{bad:?}");
        }
        assert_eq!(unescaped(r"\04"), r"\04");
        assert_eq!(unescaped(r"\777x"), r"\777x");
    }

    #[test]
    fn users_are_named() {
        let users = Users {
            mounts: vec!["/mnt".into()],
            holders: vec!["dm-0".to_owned()],
            swap: true,
            processes: vec!["12 (fio)".to_owned()],
        };
        let text = "mounted on /mnt, a part of /dev/dm-0, used for swap, open in process 12 (fio)";
        assert_eq!(users.to_string(), text);
        assert!(!users.may_pass() && !users.is_empty());
        let passing = Users { processes: users.processes, ..Users::default() };
        assert!(passing.may_pass() && !passing.is_empty());
    }

    #[test]
    fn the_mounts_of_this_process_are_found() {
        assert!(mounts().iter().any(|mount| mount.point == Path::new("/")));
    }
}
