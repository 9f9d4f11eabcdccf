//! A connected socket on a lane's ring.

use std::cell::{Cell, OnceCell};
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::IoBuf;
use forebay_device::ring::{Ring, RingDone, RingOp, RingToken};
use rustix::net::{Shutdown, shutdown};
use rustls::ServerConfig;

use crate::records::{Plain, Records};

/// A client that takes this many bytes has made progress.
pub const STEP: usize = 1 << 20;

/// A connected stream socket in blocking mode, perhaps with TLS.
pub struct Socket {
    fd: Arc<OwnedFd>,
    ring: Rc<Ring>,
    /// The receive in flight.
    receiving: Cell<Option<RingToken>>,
    /// The next program takes over the connection, so this one must not shut it down.
    kept: Cell<bool>,
    tls: OnceCell<Records>,
}

impl Socket {
    /// Creates a socket of a descriptor.
    pub fn new(fd: OwnedFd, ring: Rc<Ring>) -> Self {
        Socket {
            fd: Arc::new(fd),
            ring,
            receiving: Cell::default(),
            kept: Cell::default(),
            tls: OnceCell::new(),
        }
    }

    /// Receives into `buf[range]`: the available bytes, or with `fill` the whole range. Returns 0,
    /// or with `fill` fewer bytes, at the end of the stream. The returned buffer is empty if the
    /// ring has lost it.
    pub async fn receive(
        &self,
        buf: IoBuf,
        range: Range<usize>,
        fill: bool,
    ) -> (IoBuf, io::Result<usize>) {
        match self.tls.get() {
            None => self.receive_plain(buf, range, fill).await,
            // TLS is rare; the boxed future keeps its state out of every connection's task.
            Some(tls) => Box::pin(self.receive_encrypted(tls, buf, range, fill)).await,
        }
    }

