//! TCP addresses that answer over plain HTTP: those of `--metrics` and `--web`.
//!
//! They are served by the thread of the admin API. They have no password, because nothing there
//! changes anything.
//!
//! - [`guard`]: refuses pages of other sites
//! - `places`: which connections give way to others

pub(super) mod guard;
mod places;

use std::net::{SocketAddr, TcpListener as StdListener};
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind};
use http_body_util::Either;
use hyper::body::Incoming;
use hyper::header::{ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use tokio::net::TcpListener;

use places::{ConnectionPermit, ConnectionPhase, Places};

use super::http::{HttpAnswer, HyperBody, Patience, serve_one};

/// Browsers reconnect at once when a stream ends, and clients that are gone free their places.
const PATIENCE: Patience =
    Patience { answer: Duration::from_secs(10), stream: Duration::from_secs(3600) };

/// Claims an address. `option` is the option that names it, and `readable` names the data that
/// everyone can read there.
///
/// # Errors
/// [`ErrorKind::Refused`] if the address is in use, or not one of this machine.
pub(super) fn claim(
    option: &str,
    readable: &str,
    address: SocketAddr,
) -> Result<StdListener, ApiError> {
    let listener = StdListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let listener = listener.map_err(|error| {
        let message = format!("{option}: cannot listen at {address}: {error}");
        ApiError::new(ErrorKind::Refused, message)
    })?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            "{option}: there is no authentication: everyone who reaches this address can read {readable}"
        );
    }
    Ok(listener)
}

/// Serves until it is dropped, one request for each of at most `most` connections at a time. A
/// further connection replaces one that waits for its client, so that silent clients do not shut
/// out others.
pub(super) async fn serve<F>(
    listener: StdListener,
    most: usize,
    answer: impl Fn(Request<Incoming>) -> F + Clone + Send + Sync + 'static,
) where
    F: Future<Output = Response<HyperBody>> + Send + 'static,
{
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("cannot listen: {error}");
            return std::future::pending().await;
        }
    };
    let places = Places::new(most);
    loop {
        match listener.accept().await {
            Ok((stream, peer)) => {
                let Some(place) = places.take(peer.ip().to_canonical()) else { continue };
                let (number, answer) = (place.number(), answer.clone());
                let task = tokio::spawn(async move {
                    let answer = |request| noted(&place, answer(request));
                    if let Err(error) = serve_one(stream, PATIENCE, answer).await {
                        tracing::debug!("a TCP connection failed: {error}");
                    }
                });
                places.ends_with(number, task.abort_handle());
            }
            Err(error) => {
                // Probably out of descriptors: the connection stays queued, so wait.
                tracing::warn!(%error, "a TCP connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Answers, and records the phase of the connection in its permit.
async fn noted(
    place: &ConnectionPermit,
    answer: impl Future<Output = Response<HyperBody>>,
) -> Response<HyperBody> {
    place.enter(ConnectionPhase::Busy);
    let response = answer.await;
    if let Either::Left(_) = response.body() {
        place.enter(ConnectionPhase::Answered);
    }
    response
}

/// Returns the answer that refuses all methods except GET and HEAD.
pub(super) fn refuse_changes(method: &Method) -> Option<Response<HyperBody>> {
    if method == Method::GET || method == Method::HEAD {
        return None;
    }
    let message = "nothing can be changed here: only GET and HEAD are served";
    let mut refused: Response<_> =
        HttpAnswer::error(&ApiError::new(ErrorKind::Invalid, message)).into();
    *refused.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
    refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    Some(refused)
}
