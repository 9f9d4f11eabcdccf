//! Loop devices of the kernel: block devices on top of a file.

use std::ffi::c_void;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

use forebay_host::files::number;
use forebay_host::sysfs::number_text;
use rustix::io::Errno;
use rustix::ioctl::{Getter, Ioctl, IoctlOutput, NoArg, Opcode, Setter, ioctl};

/// `LOOP_CTL_GET_FREE`.
const GET_FREE: Opcode = 0x4c82;
/// `LOOP_CONFIGURE`, since Linux 5.8.
const CONFIGURE: Opcode = 0x4c0a;
/// `LOOP_GET_STATUS64`.
const GET_STATUS: Opcode = 0x4c05;
/// `LOOP_CLR_FD`.
const CLEAR: Opcode = 0x4c01;

/// `LO_FLAGS_READ_ONLY`.
const READ_ONLY: u32 = 1;
/// `LO_FLAGS_DIRECT_IO`.
const DIRECT_IO: u32 = 16;

/// Attempts to get a free device before another process does.
const ATTEMPTS: u32 = 64;

/// Bytes of the name that the kernel keeps; the last one is 0.
const NAME: usize = 64;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; NAME],
    crypt_name: [u8; NAME],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

/// `struct loop_config`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Config {
    fd: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// A request that returns a number.
struct GetFree;

// SAFETY: the kernel takes no argument with this opcode and returns a number, which is how the
// output is read.
unsafe impl Ioctl for GetFree {
    type Output = u32;

    const IS_MUTATING: bool = false;

    fn opcode(&self) -> Opcode {
        GET_FREE
    }

    fn as_ptr(&mut self) -> *mut c_void {
        std::ptr::null_mut()
    }

    unsafe fn output_from_ptr(out: IoctlOutput, _: *mut c_void) -> rustix::io::Result<u32> {
        u32::try_from(out).map_err(|_| Errno::INVAL)
    }
}

/// The number of a loop device.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LoopNumber(pub u32);

impl LoopNumber {
    /// Returns the path of the device.
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.0))
    }

    /// Returns its directory in sysfs.
    pub fn sysfs(self) -> PathBuf {
        PathBuf::from(format!("/sys/block/loop{}", self.0))
    }

    /// Returns the sequence number of the device, which changes whenever it gets a file and is
    /// never reused. Kernels before 5.15 have none.
    pub fn sequence(self) -> Option<u64> {
        number(self.sysfs().join("diskseq"))
    }

    /// Returns whether the device has the file with which it got this sequence number.
    pub fn is(self, sequence: Option<u64>) -> bool {
        self.sequence() == sequence && self.sysfs().join("loop/backing_file").exists()
    }
}

/// How to attach a file.
#[derive(Clone, Copy, Debug)]
pub struct LoopOptions<'a> {
    /// Logical sectors in bytes: a power of two from 512 to 4096.
    pub sector: u32,
    /// Refuse writes.
    pub read_only: bool,
    /// The path of the file, for display; it may be cut.
    pub name: &'a Path,
}

/// Attaches a file, with direct I/O, to a free loop device. Calls `before` with the number of the
/// device before the file is attached, and `undo` if another process was faster.
///
/// # Errors
/// The machine has no loop devices, or they may not be used, or the file does not support direct
/// I/O.
pub fn attach(
    file: impl AsFd,
    options: LoopOptions<'_>,
    before: impl Fn(LoopNumber),
    undo: impl Fn(LoopNumber),
) -> io::Result<LoopNumber> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut file_name = [0; NAME];
    let bytes = options.name.as_os_str().as_encoded_bytes();
    for (to, from) in file_name.iter_mut().take(NAME - 1).zip(bytes) {
        *to = *from;
    }
    let config = Config {
        fd: file.as_fd().as_raw_fd().cast_unsigned(),
        block_size: options.sector,
        info: Info {
            device: 0,
            inode: 0,
            rdevice: 0,
            offset: 0,
            size_limit: 0,
            number: 0,
            encrypt_type: 0,
            encrypt_key_size: 0,
            flags: DIRECT_IO | if options.read_only { READ_ONLY } else { 0 },
            file_name,
            crypt_name: [0; NAME],
            encrypt_key: [0; 32],
            init: [0; 2],
        },
        reserved: [0; 8],
    };
    for _ in 0..ATTEMPTS {
        // SAFETY: the opcode belongs to this device, and `GetFree` says how its result is read.
        let number = LoopNumber(unsafe { ioctl(&control, GetFree)? });
        let device = open(number, true)?;
        before(number);
        // SAFETY: for this opcode the kernel reads a `struct loop_config`, whose layout `Config`
        // has.
        let request = unsafe { Setter::<CONFIGURE, Config>::new(config) };
        // SAFETY: the request is made for loop devices, and this is one. The descriptor in it stays
        // open during the call; the kernel takes a share of its own.
        match unsafe { ioctl(&device, request) } {
            Ok(()) => return Ok(number),
            // Another process was faster.
            Err(Errno::BUSY) => undo(number),
            Err(error) => {
                undo(number);
                return Err(error.into());
            }
        }
    }
    Err(Errno::BUSY.into())
}

/// Returns the number of the filesystem that has the file of a loop device, or of a partition of
/// one, and the file's inode.
///
/// # Errors
/// The device has no file, or may not be used.
pub(crate) fn backing(device: BorrowedFd<'_>) -> io::Result<(u64, u64)> {
    status(device).map(|info| (info.device, info.inode))
}

/// Returns the state of a loop device.
fn status(device: BorrowedFd<'_>) -> io::Result<Info> {
    // SAFETY: for this opcode the kernel writes a `struct loop_info64`, whose layout `Info` has,
    // and any bytes are an `Info`.
    let request = unsafe { Getter::<GET_STATUS, Info>::new() };
    // SAFETY: the request is made for loop devices, and this is one.
    Ok(unsafe { ioctl(device, request)? })
}

/// Returns the number of the filesystem with the file of a loop device, like `0:43`, and the
/// sequence number of the device: see [`LoopNumber::sequence`]. Both belong to the same file,
/// whatever other processes do.
///
/// # Errors
/// The device has no file, or may not be used.
pub fn file_system(number: LoopNumber) -> io::Result<(String, Option<u64>)> {
    // While the descriptor is open, the device keeps its file.
    let device = open(number, false)?;
    let info = status(device.as_fd())?;
    Ok((number_text(info.device), number.sequence()))
}

/// Detaches a loop device from its file; if it has users, the kernel does so when the last one is
/// gone. With `sequence`, only if the device still has this number, see [`LoopNumber::sequence`].
///
/// # Errors
/// The device has no file or another one (`NXIO`), or may not be used.
pub fn detach(number: LoopNumber, sequence: Option<u64>) -> io::Result<()> {
    // While the descriptor is open, the device keeps its file.
    let device = open(number, false)?;
    if sequence.is_some() && number.sequence() != sequence {
        return Err(Errno::NXIO.into());
    }
    // SAFETY: this opcode takes no argument.
    let request = unsafe { NoArg::<CLEAR>::new() };
    // SAFETY: the request is made for loop devices, and this is one.
    unsafe { ioctl(&device, request)? };
    Ok(())
}

fn open(number: LoopNumber, write: bool) -> io::Result<File> {
    OpenOptions::new().read(true).write(write).open(number.path())
}
