//! Connects, sends, and notices when a connection is lost.

use std::future::poll_fn;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_device::{DeviceErrorKind, DeviceOp, IoBuf};
use forebay_lane::off_lane;
use forebay_nbd_wire::records::Records;
use forebay_nbd_wire::socket::Socket;

use super::{Link, Why};
use crate::connect::{NegotiatedConnection, connect};
use crate::reply::{OpResult, To};
use crate::requests::Failure;
use crate::samples::PAGE;

/// Bytes of the send buffer.
const BUFFER: usize = 256 << 10;
/// Pause between two attempts to connect, at first and at most.
const FIRST_WAIT: Duration = Duration::from_millis(10);
const LONGEST_WAIT: Duration = Duration::from_secs(1);

impl Link {
    /// Serves until the connection is not needed any more.
    pub(super) async fn run(self: &Rc<Self>) {
        loop {
            while !self.requests.borrow().has_unsent() {
                if !self.is_needed() && self.leaves() {
                    return;
                }
                self.work.wait().await;
            }
            let Some(connection) = self.connect().await else { continue };
            if self.serve(connection).await {
                return;
            }
        }
    }

    /// Returns a connection. `None`: no connection can be made now, and the operations that waited
    /// have failed.
    async fn connect(&self) -> Option<NegotiatedConnection> {
        loop {
            // The last queue of another lane may have left its connection since the last attempt,
            // and a server without multi-conn may refuse a second one.
            if let Some(spare) = self.remote.take_spare() {
                return Some(spare);
            }
            let attempts = self.attempts.get();
            self.attempts.set(attempts.saturating_add(1));
            if attempts > 0 {
                let wait = FIRST_WAIT.saturating_mul(1 << (attempts - 1).min(10)).min(LONGEST_WAIT);
                self.tasks.sleep(wait).await;
            }
            if !self.requests.borrow().has_unsent() {
                return None;
            }
            let uri = self.remote.uri.clone();
            let made = off_lane::run("nbd-connect", move || connect(&uri)).await;
            let failure = match made {
                None => "no thread can be started".to_owned(),
                Some(Ok(connection)) => match self.remote.check(&connection.agreed) {
                    Ok(()) => return Some(connection),
                    Err(error) => error.to_string(),
                },
                Some(Err(error)) => error.to_string(),
            };
            if self.down_since.get().is_none() {
                tracing::warn!(device = %self.remote.name, "no connection: {failure}");
                self.down_since.set(Some(self.clock.now()));
            }
            if let Some(cause) = self.remote.gone.get() {
                tracing::error!(device = %self.remote.name, "{cause}");
                self.fail_all(&Failure::new(DeviceErrorKind::Gone, cause.clone()));
                return None;
            }
            if self.give_up_in_time(&failure) {
                return None;
            }
            tracing::debug!(device = %self.remote.name, "no connection: {failure}");
        }
    }

    /// Fails all operations if there has been no connection for longer than the time limit; the
    /// error has the reason of the last failure. Returns whether they were failed.
    fn give_up_in_time(&self, failure: &str) -> bool {
        let Some(since) = self.down_since.get() else { return false };
        let waited = self.clock.now().since(since);
        if waited < self.remote.uri.reconnect {
            return false;
        }
        let cause = format!("there has been no connection for {} s: {failure}", waited.as_secs());
        self.fail_all(&Failure::new(DeviceErrorKind::Unreachable, cause));
        true
    }

    /// Uses a connection until it is lost. Returns `true` if the link has ended and the connection
    /// was handed on.
    async fn serve(&self, connection: NegotiatedConnection) -> bool {
        let NegotiatedConnection { fd, tls, agreed } = connection;
        let socket = match tls {
            None => Socket::new(fd, self.ring.clone()),
            Some(tls) => match Records::new(tls.into(), &[]) {
                Ok(records) => Socket::encrypted(fd, self.ring.clone(), records),
                // `Records::new` fails only for too many received bytes, and there are none.
                Err(_) => return false,
            },
        };
        self.closing.set(false);
        self.begin_comparing();
        let ended = self.exchange(&socket, agreed.chunks).await;
        let Some(ended) = ended else {
            match socket.duplicate() {
                Ok(fd) if !socket.is_encrypted() => {
                    let connection = NegotiatedConnection { fd, tls: None, agreed };
                    match self.remote.is_closed() {
                        true => connection.leave(),
                        false => self.remote.put_spare(connection),
                    }
                }
                _ => socket.close(),
            }
            return true;
        };
        if self.down_since.get().is_none() {
            tracing::warn!(device = %self.remote.name, "the connection is lost: {ended}");
            self.down_since.set(Some(self.clock.now()));
        }
        self.lost(&ended);
        self.give_up_in_time(&ended.to_string());
        false
    }

