//! Load in real time, by fio: on other caches, on a device of the user's own, on modelled devices.
//!
//! - `device`: users and content of a file or block device
//! - `peers`: other caches on real devices, side by side with this one
//! - `run`: the reports' jobs on any device

mod device;
pub(crate) mod peers;
pub(crate) mod run;
