//! The TLS of one connection: plaintext for the protocol, records for the socket. No I/O.
//!
//! All buffers are bounded: a record has at most 16 KiB, and no bytes are accepted in a direction
//! before the previous output in that direction has been used.

use std::cell::RefCell;
use std::io::{self, Read, Write};
use std::sync::Arc;

use forebay_device::IoBuf;
use rustls::{Connection, ServerConfig, ServerConnection};

/// Bytes of the buffer for received records.
const INCOMING: usize = 32 << 10;
/// Bytes of the buffer for records to be sent, and the limit for data that are encrypted at a time.
const OUTGOING: usize = 64 << 10;
/// Most bytes that the TLS library buffers: the longest handshake message in parts (or a data
/// record with its plaintext), and the records to be sent.
const LIBRARY: usize = (64 << 10) + (32 << 10) + OUTGOING;

/// Additional bytes of memory of a connection that uses TLS.
pub const BYTES: usize = INCOMING + OUTGOING + LIBRARY;

/// Received bytes: `buf[start..end]` are not decrypted yet.
struct Incoming {
    buf: IoBuf,
    start: usize,
    end: usize,
}

/// See the module.
pub struct Records {
    connection: RefCell<Connection>,
    incoming: RefCell<Incoming>,
    outgoing: RefCell<IoBuf>,
}

/// Plaintext that was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain {
    /// This many bytes, at least 1.
    Bytes(usize),
    /// No bytes at the moment.
    None,
    /// The other side has ended the stream.
    End,
}

fn invalid(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}

impl Records {
    /// Starts a session as the server. `received` are bytes that have already arrived; they are
    /// decrypted first.
    ///
    /// # Errors
    /// The configuration cannot be used, or `received` is longer than a client sends at once.
    pub fn accept(config: Arc<ServerConfig>, received: &[u8]) -> io::Result<Self> {
        let connection = ServerConnection::new(config).map_err(invalid)?;
        Records::new(connection.into(), received)
    }

    /// Goes on with a session; `received` is decrypted first.
    ///
    /// # Errors
    /// `received` is too long.
    pub fn new(mut connection: Connection, received: &[u8]) -> io::Result<Self> {
        connection.set_buffer_limit(Some(OUTGOING));
        let mut buf = IoBuf::for_overwrite(INCOMING);
        let place = buf.get_mut(..received.len()).ok_or(io::ErrorKind::InvalidData)?;
        place.copy_from_slice(received);
        let incoming = Incoming { buf, start: 0, end: received.len() };
        Ok(Records {
            connection: RefCell::new(connection),
            incoming: RefCell::new(incoming),
            outgoing: RefCell::new(IoBuf::for_overwrite(OUTGOING)),
        })
    }

    /// Returns whether client and server do not agree yet.
    pub fn is_handshaking(&self) -> bool {
        self.connection.borrow().is_handshaking()
    }

    /// Copies plaintext to `into`, which is not empty.
    pub fn read(&self, into: &mut [u8]) -> io::Result<Plain> {
        match self.connection.borrow_mut().reader().read(into) {
            Ok(0) => Ok(Plain::End),
            Ok(len) => Ok(Plain::Bytes(len)),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Plain::None),
            Err(error) => Err(error),
        }
    }

    /// Returns whether there are received bytes to decrypt.
    pub fn has_received(&self) -> bool {
        let incoming = self.incoming.borrow();
        incoming.start < incoming.end
    }

    /// Decrypts some of the received bytes. Returns `false` if there are none. Call
    /// [`Records::read`] between two calls.
    ///
    /// # Errors
    /// The bytes are not a valid session; [`Records::take_outgoing`] then has the alert for the
    /// other side.
    pub fn decrypt(&self) -> io::Result<bool> {
        let mut incoming = self.incoming.borrow_mut();
        let Incoming { buf, start, end } = &mut *incoming;
        let mut unused = buf.get(*start..*end).unwrap_or_default();
        if unused.is_empty() {
            return Ok(false);
        }
        let mut connection = self.connection.borrow_mut();
        let len = connection.read_tls(&mut unused)?;
        *start += len;
        connection.process_new_packets().map_err(invalid)?;
        if len == 0 {
            // Bytes behind the end of the session.
            *start = *end;
        }
        Ok(true)
    }

    /// Returns the buffer to receive into, once everything received is decrypted.
    pub fn take_incoming(&self) -> IoBuf {
        std::mem::take(&mut self.incoming.borrow_mut().buf)
    }

    /// Gives the buffer back with `len` received bytes.
    pub fn put_incoming(&self, buf: IoBuf, len: usize) {
        *self.incoming.borrow_mut() = Incoming { buf, start: 0, end: len };
    }

    /// Encrypts the beginning of `data`. Returns how much.
    pub fn encrypt(&self, data: &[u8]) -> io::Result<usize> {
        self.connection.borrow_mut().writer().write(data)
    }

    /// Queues the alert that ends the session (`close_notify`).
    pub fn end(&self) {
        self.connection.borrow_mut().send_close_notify();
    }

    /// Returns a buffer and the number of its first bytes that are to be sent; `None` if nothing is
    /// to be sent.
    pub fn take_outgoing(&self) -> io::Result<Option<(IoBuf, usize)>> {
        let mut connection = self.connection.borrow_mut();
        if !connection.wants_write() {
            return Ok(None);
        }
        let mut buf = std::mem::take(&mut *self.outgoing.borrow_mut());
        if buf.is_empty() {
            buf = IoBuf::for_overwrite(OUTGOING);
        }
        let mut place = &mut buf[..];
        let len = connection.write_tls(&mut place)?;
        Ok(Some((buf, len)))
    }

    /// Gives the buffer back.
    pub fn put_outgoing(&self, buf: IoBuf) {
        *self.outgoing.borrow_mut() = buf;
    }
}
