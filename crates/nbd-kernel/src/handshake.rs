//! The client's part of NBD's handshake, with the daemon's own server. The kernel takes over from
//! there: it understands compact requests and simple replies only, so nothing else is agreed on.

use std::io::{self, Read, Write};

use forebay_core::SECTOR_SIZE;
use forebay_nbd::OutlivingDevice;
use forebay_nbd::wire::{
    GREETING_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader,
    handshake_flag, info, option, option_reply, transmission_flag,
};
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// Longest reply to an option that is read, in bytes.
const REPLY_MAX: usize = 64 << 10;
/// Maximum number of replies to one option: the server sends few.
const REPLIES_MAX: usize = 64;
/// Bytes of the greeting.
const GREETING: usize = 18;
/// The flags that the kernel has a use for.
const KNOWN: u16 = transmission_flag::HAS_FLAGS
    | transmission_flag::READ_ONLY
    | transmission_flag::SEND_FLUSH
    | transmission_flag::SEND_FUA
    | transmission_flag::SEND_TRIM
    | transmission_flag::SEND_WRITE_ZEROES;

/// The server's information about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Export {
    /// Bytes.
    pub size: u64,
    /// Transmission flags for the kernel.
    pub flags: u16,
    /// Bytes of a logical sector.
    pub sector: u32,
}

fn unexpected(what: &str) -> io::Error {
    io::Error::other(format!("the daemon's NBD server answers with {what}"))
}

/// Reads a part of the handshake.
fn receive(stream: &mut impl Read, into: &mut [u8]) -> io::Result<()> {
    stream.read_exact(into).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            io::Error::new(error.kind(), "the daemon's NBD server has closed the connection")
        }
        _ => error,
    })
}

/// Agrees on a volume. A `device` outlives the connection, see [`option::OUTLIVING`]. Reads nothing
/// beyond the last reply.
///
/// # Errors
/// That of the system; or `NotFound`: the volume is not served.
pub fn agree(
    stream: &mut (impl Read + Write),
    volume: &str,
    device: Option<OutlivingDevice>,
) -> io::Result<Export> {
    let mut greeting = [0; GREETING];
    receive(stream, &mut greeting)?;
    let magic = [GREETING_MAGIC.to_be_bytes(), OPTION_MAGIC.to_be_bytes()].concat();
    if !greeting.starts_with(&magic) {
        return Err(unexpected("another greeting"));
    }
    let flags = handshake_flag::FIXED_NEWSTYLE | handshake_flag::NO_ZEROES;
    stream.write_all(&u32::from(flags).to_be_bytes())?;
    if let Some(device) = device {
        ask(stream, option::OUTLIVING, &device.to_bytes())?;
    }
    let len = u32::try_from(volume.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let go = [&len.to_be_bytes(), volume.as_bytes(), &0u16.to_be_bytes()].concat();
    let export = ask(stream, option::GO, &go)?;
    export.ok_or_else(|| unexpected("no size of the volume"))
}

/// Sends an option, and reads its replies up to the last one.
fn ask(stream: &mut (impl Read + Write), option: u32, data: &[u8]) -> io::Result<Option<Export>> {
    let header = OptionHeader {
        magic: U64::new(OPTION_MAGIC),
        option: U32::new(option),
        len: U32::new(u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput)?),
    };
    stream.write_all(&[header.as_bytes(), data].concat())?;
    let mut export = None;
    for _ in 0..REPLIES_MAX {
        let mut header = [0; size_of::<OptionReplyHeader>()];
        receive(stream, &mut header)?;
        let header = OptionReplyHeader::read_from_bytes(&header);
        let header = header.map_err(|_| unexpected("a part of a reply"))?;
        let len = header.len.get() as usize;
        let ours = (header.magic.get(), header.option.get()) == (OPTION_REPLY_MAGIC, option);
        if !ours || len > REPLY_MAX {
            return Err(unexpected("another reply"));
        }
        let mut content = vec![0; len];
        receive(stream, &mut content)?;
        match header.kind.get() {
            option_reply::ACK => return Ok(export),
            option_reply::INFO => {
                export = read_export(&content).or(export);
                if let (Some(export), Some(sector)) = (&mut export, read_sector(&content)) {
                    export.sector = sector;
                }
            }
            option_reply::ERR_UNKNOWN => return Err(io::ErrorKind::NotFound.into()),
            _ => {
                let text = String::from_utf8_lossy(&content);
                return Err(unexpected(&format!("a refusal: {}", text.escape_debug())));
            }
        }
    }
    Err(unexpected("too many replies"))
}

