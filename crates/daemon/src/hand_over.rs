//! Replaces the program of the daemon's process without disconnecting clients.
//!
//! The process executes the new program itself: process, privileges, control group and service stay
//! unchanged, and descriptors that are not closed stay open. The front ends pass their clients on
//! as descriptors with labels (see [`HandedOver`]); the caches are closed in order and opened
//! again. The list of descriptors is in a file in memory, whose descriptor is named by
//! [`VARIABLE`].

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ErrorKind};
use forebay_device::inherited::inherit;
use forebay_engine::HandedOver;
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::io::{FdFlags, fcntl_setfd};
use serde::{Deserialize, Serialize};

/// The version of the list, which [`VERB`] prints. A program with another version cannot take over.
/// Since version 2 the program is executed with its signals blocked (see
/// [`super::signals::block`]). Since version 3 it can be asked to check options and state (see
/// [`super::checking`]), and serves exactly the volumes that were handed over, not others with
/// their names.
pub const VERSION: u32 = 3;

/// The environment variable with the number of the descriptor of the list.
const VARIABLE: &str = "FOREBAY_HAND_OVER";

/// The hidden verb with which a program prints the version of the list that it reads.
pub const VERB: &str = "hand-over-version";

/// Time limit for a program to print the version.
const ANSWERING: Duration = Duration::from_secs(10);

/// The parts that each front end hands over, by the name of the front end.
pub(crate) type Items = BTreeMap<String, Vec<HandedOver>>;

/// The parts that the previous program of this process has handed over.
#[derive(Default)]
pub(crate) struct InheritedParts {
    /// Number of previous programs in this process; 0 if nothing was handed over.
    pub(crate) hand_overs: u64,
    /// The admin socket and the lock of its path.
    pub(crate) socket: Option<LeftSocket>,
    /// The lock of the state directory.
    pub(crate) state_lock: Option<OwnedFd>,
    /// The memory limit in force, in bytes.
    pub(crate) memory_limit: Option<u64>,
    /// Number of lines that are missing in the log.
    pub(crate) log_missing: u64,
    /// The front ends' descriptors.
    pub(crate) items: Items,
}

/// A listening unix socket for the next program.
pub(crate) struct LeftSocket {
    pub(crate) listener: Arc<OwnedFd>,
    /// The lock of the socket's path.
    pub(crate) lock: Arc<OwnedFd>,
    /// Device and inode of the socket's path.
    pub(crate) identity: (u64, u64),
}

/// The parts that this program hands over.
pub(crate) struct HandOverParts {
    /// Number of programs in this process before the present one.
    pub(crate) hand_overs: u64,
    pub(crate) socket: LeftSocket,
    pub(crate) state_lock: OwnedFd,
    pub(crate) memory_limit: u64,
    pub(crate) log_missing: u64,
    pub(crate) items: Items,
}

/// The list.
#[derive(Serialize, Deserialize)]
struct List {
    version: u32,
    hand_overs: u64,
    socket: [RawFd; 2],
    socket_identity: (u64, u64),
    state_lock: RawFd,
    memory_limit: u64,
    /// Absent in lists of earlier programs.
    #[serde(default)]
    log_missing: u64,
    front_ends: BTreeMap<String, Vec<Item>>,
}

/// See [`HandedOver`].
#[derive(Serialize, Deserialize)]
struct Item {
    label: Vec<String>,
    identity: Option<String>,
    descriptor: Option<RawFd>,
    /// In hexadecimal digits.
    data: String,
}

fn to_hex(data: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = data.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits.map(|digit| char::from(DIGITS[usize::from(digit)])).collect()
}

