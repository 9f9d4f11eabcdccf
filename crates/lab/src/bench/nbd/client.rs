//! A client that costs little: one connection, requests and replies in batches, nothing that is
//! not needed to keep a server busy.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use forebay_nbd::wire::command::{FLUSH, READ, WRITE};
use forebay_nbd::wire::handshake::{go, greet};
use serde::Serialize;

use crate::bench::measure::{Sample, Stopwatch};
use crate::bench::pattern::{Step, permutation, uniform};
use crate::error::{LabResult, other};
use crate::nbd::{REPLY_BYTES, REQUEST_BYTES, check_reply, header};
use crate::rig::BLOCK;

const INBOX: usize = 512 << 10;

/// Random steps that are prepared; they are gone through again and again.
const RANDOM_STEPS: usize = 1 << 18;

/// Longest wait for the reply to a request.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest wait for the reply to a flush, which may have to write a whole cache to a disk.
const FLUSH_PATIENCE: Duration = Duration::from_secs(3600);

/// Kind of a load's requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Operation {
    /// Random reads.
    Read,
    /// Random writes.
    Write,
    SequentialWrite,
}

impl Operation {
    pub(crate) fn is_write(self) -> bool {
        self != Operation::Read
    }

    pub(crate) fn is_sequential(self) -> bool {
        self == Operation::SequentialWrite
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Operation::Read => "read",
            Operation::Write => "write",
            Operation::SequentialWrite => "sequential write",
        }
    }

    /// The blocks of a range in the order in which they are accessed, again and again.
    pub(crate) fn steps(self, blocks: u32) -> Vec<Step> {
        match self.is_sequential() {
            true => (0..blocks).map(|block| Step::new(block, true)).collect(),
            false => uniform(1, blocks, self.is_write(), RANDOM_STEPS),
        }
    }
}

/// A load: its requests, depth and duration.
pub(crate) struct Load<'a> {
    pub(crate) operation: Operation,
    /// See [`Operation::steps`].
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

impl Client {
    /// Connects, and takes an export.
    pub(crate) fn connect(path: &Path, export: &str) -> LabResult<Self> {
        let mut stream = UnixStream::connect(path)?;
        // A server that stalls is an error and no reason to wait for ever.
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let agreed = greet(&mut stream).and_then(|()| go(&mut stream, export, &[]));
        agreed.map_err(|error| other(format!("{}: '{export}': {error}", path.display())))?;
        Ok(Client { stream, inbox: vec![0; INBOX], at: 0 })
    }

    /// Writes the first `span` bytes once, in large requests in random order: a stream would bypass
    /// a cache.
    pub(crate) fn fill(&mut self, span: u64) -> LabResult<()> {
        const LARGE: usize = 128 << 10;
        let mut request = vec![0x5a; REQUEST_BYTES + LARGE];
        for piece in permutation(1, span.div_ceil(LARGE as u64) as u32, true) {
            let offset = piece.block() * LARGE as u64;
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
        let write = load.operation.is_write();
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
