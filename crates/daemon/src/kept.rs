//! Descriptors that the service manager keeps while the daemon does not run (systemd's file
//! descriptor store). The next daemon gets them after any end of this one.
//!
//! Protocol: `sd_notify(3)` with `FDSTORE=1`, `sd_listen_fds(3)`.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, RawFd};

use forebay_device::inherited::inherit;
use forebay_engine::{DescriptorStore, HandedOver};
use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, SendAncillaryBuffer, SendAncillaryMessage, SendFlags, SocketAddrUnix,
    SocketFlags, SocketType, sendmsg_addr, socket_with,
};

use super::hand_over::Items;

/// The first descriptor that a service manager passes.
const FIRST: RawFd = 3;
/// Longest name of a descriptor, in bytes.
const LONGEST_NAME: usize = 255;
/// Separates the words of a label in a name; words do not contain it.
const SEPARATOR: char = '/';

/// See the module.
pub(crate) struct FdStore {
    manager: SocketAddrUnix,
    /// Maximum number of descriptors in the store.
    most: usize,
    /// Number of descriptors in the store, by name.
    kept: Mutex<BTreeMap<String, usize>>,
}

impl FdStore {
    /// Returns the store of the service manager, if there is one. The manager announces it by the
    /// variable `FDSTORE`, which systemd sets from 254 on; for older versions the unit sets it.
    pub(crate) fn from_env() -> Option<Self> {
        let most = std::env::var("FDSTORE").ok()?.parse().ok().filter(|most| *most > 0)?;
        let name = std::env::var("NOTIFY_SOCKET").ok()?;
        let manager = match name.strip_prefix('@') {
            Some(name) => SocketAddrUnix::new_abstract_name(name.as_bytes()),
            None => SocketAddrUnix::new(&*name),
        };
        Some(FdStore { manager: manager.ok()?, most, kept: Mutex::default() })
    }

    fn send(&self, message: &str, descriptor: Option<BorrowedFd<'_>>) -> rustix::io::Result<()> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = socket_with(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        if let Some(descriptor) = &descriptor {
            ancillary.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(descriptor)));
        }
        let data = [IoSlice::new(message.as_bytes())];
        sendmsg_addr(socket, &self.manager, &data, &mut ancillary, SendFlags::NOSIGNAL).map(drop)
    }
}

impl DescriptorStore for FdStore {
    fn keep(&self, label: &[&str], descriptor: BorrowedFd<'_>) -> bool {
        let Some(name) = name(label) else { return false };
        let mut kept = self.kept.lock();
        if kept.values().sum::<usize>() >= self.most {
            tracing::warn!(
                name,
                "the service manager keeps no more descriptors; raise FileDescriptorStoreMax= of the service"
            );
            return false;
        }
        if let Err(error) = self.send(&format!("FDSTORE=1\nFDNAME={name}"), Some(descriptor)) {
            tracing::warn!(name, %error, "the service manager does not take a descriptor");
            return false;
        }
        *kept.entry(name).or_default() += 1;
        true
    }

    fn forget(&self, label: &[&str]) {
        let Some(name) = name(label) else { return };
        let mut kept = self.kept.lock();
        if let Err(error) = self.send(&format!("FDSTOREREMOVE=1\nFDNAME={name}"), None) {
            tracing::warn!(name, %error, "the service manager does not release a descriptor");
            return;
        }
        kept.remove(&name);
    }
}

/// Returns the name for descriptors with a label; `None` if the label cannot be part of a name.
fn name(label: &[&str]) -> Option<String> {
    let usable = |word: &&str| {
        word.chars().all(|c| (c.is_ascii_graphic() || c == ' ') && c != ':' && c != SEPARATOR)
    };
    if !label.iter().all(usable) {
        return None;
    }
    Some(label.join("/")).filter(|name| name.len() <= LONGEST_NAME)
}

/// Takes the descriptors that the service manager has kept for this process, as items of front
/// ends. Must be called before this process opens anything, and only by the first program of this
/// process.
pub(crate) fn take() -> Items {
    let mut items = Items::new();
    for (number, name) in (FIRST..).zip(passed(|name| std::env::var(name).ok())) {
        let descriptor = match inherit(number) {
            Ok(descriptor) => descriptor,
            Err(error) => {
                tracing::warn!(name, %error, "a descriptor of the service manager cannot be used");
                continue;
            }
        };
        let mut words = name.split(SEPARATOR).map(str::to_owned);
        let front_end = words.next().unwrap_or_default();
        let label = words.collect();
        let item = HandedOver { label, descriptor: Some(descriptor), ..HandedOver::default() };
        items.entry(front_end).or_default().push(item);
    }
    items
}

/// Returns the names of the descriptors that the environment passes to this process.
fn passed(variable: impl Fn(&str) -> Option<String>) -> Vec<String> {
    if variable("LISTEN_PID") != Some(std::process::id().to_string()) {
        return Vec::new();
    }
    let count = variable("LISTEN_FDS").and_then(|count| count.parse::<usize>().ok()).unwrap_or(0);
    let names = variable("LISTEN_FDNAMES").unwrap_or_default();
    let names: Vec<String> = names.split(':').map(str::to_owned).collect();
    if names.len() == count { names } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixDatagram;

    use super::*;
    use forebay_testkit::TempDir;

    #[test]
    fn descriptors_are_kept_as_long_as_there_is_room() {
        let dir = TempDir::new("kept");
        let path = dir.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("free");
        let manager = SocketAddrUnix::new(&path).expect("short");
        let kept = FdStore { manager, most: 1, kept: Mutex::default() };
        let label = ["fuse", "connection", "v"];
        assert!(kept.keep(&label, socket.as_fd()));
        assert!(!kept.keep(&label, socket.as_fd()), "there is no room");
        assert!(!kept.keep(&["a:b"], socket.as_fd()), "no name");
        kept.forget(&label);
        assert!(kept.keep(&label, socket.as_fd()), "there is room again");
        let keeps = "FDSTORE=1\nFDNAME=fuse/connection/v";
        for expected in [keeps, "FDSTOREREMOVE=1\nFDNAME=fuse/connection/v", keeps] {
            let mut message = [0; 256];
            let len = socket.recv(&mut message).expect("sent");
            assert_eq!(&message[..len], expected.as_bytes());
        }
    }

    #[test]
    fn only_descriptors_for_this_process_are_taken() {
        let own = std::process::id().to_string();
        let of = |pid: &str, count: &str, names: &str| {
            passed(|name| match name {
                "LISTEN_PID" => Some(pid.to_owned()),
                "LISTEN_FDS" => Some(count.to_owned()),
                _ => Some(names.to_owned()),
            })
        };
        assert_eq!(of(&own, "2", "fuse/x:fuse/y"), ["fuse/x", "fuse/y"]);
        assert!(of("1", "2", "fuse/x:fuse/y").is_empty());
        assert!(of(&own, "3", "fuse/x:fuse/y").is_empty());
        assert!(of(&own, "x", "fuse/x").is_empty());
        assert!(passed(|_| None).is_empty());
    }
}
