//! The simplest system that keeps every promise: it has no cache, and each request goes to the
//! disk.
//!
//! It shows that the simulator accepts correct behaviour and, with one of its bugs enabled, that it
//! detects incorrect behaviour.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_core::{IoError, Op, SECTOR_SIZE, Survives};
use forebay_device::{Device, DeviceOp, IoBuf, Queue, QueueContext};
use forebay_engine::{BlockService, Completion, CompletionSink, EngineError, Extent, Request};
use forebay_lane::Lane;

use crate::features::{Feature, Features};
use crate::queue::DiskHandle;
use crate::system::{Admin, Instance, LocalFuture, Machine, SystemUnderTest};

/// A bug that can be enabled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReferenceBug {
    /// A flush is acknowledged without a sync of the disk.
    ForgottenSync,
    /// A FUA write is acknowledged like any other.
    ForgottenFua,
    /// A write is acknowledged before it reaches the disk.
    EarlyAcknowledgement,
    /// Reads return data from a copy that writes on other lanes do not update.
    StaleCopy,
    /// Every hundredth write goes to the next sector.
    WrongPlace,
    /// Every hundredth request is never answered.
    ForgottenRequest,
}

impl ReferenceBug {
    /// All bugs.
    pub const ALL: [ReferenceBug; 6] = [
        ReferenceBug::ForgottenSync,
        ReferenceBug::ForgottenFua,
        ReferenceBug::EarlyAcknowledgement,
        ReferenceBug::StaleCopy,
        ReferenceBug::WrongPlace,
        ReferenceBug::ForgottenRequest,
    ];
}

/// The reference model, with at most one bug.
pub struct ReferenceModel(pub Option<ReferenceBug>);

impl SystemUnderTest for ReferenceModel {
    fn lacks(&self) -> Features {
        [
            Feature::Shape,
            Feature::Absence,
            Feature::Hang,
            Feature::Decay,
            Feature::Rot,
            Feature::Grown,
            Feature::Ledger,
            Feature::Protected,
            Feature::Sectors,
            Feature::Displaced,
            Feature::Ram,
            // The clients' writes overlap on the disk, where one that is resent may take effect
            // last, and fail.
            Feature::Remote,
        ]
        .into_iter()
        .fold(Features::default(), Features::and)
    }

    fn format(&self, _machine: &Machine) -> LocalFuture<Result<(), EngineError>> {
        Box::pin(async { Ok(()) })
    }

    fn open(&self, machine: &Machine) -> LocalFuture<Result<Rc<dyn Instance>, EngineError>> {
        let (machine, bug) = (machine.clone(), self.0);
        Box::pin(async move {
            let mut targets = BTreeMap::new();
            for (index, lane) in machine.lanes.iter().enumerate() {
                let context = QueueContext { clock: lane.clock().clone(), ring: None, tasks: None };
                for (volume, origin) in machine.origins.iter().enumerate() {
                    let disk = DiskHandle::new(origin.clone());
                    let queue = disk.open_queue(&context)?;
                    let (lane, queue) = (lane.clone(), Queue::new(queue));
                    // Otherwise data that the previous owner left in the disk's write cache could
                    // be lost after it was read.
                    queue.sync().await?;
                    let copies = RefCell::default();
                    let body = Rc::new(ReferenceVolume {
                        lane,
                        queue,
                        size: disk.size(),
                        bug,
                        copies,
                        count: RefCell::default(),
                    });
                    targets.insert((index, volume as u16), Rc::new(ReferenceTarget(body)));
                }
            }
            Ok(Rc::new(ReferenceInstance(targets)) as Rc<dyn Instance>)
        })
    }
}

struct ReferenceInstance(BTreeMap<(usize, u16), Rc<ReferenceTarget>>);

impl Instance for ReferenceInstance {
    fn target(&self, lane: usize, volume: u16) -> Option<Rc<dyn BlockService>> {
        self.0.get(&(lane, volume)).map(|target| target.clone() as Rc<dyn BlockService>)
    }

    fn admin(&self, _action: Admin) -> LocalFuture<Result<(), EngineError>> {
        Box::pin(async { Ok(()) })
    }

