//! Waiting for work on a cache device that may hang.

use std::future::Future;
use std::pin::Pin;
use std::task::Poll;

use super::Cache;

/// Work in progress on the cache device.
pub(crate) type CacheWork<T> = Pin<Box<dyn Future<Output = T>>>;

impl Cache {
    /// Waits for work to end. If the cache device hangs, returns `None`, and the caller still owns
    /// the work.
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

    /// Waits like [`Cache::unless_hung`], for work that may be abandoned only if a note can record
    /// that. Without a ledger, or before the index is loaded, waits until the work ends.
    pub(crate) async fn unless_it_can_be_noted<T>(&self, work: &mut CacheWork<T>) -> Option<T> {
        match self.ledger() {
            Some(_) if self.store.is_loaded() => self.unless_hung(work).await,
            _ => Some(work.await),
        }
    }
}
