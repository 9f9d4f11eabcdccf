//! Requests and answers of the admin API, between hyper and the API: limits on requests, and checks
//! of their senders.

use std::convert::Infallible;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind, MAX_REQUEST_BODY};
use http_body_util::channel::Channel;
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{
    ACCEPT, CACHE_CONTROL, CONTENT_TYPE, HOST, HeaderMap, HeaderName, HeaderValue, ORIGIN,
};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;
use tokio::time::{Instant, timeout, timeout_at};

use super::events::stream::{Following, MEDIA_TYPE};
use super::recording::{self, Trace};
use forebay_admin::ErrorBody;

/// Largest head of a request, in bytes; hyper's minimum.
pub(super) const MAX_HEAD: usize = 8 << 10;

/// Most header lines in a request.
pub(super) const MAX_HEADERS: usize = 32;

/// Time limit from the connection to the last byte of the request.
pub(super) const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// Time for which the rest of a refused request is read and discarded, so that the sender sees the
/// answer.
const LINGER: Duration = Duration::from_millis(500);

/// A request, completely received.
#[derive(Debug)]
pub(crate) struct HttpRequest {
    /// `GET`, `POST` or another method.
    pub(crate) method: String,
    /// The path with its query, as it was sent.
    pub(crate) target: String,
    /// The formats that the client accepts, as they were sent; empty if it names none.
    pub(crate) accept: String,
    /// The number of the last event that a browser has received, if its stream of events was
    /// disconnected.
    pub(crate) last_event: Option<String>,
    /// The body.
    pub(crate) body: Vec<u8>,
}

/// The body of an answer.
#[derive(Debug)]
pub(crate) enum ResponseBody {
    /// The complete body.
    Whole(Vec<u8>),
    /// Events, as they happen.
    Events(Following),
    /// Requests of a volume, as they arrive.
    Trace(Trace),
}

/// The body of an answer, for hyper.
pub(crate) type HyperBody = Either<Full<Bytes>, Channel<Bytes, Infallible>>;

/// An answer.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    /// The HTTP status.
    pub(crate) status: u16,
    /// The media type of the body.
    pub(crate) media_type: &'static str,
    /// The body.
    pub(crate) body: ResponseBody,
}

/// The header in which a browser names the last event that it has received.
const LAST_EVENT_ID: &str = "last-event-id";

const JSON: &str = "application/json";

impl HttpAnswer {
    /// Makes an answer with a JSON body.
    pub(crate) fn json(status: u16, body: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => HttpAnswer { status, media_type: JSON, body: ResponseBody::Whole(body) },
            Err(error) => HttpAnswer::error(&ApiError::failed(error.to_string())),
        }
    }

    /// Makes an answer with another body than JSON.
    pub(crate) fn text(media_type: &'static str, body: String) -> Self {
        HttpAnswer { status: 200, media_type, body: ResponseBody::Whole(body.into_bytes()) }
    }

    /// Makes an answer that follows events.
    pub(crate) fn events(events: Following) -> Self {
        HttpAnswer { status: 200, media_type: MEDIA_TYPE, body: ResponseBody::Events(events) }
    }

    /// Makes an answer that records a volume.
    pub(crate) fn trace(trace: Trace) -> Self {
        HttpAnswer {
            status: 200,
            media_type: recording::MEDIA_TYPE,
            body: ResponseBody::Trace(trace),
        }
    }

    /// Makes an answer that refuses a request.
    pub(crate) fn error(error: &ApiError) -> Self {
        let status = error.kind.http_status();
        let body = serde_json::to_vec(&ErrorBody { error: error.clone() }).unwrap_or_default();
        HttpAnswer { status, media_type: JSON, body: ResponseBody::Whole(body) }
    }
}

/// Time limits for a client, from the moment its request is answered.
#[derive(Clone, Copy)]
pub(super) struct Patience {
    /// The time limit for reading the answer.
    pub(super) answer: Duration,
    /// The time limit for a stream.
    pub(super) stream: Duration,
}

/// Serves one request of a connection.
///
/// # Errors
/// The client broke the connection or the protocol.
pub(super) async fn serve_one<F: Future<Output = Response<HyperBody>>>(
    stream: impl AsyncRead + AsyncWrite + Unpin,
    patience: Patience,
    answer: impl Fn(Request<Incoming>) -> F,
) -> hyper::Result<()> {
    let (answered, streams) = (&Notify::new(), &Notify::new());
    let service = service_fn(async |request: Request<Incoming>| {
        let response = answer(request).await;
        let is_stream = matches!(response.body(), Either::Right(_));
        if is_stream { streams } else { answered }.notify_one();
        Ok::<_, Infallible>(response)
    });
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(REQUEST_DEADLINE);
    http.keep_alive(false).half_close(true).max_buf_size(MAX_HEAD).max_headers(MAX_HEADERS);
    let mut connection = std::pin::pin!(http.serve_connection(TokioIo::new(stream), service));
    let most = tokio::select! {
        ended = &mut connection => return ended,
        () = answered.notified() => patience.answer,
        () = streams.notified() => patience.stream,
    };
    timeout(most, connection).await.unwrap_or(Ok(()))
}

/// Must be done on the thread of the admin API.
impl From<HttpAnswer> for Response<HyperBody> {
    fn from(answer: HttpAnswer) -> Self {
        let media_type = HeaderValue::from_static(answer.media_type);
        let mut response = Response::new(match answer.body {
            ResponseBody::Whole(bytes) => Either::Left(Full::new(bytes.into())),
            ResponseBody::Events(events) => Either::Right(events.body()),
            ResponseBody::Trace(trace) => Either::Right(trace.body()),
        });
        *response.status_mut() =
            StatusCode::from_u16(answer.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, media_type);
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
        response
    }
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Invalid, message)
}

