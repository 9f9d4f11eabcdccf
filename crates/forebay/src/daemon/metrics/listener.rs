//! The address of `--metrics`: answers `GET /metrics` over TCP and nothing else.
//!
//! It runs on the thread of the admin API. Nothing here changes anything, so it asks nobody for a password.

use std::convert::Infallible;
use std::net::{SocketAddr, TcpListener as StdListener};
use std::sync::Arc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::time::timeout;

use super::text::Format;
use crate::daemon::http::{Body, HttpAnswer, MAX_HEAD, MAX_HEADERS, REQUEST_DEADLINE};
use crate::daemon::volumes::Volumes;

/// The path.
const PATH: &str = "/metrics";

/// Most connections at a time; others are closed.
const MAX_CONNECTIONS: usize = 8;

/// Time limit for a connection, from its begin to its end: scrapers read at once.
const CONNECTION_DEADLINE: Duration = Duration::from_secs(20);

/// Claims an address.
///
/// # Errors
/// [`ErrorKind::Refused`] if it is in use, or not one of this machine.
pub(crate) fn claim(address: SocketAddr) -> Result<StdListener, ApiError> {
    let listener = StdListener::bind(address).and_then(|listener| {
        listener.set_nonblocking(true)?;
        Ok(listener)
    });
    let listener = listener.map_err(|error| {
        let message = format!("--metrics: cannot listen at {address}: {error}");
        ApiError::new(ErrorKind::Refused, message)
    })?;
    if !address.ip().is_loopback() {
        tracing::warn!(
            %address,
            "everyone who reaches this address can read the metrics, which name volumes and devices"
        );
    }
    Ok(listener)
}

/// Answers until it is dropped.
pub(crate) async fn serve(listener: StdListener, volumes: &Arc<Volumes>) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!("--metrics: cannot listen: {error}");
            return std::future::pending().await;
        }
    };
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    loop {
        match listener.accept().await {
            Ok((stream, _)) => {
                if let Ok(place) = places.clone().try_acquire_owned() {
                    let volumes = volumes.clone();
                    tokio::spawn(async move {
                        let _ = timeout(CONNECTION_DEADLINE, connection(stream, &volumes)).await;
                        drop(place);
                    });
                }
            }
            Err(error) => {
                // Probably out of descriptors: the connection stays queued, so wait.
                tracing::warn!(%error, "a connection to the metrics could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

async fn connection(stream: TcpStream, volumes: &Arc<Volumes>) {
    let service = service_fn(async |request: Request<Incoming>| {
        Ok::<_, Infallible>(answer(&request, volumes).await)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_DEADLINE);
    http.keep_alive(false).half_close(true).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    if let Err(error) = http.serve_connection(TokioIo::new(stream), service).await {
        tracing::debug!("a connection to the metrics failed: {error}");
    }
}

/// Answers one request; its body, if any, is not read.
async fn answer(request: &Request<Incoming>, volumes: &Arc<Volumes>) -> Response<Body> {
    if request.uri().path() != PATH {
        let message = format!("only {PATH} is served here; the rest is on the admin socket");
        return HttpAnswer::error(&ApiError::new(ErrorKind::NotFound, message)).into();
    }
    if request.method() != Method::GET && request.method() != Method::HEAD {
        let message = format!("{PATH} can only be read, with GET");
        let mut refused: Response<_> =
            HttpAnswer::error(&ApiError::new(ErrorKind::Invalid, message)).into();
        *refused.status_mut() = StatusCode::METHOD_NOT_ALLOWED;
        refused.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
        return refused;
    }
    let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::for_client(&accept.collect::<Vec<_>>().join(","));
    let volumes = volumes.clone();
    let scraped = tokio::task::spawn_blocking(move || super::scrape(&volumes, format)).await;
    match scraped {
        Ok(text) => HttpAnswer::text(format.media_type(), text).into(),
        Err(error) => HttpAnswer::error(&ApiError::failed(format!("failed: {error}"))).into(),
    }
}
