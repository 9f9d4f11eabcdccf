//! A server that follows a script, and lanes that use its export.
#![allow(dead_code)] // Each test binary uses a part of this.
#![expect(clippy::disallowed_methods, reason = "the servers of tests are threads")]

use std::cell::RefCell;
use std::future::Future;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;

use forebay_device::{Access, Device, DeviceError, DeviceOp, IoBuf, NbdUri, OpenError, Queue};
use forebay_lane::{LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_nbd_client::NbdDevice;
use forebay_nbd_wire::transmission_flag as flag;
use forebay_nbd_wire::*;
use zerocopy::big_endian::{U32, U64};
use zerocopy::{FromBytes, IntoBytes};

/// A size so small that no samples are taken.
pub(crate) const SMALL: u64 = 2048;

pub(crate) const FLAGS: u16 = flag::HAS_FLAGS
    | flag::SEND_FLUSH
    | flag::SEND_FUA
    | flag::SEND_WRITE_ZEROES
    | flag::SEND_FAST_ZERO
    | flag::CAN_MULTI_CONN;

/// A server's description of its export.
#[derive(Clone, Copy)]
pub(crate) struct Offer {
    pub(crate) size: u64,
    pub(crate) flags: u16,
    pub(crate) chunks: bool,
    pub(crate) most: u32,
}

impl Default for Offer {
    fn default() -> Self {
        Offer { size: SMALL, flags: FLAGS, chunks: false, most: 1 << 20 }
    }
}

impl Offer {
    pub(crate) fn chunks() -> Self {
        Offer { chunks: true, ..Offer::default() }
    }
}

/// One connection, on the server's side.
pub(crate) struct Wire {
    pub(crate) stream: UnixStream,
}

impl Wire {
    pub(crate) fn bytes(&mut self, len: usize) -> Option<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).ok()?;
        Some(bytes)
    }

    /// Sends bytes; does not fail if the client has disconnected.
    pub(crate) fn send(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    fn answer(&mut self, option: u32, kind: u32, data: &[u8]) {
        let header = OptionReplyHeader {
            magic: U64::new(OPTION_REPLY_MAGIC),
            option: U32::new(option),
            kind: U32::new(kind),
            len: U32::new(data.len() as u32),
        };
        self.send(&[header.as_bytes(), data].concat());
    }

    /// Does the handshake.
    pub(crate) fn agree(&mut self, offer: &Offer) -> Option<()> {
        self.send(Greeting::new().as_bytes());
        self.bytes(4)?;
        loop {
            let header = OptionHeader::read_from_bytes(&self.bytes(OptionHeader::SIZE)?).ok()?;
            self.bytes(header.len.get() as usize)?;
            let number = header.option.get();
            match number {
                option::STRUCTURED_REPLY if offer.chunks => {
                    self.answer(number, option_reply::ACK, &[]);
                }
                option::SET_META_CONTEXT => {
                    let context = [&7u32.to_be_bytes()[..], b"base:allocation"].concat();
                    self.answer(number, option_reply::META_CONTEXT, &context);
                    self.answer(number, option_reply::ACK, &[]);
                }
                option::GO => {
                    let mut export = info::EXPORT.to_be_bytes().to_vec();
                    export.extend_from_slice(&offer.size.to_be_bytes());
                    export.extend_from_slice(&offer.flags.to_be_bytes());
                    self.answer(number, option_reply::INFO, &export);
                    let mut sizes = info::BLOCK_SIZE.to_be_bytes().to_vec();
                    for size in [512, 512, offer.most] {
                        sizes.extend_from_slice(&u32::to_be_bytes(size));
                    }
                    self.answer(number, option_reply::INFO, &sizes);
                    self.answer(number, option_reply::ACK, &[]);
                    return Some(());
                }
                _ => self.answer(number, option_reply::ERR_UNSUP, &[]),
            }
        }
    }

    /// Waits for a request; `None` if the client has disconnected.
    pub(crate) fn request(&mut self) -> Option<(Header, Vec<u8>)> {
        let bytes = self.bytes(RequestHeader::SIZE)?;
        let (header, _) = Header::read(&bytes, Headers::Simple).expect("the magic number")?;
        let payload = self.bytes(header.payload(Headers::Simple) as usize)?;
        Some((header, payload))
    }

    /// Waits for a request of this kind, answered by the caller.
    pub(crate) fn expect(&mut self, command: u16) -> (Header, Vec<u8>) {
        let (header, payload) = self.request().expect("a request");
        assert_eq!(header.command, command);
        (header, payload)
    }

    pub(crate) fn simple(&mut self, cookie: u64, error: u32, data: &[u8]) {
        let mut reply = SimpleReply::new(cookie, None);
        reply.error = U32::new(error);
        self.send(&[reply.as_bytes(), data].concat());
    }

    pub(crate) fn chunk(&mut self, cookie: u64, (flags, kind): (u16, u16), content: &[u8]) {
        let header = ChunkHeader::new(cookie, flags, kind, content.len() as u32);
        self.send(&[header.as_bytes(), content].concat());
    }

    /// Answers requests in order, with `byte` as the content, until the client disconnects.
    pub(crate) fn serve(&mut self, byte: u8) {
        while let Some((header, _)) = self.request() {
            if header.command == command::DISC {
                return;
            }
            let data = match header.command {
                command::READ => vec![byte; header.len as usize],
                _ => Vec::new(),
            };
            self.simple(header.cookie, 0, &data);
        }
    }
}

