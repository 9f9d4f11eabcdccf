//! The atomics and the lock used by the protocols between lanes.
//!
//! With the feature `loom` they come from [loom], and the tests in the `loom_tests` modules explore
//! every order that the memory model allows. Without it this module costs nothing.
//!
//! [loom]: https://docs.rs/loom

#[cfg(not(feature = "loom"))]
pub use {
    parking_lot::{Mutex, MutexGuard},
    std::sync::atomic,
};

#[cfg(feature = "loom")]
pub use {
    self::modelled::Mutex,
    loom::{
        self,
        sync::{MutexGuard, atomic},
    },
};

/// A fence between a sequentially consistent exchange and the thread's next sequentially consistent
/// load. The C++ memory model orders the two already, so this is no instruction. Loom treats both
/// as acquire and release, and needs a real fence.
#[inline]
pub fn fence_between_seq_cst() {
    #[cfg(feature = "loom")]
    atomic::fence(atomic::Ordering::SeqCst);
}

#[cfg(feature = "loom")]
mod modelled {
    use std::sync::PoisonError;

    use loom::sync::MutexGuard;

    /// Loom's lock with the signatures of `parking_lot`.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// Creates an unlocked lock.
        pub fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Blocks until the lock is held.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
