//! The door to a connection for other lanes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Waker};

use forebay_device::DeviceOp;
use parking_lot::Mutex;

use crate::reply::Reply;

/// Work for the lane of a connection.
pub(crate) enum Mail {
    /// Execute an operation.
    Op(DeviceOp, Arc<Reply>),
    /// Find the extent at this offset.
    Extent(u64, Arc<Reply>),
    /// Look whether the connection is still needed.
    Look,
}

#[derive(Default)]
struct PortInbox {
    closed: bool,
    mail: Vec<Mail>,
    waker: Option<Waker>,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Port {
    inner: Mutex<PortInbox>,
    /// Some acknowledged changes may not have been made durable by a flush yet.
    unsettled: AtomicBool,
}

impl Port {
    /// Posts mail. Returns the mail if the port is closed.
    pub(crate) fn post(&self, mail: Mail) -> Result<(), Mail> {
        let mut inner = self.inner.lock();
        if inner.closed {
            return Err(mail);
        }
        inner.mail.push(mail);
        let waker = inner.waker.take();
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// Takes the mail; `None` if the port is closed.
    pub(crate) fn poll(&self, context: &Context<'_>) -> Poll<Option<Vec<Mail>>> {
        let mut inner = self.inner.lock();
        if !inner.mail.is_empty() {
            return Poll::Ready(Some(std::mem::take(&mut inner.mail)));
        }
        if inner.closed {
            return Poll::Ready(None);
        }
        inner.waker = Some(context.waker().clone());
        Poll::Pending
    }

    /// Closes the port if no mail is waiting. Returns whether it is closed.
    pub(crate) fn close(&self) -> bool {
        let mut inner = self.inner.lock();
        inner.closed = inner.mail.is_empty();
        let waker = inner.waker.take().filter(|_| inner.closed);
        let closed = inner.closed;
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        closed
    }

    /// Refuses further mail and returns the mail that has not been taken.
    pub(crate) fn fail(&self) -> Vec<Mail> {
        let mut inner = self.inner.lock();
        inner.closed = true;
        let (mail, waker) = (std::mem::take(&mut inner.mail), inner.waker.take());
        drop(inner);
        if let Some(waker) = waker {
            waker.wake();
        }
        mail
    }

    pub(crate) fn set_unsettled(&self, unsettled: bool) {
        self.unsettled.store(unsettled, Ordering::SeqCst);
    }

    pub(crate) fn is_unsettled(&self) -> bool {
        self.unsettled.load(Ordering::SeqCst)
    }
}
