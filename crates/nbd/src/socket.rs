//! A connected socket on a lane's ring.

use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::IoBuf;
use forebay_device::ring::{Ring, RingDone, RingOp, RingToken};
use rustix::net::{Shutdown, shutdown};

/// A client that transfers this many bytes makes progress; see
/// [`Limits::stall`](crate::limits::Limits::stall).
pub(crate) const STEP: usize = 1 << 20;

/// A connected stream socket in blocking mode.
pub(crate) struct Socket {
    fd: Arc<OwnedFd>,
    ring: Rc<Ring>,
    /// The receive in flight.
    receiving: Cell<Option<RingToken>>,
    /// The next program goes on with it: it is not shut down.
    kept: Cell<bool>,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd, ring: Rc<Ring>) -> Self {
        Socket { fd: Arc::new(fd), ring, receiving: Cell::default(), kept: Cell::default() }
    }

    /// Receives into `buf[range]`: what is available, or with `fill` the whole range. Returns 0, or
    /// with `fill` fewer bytes, at the end of the stream. The returned buffer is empty if the ring
    /// has lost it.
    pub(crate) async fn receive(
        &self,
        buf: IoBuf,
        range: Range<usize>,
        fill: bool,
    ) -> (IoBuf, io::Result<usize>) {
        let op = RingOp::Recv { fd: self.fd.clone(), buf, range, fill };
        let run = self.ring.begin(op);
        self.receiving.set(run.token());
        let done = run.await;
        self.receiving.set(None);
        into_parts(done)
    }

    /// Ends a pending receive, which returns what has come, or fails with `ECANCELED` if nothing has.
    pub(crate) fn cancel_receive(&self) {
        if let Some(token) = self.receiving.get() {
            self.ring.cancel(token);
        }
    }

    /// Whether another program goes on with the connection, so that nothing shuts it down.
    pub(crate) fn keep(&self, kept: bool) {
        self.kept.set(kept);
    }

    pub(crate) fn is_kept(&self) -> bool {
        self.kept.get()
    }

    /// Returns a descriptor of the connection for another program.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub(crate) fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.as_fd().try_clone_to_owned()
    }

    /// Sends the first `len` bytes of `buf`. Calls `begins` before each [`STEP`] bytes, and drops
    /// its result after them.
    pub(crate) async fn send<T>(
        &self,
        mut buf: IoBuf,
        len: usize,
        begins: impl Fn() -> T,
    ) -> (IoBuf, io::Result<()>) {
        let mut sent = 0;
        while sent < len {
            let _step = begins();
            let range = sent..len.min(sent + STEP);
            let op = RingOp::Send { fd: self.fd.clone(), buf, range };
            let result;
            (buf, result) = into_parts(self.ring.run(op).await);
            match result {
                Ok(0) => return (buf, Err(io::ErrorKind::WriteZero.into())),
                Ok(more) => sent += more,
                Err(error) => return (buf, Err(error)),
            }
        }
        (buf, Ok(()))
    }

    /// Submits queued operations to the kernel.
    pub(crate) fn start_now(&self) {
        self.ring.drive();
    }

    /// Ends the receiving direction, so that a pending receive sees the end of the stream.
    pub(crate) fn stop_receiving(&self) {
        // Fails only if the connection has ended, which has the same effect.
        let _ = shutdown(&*self.fd, Shutdown::Read);
    }

    /// Ends both directions. Operations in flight end soon.
    pub(crate) fn close(&self) {
        if !self.kept.get() {
            let _ = shutdown(&*self.fd, Shutdown::Both);
        }
    }
}

fn into_parts(done: RingDone) -> (IoBuf, io::Result<usize>) {
    (done.buf.unwrap_or_default(), done.result.map(|len| len as usize))
}
