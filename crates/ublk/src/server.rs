//! The ublk server of a lane: begins and ends queues.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_device::ring::Ring;
use forebay_device::ublk::Descriptors;
use forebay_engine::{Exports, HandedOver, LaneFrontEnd};
use forebay_lane::{Lane, LaneMemory, MemoryBudget, either};

use crate::board::{Board, NewQueue, Post, VolumeFacts};
use crate::control::survives;
use crate::queue::{Queue, Source};
use crate::request::DeviceFacts;

/// Time limit for requests in flight when the daemon ends; the next server gets the others.
const DRAIN: Duration = Duration::from_secs(5);

/// State that the tasks of a lane share.
struct Shared {
    lane: Rc<Lane>,
    ring: Rc<Ring>,
    exports: Rc<dyn Exports>,
    memory: Rc<LaneMemory>,
    board: Arc<Board>,
    number: usize,
    queues: RefCell<Vec<Rc<Queue>>>,
    stopping: Cell<bool>,
}

impl Shared {
    fn each_of(&self, volume: &str, each: impl Fn(&Queue)) {
        let queues = self.queues.borrow();
        queues.iter().filter(|queue| queue.volume() == volume).for_each(|queue| each(queue));
    }
}

/// See the module.
pub(crate) struct Server {
    shared: Rc<Shared>,
}

impl Server {
    /// Serves the queues that come through `board` on the calling lane.
    pub(crate) fn serve(
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
        board: &Arc<Board>,
        budget: &Arc<MemoryBudget>,
    ) -> Self {
        let shared = Rc::new(Shared {
            lane: lane.clone(),
            ring: ring.clone(),
            exports,
            memory: Rc::new(LaneMemory::new(budget.clone())),
            number: board.join(),
            board: board.clone(),
            queues: RefCell::default(),
            stopping: Cell::new(false),
        });
        lane.spawn(take_posts(shared.clone()));
        Server { shared }
    }
}

async fn take_posts(shared: Rc<Shared>) {
    loop {
        let changed = shared.board.changed.listen();
        while let Some(post) = shared.board.take(shared.number) {
            match post {
                Post::Describe(volume, answer) => {
                    if let Some(target) = shared.exports.open(&volume) {
                        let (size, read_only) = (target.size(), target.read_only());
                        let (sectors, block) = (target.sectors(), target.preferred_block());
                        let _ = answer.send(VolumeFacts { size, read_only, sectors, block });
                    }
                }
                Post::Serve(queue) => begin(&shared, queue),
                Post::Fail(volume) => shared.each_of(&volume, Queue::fail),
            }
        }
        if shared.stopping.get() {
            return;
        }
        changed.await;
    }
}

/// Begins to serve a queue, or drops all of it, and reports which.
fn begin(shared: &Rc<Shared>, new: NewQueue) {
    let (number, begun) = (new.number, new.begun.clone());
    let served = try_begin(shared, new);
    let _ = begun.send((number, served));
}

fn try_begin(shared: &Rc<Shared>, new: NewQueue) -> bool {
    let NewQueue { volume, fd, info, flushes, number, mut memory, ended, .. } = new;
    let Some(target) = shared.exports.open(&volume) else { return false };
    let descriptors = match Descriptors::map(&*fd, number, info.depth) {
        Ok(descriptors) => descriptors,
        Err(error) => {
            tracing::error!(volume, number, %error, "the queue of its device cannot be mapped");
            return false;
        }
    };
    // The kernel may need this thread to write to the device before it gets memory for itself.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "the lane cannot be told from other users of the device");
    }
    let facts = DeviceFacts {
        size: target.size(),
        read_only: target.read_only(),
        max_io: info.max_io_bytes,
        outlives: survives(&info),
        flushes,
    };
    let own = (shared.ring.clone(), shared.memory.clone());
    let queue = Queue::new((&volume, number), (target, facts), own);
    shared.queues.borrow_mut().push(queue.clone());
    let (those, this) = (shared.clone(), Rc::downgrade(&queue));
    let buffers = std::mem::take(&mut memory.buffers);
    queue.serve(&shared.lane, buffers, Source { fd, descriptors }, move || {
        those.queues.borrow_mut().retain(|known| Rc::as_ptr(known) != this.as_ptr());
        drop((memory, ended));
    });
    true
}

impl LaneFrontEnd for Server {
    fn dismiss(&self, volume: &str) {
        self.shared.each_of(volume, Queue::let_go);
    }

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        let shared = self.shared;
        shared.stopping.set(true);
        shared.board.changed.notify_all();
        let queues = shared.queues.borrow().clone();
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
