//! A channel against a volume in RAM, with a pair of sockets in place of the kernel's device.

use std::cell::OnceCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use forebay_engine::Extent;
use forebay_lane::{LaneId, LaneOptions, LaneThread, MemoryBudget, MonotonicClock};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair, sockopt};
use zerocopy::FromBytes;

use super::*;
use crate::wire::{FallocateIn, InHeader, ROOT, ReadIn, WriteIn, opcode};

const SIZE: usize = 1 << 20;

/// The time at which the volume answers.
#[derive(Clone, Copy, PartialEq, Eq)]
enum How {
    /// Immediately.
    Now,
    /// When the lane has done everything else, the last request first.
    Later,
    /// Answers later with an error because the volume ends. The channel is left before that.
    Ending,
    /// The volume is gone and the channel is left just after a request was taken.
    Gone,
}

/// A volume in RAM that cannot give space back.
struct Ram {
    how: How,
    data: RefCell<Vec<u8>>,
    waiting: RefCell<VecDeque<(Request, Rc<dyn CompletionSink>)>>,
    lane: Rc<Lane>,
    this: OnceCell<Weak<Ram>>,
    channel: OnceCell<Weak<Channel>>,
    seen: Arc<Seen>,
}

/// The requests that the volume received.
#[derive(Default)]
struct Seen {
    flushes: AtomicUsize,
    durable: AtomicUsize,
    refused: AtomicUsize,
}

impl Ram {
    fn range(offset: u64, len: usize) -> Range<usize> {
        offset as usize..offset as usize + len
    }

    fn answer(&self, request: Request) -> Completion {
        let Request { tag, op, offset, len, survives, fast, data, .. } = request;
        self.seen
            .durable
            .fetch_add(usize::from(survives == Survives::PowerLoss), Ordering::Relaxed);
        let (mut result, mut data) = (Ok(()), data);
        let mut all = self.data.borrow_mut();
        match op {
            Op::Read => {
                let into = data.as_mut().expect("a buffer");
                into.copy_from_slice(&all[Self::range(offset, len as usize)]);
            }
            Op::Write => {
                let from = data.as_ref().expect("data");
                all[Self::range(offset, from.len())].copy_from_slice(from);
            }
            Op::WriteZeroes if fast => {
                self.seen.refused.fetch_add(1, Ordering::Relaxed);
                result = Err(IoError::NotSupported);
            }
            Op::WriteZeroes => all[Self::range(offset, len as usize)].fill(0),
            Op::Flush => drop(self.seen.flushes.fetch_add(1, Ordering::Relaxed)),
            Op::Discard | Op::Prefetch => result = Err(IoError::Invalid),
        }
        Completion { tag, result, data }
    }
}

impl BlockService for Ram {
    fn size(&self) -> u64 {
        SIZE as u64
    }

    fn preferred_block(&self) -> u64 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        (self.how == How::Now).then(|| {
            into.copy_from_slice(&self.data.borrow()[Self::range(offset, into.len())]);
            Ok(())
        })
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        (self.how == How::Now).then(|| {
            self.data.borrow_mut()[Self::range(offset, data.len())].copy_from_slice(data);
            Ok(())
        })
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        if self.how == How::Now {
            return sink.complete(self.answer(request));
        }
        self.waiting.borrow_mut().push_back((request, sink.clone()));
        let this = self.this.get().and_then(Weak::upgrade).expect("it is there");
        self.lane.spawn(async move {
            forebay_lane::yield_now().await;
            let (request, sink) = this.waiting.borrow_mut().pop_back().expect("one for each task");
            if this.how == How::Ending {
                let channel = this.channel.get().and_then(Weak::upgrade).expect("it is there");
                channel.leave();
                let Request { tag, data, .. } = request;
                return sink.complete(Completion { tag, result: Err(IoError::ShuttingDown), data });
            }
            sink.complete(this.answer(request));
        });
    }

    fn extents(&self, _: u64, len: u64) -> Vec<Extent> {
        vec![Extent { len, hole: false, zero: false }]
    }
}

/// Makes a volume in RAM, and the facts about its file.
fn volume(how: How, lane: &Rc<Lane>, seen: Arc<Seen>) -> (Rc<Ram>, FileFacts) {
    let ram = Rc::new(Ram {
        how,
        data: RefCell::new(vec![0; SIZE]),
        waiting: RefCell::default(),
        lane: lane.clone(),
        this: OnceCell::new(),
        channel: OnceCell::new(),
        seen,
    });
    let _ = ram.this.set(Rc::downgrade(&ram));
    let file = FileFacts {
        size: SIZE as u64,
        sector: 512,
        read_only: false,
        block: 4096,
        uid: 0,
        gid: 0,
        outlives: false,
        io_uring: false,
    };
    (ram, file)
}

