//! Work that may wait for a disk. It runs in a separate thread, because a lane must not wait.

use std::sync::Arc;

use parking_lot::Mutex;

use crate::notify::Notify;

struct ThreadResult<T> {
    /// Whether the thread has ended, and its result.
    state: Mutex<(bool, Option<T>)>,
    there: Notify,
}

/// Tells the waiting task on drop, also if the work panics.
struct Tell<T>(Arc<ThreadResult<T>>);

impl<T> Drop for Tell<T> {
    fn drop(&mut self) {
        self.0.state.lock().0 = true;
        self.0.there.notify_all();
    }
}

/// Runs `work` in a thread called `name` and waits for its result. The caller limits the number of
/// threads. `None`: the thread could not be started, or it has panicked.
pub async fn run<T: Send + 'static>(
    name: &str,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let answer =
        Arc::new(ThreadResult { state: Mutex::new((false, None)), there: Notify::default() });
    let tell = Tell(answer.clone());
    let spawned = forebay_threads::spawn(name, move || {
        let result = work();
        tell.0.state.lock().1 = Some(result);
    });
    if let Err(error) = spawned {
        tracing::debug!(%error, name, "a thread cannot be started");
        return None;
    }
    loop {
        let there = answer.there.listen();
        {
            let mut state = answer.state.lock();
            if state.0 {
                return state.1.take();
            }
        }
        there.await;
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    /// Polls a future until it is ready.
    fn block_on<F: Future>(future: F) -> F::Output {
        let mut future = pin!(future);
        loop {
            let mut context = Context::from_waker(Waker::noop());
            if let Poll::Ready(output) = future.as_mut().poll(&mut context) {
                return output;
            }
            std::thread::yield_now();
        }
    }

    #[test]
    fn a_result_comes_and_a_panic_is_none() {
        assert_eq!(block_on(run("work", || 7)), Some(7));
        let panics = run("work", || -> u8 { panic!("as this test wants it") });
        assert_eq!(block_on(panics), None);
    }
}
