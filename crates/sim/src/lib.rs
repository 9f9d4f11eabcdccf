//! A deterministic simulator of the whole engine.
//!
//! A seed makes a world: a cache device and some origins that are simulated, one to three lanes,
//! clients that ask for random things, operators, and trouble. One thread decides what happens
//! next, so the same seed takes the same steps. An oracle knows which values every sector may
//! have and judges each answer, across crashes, restarts and faults.
//!
//! - [`run`]: the life of one world; [`world`]: what it consists of; [`profile`] with [`features`]:
//!   what a seed makes of it; `schedule`: what happens next
//! - [`disk`] over [`image`], with [`queue`], `effect` and [`faults`]: disks that reorder, forget, tear and fail
//! - [`oracle`] over [`history`], with [`stamp`]: what may be read where
//! - [`clients`]: who asks; [`system`]: who is asked, which is [`engine`] or [`reference`], the simplest
//!   system that is right
//! - [`presence`]: volumes that are not always there
//! - `decay`: what rots on the cache device, and recoveries that meet read errors
//! - `growth`: origins that become larger
//! - [`ledger`]: what is known of a cache outside of it, or lost with the state
//! - `rot`: damage to the log while the system is down
//! - `external`: who touches the origins while the system is down
//! - `timely`: origins that hang, and what must not take long all the same
//! - [`trace`], [`shared`], [`clock`]: what all of these share
//! - [`runner`], [`report`]: many seeds, and what came out
#![forbid(unsafe_code)]

pub mod clients;
pub mod clock;
mod decay;
pub mod disk;
mod effect;
pub mod engine;
mod external;
pub mod faults;
pub mod features;
mod growth;
pub mod history;
pub mod image;
pub mod ledger;
pub mod oracle;
pub mod order;
pub mod presence;
pub mod profile;
pub mod queue;
pub mod reference;
pub mod report;
pub mod rot;
pub mod run;
pub mod runner;
mod schedule;
pub mod shared;
pub mod stamp;
pub mod system;
mod timely;
pub mod trace;
pub mod world;
