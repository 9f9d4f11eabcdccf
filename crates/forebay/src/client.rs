//! The client of the daemon: HTTP/1.1 with JSON over its admin socket, one request per connection.

mod patience;
mod stream;

use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_admin::endpoint::{Argument, Endpoint, Nothing};
use forebay_admin::{ApiError, ErrorBody, ErrorKind};
use http_body_util::{BodyExt, Full, Limited};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONTENT_TYPE, HOST};
use hyper_util::rt::TokioIo;
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::paths;
use patience::{Asking, Patience};

/// Largest accepted answer, in bytes.
const MAX_ANSWER: usize = 16 << 20;

const JSON: &str = "application/json";

/// A daemon, identified by its admin socket.
#[derive(Clone)]
pub(crate) struct DaemonClient {
    socket: PathBuf,
    patience: Patience,
}

impl DaemonClient {
    /// Addresses the daemon at the given socket, or at the default one. Each answer may take as
    /// long as `timeout`, or half a minute.
    ///
    /// # Errors
    /// The path cannot be that of a socket.
    pub(crate) fn new(
        socket: Option<PathBuf>,
        timeout: Option<Duration>,
    ) -> Result<Self, ApiError> {
        Ok(DaemonClient { socket: paths::admin_socket(socket)?, patience: Patience::new(timeout) })
    }

    /// Returns a client that prints nothing while it waits, for at most `limit`.
    pub(crate) fn silently(&self, limit: Duration) -> Self {
        DaemonClient { patience: self.patience.silently(limit), ..self.clone() }
    }

    /// Returns the path of the socket.
    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    /// Asks for something.
    ///
    /// # Errors
    /// The daemon's error, or why it cannot be reached.
    pub(crate) fn get<A: Argument, R: DeserializeOwned>(
        &self,
        endpoint: &Endpoint<A, Nothing, R>,
        argument: &A,
    ) -> Result<R, ApiError> {
        parse(&self.get_raw(&endpoint.path(argument))?)
    }

    /// Sends a request with parameters.
    ///
    /// # Errors
    /// As [`DaemonClient::get`].
    pub(crate) fn call<A: Argument, Q: Serialize, R: DeserializeOwned>(
        &self,
        endpoint: &Endpoint<A, Q, R>,
        argument: &A,
        request: &Q,
    ) -> Result<R, ApiError> {
        let body = serde_json::to_vec(request);
        let body = body.map_err(|error| ApiError::failed(error.to_string()))?;
        let (status, body) =
            self.round_trip(endpoint.about.method, &endpoint.path(argument), &body)?;
        parse(&successful(status, body)?)
    }

    /// Returns the answer at a path as it is.
    ///
    /// # Errors
    /// As [`DaemonClient::get`].
    pub(crate) fn get_raw(&self, path: &str) -> Result<Bytes, ApiError> {
        let (status, body) = self.round_trip("GET", path, &[])?;
        successful(status, body)
    }

    fn failed(&self, error: &dyn Display) -> ApiError {
        ApiError::failed(format!("the daemon at {}: {error}", self.socket.display()))
    }

