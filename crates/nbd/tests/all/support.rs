//! A server on a lane of its own, and a blocking client that can also break the protocol.
#![allow(dead_code)] // Each test binary uses a part of this.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};
use std::sync::{Once, mpsc};

use forebay_core::{IoError, Op};
use forebay_device::{
    Device, DeviceError, DeviceErrorKind, DeviceExtent, DeviceQueue, QueueContext,
};
use forebay_engine::{BlockService, CompletionSink, Exports, Extent, Request, StateExtent};
use forebay_lane::{Lane, LaneId, LaneLoop, LaneOptions, LaneThread, MemoryBudget, MonotonicClock};
use forebay_nbd::null::{ExportList, LaterTarget, MemoryDisk, MemoryTarget, NullTarget};
use forebay_nbd::wire::*;
use forebay_nbd::{ConnectionCount, Limits, ListenAddress, Listener, Server};
use parking_lot::{Condvar, Mutex};
use zerocopy::IntoBytes;
use zerocopy::big_endian::{U16, U32, U64};

pub(crate) const DISK: u64 = 64 << 20;

/// Number of panics on lanes. A lane survives panics of its tasks; a test must not.
static PANICS: AtomicUsize = AtomicUsize::new(0);

const LANE_NAME: &str = "nbd-test-lane";

fn count_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name() == Some(LANE_NAME) {
                PANICS.fetch_add(1, Ordering::SeqCst);
            }
            usual(info);
        }));
    });
}

/// The state that lives on the lane.
pub(crate) struct State {
    pub(crate) lane: LaneLoop,
    pub(crate) later: Rc<LaterTarget>,
    pub(crate) server: RefCell<Option<Server>>,
}

/// A device that is one hole, and reports it unless it hangs.
pub(crate) struct OneHole {
    pub(crate) hangs: Mutex<bool>,
    pub(crate) goes_on: Condvar,
}

pub(crate) static ONE_HOLE: LazyLock<Arc<OneHole>> =
    LazyLock::new(|| Arc::new(OneHole { hangs: Mutex::new(false), goes_on: Condvar::new() }));

impl OneHole {
    pub(crate) fn hang(&self, hangs: bool) {
        *self.hangs.lock() = hangs;
        self.goes_on.notify_all();
    }
}

impl Device for OneHole {
    fn name(&self) -> &str {
        "one hole"
    }

    fn size(&self) -> u64 {
        DISK
    }

    fn logical_block(&self) -> u64 {
        512
    }

    fn knows_holes(&self) -> bool {
        true
    }

    fn extent_at(&self, offset: u64) -> Option<DeviceExtent> {
        let mut hangs = self.hangs.lock();
        while *hangs {
            self.goes_on.wait(&mut hangs);
        }
        (offset < DISK).then_some(DeviceExtent { end: DISK, hole: true })
    }

    fn open_queue(&self, _: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let (device, cause) = ("one hole".into(), "nothing is read from it".into());
        let kind = DeviceErrorKind::NotSupported;
        Err(DeviceError { kind, device, what: "open", offset: 0, cause })
    }
}

/// A volume on [`OneHole`]; its second MiB is cached, and its third is dirty.
struct OnOneHole(NullTarget);

impl BlockService for OnOneHole {
    fn size(&self) -> u64 {
        DISK
    }

    fn preferred_block(&self) -> u64 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        self.0.read_now(offset, into)
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        self.0.write_now(offset, data)
    }

    /// More memory than there is, except for reads.
    fn memory(&self, op: Op, _: u64, len: u64) -> u64 {
        if op == Op::Read { len } else { u64::MAX / 2 }
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        self.0.submit(request, sink);
    }

    fn extents(&self, _: u64, len: u64) -> Vec<Extent> {
        vec![Extent { len, hole: false, zero: false }]
    }

    fn states(&self, offset: u64, len: u64) -> Option<Vec<StateExtent>> {
        // Answers like a tier that knows only one MiB at a time.
        let (mib, rest) = (offset >> 20, (1 << 20) - offset % (1 << 20));
        let (cached, dirty) = (mib == 1 || mib == 2, mib == 2);
        Some(vec![StateExtent { len: len.min(rest), cached, dirty }])
    }

    fn origin(&self) -> Option<Arc<dyn Device>> {
        Some(ONE_HOLE.clone())
    }
}

/// Ends with the lane.
struct Cleaner;

impl Drop for Cleaner {
    fn drop(&mut self) {
        STATE.take();
    }
}

thread_local! {
    static STATE: RefCell<Option<Rc<State>>> = const { RefCell::new(None) };
}

