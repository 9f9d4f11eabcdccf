//! Size and first bytes of an NBD export, which is all that has to be known before fio has it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use forebay_device::{NbdServer, NbdUri};
use forebay_nbd::wire::handshake::{go, greet};
use forebay_nbd::wire::{command, transmission_flag};

use crate::error::{LabResult, other};
use crate::nbd::{REPLY_BYTES, REQUEST_BYTES, check_reply, header};

const PATIENCE: Duration = Duration::from_secs(30);

/// Properties of an export.
#[derive(Clone, Debug)]
pub(crate) struct Looks {
    /// Bytes.
    pub(crate) size: u64,
    pub(crate) read_only: bool,
    /// Its first bytes, as many as were asked for unless it is smaller.
    pub(crate) head: Vec<u8>,
}

/// Connects to the server of an export and looks.
pub(crate) fn look(uri: &NbdUri, head: usize) -> LabResult<Looks> {
    let unreachable =
        |error: std::io::Error| other(format!("the NBD server cannot be reached: {error}"));
    match &uri.server {
        NbdServer::Unix(path) => {
            let stream = UnixStream::connect(path).map_err(unreachable)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            ask(stream, &uri.export, head)
        }
        NbdServer::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).map_err(unreachable)?;
            stream.set_read_timeout(Some(PATIENCE))?;
            ask(stream, &uri.export, head)
        }
    }
}

fn ask(mut stream: impl Read + Write, name: &str, head: usize) -> LabResult<Looks> {
    greet(&mut stream)?;
    let export = go(&mut stream, name, &[])?;
    let (size, read_only) = (export.size, export.has(transmission_flag::READ_ONLY));
    let mut read = vec![0; size.min(head as u64) as usize];
    let mut request = [0; REQUEST_BYTES];
    if !read.is_empty() {
        header(&mut request, command::READ, 0, read.len() as u32);
        stream.write_all(&request)?;
        let mut reply = [0; REPLY_BYTES];
        stream.read_exact(&mut reply)?;
        check_reply(&reply)
            .map_err(|_| other("the NBD server cannot read the beginning of the export"))?;
        stream.read_exact(&mut read)?;
    }
    header(&mut request, command::DISC, 0, 0);
    stream.write_all(&request)?;
    Ok(Looks { size, read_only, head: read })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nbd::tests::script;

    /// A server with prepared replies.
    struct Script {
        says: std::io::Cursor<Vec<u8>>,
        heard: Vec<u8>,
    }

    impl Read for Script {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.says.read(into)
        }
    }

    impl Write for Script {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.heard.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_server_is_understood_and_every_broken_one_is_refused() {
        let hear = |says: Vec<u8>| {
            let mut script = Script { says: std::io::Cursor::new(says), heard: Vec::new() };
            let looks = ask(&mut script, "x", 4096);
            (looks, script.heard)
        };
        let (looks, heard) = hear(script(0));
        let looks = looks.expect("good");
        assert_eq!((looks.size, looks.read_only, looks.head), (1024, true, vec![7; 1024]));
        assert_eq!(heard.len(), 4 + 16 + 4 + 1 + 2 + 2 * 28);
        assert!(hear(script(5)).0.is_err());
        let whole = script(0);
        for len in 0..whole.len() {
            assert!(hear(whole[..len].to_vec()).0.is_err(), "cut after {len}");
        }
    }
}
