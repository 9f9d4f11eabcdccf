//! Starting, joining, sleeping, parking.

use std::io;
use std::panic::Location;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::Clock;
use parking_lot::Mutex;

use crate::scheduler::{Core, Here, WaitKey, Woken};
use crate::sync::LockEvent;
use crate::unwind;

/// Starts a thread called `name`.
///
/// # Errors
/// The system has no thread left.
#[track_caller]
pub fn spawn<T: Send + 'static>(
    name: &str,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    match Here::get() {
        None => {
            let thread = std::thread::Builder::new().name(name.to_owned()).spawn(run)?;
            Ok(JoinHandle(Handle::Real(thread)))
        }
        Some(here) => {
            let at = Location::caller();
            let handle = start(&here.core, name, Some(here.me), at, run)?;
            here.step(at);
            Ok(handle)
        }
    }
}

/// Starts a simulated thread, which waits for its first turn.
pub(crate) fn start<T: Send + 'static>(
    core: &Arc<Core>,
    name: &str,
    parent: Option<usize>,
    at: &'static Location<'static>,
    run: impl FnOnce() -> T + Send + 'static,
) -> io::Result<JoinHandle<T>> {
    let result = Arc::<Mutex<Option<std::thread::Result<T>>>>::default();
    let own = result.clone();
    let run = move || {
        let ended = unwind::catch(run);
        let message = ended.as_ref().err().map(|payload| unwind::message(&**payload).to_owned());
        *own.lock() = Some(ended);
        message
    };
    let id = core.add(name, parent, at, |here| {
        std::thread::Builder::new().name(name.to_owned()).spawn(move || here.live(run))
    })?;
    Ok(JoinHandle(Handle::Simulated { core: core.clone(), id, result }))
}

enum Handle<T> {
    Real(std::thread::JoinHandle<T>),
    Simulated { core: Arc<Core>, id: usize, result: Arc<Mutex<Option<std::thread::Result<T>>>> },
}

/// A handle to a running thread. The thread continues if the handle is dropped.
pub struct JoinHandle<T>(Handle<T>);

impl<T> JoinHandle<T> {
    /// Returns whether the thread has ended.
    pub fn is_finished(&self) -> bool {
        match &self.0 {
            Handle::Real(thread) => thread.is_finished(),
            Handle::Simulated { core, id, .. } => core.state.lock().is_gone(*id),
        }
    }

    /// Waits for the thread to end, and returns its result.
    ///
    /// # Errors
    /// The payload of the thread's panic, or of a crash of its simulation.
    #[track_caller]
    pub fn join(self) -> std::thread::Result<T> {
        match self.0 {
            Handle::Real(thread) => thread.join(),
            Handle::Simulated { core, id, result } => {
                let at = Location::caller();
                let mut woken = Woken::Notified;
                while let Some(here) = Here::get()
                    && woken == Woken::Notified
                    && !core.state.lock().is_gone(id)
                {
                    woken = here.wait(WaitKey::End(id), None, at);
                }
                result.lock().take().unwrap_or_else(|| Err(unwind::payload()))
            }
        }
    }
}

/// Waits for `time`.
#[track_caller]
pub fn sleep(time: Duration) {
    match Here::get() {
        None => std::thread::sleep(time),
        Some(here) => {
            let end = here.core.now() + time;
            here.wait(WaitKey::Time, Some(end), Location::caller());
        }
    }
}

/// Yields to other threads, in loops that poll. In a simulation, virtual time advances while all
/// ready threads only poll.
#[track_caller]
pub fn yield_now() {
    match Here::get() {
        None => std::thread::yield_now(),
        Some(here) => here.give_way(Location::caller()),
    }
}

/// A yield point: a simulation may switch to another thread here. Has no effect outside of a
/// simulation.
#[track_caller]
pub fn step() {
    if let Some(here) = Here::get() {
        here.step(Location::caller());
    }
}

#[derive(Default)]
struct Permit {
    given: Mutex<bool>,
    event: LockEvent,
}

/// Lets one thread wait until another thread [unparks](Unparker::unpark) it.
#[derive(Default)]
pub struct Parker(Arc<Permit>);

impl Parker {
    /// Creates a parker that has not been unparked.
    pub fn new() -> Self {
        Parker::default()
    }

    /// Returns a handle for other threads.
    pub fn unparker(&self) -> Unparker {
        Unparker(self.0.clone())
    }

    /// Waits until unparked, at most for `time`. Returns immediately if it was unparked since the
    /// last wait. May return early.
    #[track_caller]
    pub fn park(&self, time: Option<Duration>) {
        let mut given = self.0.given.lock();
        if !*given {
            given = self.0.event.wait(&self.0.given, given, time, Location::caller()).0;
        }
        *given = false;
    }
}

/// Ends the present or the next wait of a [`Parker`].
#[derive(Clone)]
pub struct Unparker(Arc<Permit>);

impl Unparker {
    /// Ends the wait. This is not a yield point of a simulation, so the caller may hold any lock.
    pub fn unpark(&self) {
        *self.0.given.lock() = true;
        self.0.event.notify_all();
    }
}
