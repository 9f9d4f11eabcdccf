//! The kernel's side of block devices that this process serves by ublk: control commands, commands
//! of a queue, and the memory in which the kernel describes requests.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::{Duration, Instant};

use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue, types};
use rustix::io::Errno;
use rustix::ioctl::opcode as encoded;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::buffer::IoBuf;
use crate::memory::PAGE;

/// The letter of the driver in the numbers of its commands.
const GROUP: u8 = b'u';
/// Bytes of `struct ublksrv_ctrl_cmd`.
const CONTROL: usize = 32;
/// Bytes of `struct ublksrv_io_cmd`.
const QUEUE: usize = 16;
/// Bytes of `struct ublksrv_io_desc`.
pub const DESCRIPTOR: usize = 24;
/// Maximum number of requests in flight of a queue; determines the offset of a queue's descriptors
/// in the file.
pub const MOST_TAGS: u16 = 4096;

/// Returns the number of a command, which has 32 bits.
#[allow(
    clippy::unnecessary_cast,
    reason = "it is wider where rustix makes system calls through libc"
)]
fn narrow(opcode: rustix::ioctl::Opcode) -> u32 {
    opcode as u32
}

/// A command to the driver, on a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlCommand {
    /// Get the facts about a device: `struct ublksrv_ctrl_dev_info`.
    GetInfo,
    /// Add a device with these properties; the driver returns the granted ones.
    Add,
    /// Delete a device, and wait until that is done.
    Delete,
    /// Delete a device when its last user is gone.
    DeleteLater,
    /// Make the block device, which the process with this ID serves. Waits until all tags are
    /// fetched.
    Start(u32),
    /// Remove the block device; its users get errors.
    Stop,
    /// Set `struct ublk_params`.
    SetParams,
    /// Start to take over a device whose server has ended.
    StartRecovery,
    /// Let the process with this ID serve the device from now on. Waits like `Start`.
    EndRecovery(u32),
}

impl ControlCommand {
    /// Returns the number of the command.
    fn opcode(self) -> u32 {
        let reads = |number| narrow(encoded::read::<[u8; CONTROL]>(GROUP, number));
        let changes = |number| narrow(encoded::read_write::<[u8; CONTROL]>(GROUP, number));
        match self {
            ControlCommand::GetInfo => reads(0x02),
            ControlCommand::Add => changes(0x04),
            ControlCommand::Delete => changes(0x05),
            ControlCommand::Start(_) => changes(0x06),
            ControlCommand::Stop => changes(0x07),
            ControlCommand::SetParams => changes(0x08),
            ControlCommand::StartRecovery => changes(0x10),
            ControlCommand::EndRecovery(_) => changes(0x11),
            ControlCommand::DeleteLater => reads(0x14),
        }
    }

    /// Returns `struct ublksrv_ctrl_cmd`.
    fn bytes(self, device: u32, address: u64, len: u16) -> [u8; 80] {
        const NO_QUEUE: u16 = u16::MAX;

        let data = match self {
            ControlCommand::Start(pid) | ControlCommand::EndRecovery(pid) => u64::from(pid),
            _ => 0,
        };
        // The rest is reserved, and zero.
        let mut bytes = [0; 80];
        bytes[..4].copy_from_slice(&device.to_ne_bytes());
        bytes[4..6].copy_from_slice(&NO_QUEUE.to_ne_bytes());
        bytes[6..8].copy_from_slice(&len.to_ne_bytes());
        bytes[8..16].copy_from_slice(&address.to_ne_bytes());
        bytes[16..24].copy_from_slice(&data.to_ne_bytes());
        bytes
    }
}