/// The other end of a channel that a lane serves.
struct Kernel {
    socket: OwnedFd,
    seen: Arc<Seen>,
    memory: Arc<MemoryBudget>,
    /// Receives, when the channel has ended, whether it has a connection for the next program.
    ends: std::sync::mpsc::Receiver<bool>,
    _lane: LaneThread,
}

fn message(opcode: u32, unique: u64, body: &[u8]) -> Vec<u8> {
    let header = InHeader {
        len: (size_of::<InHeader>() + body.len()) as u32,
        opcode,
        unique,
        node: ROOT,
        uid: 0,
        gid: 0,
        pid: 0,
        extensions: 0,
        padding: 0,
    };
    [header.as_bytes(), body].concat()
}

/// Takes a flush when the volume is gone.
async fn take_late(channel: &Rc<Channel>) {
    channel.let_go();
    channel.leave();
    let message = message(opcode::FSYNC, 1, &[0; 16]);
    let (mut buf, len) = (IoBuf::for_overwrite(BUFFER), message.len());
    buf[START..START + len].copy_from_slice(&message);
    let sink: Rc<dyn CompletionSink> = channel.clone();
    channel.execute(Taken { buf, len }, &sink).await;
}

impl Kernel {
    fn new(how: How) -> Self {
        Self::of_file(how, false)
    }

    fn of_file(how: How, outlives: bool) -> Self {
        let flags = SocketFlags::CLOEXEC;
        let made = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (mine, theirs) = made.expect("a pair of sockets");
        for socket in [&mine, &theirs] {
            sockopt::set_socket_send_buffer_size(socket, 4 << 20).expect("larger");
        }
        rustix::io::ioctl_fionbio(&mine, true).expect("a socket");
        let (seen, memory) = (Arc::<Seen>::default(), Arc::new(MemoryBudget::new(1 << 30)));
        let (own_seen, own_memory) = (seen.clone(), memory.clone());
        let (ended, ends) = std::sync::mpsc::channel();
        let clock = Arc::new(MonotonicClock::new());
        let options = LaneOptions { spin: Duration::ZERO, wide_ring: false };
        let lane = LaneThread::spawn("lane", LaneId(0), clock, options, move |this| {
            let (lane, ring) = (this.lane().clone(), this.ring().clone());
            let (ram, file) = volume(how, &lane, own_seen);
            let file = FileFacts { outlives, ..file };
            let memory = Rc::new(LaneMemory::new(own_memory));
            let (target, tools) = (ram.clone(), (lane.clone(), ring, memory));
            let channel = Channel::new("v", mine, (target, file), tools);
            let _ = ram.channel.set(Rc::downgrade(&channel));
            lane.spawn(async move {
                if how == How::Gone {
                    take_late(&channel).await;
                }
                channel.serve().await;
                let _ = ended.send(channel.left().is_some());
                channel.let_go();
            });
        });
        Kernel { socket: theirs, seen, memory, ends, _lane: lane.expect("a thread") }
    }

    fn send(&self, opcode: u32, unique: u64, body: &[u8]) {
        let message = message(opcode, unique, body);
        let sent = rustix::io::write(&self.socket, &message).expect("sent");
        assert_eq!(sent, message.len());
    }

    fn read(&self, unique: u64, offset: u64, size: u32) {
        let body =
            ReadIn { handle: 0, offset, size, read_flags: 0, lock_owner: 0, flags: 0, padding: 0 };
        self.send(opcode::READ, unique, body.as_bytes());
    }

    fn write(&self, unique: u64, offset: u64, data: &[u8], flags: u32) {
        let size = data.len() as u32;
        let body =
            WriteIn { handle: 0, offset, size, write_flags: 0, lock_owner: 0, flags, padding: 0 };
        self.send(opcode::WRITE, unique, &[body.as_bytes(), data].concat());
    }

    fn punch(&self, unique: u64, offset: u64, len: u64) {
        let body = FallocateIn { handle: 0, offset, len, mode: 3, padding: 0 };
        self.send(opcode::FALLOCATE, unique, body.as_bytes());
    }

    /// Waits until the channel has been left.
    fn gets_no_other_reply(self) {
        assert_eq!(self.ends.recv_timeout(Duration::from_secs(20)), Ok(true));
        let Kernel { socket, _lane: lane, .. } = self;
        drop(lane);
        assert_eq!(rustix::io::read(&socket, &mut [0; 64]), Ok(0));
    }

    /// Receives a reply: the request, the error and the content.
    fn reply(&self) -> (u64, i32, Vec<u8>) {
        let mut bytes = vec![0; 1 << 20];
        let len = rustix::io::read(&self.socket, &mut bytes).expect("received");
        let (header, content) = OutHeader::read_from_prefix(&bytes[..len]).expect("a header");
        assert_eq!(header.len as usize, len);
        (header.unique, header.error, content.to_vec())
    }
}

