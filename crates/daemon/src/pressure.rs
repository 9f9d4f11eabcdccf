//! Memory pressure: determines when the RAM tiers return memory to the system, and when they take
//! it again.
//!
//! Four times a second this reads how much memory is available and how long tasks have stalled for
//! lack of it (PSI), for the machine and for the daemon's control group. Tiers shrink before the
//! machine swaps or the group reaches its limit, and grow again slowly, so that the two do not
//! alternate.

use std::collections::VecDeque;
use std::time::Duration;

use forebay_host::memory::{System, SystemMemory};

/// Time between two looks.
pub(super) const INTERVAL: Duration = Duration::from_millis(250);

/// Number of checks over which stalls are summed, and the sum from which on memory is short. A
/// tenth of the time is also the threshold at which systemd asks services to release their caches.
const WINDOW: (usize, Duration) = (4, Duration::from_millis(100));
/// Memory is short if less than this part of it, or less than this number of bytes, is available,
/// whichever is smaller.
const LEAST_AVAILABLE: (u64, u64) = (16, 1 << 30);
/// Number of checks without a shortage before tiers grow, and between two steps of growth.
const CALM: (u32, u32) = (120, 20);
/// Divisors of a tier's size: for the least size that it keeps, and for the least amount that it
/// returns at once, which is also the most that it grows at once.
const LEAST_PART: u64 = 16;
const STEP_PART: u64 = 8;

fn least(memory: SystemMemory) -> u64 {
    let (part, most) = LEAST_AVAILABLE;
    (memory.total / part).min(most)
}

fn is_short(memory: SystemMemory) -> bool {
    memory.available < least(memory)
}

/// Returns whether so much memory is available that returning some would not help stalled tasks,
/// which may stall because of the limit of another control group.
fn is_ample(memory: SystemMemory) -> bool {
    memory.available >= 4 * least(memory)
}

/// Returns the number of bytes available beyond the reserve that a shortage restores; negative if
/// some are missing.
fn spare(memory: SystemMemory) -> i64 {
    let reserve = 2 * least(memory);
    memory.available.min(i64::MAX as u64) as i64 - reserve as i64
}

/// Watches the system's memory.
pub(super) struct Pressure {
    system: System,
    /// Total time that tasks had stalled, at each of the last checks since memory was last short.
    stalled: VecDeque<Duration>,
    /// Number of checks since memory was last short.
    calm: u32,
}

/// Advice to RAM tiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Give memory back, at least this many bytes together.
    Shrink(u64),
    /// Take memory again, at most this many bytes together.
    Grow(u64),
    /// No change.
    Stay,
}

impl Advice {
    /// Returns the room, in bytes, for a tier of this size that has `now` bytes at present; `all`
    /// is the sum of the sizes of all tiers.
    pub(super) fn room(self, size: u64, now: u64, all: u64) -> u64 {
        let share =
            |bytes: u64| (u128::from(bytes) * u128::from(size) / u128::from(all.max(1))) as u64;
        match self {
            Advice::Shrink(bytes) => {
                let less = share(bytes).max(size / STEP_PART);
                now.saturating_sub(less).max(size / LEAST_PART).min(now)
            }
            Advice::Grow(bytes) => now.saturating_add(share(bytes).min(size / STEP_PART)).min(size),
            Advice::Stay => now,
        }
    }
}

impl Pressure {
    /// Watches a system.
    pub(super) fn new(system: System) -> Self {
        Pressure { system, stalled: VecDeque::new(), calm: 0 }
    }

