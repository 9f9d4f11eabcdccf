//! Mounts in this mount namespace and in others, and swap areas.

use std::collections::HashSet;
use std::fs;
use std::path::PathBuf;

use crate::processes::pids;

/// One line of `/proc/PID/mountinfo`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The number of the mount.
    pub id: String,
    /// The number of the device, like `7:0`.
    pub device: String,
    /// The mount point.
    pub point: PathBuf,
    /// The type of the file system.
    pub kind: String,
    /// The device, by the name with which it was mounted.
    pub source: String,
}

/// Returns the mounted file systems in this process's view.
pub fn mounts() -> Vec<Mount> {
    read("self").unwrap_or_default()
}

/// Returns the mounts of other mount namespaces, with one process for each. A namespace without
/// processes is not found. Reads a link for each process, and a file for each namespace.
pub(crate) fn elsewhere() -> Vec<(u32, Vec<Mount>)> {
    let namespace = |process: &str| fs::read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mut seen: HashSet<PathBuf> = namespace("self").into_iter().collect();
    let mut all = Vec::new();
    for pid in pids() {
        let process = pid.to_string();
        let new = namespace(&process).filter(|found| !seen.contains(found));
        // If the process has ended meanwhile, the next process in the namespace is tried.
        if let Some(namespace) = new
            && let Some(mounts) = read(&process)
        {
            seen.insert(namespace);
            all.push((pid, mounts));
        }
    }
    all
}

/// Returns the files and block devices that are used for swap.
pub fn swap_areas() -> Vec<String> {
    areas(&fs::read_to_string("/proc/swaps").unwrap_or_default())
}

/// Parses `/proc/swaps`, whose first line is a title.
fn areas(swaps: &str) -> Vec<String> {
    let lines = swaps.lines().skip(1);
    lines.filter_map(|line| Some(unescaped(line.split_whitespace().next()?))).collect()
}

fn read(process: &str) -> Option<Vec<Mount>> {
    let text = fs::read(format!("/proc/{process}/mountinfo")).ok()?;
    Some(parse(&String::from_utf8_lossy(&text)))
}

/// Parses a file `mountinfo`.
pub fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(mount).collect()
}

/// Parses one line; `None` if it is invalid.
fn mount(line: &str) -> Option<Mount> {
    let (first, last) = line.split_once(" - ")?;
    let mut first = first.split(' ');
    let (id, device, point) = (first.next()?, first.nth(1)?, first.nth(1)?);
    let mut last = last.split(' ');
    Some(Mount {
        id: id.to_owned(),
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

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn lines_of_mountinfo_are_read() {
        let line =
            r"36 35 7:3 / /mnt/a\040b\134 rw,noatime master:1 - ext4 /dev/loop3 rw,errors=continue";
        let read = mount(line).expect("a line");
        assert_eq!((&*read.id, &*read.device), ("36", "7:3"));
        assert_eq!(read.point, Path::new("/mnt/a b\\"));
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
    fn swap_areas_are_read_without_their_title() {
        let swaps = "Filename\tType\tSize\tUsed\tPriority\n\
            /dev/zram0 partition 100 0 -2\n/my\\040swap file 1 0 -3\n";
        assert_eq!(areas(swaps), ["/dev/zram0", "/my swap"]);
        assert!(areas("").is_empty());
    }

    #[test]
    fn the_mounts_of_this_process_are_found() {
        assert!(mounts().iter().any(|mount| mount.point == Path::new("/")));
        assert!(pids().contains(&std::process::id()));
    }
}
