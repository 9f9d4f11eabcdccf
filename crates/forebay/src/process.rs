//! The state of a process that does not answer, as the kernel reports it. Asks nothing of the
//! process itself.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::num::NonZeroU32;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_host::files::{numbers, text};
use forebay_host::processes::pids;
use forebay_host::sysfs;
use rustix::io::Errno;
use rustix::net::{self, AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::Serialize;

/// A process, at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Process {
    /// Its number.
    pub(crate) pid: u32,
    /// Its state.
    pub(crate) state: State,
    /// Its threads, in the order of their numbers.
    pub(crate) threads: Vec<Thread>,
    /// Block devices that it has open and on which requests are in flight, its own or those of
    /// others.
    pub(crate) busy_devices: Vec<BusyDevice>,
}

/// The state of a thread, as `ps` has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum State {
    Running,
    Sleeping,
    /// In state D: in a system call that no signal ends.
    Uninterruptible,
    /// By SIGSTOP or the like.
    Stopped,
    /// By a debugger.
    Traced,
    /// It has ended, and its parent has not noticed.
    Ended,
    Other,
}

impl State {
    fn of(letter: &str) -> Self {
        match letter {
            "R" => State::Running,
            "S" | "I" => State::Sleeping,
            "D" => State::Uninterruptible,
            "T" => State::Stopped,
            "t" => State::Traced,
            "Z" | "X" => State::Ended,
            _ => State::Other,
        }
    }

    fn words(self) -> &'static str {
        match self {
            State::Running => "runs",
            State::Sleeping => "sleeps",
            State::Uninterruptible => "waits in state D",
            State::Stopped => "is stopped",
            State::Traced => "is stopped by a debugger",
            State::Ended => "has ended",
            State::Other => "is in an unknown state",
        }
    }
}

/// A thread of a process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Thread {
    /// Its number.
    pub(crate) tid: u32,
    /// Its name.
    pub(crate) name: String,
    /// Its state.
    pub(crate) state: State,
    /// The function of the kernel in which it waits; empty: none, or the kernel does not tell.
    pub(crate) waits_in: String,
    /// The file or device that its system call is about, if that can be seen.
    pub(crate) about: Option<PathBuf>,
}

/// A block device on which requests are in flight.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct BusyDevice {
    /// Its path.
    pub(crate) path: PathBuf,
    /// Number of requests in flight.
    pub(crate) in_flight: u64,
}

/// System calls whose first argument is a descriptor, and which may wait for a device.
const ABOUT_A_FILE: [i64; 12] = [
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_ioctl,
    libc::SYS_close,
];

/// Connects without waiting.
fn knock(socket: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let made = net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    net::connect(&made, &SocketAddrUnix::new(socket)?)?;
    Ok(made)
}

/// Returns the process that listens at a socket, as far as this user may see it.
pub(crate) fn listening_at(socket: &Path) -> Option<u32> {
    match knock(socket) {
        Ok(connected) => peer(connected),
        // Nothing tells a client that is not connected: the table of sockets has the inode, and one
        // process has that open.
        Err(_) => {
            let table = fs::read_to_string("/proc/net/unix").ok()?;
            let inode = listener_in(&table, &std::path::absolute(socket).ok()?)?;
            holder_of(&format!("socket:[{inode}]"))
        }
    }
}

/// Returns the process at the other end of a connection; `None`: it cannot be seen from this
/// namespace.
pub(crate) fn peer(connected: impl AsFd) -> Option<u32> {
    forebay_device::peer_process(connected).map(NonZeroU32::get)
}

/// Whether a socket takes no more connections, because too many have not been accepted.
pub(crate) fn is_full(socket: &Path) -> bool {
    knock(socket).err() == Some(Errno::AGAIN)
}

/// Returns the inode of the listening socket at a path, in the kernel's table of sockets.
fn listener_in(table: &str, path: &Path) -> Option<u64> {
    // Number, count, protocol, flags (that of a listener), type, state, inode, path.
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let [_, _, _, flags, _, _, inode, named, ..] = fields[..] else { return None };
        (flags == "00010000" && Path::new(named) == path).then(|| inode.parse().ok())?
    })
}

fn holder_of(file: &str) -> Option<u32> {
    pids().into_iter().find(|pid| {
        let open = fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        open.into_iter()
            .any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(file)))
    })
}

