//! Sparse files below volumes whose filesystem has less space than they may still need: when it is
//! full, writes fail.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::sync_channel;
use std::time::Duration;

use forebay_admin::VolumeReport;
use forebay_core::units::format_size;

use crate::output::note;
use forebay_daemon::devices::path_of;

/// Time limit for the filesystems' answers; one that hangs is left out here.
const PATIENCE: Duration = Duration::from_secs(1);

/// A filesystem that is too small for the files on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Shortage {
    /// The files on it that are not allocated to their ends.
    files: Vec<PathBuf>,
    /// Bytes that they may still need.
    needed: u64,
    /// Bytes that are free.
    free: u64,
}

impl std::fmt::Display for Shortage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let files: Vec<String> = self.files.iter().map(|file| file.display().to_string()).collect();
        write!(
            f,
            "{}: sparse, and may need {} more, of which the filesystem has {}; when it is full, writes there fail: free \
             some space, or allocate it with 'fallocate -l SIZE FILE' before 'forebay create'",
            files.join(", "),
            format_size(self.needed.next_multiple_of(MIB)),
            format_size(self.free / MIB * MIB),
        )
    }
}

const MIB: u64 = 1 << 20;

/// Says in one line which filesystem below a new volume is too small.
pub(crate) fn warn(report: &VolumeReport) {
    shortages(&[&report.cache.path, &report.origin.path])
        .iter()
        .for_each(|it| note(&it.to_string()));
}

/// Returns the filesystems that are too small for the files among these devices.
pub(crate) fn shortages(devices: &[&str]) -> Vec<Shortage> {
    let paths: BTreeSet<PathBuf> = devices.iter().filter_map(|device| path_of(device)).collect();
    let (tell, told) = sync_channel(1);
    std::thread::spawn(move || tell.send(of_files(&paths)));
    told.recv_timeout(PATIENCE).unwrap_or_default()
}

fn of_files(paths: &BTreeSet<PathBuf>) -> Vec<Shortage> {
    let mut filesystems: BTreeMap<u64, Shortage> = BTreeMap::new();
    let mut seen = BTreeSet::new();
    for path in paths {
        let Some((identity, needed, free)) = look(path) else { continue };
        if needed == 0 || !seen.insert(identity) {
            continue;
        }
        let none = || Shortage { files: Vec::new(), needed: 0, free };
        let shortage = filesystems.entry(identity.0).or_insert_with(none);
        shortage.files.push(path.clone());
        shortage.needed += needed;
    }
    filesystems.into_values().filter(|it| it.needed > it.free).collect()
}

/// Returns filesystem and inode of a file, the bytes that it may still need, and those that are
/// free there.
fn look(path: &Path) -> Option<((u64, u64), u64, u64)> {
    let file = std::fs::metadata(path).ok().filter(|it| it.is_file())?;
    let space = rustix::fs::statvfs(path).ok()?;
    let needed = file.size().saturating_sub(file.blocks().saturating_mul(512));
    let free = space.f_bavail.saturating_mul(space.f_frsize);
    Some(((file.dev(), file.ino()), needed, free))
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use forebay_testkit::TempDir;

    #[test]
    fn sparse_files_count_together_and_each_once() {
        let dir = TempDir::new("sparse");
        let (one, other) = (dir.path().join("one"), dir.path().join("other"));
        let file = File::create(&one).expect("writable");
        file.set_len(MIB).expect("sparse");
        let (_, needed, free) = look(&one).expect("a file");
        assert_eq!(needed, MIB);
        // Each fits, and both do not.
        let len = free / 3 * 2;
        file.set_len(len).expect("sparse");
        let name = |path: &Path| path.display().to_string();
        assert_eq!(shortages(&[&name(&one), &name(&one)]), []);
        File::create(&other).and_then(|file| file.set_len(len)).expect("sparse");
        let found = shortages(&[&name(&one), &name(&other), "/dev/null", "ram:1G", "/nonexistent"]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((&found[0].files, found[0].needed), (&vec![one.clone(), other], 2 * len));
        std::fs::hard_link(&one, dir.path().join("again")).expect("possible");
        assert_eq!(shortages(&[&name(&one), &name(&dir.path().join("again"))]), []);
    }

    #[test]
    fn allocated_files_need_no_space() {
        let dir = TempDir::new("sparse-allocated");
        let path = dir.path().join("file");
        std::fs::write(&path, vec![1; 1 << 20]).expect("writable");
        File::open(&path).and_then(|file| file.sync_all()).expect("synced");
        assert_eq!(look(&path).map(|(_, needed, _)| needed), Some(0));
    }
}
