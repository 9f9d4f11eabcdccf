//! Numbers and structures of the driver, as in `linux/ublk_cmd.h`. All of them are in the byte
//! order of the machine.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Bits of [`DeviceInfo::flags`].
pub mod flag {
    /// The device outlives its server.
    pub const USER_RECOVERY: u64 = 1 << 3;
    /// The next server gets the requests that the former server has not answered.
    pub const USER_RECOVERY_REISSUE: u64 = 1 << 4;
    /// Commands have the numbers of ioctls.
    pub const CMD_IOCTL_ENCODE: u64 = 1 << 6;
    /// Each tag may have a thread of its own. Linux 6.16 and later grant this without a request for
    /// it.
    pub const PER_IO_DAEMON: u64 = 1 << 13;
}

/// Values of [`DeviceInfo::state`].
pub mod state {
    /// The device has no block device.
    pub const DEAD: u16 = 0;
    /// The device is served.
    pub const LIVE: u16 = 1;
    /// The server has ended, and requests wait for the next server.
    pub const QUIESCED: u16 = 2;
    /// The server has ended, and requests fail.
    pub const FAIL_IO: u16 = 3;
}

/// `struct ublksrv_ctrl_dev_info`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DeviceInfo {
    /// Number of queues.
    pub queues: u16,
    /// Requests in flight of a queue.
    pub depth: u16,
    /// See [`state`].
    pub state: u16,
    /// Reserved.
    pub pad0: u16,
    /// Bytes of the longest read or write.
    pub max_io_bytes: u32,
    /// The number of the device; `u32::MAX`: any.
    pub number: u32,
    /// ID of the process that serves the device.
    pub pid: i32,
    /// Reserved.
    pub pad1: u32,
    /// See [`flag`].
    pub flags: u64,
    /// A number that the kernel stores without using it: the mark of the server.
    pub mark: u64,
    /// Set by the kernel.
    pub owner: [u32; 2],
    /// Reserved.
    pub reserved: [u64; 2],
}

/// Bits of [`BasicParams::attributes`].
pub mod attribute {
    /// Writes are refused.
    pub const READ_ONLY: u32 = 1 << 0;
    /// Writes are durable after a flush only.
    pub const VOLATILE_CACHE: u32 = 1 << 2;
    /// A single write can be durable by itself.
    pub const FUA: u32 = 1 << 3;
}

/// Bits of [`Params::types`].
pub mod param {
    /// [`super::Params::basic`] is set.
    pub const BASIC: u32 = 1 << 0;
    /// [`super::Params::discard`] is set.
    pub const DISCARD: u32 = 1 << 1;
}

/// `struct ublk_param_basic`. Shifts are base-two logarithms of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct BasicParams {
    /// See [`attribute`].
    pub attributes: u32,
    /// The unit of requests.
    pub logical_shift: u8,
    /// The unit of writes that need no read first, as a power of two.
    pub physical_shift: u8,
    /// The best size of requests.
    pub best_shift: u8,
    /// The least good size of requests.
    pub least_shift: u8,
    /// Sectors of the longest read or write.
    pub max_sectors: u32,
    /// Sectors between boundaries that no request crosses; 0: none.
    pub chunk_sectors: u32,
    /// Sectors of the device.
    pub sectors: u64,
    /// Not used.
    pub boundary_mask: u64,
}

/// `struct ublk_param_discard`.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct DiscardParams {
    /// Bytes from the start of the device to the first unit.
    pub alignment: u32,
    /// Bytes of the unit of discards.
    pub granularity: u32,
    /// Sectors of the longest discard.
    pub max_discard_sectors: u32,
    /// Sectors of the longest write of zeroes.
    pub max_zeroes_sectors: u32,
    /// Ranges of a discard: 1.
    pub max_segments: u16,
    /// Reserved.
    pub reserved: u16,
}

/// `struct ublk_params`, as far as it is used.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Params {
    /// Bytes of this structure.
    pub len: u32,
    /// See [`param`].
    pub types: u32,
    /// The device.
    pub basic: BasicParams,
    /// Discards and zeroes.
    pub discard: DiscardParams,
    /// Reserved, and not counted in `len`.
    pub pad: u32,
}

/// Bytes of [`Params`] that the kernel reads.
pub const PARAMS_LEN: u32 = 60;

/// Operations, in the low 8 bits of [`Descriptor::op_flags`].
pub mod op {
    /// Read.
    pub const READ: u32 = 0;
    /// Write.
    pub const WRITE: u32 = 1;
    /// Flush.
    pub const FLUSH: u32 = 2;
    /// Discard.
    pub const DISCARD: u32 = 3;
    /// Write zeroes.
    pub const WRITE_ZEROES: u32 = 5;
}

/// Flags of [`Descriptor::op_flags`].
pub mod io_flag {
    /// The effect must be durable before the answer.
    pub const FUA: u32 = 1 << 13;
    /// Zeroes must stay allocated.
    pub const NOUNMAP: u32 = 1 << 15;
}

/// `struct ublksrv_io_desc`: one request.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct Descriptor {
    /// See [`op`] and [`io_flag`].
    pub op_flags: u32,
    /// Length in sectors.
    pub sectors: u32,
    /// The first sector.
    pub start: u64,
    /// The buffer of the tag.
    pub address: u64,
}

const _: () = {
    assert!(size_of::<DeviceInfo>() == 64 && size_of::<BasicParams>() == 32);
    assert!(size_of::<DiscardParams>() == 20 && size_of::<Params>() == 64);
    assert!(size_of::<Descriptor>() == forebay_device::ublk::DESCRIPTOR);
};
