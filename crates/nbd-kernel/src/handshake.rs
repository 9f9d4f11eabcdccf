//! The client's side of the NBD handshake with the daemon's own server. The kernel takes over the
//! connection afterwards. It understands only compact requests and simple replies, so nothing else
//! is negotiated.

use std::io::{self, Read, Write};

use forebay_core::SECTOR_SIZE;
use forebay_nbd::OutlivingDevice;
use forebay_nbd::wire::handshake::{HandshakeError, ask, go, greet};
use forebay_nbd::wire::{option, option_reply, transmission_flag};

/// The transmission flags that the kernel uses.
const KNOWN: u16 = transmission_flag::HAS_FLAGS
    | transmission_flag::READ_ONLY
    | transmission_flag::SEND_FLUSH
    | transmission_flag::SEND_FUA
    | transmission_flag::SEND_TRIM
    | transmission_flag::SEND_WRITE_ZEROES;

/// The server's information about an export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelExport {
    /// Bytes.
    pub size: u64,
    /// Transmission flags for the kernel.
    pub flags: u16,
    /// Bytes of a logical sector.
    pub sector: u32,
}

/// Negotiates a volume. A `device` outlives the connection, see [`option::OUTLIVING`]. Reads
/// nothing beyond the last reply.
///
/// # Errors
/// The error of the system, or `NotFound` if the volume is not served.
pub fn agree(
    stream: &mut (impl Read + Write),
    volume: &str,
    device: Option<OutlivingDevice>,
) -> io::Result<KernelExport> {
    let mut agree = || {
        greet(stream)?;
        if let Some(device) = device
            && let Some(refusal) =
                ask(stream, option::OUTLIVING, &device.to_bytes(), |_, _| Ok(()))?
        {
            return Err(HandshakeError::Refused(refusal));
        }
        go(stream, volume, &[])
    };
    match agree() {
        Ok(export) => Ok(KernelExport {
            size: export.size,
            flags: export.flags & KNOWN,
            sector: export.least.max(SECTOR_SIZE as u32),
        }),
        Err(HandshakeError::Io(error)) => Err(error),
        Err(HandshakeError::Refused(refusal)) if refusal.kind == option_reply::ERR_UNKNOWN => {
            Err(io::ErrorKind::NotFound.into())
        }
        Err(error) => Err(io::Error::other(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use forebay_engine::BlockService;
    use forebay_nbd::handshake::{Handshake, HandshakeStep, Security};
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
        /// `Some` after the session has started: the device of the session, if it has one.
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
            if let HandshakeStep::Start(start) = progress {
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
            assert_eq!(export, KernelExport { size: 1 << 20, flags, sector: 512 });
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