/// Reads the information [`info::EXPORT`]; `None`: it is another one.
fn read_export(content: &[u8]) -> Option<Export> {
    let (kind, rest) = content.split_first_chunk()?;
    let (size, rest) = rest.split_first_chunk()?;
    let (flags, rest) = rest.split_first_chunk()?;
    let whole = u16::from_be_bytes(*kind) == info::EXPORT && rest.is_empty();
    let flags = u16::from_be_bytes(*flags) & KNOWN;
    let sector = SECTOR_SIZE as u32;
    whole.then_some(Export { size: u64::from_be_bytes(*size), flags, sector })
}

/// Reads the smallest size of the information [`info::BLOCK_SIZE`]; `None`: it is another one.
fn read_sector(content: &[u8]) -> Option<u32> {
    let (kind, rest) = content.split_first_chunk()?;
    let (least, _) = rest.split_first_chunk()?;
    (u16::from_be_bytes(*kind) == info::BLOCK_SIZE).then_some(u32::from_be_bytes(*least))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use forebay_engine::BlockService;
    use forebay_nbd::handshake::{Handshake, Progress, Security};
    use forebay_nbd::null::{ExportList, NullTarget};

    use super::*;

    fn device(flushes: bool) -> Option<OutlivingDevice> {
        Some(OutlivingDevice { mark: 77, flushes })
    }

    /// The daemon's server, without a socket.
    struct Served {
        handshake: Handshake,
        exports: ExportList,
        received: Vec<u8>,
        replies: Vec<u8>,
        /// The device of the session, when there is one.
        started: Option<Option<OutlivingDevice>>,
    }

    impl Served {
        fn new() -> Self {
            let mut replies = Vec::new();
            let volume =
                |read_only| Rc::new(NullTarget::new(1 << 20, read_only)) as Rc<dyn BlockService>;
            let volumes = vec![("v".to_owned(), volume(false)), ("fixed".to_owned(), volume(true))];
            Served {
                handshake: Handshake::new(Security::Local, &mut replies),
                exports: ExportList::new(volumes),
                received: Vec::new(),
                replies,
                started: None,
            }
        }
    }

    impl Write for Served {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.received.extend_from_slice(bytes);
            let (consumed, progress) =
                self.handshake.advance(&self.received, &self.exports, &mut self.replies);
            self.received.drain(..consumed);
            if let Progress::Start(start) = progress {
                self.started = Some(start.session.device);
            }
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    impl Read for Served {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            let count = into.len().min(self.replies.len());
            into[..count].copy_from_slice(&self.replies[..count]);
            self.replies.drain(..count);
            Ok(count)
        }
    }

    #[test]
    fn a_volume_is_agreed_on_with_the_daemons_server() {
        use transmission_flag::{
            HAS_FLAGS, READ_ONLY, SEND_FLUSH, SEND_FUA, SEND_TRIM, SEND_WRITE_ZEROES,
        };
        let writes = SEND_TRIM | SEND_WRITE_ZEROES;
        for (volume, device, flags) in [
            ("v", None, HAS_FLAGS | SEND_FLUSH | SEND_FUA | writes),
            ("v", device(true), HAS_FLAGS | SEND_FLUSH | SEND_FUA | writes),
            ("v", device(false), HAS_FLAGS | writes),
            ("fixed", device(false), HAS_FLAGS | READ_ONLY),
        ] {
            let mut server = Served::new();
            let export = agree(&mut server, volume, device).expect("agreed");
            assert_eq!(export, Export { size: 1 << 20, flags, sector: 512 });
            assert_eq!(server.started, Some(device));
            assert!(server.replies.is_empty() && server.received.is_empty());
        }
    }

    #[test]
    fn a_volume_that_is_not_served_is_not_found() {
        let error = agree(&mut Served::new(), "other", None).expect_err("there is none");
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn another_server_is_refused() {
        for replies in [&b"NBDMAGIC"[..], &[0; 64], b"NBDMAGICIHAVEOPT\0\x03"] {
            let mut server = Served { replies: replies.to_vec(), ..Served::new() };
            server.exports = ExportList::new(Vec::new());
            assert!(agree(&mut server, "v", device(true)).is_err());
        }
    }
}
