//! Queues between threads, like those of [`std::sync::mpsc`]. A bounded queue has space for at
//! least one message.

use std::collections::VecDeque;
use std::fmt;
use std::panic::Location;
use std::sync::Arc;
pub use std::sync::mpsc::{RecvError, RecvTimeoutError, SendError, TryRecvError, TrySendError};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::scheduler::Here;
use crate::sync::LockEvent;
use crate::time::Instant;

struct MessageQueue<T> {
    messages: VecDeque<T>,
    senders: usize,
    has_receiver: bool,
}

struct ChannelState<T> {
    queue: Mutex<MessageQueue<T>>,
    /// A message or the end of all senders.
    arrival: LockEvent,
    /// Space or the end of the receiver.
    space: LockEvent,
    most: usize,
}

/// Lets another simulated thread run.
fn step(at: &'static Location<'static>) {
    if let Some(here) = Here::get() {
        here.step(at);
    }
}

/// Returns whether a simulated thread is being ended and must not wait any more.
fn unwinds() -> bool {
    std::thread::panicking() && Here::get().is_some_and(|here| here.is_ending())
}

impl<T> ChannelState<T> {
    /// Sends a message if there is space.
    fn push(&self, queue: &mut MessageQueue<T>, message: T) -> Result<(), TrySendError<T>> {
        if !queue.has_receiver {
            return Err(TrySendError::Disconnected(message));
        }
        if queue.messages.len() >= self.most {
            return Err(TrySendError::Full(message));
        }
        queue.messages.push_back(message);
        Ok(())
    }

    fn try_send(&self, message: T, at: &'static Location<'static>) -> Result<(), TrySendError<T>> {
        let sent = self.push(&mut self.queue.lock(), message);
        if sent.is_ok() {
            self.arrival.notify_all();
            step(at);
        }
        sent
    }

    fn send(&self, mut message: T, at: &'static Location<'static>) -> Result<(), SendError<T>> {
        loop {
            message = match self.try_send(message, at) {
                Ok(()) => return Ok(()),
                Err(TrySendError::Disconnected(message)) => return Err(SendError(message)),
                Err(TrySendError::Full(message)) if unwinds() => return Err(SendError(message)),
                Err(TrySendError::Full(message)) => message,
            };
            let queue = self.queue.lock();
            if queue.has_receiver && queue.messages.len() >= self.most {
                drop(self.space.wait(&self.queue, queue, None, at));
            }
        }
    }

    fn pop(&self, mut queue: MutexGuard<'_, MessageQueue<T>>) -> Result<T, TryRecvError> {
        match queue.messages.pop_front() {
            Some(message) => {
                drop(queue);
                self.space.notify_all();
                Ok(message)
            }
            None if queue.senders == 0 => Err(TryRecvError::Disconnected),
            None => Err(TryRecvError::Empty),
        }
    }

    /// `end`: when to stop waiting.
    fn receive(
        &self,
        end: Option<Instant>,
        at: &'static Location<'static>,
    ) -> Result<T, RecvTimeoutError> {
        step(at);
        loop {
            match self.pop(self.queue.lock()) {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) => {}
            }
            let left = end.map(|end| end.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) || unwinds() {
                return Err(RecvTimeoutError::Timeout);
            }
            let queue = self.queue.lock();
            if queue.messages.is_empty() && queue.senders > 0 {
                drop(self.arrival.wait(&self.queue, queue, left, at));
            }
        }
    }

    fn begin_sender(self: &Arc<Self>) -> Arc<Self> {
        self.queue.lock().senders += 1;
        self.clone()
    }

    fn end_sender(&self) {
        self.queue.lock().senders -= 1;
        self.arrival.notify_all();
    }
}

fn shared<T>(most: usize) -> Arc<ChannelState<T>> {
    let queue =
        Mutex::new(MessageQueue { messages: VecDeque::new(), senders: 1, has_receiver: true });
    Arc::new(ChannelState { queue, arrival: LockEvent::new(), space: LockEvent::new(), most })
}

/// Makes an unbounded queue.
pub fn channel<T>() -> (Sender<T>, Receiver<T>) {
    let shared = shared(usize::MAX);
    (Sender(shared.clone()), Receiver(shared))
}

