//! Measures the client alone: reads or writes an export at a fixed depth, and prints the rate.
//!
//!     load URI read|write|randread|randwrite BLOCK DEPTH CONNECTIONS SECONDS
//!
//! Each connection belongs to a lane of its own. Compare with `fio --ioengine=nbd` or `nbdcopy`.
#![expect(clippy::disallowed_methods, reason = "a benchmark has a clock and threads")]

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use forebay_device::{Access, Device, IoBuf, NbdUri, Queue};
use forebay_lane::{LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_nbd_client::NbdDevice;

/// The load of one connection.
#[derive(Clone, Copy)]
struct Load {
    write: bool,
    random: bool,
    block: u64,
    depth: u64,
    /// The part of the export that this connection uses.
    first: u64,
    blocks: u64,
    end: Instant,
}

async fn run(queue: Queue, load: Load, next: Rc<Cell<u64>>, done: Rc<Cell<u64>>) {
    let mut buf = IoBuf::zeroed(load.block as usize);
    while Instant::now() < load.end {
        let number = next.get();
        next.set(number + 1);
        // A full period over the blocks, far apart.
        let place =
            if load.random { number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20 } else { number };
        let offset = (load.first + place % load.blocks) * load.block;
        let result = match load.write {
            true => queue.write(offset, buf).await,
            false => queue.read(offset, buf).await,
        };
        buf = result.expect("the server works");
        done.set(done.get() + 1);
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [uri, kind, block, depth, connections, seconds] = &words[..] else {
        panic!("usage: load URI read|write|randread|randwrite BLOCK DEPTH CONNECTIONS SECONDS");
    };
    let number = |text: &String| text.parse::<u64>().expect("a number");
    let uri: NbdUri = uri.parse().expect("a URI");
    let device: Arc<dyn Device> = NbdDevice::open(&uri, Access::Exclusive).expect("a server");
    let (block, depth, connections) = (number(block), number(depth), number(connections));
    let start = Instant::now();
    let length = Duration::from_secs(number(seconds));
    let blocks = device.size() / block / connections;
    let (tell, hear) = channel();
    let lanes: Vec<LaneThread> = (0..connections)
        .map(|lane| {
            let (device, tell) = (device.clone(), tell.clone());
            let load = Load {
                write: kind.ends_with("write"),
                random: kind.starts_with("rand"),
                block,
                depth: depth / connections,
                first: lane * blocks,
                blocks,
                end: start + length,
            };
            let setup = move |here: &LaneLoop| {
                let queue = here.open(&*device).expect("a queue");
                let (next, done) = (Rc::<Cell<u64>>::default(), Rc::<Cell<u64>>::default());
                let work: Vec<_> = (0..load.depth)
                    .map(|_| run(queue.clone(), load, next.clone(), done.clone()))
                    .collect();
                let lane = here.lane();
                let left = Rc::new(Cell::new(load.depth));
                for one in work {
                    let (left, done, tell) = (left.clone(), done.clone(), tell.clone());
                    lane.spawn(async move {
                        one.await;
                        left.set(left.get() - 1);
                        if left.get() == 0 {
                            tell.send(done.get()).expect("heard");
                        }
                    });
                }
            };
            let (id, clock) = (LaneId(lane as u16), Arc::new(MonotonicClock::new()));
            LaneThread::spawn("load", id, clock, LaneOptions::default(), setup).expect("a lane")
        })
        .collect();
    let total: u64 = (0..connections).map(|_| hear.recv().expect("a result")).sum();
    let rate = total as f64 / start.elapsed().as_secs_f64();
    println!("{rate:.0} requests/s, {:.1} MiB/s", rate * block as f64 / f64::from(1 << 20));
    drop(lanes);
}
