//! Memory of the machine and of this process's control groups, as the kernel reports it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::files::number;

/// The memory of the machine, or of a control group with a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SystemMemory {
    /// Bytes in all.
    pub total: u64,
    /// Bytes that are free or hold pages of files, which the kernel can drop.
    pub available: u64,
}

/// The places where the kernel reports on memory.
pub struct System {
    proc: PathBuf,
    groups: Vec<Group>,
}

impl System {
    /// Finds the present groups of this process.
    pub fn here() -> Self {
        Self::of(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }

    /// Finds groups like [`System::here`], below other directories.
    pub fn of(proc: &Path, groups: &Path) -> Self {
        let own = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let groups = own.lines().flat_map(|line| Group::of(line, groups)).collect();
        System { proc: proc.to_owned(), groups }
    }

    /// Returns the machine's memory.
    pub fn machine(&self) -> Option<SystemMemory> {
        let text = fs::read_to_string(self.proc.join("meminfo")).ok()?;
        let field = |name: &str| -> Option<u64> {
            let line = text.lines().find_map(|line| line.strip_prefix(name))?;
            let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
            kib.checked_mul(1024)
        };
        Some(SystemMemory { total: field("MemTotal:")?, available: field("MemAvailable:")? })
    }

    /// Returns the memory of each group with a limit.
    pub fn groups(&self) -> impl Iterator<Item = SystemMemory> {
        self.groups.iter().filter_map(Group::memory)
    }

    /// Returns the lowest limit of the groups, in bytes.
    pub fn group_limit(&self) -> Option<u64> {
        self.groups.iter().filter_map(Group::limit).min()
    }

    /// Returns the longest time for which tasks have stalled for lack of memory in one of the
    /// groups or, with `machine`, in the whole machine.
    pub fn stalled(&self, machine: bool) -> Duration {
        let files = self.groups.iter().map(|group| group.folder.join("memory.pressure"));
        let whole = machine.then(|| self.proc.join("pressure/memory"));
        files.chain(whole).filter_map(|file| stalled_in(&file)).max().unwrap_or_default()
    }
}

/// Returns the bytes of RAM that this process occupies, as the kernel counts them (RSS).
pub fn resident() -> Option<u64> {
    let text = fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// A control group that limits the process's memory, or may come to: its own or one around it.
struct Group {
    folder: PathBuf,
    files: &'static GroupFiles,
}

/// The names of files and fields in one version of control groups.
struct GroupFiles {
    limits: &'static [&'static str],
    usage: &'static str,
    /// Fields of `memory.stat` for memory that the kernel can reclaim.
    reclaimable: &'static [&'static str],
}

const VERSION_1: GroupFiles = GroupFiles {
    limits: &["memory.limit_in_bytes"],
    usage: "memory.usage_in_bytes",
    reclaimable: &["total_active_file", "total_inactive_file"],
};
const VERSION_2: GroupFiles = GroupFiles {
    limits: &["memory.max", "memory.high"],
    usage: "memory.current",
    reclaimable: &["active_file", "inactive_file", "slab_reclaimable"],
};

impl Group {
    /// Returns the group that a line of `/proc/self/cgroup` names and its ancestors, if the line
    /// belongs to the hierarchy that limits memory. In a container the path may be that of the
    /// host: a group that does not exist there has no limit.
    fn of(line: &str, root: &Path) -> Vec<Group> {
        let mut fields = line.splitn(3, ':').skip(1);
        let (Some(controllers), Some(own)) = (fields.next(), fields.next()) else {
            return Vec::new();
        };
        // Version 2 is mounted beside version 1 on some systems.
        let (roots, files) = match controllers {
            "" => (vec![root.to_owned(), root.join("unified")], &VERSION_2),
            _ if controllers.split(',').any(|one| one == "memory") => {
                (vec![root.join("memory")], &VERSION_1)
            }
            _ => return Vec::new(),
        };
        let mut groups = Vec::new();
        for root in roots {
            let own = root.join(own.trim_start_matches('/'));
            let around = own.ancestors().take_while(|folder| folder.starts_with(&root));
            groups.extend(around.map(|folder| Group { folder: folder.to_owned(), files }));
        }
        groups
    }

    fn read(&self, name: &str) -> Option<u64> {
        number(self.folder.join(name))
    }

    /// Returns the group's own limit, in bytes.
    fn limit(&self) -> Option<u64> {
        self.files.limits.iter().filter_map(|name| self.read(name)).min()
    }

    /// Returns the group's memory; `None` if the group has no limit of its own.
    fn memory(&self) -> Option<SystemMemory> {
        let total = self.limit()?;
        let used = self.read(self.files.usage)?;
        let stat = fs::read_to_string(self.folder.join("memory.stat")).unwrap_or_default();
        let fields = stat.lines().filter_map(|line| line.split_once(' '));
        let reclaimable: u64 = fields
            .filter(|(name, _)| self.files.reclaimable.contains(name))
            .filter_map(|(_, value)| value.parse::<u64>().ok())
            .sum();
        let available = total.saturating_sub(used.saturating_sub(reclaimable));
        Some(SystemMemory { total, available })
    }
}

/// Returns the time for which at least one task waited for memory, from a PSI file.
fn stalled_in(file: &Path) -> Option<Duration> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split(' ').find_map(|field| field.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}
