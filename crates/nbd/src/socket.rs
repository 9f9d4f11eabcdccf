//! A connected socket on a lane's ring.

use std::io;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::IoBuf;
use forebay_device::ring::{Ring, RingDone, RingOp};
use rustix::net::{Shutdown, shutdown};

/// Bytes that a client is given, or gives, before it counts as one that goes on.
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

    /// Receives into `buf[range]`: what there is, or with `fill` all of it. 0, or short with
    /// `fill`, at the end of the stream. The buffer is empty if the ring has lost it.
    pub(crate) async fn receive(
        &self,
        buf: IoBuf,
        range: Range<usize>,
        fill: bool,
    ) -> (IoBuf, io::Result<usize>) {
        let op = RingOp::Recv { fd: self.fd.clone(), buf, range, fill };
        into_parts(self.ring.run(op).await)
    }

    /// Sends the first `len` bytes of `buf`, and calls `begins` before each [`STEP`] of them; what it
    /// gives is kept until the step is over.
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

    /// Has the kernel start what was asked of it.
    pub(crate) fn start_now(&self) {
        self.ring.drive();
    }

    /// Ends the stream of received bytes, so that whoever receives comes to its end.
    pub(crate) fn stop_receiving(&self) {
        // It fails only if the connection has ended, which has the same effect.
        let _ = shutdown(&*self.fd, Shutdown::Read);
    }

    /// Ends both directions. Operations under way end soon.
    pub(crate) fn close(&self) {
        let _ = shutdown(&*self.fd, Shutdown::Both);
    }
}

fn into_parts(done: RingDone) -> (IoBuf, io::Result<usize>) {
    (done.buf.unwrap_or_default(), done.result.map(|len| len as usize))
}
