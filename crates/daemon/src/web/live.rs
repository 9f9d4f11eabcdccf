//! Checks the volumes, and sends the activity since the last check as server-sent events.
//!
//! One task serves all browsers: it checks every second while there are any, otherwise as often as
//! the history needs it. A check reads counters that exist anyway, and no lane waits for it.

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use forebay_admin::{ApiError, ErrorKind, ReportList};
use http_body_util::Either;
use http_body_util::channel::{Channel, Sender};
use hyper::Response;
use hyper::body::Bytes;
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use serde_json::json;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::time::{MissedTickBehavior, timeout};

use super::history::ActivityHistory;
use crate::events::stream::{HEARTBEAT, MEDIA_TYPE, RETRY, STALLED};
use crate::host_api::Count;
use crate::http::HyperBody;
use crate::volumes::Volumes;
use forebay_admin::activity::Looks;

/// Interval at which browsers get updates.
const LOOK: Duration = Duration::from_secs(1);

/// Number of checks between two samples of the history.
const LOOKS_PER_SAMPLE: u64 = 10;

/// Samples between two writes of the history.
const SAMPLES_PER_WRITE: u64 = 6;

/// Most streams to browsers at a time.
const MAX_STREAMS: usize = 16;

/// Most messages that wait for a client.
const QUEUE: usize = 2;

/// See the module.
pub(super) struct LiveFeed {
    volumes: Arc<Volumes>,
    latest: watch::Sender<Bytes>,
    places: Arc<Semaphore>,
    history: Mutex<ActivityHistory>,
}

impl LiveFeed {
    pub(super) fn new(state_dir: &Path, volumes: Arc<Volumes>) -> Arc<Self> {
        Arc::new(LiveFeed {
            volumes,
            latest: watch::Sender::new(Bytes::new()),
            places: Arc::new(Semaphore::new(MAX_STREAMS)),
            history: Mutex::new(ActivityHistory::read(state_dir)),
        })
    }

    /// Returns the history as JSON.
    pub(super) fn history(&self) -> String {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).json()
    }

    /// Checks the volumes until this is dropped.
    pub(super) async fn watch(self: Arc<Self>) {
        let mut clock = tokio::time::interval(LOOK);
        clock.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut seconds, mut samples) = (Looks::default(), Looks::default());
        for tick in 0_u64.. {
            clock.tick().await;
            let (watched, sampled) =
                (self.latest.receiver_count() > 0, tick.is_multiple_of(LOOKS_PER_SAMPLE));
            if !watched {
                seconds.forget();
            }
            if !watched && !sampled {
                continue;
            }
            let volumes = self.volumes.clone();
            let look = tokio::task::spawn_blocking(move || {
                volumes.want_count();
                ReportList { volumes: volumes.list(Count::Known) }
            });
            let Ok(reports) = look.await else { continue };
            let now = Instant::now();
            let time = SystemTime::UNIX_EPOCH.elapsed().map_or(0.0, |time| time.as_secs_f64());
            if sampled && let Some(interval) = samples.next(now, time, reports.clone()) {
                let write = tick.is_multiple_of(LOOKS_PER_SAMPLE * SAMPLES_PER_WRITE);
                let this = self.clone();
                // Written on a thread that may block, because the state directory may be slow.
                let add = move || {
                    let mut history = this.history.lock().unwrap_or_else(PoisonError::into_inner);
                    history.add(&interval);
                    let todo = write.then(|| history.to_write());
                    drop(history);
                    if let Some(todo) = todo {
                        todo.write();
                    }
                };
                let _ = tokio::task::spawn_blocking(add).await;
            }
            if watched {
                let interval = seconds.next(now, time, reports);
                let message = json!({"interval": interval, "reports": seconds.reports()});
                self.latest.send_replace(format!("data: {message}\n\n").into());
            }
        }
    }

    /// Writes the history.
    pub(super) fn save(&self) {
        let todo = self.history.lock().unwrap_or_else(PoisonError::into_inner).to_write();
        todo.write();
    }

    /// Lets a browser follow.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] if too many do already.
    pub(super) fn follow(&self) -> Result<Response<HyperBody>, ApiError> {
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            let message = format!("{MAX_STREAMS} browsers show the page already; close one");
            ApiError::new(ErrorKind::Busy, message)
        })?;
        let (sender, body) = Channel::new(QUEUE);
        tokio::spawn(send(sender, self.latest.subscribe(), place));
        let mut response = Response::new(Either::Right(body));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(MEDIA_TYPE));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Ok(response)
    }
}

/// Sends until the client is gone. A slow client misses some intervals.
async fn send(
    mut sender: Sender<Bytes, Infallible>,
    mut latest: watch::Receiver<Bytes>,
    _place: OwnedSemaphorePermit,
) {
    let mut text = Bytes::from_static(RETRY.as_bytes());
    while let Ok(Ok(())) = timeout(STALLED, sender.send_data(text)).await {
        text = match timeout(HEARTBEAT, latest.changed()).await {
            Ok(Ok(())) => latest.borrow_and_update().clone(),
            Ok(Err(_)) => return,
            Err(_) => Bytes::from_static(b":\n\n"),
        };
    }
}
