//! Facts about this host from `/proc` and `/sys`, and the paths of unix sockets. Lanes must not
//! call this crate, because reading a file may block.
//!
//! - [`files`]: the small files in which the kernel reports its state
//! - [`sysfs`]: block devices; [`uevent`]: makes udev look at one again
//! - [`mounts`]: mounts and swap areas; [`processes`]: numbers and names of processes
//! - [`users`]: users of a block device
//! - [`memory`]: memory of the machine and of control groups
//! - [`unix_socket`]: a listening socket whose path is recreated
#![forbid(unsafe_code)]

pub mod files;
pub mod memory;
pub mod mounts;
pub mod processes;
pub mod sysfs;
pub mod uevent;
pub mod unix_socket;
pub mod users;
