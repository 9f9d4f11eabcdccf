//! A lane: the executor, timers and wake-ups of one thread.
//!
//! A request runs to its end on the lane where it arrived. Code that waits for a device or a timer
//! is a task on that lane; nothing moves to another thread. The same code runs under a simulator,
//! which drives several lanes from one thread and decides the order of events.
//!
//! - [`executor`]: tasks and their wake-ups
//! - [`gate`]: one task at a time, or many tasks within one
//! - [`sleep`], `timer`: sleeping on the lane's clock
//! - [`memory`]: the daemon's memory limit, and its use
//! - [`request_memory`]: the part of that limit that the clients of one lane use
//! - [`notify`]: waiting for events of other lanes
//! - [`off_lane`]: work that may wait, in a separate thread
//! - [`signal`]: a flag between two tasks
//! - [`thread`]: a lane on its own thread
//! - [`turns`]: long work in steps
//! - [`workers`]: futures that do one job after another
#![forbid(unsafe_code)]

pub mod executor;
pub mod gate;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
pub mod memory;
pub mod notify;
pub mod off_lane;
pub mod request_memory;
pub mod signal;
pub mod sleep;
#[cfg(target_os = "linux")]
pub mod thread;
mod timer;
pub mod turns;
pub mod workers;

pub use executor::{Lane, LaneId, LaneRemote, Watched, yield_now};
pub use gate::{Gate, GateGuard, concurrently, either, join_all};
pub use memory::{MemoryBudget, MemoryHold, MemoryUse, MemoryWait, OverLimit, TooLow};
pub use notify::{Notified, Notify};
pub use request_memory::LaneMemory;
pub use signal::Signal;
#[cfg(target_os = "linux")]
pub use thread::{LaneLoop, LaneOptions, LaneThread, MonotonicClock};
pub use workers::{JobInbox, Pool};