    fn stop(&self, _drain: bool) -> LocalFuture<Result<(), EngineError>> {
        let queues: Vec<_> = self.0.values().map(|target| target.0.queue.clone()).collect();
        Box::pin(async move {
            for queue in queues {
                queue.sync().await?;
            }
            Ok(())
        })
    }
}

struct ReferenceVolume {
    lane: Rc<Lane>,
    queue: Queue,
    size: u64,
    bug: Option<ReferenceBug>,
    copies: RefCell<BTreeMap<u64, Vec<u8>>>,
    count: RefCell<u64>,
}

impl ReferenceVolume {
    async fn run(&self, request: &mut Request) -> Result<(), IoError> {
        let (offset, len) = (request.offset, request.len);
        let io = |_| IoError::Io;
        match request.op {
            Op::Read => {
                let buf = IoBuf::for_overwrite(len as usize);
                let mut buf = self.queue.read(offset, buf).await.map_err(io)?;
                if self.bug == Some(ReferenceBug::StaleCopy) {
                    self.read_copies(offset, &mut buf);
                }
                request.data = Some(buf);
            }
            Op::Write => {
                let buf = request.data.take().ok_or(IoError::Invalid)?;
                *self.count.borrow_mut() += 1;
                let astray = self.bug == Some(ReferenceBug::WrongPlace)
                    && self.count.borrow().is_multiple_of(100)
                    && offset + len < self.size;
                let offset = if astray { offset + SECTOR_SIZE } else { offset };
                self.queue.write(offset, buf).await.map_err(io)?;
                if request.survives == Survives::PowerLoss
                    && self.bug != Some(ReferenceBug::ForgottenFua)
                {
                    self.queue.sync().await.map_err(io)?;
                }
            }
            Op::Flush if self.bug == Some(ReferenceBug::ForgottenSync) => {}
            Op::Flush => self.queue.sync().await.map_err(io)?,
            Op::Discard | Op::WriteZeroes => {
                let op = DeviceOp::WriteZeroes { offset, len };
                self.queue.run(op).await.result.map_err(io)?;
                if request.survives == Survives::PowerLoss {
                    self.queue.sync().await.map_err(io)?;
                }
            }
            Op::Prefetch => {}
        }
        Ok(())
    }

    fn read_copies(&self, offset: u64, buf: &mut [u8]) {
        let mut copies = self.copies.borrow_mut();
        for (index, sector) in
            buf.as_chunks_mut::<{ SECTOR_SIZE as usize }>().0.iter_mut().enumerate()
        {
            let copy = copies
                .entry(offset / SECTOR_SIZE + index as u64)
                .or_insert_with(|| sector.to_vec());
            sector.copy_from_slice(copy);
        }
    }
}

struct ReferenceTarget(Rc<ReferenceVolume>);

impl BlockService for ReferenceTarget {
    fn size(&self) -> u64 {
        self.0.size
    }

    fn preferred_block(&self) -> u64 {
        4096
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_now(&self, _offset: u64, _into: &mut [u8]) -> Option<Result<(), IoError>> {
        None
    }

    fn write_now(&self, _offset: u64, _data: &[u8]) -> Option<Result<(), IoError>> {
        None
    }

    fn submit(&self, mut request: Request, sink: &Rc<dyn CompletionSink>) {
        let (body, sink, tag) = (self.0.clone(), sink.clone(), request.tag);
        if body.bug == Some(ReferenceBug::ForgottenRequest) && tag.is_multiple_of(100) {
            return;
        }
        if body.bug == Some(ReferenceBug::EarlyAcknowledgement) && request.op == Op::Write {
            sink.complete(Completion { tag, result: Ok(()), data: None });
            self.0.lane.spawn(async move {
                let _ = body.run(&mut request).await;
            });
            return;
        }
        self.0.lane.spawn(async move {
            let result = body.run(&mut request).await;
            sink.complete(Completion { tag, result, data: request.data.take() });
        });
    }

    fn extents(&self, _offset: u64, len: u64) -> Vec<Extent> {
        vec![Extent { len, hole: false, zero: false }]
    }
}
