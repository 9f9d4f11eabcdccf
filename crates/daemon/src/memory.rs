//! The daemon's memory limit, and its use.

use forebay_admin::report::{DaemonMemory, MemoryUsed};
use forebay_admin::{ApiError, ErrorKind};
use forebay_core::units::format_size;
use forebay_host::memory::{System, SystemMemory, resident};
use forebay_lane::{MemoryBudget, MemoryUse, TooLow};

const MIB: u64 = 1 << 20;
/// Divisor: this part of the machine's memory must stay available when a tier is locked.
const KEPT_PART: u64 = 16;

/// Returns the requested limit, or the default: half of the machine's memory, or three quarters of
/// the control group's limit if that is less.
///
/// # Errors
/// The requested limit is too low. One above the memory of the machine is reduced to that, with a
/// warning, because a service must start on a machine that has become smaller.
pub fn limit(asked: Option<u64>) -> Result<u64, ApiError> {
    let least = MemoryBudget::LEAST;
    match asked {
        Some(limit) => {
            let most = there_is(&System::here()).max(least);
            if limit > most {
                tracing::warn!(
                    "--memory-limit: {} is more than this machine, or the control group of the daemon, has; the limit is {}M",
                    format_size(limit),
                    most / MIB
                );
            }
            possible("--memory-limit", limit.min(most), (least, most))
        }
        None => {
            let usual = usual(&System::here());
            if usual < least {
                tracing::warn!(
                    "this machine has little memory; the daemon may still use up to {} MiB",
                    least / MIB
                );
            }
            Ok(usual.max(least))
        }
    }
}

/// Returns the default of [`limit`] on this machine.
pub fn usual_limit() -> u64 {
    usual(&System::here()).max(MemoryBudget::LEAST)
}

/// Whether this many bytes can be the limit of a daemon on this machine.
pub fn is_memory_limit(bytes: u64) -> bool {
    (MemoryBudget::LEAST..=most()).contains(&bytes)
}

/// Returns the largest limit that a daemon can have on this machine.
pub(super) fn most() -> u64 {
    there_is(&System::here()).max(MemoryBudget::LEAST)
}

/// Returns a limit that an operator asks for with `option`, unless it is too low for any daemon or
/// more than the `most` bytes that there are. `least`: the lowest that this one takes now.
fn possible(option: &str, limit: u64, (least, most): (u64, u64)) -> Result<u64, ApiError> {
    let most = most.max(MemoryBudget::LEAST);
    let asked = format_size(limit);
    if limit < MemoryBudget::LEAST {
        let least = least.div_ceil(MIB);
        let message = format!("{asked} is too little; give at least {least}M");
        return Err(ApiError::invalid(option, message));
    }
    if limit > most {
        let message = format!(
            "{asked} is more than this machine, or the control group of the daemon, has; give at most {}M",
            most / MIB
        );
        return Err(ApiError::invalid(option, message));
    }
    Ok(limit)
}

/// Changes the limit until the daemon ends.
///
/// # Errors
/// The limit is too low, or higher than the memory that exists; nothing has changed then.
pub(super) fn set_limit(memory: &MemoryBudget, limit: u64) -> Result<(), ApiError> {
    let limit = possible("--limit", limit, (memory.least_limit(), most()))
        .map_err(|error| error.about("limit_bytes"))?;
    memory.set_limit(limit).map_err(|TooLow { held, least }| {
        let (held, least) = (held.div_ceil(MIB), least.div_ceil(MIB));
        let message = format!(
            "caches and RAM tiers hold {held} MiB, so the limit has to be {least} MiB or more: make RAM tiers smaller (forebay set NAME ram=SIZE), or stop volumes"
        );
        ApiError::new(ErrorKind::Refused, message)
    })?;
    tracing::info!("the memory limit is {} MiB now", limit / MIB);
    Ok(())
}

/// Refuses to lock `bytes` bytes if little memory would be left: the kernel would kill processes,
/// because it cannot reclaim locked memory.
///
/// # Errors
/// [`ErrorKind::Refused`].
pub(super) fn check_lock(bytes: u64) -> Result<(), ApiError> {
    lockable(bytes, System::here().machine())
}

fn lockable(bytes: u64, machine: Option<SystemMemory>) -> Result<(), ApiError> {
    let Some(SystemMemory { total, available }) = machine else { return Ok(()) };
    let most = available.saturating_sub(total / KEPT_PART);
    if bytes <= most {
        return Ok(());
    }
    let message = format!(
        "ram_lock: the RAM tier takes {} MiB, and only {} MiB of the machine's memory can be locked now; choose a smaller ram, or ram_lock=off",
        bytes.div_ceil(MIB),
        most / MIB
    );
    Err(ApiError::new(ErrorKind::Refused, message).about("ram_lock"))
}

/// Returns the limit and its use.
pub(super) fn report(memory: &MemoryBudget) -> DaemonMemory {
    // The memory of a simulation would differ from run to run.
    let resident = forebay_threads::Simulation::current().is_none().then(resident);
    DaemonMemory {
        limit_bytes: memory.limit(),
        used_bytes: used(memory),
        resident_bytes: resident.flatten().unwrap_or_default(),
    }
}

