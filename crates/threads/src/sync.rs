//! Locks and condition variables.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::panic::Location;
use std::time::Duration;

use forebay_core::Clock;

use crate::scheduler::{Here, WaitKey, Woken};
use crate::time::Instant;

/// A lock. If its holder panics, the lock is released and stays usable.
#[derive(Default)]
pub struct Mutex<T>(parking_lot::Mutex<T>);

impl<T> Mutex<T> {
    /// Creates an unlocked lock.
    pub const fn new(value: T) -> Self {
        Mutex(parking_lot::Mutex::new(value))
    }

    /// Blocks until the lock is held.
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        let here = Here::get();
        let Some(here) = here else {
            return self.held(self.0.lock(), None);
        };
        let at = Location::caller();
        if here.every_lock() {
            here.step(at);
        }
        loop {
            if let Some(inner) = self.0.try_lock() {
                return self.held(inner, Some(here));
            }
            here.wait(self.key(), None, at);
        }
    }

    /// Acquires the lock if no other thread holds it.
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let here = Here::get();
        if let Some(here) = here.as_ref().filter(|here| here.every_lock()) {
            here.step(Location::caller());
        }
        Some(self.held(self.0.try_lock()?, here))
    }

    /// Returns the content.
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }

    /// Returns the content. The exclusive reference guarantees that the lock is not held.
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    fn key(&self) -> WaitKey {
        WaitKey::Lock(std::ptr::from_ref(self).addr())
    }

    fn held<'a>(
        &'a self,
        inner: parking_lot::MutexGuard<'a, T>,
        here: Option<Here>,
    ) -> MutexGuard<'a, T> {
        let release = here.map(|here| Release { here, key: self.key() });
        MutexGuard { inner, _release: release, lock: self }
    }
}

impl<T: fmt::Debug> fmt::Debug for Mutex<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Holds the lock of a [`Mutex`] until it is dropped.
#[must_use = "the lock is released at once"]
pub struct MutexGuard<'a, T> {
    // Fields are dropped in this order: the lock is released before other threads are notified.
    inner: parking_lot::MutexGuard<'a, T>,
    _release: Option<Release>,
    lock: &'a Mutex<T>,
}

impl<T> Deref for MutexGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.inner
    }
}

impl<T> DerefMut for MutexGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.inner
    }
}

impl<T: fmt::Debug> fmt::Debug for MutexGuard<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(f)
    }
}

/// Notifies simulated threads on drop that a lock is free.
struct Release {
    here: Here,
    key: WaitKey,
}

impl Drop for Release {
    fn drop(&mut self) {
        self.here.wake_all(self.key);
    }
}

/// An event protected by a `parking_lot` lock. Simulated threads hold such a lock only between two
/// yield points.
#[derive(Default)]
pub(crate) struct LockEvent(parking_lot::Condvar);

impl LockEvent {
    pub(crate) const fn new() -> Self {
        LockEvent(parking_lot::Condvar::new())
    }

    fn key(&self) -> WaitKey {
        WaitKey::Event(std::ptr::from_ref(self).addr())
    }

    /// Releases the lock while waiting for the event, at most for `time`. Returns whether that time
    /// has passed.
    pub(crate) fn wait<'a, T>(
        &self,
        lock: &'a parking_lot::Mutex<T>,
        mut guard: parking_lot::MutexGuard<'a, T>,
        time: Option<Duration>,
        at: &'static Location<'static>,
    ) -> (parking_lot::MutexGuard<'a, T>, bool) {
        match Here::get() {
            None => {
                let timed_out = self.wait_really(&mut guard, time);
                (guard, timed_out)
            }
            Some(here) => {
                drop(guard);
                let woken = self.wait_simulated(&here, time, at);
                (lock.lock(), woken != Woken::Notified)
            }
        }
    }

    fn wait_really<T>(
        &self,
        guard: &mut parking_lot::MutexGuard<'_, T>,
        time: Option<Duration>,
    ) -> bool {
        match time {
            None => {
                self.0.wait(guard);
                false
            }
            Some(time) => self.0.wait_for(guard, time).timed_out(),
        }
    }

    fn wait_simulated(
        &self,
        here: &Here,
        time: Option<Duration>,
        at: &'static Location<'static>,
    ) -> Woken {
        here.wait(self.key(), time.map(|time| here.core.now() + time), at)
    }

    /// Wakes all waiting threads. In a simulation, the caller continues.
    pub(crate) fn notify_all(&self) {
        match Here::get() {
            None => drop(self.0.notify_all()),
            Some(here) => here.wake_all(self.key()),
        }
    }

    fn notify_one(&self) {
        match Here::get() {
            None => drop(self.0.notify_one()),
            Some(here) => here.wake_one(self.key()),
        }
    }
}

