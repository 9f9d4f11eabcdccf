//! The export as a device, and its queues.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Duration;

use forebay_core::Sectors;
use forebay_device::{
    Access, Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceExtent, DeviceOp, DeviceQueue,
    NbdUri, OpId, OpTable, OpenError, OpenErrorKind, QueueContext,
};
use forebay_nbd_wire::transmission_flag;

use crate::connect::connect;
use crate::handshake::{ConnectError, unfit};
use crate::link::Link;
use crate::port::{Mail, Port};
use crate::remote::Remote;
use crate::reply::{Reply, To};

/// Largest preferred size, in bytes, that is reported as the size of a physical block.
const PAGE: u32 = 4096;

/// Time limit of the query for an extent.
const EXTENT: Duration = Duration::from_secs(2);

/// An export of an NBD server. Nothing but this program may write to it: servers have no lock that
/// says so.
pub struct NbdDevice {
    remote: Arc<Remote>,
}

impl NbdDevice {
    /// Connects to the server and opens the export. May wait, so it must not be called on a lane.
    ///
    /// # Errors
    /// `ReadOnly` or `Denied`: `access` is exclusive, and the export is read-only or has no flush.
    /// `BadSize`: the export is empty. `WrongType`: the server refuses the export or lacks a needed
    /// feature. `Io`: no connection is possible now; a later attempt may succeed.
    pub fn open(uri: &NbdUri, access: Access) -> Result<Arc<dyn Device>, OpenError> {
        let failed = |kind, cause: String| OpenError::new(kind, uri, cause);
        let connection = connect(uri).map_err(|error| match error {
            ConnectError::Io(cause) => failed(OpenErrorKind::Io, cause.to_string()),
            ConnectError::Refused(cause) => failed(OpenErrorKind::WrongType, cause),
        })?;
        let export = connection.agreed.export;
        let writable = access == Access::Exclusive;
        if let Some(why) = unfit(&export).filter(|_| writable) {
            let kind = match export.has(transmission_flag::READ_ONLY) {
                true => OpenErrorKind::ReadOnly,
                false => OpenErrorKind::Denied,
            };
            return Err(failed(kind, why.to_owned()));
        }
        let logical_block = match export.least {
            0..=512 => 512,
            513..=4096 => 4096,
            least => {
                let cause = format!("its blocks of {least} bytes are larger than 4096");
                return Err(failed(OpenErrorKind::WrongType, cause));
            }
        };
        if u64::from(export.most) < logical_block {
            let cause = format!(
                "the server takes requests of at most {} bytes, less than a block",
                export.most
            );
            return Err(failed(OpenErrorKind::WrongType, cause));
        }
        if export.size < logical_block || i64::try_from(export.size).is_err() {
            let cause = format!("its size of {} bytes cannot be used", export.size);
            return Err(failed(OpenErrorKind::BadSize, cause));
        }
        let remote = Remote::new(uri.clone(), connection, logical_block, writable);
        if !remote.is_parallel() {
            tracing::info!(device = %remote.name, "the server has no multi-conn, so all lanes share one connection");
        }
        Ok(Arc::new(NbdDevice { remote: Arc::new(remote) }))
    }
}

impl Drop for NbdDevice {
    fn drop(&mut self) {
        self.remote.closed.store(true, Ordering::SeqCst);
        self.remote.look();
        // Closes unused connections.
        while let Some(connection) = self.remote.take_spare() {
            connection.leave();
        }
    }
}

impl Device for NbdDevice {
    fn name(&self) -> &str {
        &self.remote.name
    }

    fn size(&self) -> u64 {
        self.remote.size
    }

    fn logical_block(&self) -> u64 {
        self.remote.logical_block
    }

    /// The protocol does not report physical blocks; the preferred size, nearly always a page, is
    /// the best approximation.
    fn sectors(&self) -> Sectors {
        let logical = self.remote.logical_block as u32;
        let preferred = self.remote.agreed.export.preferred;
        let physical = preferred.clamp(logical, logical.max(PAGE));
        Sectors::told(logical, physical, preferred, 0)
    }

    fn writes_durably(&self) -> bool {
        self.remote.abilities.writes_durably()
    }

    fn shrunk_to(&self) -> Option<u64> {
        self.remote.size_now.get().copied().filter(|size| *size < self.remote.size)
    }

    fn for_reading_only(&self) -> bool {
        !self.remote.writable
    }

