//! As much of HTTP/1.1 as the admin API needs: one request per connection, every part of it with
//! a limit, all of it within one deadline.

use std::io::{ErrorKind as Io, Read, Write};
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ErrorKind, MAX_REQUEST_BODY};

use crate::client::ErrorBody;

/// Largest head of a request, in bytes.
const MAX_HEAD: usize = 8 << 10;

/// Most header lines in a request.
const MAX_HEADERS: usize = 32;

/// Longest time from the connection to the last byte of the request.
pub(crate) const REQUEST_DEADLINE: Duration = Duration::from_secs(5);

/// A stream whose reads can be bounded in time.
pub(crate) trait Timed: Read + Write {
    /// Bounds the next read; the time is not zero.
    fn bound_reads(&mut self, time: Duration) -> std::io::Result<()>;
}

impl Timed for std::os::unix::net::UnixStream {
    fn bound_reads(&mut self, time: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(time))
    }
}

/// A request that has come in whole.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct HttpRequest {
    /// `GET`, `POST` or another word.
    pub(crate) method: String,
    /// The path with its query, as sent.
    pub(crate) target: String,
    /// The body.
    pub(crate) body: Vec<u8>,
}

/// An answer.
#[derive(Debug)]
pub(crate) struct HttpAnswer {
    /// The status.
    pub(crate) status: u16,
    /// JSON.
    pub(crate) body: Vec<u8>,
}

impl HttpAnswer {
    /// An answer with a JSON body.
    pub(crate) fn json(status: u16, body: &impl serde::Serialize) -> Self {
        match serde_json::to_vec(body) {
            Ok(body) => HttpAnswer { status, body },
            Err(error) => HttpAnswer::error(&ApiError::failed(error.to_string())),
        }
    }

    /// An answer that turns a request down.
    pub(crate) fn error(error: &ApiError) -> Self {
        let status = error.kind.http_status();
        let body = serde_json::to_vec(&ErrorBody { error: error.clone() }).unwrap_or_default();
        HttpAnswer { status, body }
    }

    /// Sends the answer.
    ///
    /// # Errors
    /// When the peer does not take it.
    pub(crate) fn send(&self, stream: &mut impl Write) -> std::io::Result<()> {
        let reason = match self.status {
            200 => "OK",
            202 => "Accepted",
            400 => "Bad Request",
            403 => "Forbidden",
            404 => "Not Found",
            409 => "Conflict",
            412 => "Precondition Failed",
            _ => "Internal Server Error",
        };
        let head = format!(
            "HTTP/1.1 {} {reason}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\
             Connection: close\r\nCache-Control: no-store\r\n\r\n",
            self.status,
            self.body.len()
        );
        stream.write_all(head.as_bytes())?;
        stream.write_all(&self.body)?;
        stream.flush()
    }
}

/// What is known from the head of a request.
struct Head {
    method: String,
    target: String,
    body_len: usize,
    expects_continue: bool,
    len: usize,
}

fn bad(message: impl Into<String>) -> ApiError {
    ApiError::new(ErrorKind::Invalid, message)
}

/// Reads one request. `None` when the peer went away without sending anything.
///
/// # Errors
/// When the request breaks a limit or is not one, or does not come in time.
pub(crate) fn read_request(stream: &mut impl Timed) -> Result<Option<HttpRequest>, ApiError> {
    let deadline = Instant::now() + REQUEST_DEADLINE;
    let mut bytes = Vec::with_capacity(1024);
    let head = loop {
        if let Some(head) = parse_head(&bytes)? {
            break head;
        }
        if bytes.len() >= MAX_HEAD {
            return Err(bad(format!("the head of the request is over {MAX_HEAD} bytes")));
        }
        if read_some(stream, &mut bytes, MAX_HEAD, deadline)? == 0 {
            return if bytes.is_empty() { Ok(None) } else { Err(bad("the request is cut short")) };
        }
    };
    if head.expects_continue && bytes.len() == head.len {
        let going = stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        going.map_err(|error| ApiError::failed(error.to_string()))?;
    }
    let whole = head.len + head.body_len;
    while bytes.len() < whole {
        if read_some(stream, &mut bytes, whole, deadline)? == 0 {
            return Err(bad("the body is shorter than its Content-Length"));
        }
    }
    let body = bytes.get(head.len..whole).unwrap_or_default().to_vec();
    Ok(Some(HttpRequest { method: head.method, target: head.target, body }))
}

