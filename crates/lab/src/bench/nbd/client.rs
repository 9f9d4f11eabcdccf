//! A client that costs little: one connection, requests and replies in batches, nothing that is
//! not needed to keep a server busy.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use crate::bench::measure::{Sample, Stopwatch};
use crate::bench::pattern::Step;
use crate::bench::rig::BLOCK;
use crate::error::{LabResult, other};

// Numbers of the protocol.
const GREETING: u64 = 0x4e42_444d_4147_4943;
const OPTION: u64 = 0x4948_4156_454f_5054;
const OPTION_REPLY: u64 = 0x0003_e889_0455_65a9;
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;
const OPTION_GO: u32 = 7;
const ACK: u32 = 1;
const FIXED_NEW_STYLE: u32 = 1;
const NO_ZEROES: u32 = 2;
const READ: u16 = 0;
const WRITE: u16 = 1;
const FLUSH: u16 = 3;

const REQUEST_BYTES: usize = 28;
const REPLY_BYTES: usize = 16;
const INBOX: usize = 512 << 10;

/// How long a server may think about a request.
const PATIENCE: Duration = Duration::from_secs(60);
/// And about a flush, which may have all of a cache to write to a disk.
const FLUSH_PATIENCE: Duration = Duration::from_secs(3600);

/// What to do, and for how long.
pub(crate) struct Load<'a> {
    /// All reads, or all writes.
    pub(crate) steps: &'a [Step],
    pub(crate) depth: usize,
    pub(crate) time: Duration,
}

/// One connection.
pub(crate) struct Client {
    stream: UnixStream,
    inbox: Vec<u8>,
    at: usize,
}

fn read_u32(stream: &mut UnixStream) -> LabResult<u32> {
    let mut bytes = [0; 4];
    stream.read_exact(&mut bytes)?;
    Ok(u32::from_be_bytes(bytes))
}

fn read_u64(stream: &mut UnixStream) -> LabResult<u64> {
    let mut bytes = [0; 8];
    stream.read_exact(&mut bytes)?;
    Ok(u64::from_be_bytes(bytes))
}

impl Client {
    /// Connects, and takes an export.
    pub(crate) fn connect(path: &Path, export: &str) -> LabResult<Self> {
        let mut stream = UnixStream::connect(path)?;
        // A server that stalls is an error and no reason to wait for ever.
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        if read_u64(&mut stream)? != GREETING || read_u64(&mut stream)? != OPTION {
            return Err(other(format!("{}: this is no NBD server", path.display())));
        }
        let mut flags = [0; 2];
        stream.read_exact(&mut flags)?;
        let answer = (FIXED_NEW_STYLE | NO_ZEROES) & u32::from(u16::from_be_bytes(flags));
        let mut go = answer.to_be_bytes().to_vec();
        go.extend(OPTION.to_be_bytes());
        go.extend(OPTION_GO.to_be_bytes());
        go.extend((export.len() as u32 + 6).to_be_bytes());
        go.extend((export.len() as u32).to_be_bytes());
        go.extend(export.as_bytes());
        go.extend(0u16.to_be_bytes());
        stream.write_all(&go)?;
        loop {
            let magic = read_u64(&mut stream)?;
            let (_, kind, len) =
                (read_u32(&mut stream)?, read_u32(&mut stream)?, read_u32(&mut stream)?);
            if magic != OPTION_REPLY || len > 64 << 10 {
                return Err(other(format!("{}: a strange answer", path.display())));
            }
            stream.read_exact(&mut vec![0; len as usize])?;
            if kind == ACK {
                return Ok(Client { stream, inbox: vec![0; INBOX], at: 0 });
            }
            if kind >> 31 == 1 {
                return Err(other(format!(
                    "{}: the export was refused ({kind:#x})",
                    path.display()
                )));
            }
        }
    }

    /// Writes the first `span` bytes once, in large requests.
    pub(crate) fn fill(&mut self, span: u64) -> LabResult<()> {
        const LARGE: usize = 128 << 10;
        let mut request = vec![0x5a; REQUEST_BYTES + LARGE];
        for offset in (0..span).step_by(LARGE) {
            let len = (LARGE as u64).min(span - offset) as usize;
            header(&mut request, WRITE, offset, len as u32);
            self.stream.write_all(&request[..REQUEST_BYTES + len])?;
            let mut reply = [0; REPLY_BYTES];
            self.stream.read_exact(&mut reply)?;
            check_reply(&reply)?;
        }
        Ok(())
    }

