use std::task::Waker;

use forebay_core::{Clock, Nanos};
use forebay_device::{IoBuf, RamDevice};

use super::*;

struct Stopped;

impl Clock for Stopped {
    fn now(&self) -> Nanos {
        Nanos(0)
    }
}

fn queue(device: &dyn Device) -> Rc<dyn DeviceQueue> {
    device
        .open_queue(&QueueContext { clock: Arc::new(Stopped), ring: None, tasks: None })
        .expect("a queue")
}

fn run(queue: &Rc<dyn DeviceQueue>, op: DeviceOp) -> DeviceDone {
    let id = queue.start(op);
    match queue.poll_op(id, &mut Context::from_waker(Waker::noop())) {
        Poll::Ready(done) => done,
        Poll::Pending => panic!("these devices are quick"),
    }
}

/// Random writes of all kinds of content, against a device that keeps everything.
#[test]
fn a_sparse_device_keeps_what_it_is_given() {
    const SIZE: u64 = 64 << 10;
    let mut rng = fastrand::Rng::with_seed(5);
    let sparse = SparseDevice::new("sparse", SIZE);
    let plain = RamDevice::new("plain", SIZE).expect("memory");
    let queues = [queue(&*sparse), queue(&*plain)];
    let mut fork: Option<(Arc<SparseDevice>, Vec<u8>)> = None;
    for round in 0..500 {
        let start = rng.u64(0..SIZE / 512) * 512;
        let len = (rng.u64(1..=24) * 512).min(SIZE - start);
        let mut data = vec![rng.u8(0..3); len as usize];
        if rng.bool() {
            data.fill_with(|| rng.u8(..));
        }
        for queue in &queues {
            let op = if rng.u8(0..8) == 0 {
                DeviceOp::WriteZeroes { offset: start, len }
            } else {
                DeviceOp::Write { offset: start, data: IoData::Owned(IoBuf::copy_from(&data)) }
            };
            if let DeviceOp::WriteZeroes { .. } = op {
                data.fill(0);
            }
            run(queue, op).result.expect("written");
            // Both get the same content, whichever operation brought it.
            let op =
                DeviceOp::Write { offset: start, data: IoData::Owned(IoBuf::copy_from(&data)) };
            run(queue, op).result.expect("written");
        }
        for queue in &queues {
            let op =
                DeviceOp::Write { offset: start, data: IoData::Owned(IoBuf::copy_from(&data)) };
            run(queue, op).result.expect("written");
        }
        let mut contents = queues.iter().map(|queue| {
            let mut whole = vec![9; SIZE as usize];
            queue.read_now(0, &mut whole).expect("at once").expect("read");
            whole
        });
        let (one, other) = (contents.next().expect("one"), contents.next().expect("two"));
        assert!(one == other, "round {round}");
        if round == 250 {
            fork = Some((sparse.fork(), one));
        }
    }
    let (fork, expected) = fork.expect("forked");
    let mut found = vec![0; SIZE as usize];
    queue(&*fork).read_now(0, &mut found).expect("at once").expect("read");
    assert!(found == expected, "a fork changes with the device that it was made of");
}

#[test]
fn repetitive_pages_cost_next_to_nothing() {
    let device = SparseDevice::new("sparse", 1 << 20);
    let queue = queue(&*device);
    let write = |offset, data: &[u8]| {
        let data = IoData::Owned(IoBuf::copy_from(data));
        run(&queue, DeviceOp::Write { offset, data }).result.expect("written");
    };
    for page in 0..256 {
        write(page * 4096, &[7; PAGE]);
    }
    assert_eq!(device.memory(), 256 * 4);
    let noise: Vec<u8> = (0..PAGE).map(|at| (at % 251) as u8).collect();
    write(4096, &noise);
    assert_eq!(device.memory(), 256 * 4 + 4096);
    write(4096, &[1; PAGE]);
    assert_eq!(device.memory(), 256 * 4);
}

#[test]
fn bad_ranges_are_refused() {
    let device = SparseDevice::new("sparse", 8192);
    let queue = queue(&*device);
    for (offset, len) in [(8192, 512), (0, 100), (100, 512), (u64::MAX - 511, 512), (4096, 8192)] {
        let done = run(&queue, DeviceOp::Read { offset, buf: IoBuf::zeroed(len) });
        assert!(done.result.is_err(), "{offset} {len}");
    }
}
