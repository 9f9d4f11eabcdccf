//! The only access to the disks of this machine. Besides `rbd`, no other crate contains unsafe
//! code.
//!
//! - [`api`]: devices, their operations, and the results of operations
//! - [`blkid`]: marks of other systems, through libblkid
//! - `block_ioctl`: numbers that the kernel reports about a block device
//! - [`buffer`]: aligned buffers that own their bytes
//! - `bus_error`: survives the loss of memory that another process shares with this one
//! - `data`: data to write
//! - `displaced`: whether the path of an open device still leads to it
//! - `evidence`: the system's evidence of writes to a file or block device
//! - `faulty`: a device that fails, delays, hangs, tears and loses writes on command, for tests
//! - [`fuse`]: the kernel's side of a file that this process serves
//! - [`file_extents()`]: the extents of a file on its device
//! - [`hint`]: hints to the CPU about future memory accesses
//! - `holes`: holes of a file; whether a file or block device can discard a range
//! - `identity`: the identity of a file or block device, stable across restarts
//! - [`inherited`]: descriptors that the previous program of this process has left open
//! - [`loop_device`]: loop devices of the kernel
//! - [`log_buffer`]: the RAM image of a segment that is being filled
//! - [`mod@file`]: regular files and block devices
//! - [`model`]: modelled disks
//! - [`remote`]: names of devices on other machines: [`nbd_uri`], exports of NBD servers;
//!   [`rbd_name`], images of Ceph
//! - [`open`]: opens a path; checks its type and its other users
//! - `peer`: the process at the other end of a unix socket
//! - [`ram`]: a device in RAM
//! - [`ring`]: one lane's io_uring
//! - `rotational`: whether a file or block device has a head that must move
//! - [`shared_memory`]: memory shared with another process
//! - [`signature`]: existing content of a device; [`partitions`]: the starts of its partitions, and
//!   the kernel's view of them
//! - [`spec`]: the syntax of device specifications
//! - [`ublk`]: the kernel's side of block devices that this process serves
//! - [`words`]: large memory of atomic words
//! - `write_protection`: whether a file or block device accepts writes
pub mod api;
pub mod blkid;
mod block_ioctl;
pub mod buffer;
mod bus_error;
mod data;
mod displaced;
mod evidence;
mod faulty;
pub mod file;
mod file_extents;
pub mod fuse;
pub mod hint;
mod holes;
mod identity;
pub mod inherited;
pub mod log_buffer;
#[cfg(all(test, feature = "loom"))]
mod loom_tests;
pub mod loop_device;
mod memory;
pub mod meter;
pub mod model;
pub mod nbd_uri;
pub mod open;
pub mod partitions;
mod peer;
pub mod ram;
pub mod rbd_name;
pub mod remote;
pub mod ring;
mod rotational;
pub mod shared_memory;
pub mod signature;
pub mod spec;
mod table;
#[cfg(test)]
mod testing;
pub mod ublk;
pub mod watch;
pub mod words;
mod write_protection;

pub use api::{
    BoxedTask, Claiming, Device, DeviceDone, DeviceError, DeviceErrorKind, DeviceExtent, DeviceOp,
    DeviceQueue, OpId, Queue, QueueContext, Tasks,
};
pub use buffer::{IoBuf, keep_buffers};
pub use data::IoData;
pub use displaced::{Displaced, DisplacedKind};
pub use file::FileDevice;
pub use file_extents::file_extents;
pub use log_buffer::{Claim, LogBuffer};
pub use memory::Area;
pub use meter::{Meter, OpCounts, OpKind};
pub use nbd_uri::{NbdServer, NbdUri};
pub use open::{Access, DeviceIdentity, OpenError, OpenErrorKind};
pub use peer::{peer_process, peer_user};
pub use ram::RamDevice;
pub use rbd_name::RbdName;
pub use remote::RemoteName;
pub use ring::Ring;
pub use shared_memory::{Outside, SharedMemory};
pub use spec::{DeviceSpec, SpecError};
pub use table::OpTable;
pub use watch::OpsInFlight;
pub use words::Words;
