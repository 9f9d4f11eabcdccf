//! The way to the daemon: HTTP/1.1 with JSON over its admin socket, one request per connection.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use forebay_admin::{API_VERSION, ApiError, ErrorKind};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::paths;

/// Largest answer that is read, in bytes.
const MAX_ANSWER: u64 = 16 << 20;

/// How long the daemon may be silent. It answers within milliseconds; what takes long is polled.
const PATIENCE: Duration = Duration::from_secs(30);

/// A daemon, by its admin socket.
pub(crate) struct Client {
    socket: PathBuf,
}

impl Client {
    /// The daemon at the socket that the operator named, or at the usual one.
    ///
    /// # Errors
    /// When the path cannot be a socket's.
    pub(crate) fn new(socket: Option<PathBuf>) -> Result<Self, ApiError> {
        Ok(Client { socket: paths::admin_socket(socket)? })
    }

    /// Asks for something.
    ///
    /// # Errors
    /// What the daemon says, or why it cannot be reached.
    pub(crate) fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ApiError> {
        self.exchange("GET", path, &[])
    }

    /// Asks for something to be done.
    ///
    /// # Errors
    /// What the daemon says, or why it cannot be reached.
    pub(crate) fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
    ) -> Result<T, ApiError> {
        let body = serde_json::to_vec(body).map_err(|error| ApiError::failed(error.to_string()))?;
        self.exchange("POST", path, &body)
    }

    fn exchange<T: DeserializeOwned>(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<T, ApiError> {
        let (status, body) = self.round_trip(method, path, body)?;
        if (200..300).contains(&status) {
            return serde_json::from_slice(&body).map_err(|error| {
                ApiError::failed(format!(
                    "the daemon's answer is not understood ({error}); are both of one version?"
                ))
            });
        }
        Err(serde_json::from_slice::<ErrorBody>(&body).map_or_else(
            |_| ApiError::failed(format!("the daemon answered with HTTP status {status}")),
            |body| body.error,
        ))
    }

    fn round_trip(
        &self,
        method: &str,
        path: &str,
        body: &[u8],
    ) -> Result<(u16, Vec<u8>), ApiError> {
        let broken = |error: std::io::Error| {
            ApiError::failed(format!("the daemon at {}: {error}", self.socket.display()))
        };
        let mut stream = UnixStream::connect(&self.socket)
            .map_err(|error| unreachable_daemon(&self.socket, &error))?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(broken)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(broken)?;
        let head = format!(
            "{method} /{API_VERSION}{path} HTTP/1.1\r\nHost: forebay\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            body.len()
        );
        // A daemon that turns the request down early has answered already, so that a failed write
        // is of no interest unless there is no answer.
        let written = stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body));
        let mut answer = Vec::new();
        let read = stream.take(MAX_ANSWER).read_to_end(&mut answer);
        if answer.is_empty() {
            written.map_err(broken)?;
            read.map_err(broken)?;
        }
        split_answer(&answer).ok_or_else(|| {
            ApiError::failed(format!(
                "what answers at {} is no forebay daemon",
                self.socket.display()
            ))
        })
    }
}

/// An answer that is an error.
#[derive(serde::Serialize, serde::Deserialize)]
pub(crate) struct ErrorBody {
    /// The error.
    pub(crate) error: ApiError,
}

fn split_answer(answer: &[u8]) -> Option<(u16, Vec<u8>)> {
    let mut headers = [httparse::EMPTY_HEADER; 32];
    let mut response = httparse::Response::new(&mut headers);
    let httparse::Status::Complete(head) = response.parse(answer).ok()? else { return None };
    let length = response
        .headers
        .iter()
        .find(|header| header.name.eq_ignore_ascii_case("content-length"))
        .and_then(|header| std::str::from_utf8(header.value).ok()?.trim().parse::<usize>().ok());
    let body = answer.get(head..)?;
    match length {
        Some(length) if body.len() != length => None,
        _ => Some((response.code?, body.to_vec())),
    }
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
            format!("{at}: permission denied; only the daemon's user and root may talk to it"),
        ),
        _ => ApiError::failed(format!("the daemon at {at}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_taken_apart_and_cut_ones_are_refused() {
        let whole = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(split_answer(whole), Some((200, b"{}".to_vec())));
        for cut in 0..whole.len() {
            assert_eq!(split_answer(&whole[..cut]), None, "{cut}");
        }
        assert_eq!(split_answer(b"SSH-2.0-x\r\n"), None);
    }
}