fn pattern(len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 251) as u8).collect()
}

#[test]
fn data_of_every_size_come_back_at_any_offset() {
    for how in [How::Now, How::Later] {
        let kernel = Kernel::new(how);
        for len in [512, 4096, COPIED, COPIED + 512, MAX_TRANSFER as usize] {
            let data = pattern(len);
            kernel.write(1, 1024, &data, 0);
            let (unique, error, content) = kernel.reply();
            assert_eq!((unique, error), (1, 0), "{len}");
            assert_eq!(content[..4], (len as u32).to_ne_bytes());
            for (skip, part) in [(0, len), (1, len - 1), (100, 300), (511, 1), (17, 495)] {
                kernel.read(2, 1024 + skip, part as u32);
                let (unique, error, content) = kernel.reply();
                assert_eq!((unique, error), (2, 0));
                assert!(content == data[skip as usize..skip as usize + part], "{len} {skip}");
            }
        }
        kernel.read(3, SIZE as u64 - 100, 4096);
        assert_eq!(kernel.reply().2.len(), 100, "short at the end");
    }
}

#[test]
fn requests_in_flight_are_answered_whatever_their_order() {
    for how in [How::Now, How::Later] {
        let kernel = Kernel::new(how);
        const MANY: u64 = 600;
        let writer = |from: u64| {
            for number in from..from + 50 {
                kernel.write(number, number * 512, &[number as u8; 512], 0);
            }
        };
        let mut answered = vec![false; MANY as usize];
        for from in (0..MANY).step_by(50) {
            writer(from);
            for _ in 0..50 {
                let (unique, error, _) = kernel.reply();
                assert_eq!(error, 0);
                assert!(!std::mem::replace(&mut answered[unique as usize], true));
            }
        }
        kernel.read(1, 0, MAX_TRANSFER);
        let all = kernel.reply().2;
        for number in 0..(MAX_TRANSFER as usize / 512) {
            assert!(all[number * 512..][..512].iter().all(|byte| *byte == number as u8));
        }
    }
}

#[test]
fn syncs_are_flushes_and_synchronous_writes_durable() {
    for how in [How::Now, How::Later] {
        let kernel = Kernel::new(how);
        kernel.send(opcode::FSYNC, 5, &[0; 16]);
        assert_eq!(kernel.reply(), (5, 0, Vec::new()));
        kernel.send(opcode::FLUSH, 6, &[0; 24]);
        assert_eq!(kernel.reply(), (6, 0, Vec::new()));
        assert_eq!(kernel.seen.flushes.load(Ordering::Relaxed), 1);
        for (flags, durable) in [(0, 0), (rustix::fs::OFlags::DSYNC.bits(), 1)] {
            kernel.write(7, 0, &[1; 512], flags);
            assert_eq!(kernel.reply().1, 0);
            assert_eq!(kernel.seen.durable.load(Ordering::Relaxed), durable);
        }
    }
}

#[test]
fn without_discard_small_holes_are_written_and_large_refused() {
    for how in [How::Now, How::Later] {
        let kernel = Kernel::new(how);
        kernel.write(1, 0, &[9; 64 << 10], 0);
        assert_eq!(kernel.reply().1, 0);
        for (len, error) in [(512, 0), (7680, 0), (8192, Errno::OPNOTSUPP.raw_os_error())] {
            kernel.punch(2, 512, len);
            assert_eq!(kernel.reply(), (2, -error, Vec::new()), "{len}");
        }
        assert_eq!(kernel.seen.refused.load(Ordering::Relaxed), 3);
        kernel.read(3, 0, 16384);
        let content = kernel.reply().2;
        assert!(content[..512].iter().all(|byte| *byte == 9));
        assert!(content[512..8192].iter().all(|byte| *byte == 0));
        assert!(content[8192..].iter().all(|byte| *byte == 9));
    }
}

#[test]
fn a_malformed_or_unknown_request_does_not_stop_the_next() {
    let kernel = Kernel::new(How::Now);
    rustix::io::write(&kernel.socket, &[1; 39]).expect("sent");
    for (opcode, body, error) in [
        (opcode::READ, &[0; 39][..], Errno::INVAL),
        (opcode::WRITE, &[0xff; 100][..], Errno::INVAL),
        (9999, &[][..], Errno::NOSYS),
        (opcode::LOOKUP, b"x\0", Errno::NOTDIR),
    ] {
        kernel.send(opcode, 8, body);
        assert_eq!(kernel.reply(), (8, -error.raw_os_error(), Vec::new()), "{opcode}");
    }
    kernel.send(opcode::FORGET, 9, &[0; 8]);
    kernel.send(opcode::GETATTR, 10, &[0; 16]);
    let (unique, error, content) = kernel.reply();
    assert_eq!((unique, error, content.len()), (10, 0, 104));
}

