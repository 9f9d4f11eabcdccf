//! Commands to the kernel's NBD client, by generic netlink. Only disconnecting waits for requests
//! to a device.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::netlink::{GENERIC, SocketAddrNetlink};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, sendto, socket_with,
};

use crate::message::{Answer, NetlinkRequest, answers, attribute, u16_at};

/// Protection against a hang: the kernel has answered by the time the send of a request returns.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum number of bytes of an answer.
const MOST: usize = 8192;

/// The family that lists the other families, `GENL_ID_CTRL`, and its command and attributes.
mod families {
    pub(super) const FAMILY: u16 = 0x10;
    pub(super) const VERSION: u8 = 1;
    pub(super) const GET: u8 = 3;
    pub(super) const NUMBER: u16 = 1;
    pub(super) const NAME: u16 = 2;
}

/// `include/uapi/linux/nbd-netlink.h`.
mod nbd {
    pub(super) const NAME: &str = "nbd";
    pub(super) const VERSION: u8 = 1;

    pub(super) const CONNECT: u8 = 1;
    pub(super) const DISCONNECT: u8 = 2;
    pub(super) const RECONFIGURE: u8 = 3;

    pub(super) const INDEX: u16 = 1;
    pub(super) const SIZE_BYTES: u16 = 2;
    pub(super) const BLOCK_SIZE_BYTES: u16 = 3;
    pub(super) const TIMEOUT: u16 = 4;
    pub(super) const SERVER_FLAGS: u16 = 5;
    pub(super) const SOCKETS: u16 = 7;
    pub(super) const DEAD_CONN_TIMEOUT: u16 = 8;
    pub(super) const BACKEND_IDENTIFIER: u16 = 10;

    pub(super) const SOCK_ITEM: u16 = 1;
    pub(super) const SOCK_FD: u16 = 1;
}

/// Parameters of a new device for the kernel.
#[derive(Clone, Debug)]
pub(crate) struct NewDevice<'a> {
    pub(crate) number: u32,
    /// Bytes.
    pub(crate) size: u64,
    /// Bytes of a sector.
    pub(crate) block: u64,
    /// Transmission flags of the server.
    pub(crate) flags: u16,
    /// Time for which requests wait for a new connection before they fail.
    pub(crate) patience: Duration,
    /// Text that the kernel stores with the device.
    pub(crate) identifier: &'a str,
}

/// A socket to the kernel.
pub(crate) struct Control {
    socket: OwnedFd,
    family: u16,
    /// The number of the last request.
    sequence: Cell<u32>,
}

impl Control {
    /// Opens a netlink socket to the kernel's NBD client.
    ///
    /// # Errors
    /// `NotFound`: the kernel has no NBD client, or it is not loaded.
    pub(crate) fn open() -> io::Result<Self> {
        let flags = SocketFlags::CLOEXEC;
        let socket = socket_with(AddressFamily::NETLINK, SocketType::RAW, flags, Some(GENERIC))?;
        set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
        let sequence = Cell::new(0);
        let mut control = Control { socket, family: families::FAMILY, sequence };
        let request = control.request(families::GET, families::VERSION);
        let answer = control.ask(request.with_text(families::NAME, nbd::NAME))?;
        let number = attribute(&answer, families::NUMBER).and_then(|number| u16_at(number, 0));
        control.family = number.ok_or(Errno::NOENT)?;
        Ok(control)
    }

    fn request(&self, command: u8, version: u8) -> NetlinkRequest {
        self.sequence.set(self.sequence.get().wrapping_add(1));
        NetlinkRequest::new(self.family, command, version, self.sequence.get())
    }

    /// Makes a request; returns the attributes of the answer.
    fn ask(&self, request: NetlinkRequest) -> io::Result<Vec<u8>> {
        let bytes = request.finish();
        sendto(&self.socket, &bytes, SendFlags::empty(), &SocketAddrNetlink::new(0, 0))?;
        let (mut attributes, mut buf) = (Vec::new(), vec![0; MOST]);
        loop {
            let (received, _) = recv(&self.socket, &mut buf[..], RecvFlags::empty())?;
            for answer in answers(buf.get(..received).unwrap_or_default(), self.sequence.get()) {
                match answer {
                    Answer::Result(result) => return Ok(result.map(|()| attributes)?),
                    Answer::Attributes(found) => attributes.extend_from_slice(found),
                }
            }
        }
    }

    /// Connects a device, and creates it first if no device has the number.
    ///
    /// # Errors
    /// `Errno::BUSY`: the device is in use.
    pub(crate) fn connect(&self, new: &NewDevice<'_>, socket: BorrowedFd<'_>) -> io::Result<()> {
        let request = self
            .request(nbd::CONNECT, nbd::VERSION)
            .with_u32(nbd::INDEX, new.number)
            .with_u64(nbd::SIZE_BYTES, new.size)
            .with_u64(nbd::BLOCK_SIZE_BYTES, new.block)
            // No time limit: it would end connections on which a request takes long.
            .with_u64(nbd::TIMEOUT, 0)
            .with_u64(nbd::DEAD_CONN_TIMEOUT, new.patience.as_secs())
            .with_u64(nbd::SERVER_FLAGS, new.flags.into())
            .with_text(nbd::BACKEND_IDENTIFIER, new.identifier);
        self.ask(with_socket(request, socket)).map(drop)
    }

    /// Gives a device a new connection.
    ///
    /// # Errors
    /// `Errno::NOSPC`: the device still has a connection. `Errno::INVAL`: the device is not
    /// connected, or has another identifier.
    pub(crate) fn reconnect(
        &self,
        number: u32,
        identifier: &str,
        socket: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let request = self
            .request(nbd::RECONFIGURE, nbd::VERSION)
            .with_u32(nbd::INDEX, number)
            .with_text(nbd::BACKEND_IDENTIFIER, identifier);
        self.ask(with_socket(request, socket)).map(drop)
    }

    /// Ends a device: its requests fail, including those in progress. The number is free once no
    /// program has the device open.
    ///
    /// # Errors
    /// `Errno::INVAL` if the device does not exist.
    pub(crate) fn disconnect(&self, number: u32) -> io::Result<()> {
        let request = self.request(nbd::DISCONNECT, nbd::VERSION);
        self.ask(request.with_u32(nbd::INDEX, number)).map(drop)
    }
}

fn with_socket(request: NetlinkRequest, socket: BorrowedFd<'_>) -> NetlinkRequest {
    let number = socket.as_fd().as_raw_fd().unsigned_abs();
    request.with_nested(nbd::SOCKETS, |all| {
        all.with_nested(nbd::SOCK_ITEM, |item| item.with_u32(nbd::SOCK_FD, number))
    })
}
