//! A minimal NBD client: one export over a unix socket, any number of requests, simple replies.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x3_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_ERROR: u32 = 1 << 31;
const FIXED_NEWSTYLE_NO_ZEROES: u32 = 3;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

/// A connection to one export.
pub(super) struct NbdClient(UnixStream);

fn broken(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what.to_owned())
}

impl NbdClient {
    /// Connects and negotiates the export.
    pub(super) fn connect(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        let mut hello = [0; 18];
        stream.read_exact(&mut hello)?;
        if &hello[..16] != b"NBDMAGICIHAVEOPT" {
            return Err(broken("the server does not speak NBD"));
        }
        let name = export.as_bytes();
        let name_len = u32::try_from(name.len()).map_err(|_| broken("the name is too long"))?;
        let mut message = Vec::new();
        message.extend(FIXED_NEWSTYLE_NO_ZEROES.to_be_bytes());
        message.extend(OPTION_MAGIC.to_be_bytes());
        message.extend(OPTION_GO.to_be_bytes());
        message.extend((name_len + 6).to_be_bytes());
        message.extend(name_len.to_be_bytes());
        message.extend(name);
        message.extend(0u16.to_be_bytes());
        stream.write_all(&message)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let [a, b, c, d, e, f, g, h, _, _, _, _, i, j, k, l, m, n, o, p] = head;
            if u64::from_be_bytes([a, b, c, d, e, f, g, h]) != OPTION_REPLY_MAGIC {
                return Err(broken("an option's reply has a wrong magic"));
            }
            let len = u32::from_be_bytes([m, n, o, p]);
            io::copy(&mut (&mut stream).take(len.into()), &mut io::sink())?;
            match u32::from_be_bytes([i, j, k, l]) {
                REPLY_ACK => return Ok(NbdClient(stream)),
                reply if reply & REPLY_ERROR != 0 => return Err(broken("the export is refused")),
                _ => (),
            }
        }
    }

    fn request(&mut self, what: u16, offset: u64, data: &[u8]) -> io::Result<()> {
        let len = u32::try_from(data.len()).map_err(|_| broken("the request is too long"))?;
        let mut message = Vec::with_capacity(28 + data.len());
        message.extend(REQUEST_MAGIC.to_be_bytes());
        message.extend(0u16.to_be_bytes());
        message.extend(what.to_be_bytes());
        message.extend(0u64.to_be_bytes());
        message.extend(offset.to_be_bytes());
        message.extend(len.to_be_bytes());
        message.extend(data);
        self.0.write_all(&message)
    }

    /// Sends a write.
    pub(super) fn write(&mut self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.request(WRITE, offset, data)
    }

    /// Sends a flush. The writes it is to cover must have been acknowledged before.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        self.request(FLUSH, 0, &[])
    }

    /// Receives the acknowledgements of `requests` requests.
    pub(super) fn acknowledged(&mut self, requests: usize) -> io::Result<()> {
        for _ in 0..requests {
            let mut reply = [0; 16];
            self.0.read_exact(&mut reply)?;
            let [a, b, c, d, e, f, g, h, ..] = reply;
            if u32::from_be_bytes([a, b, c, d]) != REPLY_MAGIC {
                return Err(broken("a reply has a wrong magic"));
            }
            match u32::from_be_bytes([e, f, g, h]) {
                0 => (),
                error => return Err(io::Error::from_raw_os_error(error.cast_signed())),
            }
        }
        Ok(())
    }
}
