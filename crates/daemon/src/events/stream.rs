//! Sends events to a client as they happen, as server-sent events, which browsers and the command
//! line read.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, Event};
use http_body_util::channel::{Channel, Sender};
use hyper::body::Bytes;
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;

use super::query::Query;
use super::{Events, MAX_FOLLOWERS};

/// The media type by which a client requests the stream.
pub const MEDIA_TYPE: &str = "text/event-stream";

/// Interval between lines when nothing happens, so that disconnected clients are noticed.
pub const HEARTBEAT: Duration = Duration::from_secs(5);

/// Time without progress after which a client is disconnected.
pub(crate) const STALLED: Duration = Duration::from_secs(30);

/// The first message: milliseconds after which a client that has lost the connection connects
/// again.
pub(crate) const RETRY: &str = "retry: 1000\n\n";

/// Most messages that wait for a client.
const QUEUE: usize = 16;

/// The stream of events to one client.
pub(crate) struct Following {
    events: Arc<Events>,
    query: Query,
    place: OwnedSemaphorePermit,
}

impl std::fmt::Debug for Following {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Following").field("query", &self.query).finish_non_exhaustive()
    }
}

impl Events {
    /// Begins a stream with those events that already match `query`.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if too many do already.
    pub(crate) fn follow(self: &Arc<Self>, query: Query) -> Result<Following, ApiError> {
        let place = self.followers.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_FOLLOWERS} clients follow the events already");
            ApiError::new(ErrorKind::Busy, message)
        })?;
        Ok(Following { events: self.clone(), query, place })
    }
}

impl Following {
    /// Begins to send; must be called on the thread of the admin API.
    pub(crate) fn body(self) -> Channel<Bytes, Infallible> {
        let (sender, body) = Channel::new(QUEUE);
        tokio::spawn(self.send(sender));
        body
    }

    /// Sends until the client is gone.
    async fn send(self, mut sender: Sender<Bytes, Infallible>) {
        let Following { events, mut query, place: _place } = self;
        let mut newest = events.newest.subscribe();
        let mut text = RETRY.to_owned();
        while let Ok(Ok(())) = timeout(STALLED, sender.send_data(text.into())).await {
            text = loop {
                newest.borrow_and_update();
                let (found, last) = events.batch(&query);
                // A slow client still gets all events that are in memory.
                (query.after, query.limit) = (query.after.max(last), usize::MAX);
                if !found.is_empty() {
                    break found.iter().map(message).collect();
                }
                if timeout(HEARTBEAT, newest.changed()).await.is_err() {
                    break ":\n\n".to_owned();
                }
            };
        }
    }
}

/// Returns the message for an event. It has no event type, so that a page gets all events with one
/// listener.
fn message(event: &Event) -> String {
    let data = serde_json::to_string(event).unwrap_or_default();
    format!("id: {}\ndata: {data}\n\n", event.id.0)
}
