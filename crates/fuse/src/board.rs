//! Messages to the lanes: connections that they are to serve.

use std::os::fd::OwnedFd;
use std::sync::mpsc::Sender;

use crate::answer::FileFacts;
use crate::channel::Queues;

/// A message to one lane.
pub(crate) enum Post {
    /// Serve a connection.
    Serve(Connection),
    /// Close the connection for this volume, with the requests in flight unanswered.
    Close(String),
    /// Answer the requests that were taken for this volume, and leave the others to the next
    /// daemon.
    Leave(String),
}

/// A connection for one lane.
pub(crate) struct Connection {
    pub(crate) volume: String,
    pub(crate) fd: OwnedFd,
    /// The file outlives the daemon.
    pub(crate) outlives: bool,
    /// The queues of the lane; `None` if requests do not come through io_uring.
    pub(crate) queues: Option<Queues>,
    /// Receives the facts about the volume when the lane has begun; disconnected without them if
    /// the lane does not have the volume.
    pub(crate) begun: Sender<FileFacts>,
    /// Dropped when the lane has ended.
    pub(crate) ended: Sender<()>,
}

/// Tasks for the lanes.
pub(crate) type ChannelBoard = forebay_export::Board<Post>;
