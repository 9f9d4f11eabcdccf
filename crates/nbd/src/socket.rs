//! A connected socket on a lane's ring.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::IoBuf;
use forebay_device::ring::{Ring, RingDone, RingOp};
use rustix::net::{Shutdown, shutdown};

/// A client that transfers this many bytes makes progress; see
/// [`Limits::stall`](crate::limits::Limits::stall).
pub(crate) const STEP: usize = 1 << 20;

/// A connected stream socket in blocking mode.
pub(crate) struct Socket {
    fd: Arc<OwnedFd>,
    ring: Rc<Ring>,
}

impl Socket {
    pub(crate) fn new(fd: OwnedFd, ring: Rc<Ring>) -> Self {
        Socket { fd: Arc::new(fd), ring }
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
        into_parts(self.ring.run(op).await)
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
        let _ = shutdown(&*self.fd, Shutdown::Both);
    }
}

fn into_parts(done: RingDone) -> (IoBuf, io::Result<usize>) {
    (done.buf.unwrap_or_default(), done.result.map(|len| len as usize))
}
