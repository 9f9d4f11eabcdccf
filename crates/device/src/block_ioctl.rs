//! Numbers that the kernel reports about a block device.

use std::ffi::c_uint;
use std::os::fd::AsFd;

use forebay_core::Sectors;
use rustix::ioctl::{Getter, Opcode, ioctl, opcode};

/// `BLKIOMIN`, `BLKIOOPT`, `BLKPBSZGET` and `BLKROGET`.
const IO_MIN: Opcode = opcode::none(0x12, 120);
const IO_OPT: Opcode = opcode::none(0x12, 121);
const PHYSICAL: Opcode = opcode::none(0x12, 123);
const READ_ONLY: Opcode = opcode::none(0x12, 94);

/// Requests a number; `None` if the kernel does not report it.
fn number<const OPCODE: Opcode>(fd: impl AsFd) -> Option<c_uint> {
    // SAFETY: each opcode that this is called with has the kernel write one `int` or
    // `unsigned int`, and any bytes are one.
    let request = unsafe { Getter::<OPCODE, c_uint>::new() };
    // SAFETY: as above. On a descriptor of anything but a block device the request fails.
    unsafe { ioctl(fd, request) }.ok()
}

/// Returns whether the kernel refuses writes to a block device; `false` if it is unknown, because a
/// write will show it.
pub(crate) fn is_read_only(fd: impl AsFd) -> bool {
    number::<READ_ONLY>(fd).is_some_and(|protected| protected != 0)
}

/// Returns the sizes of a block device with these logical blocks, in bytes.
pub(crate) fn sectors(fd: impl AsFd, logical: u32) -> Sectors {
    let fd = fd.as_fd();
    let physical = number::<PHYSICAL>(fd).unwrap_or(0);
    let (io_min, io_opt) = (number::<IO_MIN>(fd), number::<IO_OPT>(fd));
    Sectors::told(logical, physical, io_min.unwrap_or(0), io_opt.unwrap_or(0))
}
