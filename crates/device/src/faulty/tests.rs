//! Faults of a device in RAM or of a file, on a manual clock.

use std::future::Future;
use std::path::PathBuf;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay_core::ManualClock;

use crate::api::{Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, Queue, QueueContext};
use crate::buffer::IoBuf;
use crate::data::IoData;
use crate::file::FileDevice;
use crate::log_buffer::LogBuffer;
use crate::open::{Access, OpenErrorKind};
use crate::ram::RamDevice;
use crate::ring::Ring;
use crate::spec::DeviceSpec;
use crate::testing::{filled, poll};

use super::FaultyDevice;

const SIZE: u64 = 1 << 20;

/// A faulty device in front of another one, and queues to both.
struct Bench {
    folder: tempfile::TempDir,
    clock: Arc<ManualClock>,
    ring: Option<Rc<Ring>>,
    faulty: Queue,
    inner: Queue,
}

impl Bench {
    fn on_ram() -> Self {
        Bench::new(|_| (RamDevice::new("ram", SIZE).expect("memory"), None))
    }

    /// A device on a file, where operations take time.
    fn on_file() -> Self {
        Bench::new(|folder| {
            let file = FileDevice::open(&folder.join("disk"), Access::Exclusive, Some(SIZE));
            (file.expect("a file"), Some(Ring::new().expect("a ring")))
        })
    }

    fn new(make: impl FnOnce(&std::path::Path) -> (Arc<dyn Device>, Option<Rc<Ring>>)) -> Self {
        let folder = tempfile::tempdir().expect("folder");
        let (inner, ring) = make(folder.path());
        let clock = Arc::new(ManualClock::default());
        let context = QueueContext { clock: clock.clone(), ring: ring.clone(), tasks: None };
        let device = FaultyDevice::wrap(inner.clone(), &folder.path().join("faults"));
        let faulty = Queue::new(device.open_queue(&context).expect("a queue"));
        let inner = Queue::new(inner.open_queue(&context).expect("a queue"));
        Bench { folder, clock, ring, faulty, inner }
    }

    /// Changes the control file and makes the change noticed.
    fn faults(&self, text: &str) {
        let new: PathBuf = self.folder.path().join("new");
        std::fs::write(&new, text).expect("written");
        std::fs::rename(new, self.folder.path().join("faults")).expect("renamed");
        self.pass(5);
    }

    /// Advances the clock by this many milliseconds.
    fn pass(&self, millis: u64) {
        self.clock.pass(Duration::from_millis(millis));
        self.faulty.inner().drive();
    }

    /// Runs a future to its end; fails if it never ends.
    fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        for _ in 0..10_000 {
            if let Some(result) = poll(future.as_mut()) {
                return result;
            }
            self.pass(1);
            if let Some(ring) = &self.ring {
                ring.wait(Some(Duration::from_millis(1)));
            }
        }
        panic!("it never ends");
    }

    fn write(&self, offset: u64, byte: u8) -> Result<(), DeviceError> {
        self.run(self.faulty.write(offset, filled(4096, byte))).map(|_| ())
    }

    /// Returns the bytes of a block read through a queue, if they are all equal.
    fn byte(&self, queue: &Queue, offset: u64) -> u8 {
        let block = self.run(queue.read(offset, IoBuf::zeroed(4096))).expect("read");
        assert!(block.iter().all(|byte| *byte == block[0]), "a mix of blocks");
        block[0]
    }
}

#[test]
fn without_faults_it_is_the_device_inside() {
    for bench in [Bench::on_ram(), Bench::on_file()] {
        bench.write(4096, 7).expect("written");
        bench.run(bench.faulty.sync()).expect("synced");
        assert_eq!((bench.byte(&bench.inner, 4096), bench.byte(&bench.faulty, 4096)), (7, 7));
        assert_eq!(bench.faulty.inner().next_event(), None, "nothing is looked at while idle");
    }
}

