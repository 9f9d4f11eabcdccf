//! The FUSE server of a lane: begins and ends channels.

use std::cell::{Cell, RefCell};
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_device::ring::Ring;
use forebay_engine::{BlockService, Exports, HandedOver, LaneFrontEnd};
use forebay_lane::{Lane, LaneMemory, MemoryBudget, MemoryUse, Signal, either};
use rustix::process::{getegid, geteuid};

use crate::answer::FileFacts;
use crate::board::{Board, Connection, Post};
use crate::channel::{CHANNEL_BYTES, Channel, Queues};
use crate::inherited;

/// Time limit at the end of the daemon for a file that is being unmounted, and before a hand-over
/// for its requests.
const DRAIN: Duration = Duration::from_secs(5);

/// State that the tasks of a lane share.
struct Shared {
    lane: Rc<Lane>,
    ring: Rc<Ring>,
    exports: Rc<dyn Exports>,
    budget: Arc<MemoryBudget>,
    memory: Rc<LaneMemory>,
    board: Arc<Board>,
    number: usize,
    channels: RefCell<Vec<Rc<Channel>>>,
    stopping: Cell<bool>,
    /// Connections for the next program.
    left: RefCell<Vec<HandedOver>>,
    ended: Signal,
}

impl Shared {
    /// Waits until no channel is served any more, at most for [`DRAIN`].
    async fn all_ended(&self) {
        let ended = async {
            while !self.channels.borrow().is_empty() {
                self.ended.wait().await;
            }
        };
        either(ended, self.lane.sleep(DRAIN)).await;
        for channel in self.channels.borrow().iter() {
            channel.let_go();
            channel.close();
        }
    }

    fn each_of(&self, volume: &str, each: impl Fn(&Channel)) {
        let channels = self.channels.borrow();
        channels.iter().filter(|channel| channel.name() == volume).for_each(|it| each(it));
    }
}

/// See the module.
pub(crate) struct Server {
    shared: Rc<Shared>,
}

impl Server {
    /// Serves the connections that come through `board` on the calling lane.
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
            budget: budget.clone(),
            memory: Rc::new(LaneMemory::new(budget.clone())),
            number: board.join(),
            board: board.clone(),
            channels: RefCell::default(),
            stopping: Cell::new(false),
            left: RefCell::default(),
            ended: Signal::default(),
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
                Post::Serve(connection) => begin(&shared, connection),
                Post::Close(volume) => shared.each_of(&volume, |channel| channel.close()),
                Post::Leave(volume) => shared.each_of(&volume, |channel| channel.leave()),
            }
        }
        if shared.stopping.get() {
            return;
        }
        changed.await;
    }
}

fn facts(target: &dyn BlockService, outlives: bool, io_uring: bool) -> FileFacts {
    FileFacts {
        size: target.size(),
        sector: target.sectors().logical,
        read_only: target.read_only(),
        block: target.preferred_block(),
        uid: geteuid().as_raw(),
        gid: getegid().as_raw(),
        outlives,
        io_uring,
    }
}

/// Begins to serve a connection. If that is impossible, it is closed.
fn begin(shared: &Rc<Shared>, connection: Connection) {
    let Connection { volume, fd, outlives, queues, begun, ended } = connection;
    let Some(target) = shared.exports.open(&volume) else { return };
    let bytes = CHANNEL_BYTES + queues.as_ref().map_or(0, Queues::bytes);
    if !shared.budget.take_for_connection(bytes, false) {
        tracing::warn!(volume, "there is no memory to serve its file; raise --memory-limit");
        return;
    }
    // The kernel may need this thread to write to the file before it gets memory for itself.
    if let Err(error) = rustix::process::configure_io_flusher_behavior(true) {
        tracing::debug!(%error, "the lane cannot be told from other users of the file");
    }
    let file = facts(&*target, outlives, queues.is_some());
    let lane = (shared.lane.clone(), shared.ring.clone(), shared.memory.clone());
    let channel = Channel::new(&volume, fd, (target, file), lane);
    shared.channels.borrow_mut().push(channel.clone());
    if let Some(queues) = &queues {
        channel.serve_queues(queues);
    }
    let shared = shared.clone();
    shared.lane.clone().spawn(async move {
        let end = AtEnd { shared: &shared, channel: &channel, bytes };
        channel.serve().await;
        if let Some(descriptor) = channel.left() {
            let item = inherited::connection(channel.name(), descriptor);
            shared.left.borrow_mut().push(item);
        }
        drop(end);
        drop(channel);
        drop(ended);
    });
    let _ = begun.send(file);
}

/// Removes a channel on drop, also when its task panics.
struct AtEnd<'a> {
    shared: &'a Shared,
    channel: &'a Rc<Channel>,
    /// Its memory.
    bytes: u64,
}

impl Drop for AtEnd<'_> {
    fn drop(&mut self) {
        self.channel.let_go();
        self.shared.channels.borrow_mut().retain(|known| !Rc::ptr_eq(known, self.channel));
        self.shared.budget.give(MemoryUse::Connections, self.bytes);
        self.shared.ended.raise();
    }
}

impl LaneFrontEnd for Server {
    fn dismiss(&self, volume: &str) {
        self.shared.each_of(volume, |channel| channel.let_go());
    }

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        let shared = self.shared;
        shared.stopping.set(true);
        shared.board.changed.notify_all();
        // The front end has unmounted the files; here the lane notices it.
        Box::pin(async move { shared.all_ended().await })
    }

    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
        let shared = self.shared;
        shared.stopping.set(true);
        shared.board.changed.notify_all();
        Box::pin(async move {
            shared.channels.borrow().iter().for_each(|channel| channel.leave());
            shared.all_ended().await;
            let mut left = shared.left.take();
            // Requests that take longer end before the next program serves the volume: with a
            // reply, or without one if the volume fails them because it ends.
            for channel in shared.channels.borrow().iter() {
                let descriptor = channel.left();
                left.extend(descriptor.map(|fd| inherited::connection(channel.name(), fd)));
            }
            left
        })
    }
}
