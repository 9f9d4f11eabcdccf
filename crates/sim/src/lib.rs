//! A deterministic simulator of the whole engine.
//!
//! A seed determines a world: a simulated cache device and origins, one to three lanes, clients
//! with random operations, operators, and faults. One thread decides the order of events, so the
//! same seed takes the same steps. An oracle knows the possible values of every sector and judges
//! each answer, across crashes, restarts and faults.
//!
//! - [`run`]: the life of one world; [`world`]: its parts; [`profile`] with [`features`]: the
//!   choices that a seed makes; `schedule`: the order of events
//! - [`disk`] over [`image`], with [`queue`], `effect` and [`faults`]: disks that reorder, lose,
//!   tear and fail
//! - [`oracle`] over [`history`], with [`stamp`]: the admissible values of every sector
//! - [`clients`]: the workload; [`system`]: the system under test, which is [`engine`] or
//!   [`mod@reference`], the simplest correct system
//! - [`presence`]: volumes that are stopped, deleted and recreated
//! - `decay`: decay of the cache device, and recoveries with read errors
//! - `growth`: origins that grow
//! - [`ledger`]: the daemon's notes outside of the cache, which may be lost
//! - `protected`: origins that refuse writes for a while
//! - `remote`: origins on other machines
//! - `rot`: damage to the log while the system is down
//! - `external`: external writers to the origins while the system is down
//! - `timely`: origins that hang, and time limits for everything else
//! - [`trace`], [`shared`], [`clock`]: shared by all of these
//! - [`runner`], [`report`]: many seeds, and their results
#![forbid(unsafe_code)]

pub mod clients;
pub mod clock;
mod decay;
pub mod disk;
mod displaced;
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
mod protected;
pub mod queue;
mod ram;
pub mod reference;
mod remote;
pub mod report;
pub mod rot;
pub mod run;
pub mod runner;
mod schedule;
mod sectors;
mod settings;
pub mod shared;
pub mod stamp;
pub mod system;
mod timely;
pub mod trace;
pub mod violation;
pub mod world;