/// Sends the driver a command and waits for its end. The command reads or fills `buf`, which is
/// returned.
///
/// # Errors
/// The driver does not exist or refuses the command; `TimedOut` after `patience`, and the command
/// may still take effect.
pub fn control(
    command: ControlCommand,
    device: u32,
    mut buf: IoBuf,
    patience: Duration,
) -> io::Result<IoBuf> {
    let driver = OpenOptions::new().read(true).write(true).open("/dev/ublk-control")?;
    let mut ring = IoUring::<squeue::Entry128>::builder().build(1)?;
    let len = u16::try_from(buf.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
    let address = if len == 0 { 0 } else { buf.as_io_ptr().expose_provenance() as u64 };
    let bytes = command.bytes(device, address, len);
    let entry = opcode::UringCmd80::new(types::Fd(driver.as_raw_fd()), command.opcode());
    let entry = entry.cmd(bytes).build();
    // SAFETY: the command has the layout that its number stands for, and the address in it is that
    // of `buf`, with its length; `buf`, the descriptor and the ring stay until the kernel has
    // completed the command, or for ever.
    unsafe { ring.submission().push(&entry) }.map_err(io::Error::other)?;
    let end = deadline(patience);
    let completion = loop {
        if let Some(completion) = ring.completion().next() {
            break completion;
        }
        let left = end.saturating_duration_since(now());
        if left.is_zero() {
            // The kernel may still access them, so they are never freed.
            std::mem::forget((ring, driver, buf));
            return Err(io::ErrorKind::TimedOut.into());
        }
        let left = Timespec::from(left);
        match ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(&left)) {
            Ok(_) => {}
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::INTR | Errno::TIME | Errno::AGAIN | Errno::BUSY) => {}
                _ => {
                    std::mem::forget((ring, driver, buf));
                    return Err(error);
                }
            },
        }
    };
    match completion.result() {
        code if code < 0 => Err(io::Error::from_raw_os_error(-code)),
        _ => Ok(buf),
    }
}

#[expect(clippy::disallowed_methods, reason = "waits for the kernel, off the lanes")]
fn now() -> Instant {
    Instant::now()
}

fn deadline(patience: Duration) -> Instant {
    now() + patience
}

/// A command for one tag of a queue. It completes when the kernel has a request with this tag.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QueueCommand {
    /// The queue, from 0.
    pub queue: u16,
    /// The tag, below the depth of the queue.
    pub tag: u16,
    /// The result of the previous request with this tag: bytes, or a negative error. `None` if
    /// there was none.
    pub result: Option<i32>,
}

impl QueueCommand {
    fn opcode(self) -> u32 {
        let number = if self.result.is_some() { 0x21 } else { 0x20 };
        narrow(encoded::read_write::<[u8; QUEUE]>(GROUP, number))
    }

    /// Returns `struct ublksrv_io_cmd`.
    fn bytes(self, address: u64) -> [u8; QUEUE] {
        let mut bytes = [0; QUEUE];
        bytes[..2].copy_from_slice(&self.queue.to_ne_bytes());
        bytes[2..4].copy_from_slice(&self.tag.to_ne_bytes());
        bytes[4..8].copy_from_slice(&self.result.unwrap_or(-1).to_ne_bytes());
        bytes[8..].copy_from_slice(&address.to_ne_bytes());
        bytes
    }

    /// Returns the request for the kernel. The kernel reads the data of a completed read from
    /// `buf`, and writes those of the next write to it; `buf` must stay until the request has
    /// completed.
    pub(crate) fn entry(self, device: types::Fd, buf: &mut IoBuf) -> squeue::Entry {
        let address = buf.as_io_ptr().expose_provenance() as u64;
        opcode::UringCmd16::new(device, self.opcode()).cmd(self.bytes(address)).build()
    }
}

/// The memory in which the kernel describes the requests of one queue.
#[derive(Debug)]
pub struct Descriptors {
    start: NonNull<u8>,
    mapped: usize,
    tags: u16,
}

// SAFETY: this owns its mapping, and reads it as memory that the kernel may change at any time.
unsafe impl Send for Descriptors {}
// SAFETY: as above.
unsafe impl Sync for Descriptors {}

