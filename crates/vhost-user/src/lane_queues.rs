//! The queues of a lane, and the commands with which a client's control task starts and stops them.

use std::cell::RefCell;
use std::collections::{HashMap, VecDeque};
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::ring::Ring;
use forebay_engine::Exports;
use forebay_lane::{Lane, MemoryBudget, Notify, Watched};
use parking_lot::Mutex;

use crate::answer::Reply;
use crate::memory::GuestMemory;
use crate::message::QueueIndex;
use crate::queue::{self, Broken, GuestQueue, QueueStart};
use crate::virtqueue::QueueError;

/// Identifies a queue among those of all clients: the number of the client, and that of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct QueueKey {
    pub(crate) client: u64,
    pub(crate) index: QueueIndex,
}

/// A command to a lane. Commands of one control task are executed in order.
pub(crate) enum Command {
    /// Serve a queue.
    Start(QueueKey, Box<QueueStart>, Reply<Result<(), Broken>>),
    /// Stop a queue when its requests in progress are answered. The answer is the index of the next
    /// request.
    Stop(QueueKey, Reply<u16>),
    /// Notify the guest through another eventfd.
    SetCall(QueueKey, Option<Arc<OwnedFd>>, Reply<()>),
    /// Use changed memory.
    SetMemory(QueueKey, Arc<GuestMemory>, Reply<Result<(), QueueError>>),
}

/// A lane, for the control tasks on other lanes.
#[derive(Default)]
pub(crate) struct LaneHandle {
    commands: Mutex<VecDeque<Command>>,
    arrived: Notify,
}

impl LaneHandle {
    pub(crate) fn send(&self, command: Command) {
        self.commands.lock().push_back(command);
        self.arrived.notify_all();
    }
}

/// The lanes that serve queues.
#[derive(Default)]
pub(crate) struct Lanes(Mutex<Vec<Arc<LaneHandle>>>);

impl Lanes {
    /// Adds a lane.
    pub(crate) fn add(&self, handle: Arc<LaneHandle>) {
        self.0.lock().push(handle);
    }

    /// Returns the lane for a queue. `None`: there are no lanes.
    pub(crate) fn of(&self, index: QueueIndex) -> Option<Arc<LaneHandle>> {
        let lanes = self.0.lock();
        let place = usize::from(index.0).checked_rem(lanes.len())?;
        lanes.get(place).cloned()
    }
}

/// The queues of the calling lane.
pub(crate) struct LaneQueues {
    lane: Rc<Lane>,
    ring: Rc<Ring>,
    exports: Rc<dyn Exports>,
    memory: Arc<MemoryBudget>,
    queues: RefCell<HashMap<QueueKey, Rc<GuestQueue>>>,
}

impl LaneQueues {
    pub(crate) fn new(
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
        memory: Arc<MemoryBudget>,
    ) -> Rc<Self> {
        let (lane, ring) = (lane.clone(), ring.clone());
        Rc::new(LaneQueues { lane, ring, exports, memory, queues: RefCell::default() })
    }

    /// Returns whether no queue is served.
    pub(crate) fn is_empty(&self) -> bool {
        self.queues.borrow().is_empty()
    }

    /// Executes commands as they arrive, as long as the lane runs.
    pub(crate) async fn follow(self: Rc<Self>, handle: Arc<LaneHandle>) {
        loop {
            let arrived = handle.arrived.listen();
            loop {
                // The lock is not held while a command is executed.
                let Some(command) = handle.commands.lock().pop_front() else { break };
                self.execute(command);
            }
            arrived.await;
        }
    }

    fn execute(&self, command: Command) {
        match command {
            Command::Start(key, start, reply) => reply.give(self.start(key, *start)),
            Command::Stop(key, reply) => {
                let found = self.queues.borrow_mut().remove(&key);
                if let Some(queue) = found {
                    queue.stop(reply);
                }
            }
            Command::SetCall(key, call, reply) => {
                if let Some(queue) = self.queues.borrow().get(&key) {
                    queue.set_call(call);
                }
                reply.give(());
            }
            Command::SetMemory(key, memory, reply) => {
                let queues = self.queues.borrow();
                reply.give(queues.get(&key).map_or(Ok(()), |queue| queue.set_memory(memory)));
            }
        }
    }

    fn start(&self, key: QueueKey, start: QueueStart) -> Result<(), Broken> {
        let target = self.exports.open(&start.session.volume).ok_or(Broken::NoVolume)?;
        let queue = GuestQueue::open(start, target, &self.ring, &self.memory)?;
        self.queues.borrow_mut().insert(key, queue.clone());
        let watched: Rc<dyn Watched> = queue.clone();
        self.lane.watch(&watched);
        self.lane.spawn(queue::run(queue, self.lane.clone()));
        Ok(())
    }
}
