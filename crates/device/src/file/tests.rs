use std::fs;
use std::future::Future;

use forebay_core::ManualClock;

use super::*;
use crate::api::Queue;
use crate::log_buffer::LogBuffer;
use crate::testing::{block_on, filled};

struct Bench {
    ring: Rc<Ring>,
    device: Arc<FileDevice>,
    queue: Queue,
    folder: tempfile::TempDir,
}

impl Bench {
    fn new(size: u64, access: Access) -> Self {
        Self::within(tempfile::tempdir().expect("folder"), size, access)
    }

    fn within(folder: tempfile::TempDir, size: u64, access: Access) -> Self {
        let path = folder.path().join("file");
        fs::File::create(&path).and_then(|file| file.set_len(size)).expect("file");
        let ring = Ring::new().expect("ring");
        let device = FileDevice::open(&path, access, None).expect("opened");
        let context = QueueContext {
            clock: Arc::new(ManualClock::default()),
            ring: Some(ring.clone()),
            tasks: None,
        };
        let queue = Queue::new(device.open_queue(&context).expect("queue"));
        Bench { ring, device, queue, folder }
    }

    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        block_on(&self.ring, future)
    }

    fn done(&self, op: DeviceOp) -> Result<(), DeviceErrorKind> {
        self.run(self.queue.run(op)).result.map_err(|error| error.kind)
    }

    fn content(&self) -> Vec<u8> {
        fs::read(self.folder.path().join("file")).expect("there")
    }
}

const SIZE: u64 = 64 << 10;

#[test]
fn every_operation_does_what_it_says() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    assert_eq!(bench.device.size(), SIZE);
    let written = bench.run(bench.queue.write(4096, filled(32 << 10, 7))).expect("written");
    assert_eq!(written.len(), 32 << 10);
    bench.run(bench.queue.sync()).expect("synced");
    let read = bench.run(bench.queue.read(0, IoBuf::zeroed(8192))).expect("read");
    assert!(read[..4096].iter().all(|&byte| byte == 0));
    assert!(read[4096..].iter().all(|&byte| byte == 7));

    for op in [
        DeviceOp::Discard { offset: 4096, len: 4096 },
        DeviceOp::WriteZeroes { offset: 12288, len: 4096 },
        DeviceOp::Discard { offset: 0, len: 0 },
        DeviceOp::WriteZeroes { offset: SIZE, len: 0 },
    ] {
        assert_eq!(bench.done(op), Ok(()));
    }
    let content = bench.content();
    assert_eq!(content.len() as u64, SIZE, "the size stays");
    for (block, byte) in [0, 0, 7, 0, 7, 7, 7, 7, 7, 0].into_iter().enumerate() {
        assert!(content[block * 4096..][..4096].iter().all(|&found| found == byte), "{block}");
    }
}

#[test]
fn log_buffers_are_written_without_an_owner() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    let block = bench.device.logical_block() as usize;
    let log = LogBuffer::new(8192);
    let write = |range| DeviceOp::Write { offset: 0, data: IoData::Log(log.clone(), range) };
    assert_eq!(bench.done(write(0..4096)), Err(DeviceErrorKind::Invalid), "not published");
    let mut claim = log.claim(0..8192).expect("free");
    claim.fill(9);
    claim.publish();
    assert_eq!(bench.done(write(0..4096)), Ok(()));
    assert_eq!(bench.done(write(block..block + 4096)), Ok(()));
    assert_eq!(bench.done(write(8192 - block..8192 + block)), Err(DeviceErrorKind::Invalid));
    assert!(bench.content()[..4096].iter().all(|&byte| byte == 9));
}

#[test]
fn buffers_that_start_anywhere_can_be_used() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    let odd = |byte| filled(8192, byte).split_off(13);
    let mut buf = odd(3);
    buf.truncate(4096);
    let buf = bench.run(bench.queue.write(8192, buf)).expect("written");
    assert_eq!(buf.as_ptr().addr() % 512, 13, "the same buffer comes back");
    let mut buf = odd(1);
    buf.truncate(8192 - 4096);
    let buf = bench.run(bench.queue.read(8192, buf)).expect("read");
    assert_eq!(buf.as_ptr().addr() % 512, 13);
    assert!(buf.iter().all(|&byte| byte == 3));
}

