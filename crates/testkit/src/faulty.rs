//! A device that fails, hangs or panics on command.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use forebay_core::Sectors;
use forebay_device::{
    Device, DeviceDone, DeviceError, DeviceOp, DeviceQueue, OpId, OpTable, QueueContext,
};

use crate::faults::{Fault, Faults};

/// Wraps `inner` in a device with scripted faults. The wrapper supports neither
/// [`DeviceQueue::read_now`] nor durable writes.
///
/// An operation beyond the end of the device panics, because its caller is at fault.
pub fn faulty(inner: Arc<dyn Device>) -> (Arc<dyn Device>, Arc<Faults>) {
    let faults: Arc<Faults> = Arc::default();
    (Arc::new(Faulty(inner, faults.clone())), faults)
}

struct Faulty(Arc<dyn Device>, Arc<Faults>);

impl Device for Faulty {
    fn name(&self) -> &str {
        self.0.name()
    }

    fn size(&self) -> u64 {
        self.0.size()
    }

    fn logical_block(&self) -> u64 {
        self.0.logical_block()
    }

    fn rotational(&self) -> Option<bool> {
        self.0.rotational()
    }

    fn sectors(&self) -> Sectors {
        self.0.sectors()
    }

    fn for_reading_only(&self) -> bool {
        self.0.for_reading_only()
    }

    fn write_protected(&self) -> Option<Arc<str>> {
        self.1.is_protected().then(|| "it is write-protected".into())
    }

    fn fenced(&self) -> Option<Arc<str>> {
        self.1.is_fenced().then(|| "another machine has it".into())
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        Ok(Rc::new(FaultyQueue {
            name: self.name().into(),
            size: self.size(),
            inner: self.0.open_queue(context)?,
            faults: self.1.clone(),
            ops: RefCell::default(),
        }))
    }
}

enum State {
    Passed(OpId),
    Failed(Option<DeviceDone>),
    /// A hanging operation, with its number in [`Faults`], which keeps its waker.
    Hung(u64, DeviceOp),
}

struct FaultyQueue {
    name: Arc<str>,
    size: u64,
    inner: Rc<dyn DeviceQueue>,
    faults: Arc<Faults>,
    ops: RefCell<OpTable<State>>,
}

impl FaultyQueue {
    fn begin(&self, op: DeviceOp) -> State {
        let range = op.range().unwrap_or(0..0);
        assert!(range.end <= self.size, "{} beyond the end of {}: {range:?}", op.what(), self.name);
        match self.faults.apply(&op) {
            None => {
                self.faults.note(&op);
                State::Passed(self.inner.start(op))
            }
            Some(Fault::Hangs) => State::Hung(self.faults.new_hung(), op),
            Some(Fault::Panics) => panic!("on purpose"),
            Some(Fault::Fails(kind)) => {
                let (device, cause) = (self.name.clone(), "told to fail".into());
                let error =
                    DeviceError { kind, device, what: op.what(), offset: range.start, cause };
                State::Failed(Some(DeviceDone { result: Err(error), buf: op.into_buf() }))
            }
        }
    }
}

impl DeviceQueue for FaultyQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let state = self.begin(op);
        self.ops.borrow_mut().add(state)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut ops = self.ops.borrow_mut();
        let state = ops.get_mut(id).expect("polled after its end");
        if let State::Hung(number, op) = state {
            self.faults.remove_hung(*number);
            let op = std::mem::replace(op, DeviceOp::Sync);
            *state = self.begin(op);
        }
        let done = match state {
            State::Passed(inner) => ready!(self.inner.poll_op(*inner, context)),
            State::Failed(done) => done.take().expect("it ends once"),
            State::Hung(number, op) => {
                self.faults.set_hung(*number, op, context.waker());
                return Poll::Pending;
            }
        };
        ops.take(id);
        Poll::Ready(done)
    }

    fn forget(&self, id: OpId) {
        match self.ops.borrow_mut().take(id) {
            Some(State::Passed(inner)) => self.inner.forget(inner),
            Some(State::Hung(number, _)) => self.faults.remove_hung(number),
            Some(State::Failed(_)) | None => {}
        }
    }

    fn drive(&self) {
        self.inner.drive();
    }
}

#[cfg(test)]
mod tests {
    use forebay_device::{DeviceErrorKind, IoBuf};

    use crate::{ANYWHERE, Disk, LaneWorld, OpKind, ram};

    #[test]
    fn faults_are_those_that_were_asked_for() {
        let (world, disk) = (LaneWorld::new(), Disk::of(&[7; 16384]));
        let queue = world.queue(&disk.device);
        let read = |page: u64| {
            let queue = queue.clone();
            let done = async move { queue.read(page * 4096, IoBuf::zeroed(4096)).await };
            world.block_on(done).map(|buf| buf[0]).map_err(|error| error.kind)
        };
        let write = |page: u64, byte: u8| {
            let (queue, buf) = (queue.clone(), IoBuf::copy_from(&[byte; 4096]));
            world.block_on(async move { queue.write(page * 4096, buf).await }).expect("written");
        };
        disk.make_unreadable(1);
        disk.faults.fail_next(OpKind::Read, ANYWHERE, 1);
        let failed = Err(DeviceErrorKind::Io);
        assert_eq!([0, 0, 1, 1].map(read), [failed, Ok(7), failed, failed]);
        disk.record_writes();
        write(0, 8);
        assert_eq!(read(1), failed, "another page was written");
        write(1, 9);
        assert_eq!([0, 1].map(read), [Ok(8), Ok(9)]);
        assert_eq!(disk.recorded().iter().map(|it| it[4096]).collect::<Vec<_>>(), [7, 9]);
        assert_eq!((disk.faults.writes(), disk.faults.bytes_read()), (2, 3 * 4096));
        disk.faults.refuse(OpKind::Read);
        assert_eq!(read(3), Err(DeviceErrorKind::NotSupported));
    }

    #[test]
    fn hung_operations_are_carried_out_once_the_device_has_healed() {
        let world = LaneWorld::new();
        let (device, faults) = world.faulty(ram(1));
        faults.hang(&[OpKind::Write]);
        let (queue, buf) = (world.queue(&device), IoBuf::copy_from(&[3; 512]));
        let writer = queue.clone();
        world.lane.spawn(async move { drop(writer.write(512, buf).await) });
        world.advance(std::time::Duration::from_secs(1));
        let first = world.block_on(async move { queue.read(512, IoBuf::zeroed(512)).await });
        assert_eq!(first.expect("reads go on")[0], 0);
        assert_eq!((faults.hung(), faults.writes()), (vec!["write of 512..1024".to_owned()], 0));
        faults.heal();
        world.run(|| (world.lane.live_tasks() == 0).then_some(()));
        assert_eq!((faults.hung(), faults.writes()), (Vec::new(), 1));
        assert_eq!(crate::peek(&device, 512, 512), [3; 512]);
    }

    #[test]
    #[should_panic(expected = "read beyond the end of disk: 4096..8192")]
    fn reads_beyond_the_end_are_refused() {
        crate::peek(&Disk::of(&[0; 4096]).device, 4096, 4096);
    }
}
