//! The part of a lane in a front end: it takes messages, and serves queues or connections.

use std::cell::{Cell, RefCell};
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::ring::Ring;
use forebay_engine::Exports;
use forebay_lane::{Lane, LaneMemory, MemoryBudget};

use crate::Board;

/// State that the tasks of a lane share: messages `P`, and queues or connections `S`.
pub struct LaneServed<P, S> {
    /// The lane.
    pub lane: Rc<Lane>,
    /// Its ring.
    pub ring: Rc<Ring>,
    /// Its volumes.
    pub exports: Rc<dyn Exports>,
    /// Its memory for requests.
    pub memory: Rc<LaneMemory>,
    /// Everything that is served.
    pub all: RefCell<Vec<Rc<S>>>,
    board: Arc<Board<P>>,
    number: usize,
    stopping: Cell<bool>,
}

impl<P, S> LaneServed<P, S> {
    /// Joins a board with the calling lane, which serves nothing yet. Requests share `budget`.
    pub fn join(
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
        board: &Arc<Board<P>>,
        budget: &Arc<MemoryBudget>,
    ) -> Self {
        LaneServed {
            lane: lane.clone(),
            ring: ring.clone(),
            exports,
            memory: Rc::new(LaneMemory::new(budget.clone())),
            all: RefCell::default(),
            number: board.join(),
            board: board.clone(),
            stopping: Cell::new(false),
        }
    }

    /// Takes messages, until [`LaneServed::stop`].
    pub async fn take_posts(&self, take: impl Fn(P)) {
        loop {
            let changed = self.board.changed.listen();
            while let Some(post) = self.board.take(self.number) {
                take(post);
            }
            if self.stopping.get() {
                return;
            }
            changed.await;
        }
    }

    /// Takes no more messages.
    pub fn stop(&self) {
        self.stopping.set(true);
        self.board.changed.notify_all();
    }

    /// Visits everything that is served of one volume; `name` returns the name of the volume.
    pub fn each_of(&self, volume: &str, name: impl Fn(&S) -> &str, each: impl Fn(&S)) {
        self.all.borrow().iter().filter(|it| name(it) == volume).for_each(|it| each(it));
    }

    /// Removes a queue or connection that has ended.
    pub fn remove(&self, ended: *const S) {
        self.all.borrow_mut().retain(|known| Rc::as_ptr(known) != ended);
    }
}

/// Marks the calling thread as an I/O flusher, so that the kernel does not make it wait for
/// writeback to a device that this thread serves (`PR_SET_IO_FLUSHER`): that would deadlock.
pub fn flush_for_kernel() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "the lane cannot be told from other users of the device");
    }
}