/// A server with one script for each connection, in order. Connections run concurrently.
pub(crate) struct Server {
    pub(crate) path: PathBuf,
    _folder: tempfile::TempDir,
    threads: Receiver<JoinHandle<()>>,
}

pub(crate) type Script = Box<dyn FnOnce(&mut Wire) + Send>;

pub(crate) fn script(run: impl FnOnce(&mut Wire) + Send + 'static) -> Script {
    Box::new(run)
}

/// A script that negotiates an export first.
pub(crate) fn agreed(offer: Offer, run: impl FnOnce(&mut Wire) + Send + 'static) -> Script {
    script(move |wire| {
        if wire.agree(&offer).is_some() {
            run(wire);
        }
    })
}

impl Server {
    /// Listens until the scripts are used up.
    pub(crate) fn new(scripts: Vec<Script>) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("s");
        let listener = UnixListener::bind(&path).expect("listens");
        let (tell, threads) = channel();
        let also = tell.clone();
        let first = std::thread::spawn(move || {
            for script in scripts {
                let (stream, _) = listener.accept().expect("a client");
                let one = std::thread::spawn(move || script(&mut Wire { stream }));
                let _ = also.send(one);
            }
        });
        tell.send(first).expect("kept");
        Server { path, _folder: folder, threads }
    }

    pub(crate) fn uri(&self, parameters: &str) -> NbdUri {
        let text = format!("nbd+unix:///?socket={}{parameters}", self.path.display());
        text.parse().expect("good")
    }

    pub(crate) fn open(&self, parameters: &str) -> Result<Arc<dyn Device>, OpenError> {
        NbdDevice::open(&self.uri(parameters), Access::Exclusive)
    }

    /// Waits for the scripts; their failures are the caller's.
    pub(crate) fn join(self) {
        for thread in self.threads.try_iter() {
            thread.join().expect("the script went as planned");
        }
    }
}

std::thread_local! {
    static HERE: RefCell<Option<LaneLoop>> = const { RefCell::new(None) };
}

/// A lane that runs jobs with a queue of its own.
pub(crate) struct OnLane(LaneThread);

impl OnLane {
    pub(crate) fn new() -> Self {
        let clock = Arc::new(MonotonicClock::new());
        let keep = |here: &LaneLoop| HERE.set(Some(here.clone()));
        let lane = LaneThread::spawn("test-lane", LaneId(0), clock, LaneOptions::default(), keep);
        OnLane(lane.expect("a lane"))
    }

    /// Runs a job with a new queue to the device; drops the queue at its end.
    pub(crate) fn run<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        device: &Arc<dyn Device>,
        job: impl FnOnce(Queue) -> F + Send + 'static,
    ) -> T {
        self.begin(device, job).recv().expect("the job has ended")
    }

    /// Like [`OnLane::run`], without waiting.
    pub(crate) fn begin<T: Send + 'static, F: Future<Output = T> + 'static>(
        &self,
        device: &Arc<dyn Device>,
        job: impl FnOnce(Queue) -> F + Send + 'static,
    ) -> Receiver<T> {
        let (tell, hear) = channel();
        let device = device.clone();
        self.0.remote().run(move |lane| {
            let here = HERE.with_borrow(Clone::clone).expect("set up");
            let queue = here.open(&*device).expect("a queue");
            let job = job(queue);
            lane.spawn(async move {
                let _ = tell.send(job.await);
            });
        });
        hear
    }
}

/// Reads `len` bytes.
pub(crate) async fn read(queue: &Queue, offset: u64, len: usize) -> Result<Vec<u8>, DeviceError> {
    // Fill the buffer, so that bytes that the read does not set are noticed.
    let mut buf = IoBuf::zeroed(len);
    buf.fill(0xee);
    queue.read(offset, buf).await.map(|buf| buf.to_vec())
}

pub(crate) async fn write(
    queue: &Queue,
    offset: u64,
    byte: u8,
    len: usize,
) -> Result<(), DeviceError> {
    let mut buf = IoBuf::zeroed(len);
    buf.fill(byte);
    queue.write(offset, buf).await.map(drop)
}

pub(crate) async fn run(queue: &Queue, op: DeviceOp) -> Result<(), DeviceError> {
    queue.run(op).await.result
}