#[test]
fn ranges_outside_or_unaligned_are_refused() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    for (offset, len) in [
        (1, 4096),
        (0, 100),
        (100, 4096),
        (SIZE, 4096),
        (SIZE - 4096, 8192),
        (u64::MAX - 4095, 4096),
    ] {
        let zeroed = || IoBuf::zeroed(len);
        let done = bench.run(bench.queue.run(DeviceOp::Read { offset, buf: zeroed() }));
        assert_eq!(done.result.expect_err("refused").kind, DeviceErrorKind::Invalid);
        assert_eq!(done.buf.map(|buf| buf.len()), Some(len), "the buffer comes back");
        let len = len as u64;
        for op in [
            DeviceOp::Write { offset, data: IoData::Owned(zeroed()) },
            DeviceOp::Discard { offset, len },
            DeviceOp::WriteZeroes { offset, len },
        ] {
            assert_eq!(bench.done(op), Err(DeviceErrorKind::Invalid));
        }
    }
    let lost = OpId(1 << 40);
    let mut context = Context::from_waker(std::task::Waker::noop());
    let polled = bench.queue.inner().poll_op(lost, &mut context);
    assert!(matches!(polled, Poll::Ready(done) if done.result.is_err()));
    bench.queue.inner().forget(lost);
}

#[test]
fn a_device_for_reading_is_not_written() {
    let bench = Bench::new(SIZE, Access::Shared);
    bench.run(bench.queue.read(0, IoBuf::zeroed(4096))).expect("read");
    for op in [
        DeviceOp::Write { offset: 0, data: IoData::Owned(IoBuf::zeroed(4096)) },
        DeviceOp::Discard { offset: 0, len: 4096 },
        DeviceOp::WriteZeroes { offset: 0, len: 4096 },
    ] {
        assert_eq!(bench.done(op), Err(DeviceErrorKind::ReadOnly));
    }
    bench.run(bench.queue.sync()).expect("nothing to do");
}

#[test]
fn a_file_that_shrinks_is_an_error() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    let file = fs::File::options().write(true).open(bench.folder.path().join("file")).expect("it");
    file.set_len(4096).expect("cut");
    for offset in [0, 8192] {
        let error = bench.run(bench.queue.read(offset, IoBuf::zeroed(8192))).expect_err("short");
        assert_eq!(error.kind, DeviceErrorKind::Io);
        assert!(error.to_string().contains("shrunk"), "{error}");
    }
}

#[test]
fn writes_behind_the_end_do_not_hide_that_a_file_shrank() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    let file = fs::File::options().write(true).open(bench.folder.path().join("file")).expect("it");
    let write = |offset| bench.run(bench.queue.write(offset, filled(4096, 7))).map(drop);
    write(SIZE - 4096).expect("written");
    assert_eq!(bench.device.shrunk_to(), None);
    file.set_len(SIZE / 2).expect("cut");
    let error = write(SIZE - 4096).expect_err("behind the end");
    assert_eq!(error.kind, DeviceErrorKind::Io);
    assert!(error.to_string().contains("shrunk from 65536 to 32768"), "{error}");
    assert_eq!(bench.content().len() as u64, SIZE / 2, "it was not made larger");
    for op in [
        DeviceOp::Discard { offset: SIZE / 2 - 4096, len: 8192 },
        DeviceOp::WriteZeroes { offset: SIZE - 4096, len: 4096 },
        DeviceOp::Sync,
    ] {
        assert_eq!(bench.done(op), Err(DeviceErrorKind::Io));
    }
    write(0).expect("what is left can be used");
    // The file has grown again, but its new content is not the lost one.
    file.set_len(SIZE).expect("grown");
    assert_eq!(bench.device.shrunk_to(), Some(SIZE / 2));
    bench.run(bench.queue.read(SIZE - 4096, IoBuf::zeroed(4096))).expect_err("lost");
    write(SIZE - 4096).expect_err("lost");
    bench.run(bench.queue.read(SIZE / 2 - 4096, IoBuf::zeroed(4096))).expect("there");
}

