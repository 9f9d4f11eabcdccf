//! Images of a real cluster, used as lanes use them. `scripts/cluster-test` provides the cluster;
//! without it nothing is tested.

use std::cell::RefCell;
use std::future::Future;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::channel;

use forebay_device::{
    Access, Device, DeviceErrorKind, DeviceOp, IoBuf, OpenErrorKind, Queue, RbdName,
};
use forebay_lane::{LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock, join_all};
use forebay_rbd::{RbdDevice, wait_closed};

const MIB: u64 = 1 << 20;
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(60);

std::thread_local! {
    static HERE: RefCell<Option<LaneLoop>> = const { RefCell::new(None) };
}

/// Returns the configuration of the cluster. `None` if there is no cluster; a line is then printed
/// that says so.
fn cluster() -> Option<PathBuf> {
    let conf = std::env::var_os("FOREBAY_CEPH_CONF").map(PathBuf::from);
    if conf.is_none() {
        println!("skipped: FOREBAY_CEPH_CONF names no cluster; run scripts/cluster-test");
    }
    conf
}

fn rbd(arguments: &[&str]) {
    let done = Command::new("rbd").args(arguments).output().expect("rbd is installed");
    assert!(done.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&done.stderr));
}

fn name(text: &str, conf: &std::path::Path) -> RbdName {
    format!("rbd:rbd/{text}?conf={}", conf.display()).parse().expect("good")
}

/// Runs a job with a queue to the device on a separate lane.
fn on_lane<F: Future<Output = ()> + 'static>(
    device: &Arc<dyn Device>,
    job: impl FnOnce(Queue) -> F + Send + 'static,
) {
    let keep = |here: &LaneLoop| HERE.set(Some(here.clone()));
    let clock = Arc::new(MonotonicClock::new());
    let lane = LaneThread::spawn("test-lane", LaneId(0), clock, LaneOptions::default(), keep);
    let lane = lane.expect("a lane");
    let (tell, hear) = channel();
    let device = device.clone();
    lane.remote().run(move |lane| {
        let here = HERE.with_borrow(Clone::clone).expect("set up");
        let job = job(here.open(&*device).expect("a queue"));
        lane.spawn(async move {
            job.await;
            let _ = tell.send(());
        });
    });
    hear.recv().expect("the job has ended");
}

fn filled(byte: u8, len: u64) -> IoBuf {
    let mut buf = IoBuf::zeroed(usize::try_from(len).expect("small"));
    buf.fill(byte);
    buf
}

async fn check(queue: &Queue, offset: u64, len: u64, byte: u8) {
    let buf = queue.read(offset, filled(0xee, len)).await.expect("read");
    assert!(buf.iter().all(|found| *found == byte), "{byte} at {offset}");
}

#[test]
fn written_data_is_read_back_and_zeroed_data_is_zero() {
    let Some(conf) = cluster() else { return };
    rbd(&["create", "--size", "64M", "unit-basics"]);
    let device =
        RbdDevice::open(&name("unit-basics", &conf), Access::Exclusive, None).expect("opened");
    assert_eq!((device.size(), device.logical_block()), (64 * MIB, 512));
    assert_eq!((device.sectors().logical, device.sectors().io_opt), (512, 4 << 20));
    on_lane(&device, |queue| async move {
        let writes = (0..32u8).map(|number| {
            let (queue, offset) = (queue.clone(), u64::from(number) * MIB + 512);
            async move { queue.write(offset, filled(number + 1, MIB / 2)).await.is_ok() }
        });
        assert_eq!(join_all(writes.collect::<Vec<_>>()).await, [true; 32]);
        queue.sync().await.expect("flushed");
        for number in 0..32u8 {
            check(&queue, u64::from(number) * MIB + 512, MIB / 2, number + 1).await;
        }
        // Neither end of the range is aligned to an object or to a part that can be deallocated.
        for op in [
            DeviceOp::Discard { offset: 4 * MIB + 1024, len: 8 * MIB },
            DeviceOp::WriteZeroes { offset: 16 * MIB + 1024, len: 8 * MIB },
        ] {
            let range = op.range().expect("has one");
            queue.run(op).await.result.expect("zeroed");
            check(&queue, range.start, 8 * MIB, 0).await;
            check(&queue, range.start - 512, 512, (range.start / MIB) as u8 + 1).await;
            check(&queue, range.end, 512, (range.end / MIB) as u8 + 1).await;
        }
        let beyond = queue.write(64 * MIB, filled(1, 512)).await.expect_err("beyond the end");
        assert_eq!(beyond.kind, DeviceErrorKind::Invalid);
    });
    let identity = device.identity().expect("known");
    // A second writer is refused while the first is alive, and can open the image afterwards.
    let refused = RbdDevice::open(&name("unit-basics", &conf), Access::Exclusive, None)
        .err()
        .expect("locked");
    assert_eq!(refused.kind, OpenErrorKind::InUse, "{refused}");
    drop(device);
    let device =
        RbdDevice::open(&name("unit-basics", &conf), Access::Exclusive, None).expect("unlocked");
    assert_eq!(device.identity(), Some(identity.clone()));
    drop(device);
    assert!(wait_closed(PATIENCE));
    rbd(&["rm", "--no-progress", "unit-basics"]);
    rbd(&["create", "--size", "64M", "unit-basics"]);
    let device =
        RbdDevice::open(&name("unit-basics", &conf), Access::Shared, None).expect("opened");
    assert!(device.identity().expect("known").difference(&identity).is_some(), "another image");
    on_lane(&device, |queue| async move {
        check(&queue, MIB, MIB, 0).await;
        let denied = queue.write(0, filled(1, 512)).await.expect_err("read-only");
        assert_eq!(denied.kind, DeviceErrorKind::ReadOnly);
    });
    drop(device);
    assert!(wait_closed(PATIENCE));
}

