//! Messages to the lanes: connections that they are to serve.

use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::Sender;

use forebay_lane::Notify;
use parking_lot::Mutex;

use crate::answer::FileFacts;

/// A message to one lane.
pub(crate) enum Post {
    /// Serve a connection.
    Serve(Connection),
    /// Close the connection for this volume.
    Close(String),
}

/// A connection for one lane.
pub(crate) struct Connection {
    pub(crate) volume: String,
    pub(crate) fd: OwnedFd,
    /// Gets the facts about the volume when the lane has begun, or nothing if that does not have it.
    pub(crate) begun: Sender<FileFacts>,
    /// Dropped when the lane has ended.
    pub(crate) ended: Sender<()>,
}

/// What lanes are to do next.
#[derive(Default)]
pub(crate) struct Board {
    lanes: AtomicUsize,
    posts: Mutex<Vec<(usize, Post)>>,
    pub(crate) changed: Notify,
}

impl Board {
    /// Adds a lane; returns its number.
    pub(crate) fn join(&self) -> usize {
        self.lanes.fetch_add(1, Ordering::Relaxed)
    }

    /// Returns the number of lanes.
    pub(crate) fn lanes(&self) -> usize {
        self.lanes.load(Ordering::Relaxed)
    }

    /// Has each lane serve one of the descriptors, in order.
    pub(crate) fn post(
        &self,
        volume: &str,
        fds: Vec<OwnedFd>,
        begun: &Sender<FileFacts>,
        ended: &Sender<()>,
    ) {
        let posts = fds.into_iter().enumerate().map(|(lane, fd)| {
            let (begun, ended) = (begun.clone(), ended.clone());
            (lane, Post::Serve(Connection { volume: volume.to_owned(), fd, begun, ended }))
        });
        self.posts.lock().extend(posts);
        self.changed.notify_all();
    }

    /// Has each lane close its connection for a volume, with the requests in flight unanswered.
    pub(crate) fn close(&self, volume: &str) {
        let posts = (0..self.lanes()).map(|lane| (lane, Post::Close(volume.to_owned())));
        self.posts.lock().extend(posts);
        self.changed.notify_all();
    }

    /// Takes the next message to a lane.
    pub(crate) fn take(&self, lane: usize) -> Option<Post> {
        let mut posts = self.posts.lock();
        let index = posts.iter().position(|(to, _)| *to == lane)?;
        Some(posts.remove(index).1)
    }
}