impl Descriptors {
    /// Maps the descriptors of a queue with `tags` tags of the device with this character device.
    ///
    /// # Errors
    /// The queue does not exist or has another number of tags, or another process serves the
    /// device.
    pub fn map(device: impl AsFd, queue: u16, tags: u16) -> io::Result<Self> {
        if tags == 0 || tags > MOST_TAGS {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        let bytes = |tags: u16| (usize::from(tags) * DESCRIPTOR).next_multiple_of(PAGE);
        let (mapped, at) = (bytes(tags), u64::from(queue) * bytes(MOST_TAGS) as u64);
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses the place, so no existing mapping is touched.
        let start =
            unsafe { mmap(std::ptr::null_mut(), mapped, ProtFlags::READ, flags, &device, at)? };
        match NonNull::new(start.cast()) {
            Some(start) => Ok(Descriptors { start, mapped, tags }),
            None => Err(io::ErrorKind::OutOfMemory.into()),
        }
    }

    /// Returns the bytes of `struct ublksrv_io_desc` for a tag; `None` if the queue does not have
    /// the tag. They are valid only while a request with this tag is unanswered.
    pub fn get(&self, tag: u16) -> Option<[u8; DESCRIPTOR]> {
        if tag >= self.tags {
            return None;
        }
        let place = self.start.as_ptr().wrapping_add(usize::from(tag) * DESCRIPTOR);
        // SAFETY: the tag is below `tags`, so all of it is inside the mapping. That begins on a
        // page, so a descriptor is aligned to 8 bytes. Any bytes are valid, and a copy is made of
        // memory that the kernel may change.
        let words = unsafe { place.cast::<[u64; 3]>().read_volatile() };
        let mut bytes = [0; DESCRIPTOR];
        for (to, word) in bytes.chunks_exact_mut(8).zip(words) {
            to.copy_from_slice(&word.to_ne_bytes());
        }
        Some(bytes)
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: the range is the mapping of this value, to which there are no references.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped) };
    }
}

/// Opens the character device through which one process serves a device.
///
/// # Errors
/// The device does not exist, or a process serves it already (`EBUSY`).
pub fn open(device: u32) -> io::Result<OwnedFd> {
    let path = format!("/dev/ublkc{device}");
    OpenOptions::new().read(true).write(true).open(path).map(OwnedFd::from)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_have_the_numbers_of_the_kernel() {
        for (command, number) in [
            (ControlCommand::GetInfo, 0x8020_7502),
            (ControlCommand::Add, 0xc020_7504),
            (ControlCommand::Delete, 0xc020_7505),
            (ControlCommand::Start(1), 0xc020_7506),
            (ControlCommand::Stop, 0xc020_7507),
            (ControlCommand::SetParams, 0xc020_7508),
            (ControlCommand::StartRecovery, 0xc020_7510),
            (ControlCommand::EndRecovery(1), 0xc020_7511),
            (ControlCommand::DeleteLater, 0x8020_7514),
        ] {
            assert_eq!(command.opcode(), number, "{command:?}");
        }
        let fetch = QueueCommand { queue: 0, tag: 0, result: None };
        assert_eq!(fetch.opcode(), 0xc010_7520);
        assert_eq!(QueueCommand { result: Some(0), ..fetch }.opcode(), 0xc010_7521);
    }

    #[test]
    fn fields_are_where_the_kernel_looks() {
        let bytes = ControlCommand::Start(0x1234).bytes(7, 0xabcd_0000, 64);
        assert_eq!(bytes[..4], 7u32.to_ne_bytes());
        assert_eq!(bytes[4..6], [0xff, 0xff]);
        assert_eq!(bytes[6..8], 64u16.to_ne_bytes());
        assert_eq!(bytes[8..16], 0xabcd_0000u64.to_ne_bytes());
        assert_eq!(bytes[16..24], 0x1234u64.to_ne_bytes());
        assert!(bytes[24..].iter().all(|byte| *byte == 0));
        let command = QueueCommand { queue: 3, tag: 5, result: Some(-5) };
        let bytes = command.bytes(0x1000);
        assert_eq!(bytes[..2], 3u16.to_ne_bytes());
        assert_eq!(bytes[2..4], 5u16.to_ne_bytes());
        assert_eq!(bytes[4..8], (-5i32).to_ne_bytes());
        assert_eq!(bytes[8..], 0x1000u64.to_ne_bytes());
    }

    #[test]
    fn descriptors_are_read_inside_their_memory_alone() {
        let file = tempfile::tempfile().expect("a file");
        let mut content = vec![0u8; 2 * 98304];
        content[98304 + 24..][..24].copy_from_slice(&[7; 24]);
        std::io::Write::write_all(&mut &file, &content).expect("written");
        let queue = Descriptors::map(&file, 1, 2).expect("mapped");
        assert_eq!(queue.get(0), Some([0; 24]));
        assert_eq!(queue.get(1), Some([7; 24]));
        assert_eq!(queue.get(2), None);
        for tags in [0, MOST_TAGS + 1] {
            assert!(Descriptors::map(&file, 0, tags).is_err(), "{tags} tags");
        }
    }
}
