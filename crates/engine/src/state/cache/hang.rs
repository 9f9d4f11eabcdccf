//! Work on a cache device that may hang.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use super::Cache;

/// Work on the cache device under way.
pub(crate) type Work<T> = Pin<Box<dyn Future<Output = T>>>;

impl Cache {
    /// Waits for the end of some work, unless the cache device hangs: then `None`, and the work goes
    /// on.
    pub(crate) async fn unless_hung<F: Future + Unpin>(&self, work: &mut F) -> Option<F::Output> {
        loop {
            let changed = self.health.changed.listen();
            let mut changed = std::pin::pin!(changed);
            let hung = self.health.is_hung();
            let end = std::future::poll_fn(|context| {
                if let Poll::Ready(end) = Pin::new(&mut *work).poll(context) {
                    return Poll::Ready(Some(end));
                }
                if hung || changed.as_mut().poll(context).is_ready() {
                    return Poll::Ready(None);
                }
                Poll::Pending
            });
            match end.await {
                None if !self.health.is_hung() => {}
                end => return end,
            }
        }
    }

    /// As [`Cache::unless_hung`] for work that may only be left behind if that can be noted: without a
    /// ledger there is no end but its own.
    pub(crate) async fn unless_it_can_be_noted<T>(&self, work: &mut Work<T>) -> Option<T> {
        match self.ledger() {
            Some(_) => self.unless_hung(work).await,
            None => Some(work.await),
        }
    }
}