fn from_hex(text: &str) -> io::Result<Vec<u8>> {
    let invalid = || io::Error::new(io::ErrorKind::InvalidData, "its data is damaged");
    let digits: Option<Vec<u8>> =
        text.chars().map(|digit| digit.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.ok_or_else(invalid)?;
    match digits.as_chunks::<2>() {
        (pairs, []) => Ok(pairs.iter().map(|[high, low]| high << 4 | low).collect()),
        _ => Err(invalid()),
    }
}

/// Takes the items that the previous program has handed over, if there is one. Must be called
/// before this process opens anything.
///
/// # Errors
/// The list cannot be read: clients are disconnected, and nothing else is lost.
pub(crate) fn inherited() -> Result<InheritedParts, ApiError> {
    let Some(number) = std::env::var_os(VARIABLE) else { return Ok(InheritedParts::default()) };
    read(&number).map_err(|error| {
        ApiError::failed(format!(
            "the list of items from the previous program cannot be read: {error}"
        ))
    })
}

fn read(number: &OsStr) -> io::Result<InheritedParts> {
    let number = number.to_str().and_then(|number| number.parse().ok());
    let mut file = File::from(inherit(number.unwrap_or(-1))?);
    let mut text = String::new();
    file.rewind()?;
    file.read_to_string(&mut text)?;
    let list: List = serde_json::from_str(&text)?;
    if list.version != VERSION {
        let message = format!("it has version {} and not {VERSION}", list.version);
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let [listener, lock] = list.socket;
    let socket = Some(LeftSocket {
        listener: Arc::new(inherit(listener)?),
        lock: Arc::new(inherit(lock)?),
        identity: list.socket_identity,
    });
    let mut items = Items::new();
    for (name, list) in list.front_ends {
        let own = items.entry(name).or_default();
        for Item { label, identity, descriptor, data } in list {
            let descriptor = descriptor.map(inherit).transpose()?;
            own.push(HandedOver { label, identity, descriptor, data: from_hex(&data)? });
        }
    }
    let memory_limit = Some(list.memory_limit);
    let state_lock = Some(inherit(list.state_lock)?);
    let List { hand_overs, log_missing, .. } = list;
    Ok(InheritedParts { hand_overs, socket, state_lock, memory_limit, log_missing, items })
}

/// Returns the exit code for a command line that cannot be parsed: that of [`failed_start`] if this
/// process was to replace another program.
pub fn exit_code(code: u8) -> u8 {
    match code {
        0 => 0,
        _ if std::env::var_os(VARIABLE).is_some() => ErrorKind::Failed.exit_code(),
        _ => code,
    }
}

/// Returns the error of a failed start. After a hand-over, the error makes the service manager
/// start the daemon again: the former program could run with these options, and so may the program
/// that is then at its path.
pub fn failed_start(error: ApiError) -> ApiError {
    match std::env::var_os(VARIABLE) {
        Some(_) => ApiError { kind: ErrorKind::Failed, ..error },
        None => error,
    }
}

/// Checks that a program can use the descriptors of this one, and its options and state.
///
/// # Errors
/// The program cannot take over, or the file is not a program. The message contains the reason.
pub(crate) fn check(program: &Path) -> Result<(), ApiError> {
    let refused = |reason: String| {
        let message = format!("{} cannot take over: {reason}", program.display());
        ApiError::new(ErrorKind::Refused, message)
    };
    if !program.is_absolute() {
        return Err(ApiError::invalid("program", "it must be an absolute path"));
    }
    let version = ask(program, &[VERB.into()]).map_err(refused)?;
    match version.out.trim().parse::<u32>() {
        Ok(VERSION) => {}
        Ok(other) => {
            return Err(refused(format!(
                "it reads version {other} of the list of descriptors, this daemon writes {VERSION}; restart the daemon instead"
            )));
        }
        Err(_) => {
            return Err(refused(
                "it is not a forebay that can take over from another; restart the daemon instead"
                    .into(),
            ));
        }
    }
    let mut arguments: Vec<_> = std::env::args_os().skip(1).collect();
    arguments.push("--check".into());
    let checked = ask(program, &arguments).map_err(refused)?;
    if checked.succeeded {
        return Ok(());
    }
    let sentence = checked.err.lines().find(|line| !line.trim().is_empty()).unwrap_or_default();
    let sentence = sentence.strip_prefix("forebay: ").unwrap_or(sentence);
    Err(refused(format!(
        "it would not start with the options and the state of this daemon: {sentence}"
    )))
}

/// The output of a program, and whether it succeeded.
struct ProgramOutput {
    succeeded: bool,
    out: String,
    err: String,
}

/// Runs a program to its end, within [`ANSWERING`].
///
/// # Errors
/// The program cannot be executed, or does not end; the error is a sentence.
fn ask(program: &Path, arguments: &[OsString]) -> Result<ProgramOutput, String> {
    let mut child = Command::new(program)
        .args(arguments)
        // This process may have been handed over itself; that program was not.
        .env_remove(VARIABLE)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| error.to_string())?;
    let end = Instant::now() + ANSWERING;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break status,
            Ok(None) if Instant::now() < end => std::thread::sleep(Duration::from_millis(2)),
            // A program that prints more than a pipe holds would wait for ever.
            Ok(None) | Err(_) => {
                let _ = child.kill();
                // Removes the process from the process table.
                let _ = child.wait();
                return Err("it does not answer".into());
            }
        }
    };
    Ok(ProgramOutput {
        succeeded: status.success(),
        out: child.stdout.take().map(said).unwrap_or_default(),
        err: child.stderr.take().map(said).unwrap_or_default(),
    })
}

/// Reads the content of a pipe, up to the length of a sentence.
fn said(pipe: impl Read) -> String {
    const SENTENCE: u64 = 4096;
    let mut said = Vec::new();
    let _ = pipe.take(SENTENCE).read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}

/// Returns the path of the program with which this process was started; a package upgrade installs
/// the next program there.
///
/// # Errors
/// The system does not tell.
pub(crate) fn own_program() -> io::Result<PathBuf> {
    let path = std::fs::read_link("/proc/self/exe")?;
    let kept = path.as_os_str().as_bytes().strip_suffix(b" (deleted)").map(OsStr::from_bytes);
    Ok(kept.map_or_else(|| path.clone(), PathBuf::from))
}

