//! Memory pressure: when the RAM tiers give memory back to the system, and when they take it again.
//!
//! Twice a second this reads how long tasks have stalled for want of memory (PSI: of the machine, and
//! of the daemon's control group where that has a file of its own) and how much memory is available.
//! Tiers shrink before the machine swaps, and grow again slowly, so that the two do not alternate.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Time between two looks.
pub(super) const INTERVAL: Duration = Duration::from_millis(500);

/// Memory is short while tasks stall for a larger part of the time than this.
const STALLED: f64 = 0.1;
/// Memory is short while less than this part of it is available.
const LEAST_AVAILABLE: f64 = 0.03;
/// Tiers grow while at least this part of memory is available.
const ENOUGH_AVAILABLE: f64 = 0.1;
/// Looks without a shortage before tiers grow, and between two steps of growth.
const CALM: (u32, u32) = (60, 10);
/// Parts of a tier's size: the least that it keeps, and one step of growth.
const LEAST_PART: u64 = 16;
const GROWTH_PART: u64 = 8;

/// The state of the system's memory at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Sample {
    /// Time that tasks have stalled so far, at the machine or in the daemon's control group.
    stalled: Duration,
    /// The part of memory that is available.
    available: f64,
}

/// Watches the system's memory.
pub(super) struct Pressure {
    proc: PathBuf,
    /// Files with the time stalled.
    stalls: Vec<PathBuf>,
    last: Option<Sample>,
    /// Looks since memory was last short.
    calm: u32,
}

/// What RAM tiers are to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Advice {
    /// Give half of their memory back.
    Shrink,
    /// Take some memory again.
    Grow,
    /// Nothing.
    Stay,
}

impl Advice {
    /// Returns the room, in bytes, for a tier of this size that has this much at the moment.
    pub(super) fn room(self, size: u64, now: u64) -> u64 {
        match self {
            Advice::Shrink => (now / 2).max(size / LEAST_PART).min(now),
            Advice::Grow => now.saturating_add(size / GROWTH_PART).min(size),
            Advice::Stay => now,
        }
    }
}

impl Pressure {
    /// Watches this system.
    pub(super) fn new() -> Self {
        Self::of(Path::new("/proc"), Path::new("/sys/fs/cgroup"))
    }

    fn of(proc: &Path, groups: &Path) -> Self {
        let own = fs::read_to_string(proc.join("self/cgroup")).unwrap_or_default();
        let own = own.lines().find_map(|line| line.strip_prefix("0::")).unwrap_or("/");
        let group = groups.join(own.trim_start_matches('/')).join("memory.pressure");
        let stalls = vec![proc.join("pressure/memory"), group];
        Pressure { proc: proc.to_owned(), stalls, last: None, calm: 0 }
    }

    /// Looks again, [`INTERVAL`] after the last look.
    pub(super) fn look(&mut self) -> Advice {
        let now = self.sample();
        let before = self.last.replace(now).unwrap_or(now);
        let stalled = now.stalled.saturating_sub(before.stalled).as_secs_f64();
        if stalled > STALLED * INTERVAL.as_secs_f64() || now.available < LEAST_AVAILABLE {
            self.calm = 0;
            return Advice::Shrink;
        }
        self.calm = self.calm.saturating_add(1);
        let (before_growth, between) = CALM;
        let due = self.calm >= before_growth && (self.calm - before_growth).is_multiple_of(between);
        if due && now.available >= ENOUGH_AVAILABLE { Advice::Grow } else { Advice::Stay }
    }

    /// Reads the files. What cannot be read counts as no shortage.
    fn sample(&self) -> Sample {
        let stalled = self.stalls.iter().filter_map(|file| stalled(file)).max();
        let available = available(&self.proc.join("meminfo")).unwrap_or(1.0);
        Sample { stalled: stalled.unwrap_or_default(), available }
    }
}

