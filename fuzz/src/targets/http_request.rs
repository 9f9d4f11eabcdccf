//! HTTP as the daemon reads it, in one piece and in many. The daemon is a binary, so its parser is
//! taken in as a file.

use std::collections::VecDeque;
use std::io::{Read, Write};
use std::time::Duration;

use crate::{memory, pieces};
use forebay_admin::{ApiError, MAX_REQUEST_BODY};

#[allow(dead_code, reason = "only the reading half is used")]
#[allow(
    clippy::disallowed_methods,
    reason = "the daemon is at the edge, where time is the machine's"
)]
#[path = "../../../crates/forebay/src/daemon/http.rs"]
mod http;

/// What the parser's file needs of the client.
pub(crate) mod client {
    use forebay_admin::ApiError;

    /// The body of an answer that turns a request down.
    #[derive(serde::Serialize)]
    pub(crate) struct ErrorBody {
        pub(crate) error: ApiError,
    }
}

struct Peer<'a> {
    pieces: VecDeque<&'a [u8]>,
}

impl Read for Peer<'_> {
    fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
        assert!(!into.is_empty(), "a read of nothing would look like the end");
        while self.pieces.front().is_some_and(|piece| piece.is_empty()) {
            self.pieces.pop_front();
        }
        let Some(piece) = self.pieces.front_mut() else { return Ok(0) };
        piece.read(into)
    }
}

impl Write for Peer<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

impl http::Timed for Peer<'_> {
    fn bound_reads(&mut self, _: Duration) -> std::io::Result<()> {
        Ok(())
    }
}

fn feed(pieces: &[&[u8]]) -> Result<Option<http::HttpRequest>, ApiError> {
    let mut peer = Peer { pieces: pieces.iter().copied().collect() };
    let request = http::read_request(&mut peer);
    if let Ok(Some(request)) = &request {
        assert!(request.body.len() <= MAX_REQUEST_BODY);
        assert!(!request.method.is_empty() && !request.target.is_empty());
    }
    request
}

/// One input.
pub(crate) fn run(data: &[u8]) {
    memory::within((1 << 20) + 4 * data.len(), || {
        let whole = feed(&[data]);
        assert_eq!(whole, feed(&pieces(data, 64)));
    });
}
