//! The kernel's side of a file that this process serves: descriptors of `/dev/fuse`.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use rustix::fs::OFlags;
use rustix::ioctl::{Opcode, Setter, ioctl, opcode};

mod entry;

pub use entry::{ENTRY_BYTES, FuseEntry, is_enabled, queues};

/// `FUSE_DEV_IOC_CLONE`: makes a descriptor serve the connection of another one.
const CLONE: Opcode = opcode::read::<u32>(229, 0);

/// Opens `/dev/fuse` in non-blocking mode; a file system can be mounted with the descriptor.
///
/// # Errors
/// The device does not exist, or may not be used.
pub fn open_connection() -> io::Result<OwnedFd> {
    open(Path::new("/dev/fuse"))
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::NONBLOCK.bits().cast_signed();
    let file: File = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?;
    Ok(file.into())
}

/// Opens a further descriptor for the connection of a mounted file system. Each descriptor delivers
/// requests of its own, and takes the replies to these.
///
/// # Errors
/// Nothing is mounted with `connection`, or the limit of descriptors is reached.
pub fn clone_connection(connection: impl AsFd) -> io::Result<OwnedFd> {
    let own = open_connection()?;
    let source = connection.as_fd().as_raw_fd().cast_unsigned();
    // SAFETY: for this opcode the kernel reads a `u32`, the number of a descriptor.
    let request = unsafe { Setter::<CLONE, u32>::new(source) };
    // SAFETY: the request is made for this kind of descriptor. On any other one its number means
    // nothing, and `open` has just opened this one.
    unsafe { ioctl(&own, request)? };
    Ok(own)
}

/// Makes the kernel deliver every request again that was taken from a connection and not answered,
/// because another server continues after the first one has ended. Needs Linux 6.9.
///
/// # Errors
/// The kernel does not support it, or the connection has ended.
pub fn resend(connection: impl AsFd) -> io::Result<()> {
    /// `FUSE_NOTIFY_RESEND`.
    const RESEND: i32 = 7;

    // `struct fuse_out_header` of a notice: its length, its number, and no request.
    let mut message = [0; 16];
    message[..4].copy_from_slice(&16_u32.to_ne_bytes());
    message[4..8].copy_from_slice(&RESEND.to_ne_bytes());
    match rustix::io::write(connection, &message)? {
        16 => Ok(()),
        _ => Err(io::ErrorKind::InvalidData.into()),
    }
}
