//! A minimal NBD client: one export over a unix socket, any number of requests, simple replies.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use forebay_nbd_wire::handshake::{HandshakeError, go, greet};
use forebay_nbd_wire::{RequestHeader, SimpleReply, command};

/// A connection to one export.
pub(super) struct NbdClient(UnixStream);

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl NbdClient {
    /// Connects and negotiates the export.
    pub(super) fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        match greet(&mut stream).and_then(|()| go(&mut stream, export, &[])) {
            Ok(_) => Ok(NbdClient(stream)),
            Err(HandshakeError::Io(error)) => Err(error),
            Err(error) => Err(io::Error::other(error)),
        }
    }

    fn request(&mut self, command: u16, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = u32::try_from(data.len()).map_err(|_| broken("the request is too long"))?;
        let header = RequestHeader::new(command, 0, offset, len);
        self.0.write_all(&[&header.to_bytes(), data].concat())
    }

    /// Sends a write.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(command::WRITE, offset, data)
    }

    /// Sends a flush. The writes it is to cover must have been acknowledged before.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.request(command::FLUSH, 0, &[])
    }

    /// Receives the acknowledgements of `requests` requests.
    pub(super) fn acknowledged(&mut self, requests: usize) -> io::Result<()> {
        for _ in 0..requests {
            let mut reply = [0; SimpleReply::SIZE];
            self.0.read_exact(&mut reply)?;
            match SimpleReply::error_in(&reply) {
                Some(0) => (),
                Some(error) => return Err(io::Error::from_raw_os_error(error.cast_signed())),
                None => return Err(broken("a reply has a wrong magic")),
            }
        }
        Ok(())
    }
}