/// Appends what comes, at most up to `limit` bytes in all; 0 at the end of the stream.
fn read_some(
    stream: &mut impl Timed,
    bytes: &mut Vec<u8>,
    limit: usize,
    deadline: Instant,
) -> Result<usize, ApiError> {
    let mut chunk = [0u8; 4096];
    let room = limit.saturating_sub(bytes.len()).min(chunk.len());
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(bad(format!("the request took over {} s", REQUEST_DEADLINE.as_secs())));
        }
        let bounded = stream.bound_reads(left);
        bounded.map_err(|error| ApiError::failed(error.to_string()))?;
        match stream.read(&mut chunk[..room]) {
            Ok(count) => {
                bytes.extend_from_slice(&chunk[..count]);
                return Ok(count);
            }
            Err(error)
                if matches!(error.kind(), Io::Interrupted | Io::WouldBlock | Io::TimedOut) => {}
            Err(error) => return Err(ApiError::failed(error.to_string())),
        }
    }
}

fn parse_head(bytes: &[u8]) -> Result<Option<Head>, ApiError> {
    let mut headers = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut headers);
    let len = match request.parse(bytes) {
        Ok(httparse::Status::Complete(len)) => len,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(httparse::Error::TooManyHeaders) => {
            return Err(bad(format!("the request has over {MAX_HEADERS} headers")));
        }
        Err(error) => return Err(bad(format!("not an HTTP request: {error}"))),
    };
    let value = |name: &str| -> Result<Option<&str>, ApiError> {
        let mut found =
            request.headers.iter().filter(|header| header.name.eq_ignore_ascii_case(name));
        let first = found.next();
        if found.next().is_some() {
            return Err(bad(format!("the header {name} comes twice")));
        }
        first
            .map(|header| std::str::from_utf8(header.value))
            .transpose()
            .map_err(|_| bad(format!("the header {name} is not text")))
    };
    let host = value("Host")?;
    check_host(host)?;
    check_origin(value("Origin")?, host)?;
    if value("Transfer-Encoding")?.is_some() {
        return Err(bad("Transfer-Encoding is not supported; send a Content-Length"));
    }
    let body_len = match value("Content-Length")? {
        None => 0,
        Some(text) => {
            let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
            let length = text.parse::<usize>().ok().filter(|_| digits);
            length.filter(|length| *length <= MAX_REQUEST_BODY).ok_or_else(|| {
                bad(format!("Content-Length: choose 0 to {MAX_REQUEST_BODY} bytes"))
            })?
        }
    };
    let expects_continue =
        value("Expect")?.is_some_and(|value| value.eq_ignore_ascii_case("100-continue"));
    Ok(Some(Head {
        method: request.method.unwrap_or_default().to_owned(),
        target: request.path.unwrap_or_default().to_owned(),
        body_len,
        expects_continue,
        len,
    }))
}

/// A page in a browser that reaches the socket through some proxy sends the name of its own site.
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