    async fn receive_plain(
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

    /// Ends a pending receive, which returns the bytes that have arrived, or fails with `ECANCELED`
    /// if there are none.
    pub fn cancel_receive(&self) {
        if let Some(token) = self.receiving.get() {
            self.ring.cancel(token);
        }
    }

    /// Sets whether another program takes over the connection, so that this one does not shut it
    /// down.
    pub fn keep(&self, kept: bool) {
        self.kept.set(kept);
    }

    /// Whether the connection has TLS.
    pub fn is_encrypted(&self) -> bool {
        self.tls.get().is_some()
    }

    /// Returns whether another program takes over the connection.
    pub fn is_kept(&self) -> bool {
        self.kept.get()
    }

    /// Returns the descriptor.
    pub fn descriptor(&self) -> &Arc<OwnedFd> {
        &self.fd
    }

    /// Returns a descriptor of the connection for another program.
    ///
    /// # Errors
    /// The limit of descriptors is reached.
    pub fn duplicate(&self) -> io::Result<OwnedFd> {
        self.fd.as_fd().try_clone_to_owned()
    }

    /// Sends the first `len` bytes of `buf`. Calls `begins` before each [`STEP`] bytes, and drops
    /// its result after them.
    pub async fn send<T>(
        &self,
        buf: IoBuf,
        len: usize,
        begins: impl Fn() -> T,
    ) -> (IoBuf, io::Result<()>) {
        match self.tls.get() {
            None => self.send_plain(buf, len, begins).await,
            Some(tls) => {
                let result = Box::pin(self.send_encrypted(tls, &buf, len, begins)).await;
                (buf, result)
            }
        }
    }

    async fn send_plain<T>(
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

    /// Makes a socket of a connection whose TLS handshake is complete.
    pub fn encrypted(fd: OwnedFd, ring: Rc<Ring>, tls: Records) -> Self {
        let socket = Socket::new(fd, ring);
        // The cell is empty in a new socket, so this cannot fail.
        let _ = socket.tls.set(tls);
        socket
    }

    /// Starts TLS as the server: everything after this call is encrypted. `received` are bytes that
    /// have already arrived. `decrypt` calls [`Records::decrypt`] where that may take milliseconds,
    /// and returns the records unless they are lost.
    ///
    /// # Errors
    /// The handshake failed; the client got the alert, and the connection is unusable.
    pub async fn start_tls(
        &self,
        config: Arc<ServerConfig>,
        received: &[u8],
        decrypt: impl AsyncFn(Records) -> (Option<Records>, io::Result<bool>),
    ) -> io::Result<()> {
        let mut tls = Records::accept(config, received)?;
        loop {
            self.send_records(&tls).await?;
            if !tls.is_handshaking() {
                break;
            }
            if !tls.has_received() {
                if self.receive_records(&tls).await? == 0 {
                    let cause = "the client closed the connection in the handshake of TLS";
                    return Err(io::Error::new(io::ErrorKind::UnexpectedEof, cause));
                }
                continue;
            }
            let (left, result) = decrypt(tls).await;
            if let (Some(tls), Err(_)) = (&left, &result) {
                // Sends the alert. A failure changes nothing, because the handshake has failed
                // already.
                let _ = self.send_records(tls).await;
            }
            result?;
            tls = left.ok_or(io::ErrorKind::InvalidData)?;
        }
        self.tls.set(tls).map_err(|_| io::ErrorKind::InvalidData.into())
    }

    /// Sends a TLS client the alert that ends its session.
    pub async fn end_tls(&self) {
        if let Some(tls) = self.tls.get() {
            tls.end();
            // The client may be gone.
            let _ = self.send_records(tls).await;
        }
    }

    /// Receives and decrypts, see [`Socket::receive`].
    async fn receive_encrypted(
        &self,
        tls: &Records,
        mut buf: IoBuf,
        range: Range<usize>,
        fill: bool,
    ) -> (IoBuf, io::Result<usize>) {
        let mut at = range.start;
        while at < range.end {
            let place = buf.get_mut(at..range.end).unwrap_or_default();
            let step = match tls.read(place) {
                Ok(Plain::Bytes(len)) => {
                    at += len;
                    continue;
                }
                Ok(Plain::End) => break,
                Ok(Plain::None) => match tls.decrypt() {
                    // Requests that arrive together are executed together, although each is in a
                    // TLS record of its own.
                    Ok(true) => continue,
                    Ok(false) if at > range.start && !fill => break,
                    Ok(false) => self.receive_records(tls).await,
                    Err(error) => Err(error),
                },
                Err(error) => Err(error),
            };
            match step {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => return (buf, Err(error)),
            }
        }
        (buf, Ok(at - range.start))
    }

    /// Receives records. Returns their bytes, 0 at the end of the stream.
    async fn receive_records(&self, tls: &Records) -> io::Result<usize> {
        let buf = tls.take_incoming();
        let range = 0..buf.len();
        let (buf, result) = self.receive_plain(buf, range, false).await;
        tls.put_incoming(buf, *result.as_ref().unwrap_or(&0));
        result
    }

    /// Encrypts and sends the first `len` bytes of `buf`, see [`Socket::send`].
    async fn send_encrypted<T>(
        &self,
        tls: &Records,
        buf: &[u8],
        len: usize,
        begins: impl Fn() -> T,
    ) -> io::Result<()> {
        let mut at = 0;
        while at < len {
            let _step = begins();
            match tls.encrypt(buf.get(at..len).unwrap_or_default())? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                more => at += more,
            }
            self.send_records(tls).await?;
        }
        Ok(())
    }

    /// Sends the encrypted bytes.
    async fn send_records(&self, tls: &Records) -> io::Result<()> {
        while let Some((buf, len)) = tls.take_outgoing()? {
            let (buf, result) = self.send_plain(buf, len, || ()).await;
            tls.put_outgoing(buf);
            result?;
        }
        Ok(())
    }

    /// Submits queued operations to the kernel.
    pub fn start_now(&self) {
        self.ring.drive();
    }

    /// Ends the receiving direction, so that a pending receive sees the end of the stream.
    pub fn stop_receiving(&self) {
        // `shutdown` fails only if the connection has ended, which has the same effect.
        let _ = shutdown(&*self.fd, Shutdown::Read);
    }

    /// Ends both directions. Operations in flight end soon.
    pub fn close(&self) {
        if !self.kept.get() {
            let _ = shutdown(&*self.fd, Shutdown::Both);
        }
    }
}

fn into_parts(done: RingDone) -> (IoBuf, io::Result<usize>) {
    (done.buf.unwrap_or_default(), done.result.map(|len| len as usize))
}