    /// Reads once.
    pub(crate) fn read_one(&mut self, offset: u64, bytes: &mut [u8]) -> LabResult<()> {
        self.request(READ, offset, bytes.len(), &[])?;
        Ok(self.stream.read_exact(bytes)?)
    }

    /// Writes once.
    pub(crate) fn write_one(&mut self, offset: u64, bytes: &[u8]) -> LabResult<()> {
        self.request(WRITE, offset, bytes.len(), bytes)
    }

    /// Makes what was written durable.
    pub(crate) fn flush_all(&mut self) -> LabResult<()> {
        self.stream.set_read_timeout(Some(FLUSH_PATIENCE))?;
        let flushed = self.request(FLUSH, 0, 0, &[]);
        self.stream.set_read_timeout(Some(PATIENCE))?;
        flushed
    }

    /// Sends one request and waits for the head of its reply.
    fn request(&mut self, kind: u16, offset: u64, len: usize, payload: &[u8]) -> LabResult<()> {
        let mut request = [0; REQUEST_BYTES];
        header(&mut request, kind, offset, len as u32);
        self.stream.write_all(&request)?;
        self.stream.write_all(payload)?;
        let mut reply = [0; REPLY_BYTES];
        self.stream.read_exact(&mut reply)?;
        check_reply(&reply)
    }

    /// Keeps the server busy until the time is over, and waits for the last replies.
    pub(crate) fn run(&mut self, load: &Load<'_>) -> LabResult<Sample> {
        let write = load.steps.first().is_some_and(|step| step.write());
        let kind = if write { WRITE } else { READ };
        let block = BLOCK as usize;
        let request_len = REQUEST_BYTES + if write { block } else { 0 };
        let reply_len = REPLY_BYTES + if write { 0 } else { block };
        // The payloads of writes are in place; only headers change.
        let mut out = vec![0x5a; request_len * load.depth];
        let (mut in_flight, mut done, mut filled) = (0, 0, 0);
        let mut wanted = load.depth;
        let watch = Stopwatch::start();
        loop {
            for request in out.chunks_exact_mut(request_len).take(wanted) {
                let Some(step) = load.steps.get(self.at) else { break };
                header(request, kind, step.block() * BLOCK, BLOCK as u32);
                self.at = (self.at + 1) % load.steps.len();
            }
            self.stream.write_all(&out[..request_len * wanted])?;
            in_flight += wanted;
            let read = self.stream.read(&mut self.inbox[filled..])?;
            if read == 0 {
                return Err(other("the server has closed the connection"));
            }
            filled += read;
            let mut replies = 0;
            for reply in self.inbox[..filled].chunks_exact(reply_len) {
                check_reply(reply)?;
                replies += 1;
            }
            let rest = replies * reply_len..filled;
            filled = rest.len();
            self.inbox.copy_within(rest, 0);
            in_flight -= replies;
            done += replies as u64;
            let over = watch.wall() >= load.time;
            wanted = if over { 0 } else { replies };
            if over && in_flight == 0 {
                return Ok(watch.sample(done));
            }
        }
    }
}

fn header(request: &mut [u8], kind: u16, offset: u64, len: u32) {
    let mut bytes = [0; REQUEST_BYTES];
    bytes[..4].copy_from_slice(&REQUEST.to_be_bytes());
    bytes[6..8].copy_from_slice(&kind.to_be_bytes());
    bytes[8..16].copy_from_slice(&offset.to_be_bytes());
    bytes[16..24].copy_from_slice(&offset.to_be_bytes());
    bytes[24..].copy_from_slice(&len.to_be_bytes());
    if let Some(place) = request.first_chunk_mut() {
        *place = bytes;
    }
}

/// Whether a reply is one, and reports success.
fn check_reply(reply: &[u8]) -> LabResult<()> {
    let word = |at: usize| {
        reply
            .get(at..at + 4)
            .map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    };
    match (word(0), word(4)) {
        (Some(REPLY), Some(0)) => Ok(()),
        (Some(REPLY), Some(error)) => Err(other(format!("the server answers with error {error}"))),
        _ => Err(other("the server answers with something else than a reply")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replies_are_told_from_errors_and_noise() {
        let mut good = [0; REPLY_BYTES];
        good[..4].copy_from_slice(&REPLY.to_be_bytes());
        assert!(check_reply(&good).is_ok());
        let mut bad = good;
        bad[7] = 5;
        assert!(check_reply(&bad).is_err());
        assert!(check_reply(&[0; REPLY_BYTES]).is_err());
        assert!(check_reply(&good[..6]).is_err());
    }
}