    /// Returns the server's flag; the protocol cannot express that the answer is unknown.
    fn rotational(&self) -> Option<bool> {
        Some(self.remote.agreed.export.has(transmission_flag::ROTATIONAL))
    }

    fn knows_holes(&self) -> bool {
        self.remote.agreed.allocation.is_some()
    }

    fn extent_at(&self, offset: u64) -> Option<DeviceExtent> {
        if !self.knows_holes() || offset >= self.remote.size {
            return None;
        }
        let offset = offset - offset % self.remote.logical_block;
        let port = self.remote.ports.lock().open.first().cloned()?;
        let reply = Arc::<Reply>::default();
        port.post(Mail::Extent(offset, reply.clone())).ok()?;
        let extent = reply.wait(EXTENT)?.extent?;
        Some(DeviceExtent { end: extent.end.min(self.remote.size), ..extent })
    }

    fn open_queue(&self, context: &QueueContext) -> Result<Rc<dyn DeviceQueue>, DeviceError> {
        let mut ports = self.remote.ports.lock();
        let shared = ports.open.first().filter(|_| !self.remote.is_parallel()).cloned();
        let (link, port) = match shared {
            Some(port) => (None, port),
            None => {
                let Some(link) = Link::start(&self.remote, context) else {
                    let (kind, cause) = (DeviceErrorKind::NotSupported, "the lane has no ring");
                    return Err(self.remote.error(kind, "open", 0, cause));
                };
                let port = link.port.clone();
                ports.open.push(port.clone());
                (Some(link), port)
            }
        };
        ports.queues += 1;
        drop(ports);
        Ok(Rc::new(NbdQueue { remote: self.remote.clone(), link, port, ops: RefCell::default() }))
    }
}

/// An operation from the view of its queue.
enum RemoteOp {
    /// An operation of the lane's own connection.
    Own(OpId),
    /// An operation of another lane's connection.
    Other(Arc<Reply>),
    /// Flushes of several connections; the number of failures before.
    Sync { flushes: Vec<Arc<Reply>>, failures: u64, error: Option<DeviceError> },
    /// The operation has ended already.
    Ended(DeviceDone),
}

/// One lane's queue to an export.
struct NbdQueue {
    remote: Arc<Remote>,
    /// The lane's own connection; `None` if another lane's connection serves the queue.
    link: Option<Rc<Link>>,
    /// Port of the connection.
    port: Arc<Port>,
    ops: RefCell<OpTable<RemoteOp>>,
}

impl NbdQueue {
    fn refused(&self, op: DeviceOp, kind: DeviceErrorKind, cause: String) -> RemoteOp {
        let offset = op.range().map_or(0, |range| range.start);
        let result = Err(self.remote.error(kind, op.what(), offset, cause));
        RemoteOp::Ended(DeviceDone { result, buf: op.into_buf() })
    }

    fn begin(&self, op: DeviceOp) -> RemoteOp {
        let (size, block) = (self.remote.size, self.remote.logical_block);
        if let Some(range) = op.range() {
            let len = range.end - range.start;
            if range.end > size || !range.start.is_multiple_of(block) || !len.is_multiple_of(block)
            {
                let cause =
                    format!("{len} bytes are not in whole blocks of {block} bytes below {size}");
                return self.refused(op, DeviceErrorKind::Invalid, cause);
            }
        }
        if !self.remote.writable && !matches!(op, DeviceOp::Read { .. } | DeviceOp::Sync) {
            let cause = "it is open for reading only".to_owned();
            return self.refused(op, DeviceErrorKind::ReadOnly, cause);
        }
        if let DeviceOp::Discard { len: 0, .. } = op
            && !self.remote.abilities.discards()
        {
            let cause = "the server does not zero ranges fast (FAST_ZERO)".to_owned();
            return self.refused(op, DeviceErrorKind::NotSupported, cause);
        }
        match (&op, &self.link) {
            (DeviceOp::Sync, _) => self.begin_sync(),
            (_, Some(link)) => RemoteOp::Own(link.submit(op, To::Own { done: None, waker: None })),
            (_, None) => {
                let reply = Arc::<Reply>::default();
                match self.port.post(Mail::Op(op, reply.clone())) {
                    Ok(()) => RemoteOp::Other(reply),
                    Err(Mail::Op(op, _)) => {
                        let cause = "the connection's lane has ended".to_owned();
                        self.refused(op, DeviceErrorKind::Gone, cause)
                    }
                    Err(Mail::Extent(..) | Mail::Look) => RemoteOp::Other(reply),
                }
            }
        }
    }