    /// Checks again, [`INTERVAL`] after the last check. An unreadable value counts as no shortage.
    pub(super) fn look(&mut self) -> Advice {
        let machine = self.system.machine();
        let is_ample = machine.is_some_and(is_ample);
        let memories: Vec<SystemMemory> = machine.into_iter().chain(self.system.groups()).collect();
        let spare = memories.iter().copied().map(spare).min().unwrap_or(0);
        if self.has_stalled(is_ample) || memories.iter().copied().any(is_short) {
            self.calm = 0;
            self.stalled.clear();
            return Advice::Shrink(spare.min(0).unsigned_abs());
        }
        self.calm = self.calm.saturating_add(1);
        let (before_growth, between) = CALM;
        let due = self.calm >= before_growth && (self.calm - before_growth).is_multiple_of(between);
        if due && spare > 0 { Advice::Grow(spare.unsigned_abs()) } else { Advice::Stay }
    }

    /// Reads how long tasks have stalled in the daemon's groups and, unless its memory is ample, on
    /// the machine.
    fn has_stalled(&mut self, is_ample: bool) -> bool {
        let now = self.system.stalled(!is_ample);
        let (looks, most) = WINDOW;
        self.stalled.push_back(now);
        if self.stalled.len() > looks + 1 {
            self.stalled.pop_front();
        }
        let before = self.stalled.front().copied().unwrap_or(now);
        now.saturating_sub(before) > most
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use forebay_testkit::TempDir;

    const MIB: u64 = 1 << 20;
    const ENOUGH: u64 = 3999;

    /// A system with 16,000 MiB whose files a test writes.
    struct Machine {
        folder: TempDir,
        pressure: Pressure,
        stalled: u64,
    }

    impl Machine {
        fn new(groups: &str) -> Self {
            let folder = TempDir::new("pressure");
            let (proc, root) = (folder.path().join("proc"), folder.path().join("cgroup"));
            for place in ["proc/pressure", "proc/self", "cgroup/a.slice/b", "cgroup/memory/a/b"] {
                fs::create_dir_all(folder.path().join(place)).expect("folder");
            }
            fs::write(proc.join("self/cgroup"), groups).expect("file");
            let pressure = Pressure::new(System::of(&proc, &root));
            Machine { folder, pressure, stalled: 7 }
        }

        fn write(&self, file: &str, text: &str) {
            fs::write(self.folder.path().join(file), text).expect("file");
        }

        /// Checks with so many MiB available, after tasks have stalled for so many milliseconds.
        fn look(&mut self, stalled: u64, available: u64, file: &str) -> Advice {
            self.stalled += stalled * 1000;
            self.write(
                file,
                &format!("some avg10=0.00 total={}\nfull avg10=0.00 total=0\n", self.stalled),
            );
            let (total, available) = (16_000 * 1024, available * 1024);
            self.write(
                "proc/meminfo",
                &format!("MemTotal: {total} kB\nMemAvailable:  {available} kB\n"),
            );
            self.pressure.look()
        }

        fn see(&mut self, available: u64) -> Advice {
            self.look(0, available, "proc/pressure/memory")
        }
    }

    #[test]
    fn memory_is_short_when_tasks_stall_for_100_ms_of_a_second() {
        for file in [
            "proc/pressure/memory",
            "cgroup/a.slice/b/memory.pressure",
            "cgroup/a.slice/memory.pressure",
        ] {
            let mut system = Machine::new("0::/a.slice/b\n");
            assert_eq!(system.look(90_000, ENOUGH, file), Advice::Stay, "before the first look");
            for stalled in [25; 40].into_iter().chain([0, 0, 0, 5, 5, 80, 10]) {
                assert_eq!(system.look(stalled, ENOUGH, file), Advice::Stay);
            }
            assert_eq!(system.look(12, ENOUGH, file), Advice::Shrink(0));
            assert_eq!(system.look(1, ENOUGH, file), Advice::Stay, "the stalls count once");
        }
    }

    #[test]
    fn tasks_that_stall_beside_ample_memory_are_not_helped() {
        let mut system = Machine::new("0::/a.slice/b\n");
        for _ in 0..20 {
            assert_eq!(system.look(200, 4000, "proc/pressure/memory"), Advice::Stay);
        }
        let own = "cgroup/a.slice/memory.pressure";
        let advice: Vec<Advice> = (0..5).map(|_| system.look(200, 4000, own)).collect();
        assert!(advice.contains(&Advice::Shrink(0)), "{advice:?}");
    }

    #[test]
    fn memory_is_short_below_a_sixteenth_but_at_most_a_gibibyte() {
        let mut system = Machine::new("");
        assert_eq!(system.see(1000), Advice::Stay);
        assert_eq!(system.see(999), Advice::Shrink(1001 * MIB));
        let large = SystemMemory { total: 1 << 40, available: 1 << 30 };
        assert!(!is_short(large));
        assert!(is_short(SystemMemory { available: (1 << 30) - 1, ..large }));
    }

    #[test]
    fn outer_cgroups_count_and_reclaimable_memory_is_available() {
        let mut system = Machine::new("0::/a.slice/b\n");
        system.write("cgroup/a.slice/b/memory.max", "max\n");
        system.write("cgroup/a.slice/memory.max", "max\n");
        system.write("cgroup/a.slice/memory.high", "1600000000\n");
        system.write("cgroup/a.slice/memory.current", "1590000000\n");
        let stat = |file| {
            format!("anon 1\nactive_file {file}\ninactive_file 5000000\nslab_reclaimable 5000000\n")
        };
        system.write("cgroup/a.slice/memory.stat", &stat(80_000_000));
        assert_eq!(system.see(ENOUGH), Advice::Stay);
        system.write("cgroup/a.slice/memory.stat", &stat(79_999_999));
        assert_eq!(system.see(ENOUGH), Advice::Shrink(100_000_001));
    }

    #[test]
    fn groups_of_version_1_count_as_well() {
        let mut system = Machine::new("3:cpu:/elsewhere\n2:hugetlb,memory:/a/b\n0::/\n");
        system.write("cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
        system.write("cgroup/memory/memory.usage_in_bytes", "1000\n");
        system.write("cgroup/memory/a/b/memory.limit_in_bytes", "160000000\n");
        system.write("cgroup/memory/a/b/memory.usage_in_bytes", "155000000\n");
        system.write(
            "cgroup/memory/a/b/memory.stat",
            "active_file 9\ntotal_active_file 1\ntotal_inactive_file 1000000\n",
        );
        assert_eq!(system.see(ENOUGH), Advice::Shrink(20_000_000 - 6_000_001));
    }

    #[test]
    fn tiers_grow_step_by_step_into_what_has_been_spare_for_a_while() {
        let mut system = Machine::new("");
        system.see(100);
        let advice: Vec<Advice> = (0..200).map(|_| system.see(2100)).collect();
        let grows: Vec<usize> = (0..200).filter(|at| advice[*at] != Advice::Stay).collect();
        assert_eq!(grows, [119, 139, 159, 179, 199]);
        assert_eq!(advice[199], Advice::Grow(100 * MIB));
        assert!((0..40).all(|_| system.see(2000) == Advice::Stay), "nothing is spare");
    }

    #[test]
    fn without_the_files_nothing_happens() {
        let nowhere = std::path::Path::new("/nowhere");
        let mut pressure = Pressure::new(System::of(nowhere, nowhere));
        assert!((0..200).all(|_| pressure.look() == Advice::Stay));
    }

    #[test]
    fn tiers_share_what_is_given_back_and_keep_some() {
        assert_eq!(Advice::Shrink(0).room(1600, 1600, 3200), 1400);
        assert_eq!(Advice::Shrink(1000).room(1600, 1600, 3200), 1100);
        assert_eq!(Advice::Shrink(u64::MAX).room(1600, 1600, 1600), 100);
        assert_eq!(Advice::Shrink(0).room(1600, 40, 1600), 40);
        assert_eq!(Advice::Grow(1 << 40).room(1600, 100, 3200), 300);
        assert_eq!(Advice::Grow(100).room(1600, 100, 3200), 150);
        assert_eq!(Advice::Grow(1 << 40).room(1600, 1500, 1600), 1600);
        assert_eq!(Advice::Stay.room(1600, 700, 1600), 700);
    }
}