/// Receives the rest of a request, until `deadline`.
///
/// # Errors
/// The request comes from a foreign page, is too large, is incomplete, or does not arrive in time.
pub(super) async fn receive(
    request: Request<Incoming>,
    deadline: Instant,
) -> Result<HttpRequest, ApiError> {
    let (head, mut rest) = request.into_parts();
    let mut body = Vec::new();
    let reading = async {
        check_sender(&head.headers)?;
        while let Some(frame) = rest.frame().await {
            let frame = frame.map_err(|error| bad(format!("the body cannot be read: {error}")))?;
            let data = frame.data_ref().map_or(&[][..], |data| data);
            if body.len() + data.len() > MAX_REQUEST_BODY {
                return Err(bad(format!("the body is over {MAX_REQUEST_BODY} bytes")));
            }
            body.extend_from_slice(data);
        }
        Ok(())
    };
    match timeout_at(deadline, reading).await {
        Ok(Ok(())) => {
            let target = head.uri.path_and_query().map_or("", |target| target.as_str()).to_owned();
            let accepts = head.headers.get_all(ACCEPT).iter();
            let accept = accepts.filter_map(|value| value.to_str().ok()).collect::<Vec<_>>();
            let (method, accept) = (head.method.as_str().to_owned(), accept.join(","));
            let last_event = head.headers.get(LAST_EVENT_ID).and_then(|id| id.to_str().ok());
            let last_event = last_event.map(str::to_owned);
            Ok(HttpRequest { method, target, accept, last_event, body })
        }
        Ok(Err(error)) => {
            let drain = async { while let Some(Ok(_)) = rest.frame().await {} };
            let _ = timeout_at(Instant::now() + LINGER, drain).await;
            Err(error)
        }
        Err(_) => Err(bad(format!("the request took over {} s", REQUEST_DEADLINE.as_secs()))),
    }
}

/// Refuses requests of browser pages of other hosts.
fn check_sender(headers: &HeaderMap) -> Result<(), ApiError> {
    let host = single(headers, HOST)?;
    check_host(host)?;
    check_origin(single(headers, ORIGIN)?, host)
}

/// Returns the value of a header that may occur once.
///
/// # Errors
/// The header occurs twice, or is not text.
pub(super) fn single(headers: &HeaderMap, name: HeaderName) -> Result<Option<&str>, ApiError> {
    let mut found = headers.get_all(&name).iter();
    let first = found.next();
    if found.next().is_some() {
        return Err(bad(format!("the header {name} comes twice")));
    }
    let text = first.map(|value| value.to_str()).transpose();
    text.map_err(|_| bad(format!("the header {name} is not text")))
}

/// A browser page that reaches the socket through some proxy sends the name of its own site.
fn check_host(host: Option<&str>) -> Result<(), ApiError> {
    let host = host.unwrap_or_default().trim();
    let name = host.split_once(':').map_or(host, |(name, _)| name);
    if matches!(name, "" | "localhost" | "forebay") {
        Ok(())
    } else {
        let message = "the Host header is foreign; send 'localhost' or 'forebay'";
        Err(ApiError::new(ErrorKind::Forbidden, message))
    }
}

/// A browser sends the site of the requesting page. Only pages of this host are allowed. Other
/// clients send no such header.
pub(super) fn check_origin(origin: Option<&str>, host: Option<&str>) -> Result<(), ApiError> {
    let Some(origin) = origin else { return Ok(()) };
    let site = origin.trim().split_once("://").map(|(_, site)| site);
    if site.is_some_and(|site| !site.is_empty() && Some(site) == host.map(str::trim)) {
        return Ok(());
    }
    let message = "the Origin header is foreign: pages of other sites may not use the admin API";
    Err(ApiError::new(ErrorKind::Forbidden, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(headers: &[(HeaderName, &str)]) -> Result<(), ErrorKind> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(name, value.parse().expect("a valid value"));
        }
        check_sender(&map).map_err(|error| error.kind)
    }

    #[test]
    fn foreign_hosts_are_refused() {
        for host in ["evil.example", "localhost.evil", "127.0.0.1", "forebay.evil:80", "[::1]"] {
            assert_eq!(check(&[(HOST, host)]), Err(ErrorKind::Forbidden), "{host}");
        }
        for host in ["", "localhost", "forebay", "localhost:8080"] {
            assert_eq!(check(&[(HOST, host)]), Ok(()), "{host}");
        }
        assert_eq!(check(&[]), Ok(()));
        assert_eq!(check(&[(HOST, "forebay"), (HOST, "evil")]), Err(ErrorKind::Invalid));
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        for origin in [
            "",
            "null",
            "://",
            "https://evil.example",
            "http://localhost.evil",
            "http://localhost:3000",
            "localhost",
            "http://forebay",
            "http://localhost/x",
        ] {
            let refused = check(&[(HOST, "localhost"), (ORIGIN, origin)]);
            assert_eq!(refused, Err(ErrorKind::Forbidden), "{origin}");
        }
        assert!(check(&[(ORIGIN, "http://localhost")]).is_err());
        assert!(check(&[(HOST, ""), (ORIGIN, "http://")]).is_err());
        assert_eq!(check(&[(HOST, "localhost"), (ORIGIN, "http://localhost")]), Ok(()));
        assert_eq!(check(&[(HOST, "localhost:80"), (ORIGIN, "http://localhost:80")]), Ok(()));
    }
}