/// A browser names the site of the page that sends a request: only what this very host serves may,
/// and it serves no pages. Other clients send no such header.
fn check_origin(origin: Option<&str>, host: Option<&str>) -> Result<(), ApiError> {
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
    use std::io::Cursor;

    use super::*;

    /// A peer that sends the given bytes a few at a time.
    struct Peer {
        sends: Cursor<Vec<u8>>,
        at_a_time: usize,
        gets: Vec<u8>,
    }

    impl Read for Peer {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            let len = into.len().min(self.at_a_time);
            self.sends.read(&mut into[..len])
        }
    }

    impl Write for Peer {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.gets.write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    impl Timed for Peer {
        fn bound_reads(&mut self, time: Duration) -> std::io::Result<()> {
            assert!(!time.is_zero());
            Ok(())
        }
    }

    fn read(text: &str) -> Result<Option<HttpRequest>, ApiError> {
        let results: Vec<_> = [1, 7, 100_000]
            .into_iter()
            .map(|at_a_time| {
                let sends = Cursor::new(text.as_bytes().to_vec());
                read_request(&mut Peer { sends, at_a_time, gets: Vec::new() })
            })
            .collect();
        assert!(results.windows(2).all(|pair| pair[0] == pair[1]), "{results:?}");
        results.into_iter().next().expect("three")
    }

    #[test]
    fn good_requests_are_read_however_they_are_cut() {
        let request =
            read("POST /v1/x?y HTTP/1.1\r\nHost: forebay:80\r\ncontent-length: 2\r\n\r\n{}");
        let request = request.expect("good").expect("there");
        assert_eq!((request.method.as_str(), request.target.as_str()), ("POST", "/v1/x?y"));
        assert_eq!(request.body, b"{}");
        assert_eq!(read("").expect("a peer that left"), None);
        assert!(read("GET / HTTP/1.1\r\n\r\n").expect("good").is_some());
    }

    #[test]
    fn bad_requests_are_refused() {
        let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(MAX_HEAD));
        let many = format!("GET / HTTP/1.1\r\n{}\r\n", "A: b\r\n".repeat(MAX_HEADERS + 1));
        for text in [
            "GET",
            "GET / HTTP/1.1\r\nHost: forebay\r\n",
            "\u{0}\u{1}\u{2}\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 65537\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: 18446744073709551616\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
            "POST / HTTP/1.1\r\nContent-Length: +1\r\n\r\nx",
            "POST / HTTP/1.1\r\nContent-Length: 3\r\n\r\n{}",
            "POST / HTTP/1.1\r\nContent-Length: 2\r\nContent-Length: 2\r\n\r\n{}",
            "POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            "GET / HTTP/1.1\r\nHost: forebay\r\nHost: evil\r\n\r\n",
            &long,
            &many,
        ] {
            let error = read(text).expect_err(text);
            assert_eq!(error.kind, ErrorKind::Invalid, "{text:.60}: {error}");
        }
    }

    #[test]
    fn foreign_hosts_are_refused() {
        for host in ["evil.example", "localhost.evil", "127.0.0.1", "forebay.evil:80", "[::1]"] {
            let error = read(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).expect_err(host);
            assert_eq!(error.kind, ErrorKind::Forbidden);
        }
        for host in ["", "localhost", "forebay", "localhost:8080"] {
            assert!(read(&format!("GET / HTTP/1.1\r\nHost: {host}\r\n\r\n")).is_ok());
        }
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let ask = |host: &str, origin: &str| {
            read(&format!("POST / HTTP/1.1\r\nHost: {host}\r\nOrigin: {origin}\r\n\r\n"))
        };
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
            let error = ask("localhost", origin).expect_err(origin);
            assert_eq!(error.kind, ErrorKind::Forbidden, "{origin}");
        }
        assert!(read("POST / HTTP/1.1\r\nOrigin: http://localhost\r\n\r\n").is_err());
        assert!(ask("", "http://").is_err());
        assert!(ask("localhost", "http://localhost").is_ok());
        assert!(ask("localhost:80", "http://localhost:80").is_ok());
    }

    #[test]
    fn a_client_that_asks_first_is_told_to_go_on() {
        let head = "POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n";
        let mut peer = Peer {
            sends: Cursor::new(format!("{head}{{}}").into_bytes()),
            at_a_time: head.len(),
            gets: Vec::new(),
        };
        assert!(read_request(&mut peer).expect("good").is_some());
        assert!(peer.gets.starts_with(b"HTTP/1.1 100 "));
    }
}
