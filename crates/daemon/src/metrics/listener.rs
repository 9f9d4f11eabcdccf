//! The address of `--metrics`: answers `GET /metrics` over TCP and nothing else.

use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind};
use hyper::header::ACCEPT;
use hyper::{Request, Response};

use super::text::Format;
use crate::http::{Body, HttpAnswer};
use crate::tcp;
use crate::volumes::Volumes;

/// The path.
const PATH: &str = "/metrics";

/// Most connections at a time.
pub(crate) const MAX_CONNECTIONS: usize = 8;

/// Answers one request; its body, if any, is not read.
pub(crate) async fn answer<B>(request: Request<B>, volumes: Arc<Volumes>) -> Response<Body> {
    if request.uri().path() != PATH {
        let message = format!("only {PATH} is served here; the rest is on the admin socket");
        return HttpAnswer::error(&ApiError::new(ErrorKind::NotFound, message)).into();
    }
    if let Some(refused) = tcp::refuse_changes(request.method()) {
        return refused;
    }
    let accept = request.headers().get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    let format = Format::for_client(&accept.collect::<Vec<_>>().join(","));
    let scraped = tokio::task::spawn_blocking(move || super::scrape(&volumes, format)).await;
    match scraped {
        Ok(text) => HttpAnswer::text(format.media_type(), text).into(),
        Err(error) => HttpAnswer::error(&ApiError::failed(format!("failed: {error}"))).into(),
    }
}
