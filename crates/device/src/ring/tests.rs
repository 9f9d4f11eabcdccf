use std::fs::File;
use std::future::poll_fn;
use std::io::{Read, Write};
use std::ops::Range;
use std::os::unix::net::{UnixListener, UnixStream};
use std::task::Waker;

use super::inner::is_invalid;
use super::uring::COMPLETIONS;
use super::*;
use crate::buffer::IoBuf;
use crate::data::IoData;
use crate::log_buffer::LogBuffer;
use crate::testing::{block_on, filled};

fn file() -> (tempfile::TempDir, Arc<OwnedFd>) {
    let folder = tempfile::tempdir().expect("folder");
    let file =
        File::options().read(true).write(true).create_new(true).open(folder.path().join("f"));
    (folder, Arc::new(OwnedFd::from(file.expect("file"))))
}

fn pair() -> (Arc<OwnedFd>, UnixStream) {
    let (mine, theirs) = UnixStream::pair().expect("sockets");
    (Arc::new(OwnedFd::from(mine)), theirs)
}

fn recv(fd: &Arc<OwnedFd>, range: Range<usize>, fill: bool) -> RingOp {
    RingOp::Recv { fd: fd.clone(), buf: IoBuf::zeroed(16), range, fill }
}

#[test]
fn files_are_written_synced_and_read() {
    let ring = Ring::new().expect("ring");
    let (_folder, fd) = file();
    block_on(&ring, async {
        let data = IoData::Owned(filled(4096, 7));
        let done =
            ring.run(RingOp::Write { fd: fd.clone(), offset: 4096, data, durable: false }).await;
        assert_eq!(done.result.expect("written"), 4096);
        assert_eq!(done.buf.expect("given back").len(), 4096);

        let log = LogBuffer::new(4096);
        let mut claim = log.claim(512..1024).expect("free");
        claim.fill(9);
        claim.publish();
        let write = |range| {
            let data = IoData::Log(log.clone(), range);
            ring.run(RingOp::Write { fd: fd.clone(), offset: 0, data, durable: false })
        };
        assert_eq!(write(512..1024).await.result.expect("written"), 512);
        assert!(is_invalid(&write(0..1024).await.result.expect_err("not published")));

        ring.run(RingOp::Fdatasync { fd: fd.clone() }).await.result.expect("synced");
        let buf = IoBuf::for_overwrite(16384);
        let done = ring.run(RingOp::Read { fd: fd.clone(), offset: 0, buf }).await;
        assert_eq!(done.result.expect("read"), 8192, "short at the end of the file");
        let buf = done.buf.expect("given back");
        assert!(buf[..512].iter().all(|&byte| byte == 9));
        assert!(buf[512..4096].iter().all(|&byte| byte == 0));
        assert!(buf[4096..8192].iter().all(|&byte| byte == 7));

        let (mode, len) = (FallocateMode::PunchHole, 4096);
        let op = RingOp::Fallocate { fd: fd.clone(), mode, offset: 4096, len };
        ring.run(op).await.result.expect("punched");
        let buf = IoBuf::for_overwrite(4096);
        let done = ring.run(RingOp::Read { fd: fd.clone(), offset: 4096, buf }).await;
        assert!(done.buf.expect("given back").iter().all(|&byte| byte == 0));
    });
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn more_operations_than_the_ring_holds_all_end() {
    const COUNT: usize = 3 * COMPLETIONS as usize;
    let ring = Ring::new().expect("ring");
    let (_folder, fd) = file();
    let tokens: Vec<_> = (0..COUNT)
        .map(|index| {
            let data = IoData::Owned(filled(512, index as u8));
            ring.start(RingOp::Write {
                fd: fd.clone(),
                offset: index as u64 * 512,
                data,
                durable: false,
            })
        })
        .collect();
    assert_eq!(ring.in_flight(), COUNT);
    for token in tokens {
        let done = block_on(&ring, poll_fn(|context| ring.poll_op(token, context)));
        assert_eq!(done.result.expect("written"), 512);
        let again = block_on(&ring, poll_fn(|context| ring.poll_op(token, context)));
        assert!(is_invalid(&again.result.expect_err("collected once")));
    }
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn sockets_send_and_receive() {
    let ring = Ring::new().expect("ring");
    let (fd, mut peer) = pair();
    block_on(&ring, async {
        let send = |range| RingOp::Send { fd: fd.clone(), buf: IoBuf::copy_from(b"hello"), range };
        assert_eq!(ring.run(send(1..4)).await.result.expect("sent"), 3);
        let mut got = [0; 3];
        peer.read_exact(&mut got).expect("received");
        assert_eq!(&got, b"ell");
        assert!(is_invalid(&ring.run(send(3..6)).await.result.expect_err("outside")));
        assert!(is_invalid(&ring.run(recv(&fd, 8..17, true)).await.result.expect_err("outside")));

        peer.write_all(b"abc").expect("sent");
        let done = ring.run(recv(&fd, 2..16, false)).await;
        assert_eq!(done.result.expect("received"), 3);
        assert_eq!(&done.buf.expect("given back")[..6], b"\0\0abc\0");

        peer.write_all(b"abc").expect("sent");
        let mut waiting = std::pin::pin!(ring.run(recv(&fd, 0..6, true)));
        let first = poll_fn(|context| Poll::Ready(waiting.as_mut().poll(context))).await;
        assert!(first.is_pending());
        ring.drive();
        peer.write_all(b"defg").expect("sent");
        let done = waiting.await;
        assert_eq!(done.result.expect("received"), 6);
        assert_eq!(&done.buf.expect("given back")[..7], b"abcdef\0");

        drop(peer);
        assert_eq!(ring.run(recv(&fd, 0..6, true)).await.result.expect("the rest"), 1);
        assert_eq!(ring.run(recv(&fd, 0..6, true)).await.result.expect("end"), 0);
        let error = ring.run(send(0..5)).await.result.expect_err("nobody there");
        assert_eq!(error.kind(), io::ErrorKind::BrokenPipe);
    });
}

#[test]
fn a_cancelled_operation_takes_nothing_with_it() {
    let ring = Ring::new().expect("ring");
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("s");
    let listener = Arc::new(OwnedFd::from(UnixListener::bind(&path).expect("listener")));
    let (mine, mut theirs) = pair();
    let cancelled = |done: RingDone| {
        let error = done.result.expect_err("nothing had come");
        assert_eq!(Errno::from_io_error(&error), Some(Errno::CANCELED));
    };
    block_on(&ring, async {
        // Cancellation is tested both before and after the kernel has received the operation.
        for submit in [true, false] {
            let receive = ring.begin(recv(&mine, 0..16, false));
            let accept = ring.begin(RingOp::Accept { fd: listener.clone() });
            if submit {
                ring.drive();
            }
            receive.cancel();
            accept.cancel();
            cancelled(receive.await);
            cancelled(accept.await);
        }
        // The next client gets everything.
        let _client = UnixStream::connect(&path).expect("connects");
        theirs.write_all(b"abc").expect("sent");
        assert_eq!(ring.run(recv(&mine, 0..16, false)).await.result.expect("received"), 3);
        let accepted = ring.run(RingOp::Accept { fd: listener.clone() }).await;
        assert!(accepted.accepted.is_some());
        // A part of the requested bytes has arrived.
        let receive = ring.begin(recv(&mine, 0..16, true));
        theirs.write_all(b"de").expect("sent");
        ring.drive();
        receive.cancel();
        let done = receive.await;
        assert_eq!(done.result.expect("a part"), 2);
        assert_eq!(&done.buf.expect("given back")[..2], b"de");
    });
}

#[test]
fn connections_are_accepted() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("socket");
    let listener = Arc::new(OwnedFd::from(UnixListener::bind(&path).expect("bound")));
    let ring = Ring::new().expect("ring");
    let mut client = UnixStream::connect(&path).expect("connected");
    block_on(&ring, async {
        let done = ring.run(RingOp::Accept { fd: listener.clone() }).await;
        done.result.expect("accepted");
        let fd = Arc::new(done.accepted.expect("a connection"));
        client.write_all(b"x").expect("sent");
        assert_eq!(ring.run(recv(&fd, 0..1, false)).await.result.expect("received"), 1);
    });
}

#[test]
fn endless_operations_keep_their_buffers_until_cancelled() {
    let ring = Ring::new().expect("ring");
    let (fd, mut peer) = pair();
    for submit in [false, true] {
        let token = ring.start(recv(&fd, 0..16, false));
        if submit {
            ring.drive();
        }
        ring.forget(token);
        assert_eq!(ring.in_flight(), 1, "the kernel may still use it");
        while ring.in_flight() > 0 {
            ring.wait(None);
        }
    }
    // A cancelled receive does not consume later bytes.
    peer.write_all(b"abc").expect("sent");
    let done = block_on(&ring, ring.run(recv(&fd, 0..16, false)));
    assert_eq!(done.result.expect("received"), 3);
}

#[test]
fn a_forgotten_write_is_done() {
    let ring = Ring::new().expect("ring");
    let (_folder, fd) = file();
    let data = IoData::Owned(filled(4096, 5));
    ring.forget(ring.start(RingOp::Write { fd: fd.clone(), offset: 0, data, durable: false }));
    drop(ring);
    let ring = Ring::new().expect("ring");
    let buf = IoBuf::zeroed(4096);
    let done = block_on(&ring, ring.run(RingOp::Read { fd, offset: 0, buf }));
    assert_eq!(done.result.expect("read"), 4096);
    assert!(done.buf.expect("given back").iter().all(|&byte| byte == 5));
}

#[test]
fn a_ring_can_be_closed_while_operations_are_in_flight() {
    let ring = Ring::new().expect("ring");
    let (fd, _peer) = pair();
    for _ in 0..600 {
        let _ = ring.start(recv(&fd, 0..16, false));
    }
    ring.drive();
    drop(ring);
    assert_eq!(Arc::strong_count(&fd), 1, "every share of the descriptor is given back");
}

#[test]
fn waiting_ends_when_roused_or_when_time_is_up() {
    let ring = Ring::new().expect("ring");
    ring.wait(Some(Duration::from_millis(1)));
    ring.wait(Some(Duration::ZERO));
    let rouse = ring.rouser();
    // The lane is roused before the wait, during the wait, and repeatedly.
    rouse();
    ring.wait(None);
    for _ in 0..10 {
        std::thread::scope(|scope| {
            scope.spawn(&rouse);
            ring.wait(None);
        });
    }
}

#[test]
fn an_idle_ring_has_nothing_to_do() {
    let ring = Ring::new().expect("ring");
    ring.drive();
    for _ in 0..3 {
        assert_eq!(ring.drive(), 0);
    }
    let _ =
        ring.start(RingOp::Fdatasync { fd: Arc::new(File::open("/dev/null").expect("it").into()) });
    let mut noticed = 0;
    while noticed == 0 {
        noticed = ring.drive();
    }
    assert_eq!(noticed, 1);
}

#[test]
fn wakers_are_called() {
    struct Flag(std::sync::atomic::AtomicBool);
    impl std::task::Wake for Flag {
        fn wake(self: Arc<Self>) {
            self.0.store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    let ring = Ring::new().expect("ring");
    let (fd, mut peer) = pair();
    let flag = Arc::new(Flag(false.into()));
    let waker = Waker::from(flag.clone());
    let mut run = std::pin::pin!(ring.run(recv(&fd, 0..16, false)));
    assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    ring.drive();
    assert!(!flag.0.load(std::sync::atomic::Ordering::SeqCst));
    peer.write_all(b"abc").expect("sent");
    ring.wait(None);
    assert!(flag.0.load(std::sync::atomic::Ordering::SeqCst));
    assert!(run.as_mut().poll(&mut Context::from_waker(&waker)).is_ready());
}

#[test]
fn a_rouse_that_is_noticed_on_the_way_into_a_wait_ends_it() {
    let ring = Ring::new().expect("ring");
    let (mine, _theirs) = pair();
    ring.drive();
    ring.rouser()();
    // More operations than the kernel takes at a time; none of them ever ends.
    let waiting: Vec<_> = (0..1000).map(|_| ring.start(recv(&mine, 0..16, false))).collect();
    let began = std::time::Instant::now();
    ring.wait(Some(Duration::from_secs(20)));
    assert!(began.elapsed() < Duration::from_secs(10), "the ring sleeps on");
    waiting.into_iter().for_each(|token| ring.forget(token));
}

#[test]
fn operations_of_devices_are_told_from_those_of_clients() {
    let ring = Ring::new().expect("ring");
    let (fd, mut peer) = pair();
    let (_folder, file) = file();
    let on_devices = || ring.inner.borrow().on_devices;
    let token = ring.start(recv(&fd, 0..3, true));
    let data = IoData::Owned(filled(4096, 7));
    let write = RingOp::Write { fd: file.clone(), offset: 0, data, durable: true };
    let written = ring.start(write);
    assert_eq!(on_devices(), 1);
    let done = block_on(&ring, poll_fn(|context| ring.poll_op(written, context)));
    assert_eq!(done.result.expect("written"), 4096);
    assert_eq!(on_devices(), 0, "only the client is left to answer");
    let rouse = ring.rouser();
    rouse();
    ring.wait(None);
    peer.write_all(b"abc").expect("sent");
    let done = block_on(&ring, poll_fn(|context| ring.poll_op(token, context)));
    assert_eq!(done.result.expect("received"), 3);
    let read = RingOp::Read { fd: file, offset: 0, buf: IoBuf::zeroed(8192) };
    let token = ring.start(read);
    ring.forget(token);
    while ring.in_flight() > 0 {
        ring.wait(None);
    }
    assert_eq!(on_devices(), 0, "a short read was continued, and nobody waited for it");
}

/// Returns two ends of a connection that preserves message boundaries; the first is in non-blocking
/// mode, like the kernel's devices.
fn messages() -> (Arc<OwnedFd>, OwnedFd) {
    use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

    let kind = SocketType::SEQPACKET;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (mine, theirs) =
        socketpair(AddressFamily::UNIX, kind, flags, None).expect("a pair of sockets");
    (Arc::new(mine), theirs)
}

fn take(fd: &Arc<OwnedFd>) -> RingOp {
    RingOp::TakeMessage { fd: fd.clone(), buf: IoBuf::zeroed(64), range: 8..64 }
}

#[test]
fn messages_are_taken_one_by_one_and_given() {
    let ring = Ring::new().expect("ring");
    let (fd, other) = messages();
    let takes = [ring.begin(take(&fd)), ring.begin(take(&fd)), ring.begin(take(&fd))];
    ring.drive();
    for length in [1, 5, 56] {
        rustix::io::write(&other, &[length; 56][..length as usize]).expect("sent");
    }
    block_on(&ring, async {
        let mut lengths = Vec::new();
        for taken in takes {
            let done = taken.await;
            let length = done.result.expect("taken");
            let buf = done.buf.expect("given back");
            assert!(buf[..8].iter().all(|&byte| byte == 0));
            assert!(buf[8..8 + length as usize].iter().all(|&byte| u32::from(byte) == length));
            lengths.push(length);
        }
        lengths.sort_unstable();
        assert_eq!(lengths, [1, 5, 56]);
        let op = RingOp::GiveMessage { fd: fd.clone(), buf: filled(64, 3), range: 10..30 };
        assert_eq!(ring.run(op).await.result.expect("given"), 20);
        let mut into = [0; 64];
        assert_eq!(rustix::io::read(&other, &mut into).expect("received"), 20);
        assert_eq!(into[..20], [3; 20]);
        let bad = RingOp::TakeMessage { fd: fd.clone(), buf: IoBuf::zeroed(64), range: 8..65 };
        assert!(is_invalid(&ring.run(bad).await.result.expect_err("outside of the buffer")));
    });
    assert_eq!(ring.in_flight(), 0);
}

#[test]
fn a_message_wakes_one_ring_of_two_and_none_is_lost() {
    const MESSAGES: u8 = 50;
    let rings = [Ring::new().expect("ring"), Ring::new().expect("ring")];
    let (fd, other) = messages();
    let mut takes: Vec<_> = rings.iter().map(|ring| ring.begin(take(&fd))).collect();
    let mut found = Vec::new();
    for number in 0..MESSAGES {
        for ring in &rings {
            ring.drive();
        }
        rustix::io::write(&other, &[number]).expect("sent");
        let before = found.len();
        while found.len() == before {
            for (ring, running) in rings.iter().zip(&mut takes) {
                ring.drive();
                let context = &mut Context::from_waker(Waker::noop());
                if let Poll::Ready(done) = Pin::new(&mut *running).poll(context) {
                    assert_eq!(done.result.expect("taken"), 1);
                    found.push(done.buf.expect("given back")[8]);
                    *running = ring.begin(take(&fd));
                }
            }
        }
    }
    assert_eq!(found, (0..MESSAGES).collect::<Vec<_>>());
}

#[test]
fn waiting_for_messages_ends_with_its_ring_in_every_state() {
    for messages_sent in 0..4 {
        for driven in [false, true] {
            let ring = Ring::new().expect("ring");
            let (fd, other) = messages();
            let mut takes: Vec<_> = (0..3).map(|_| ring.begin(take(&fd))).collect();
            if driven {
                ring.drive();
            }
            for _ in 0..messages_sent {
                rustix::io::write(&other, b"x").expect("sent");
            }
            // One take is abandoned; the others end with the ring.
            drop(takes.pop());
            drop(takes);
            drop(ring);
            assert_eq!(Arc::strong_count(&fd), 1, "{messages_sent} {driven}");
        }
    }
}

#[test]
fn the_end_of_a_connection_ends_the_wait() {
    let ring = Ring::new().expect("ring");
    let (fd, other) = messages();
    let running = ring.begin(take(&fd));
    ring.drive();
    drop(other);
    block_on(&ring, async {
        assert_eq!(running.await.result.expect("the end"), 0);
    });
}

#[test]
fn a_device_that_cannot_be_served_gives_the_buffer_back() {
    let ring = Ring::new().expect("ring");
    let (_folder, fd) = file();
    block_on(&ring, async {
        let command = crate::ublk::QueueCommand { queue: 0, tag: 0, result: None };
        let done = ring.run(RingOp::Serve { fd, command, buf: IoBuf::zeroed(4096) }).await;
        assert!(done.result.is_err());
        assert_eq!(done.buf.expect("given back").len(), 4096);
    });
}
