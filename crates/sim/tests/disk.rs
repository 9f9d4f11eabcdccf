//! The simulated disk by itself: order, syncs, crashes, faults.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Clock, Nanos};
use forebay_device::{Device, DeviceOp, IoBuf, Queue, QueueContext};
use forebay_lane::{Lane, LaneId};
use forebay_sim::disk::{DiskSpec, SimDisk};
use forebay_sim::faults::{FaultPlan, LatencyModel};
use forebay_sim::image::PowerCut;
use forebay_sim::queue::DiskHandle;
use forebay_sim::shared::SimContext;
use forebay_sim::stamp::{self, SECTOR, SectorAddress};

struct Bench {
    shared: SimContext,
    disk: Arc<SimDisk>,
    lane: Rc<Lane>,
    queue: Queue,
}

fn bench(seed: u64, plan: FaultPlan) -> Bench {
    let shared = SimContext::new(seed, false);
    let spec = DiskSpec {
        name: "disk".into(),
        number: 0,
        size: 1 << 20,
        logical_block: 512,
        latency: LatencyModel::fast(),
        plan,
    };
    let disk = SimDisk::new(spec, &shared, fastrand::Rng::with_seed(seed));
    let lane = Lane::new(LaneId(0), shared.clock.clone(), || ());
    let context = QueueContext { clock: lane.clock().clone(), ring: None, tasks: None };
    let queue = Queue::new(DiskHandle::new(disk.clone()).open_queue(&context).expect("a queue"));
    Bench { shared, disk, lane, queue }
}

impl Bench {
    /// Starts an operation, and returns a cell that will contain its result.
    fn start(&self, op: DeviceOp) -> Rc<std::cell::RefCell<Option<bool>>> {
        let ended = Rc::new(std::cell::RefCell::new(None));
        let (queue, result) = (self.queue.clone(), ended.clone());
        self.lane.spawn(async move {
            let done = queue.run(op).await;
            result.replace(Some(done.result.is_ok()));
        });
        while self.lane.run_ready() {}
        ended
    }

    fn finish(&self) {
        loop {
            while self.lane.run_ready() || self.disk.complete_one() {}
            match self.disk.next_due() {
                Some(due) => {
                    self.shared.clock.advance_to(Nanos(due.0.max(self.shared.clock.now().0)))
                }
                None => return,
            }
        }
    }

    fn write(&self, sector: u64, byte: u8, sectors: usize) -> Rc<std::cell::RefCell<Option<bool>>> {
        let mut buf = IoBuf::zeroed(sectors * SECTOR);
        buf.fill(byte);
        self.start(DeviceOp::Write {
            offset: sector * SECTOR as u64,
            data: forebay_device::IoData::Owned(buf),
        })
    }

    fn durable(&self, sector: u64) -> u8 {
        self.disk.with_image(|image| image.durable(sector)[0])
    }

    fn visible(&self, sector: u64) -> u8 {
        self.disk.with_image(|image| image.visible(sector)[0])
    }
}

#[test]
fn synced_data_survives_and_other_data_may_not() {
    let mut outcomes = std::collections::BTreeSet::new();
    for seed in 0..300 {
        let bench = bench(seed, FaultPlan::default());
        bench.write(0, 1, 1);
        bench.finish();
        bench.start(DeviceOp::Sync);
        bench.finish();
        bench.write(0, 2, 1);
        bench.write(8, 3, 2);
        if seed % 2 == 0 {
            bench.finish();
            assert_eq!(bench.visible(0), 2);
        }
        let mut rng = fastrand::Rng::with_seed(seed);
        bench.disk.crash(Some(PowerCut::choose(&mut rng)));
        outcomes.insert((bench.durable(0), bench.durable(8), bench.durable(9)));
    }
    let every: std::collections::BTreeSet<_> = [1, 2]
        .into_iter()
        .flat_map(|a| [0, 3].into_iter().flat_map(move |b| [0, 3].map(|c| (a, b, c))))
        .collect();
    assert_eq!(outcomes, every);
}

