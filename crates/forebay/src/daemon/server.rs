//! The admin socket: who may connect, how many, and the thread that waits for them. Never on a
//! lane: whatever a client does here, the data path goes on.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ErrorKind};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::process::geteuid;

use super::api;
use super::http::{self, HttpAnswer};
use super::socket::ClaimedSocket;
use super::volumes::Volumes;

/// Most connections at a time; more are told to come back.
const MAX_CONNECTIONS: usize = 32;

/// How long a client may take to read its answer.
const WRITE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long the daemon listens for the rest of a request that it has turned down.
const LINGER: Duration = Duration::from_millis(500);

/// The admin API at work.
pub(crate) struct Server {
    thread: Option<JoinHandle<()>>,
    stop: UnixStream,
}

/// Counts a connection as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Server {
    /// Starts answering on `socket`. The socket goes away when the server does.
    ///
    /// # Errors
    /// When the thread cannot be set up.
    pub(crate) fn start(socket: ClaimedSocket, volumes: Arc<Volumes>) -> Result<Self, ApiError> {
        let failed = |error: std::io::Error| ApiError::failed(format!("admin socket: {error}"));
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        socket.listener().set_nonblocking(true).map_err(failed)?;
        let thread = std::thread::Builder::new().name("admin".to_owned());
        let thread = thread.spawn(move || run(&socket, &stopped, &volumes)).map_err(failed)?;
        Ok(Server { thread: Some(thread), stop })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn run(socket: &ClaimedSocket, stopped: &UnixStream, volumes: &Arc<Volumes>) {
    let open = Arc::new(AtomicUsize::new(0));
    loop {
        let mut ready =
            [PollFd::new(socket.listener(), PollFlags::IN), PollFd::new(stopped, PollFlags::IN)];
        match poll(&mut ready, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, path = %socket.path().display(), "the admin socket is lost");
                return;
            }
        }
        if !ready[1].revents().is_empty() {
            return;
        }
        match socket.listener().accept() {
            Ok((stream, _)) => accept(stream, &open, volumes),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // Out of descriptors, most likely: the connection still waits, so wait as well.
                tracing::warn!(%error, "an admin connection could not be accepted");
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn accept(stream: UnixStream, open: &Arc<AtomicUsize>, volumes: &Arc<Volumes>) {
    if open.fetch_add(1, Ordering::Relaxed) >= MAX_CONNECTIONS {
        let _counted = Counted(open.clone());
        let error = ApiError::new(
            ErrorKind::Busy,
            format!("{MAX_CONNECTIONS} clients are connected already; try again"),
        );
        let _ = stream.set_nonblocking(true);
        let _ = HttpAnswer::error(&error).send(&mut &stream);
        return;
    }
    let (counted, volumes) = (Counted(open.clone()), volumes.clone());
    let thread = std::thread::Builder::new().name("admin-client".to_owned());
    let spawned = thread.spawn(move || {
        let _counted = counted;
        serve(stream, &volumes);
    });
    if let Err(error) = spawned {
        tracing::warn!(%error, "no thread for an admin connection");
    }
}

fn serve(mut stream: UnixStream, volumes: &Arc<Volumes>) {
    let _ = stream.set_nonblocking(false);
    let _ = stream.set_write_timeout(Some(WRITE_TIMEOUT));
    let request = check_peer(&stream).and_then(|()| http::read_request(&mut stream));
    let (answer, whole) = match request {
        Ok(None) => return,
        Ok(Some(request)) => (api::answer(volumes, &request), true),
        Err(error) => {
            tracing::debug!("an admin request was turned down: {error}");
            (HttpAnswer::error(&error), false)
        }
    };
    if answer.send(&mut stream).is_ok() && !whole {
        linger(&mut stream);
    }
}

/// Reads on for a moment: a client that is still sending would otherwise fail on that, and never
/// see why it was turned down.
fn linger(stream: &mut UnixStream) {
    let _ = stream.flush();
    let _ = stream.shutdown(std::net::Shutdown::Write);
    let end = Instant::now() + LINGER;
    let mut scrap = [0; 4096];
    while let left = end.saturating_duration_since(Instant::now())
        && !left.is_zero()
        && stream.set_read_timeout(Some(left)).is_ok()
        && stream.read(&mut scrap).is_ok_and(|count| count > 0)
    {}
}

/// The socket's permissions say this already; they do not help a daemon whose socket was handed on.
fn check_peer(stream: &UnixStream) -> Result<(), ApiError> {
    let peer = rustix::net::sockopt::socket_peercred(stream)
        .map_err(|error| ApiError::new(ErrorKind::Forbidden, format!("who are you? {error}")))?;
    if peer.uid.is_root() || peer.uid == geteuid() {
        return Ok(());
    }
    let message = "only the daemon's user and root may talk to it";
    Err(ApiError::new(ErrorKind::Forbidden, message))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::daemon::state::State;
    use crate::daemon::testing::{FakeHost, TempDir};

    fn serve_at(dir: &TempDir) -> Server {
        let socket = ClaimedSocket::claim("--socket", &dir.path().join("s"), 0o600).expect("free");
        let state = State::open(&dir.path().join("state")).expect("free");
        let volumes = Volumes::new(Arc::new(FakeHost::default()), state, Vec::new());
        Server::start(socket, volumes).expect("a thread")
    }

    fn exchange(dir: &TempDir, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(dir.path().join("s")).expect("it listens");
        // The daemon may have answered and gone before all is sent.
        let _ = stream.write_all(request);
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        String::from_utf8_lossy(&answer).into_owned()
    }

    #[test]
    fn requests_are_answered_and_the_socket_goes_with_the_server() {
        let dir = TempDir::new("server");
        let server = serve_at(&dir);
        let answer = exchange(&dir, b"GET /v1/volumes HTTP/1.1\r\nHost: localhost\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n"), "{answer}");
        assert!(answer.ends_with("{\"volumes\":[]}"), "{answer}");
        drop(server);
        assert!(!dir.path().join("s").exists());
    }

    #[test]
    fn endless_bodies_are_turned_down_with_an_answer() {
        let dir = TempDir::new("server-endless");
        let _server = serve_at(&dir);
        let mut endless = b"POST /v1/volumes HTTP/1.1\r\nContent-Length: 99999999\r\n\r\n".to_vec();
        endless.resize(1 << 20, b'{');
        assert!(exchange(&dir, &endless).starts_with("HTTP/1.1 400 "));
        let chunked = b"POST /v1/volumes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\n";
        assert!(exchange(&dir, chunked).starts_with("HTTP/1.1 400 "));
        assert!(exchange(&dir, &[b'x'; 20_000]).starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn too_many_clients_are_told_and_the_others_go_on() {
        let dir = TempDir::new("server-many");
        let _server = serve_at(&dir);
        let path = dir.path().join("s");
        let idle: Vec<_> =
            (0..MAX_CONNECTIONS).map(|_| UnixStream::connect(&path).expect("listens")).collect();
        assert!(exchange(&dir, b"").contains("clients are connected already"));
        drop(idle);
        // The places of those that left become free as soon as their threads notice.
        while !exchange(&dir, b"GET /v1/volumes HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 200") {}
    }
}