    /// Sends and receives until the connection ends. Returns the reason, or `None` if the
    /// connection is no longer needed.
    async fn exchange(&self, socket: &Socket, chunks: bool) -> Option<Why> {
        let mut send = pin!(self.send(socket));
        let mut receive = pin!(self.receive(socket, chunks));
        let mut watch = pin!(self.watch());
        let mut why = None;
        poll_fn(|context| {
            if why.is_none() {
                if let Poll::Ready(sent) = send.as_mut().poll(context) {
                    match sent {
                        None => return Poll::Ready(None),
                        Some(error) => why = Some(Why::Ended(error.into())),
                    }
                } else if watch.as_mut().poll(context).is_ready() {
                    why = Some(Why::Late);
                }
                if why.is_some() {
                    // The receiver may hold the buffer of a read, and gives it back when it ends.
                    self.closing.set(true);
                    socket.close();
                    self.awaited.raise();
                }
            }
            match receive.as_mut().poll(context) {
                Poll::Pending => Poll::Pending,
                Poll::Ready(ended) => {
                    socket.close();
                    Poll::Ready(Some(why.take().unwrap_or(Why::Ended(ended))))
                }
            }
        })
        .await
    }

    /// Sends requests. Returns an error, or `None` when the link is no longer needed and no request
    /// is in flight.
    async fn send(&self, socket: &Socket) -> Option<std::io::Error> {
        let mut buf = IoBuf::empty();
        loop {
            if buf.is_empty() {
                buf = IoBuf::for_overwrite(BUFFER);
            }
            let compares = self.comparing.get() > 0;
            let len = self.requests.borrow_mut().fill(&mut buf, self.clock.now(), compares);
            if len == 0 {
                if !compares && !self.is_needed() && self.leaves() {
                    return None;
                }
                // An idle connection takes no memory.
                buf = IoBuf::empty();
                self.work.wait().await;
                continue;
            }
            self.awaited.raise();
            self.timer.raise();
            let result;
            (buf, result) = socket.send(buf, len, || ()).await;
            if let Err(error) = result {
                return Some(error);
            }
        }
    }

    /// Ends when a request has no reply in time.
    async fn watch(&self) {
        let limit = self.remote.uri.timeout;
        loop {
            let oldest = self.requests.borrow_mut().oldest();
            let Some(oldest) = oldest else {
                self.timer.wait().await;
                continue;
            };
            let waited = self.clock.now().since(oldest);
            if waited >= limit {
                return;
            }
            self.tasks.sleep(limit - waited).await;
        }
    }

    /// Queues reads of the samples before all other requests, to check that the export is still the
    /// same.
    fn begin_comparing(&self) {
        let mut requests = self.requests.borrow_mut();
        // A sample takes several requests if the server accepts less than a page per request.
        let others = requests.unsent();
        let mut count = 0;
        for (number, offset) in self.remote.samples.untouched() {
            let op = DeviceOp::Read { offset, buf: IoBuf::for_overwrite(PAGE as usize) };
            count +=
                usize::from(requests.start(op, self.remote.abilities, To::Sample(number)).is_ok());
        }
        requests.samples_first(others);
        self.comparing.set(count);
    }

    pub(super) fn compared(&self, number: usize, answer: &OpResult) {
        self.comparing.set(self.comparing.get().saturating_sub(1));
        let same = match (&answer.done.result, &answer.done.buf) {
            (Ok(()), Some(page)) => self.remote.samples.compare(number, page),
            // A sample that cannot be read proves nothing, so it counts as equal.
            _ => true,
        };
        if !same && self.remote.gone.get().is_none() {
            let cause = self.remote.is_another();
            tracing::error!(device = %self.remote.name, "{cause}");
        }
        if self.comparing.get() == 0 {
            if let Some(cause) = self.remote.gone.get() {
                self.fail_all(&Failure::new(DeviceErrorKind::Gone, cause.clone()));
            }
            self.work.raise();
        }
    }
}
