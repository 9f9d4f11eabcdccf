//! The ublk server of a lane: begins and ends queues.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_device::ring::Ring;
use forebay_device::ublk::Descriptors;
use forebay_engine::{Exports, HandedOver, LaneFrontEnd};
use forebay_export::served::{LaneServed, flush_for_kernel};
use forebay_lane::{Lane, MemoryBudget, either};

use crate::board::{NewQueue, Post, QueueBoard, VolumeFacts};
use crate::control::survives;
use crate::queue::{ServedQueue, Source};
use crate::request::DeviceFacts;

/// Time limit for requests in flight when the daemon ends; the others are left to the next server.
const DRAIN: Duration = Duration::from_secs(5);

/// State that the tasks of a lane share.
type QueueServerState = LaneServed<Post, ServedQueue>;

/// See the module.
struct QueueServer {
    shared: Rc<QueueServerState>,
}

/// Serves the queues that arrive through `board` on the calling lane.
pub(crate) fn serve(
    lane: &Rc<Lane>,
    ring: &Rc<Ring>,
    exports: Rc<dyn Exports>,
    board: &Arc<QueueBoard>,
    budget: &Arc<MemoryBudget>,
) -> Box<dyn LaneFrontEnd> {
    let shared = Rc::new(QueueServerState::join(lane, ring, exports, board, budget));
    let taking = shared.clone();
    lane.spawn(async move { taking.take_posts(|post| take(&taking, post)).await });
    Box::new(QueueServer { shared })
}

fn take(shared: &Rc<QueueServerState>, post: Post) {
    match post {
        Post::Describe(volume, answer) => {
            if let Some(target) = shared.exports.open(&volume) {
                let (size, read_only) = (target.size(), target.read_only());
                let (sectors, block) = (target.sectors(), target.preferred_block());
                let _ = answer.send(VolumeFacts { size, read_only, sectors, block });
            }
        }
        Post::Serve(queue) => begin(shared, queue),
        Post::Fail(volume) => shared.each_of(&volume, ServedQueue::volume, ServedQueue::fail),
    }
}

/// Begins to serve a queue or drops it entirely, and reports which.
fn begin(shared: &Rc<QueueServerState>, new: NewQueue) {
    let (number, begun) = (new.number, new.begun.clone());
    let served = try_begin(shared, new);
    let _ = begun.send((number, served));
}

fn try_begin(shared: &Rc<QueueServerState>, new: NewQueue) -> bool {
    let NewQueue { volume, fd, info, flushes, number, mut memory, ended, .. } = new;
    let Some(target) = shared.exports.open(&volume) else { return false };
    let descriptors = match Descriptors::map(&*fd, number, info.depth) {
        Ok(descriptors) => descriptors,
        Err(error) => {
            tracing::error!(volume, number, %error, "the queue of its device cannot be mapped");
            return false;
        }
    };
    flush_for_kernel();
    let facts = DeviceFacts {
        size: target.size(),
        read_only: target.read_only(),
        max_io: info.max_io_bytes,
        outlives: survives(&info),
        flushes,
    };
    let own = (shared.ring.clone(), shared.memory.clone());
    let queue = ServedQueue::new((&volume, number), (target, facts), own);
    shared.all.borrow_mut().push(queue.clone());
    let (those, this) = (shared.clone(), Rc::downgrade(&queue));
    let buffers = std::mem::take(&mut memory.buffers);
    queue.serve(&shared.lane, buffers, Source { fd, descriptors }, move || {
        those.remove(this.as_ptr());
        drop((memory, ended));
    });
    true
}

impl LaneFrontEnd for QueueServer {
    fn dismiss(&self, volume: &str) {
        self.shared.each_of(volume, ServedQueue::volume, ServedQueue::let_go);
    }

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        let shared = self.shared;
        shared.stop();
        let queues = shared.all.borrow().clone();
        queues.iter().for_each(|queue| queue.leave());
        Box::pin(async move {
            let answered = async {
                for queue in &queues {
                    while !queue.is_quiet() {
                        queue.quieter.wait().await;
                    }
                }
            };
            either(answered, shared.lane.sleep(DRAIN)).await;
            queues.iter().for_each(|queue| queue.let_go());
        })
    }

    /// Hands nothing over: the kernel keeps the device and its requests until the next program
    /// takes it over, as after a restart.
    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
        Box::pin(async move {
            self.drain().await;
            Vec::new()
        })
    }
}
