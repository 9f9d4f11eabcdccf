//! The atomics and the lock of the protocols between lanes.
//!
//! With the feature `loom` they are those of [loom], with which the tests in the `loom_tests` modules
//! go through every order that the memory model allows. Without it this module costs nothing.
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

#[cfg(feature = "loom")]
mod modelled {
    use std::sync::PoisonError;

    use loom::sync::MutexGuard;

    /// Loom's lock with the signatures of `parking_lot`.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(loom::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A lock that nobody holds.
        pub fn new(value: T) -> Self {
            Mutex(loom::sync::Mutex::new(value))
        }

        /// Waits for its turn.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(PoisonError::into_inner)
        }
    }
}
