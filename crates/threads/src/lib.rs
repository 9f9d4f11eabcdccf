//! Threads, locks, channels and time of the control plane, which a simulation can replace.
//!
//! Outside of a simulation, everything here is provided by the operating system: threads, locks,
//! the monotonic clock. The overhead is a read of a thread-local variable. Inside
//! [`Simulation::run`] the same code runs on threads of which exactly one runs at a time, in
//! virtual time. Wherever a thread starts another, waits, takes a lock, sends, receives or ends,
//! the simulation decides which thread continues: by a seed, or by a list of decisions. A run can
//! therefore be repeated, and all orders of a small one can be tried.
//!
//! The interface is that of the standard library, with two differences: a lock ignores that a
//! thread panicked while it was held, and a thread has a name.
//!
//! - [`thread`]: starting, joining, sleeping, parking
//! - [`sync`]: locks and condition variables
//! - [`mod@channel`]: queues between threads
//! - [`time`]: the monotonic clock
//! - [`unwind`]: catching panics
//! - [`simulation`]: running code in a simulation, and the result
//! - [`failure`]: failures of a simulation
//! - `scheduler`: the turns of threads
//! - [`schedule`]: the choice of the next thread
#![forbid(unsafe_code)]
#![allow(clippy::disallowed_methods, reason = "this is where threads and time come from")]

pub mod channel;
pub mod failure;
pub mod schedule;
mod scheduler;
pub mod simulation;
pub mod sync;
#[cfg(test)]
mod tests;
pub mod thread;
pub mod time;
pub mod unwind;

pub use channel::{Receiver, Sender, SyncSender, channel, sync_channel};
pub use failure::{Failure, WaitPoint};
pub use schedule::{Decisions, Enumeration, Plan};
pub use simulation::{RunOutcome, Simulation};
pub use sync::{Condvar, Mutex, MutexGuard, WaitTimeoutResult};
pub use thread::{JoinHandle, Parker, Unparker, sleep, spawn, step, yield_now};
pub use time::Instant;
pub use unwind::catch;