    fn runtime(&self) -> Result<tokio::runtime::Runtime, ApiError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.map_err(|error| self.failed(&error))
    }

    fn request(
        &self,
        method: &str,
        path: &str,
        accept: &str,
        body: &[u8],
    ) -> Result<Request<Full<Bytes>>, ApiError> {
        Request::builder()
            .method(method)
            .uri(path)
            .header(HOST, "forebay")
            .header(CONTENT_TYPE, JSON)
            .header(ACCEPT, accept)
            .body(Full::new(Bytes::copy_from_slice(body)))
            .map_err(|error| self.failed(&error))
    }

    fn round_trip(&self, method: &str, path: &str, body: &[u8]) -> Result<(u16, Bytes), ApiError> {
        let failed = |error: &dyn Display| self.failed(error);
        let request = self.request(method, path, JSON, body)?;
        let asking = Asking::new(method != "GET");
        let exchange = async {
            let stream = self.connect(&asking).await?;
            let (mut sender, connection) =
                http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
            let answer = async {
                let response = sender.send_request(request).await;
                let response = response.map_err(|error| self.unanswered(&error, &asking))?;
                let status = response.status().as_u16();
                let body = Limited::new(response.into_body(), MAX_ANSWER).collect().await;
                body.map(|body| (status, body.to_bytes())).map_err(|error| failed(&error))
            };
            // If the connection fails, the answer carries the reason.
            let (answer, _) = tokio::join!(answer, connection);
            answer
        };
        self.runtime()?.block_on(self.patiently(&asking, Duration::ZERO, exchange))
    }

    /// Returns the error for a connection that ended without an answer.
    fn unanswered(&self, error: &hyper::Error, asking: &Asking) -> ApiError {
        if error.is_parse() {
            return ApiError::failed(format!(
                "the process that answers at {} is not a forebay daemon",
                self.socket.display()
            ));
        }
        let carried_out = match asking.changes {
            true => "; the command may have been carried out: 'forebay events' tells",
            false => "",
        };
        self.failed(&format_args!(
            "it has closed the connection without an answer ({error}), and has probably ended: see its log{carried_out}"
        ))
    }
}

/// Returns the value in the body of an answer.
///
/// # Errors
/// It is another one, as from a daemon of another version.
pub(crate) fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, ApiError> {
    serde_json::from_slice(body).map_err(|error| {
        ApiError::failed(format!(
            "cannot parse the daemon's answer ({error}); do client and daemon have the same version?"
        ))
    })
}

fn successful(status: u16, body: Bytes) -> Result<Bytes, ApiError> {
    if (200..300).contains(&status) { Ok(body) } else { Err(error_in(status, &body)) }
}

/// Returns the error in an answer.
fn error_in(status: u16, body: &[u8]) -> ApiError {
    serde_json::from_slice::<ErrorBody>(body).map_or_else(
        |_| ApiError::failed(format!("the daemon answered with HTTP status {status}")),
        |body| body.error,
    )
}

fn unreachable_daemon(socket: &Path, error: &std::io::Error) -> ApiError {
    use std::io::ErrorKind as Io;
    let at = socket.display();
    match error.kind() {
        Io::NotFound | Io::ConnectionRefused => ApiError::failed(format!(
            "no daemon answers at {at}; start one with 'forebay daemon', or name its socket with --socket"
        )),
        Io::PermissionDenied => ApiError::new(
            ErrorKind::Forbidden,
            format!("{at}: permission denied; only the daemon's user and root may use it"),
        ),
        _ => ApiError::failed(format!("the daemon at {at}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    use super::*;
    use forebay_testkit::TempDir;

    /// Returns the client's result for these bytes.
    fn answered_with(answer: &[u8]) -> Result<serde_json::Value, String> {
        let dir = TempDir::new("client");
        let listener = UnixListener::bind(dir.path().join("s")).expect("free");
        let client = DaemonClient::new(Some(dir.path().join("s")), None).expect("a path");
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let (mut peer, _) = listener.accept().expect("the client connects");
                let _ = peer.read(&mut [0; 4096]);
                let _ = peer.write_all(answer);
            });
            client.get_raw("/").and_then(|it| parse(&it)).map_err(|error| error.to_string())
        })
    }

    #[test]
    fn answers_are_taken_apart_and_cut_ones_are_refused() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(answered_with(whole), Ok(serde_json::json!({})));
        for cut in 0..whole.len() {
            answered_with(&whole[..cut]).expect_err("it is cut short");
        }
        let foreign = answered_with(b"SSH-2.0-x\r\n\r\n").expect_err("no HTTP");
        assert!(foreign.contains("not a forebay daemon"), "{foreign}");
        let refused = br#"{"error":{"kind":"busy","message":"later"}}"#;
        let head = format!("HTTP/1.1 503 X\r\nContent-Length: {}\r\n\r\n", refused.len());
        let refused = answered_with(&[head.as_bytes(), refused].concat()).expect_err("it says so");
        assert!(refused.contains("later"), "{refused}");
    }
}
