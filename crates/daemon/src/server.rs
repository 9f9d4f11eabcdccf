//! The admin socket: checks and counts connections, and serves them on a separate thread. It is
//! never a lane, so no client here can stop the data path.

use std::net::TcpListener;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use forebay_admin::{ApiError, ErrorKind};
use hyper::body::Incoming;
use hyper::{Request, Response};
use rustix::event::{PollFd, PollFlags};
use rustix::process::geteuid;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::time::Instant;

use super::api;
use super::http::{self, HttpAnswer, Patience, REQUEST_DEADLINE};
use super::metrics::listener;
use super::socket::ClaimedSocket;
use super::tcp;
use super::volumes::Volumes;
use super::web::{Claimed, Web};

/// Most connections at a time; as many more are told to try again.
const MAX_CONNECTIONS: usize = 32;

/// Interval at which the path of the socket is checked.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Clients end streams themselves.
const PATIENCE: Patience = Patience { answer: Duration::from_secs(5), stream: Duration::MAX };

/// The running admin API.
pub(crate) struct AdminServer {
    stop: Option<oneshot::Sender<()>>,
    closed: mpsc::Receiver<()>,
}

impl AdminServer {
    /// Starts to answer on `socket`, and requests for metrics and for the page (with the state
    /// directory) at their TCP addresses. The socket is removed when the server is dropped; clients
    /// that are connected then still get an answer as long as the process lives.
    ///
    /// # Errors
    /// The thread cannot be set up.
    pub(crate) fn start(
        socket: Arc<ClaimedSocket>,
        metrics: Option<TcpListener>,
        web: Option<(Claimed, PathBuf)>,
        volumes: Arc<Volumes>,
    ) -> Result<Self, ApiError> {
        let failed = |error: std::io::Error| ApiError::failed(format!("admin socket: {error}"));
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .thread_name("admin-request")
            .max_blocking_threads(MAX_CONNECTIONS)
            .build()
            .map_err(failed)?;
        let listener = {
            let _inside = runtime.enter();
            UnixListener::from_std(socket.listener().map_err(failed)?).map_err(failed)?
        };
        let (stop, stopped) = oneshot::channel();
        let (closing, closed) = mpsc::channel();
        let thread = std::thread::Builder::new().name("admin".to_owned());
        let serve = move || {
            runtime.block_on(async move {
                let metrics = async {
                    match metrics {
                        Some(listener) => {
                            let volumes = volumes.clone();
                            let bound = listener.local_addr().ok();
                            let answer =
                                move |request| listener::answer(request, bound, volumes.clone());
                            tcp::serve(listener, listener::MAX_CONNECTIONS, answer).await;
                        }
                        None => std::future::pending().await,
                    }
                };
                let web = web.map(|(claimed, state_dir)| Web::new(claimed, &state_dir, &volumes));
                let page = async {
                    match &web {
                        Some(web) => web.serve().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = accept(listener, &socket, &volumes) => (),
                    () = metrics => (),
                    () = page => (),
                    _ = stopped => (),
                }
                if let Some(web) = &web {
                    web.save();
                }
                socket.close();
                drop((socket, closing));
                std::future::pending::<()>().await;
            });
        };
        thread.spawn(serve).map_err(failed)?;
        Ok(AdminServer { stop: Some(stop), closed })
    }
}

impl Drop for AdminServer {
    fn drop(&mut self) {
        drop(self.stop.take());
        // Returns when the socket is gone.
        let _ = self.closed.recv();
    }
}

async fn accept(mut listener: UnixListener, socket: &ClaimedSocket, volumes: &Arc<Volumes>) {
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let refusals = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let mut looks = tokio::time::interval(LOOK_EVERY);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = looks.tick() => {
                if socket.restore() {
                    match socket.listener().and_then(UnixListener::from_std) {
                        Ok(again) => listener = again,
                        Err(error) => tracing::error!(%error, "the admin socket cannot be used"),
                    }
                }
                continue;
            }
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Probably out of descriptors: the connection stays queued, so wait.
                tracing::warn!(%error, "an admin connection could not be accepted");
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        let refused = check_peer(&stream).err();
        let place = places.clone().try_acquire_owned().ok().filter(|_| refused.is_none());
        match (place, refused) {
            (Some(place), _) => _ = tokio::spawn(serve(stream, Ok(volumes.clone()), place)),
            (None, refused) => {
                let busy = || {
                    let many =
                        format!("{MAX_CONNECTIONS} clients are connected already; try again");
                    ApiError::new(ErrorKind::Busy, many)
                };
                if let Ok(place) = refusals.clone().try_acquire_owned() {
                    let error = refused.unwrap_or_else(busy);
                    tokio::spawn(serve(stream, Err(error), place));
                }
            }
        }
    }
}