/// Returns for how long some task had to wait for memory, from a PSI file.
fn stalled(file: &Path) -> Option<Duration> {
    let text = fs::read_to_string(file).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    let total = line.split(' ').find_map(|field| field.strip_prefix("total="))?;
    Some(Duration::from_micros(total.parse().ok()?))
}

/// Returns the part of memory that is available.
fn available(meminfo: &Path) -> Option<f64> {
    let text = fs::read_to_string(meminfo).ok()?;
    let field = |name: &str| -> Option<f64> {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        line.trim().strip_suffix("kB")?.trim().parse().ok()
    };
    Some(field("MemAvailable:")? / field("MemTotal:")?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::testing::TempDir;

    /// A system of which a test writes the files.
    struct System {
        folder: TempDir,
        pressure: Pressure,
        stalled: u64,
    }

    impl System {
        fn new() -> Self {
            let folder = TempDir::new("pressure");
            let (proc, groups) = (folder.path().join("proc"), folder.path().join("cgroup"));
            fs::create_dir_all(proc.join("pressure")).expect("folder");
            fs::create_dir_all(proc.join("self")).expect("folder");
            fs::create_dir_all(groups.join("system.slice/forebay")).expect("folder");
            fs::write(proc.join("self/cgroup"), "0::/system.slice/forebay\n").expect("file");
            let pressure = Pressure::of(&proc, &groups);
            System { folder, pressure, stalled: 7 }
        }

        /// Looks after tasks have stalled for this time, with a part of memory available.
        fn look(&mut self, stalled: u64, percent: u64, file: &str) -> Advice {
            self.stalled += stalled * 1000;
            let psi = format!(
                "some avg10=0.00 avg60=0.00 avg300=0.00 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
                self.stalled
            );
            fs::write(self.folder.path().join(file), psi).expect("file");
            let memory = format!("MemTotal: 1000 kB\nMemAvailable:  {} kB\n", percent * 10);
            fs::write(self.folder.path().join("proc/meminfo"), memory).expect("file");
            self.pressure.look()
        }
    }

    #[test]
    fn memory_is_short_when_tasks_stall_or_little_is_available() {
        for file in ["proc/pressure/memory", "cgroup/system.slice/forebay/memory.pressure"] {
            let mut system = System::new();
            assert_eq!(system.look(90_000, 50, file), Advice::Stay, "before the first look");
            assert_eq!(system.look(40, 50, file), Advice::Stay);
            assert_eq!(system.look(60, 50, file), Advice::Shrink);
            assert_eq!(system.look(0, 50, file), Advice::Stay);
            assert_eq!(system.look(0, 2, file), Advice::Shrink);
        }
    }

    #[test]
    fn tiers_grow_step_by_step_once_memory_has_been_there_for_a_while() {
        let file = "proc/pressure/memory";
        let mut system = System::new();
        system.look(0, 2, file);
        let advice: Vec<Advice> = (0..100).map(|_| system.look(0, 50, file)).collect();
        let grows: Vec<usize> = (0..100).filter(|at| advice[*at] == Advice::Grow).collect();
        assert_eq!(grows, [59, 69, 79, 89, 99]);
        assert!((0..20).all(|_| system.look(0, 9, file) == Advice::Stay));
    }

    #[test]
    fn without_the_files_nothing_happens() {
        let mut pressure = Pressure::of(Path::new("/nowhere"), Path::new("/nowhere"));
        assert!((0..50).all(|_| pressure.look() == Advice::Stay));
    }

    #[test]
    fn half_is_given_back_at_a_time_and_some_is_kept() {
        assert_eq!(Advice::Shrink.room(1600, 1600), 800);
        assert_eq!(Advice::Shrink.room(1600, 150), 100);
        assert_eq!(Advice::Shrink.room(1600, 40), 40);
        assert_eq!(Advice::Grow.room(1600, 100), 300);
        assert_eq!(Advice::Grow.room(1600, 1500), 1600);
        assert_eq!(Advice::Stay.room(1600, 700), 700);
    }
}