#[test]
fn a_sync_does_not_cover_what_completes_after_it_began() {
    for seed in 0..50 {
        let bench = bench(seed, FaultPlan::default());
        bench.write(0, 1, 1);
        bench.start(DeviceOp::Sync);
        bench.finish();
        assert_eq!((bench.visible(0), bench.durable(0)), (1, 0), "seed {seed}");
    }
}

#[test]
fn operations_complete_in_any_order() {
    let mut orders = std::collections::BTreeSet::new();
    for seed in 0..100 {
        let bench = bench(seed, FaultPlan::default());
        bench.write(0, 1, 1);
        bench.write(0, 2, 1);
        bench.finish();
        orders.insert(bench.visible(0));
    }
    assert_eq!(orders.into_iter().collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn failures_are_reported_and_lost_writes_are_not() {
    let always = 1_000_000;
    let failing = bench(1, FaultPlan { write_error: always, ..FaultPlan::default() });
    let ended = failing.write(0, 1, 1);
    failing.finish();
    assert_eq!(*ended.borrow(), Some(false));

    let losing = bench(1, FaultPlan { lost_write: always, ..FaultPlan::default() });
    let place = SectorAddress { volume: 1, sector: 77 };
    let mut buf = IoBuf::zeroed(SECTOR);
    stamp::fill(&mut buf, 1, place, 5);
    let ended =
        losing.start(DeviceOp::Write { offset: 0, data: forebay_device::IoData::Owned(buf) });
    losing.finish();
    assert_eq!(*ended.borrow(), Some(true));
    assert_eq!(losing.visible(0), 0);
    assert_eq!(losing.shared.take_tainted(), [place]);
    // The loss of data without a stamp could not be recorded, so such data is never lost.
    losing.write(0, 9, 1);
    losing.finish();
    assert_eq!(losing.visible(0), 9);
}

#[test]
fn bad_sectors_fail_until_they_are_written() {
    let plan = FaultPlan { read_error: 1_000_000, bad_sectors: true, ..FaultPlan::default() };
    let bench = bench(1, plan);
    let read = |bench: &Bench| {
        let ended = bench.start(DeviceOp::Read { offset: 0, buf: IoBuf::zeroed(SECTOR) });
        bench.finish();
        ended.take()
    };
    assert_eq!(read(&bench), Some(false));
    bench.disk.set_plan(FaultPlan::default(), false);
    assert_eq!(read(&bench), Some(false));
    bench.write(0, 1, 1);
    bench.finish();
    assert_eq!(read(&bench), Some(true));
}

#[test]
fn nothing_happens_after_the_moment_of_the_crash() {
    let bench = bench(1, FaultPlan::default());
    bench.shared.arm(Some(2));
    bench.write(0, 1, 1);
    let ended = bench.write(1, 1, 1);
    bench.write(2, 1, 1);
    bench.finish();
    assert!(bench.shared.stopped());
    assert_eq!(*ended.borrow(), None);
    bench.disk.crash(Some(PowerCut::KeepAll));
    assert_eq!(bench.durable(0), 1);
    assert_eq!(bench.durable(2), 0);
}

#[test]
fn misuse_is_noted() {
    for op in [
        DeviceOp::Read { offset: 100, buf: IoBuf::zeroed(SECTOR) },
        DeviceOp::Read { offset: 1 << 20, buf: IoBuf::zeroed(SECTOR) },
        DeviceOp::Discard { offset: 0, len: 100 },
        DeviceOp::WriteZeroes { offset: u64::MAX - 511, len: 512 },
    ] {
        let bench = bench(1, FaultPlan::default());
        let ended = bench.start(op);
        bench.finish();
        assert_eq!(*ended.borrow(), Some(false));
        assert!(bench.shared.complaint().is_some());
    }
    let bench = bench(1, FaultPlan { overlap_is_fault: true, ..FaultPlan::default() });
    bench.write(0, 1, 4);
    bench.write(3, 1, 4);
    assert!(bench.shared.complaint().is_some());
}