#[test]
fn images_that_cannot_be_used_are_refused_with_the_reason() {
    let Some(conf) = cluster() else { return };
    rbd(&["create", "--size", "8M", "--image-feature", "layering", "unit-plain"]);
    let open = |name| RbdDevice::open(&name, Access::Exclusive, None).err().expect("refused");
    let plain = open(name("unit-plain", &conf));
    assert_eq!(plain.kind, OpenErrorKind::Denied);
    assert!(plain.cause.contains("rbd feature enable rbd/unit-plain exclusive-lock"), "{plain}");
    let missing = open(name("missing", &conf));
    assert_eq!(missing.kind, OpenErrorKind::NotFound, "{missing}");
    assert!(missing.cause.contains("rbd_open failed: No such file"), "{missing}");
    let pool = open(format!("rbd:pool/i?conf={}", conf.display()).parse().expect("good"));
    assert!(pool.cause.contains("rados_ioctx_create failed: No such file"), "{pool}");
    let nowhere = open("rbd:p/i?conf=/nonexistent".parse().expect("good"));
    assert!(nowhere.cause.contains("rados_conf_read_file failed: No such file"), "{nowhere}");
}

#[test]
fn a_client_that_is_fenced_does_nothing_any_more() {
    let Some(conf) = cluster() else { return };
    rbd(&["create", "--size", "8M", "unit-fenced"]);
    let device =
        RbdDevice::open(&name("unit-fenced", &conf), Access::Exclusive, None).expect("opened");
    let lock = Command::new("rbd").args(["lock", "ls", "unit-fenced"]).output().expect("rbd");
    let lock = String::from_utf8_lossy(&lock.stdout).into_owned();
    let words: Vec<_> = lock.lines().last().expect("locked").split_whitespace().collect();
    let [locker, auto, number, ..] = words.as_slice() else { panic!("{lock}") };
    rbd(&["lock", "rm", "unit-fenced", &format!("{auto} {number}"), locker]);
    on_lane(&device, |queue| async move {
        for _ in 0..2 {
            let refused = queue.write(0, filled(1, 512)).await.expect_err("fenced");
            assert_eq!(refused.kind, DeviceErrorKind::Gone, "{refused}");
        }
        let refused = queue.sync().await.expect_err("fenced");
        assert_eq!(refused.kind, DeviceErrorKind::Gone);
    });
    assert!(device.fenced().expect("noticed").contains("fenced"));
    drop(device);
    let device =
        RbdDevice::open(&name("unit-fenced", &conf), Access::Exclusive, None).expect("opened anew");
    on_lane(&device, |queue| async move {
        check(&queue, 0, 512, 0).await;
        queue.write(0, filled(1, 512)).await.expect("a client of its own");
    });
    drop(device);
    assert!(wait_closed(PATIENCE));
}