/// Creates a queue for `most` messages. Senders wait while it is full.
pub fn sync_channel<T>(most: usize) -> (SyncSender<T>, Receiver<T>) {
    let shared = shared(most.max(1));
    (SyncSender(shared.clone()), Receiver(shared))
}

/// Sends into a queue without bounds.
pub struct Sender<T>(Arc<ChannelState<T>>);

impl<T> Sender<T> {
    /// Sends, without waiting.
    ///
    /// # Errors
    /// The receiver was dropped.
    #[track_caller]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.send(message, Location::caller())
    }
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender(self.0.begin_sender())
    }
}

impl<T> Drop for Sender<T> {
    fn drop(&mut self) {
        self.0.end_sender();
    }
}

impl<T> fmt::Debug for Sender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sender")
    }
}

/// Sends into a queue with bounds.
pub struct SyncSender<T>(Arc<ChannelState<T>>);

impl<T> SyncSender<T> {
    /// Waits for space, and sends.
    ///
    /// # Errors
    /// The receiver was dropped.
    #[track_caller]
    pub fn send(&self, message: T) -> Result<(), SendError<T>> {
        self.0.send(message, Location::caller())
    }

    /// Sends a message if there is space.
    ///
    /// # Errors
    /// The queue is full, or the receiver was dropped.
    #[track_caller]
    pub fn try_send(&self, message: T) -> Result<(), TrySendError<T>> {
        self.0.try_send(message, Location::caller())
    }
}

impl<T> Clone for SyncSender<T> {
    fn clone(&self) -> Self {
        SyncSender(self.0.begin_sender())
    }
}

impl<T> Drop for SyncSender<T> {
    fn drop(&mut self) {
        self.0.end_sender();
    }
}

impl<T> fmt::Debug for SyncSender<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SyncSender")
    }
}

/// Receives from a queue.
pub struct Receiver<T>(Arc<ChannelState<T>>);

impl<T> Receiver<T> {
    /// Waits for a message.
    ///
    /// # Errors
    /// The queue is empty, and all senders were dropped.
    #[track_caller]
    pub fn recv(&self) -> Result<T, RecvError> {
        self.0.receive(None, Location::caller()).map_err(|_| RecvError)
    }

    /// Waits for a message, at most for `time`.
    ///
    /// # Errors
    /// The queue is empty, and the time has passed or all senders were dropped.
    #[track_caller]
    pub fn recv_timeout(&self, time: Duration) -> Result<T, RecvTimeoutError> {
        self.0.receive(Instant::now().checked_add(time), Location::caller())
    }

    /// Returns the next message without waiting.
    ///
    /// # Errors
    /// The queue is empty.
    #[track_caller]
    pub fn try_recv(&self) -> Result<T, TryRecvError> {
        step(Location::caller());
        self.0.pop(self.0.queue.lock())
    }

    /// Returns the messages as they arrive, until all senders are dropped.
    pub fn iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.recv().ok())
    }

    /// Returns the messages that are in the queue now.
    pub fn try_iter(&self) -> impl Iterator<Item = T> {
        std::iter::from_fn(|| self.try_recv().ok())
    }
}

impl<T> Drop for Receiver<T> {
    fn drop(&mut self) {
        let mut queue = self.0.queue.lock();
        queue.has_receiver = false;
        // The messages may send and receive while they are dropped, so the lock is released first.
        let messages = std::mem::take(&mut queue.messages);
        drop(queue);
        drop(messages);
        self.0.space.notify_all();
    }
}

impl<T> fmt::Debug for Receiver<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Receiver")
    }
}

/// The messages of a queue, as they arrive.
pub struct IntoIter<T>(Receiver<T>);

impl<T> Iterator for IntoIter<T> {
    type Item = T;

    fn next(&mut self) -> Option<T> {
        self.0.recv().ok()
    }
}

impl<T> IntoIterator for Receiver<T> {
    type Item = T;
    type IntoIter = IntoIter<T>;

    fn into_iter(self) -> IntoIter<T> {
        IntoIter(self)
    }
}