#[test]
fn a_short_read_reveals_that_a_file_shrank() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    let file = fs::File::options().write(true).open(bench.folder.path().join("file")).expect("it");
    file.set_len(4096).expect("cut");
    bench.run(bench.queue.read(8192, IoBuf::zeroed(4096))).expect_err("short");
    file.set_len(SIZE).expect("grown");
    bench.run(bench.queue.read(8192, IoBuf::zeroed(4096))).expect_err("lost");
}

#[test]
fn forgotten_operations_leave_nothing_behind() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    let queue = bench.queue.inner();
    let op = |byte| DeviceOp::Write { offset: 0, data: IoData::Owned(filled(4096, byte)) };
    queue.forget(queue.start(op(1)));
    queue.start(op(2));
    queue.start(DeviceOp::Read { offset: 1, buf: IoBuf::zeroed(4096) });
    let Bench { ring, device, queue, folder } = bench;
    drop(queue);
    while ring.in_flight() > 0 {
        ring.wait(None);
    }
    drop((ring, device));
    FileDevice::open(&folder.path().join("file"), Access::Exclusive, None).expect("free again");
}

#[test]
fn zeroes_keep_the_space_of_a_file() {
    use std::os::unix::fs::MetadataExt;
    // Filesystems differ in the operations that they support: tmpfs only makes holes.
    for folder in [std::env::temp_dir(), "/dev/shm".into()] {
        let Ok(folder) = tempfile::tempdir_in(folder) else { continue };
        let bench = Bench::within(folder, SIZE, Access::Exclusive);
        let path = bench.folder.path().join("file");
        fs::write(&path, vec![7; SIZE as usize]).expect("written");
        let space = || fs::metadata(&path).expect("there").blocks();
        let before = space();
        let op = DeviceOp::WriteZeroes { offset: 0, len: SIZE };
        assert_eq!(bench.done(op), Ok(()));
        assert!(bench.content().iter().all(|byte| *byte == 0));
        assert!(space() >= before, "{} of {before} sectors of {}", space(), path.display());
    }
}

#[test]
fn zeroes_are_written_by_hand_where_nothing_better_is_available() {
    let bench = Bench::new(4 << 20, Access::Exclusive);
    bench.run(bench.queue.write(0, filled(4 << 20, 5))).expect("written");
    let context = QueueContext {
        clock: Arc::new(ManualClock::default()),
        ring: Some(bench.ring.clone()),
        tasks: None,
    };
    let shared = bench.device.shared.clone();
    let queue = FileQueue { shared, ring: context.ring.expect("there"), ops: RefCell::default() };
    let unsupported = || Err(io::Error::from(Errno::OPNOTSUPP));
    let (offset, end) = (4096, 4096 + (2 << 20) + 8192);
    let mut next = queue.zero_next(&unsupported(), offset, Zeroing::Range, end);
    let mut steps = 0;
    while let Some((op, step)) = next {
        let done = bench.run(bench.ring.run(op));
        next = queue.zero_next(&done.result, offset, step, end);
        steps += 1;
    }
    assert_eq!(steps, 3);
    let content = bench.content();
    for (at, byte) in [(0, 5), (4095, 5), (4096, 0), (end - 1, 0), (end, 5)] {
        assert_eq!(content[at as usize], byte, "{at}");
    }
    let failed = Err(io::Error::from(Errno::IO));
    assert!(queue.zero_next(&failed, offset, Zeroing::Range, end).is_none());
    assert!(queue.zero_next(&unsupported(), offset, Zeroing::Writing(offset), end).is_none());
}

#[test]
fn a_lane_without_a_ring_is_told_so() {
    let bench = Bench::new(SIZE, Access::Exclusive);
    let context = QueueContext { clock: Arc::new(ManualClock::default()), ring: None, tasks: None };
    let error = bench.device.open_queue(&context).err().expect("refused");
    assert_eq!((error.kind, error.what), (DeviceErrorKind::NotSupported, "open"));
}
