//! A lane's part of a front end: takes messages, and serves queues or connections.

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
    /// The lane's ring.
    pub ring: Rc<Ring>,
    /// The lane's volumes.
    pub exports: Rc<dyn Exports>,
    /// The lane's memory for requests.
    pub memory: Rc<LaneMemory>,
    /// All queues or connections that the lane serves.
    pub all: RefCell<Vec<Rc<S>>>,
    board: Arc<Board<P>>,
    number: usize,
    stopping: Cell<bool>,
}

impl<P, S> LaneServed<P, S> {
    /// Joins a board with the calling lane, which serves nothing yet. Requests take their memory
    /// from `budget`.
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

    /// Calls a function for each queue or connection of one volume; `name` returns the name of the
    /// volume.
    pub fn each_of(&self, volume: &str, name: impl Fn(&S) -> &str, each: impl Fn(&S)) {
        self.all.borrow().iter().filter(|it| name(it) == volume).for_each(|it| each(it));
    }

    /// Removes a queue or connection that has ended.
    pub fn remove(&self, ended: *const S) {
        self.all.borrow_mut().retain(|known| Rc::as_ptr(known) != ended);
    }
}

/// Marks the calling thread as an I/O flusher (`PR_SET_IO_FLUSHER`). The kernel then does not make
/// it wait for writeback to a device that this thread serves, which would be a deadlock.
pub fn flush_for_kernel() {
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "the lane cannot be told from other users of the device");
    }
}
