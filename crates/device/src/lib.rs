//! The only doors to disks, and the only crate below the front ends that contains unsafe code.
//!
//! - [`api`]: what a device is, what can be asked of it, how an operation ends
//! - [`buffer`]: aligned buffers that own their bytes
//! - `faulty`: a device that fails, delays, hangs, tears and forgets on command, for tests
//! - [`hint`]: what the CPU is told about how memory will be used
//! - `holes`: whether a file or block device can forget a range
//! - `identity`: what tells a file or block device from all others, also after a restart
//! - [`log_buffer`]: the RAM image of a segment that is being filled
//! - [`mod@file`]: regular files and block devices
//! - [`model`]: modelled disks
//! - [`open`]: what a path is, who else uses it
//! - [`ram`]: a device in RAM
//! - [`ring`]: one lane's io_uring
//! - [`signature`]: what is on a device already
//! - [`spec`]: the one way to write down a device
pub mod api;
pub mod buffer;
mod faulty;
pub mod file;
pub mod hint;
mod holes;
mod identity;
pub mod log_buffer;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
mod memory;
pub mod model;
pub mod open;
pub mod ram;
pub mod ring;
pub mod signature;
pub mod spec;
mod table;
#[cfg(test)]
mod testing;
pub mod watch;

pub use api::{
    Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceOp, DeviceQueue, IoData, OpId, Queue,
    QueueContext,
};
pub use buffer::{IoBuf, keep_buffers};
pub use file::FileDevice;
pub use log_buffer::{Claim, LogBuffer};
pub use open::{Access, DeviceIdentity, OpenError, OpenErrorKind};
pub use ram::RamDevice;
pub use ring::Ring;
pub use spec::{DeviceSpec, SpecError};
pub use watch::UnderWay;
