//! The address of `--metrics`: answers `GET /metrics` over TCP and nothing else.

use std::net::SocketAddr;
use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind};
use hyper::header::{ACCEPT, HeaderMap};
use hyper::{Request, Response};

use super::text::Format;
use crate::http::{HttpAnswer, HyperBody};
use crate::tcp::{self, guard};
use crate::volumes::Volumes;

/// The path.
const PATH: &str = "/metrics";

/// Most connections at a time.
pub(crate) const MAX_CONNECTIONS: usize = 8;

/// Answers one request to the address `bound`; a body is not read.
pub(crate) async fn answer<B>(
    request: Request<B>,
    bound: Option<SocketAddr>,
    volumes: Arc<Volumes>,
) -> Response<HyperBody> {
    if let Err(error) = check_sender(request.headers(), bound) {
        return HttpAnswer::error(&error).into();
    }
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

/// Refuses requests of pages of other sites. Scrapers may use any name for an address of the
/// network, so names are checked only for a loopback address.
fn check_sender(headers: &HeaderMap, bound: Option<SocketAddr>) -> Result<(), ApiError> {
    match bound {
        Some(bound) if bound.ip().is_loopback() => guard::check("--metrics", headers, bound),
        _ => guard::check_site(headers),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(bound: &str, headers: &[(&'static str, &'static str)]) -> Result<(), ErrorKind> {
        let value = |text| hyper::header::HeaderValue::from_static(text);
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, text)| (hyper::header::HeaderName::from_static(name), value(text)))
            .collect();
        check_sender(&headers, bound.parse().ok()).map_err(|error| error.kind)
    }

    #[test]
    fn a_page_of_another_site_reads_no_metrics() {
        let refused = Err(ErrorKind::Forbidden);
        assert_eq!(judged("127.0.0.1:9633", &[("host", "evil.example:9633")]), refused);
        assert_eq!(judged("[::1]:9633", &[("host", "evil.example:9633")]), refused);
        assert_eq!(judged("127.0.0.1:9633", &[]), refused);
        assert_eq!(judged("127.0.0.1:9633", &[("host", "127.0.0.1:9633")]), Ok(()));
        assert_eq!(judged("127.0.0.1:9633", &[("host", "localhost:9633")]), Ok(()));
        // A scraper may use any name for a machine of its network.
        assert_eq!(judged("192.0.2.1:9633", &[("host", "node.example:9633")]), Ok(()));
        let site = [("host", "node.example:9633"), ("sec-fetch-site", "cross-site")];
        assert_eq!(judged("192.0.2.1:9633", &site), refused);
    }
}