/// Exports; `vanishing` is dismissed as soon as a client has chosen it.
struct Vanishing(ExportList, Rc<Lane>);

impl Exports for Vanishing {
    fn names(&self) -> Vec<String> {
        self.0.names()
    }

    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        if name == "vanishing" {
            // This runs before the ring has sent the answer to the client.
            self.1.spawn(async {
                let state = STATE.with_borrow(|state| state.clone()).expect("state");
                if let Some(server) = &*state.server.borrow() {
                    server.dismiss("vanishing");
                }
            });
        }
        self.0.open(name)
    }
}

/// A lane with a server. Exports: `memory` answers at once and `later` does not, both on one disk;
/// `null` and `read-only` are empty; `holes` is partly a hole; `vanishing` is empty, and is
/// dismissed when it is opened.
pub(crate) struct TestServer {
    pub(crate) address: ListenAddress,
    pub(crate) count: ConnectionCount,
    thread: Option<LaneThread>,
    _folder: tempfile::TempDir,
}

impl TestServer {
    pub(crate) fn start() -> Self {
        Self::start_with(Limits::default())
    }

    pub(crate) fn start_with(limits: Limits) -> Self {
        Self::start_within(limits, Arc::default())
    }

    pub(crate) fn start_within(limits: Limits, memory: Arc<MemoryBudget>) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let address = ListenAddress::Unix(folder.path().join("nbd"));
        let listener = Listener::bind(&address).expect("listener");
        Self::start_on(folder, listener, limits, ConnectionCount::within(memory))
    }

    pub(crate) fn start_on(
        folder: tempfile::TempDir,
        listener: Arc<Listener>,
        limits: Limits,
        count: ConnectionCount,
    ) -> Self {
        let address = listener.address().clone();
        count_panics();
        let lane_count = count.clone();
        let setup = move |lane_loop: &LaneLoop| {
            let (lane, ring) = (lane_loop.lane(), lane_loop.ring());
            let memory: Rc<dyn BlockService> = Rc::new(MemoryTarget(MemoryDisk::new(DISK)));
            let later = Rc::new(LaterTarget::new(lane.clone(), memory.clone()));
            let exports = ExportList::new(vec![
                ("memory".into(), memory),
                ("later".into(), later.clone()),
                ("null".into(), Rc::new(NullTarget::new(1 << 40, false))),
                ("read-only".into(), Rc::new(NullTarget::new(DISK, true))),
                ("holes".into(), Rc::new(OnOneHole(NullTarget::new(DISK, false)))),
                ("vanishing".into(), Rc::new(NullTarget::new(DISK, false))),
            ]);
            let exports = Rc::new(Vanishing(exports, lane.clone()));
            let server = Server::serve(lane, ring, &[listener], exports, limits, lane_count);
            let server = RefCell::new(Some(server));
            STATE.set(Some(Rc::new(State { lane: lane_loop.clone(), later, server })));
            Cleaner
        };
        let clock = Arc::new(MonotonicClock::new());
        let thread = LaneThread::spawn(LANE_NAME, LaneId(0), clock, LaneOptions::default(), setup);
        let thread = Some(thread.expect("the lane starts"));
        TestServer { address, count, thread, _folder: folder }
    }

    pub(crate) fn path(&self) -> PathBuf {
        match &self.address {
            ListenAddress::Unix(path) => path.clone(),
            ListenAddress::Tcp { .. } => panic!("not a unix socket"),
        }
    }

    /// Runs `job` on the lane and waits for its result.
    pub(crate) fn on_lane<R: Send + 'static>(
        &self,
        job: impl FnOnce(&State) -> R + Send + 'static,
    ) -> R {
        let (send, receive) = mpsc::channel();
        self.thread.as_ref().expect("a lane").remote().run(move |_| {
            let state = STATE.with_borrow(|state| state.clone()).expect("state");
            let _ = send.send(job(&state));
        });
        receive.recv().expect("the lane runs")
    }

    pub(crate) fn wait_until(&self, condition: impl Fn(&State) -> bool + Send + Clone + 'static) {
        while !self.on_lane(condition.clone()) {
            std::thread::yield_now();
        }
    }

    pub(crate) fn clients(&self) -> usize {
        self.on_lane(|state| state.server.borrow().as_ref().map_or(0, Server::clients))
    }

    pub(crate) fn wait_until_empty(&self) {
        // A place stays taken as long as requests are in flight.
        while self.clients() + self.count.get() > 0 {
            std::thread::yield_now();
        }
    }

    /// Starts the server's stop; the lane ends with the server.
    pub(crate) fn begin_stop(&self) {
        self.on_lane(move |state| {
            let Some(server) = state.server.take() else { return };
            let lane = state.lane.clone();
            state.lane.lane().spawn(async move {
                server.stop().await;
                lane.stop();
            });
        });
    }

    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the lane does not panic");
            assert_eq!(PANICS.load(Ordering::SeqCst), 0, "a task on a lane panicked");
        }
    }

    pub(crate) fn connect(&self) -> Client {
        Client::handshake(UnixStream::connect(self.path()).expect("connect"))
    }

    pub(crate) fn open(&self, export: &str, headers: Headers) -> Client {
        let mut client = self.connect();
        client.go(export, headers);
        client
    }
}

