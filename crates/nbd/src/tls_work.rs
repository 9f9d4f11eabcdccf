//! TLS handshakes, off the lanes: signatures take milliseconds, for which requests must not wait.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_lane::{Notify, off_lane};
use rustix::process::setpriority_process;

use crate::wire::records::Records;

/// Priority of the threads, as for `nice`: beside lanes that are always busy, they get about 5 % of
/// one CPU.
const NICE: i32 = 13;

/// CPUs for each thread; there is at least one thread.
const CPUS: usize = 4;

/// Runs the steps of TLS handshakes for all lanes. The limit on handshakes also limits the number
/// of waiting steps.
#[derive(Clone, Debug)]
pub(crate) struct TlsWork(Arc<WorkCount>);

#[derive(Debug)]
struct WorkCount {
    most: usize,
    running: AtomicUsize,
    ended: Notify,
}

impl Default for TlsWork {
    fn default() -> Self {
        let cpus = std::thread::available_parallelism().map_or(1, usize::from);
        TlsWork::with(cpus.div_ceil(CPUS))
    }
}

/// A step that is running, until it is dropped.
struct Running(Arc<WorkCount>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, Ordering::SeqCst);
        self.0.ended.notify_all();
    }
}

impl TlsWork {
    /// At most `most` steps run at a time.
    fn with(most: usize) -> Self {
        let running = AtomicUsize::new(0);
        TlsWork(Arc::new(WorkCount { most, running, ended: Notify::default() }))
    }

    /// Decrypts the bytes of a handshake that a client has sent.
    ///
    /// # Errors
    /// See [`Records::decrypt`], or no thread could be started. The session is lost then.
    pub(crate) async fn decrypt(&self, records: Records) -> (Option<Records>, io::Result<bool>) {
        let running = self.turn().await;
        let step = move || {
            let _running = running;
            // Applies to this thread only. Without it handshakes take more CPU time from the lanes.
            let _ = setpriority_process(None, NICE);
            let result = records.decrypt();
            (Some(records), result)
        };
        let lost = || (None, Err(io::Error::other("no thread for a handshake of TLS")));
        off_lane::run("tls-handshake", step).await.unwrap_or_else(lost)
    }

    /// Waits until a step may run.
    async fn turn(&self) -> Running {
        loop {
            let ended = self.0.ended.listen();
            let free = |running: usize| (running < self.0.most).then_some(running + 1);
            let order = Ordering::SeqCst;
            if self.0.running.fetch_update(order, order, free).is_ok() {
                return Running(self.0.clone());
            }
            ended.await;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    #[test]
    fn no_more_steps_run_at_a_time_than_may() {
        let work = TlsWork::with(2);
        let mut context = Context::from_waker(Waker::noop());
        let mut turn = || match pin!(work.turn()).poll(&mut context) {
            Poll::Ready(running) => Some(running),
            Poll::Pending => None,
        };
        let (first, second) = (turn(), turn());
        assert!(first.is_some() && second.is_some() && turn().is_none());
        drop(first);
        let third = turn();
        assert!(third.is_some() && turn().is_none());
        drop((second, third));
        assert_eq!(work.0.running.load(Ordering::SeqCst), 0);
    }
}
