//! Conclusions from the facts about a host.

use forebay_core::units::format_size;

use super::host::{DriverState, Host};
use super::{Daemon, HostCheck, Level, Way};
use crate::process::Process;
use crate::sparse::Shortage;
use forebay_daemon::ring_remedy;

/// Bytes of the index for each cached block, rounded up; see `docs/sizing.md`.
const BYTES_PER_BLOCK: u64 = 11;
const BLOCK: u64 = 4096;
/// Files that a daemon with a thousand clients has open.
const FILES: u64 = 4096;

/// Returns the checks of the host.
pub(super) fn all(host: &Host) -> Vec<HostCheck> {
    vec![io_uring(host), idle(host), memory(host), files(host), service(host)]
}

fn io_uring(host: &Host) -> HostCheck {
    let name = "io_uring";
    let Err(error) = &host.ring else {
        let found = format!("works, Linux {}", host.release);
        return HostCheck { name, level: Level::Good, found, remedy: String::new() };
    };
    let found = format!("does not work here (Linux {}): {error}", host.release);
    let remedy = ring_remedy::remedy(host.ring_disabled).to_owned();
    HostCheck { name, level: Level::Missing, found, remedy }
}

/// Returns the major and minor number of a kernel's release.
fn version(release: &str) -> Option<(u32, u32)> {
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

fn idle(host: &Host) -> HostCheck {
    let name = "monitoring";
    if version(&host.release).is_some_and(|version| version >= (6, 15)) {
        let found = "an idle daemon counts as idle".to_owned();
        return HostCheck { name, level: Level::Good, found, remedy: String::new() };
    }
    let found = "before Linux 6.15 an idle daemon shows up as I/O wait".to_owned();
    let remedy = "ignore the I/O wait of its lanes; their CPUs are idle".to_owned();
    HostCheck { name, level: Level::Note, found, remedy }
}

fn memory(host: &Host) -> HostCheck {
    // Three quarters of the limit are for caches.
    let cache = host.memory / 4 * 3 / BYTES_PER_BLOCK * BLOCK;
    let found = format!(
        "the daemon takes at most {}, enough for a cache of {} with blocks of 4K",
        format_size(host.memory >> 20 << 20),
        format_size(cache >> 30 << 30)
    );
    let remedy = "larger ones take 'forebay daemon --memory-limit' or larger blocks".to_owned();
    HostCheck { name: "memory", level: Level::Good, found, remedy }
}

fn files(host: &Host) -> HostCheck {
    let name = "open files";
    if host.files >= FILES {
        let found = "enough may be open for a thousand clients".to_owned();
        return HostCheck { name, level: Level::Good, found, remedy: String::new() };
    }
    let found = format!("at most {} may be open", host.files);
    let remedy = "raise it for many clients: LimitNOFILE= of the service, or ulimit -n".to_owned();
    HostCheck { name, level: Level::Note, found, remedy }
}

fn service(host: &Host) -> HostCheck {
    let (level, found, remedy) = match host.service {
        Some(true) => (Level::Good, "starts at boot", ""),
        Some(false) => (Level::Note, "does not start at boot", "systemctl enable --now forebay"),
        None => {
            (Level::Note, "there is no systemd", "start 'forebay daemon' at boot by other means")
        }
    };
    HostCheck { name: "service", level, found: found.to_owned(), remedy: remedy.to_owned() }
}

/// Judges the daemon's answer.
pub(super) fn daemon(daemon: &Daemon) -> HostCheck {
    let name = "daemon";
    let own = env!("CARGO_PKG_VERSION");
    match daemon {
        Daemon::Answers { version, .. } if version == own => {
            let found = format!("runs, version {version}");
            HostCheck { name, level: Level::Good, found, remedy: String::new() }
        }
        Daemon::Answers { version, .. } => {
            let found = format!("runs version {version}, while this is {own}");
            let remedy = "restart it when no client is connected".to_owned();
            HostCheck { name, level: Level::Note, found, remedy }
        }
        Daemon::Fails(error) => {
            HostCheck { name, level: Level::Note, found: error.clone(), remedy: String::new() }
        }
        Daemon::Silent(silent) => {
            let (words, remedy) = silent.process.as_ref().map_or_else(
                || ("its process cannot be seen".to_owned(), "run this as root".to_owned()),
                Process::words,
            );
            let full = match silent.socket_is_full {
                true => "; its socket takes no more connections",
                false => "",
            };
            let found = format!("does not answer: {words}{full}");
            HostCheck { name, level: Level::Missing, found, remedy }
        }
    }
}

/// Judges the space for the files below volumes.
pub(super) fn space(shortages: &[Shortage]) -> HostCheck {
    let name = "space";
    if shortages.is_empty() {
        let found = "the files of all volumes fit into their filesystems".to_owned();
        return HostCheck { name, level: Level::Good, found, remedy: String::new() };
    }
    let found: Vec<String> = shortages.iter().map(Shortage::to_string).collect();
    HostCheck { name, level: Level::Note, found: found.join("; "), remedy: String::new() }
}

/// Returns the ways to use a volume, those that make the best block devices first.
pub(super) fn ways(host: &Host) -> Vec<Way> {
    vec![ublk(host), fuse(host), nbd_kernel(host), nbd(host), vhost_user(host)]
}

/// Returns the step that is missing before a driver can be used.
fn lack(device: DriverState, name: &str) -> Option<String> {
    match device {
        DriverState::Usable => None,
        DriverState::Loadable => Some(format!("modprobe {name}")),
        DriverState::Forbidden => Some("it takes root".to_owned()),
        DriverState::Absent => Some(format!("this kernel has no {name}")),
    }
}

/// Returns a way whose devices the daemon makes, which takes privileges.
fn made_by_daemon(name: &'static str, lacks: Option<String>, host: &Host) -> Way {
    let lacks = lacks.or_else(|| (!host.admin).then(|| "it takes CAP_SYS_ADMIN".to_owned()));
    let words = format!("forebay create ... --export {name}, then /dev/forebay/NAME");
    Way { name, works: lacks.is_none(), block_device: true, words: lacks.unwrap_or(words) }
}

fn ublk(host: &Host) -> Way {
    made_by_daemon("ublk", lack(host.ublk, "ublk_drv"), host)
}

fn fuse(host: &Host) -> Way {
    let lacks = lack(host.fuse, "fuse").or_else(|| lack(host.loops, "loop"));
    made_by_daemon("fuse", lacks, host)
}

fn nbd_kernel(host: &Host) -> Way {
    made_by_daemon("nbd-kernel", lack(host.nbd, "nbd"), host)
}

fn nbd(host: &Host) -> Way {
    let words = "qemu, nbdcopy, fio and others, at the URI that 'forebay create' prints".to_owned();
    Way { name: "nbd", works: host.ring.is_ok(), block_device: false, words }
}

fn vhost_user(host: &Host) -> Way {
    let words = if host.qemu {
        "for virtual machines: forebay create ... --export vhost-user=PATH"
    } else {
        "for virtual machines; no monitor for them is installed here"
    };
    let works = host.ring.is_ok() && host.qemu;
    Way { name: "vhost-user", works, block_device: false, words: words.to_owned() }
}

#[cfg(test)]
mod tests {
    use super::version;

    #[test]
    fn releases_have_two_numbers() {
        assert_eq!(version("6.12.9-amd64"), Some((6, 12)));
        assert_eq!(version("6.1-rc3"), Some((6, 1)));
        assert_eq!(version("6"), None);
        assert_eq!(version(""), None);
    }
}