#[test]
fn errors_have_their_kind_and_give_the_buffer_back() {
    let bench = Bench::on_ram();
    for (text, kind) in [
        ("fail write", DeviceErrorKind::Io),
        ("fail write ENOSPC", DeviceErrorKind::NoSpace),
        ("fail write EOPNOTSUPP", DeviceErrorKind::NotSupported),
        ("gone", DeviceErrorKind::Gone),
        ("nonsense", DeviceErrorKind::Io),
    ] {
        bench.faults(text);
        let data = IoData::Owned(filled(512, 1));
        let DeviceDone { result, buf } =
            bench.run(bench.faulty.run(DeviceOp::Write { offset: 512, data }));
        let error = result.expect_err(text);
        assert_eq!((error.kind, error.offset, error.what), (kind, 512, "write"), "{text}");
        assert_eq!(buf.map(|buf| buf.len()), Some(512));
    }
    bench.faults("fail read once");
    assert!(bench.run(bench.faulty.read(0, IoBuf::zeroed(512))).is_err());
    assert_eq!(bench.byte(&bench.faulty, 0), 0);
    bench.faults("");
    bench.write(0, 3).expect("the faults are over");
}

#[test]
fn a_change_of_the_rules_releases_or_ends_hung_operations() {
    let bench = Bench::on_ram();
    bench.faults("hang write");
    let mut first = pin!(bench.faulty.write(0, filled(4096, 1)));
    let mut second = pin!(bench.faulty.write(4096, filled(4096, 2)));
    for _ in 0..100 {
        assert!(poll(first.as_mut()).is_none() && poll(second.as_mut()).is_none());
        bench.pass(1000);
    }
    assert_eq!(bench.byte(&bench.faulty, 0), 0, "reads go on, and nothing was written");
    assert!(bench.faulty.inner().next_event().is_some(), "the file is looked at");
    bench.faults("hang write 0..4K\nfail write");
    assert!(poll(second.as_mut()).is_some_and(|result| result.is_err()), "judged anew");
    assert!(poll(first.as_mut()).is_none());
    bench.faults("");
    assert!(poll(first.as_mut()).is_some_and(|result| result.is_ok()));
    assert_eq!(bench.byte(&bench.inner, 0), 1);
}

#[test]
fn an_abandoned_write_takes_effect_when_it_is_released() {
    for bench in [Bench::on_ram(), Bench::on_file()] {
        bench.faults("hang write once");
        let mut write = Box::pin(bench.faulty.write(0, filled(4096, 1)));
        assert!(poll(write.as_mut()).is_none());
        drop(write);
        bench.pass(1000);
        assert_eq!(bench.byte(&bench.inner, 0), 0);
        bench.faults("");
        // The write of the file needs the ring.
        bench.run(bench.faulty.sync()).expect("synced");
        assert_eq!(bench.byte(&bench.inner, 0), 1);
    }
}

#[test]
fn delays_last_as_long_as_they_say() {
    let bench = Bench::on_ram();
    bench.faults("delay 200ms read\ndelay 1s sync");
    let mut read = pin!(bench.faulty.read(0, IoBuf::zeroed(512)));
    let mut sync = pin!(bench.faulty.sync());
    assert!(poll(read.as_mut()).is_none() && poll(sync.as_mut()).is_none());
    bench.write(0, 1).expect("not delayed");
    bench.pass(190);
    assert!(poll(read.as_mut()).is_none());
    bench.pass(10);
    assert!(poll(read.as_mut()).is_some() && poll(sync.as_mut()).is_none());
    bench.pass(800);
    assert!(poll(sync.as_mut()).is_some_and(|result| result.is_ok()));
}

#[test]
fn a_torn_write_leaves_its_start_and_fails() {
    for (bench, volatile) in
        [(Bench::on_ram(), ""), (Bench::on_file(), ""), (Bench::on_ram(), "volatile")]
    {
        bench.faults(&format!("tear 1100 once\n{volatile}"));
        let error = bench.write(4096, 5).expect_err("torn");
        assert_eq!((error.kind, error.offset), (DeviceErrorKind::Io, 4096));
        let found = bench.run(bench.faulty.read(4096, IoBuf::zeroed(4096))).expect("read");
        assert!(found[..1024].iter().all(|byte| *byte == 5), "whole logical blocks of the start");
        assert!(found[1024..].iter().all(|byte| *byte == 0));
        bench.write(4096, 6).expect("once");
    }
}

