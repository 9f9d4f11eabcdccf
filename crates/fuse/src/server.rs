//! The FUSE server of a lane: begins and ends channels.

use std::cell::RefCell;
use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_device::ring::Ring;
use forebay_engine::{BlockService, Exports, HandedOver, LaneFrontEnd};
use forebay_export::served::{LaneServed, flush_for_kernel};
use forebay_lane::{Lane, MemoryBudget, MemoryUse, Signal, either};
use rustix::process::{getegid, geteuid};

use crate::answer::FileFacts;
use crate::board::{ChannelBoard, Connection, Post};
use crate::channel::{CHANNEL_BYTES, Channel, Queues};
use crate::inherited;

/// Time limit for a file that is being unmounted when the daemon ends, and for a file's requests
/// before a hand-over.
const DRAIN: Duration = Duration::from_secs(5);

/// State that the tasks of a lane share.
struct FileServerState {
    served: LaneServed<Post, Channel>,
    budget: Arc<MemoryBudget>,
    /// Connections for the next program.
    left: RefCell<Vec<HandedOver>>,
    ended: Signal,
}

impl FileServerState {
    /// Waits until no channel is served any more, at most for [`DRAIN`].
    async fn all_ended(&self) {
        let ended = async {
            while !self.served.all.borrow().is_empty() {
                self.ended.wait().await;
            }
        };
        either(ended, self.served.lane.sleep(DRAIN)).await;
        for channel in self.served.all.borrow().iter() {
            channel.let_go();
            channel.close();
        }
    }

    fn each_of(&self, volume: &str, each: impl Fn(&Channel)) {
        self.served.each_of(volume, Channel::name, each);
    }
}

/// See the module.
pub(crate) struct FileServer {
    shared: Rc<FileServerState>,
}

impl FileServer {
    /// Serves the connections that arrive through `board` on the calling lane.
    pub(crate) fn serve(
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
        board: &Arc<ChannelBoard>,
        budget: &Arc<MemoryBudget>,
    ) -> Self {
        let shared = Rc::new(FileServerState {
            served: LaneServed::join(lane, ring, exports, board, budget),
            budget: budget.clone(),
            left: RefCell::default(),
            ended: Signal::default(),
        });
        let taking = shared.clone();
        lane.spawn(async move { taking.served.take_posts(|post| take(&taking, post)).await });
        FileServer { shared }
    }
}

fn take(shared: &Rc<FileServerState>, post: Post) {
    match post {
        Post::Serve(connection) => begin(shared, connection),
        Post::Close(volume) => shared.each_of(&volume, Channel::close),
        Post::Leave(volume) => shared.each_of(&volume, Channel::leave),
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

/// Begins to serve a connection, or closes it if that is impossible.
fn begin(shared: &Rc<FileServerState>, connection: Connection) {
    let Connection { volume, fd, outlives, queues, begun, ended } = connection;
    let Some(target) = shared.served.exports.open(&volume) else { return };
    let bytes = CHANNEL_BYTES + queues.as_ref().map_or(0, Queues::bytes);
    if !shared.budget.take_for_connection(bytes, false) {
        tracing::warn!(volume, "there is no memory to serve its file; raise --memory-limit");
        return;
    }
    flush_for_kernel();
    let file = facts(&*target, outlives, queues.is_some());
    let LaneServed { lane, ring, memory, all, .. } = &shared.served;
    let own = (lane.clone(), ring.clone(), memory.clone());
    let channel = Channel::new(&volume, fd, (target, file), own);
    all.borrow_mut().push(channel.clone());
    if let Some(queues) = &queues {
        channel.serve_queues(queues);
    }
    let shared = shared.clone();
    lane.spawn(async move {
        let end = ChannelGuard { shared: &shared, channel: &channel, bytes };
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
struct ChannelGuard<'a> {
    shared: &'a FileServerState,
    channel: &'a Rc<Channel>,
    /// Bytes of memory of the channel.
    bytes: u64,
}

impl Drop for ChannelGuard<'_> {
    fn drop(&mut self) {
        self.channel.let_go();
        self.shared.served.remove(Rc::as_ptr(self.channel));
        self.shared.budget.give(MemoryUse::Connections, self.bytes);
        self.shared.ended.raise();
    }
}

impl LaneFrontEnd for FileServer {
    fn dismiss(&self, volume: &str) {
        self.shared.each_of(volume, Channel::let_go);
    }

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        let shared = self.shared;
        shared.served.stop();
        // The front end has unmounted the files; the lane waits until it has noticed that.
        Box::pin(async move { shared.all_ended().await })
    }

    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
        let shared = self.shared;
        shared.served.stop();
        Box::pin(async move {
            shared.served.all.borrow().iter().for_each(|channel| channel.leave());
            shared.all_ended().await;
            let mut left = shared.left.take();
            // Requests that take longer still end before the next program serves the volume: with a
            // reply, or without one if they fail because the volume ends.
            for channel in shared.served.all.borrow().iter() {
                let descriptor = channel.left();
                left.extend(descriptor.map(|fd| inherited::connection(channel.name(), fd)));
            }
            left
        })
    }
}