/// Whether a limit of time has passed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitTimeoutResult(bool);

impl WaitTimeoutResult {
    /// Returns whether the wait has timed out.
    pub fn timed_out(self) -> bool {
        self.0
    }
}

/// Threads that wait for a change of the content of a [`Mutex`].
#[derive(Default)]
pub struct Condvar(LockEvent);

impl Condvar {
    /// Creates a condition variable without waiting threads.
    pub const fn new() -> Self {
        Condvar(LockEvent::new())
    }

    /// Releases the lock, waits for a notification, and acquires the lock again.
    #[track_caller]
    pub fn wait<'a, T>(&self, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.wait_at(guard, None, Location::caller()).0
    }

    /// Like [`Condvar::wait`], at most for `time`.
    #[track_caller]
    pub fn wait_timeout<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Duration,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let (guard, timed_out) = self.wait_at(guard, Some(time), Location::caller());
        (guard, WaitTimeoutResult(timed_out))
    }

    /// Waits while `holds`.
    #[track_caller]
    pub fn wait_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        mut holds: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'a, T> {
        let at = Location::caller();
        while holds(&mut guard) {
            guard = self.wait_at(guard, None, at).0;
        }
        guard
    }

    /// Waits while `holds`, at most for `time`.
    #[track_caller]
    pub fn wait_timeout_while<'a, T>(
        &self,
        mut guard: MutexGuard<'a, T>,
        time: Duration,
        mut holds: impl FnMut(&mut T) -> bool,
    ) -> (MutexGuard<'a, T>, WaitTimeoutResult) {
        let at = Location::caller();
        let begin = Instant::now();
        loop {
            if !holds(&mut guard) {
                return (guard, WaitTimeoutResult(false));
            }
            let left = time.saturating_sub(begin.elapsed());
            if left.is_zero() {
                return (guard, WaitTimeoutResult(true));
            }
            guard = self.wait_at(guard, Some(left), at).0;
        }
    }

    /// Returns whether the time has passed.
    fn wait_at<'a, T>(
        &self,
        guard: MutexGuard<'a, T>,
        time: Option<Duration>,
        at: &'static Location<'static>,
    ) -> (MutexGuard<'a, T>, bool) {
        let lock = guard.lock;
        match Here::get() {
            None => {
                let MutexGuard { mut inner, .. } = guard;
                let timed_out = self.0.wait_really(&mut inner, time);
                (lock.held(inner, None), timed_out)
            }
            Some(here) => {
                drop(guard);
                let woken = self.0.wait_simulated(&here, time, at);
                loop {
                    if let Some(inner) = lock.0.try_lock() {
                        return (lock.held(inner, Some(here)), woken != Woken::Notified);
                    }
                    here.wait(lock.key(), None, at);
                }
            }
        }
    }

    /// Wakes one of the waiting threads.
    #[track_caller]
    pub fn notify_one(&self) {
        self.0.notify_one();
        self.step(Location::caller());
    }

    /// Wakes all waiting threads.
    #[track_caller]
    pub fn notify_all(&self) {
        self.0.notify_all();
        self.step(Location::caller());
    }

    fn step(&self, at: &'static Location<'static>) {
        if let Some(here) = Here::get() {
            here.step(at);
        }
    }
}

impl fmt::Debug for Condvar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Condvar")
    }
}