/// Executes `program` in this process, with the present arguments. Returns only if that fails; in
/// this case the present program is executed again, if possible.
pub(crate) fn execute(program: &Path, left: &HandOverParts) -> ApiError {
    let list = match write(left) {
        Ok(list) => list,
        Err(error) => return ApiError::failed(format!("nothing can be handed over: {error}")),
    };
    let mut arguments = std::env::args_os();
    let name = arguments.next().unwrap_or_else(|| "forebay".into());
    let arguments: Vec<_> = arguments.collect();
    let execute = |program: &Path| {
        let number = list.as_raw_fd().to_string();
        Command::new(program).arg0(&name).args(&arguments).env(VARIABLE, number).exec()
    };
    let error = execute(program);
    tracing::error!(program = %program.display(), "cannot be executed: {error}; the daemon continues with its present program");
    let error = execute(Path::new("/proc/self/exe"));
    ApiError::failed(format!("neither program can be executed: {error}; clients are disconnected"))
}

/// Writes the list, and makes all descriptors in it stay open.
fn write(left: &HandOverParts) -> io::Result<OwnedFd> {
    let leave = |descriptor: &OwnedFd| -> io::Result<RawFd> {
        fcntl_setfd(descriptor, FdFlags::empty())?;
        Ok(descriptor.as_raw_fd())
    };
    let mut front_ends = BTreeMap::new();
    for (name, own) in &left.items {
        let mut list = Vec::new();
        for HandedOver { label, identity, descriptor, data } in own {
            let descriptor = descriptor.as_ref().map(leave).transpose()?;
            let (label, identity) = (label.clone(), identity.clone());
            list.push(Item { label, identity, descriptor, data: to_hex(data) });
        }
        front_ends.insert(name.clone(), list);
    }
    let list = List {
        version: VERSION,
        hand_overs: left.hand_overs + 1,
        socket: [leave(&left.socket.listener)?, leave(&left.socket.lock)?],
        socket_identity: left.socket.identity,
        state_lock: leave(&left.state_lock)?,
        memory_limit: left.memory_limit,
        log_missing: left.log_missing,
        front_ends,
    };
    let mut file = File::from(memfd_create("forebay-hand-over", MemfdFlags::CLOEXEC)?);
    file.write_all(&serde_json::to_vec(&list)?)?;
    fcntl_setfd(file.as_fd(), FdFlags::empty())?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn a_list_of_descriptors_is_read_once() {
        let pair = || UnixStream::pair().expect("sockets");
        let (mine, mut theirs) = pair();
        let (socket, lock) = pair();
        let state_lock = pair().0.into();
        let label = vec!["client".to_owned(), "v".to_owned()];
        let item = HandedOver {
            label: label.clone(),
            identity: Some("1 2".to_owned()),
            descriptor: Some(mine.into()),
            data: vec![7, 0xff],
        };
        let bare = HandedOver { label: vec!["exports".into()], ..HandedOver::default() };
        let items = Items::from([("nbd".to_owned(), vec![item, bare])]);
        let socket = LeftSocket {
            listener: Arc::new(socket.into()),
            lock: Arc::new(lock.into()),
            identity: (3, 1 << 60),
        };
        let (memory_limit, log_missing) = (1 << 30, 7);
        let left =
            HandOverParts { hand_overs: 4, socket, state_lock, memory_limit, log_missing, items };
        let list = write(&left).expect("writable");
        let number = list.as_raw_fd().to_string();
        // As if `execve` had removed them without closing them.
        std::mem::forget((left, list));
        let inherited = read(OsStr::new(&number)).expect("readable");
        assert_eq!(inherited.hand_overs, 5);
        assert_eq!(inherited.socket.as_ref().map(|socket| socket.identity), Some((3, 1 << 60)));
        assert_eq!((inherited.memory_limit, inherited.log_missing), (Some(1 << 30), 7));
        assert!(inherited.state_lock.is_some());
        let nbd = &inherited.items["nbd"];
        assert_eq!((&nbd[0].label, &nbd[0].data, nbd.len()), (&label, &vec![7, 0xff], 2));
        assert_eq!(nbd[0].identity.as_deref(), Some("1 2"));
        from_hex("0g").expect_err("no digit");
        from_hex("0").expect_err("half a byte");
        assert!(nbd[1].descriptor.is_none());
        theirs.write_all(b"x").expect("still connected");
        let descriptor = nbd[0].descriptor.as_ref().expect("one").try_clone().expect("possible");
        let mut byte = [0];
        UnixStream::from(descriptor).read_exact(&mut byte).expect("connected");
        assert_eq!(&byte, b"x");
        read(OsStr::new(&number)).err().expect("it was read");
        read(OsStr::new("x")).err().expect("no number");
    }

    #[test]
    fn other_programs_are_refused_by_name() {
        for (program, reason) in [
            ("/bin/true", "not a forebay"),
            ("/etc/hostname", "cannot take over"),
            ("/does/not/exist", "cannot take over"),
            ("forebay", "absolute"),
        ] {
            let error = check(Path::new(program)).expect_err(program).to_string();
            assert!(error.contains(reason), "{error}");
        }
    }
}