#[test]
fn memory_is_given_back_and_a_channel_ends_with_its_connection() {
    let kernel = Kernel::new(How::Later);
    for number in 0..100 {
        kernel.write(number, 0, &[1; 65536], 0);
        kernel.read(number, 0, 65536);
        for _ in 0..2 {
            assert_eq!(kernel.reply().1, 0);
        }
    }
    let Kernel { socket, memory, _lane: lane, .. } = kernel;
    drop(socket);
    drop(lane);
    assert_eq!(memory.used(forebay_lane::MemoryUse::Requests), 0);
}

/// Runs `work` with a channel on its lane, and returns the receiver of its results. The daemon's
/// memory is enough for one request of [`SIZE`].
fn with_channel<T: Send + 'static>(
    work: impl FnOnce(&Rc<Lane>, Rc<Channel>, std::sync::mpsc::Sender<T>) + Send + 'static,
) -> std::sync::mpsc::Receiver<T> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let clock = Arc::new(MonotonicClock::new());
    let options = LaneOptions { spin: Duration::ZERO, wide_ring: false };
    let lane = LaneThread::spawn("lane", LaneId(0), clock, options, move |this| {
        let (lane, ring) = (this.lane().clone(), this.ring().clone());
        let (ram, file) = volume(How::Later, &lane, Arc::default());
        let memory = Rc::new(LaneMemory::new(Arc::new(MemoryBudget::new(4 << 20))));
        let (fd, _) = std::io::pipe().expect("a pipe");
        let channel = Channel::new("v", fd.into(), (ram, file), (lane.clone(), ring, memory));
        work(&lane, channel, sender);
    });
    // The thread is not joined: it would wait for a task that never ends.
    std::mem::forget(lane.expect("a thread"));
    receiver
}

fn read_of(len: u64) -> VolumeRequest {
    VolumeRequest { op: Op::Read, offset: 0, len, survives: Survives::Nothing, punch: false }
}

#[test]
fn every_task_that_waits_for_room_gets_its_turn() {
    let ends = with_channel(|lane, channel, ended| {
        for _ in 0..8 {
            let (channel, ended) = (channel.clone(), ended.clone());
            lane.spawn(async move {
                let sink: Rc<dyn CompletionSink> = channel.clone();
                let request = read_of(SIZE as u64);
                let (target, held) = channel.admit(&request).await.expect("it is served");
                let data = Some(IoBuf::zeroed(SIZE));
                let done = channel.submit_and_wait(&target, &request, data, held, &sink).await;
                assert_eq!(done.0, Ok(()));
                let _ = ended.send(());
            });
        }
    });
    for task in 0..8 {
        let end = ends.recv_timeout(Duration::from_secs(20));
        assert!(end.is_ok(), "only {task} of the requests were answered");
    }
}

#[test]
fn a_request_that_takes_more_memory_than_there_is_is_refused() {
    let answers = with_channel(|lane, channel, answer| {
        lane.spawn(async move {
            let admitted = channel.admit(&read_of(u64::MAX / 2)).await;
            let _ = answer.send(admitted.map(|(_, held)| held));
        });
    });
    let answer = answers.recv_timeout(Duration::from_secs(20));
    assert_eq!(answer, Ok(Err(IoError::NoSpace)));
}

#[test]
fn requests_failed_by_an_ending_volume_stay_if_the_file_does() {
    for outlives in [false, true] {
        let ask: [fn(&Kernel); 4] = [
            |kernel| kernel.read(1, 0, 4096),
            |kernel| kernel.write(1, 0, &[1; 4096], 0),
            |kernel| kernel.punch(1, 0, 4096),
            |kernel| kernel.send(opcode::FSYNC, 1, &[0; 16]),
        ];
        for ask in ask {
            let kernel = Kernel::of_file(How::Ending, outlives);
            ask(&kernel);
            if !outlives {
                assert_eq!(kernel.reply(), (1, -Errno::IO.raw_os_error(), Vec::new()));
            }
            kernel.gets_no_other_reply();
        }
    }
}

#[test]
fn requests_for_a_volume_that_is_gone_are_left_in_the_same_way() {
    for outlives in [false, true] {
        let kernel = Kernel::of_file(How::Gone, outlives);
        if !outlives {
            assert_eq!(kernel.reply(), (1, -Errno::IO.raw_os_error(), Vec::new()));
        }
        kernel.gets_no_other_reply();
    }
}