    /// Flushes the lane's own connection and all others that have unflushed changes.
    fn begin_sync(&self) -> RemoteOp {
        let failures = self.remote.failures.load(Ordering::SeqCst);
        let ports = self.remote.ports.lock().open.clone();
        let wanted = |port: &&Arc<Port>| Arc::ptr_eq(port, &self.port) || port.is_unsettled();
        let mut flushes = Vec::new();
        let mut error = None;
        for port in ports.iter().filter(wanted) {
            let reply = Arc::<Reply>::default();
            match port.post(Mail::Op(DeviceOp::Sync, reply.clone())) {
                Ok(()) => flushes.push(reply),
                // A port without unsettled changes has closed because nothing was left to flush.
                // This one has lost its lane.
                Err(_) if port.is_unsettled() => {
                    let (kind, cause) = (
                        DeviceErrorKind::Io,
                        "a connection has ended with changes that were not flushed",
                    );
                    error = Some(self.remote.error(kind, "sync", 0, cause));
                }
                Err(_) => {}
            }
        }
        RemoteOp::Sync { flushes, failures, error }
    }

    fn poll_entry(&self, entry: &mut RemoteOp, context: &mut Context<'_>) -> Poll<DeviceDone> {
        match entry {
            RemoteOp::Ended(_) => match std::mem::replace(
                entry,
                RemoteOp::Sync { flushes: Vec::new(), failures: 0, error: None },
            ) {
                RemoteOp::Ended(done) => Poll::Ready(done),
                _ => Poll::Pending,
            },
            RemoteOp::Own(id) => {
                let polled = self.link.as_ref().and_then(|link| link.poll(*id, context));
                polled.unwrap_or_else(|| Poll::Ready(self.unknown()))
            }
            RemoteOp::Other(reply) => reply.poll(context).map(|answer| answer.done),
            RemoteOp::Sync { flushes, failures, error } => {
                flushes.retain(|flush| match flush.poll(context) {
                    Poll::Pending => true,
                    Poll::Ready(answer) => {
                        if let Err(failed) = answer.done.result {
                            error.get_or_insert(failed);
                        }
                        false
                    }
                });
                if !flushes.is_empty() {
                    return Poll::Pending;
                }
                let result = match error.take() {
                    Some(error) => Err(error),
                    None if self.remote.failures.load(Ordering::SeqCst) != *failures => {
                        let cause =
                            "another sync has failed meanwhile, which may concern the same changes";
                        Err(self.remote.error(DeviceErrorKind::Io, "sync", 0, cause))
                    }
                    None => Ok(()),
                };
                Poll::Ready(DeviceDone { result, buf: None })
            }
        }
    }

    fn unknown(&self) -> DeviceDone {
        let result =
            Err(self.remote.error(DeviceErrorKind::Invalid, "poll", 0, "no such operation"));
        DeviceDone { result, buf: None }
    }
}

impl DeviceQueue for NbdQueue {
    fn start(&self, op: DeviceOp) -> OpId {
        let entry = self.begin(op);
        self.ops.borrow_mut().add(entry)
    }

    fn poll_op(&self, id: OpId, context: &mut Context<'_>) -> Poll<DeviceDone> {
        let mut ops = self.ops.borrow_mut();
        let Some(entry) = ops.get_mut(id) else { return Poll::Ready(self.unknown()) };
        let polled = self.poll_entry(entry, context);
        if polled.is_ready() {
            ops.take(id);
        }
        polled
    }

    fn forget(&self, id: OpId) {
        if let Some(RemoteOp::Own(own)) = self.ops.borrow_mut().take(id)
            && let Some(link) = &self.link
        {
            link.forget(own);
        }
    }
}

impl Drop for NbdQueue {
    /// Requests in flight are awaited, because the server executes them in any case.
    fn drop(&mut self) {
        let ids = std::mem::take(self.ops.get_mut());
        if let Some(link) = &self.link {
            let mut ids = ids;
            for entry in ids.drain() {
                if let RemoteOp::Own(id) = entry {
                    link.forget(id);
                }
            }
            link.orphan.set(true);
        }
        self.remote.ports.lock().queues -= 1;
        self.remote.look();
    }
}