impl Process {
    /// Looks at a process; `None`: there is none.
    pub(crate) fn look(pid: u32) -> Option<Self> {
        let dir = PathBuf::from(format!("/proc/{pid}"));
        let mut process = Process::read(&dir, pid)?;
        process.busy_devices = busy_devices(&dir);
        Some(process)
    }

    /// Reads its directory.
    fn read(dir: &Path, pid: u32) -> Option<Self> {
        let (_, state) = stat(&dir.join("stat"))?;
        let threads = numbers(dir.join("task"), "").into_iter();
        let threads = threads.filter_map(|tid| Thread::read(dir, tid)).collect();
        Some(Process { pid, state, threads, busy_devices: Vec::new() })
    }

    /// Returns its state and the remedy, in words.
    pub(crate) fn words(&self) -> (String, String) {
        let pid = self.pid;
        let stuck: Vec<&Thread> =
            self.threads.iter().filter(|it| it.state == State::Uninterruptible).collect();
        let mut found = format!("pid {pid} {}", self.state.words());
        let stopped = matches!(self.state, State::Stopped | State::Traced);
        let other = self.threads.iter().filter(|it| !stopped || it.state != self.state);
        for (thread, count) in grouped(other) {
            found.push_str("; ");
            found.push_str(&thread);
            if count > 1 {
                found.push_str(&format!(" ({count} of them)"));
            }
        }
        for BusyDevice { path, in_flight } in &self.busy_devices {
            found.push_str(&format!("; {in_flight} requests are in flight on {}", path.display()));
        }
        let remedy = if self.state == State::Stopped {
            format!("'kill -CONT {pid}' continues it")
        } else if self.state == State::Traced {
            "continue it in the debugger, or detach the debugger".to_owned()
        } else if let Some(thread) = stuck.first() {
            let on = thread
                .about
                .as_ref()
                .map_or("the device or file system".into(), |path| path.to_string_lossy());
            format!("see why {on} does not answer (dmesg); the daemon continues as soon as it does")
        } else {
            format!(
                "see its log; 'gdb -p {pid}' or /proc/{pid}/task/*/stack show where its threads are"
            )
        };
        (found, remedy)
    }
}

/// Returns words for threads, those that are alike together.
fn grouped<'a>(threads: impl Iterator<Item = &'a Thread>) -> Vec<(String, usize)> {
    let mut groups: BTreeMap<String, usize> = BTreeMap::new();
    for thread in threads {
        *groups.entry(thread.words()).or_default() += 1;
    }
    // Those first that hold up others.
    let mut groups: Vec<_> = groups.into_iter().collect();
    groups.sort_by_key(|(words, _)| !words.contains(State::Uninterruptible.words()));
    groups
}

impl Thread {
    fn read(process: &Path, tid: u32) -> Option<Self> {
        let dir = process.join(format!("task/{tid}"));
        let (name, state) = stat(&dir.join("stat"))?;
        let text = |file: &str| fs::read_to_string(dir.join(file)).unwrap_or_default();
        let waits_in = text("wchan").trim_start_matches('0').to_owned();
        let about = match state {
            State::Uninterruptible | State::Sleeping => descriptor(&text("syscall")),
            _ => None,
        };
        let about = about.and_then(|fd| fs::read_link(process.join(format!("fd/{fd}"))).ok());
        Some(Thread { tid, name, state, waits_in, about })
    }

    fn words(&self) -> String {
        let mut words = format!("{} {}", self.name, self.state.words());
        if !self.waits_in.is_empty() {
            words.push_str(&format!(" in {}", self.waits_in));
        }
        if let Some(about) = &self.about {
            words.push_str(&format!(" for {}", about.display()));
        }
        words
    }
}

/// Returns name and state in a file `stat`. The name may contain anything.
fn stat(path: &Path) -> Option<(String, State)> {
    let bytes = fs::read(path).ok()?;
    let text = String::from_utf8_lossy(&bytes);
    let (head, rest) = text.rsplit_once(')')?;
    let (_, name) = head.split_once('(')?;
    Some((name.to_owned(), State::of(rest.split_ascii_whitespace().next()?)))
}