impl Drop for TestServer {
    fn drop(&mut self) {
        if self.thread.is_some() && !std::thread::panicking() {
            self.on_lane(|state| state.later.release());
            self.begin_stop();
            self.join();
        }
    }
}

/// One reply to a request.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) cookie: u64,
    pub(crate) error: u32,
    pub(crate) data: Vec<u8>,
}

pub(crate) struct Client<S = UnixStream> {
    pub(crate) stream: S,
    pub(crate) size: u64,
    pub(crate) flags: u16,
    headers: Headers,
    /// The command, offset and length of each unanswered request.
    asked: HashMap<u64, (u16, u64, u64)>,
    next_cookie: u64,
}

impl<S: Read + Write> Client<S> {
    pub(crate) fn handshake(mut stream: S) -> Self {
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).expect("greeting");
        assert_eq!(greeting, *b"NBDMAGICIHAVEOPT\0\x03");
        stream.write_all(&3u32.to_be_bytes()).expect("flags");
        let asked = HashMap::new();
        Client { stream, size: 0, flags: 0, headers: Headers::Simple, asked, next_cookie: 1 }
    }

    /// Returns the same client over another stream.
    pub(crate) fn over<T>(self, change: impl FnOnce(S) -> T) -> Client<T> {
        let Client { stream, size, flags, headers, asked, next_cookie } = self;
        Client { stream: change(stream), size, flags, headers, asked, next_cookie }
    }

    fn u16(&mut self) -> u16 {
        let mut bytes = [0; 2];
        self.stream.read_exact(&mut bytes).expect("two bytes");
        u16::from_be_bytes(bytes)
    }

    fn u32(&mut self) -> u32 {
        let mut bytes = [0; 4];
        self.stream.read_exact(&mut bytes).expect("four bytes");
        u32::from_be_bytes(bytes)
    }

    fn u64(&mut self) -> u64 {
        let mut bytes = [0; 8];
        self.stream.read_exact(&mut bytes).expect("eight bytes");
        u64::from_be_bytes(bytes)
    }

    pub(crate) fn bytes(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("bytes");
        bytes
    }

    pub(crate) fn send_option(&mut self, option: u32, data: &[u8]) {
        let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
        bytes.extend_from_slice(&option.to_be_bytes());
        bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
        bytes.extend_from_slice(data);
        self.stream.write_all(&bytes).expect("option");
    }

    /// Returns the replies to an option, up to the last one.
    pub(crate) fn option_replies(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.u64(), OPTION_REPLY_MAGIC);
            assert_eq!(self.u32(), option);
            let (kind, len) = (self.u32(), self.u32());
            let data = self.bytes(len as usize);
            replies.push((kind, data));
            if kind == option_reply::ACK || kind >> 31 == 1 {
                return replies;
            }
        }
    }

    pub(crate) fn go(&mut self, export: &str, headers: Headers) {
        let name = [&(export.len() as u32).to_be_bytes(), export.as_bytes()].concat();
        self.headers = headers;
        let option = match headers {
            Headers::Simple => None,
            Headers::Structured => Some(option::STRUCTURED_REPLY),
            Headers::Extended => Some(option::EXTENDED_HEADERS),
        };
        if let Some(option) = option {
            self.send_option(option, &[]);
            self.option_replies(option);
            let query = [&15u32.to_be_bytes()[..], b"base:allocation"].concat();
            let data = [&name, &1u32.to_be_bytes()[..], &query].concat();
            self.send_option(option::SET_META_CONTEXT, &data);
            assert_eq!(self.option_replies(option::SET_META_CONTEXT).len(), 2);
        }
        self.send_option(option::GO, &[&name, &[0, 0][..]].concat());
        let replies = self.option_replies(option::GO);
        assert_eq!(replies.last().map(|(kind, _)| *kind), Some(option_reply::ACK));
        let export = &replies[0].1;
        self.size = u64::from_be_bytes(export[2..10].try_into().expect("size"));
        self.flags = u16::from_be_bytes(export[10..12].try_into().expect("flags"));
    }

    /// Sends a request and returns its cookie.
    pub(crate) fn send(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> u64 {
        let (cookie, bytes) = self.encode(command, flags, offset, len);
        self.stream.write_all(&[&bytes, data].concat()).expect("request");
        cookie
    }

    pub(crate) fn encode(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u64,
    ) -> (u64, Vec<u8>) {
        let cookie = self.next_cookie;
        self.next_cookie += 1;
        self.asked.insert(cookie, (command, offset, len));
        let (command_code, cookie_code) = (U16::new(command), U64::new(cookie));
        if self.headers == Headers::Extended {
            let payload = if command == command::WRITE { command_flag::PAYLOAD_LEN } else { 0 };
            let header = ExtendedRequestHeader {
                magic: U32::new(EXTENDED_REQUEST_MAGIC),
                flags: U16::new(flags | payload),
                command: command_code,
                cookie: cookie_code,
                offset: U64::new(offset),
                len: U64::new(len),
            };
            return (cookie, header.as_bytes().to_vec());
        }
        let header = RequestHeader {
            magic: U32::new(REQUEST_MAGIC),
            flags: U16::new(flags),
            command: command_code,
            cookie: cookie_code,
            offset: U64::new(offset),
            len: U32::new(u32::try_from(len).expect("a compact length")),
        };
        (cookie, header.as_bytes().to_vec())
    }

    /// Returns the next reply, whatever its form.
    pub(crate) fn reply(&mut self) -> Reply {
        let magic = self.u32();
        if magic == SIMPLE_REPLY_MAGIC {
            assert_ne!(self.headers, Headers::Extended);
            let (error, cookie) = (self.u32(), self.u64());
            let (command, _, len) = self.asked.remove(&cookie).expect("asked");
            let read = command == command::READ;
            assert!(!(self.headers.has_chunks() && read), "a read is answered in chunks");
            let len = if read && error == 0 { len } else { 0 };
            return Reply { cookie, error, data: self.bytes(len as usize) };
        }
        let extended = self.headers == Headers::Extended;
        assert_eq!(magic, if extended { EXTENDED_CHUNK_MAGIC } else { CHUNK_MAGIC });
        assert!(self.headers.has_chunks());
        assert_eq!(self.u16(), chunk::FLAG_DONE);
        let (kind, cookie) = (self.u16(), self.u64());
        let (_, offset, asked) = self.asked.remove(&cookie).expect("asked");
        let len = if extended {
            assert_eq!(self.u64(), offset);
            self.u64()
        } else {
            self.u32().into()
        };
        let mut error = 0;
        let data = match kind {
            chunk::NONE => Vec::new(),
            chunk::OFFSET_DATA => {
                assert_eq!((offset, asked), (self.u64(), len - 8));
                self.bytes(len as usize - 8)
            }
            chunk::BLOCK_STATUS if !extended => {
                assert_eq!(self.u32(), allocation::ID);
                self.bytes(len as usize - 4)
            }
            chunk::BLOCK_STATUS_EXT if extended => {
                assert_eq!(self.u32(), allocation::ID);
                assert_eq!(u64::from(self.u32()) * 16 + 8, len);
                self.bytes(len as usize - 8)
            }
            chunk::ERROR => {
                error = self.u32();
                let text = self.u16() as usize;
                assert_eq!(text + 6, len as usize);
                String::from_utf8(self.bytes(text)).expect("UTF-8");
                Vec::new()
            }
            other => panic!("chunk of kind {other}"),
        };
        Reply { cookie, error, data }
    }

    /// Sends one request and returns its reply: the data, or the error.
    pub(crate) fn ask(
        &mut self,
        command: u16,
        flags: u16,
        offset: u64,
        len: u64,
        data: &[u8],
    ) -> Result<Vec<u8>, u32> {
        let cookie = self.send(command, flags, offset, len, data);
        let reply = self.reply();
        assert_eq!(reply.cookie, cookie);
        if reply.error == 0 { Ok(reply.data) } else { Err(reply.error) }
    }

    pub(crate) fn read(&mut self, offset: u64, len: u64) -> Result<Vec<u8>, u32> {
        self.ask(command::READ, 0, offset, len, &[])
    }

    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<Vec<u8>, u32> {
        self.ask(command::WRITE, 0, offset, data.len() as u64, data)
    }

    /// Returns whether the server has closed the connection: nothing more arrives.
    pub(crate) fn is_closed(&mut self) -> bool {
        matches!(self.stream.read(&mut [0; 1]), Ok(0) | Err(_))
    }
}

/// Returns bytes that differ from offset to offset.
pub(crate) fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len + 8);
    while bytes.len() < len {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(len);
    bytes
}