#[test]
fn a_volatile_cache_forgets_what_was_not_synced() {
    for bench in [Bench::on_ram(), Bench::on_file()] {
        bench.faults("volatile");
        bench.write(0, 1).expect("held");
        bench.run(bench.faulty.sync()).expect("synced");
        bench.write(0, 2).expect("held");
        bench.write(8192, 3).expect("held");
        assert_eq!((bench.byte(&bench.faulty, 0), bench.byte(&bench.faulty, 8192)), (2, 3));
        assert_eq!((bench.byte(&bench.inner, 0), bench.byte(&bench.inner, 8192)), (1, 0));
        let log = LogBuffer::new(4096);
        let mut claim = log.claim(0..4096).expect("free");
        claim.fill(4);
        claim.publish();
        let durable = DeviceOp::DurableWrite { offset: 4096, log, range: 0..4096 };
        bench.run(bench.faulty.run(durable)).result.expect("durable");
        bench.faults("volatile\nforget");
        let found = [0, 4096, 8192].map(|offset| bench.byte(&bench.faulty, offset));
        assert_eq!(found, [1, 4, 0]);
        bench.write(0, 5).expect("held");
        bench.faults("");
        bench.write(0, 6).expect("not overtaken by what is held");
        bench.run(bench.faulty.sync()).expect("synced");
        assert_eq!(bench.byte(&bench.inner, 0), 6);
    }
}

#[test]
fn syncs_and_zeroes_of_two_callers_take_turns() {
    let bench = Bench::on_file();
    bench.faults("volatile");
    for round in 1..50 {
        bench.write(0, round).expect("held");
        bench.write(4096, round).expect("held");
        let (mut one, mut two) = (pin!(bench.faulty.sync()), pin!(bench.faulty.sync()));
        let zero = DeviceOp::WriteZeroes { offset: 4096, len: 4096 };
        let mut zero = pin!(bench.faulty.run(zero));
        let mut left = (true, true, true);
        let all = std::future::poll_fn(|_| {
            left.0 = left.0 && poll(one.as_mut()).is_none();
            left.1 = left.1 && poll(two.as_mut()).is_none();
            left.2 = left.2 && poll(zero.as_mut()).is_none();
            if left == (false, false, false) { Poll::Ready(()) } else { Poll::Pending }
        });
        bench.run(all);
        assert_eq!((bench.byte(&bench.inner, 0), bench.byte(&bench.faulty, 4096)), (round, 0));
    }
}

#[test]
fn a_device_that_is_gone_cannot_be_opened() {
    let folder = tempfile::tempdir().expect("folder");
    let path = folder.path().join("disk");
    std::fs::write(&path, [0; 8192]).expect("written");
    let plain: DeviceSpec = path.display().to_string().parse().expect("a device");
    let faulty: DeviceSpec = format!("faulty:{}", path.display()).parse().expect("a device");
    let device = faulty.open(Access::Exclusive).expect("opened");
    assert_eq!(device.name(), format!("faulty:{}", path.display()));
    assert_eq!((device.size(), faulty.identity().ok()), (8192, plain.identity().ok()));
    let taken = plain.open(Access::Exclusive).err().expect("locked");
    assert_eq!(taken.kind, OpenErrorKind::InUse);
    drop(device);
    std::fs::write(folder.path().join("disk.faults"), "gone").expect("written");
    for error in [faulty.open(Access::Exclusive).err(), faulty.identity().err()] {
        assert_eq!(error.map(|error| error.kind), Some(OpenErrorKind::NotFound));
    }
    std::fs::write(folder.path().join("disk.faults"), "fail sometimes").expect("written");
    let error = faulty.open(Access::Exclusive).err().expect("not understood");
    assert!(error.to_string().contains("disk.faults: line 1: 'sometimes'"), "{error}");
}