/// Returns the descriptor that a system call is about, as `/proc/PID/task/TID/syscall` has it.
fn descriptor(syscall: &str) -> Option<u32> {
    let mut words = syscall.split_ascii_whitespace();
    let number: i64 = words.next()?.parse().ok()?;
    ABOUT_A_FILE.contains(&number).then_some(())?;
    u32::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok()
}

fn busy_devices(process: &Path) -> Vec<BusyDevice> {
    let open = fs::read_dir(process.join("fd")).into_iter().flatten().flatten();
    let paths: BTreeSet<PathBuf> = open.filter_map(|it| fs::read_link(it.path()).ok()).collect();
    let busy = paths.into_iter().filter(|path| path.starts_with("/dev")).filter_map(|path| {
        let found = fs::metadata(&path).ok().filter(|it| it.file_type().is_block_device())?;
        let counts = text(sysfs::of_number(found.rdev()).join("inflight"))?;
        let in_flight =
            counts.split_ascii_whitespace().filter_map(|it| it.parse::<u64>().ok()).sum();
        (in_flight > 0).then_some(BusyDevice { path, in_flight })
    });
    busy.collect()
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;
    use forebay_testkit::TempDir;

    /// Writes the files that `/proc` has for a thread.
    fn thread(process: &Path, tid: u32, stat: &str, wchan: &str, syscall: &str) {
        let dir = process.join(format!("task/{tid}"));
        fs::create_dir_all(&dir).expect("writable");
        for (file, text) in [("stat", stat), ("wchan", wchan), ("syscall", syscall)] {
            fs::write(dir.join(file), text).expect("writable");
        }
    }

    #[test]
    fn a_thread_in_state_d_is_named_with_its_place_and_its_file() {
        let dir = TempDir::new("process");
        let process = dir.path();
        fs::create_dir_all(process.join("fd")).expect("writable");
        std::os::unix::fs::symlink("/mnt/nfs/origin", process.join("fd/17")).expect("writable");
        fs::write(process.join("stat"), "7 (fore) bay) S 1 2").expect("writable");
        let fsync = format!("{} 0x11 0x0 0x0 0x7ffd 0x7f", libc::SYS_fsync);
        thread(process, 7, "7 (fore) bay) S 1 2", "futex_do_wait", "running");
        thread(process, 8, "8 (lane-0) D 1 2", "nfs_wait_bit_killable", &fsync);
        thread(process, 9, "9 (device) S 1 2", "0", "202 0x11 0x0");
        thread(process, 10, "10 (device) S 1 2", "0", "-1 0x7ffd 0x7f");
        let found = Process::read(process, 7).expect("it is there");
        let (words, remedy) = found.words();
        assert_eq!(
            words,
            "pid 7 sleeps; lane-0 waits in state D in nfs_wait_bit_killable for /mnt/nfs/origin; \
             device sleeps (2 of them); fore) bay sleeps in futex_do_wait"
        );
        assert!(remedy.contains("/mnt/nfs/origin"), "{remedy}");
        fs::write(process.join("stat"), "7 (forebay) T 1 2").expect("writable");
        thread(process, 9, "9 (device) T 1 2", "do_signal_stop", "");
        let (words, remedy) = Process::read(process, 7).expect("it is there").words();
        assert!(words.starts_with("pid 7 is stopped; lane-0 waits in state D"), "{words}");
        assert!(!words.contains("do_signal_stop"), "{words}");
        assert!(remedy.contains("kill -CONT 7"), "{remedy}");
        assert_eq!(Process::read(&process.join("absent"), 7), None);
    }

    #[test]
    fn a_listener_is_found_even_if_it_takes_no_connections() {
        let dir = TempDir::new("process-listener");
        let path = dir.path().join("s");
        assert_eq!((listening_at(&path), is_full(&path)), (None, false));
        let listener = UnixListener::bind(&path).expect("free");
        rustix::net::listen(&listener, 0).expect("possible");
        let own = Some(std::process::id());
        assert_eq!(listening_at(&path), own);
        let mut waiting = Vec::new();
        while !is_full(&path) {
            waiting.push(UnixStream::connect(&path).expect("there is room"));
        }
        assert_eq!(listening_at(&path), own);
        let own = Process::look(std::process::id()).expect("it runs");
        assert!(own.threads.iter().any(|thread| thread.state == State::Running));
    }
}