/// Returns the use of the limit.
fn used(memory: &MemoryBudget) -> MemoryUsed {
    MemoryUsed {
        process: memory.used(MemoryUse::Process),
        index: memory.used(MemoryUse::Index),
        policy: memory.used(MemoryUse::Policy),
        log_buffers: memory.used(MemoryUse::LogBuffers),
        background: memory.used(MemoryUse::Background),
        ram_devices: memory.used(MemoryUse::RamDevices),
        remote_devices: memory.used(MemoryUse::RemoteDevices),
        ram_tiers: memory.used(MemoryUse::RamTiers),
        connections: memory.used(MemoryUse::Connections),
        requests: memory.used(MemoryUse::Requests),
    }
}

fn usual(system: &System) -> u64 {
    let machine = system.machine().map_or(u64::MAX, |machine| machine.total);
    (machine / 2).min(system.group_limit().unwrap_or(u64::MAX) / 4 * 3)
}

/// Returns the memory of the machine, or of the control group if that is less, in bytes.
fn there_is(system: &System) -> u64 {
    let machine = system.machine().map(|machine| machine.total);
    machine.into_iter().chain(system.group_limit()).min().unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use forebay_testkit::TempDir;

    const GIB: u64 = 1 << 30;

    /// A machine of 8 GiB, with 1 GiB available, and these files below `/sys/fs/cgroup`.
    fn system<T>(own: &str, files: &[(&str, &str)], ask: impl Fn(&System) -> T) -> T {
        let folder = TempDir::new("memory");
        let (proc, groups) = (folder.path().join("proc"), folder.path().join("cgroup"));
        fs::create_dir_all(proc.join("self")).expect("folder");
        let meminfo = "MemTotal:        8388608 kB\nMemFree: 1 kB\nMemAvailable: 1048576 kB\n";
        fs::write(proc.join("meminfo"), meminfo).expect("file");
        fs::write(proc.join("self/cgroup"), own).expect("file");
        for (path, content) in files {
            let path = groups.join(path);
            fs::create_dir_all(path.parent().expect("a folder")).expect("folder");
            fs::write(path, content).expect("file");
        }
        ask(&System::of(&proc, &groups))
    }

    fn usual_with(own: &str, files: &[(&str, &str)]) -> u64 {
        system(own, files, usual)
    }

    #[test]
    fn the_usual_limit_heeds_the_machine_and_every_group() {
        assert_eq!(usual_with("0::/\n", &[]), 4 * GIB);
        let own = "0::/system.slice/forebay.service\n";
        let max = "system.slice/forebay.service/memory.max";
        assert_eq!(usual_with(own, &[(max, "max\n")]), 4 * GIB);
        assert_eq!(usual_with(own, &[(max, "4294967296\n")]), 3 * GIB);
        let high = "system.slice/forebay.service/memory.high";
        assert_eq!(usual_with(own, &[(max, "4294967296\n"), (high, "2147483648\n")]), 3 * GIB / 2);
        assert_eq!(usual_with(own, &[("system.slice/memory.max", "2147483648\n")]), 3 * GIB / 2);
        // Version 1, alone or together with version 2. In a container the root of version 1 is the
        // group.
        let own = "4:cpu,memory:/docker/abc\n0::/\n";
        let old = "memory/docker/abc/memory.limit_in_bytes";
        assert_eq!(usual_with(own, &[(old, "2147483648\n")]), 3 * GIB / 2);
        assert_eq!(
            usual_with(own, &[("memory/memory.limit_in_bytes", "1073741824\n")]),
            3 * GIB / 4
        );
        assert_eq!(usual_with(own, &[(old, "9223372036854771712\n")]), 4 * GIB);
    }

    #[test]
    fn too_little_and_more_than_there_is_are_refused() {
        let max = "system.slice/memory.max";
        let most = |files: &[_]| system("0::/system.slice/x\n", files, there_is);
        assert_eq!(most(&[]), 8 * GIB);
        assert_eq!(most(&[(max, "4294967296\n")]), 4 * GIB);
        assert_eq!(most(&[(max, "17179869184\n")]), 8 * GIB);
        for good in [MemoryBudget::LEAST, 8 * GIB] {
            assert_eq!(possible("--limit", good, (MemoryBudget::LEAST, 8 * GIB)), Ok(good));
        }
        let least = MemoryBudget::LEAST;
        assert!(possible("--limit", least, (least, 1)).is_ok(), "a daemon has to run");
        let error = possible("--limit", 1 << 20, (GIB, 8 * GIB)).expect_err("too little");
        assert!(error.message.contains("at least 1024M"), "what it takes now: {error}");
        for (bad, words) in [
            (100 << 20, "--limit: 100M is too little; give at least 256M"),
            (10 << 40, "--limit: 10T is more than this machine"),
            (10 << 40, "give at most 8192M"),
        ] {
            let error = possible("--limit", bad, (least, 8 * GIB)).expect_err(words);
            assert!(error.message.contains(words), "{error}");
        }
        let error = limit(Some(1 << 20)).expect_err("too little");
        assert!(error.to_string().contains("--memory-limit"), "{error}");
    }

    #[test]
    fn a_sixteenth_of_the_memory_is_not_locked() {
        let lock = |bytes| system("", &[], |system| lockable(bytes, system.machine()));
        assert_eq!(lock(GIB / 2), Ok(()));
        let error = lock(GIB / 2 + 1).expect_err("more");
        assert_eq!(error.kind, ErrorKind::Refused);
        assert!(error.message.contains("513 MiB, and only 512 MiB"), "{error}");
        assert_eq!(lockable(1 << 60, None), Ok(()));
    }
}