/// Serves one request: by the volumes, or with the error that refuses it.
async fn serve(
    stream: UnixStream,
    volumes: Result<Arc<Volumes>, ApiError>,
    _place: OwnedSemaphorePermit,
) {
    let (volumes, deadline) = (&volumes, Instant::now() + REQUEST_DEADLINE);
    let peer = stream.as_fd().try_clone_to_owned();
    let answer = async |request: Request<Incoming>| {
        let answer = match http::receive(request, deadline).await {
            // Invariant 31: the sender has already reported that the daemon does not answer.
            Ok(request) if request.method != "GET" && peer.as_ref().is_ok_and(has_left) => {
                tracing::info!(
                    target = request.target,
                    "not carried out: its sender has left before it was read"
                );
                Err(ApiError::new(ErrorKind::Cancelled, "its sender has left"))
            }
            Ok(request) => answer(volumes, request).await,
            Err(error) => Err(error),
        };
        Response::from(answer.unwrap_or_else(|error| {
            tracing::debug!("an admin request was turned down: {error}");
            HttpAnswer::error(&error)
        }))
    };
    if let Err(error) = http::serve_one(stream, PATIENCE, answer).await {
        tracing::debug!("an admin connection failed: {error}");
    }
}

/// Returns whether the other end has closed both directions of a connection.
fn has_left(peer: &OwnedFd) -> bool {
    let mut looks = [PollFd::new(peer, PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut looks, Some(&now)).is_ok()
        && looks[0].revents().contains(PollFlags::HUP)
}

/// Answers a request on a thread that may block.
async fn answer(
    volumes: &Result<Arc<Volumes>, ApiError>,
    request: http::HttpRequest,
) -> Result<HttpAnswer, ApiError> {
    let volumes = volumes.clone()?;
    let answered = tokio::task::spawn_blocking(move || api::answer(&volumes, &request)).await;
    answered.map_err(|error| ApiError::failed(format!("the request failed: {error}")))
}

/// The permissions of the socket already ensure this, unless the socket was passed on.
fn check_peer(stream: &UnixStream) -> Result<(), ApiError> {
    // A client in another PID namespace has no process ID here, but it has a user.
    let peer = stream.peer_cred().map_err(|error| {
        ApiError::new(ErrorKind::Forbidden, format!("cannot identify the client: {error}"))
    })?;
    if [0, geteuid().as_raw()].contains(&peer.uid()) {
        return Ok(());
    }
    let message = "only the daemon's user and root may use it";
    Err(ApiError::new(ErrorKind::Forbidden, message))
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    use super::*;
    use crate::http::{MAX_HEAD, MAX_HEADERS};
    use crate::state::State;
    use crate::testing::FakeHost;
    use crate::volumes::Programs;
    use forebay_testkit::TempDir;

    fn serve_at(dir: &TempDir) -> AdminServer {
        let socket =
            Arc::new(ClaimedSocket::claim("--socket", &dir.path().join("s"), 0o600).expect("free"));
        let state = State::open(&dir.path().join("state")).expect("free");
        let volumes =
            Volumes::new(Arc::new(FakeHost::default()), state, Vec::new(), Programs::default());
        AdminServer::start(socket, None, None, volumes).expect("a thread")
    }

    fn exchange(dir: &TempDir, request: &[u8]) -> String {
        let mut stream = UnixStream::connect(dir.path().join("s")).expect("it listens");
        // The daemon may answer and close before everything is sent.
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
        let answer = exchange(&dir, &endless);
        assert!(answer.starts_with("HTTP/1.1 400 ") && answer.contains("the body is"), "{answer}");
        let chunked = b"POST /v1/volumes HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
        let cut = [&chunked[..], b"z\r\n"].concat();
        assert!(exchange(&dir, &cut).starts_with("HTTP/1.1 400 "));
        let large = [&chunked[..], b"20000\r\n", &[b'x'; 0x20000], b"\r\n0\r\n\r\n"].concat();
        assert!(exchange(&dir, &large).starts_with("HTTP/1.1 400 "));
        for head in ["X: y\r\n".repeat(MAX_HEADERS + 1), format!("X: {}\r\n", "y".repeat(MAX_HEAD))]
        {
            let answer = exchange(&dir, format!("GET / HTTP/1.1\r\n{head}\r\n").as_bytes());
            assert!(answer.starts_with("HTTP/1.1 431 "), "{answer}");
        }
        assert!(exchange(&dir, &[b'x'; 20_000]).starts_with("HTTP/1.1 4"));
    }

    /// A client that sends head and body separately must see the answer, not a broken pipe.
    #[test]
    fn the_body_of_a_refused_request_can_still_be_sent() {
        let dir = TempDir::new("server-refused");
        let _server = serve_at(&dir);
        for _ in 0..100 {
            let mut stream = UnixStream::connect(dir.path().join("s")).expect("it listens");
            let head =
                b"POST /v1/volumes HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 2\r\n\r\n";
            stream.write_all(head).expect("it reads");
            std::thread::yield_now();
            stream.write_all(b"{}").expect("it still reads");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).expect("it answers");
            assert!(answer.starts_with("HTTP/1.1 403 "), "{answer}");
        }
    }

    #[test]
    fn too_many_clients_are_told_and_the_others_go_on() {
        let dir = TempDir::new("server-many");
        let _server = serve_at(&dir);
        let path = dir.path().join("s");
        let idle: Vec<_> =
            (0..MAX_CONNECTIONS).map(|_| UnixStream::connect(&path).expect("listens")).collect();
        let request = b"GET /v1/volumes HTTP/1.1\r\n\r\n";
        assert!(exchange(&dir, request).contains("clients are connected already"));
        drop(idle);
        // The places of disconnected clients become free as soon as the daemon notices.
        while !exchange(&dir, request).starts_with("HTTP/1.1 200") {}
    }
}
