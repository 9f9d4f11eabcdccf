//! Requests of a file that come through an io_uring instead of being read from its connection
//! (Linux 6.14).
//!
//! The kernel has a queue for each CPU. It puts a request into a free entry of the queue of the CPU
//! on which the request was made, and completes the entry's command. The next command gives the
//! reply, and frees the entry. The layout is that of `struct fuse_uring_req_header` in Linux's
//! `fuse.h`.

use std::path::Path;

use io_uring::{opcode, squeue, types};

use crate::buffer::IoBuf;

/// Bytes for the header of a request or reply, and for the parameters of a request.
const HEADER: usize = 128;
/// Offset of the parameters.
const PARAMETERS: usize = HEADER;
/// Offset of the number that identifies a reply; the length of the payload follows it.
const COMMIT: usize = 2 * HEADER + 8;
const PAYLOAD_BYTES: usize = COMMIT + 8;
/// Total bytes of the headers.
const ALL_HEADERS: usize = 2 * HEADER + 32;
/// Offset of the addresses and lengths of header and payload, which the kernel reads once.
const PARTS: usize = 512;
/// Offset of the payload.
const PAYLOAD: usize = 4096;

/// Bytes of memory of an entry, without its payload.
pub const ENTRY_BYTES: usize = PAYLOAD;

/// `FUSE_IO_URING_CMD_REGISTER`, `FUSE_IO_URING_CMD_COMMIT_AND_FETCH`.
const REGISTER: u32 = 1;
const COMMIT_AND_FETCH: u32 = 2;

/// Bytes of a command in a wide submission; it begins with `struct fuse_uring_cmd_req`.
const COMMAND: usize = 80;
/// Offset in a submission of the length for its address.
const SUBMISSION_LEN: usize = 24;

/// Returns whether the kernel offers requests through io_uring, which an administrator must enable.
pub fn is_enabled() -> bool {
    let path = Path::new("/sys/module/fuse/parameters/enable_uring");
    std::fs::read_to_string(path).is_ok_and(|text| text.starts_with('Y'))
}

/// Returns the number of queues of a connection: one for each possible CPU.
pub fn queues() -> Option<u16> {
    let text = std::fs::read_to_string("/sys/devices/system/cpu/possible").ok()?;
    parse_last(&text)?.checked_add(1)
}

/// Reads the last number of a list like `0-3,8-11`.
fn parse_last(list: &str) -> Option<u16> {
    list.trim().rsplit(['-', ',']).next()?.parse().ok()
}

/// Memory for one request of a queue at a time, and for its reply.
///
/// The kernel learns the address of this memory from the first command, and uses it until the last
/// command has completed. The memory is therefore never exchanged.
#[derive(Debug)]
pub struct FuseEntry {
    queue: u16,
    /// Whether a command has completed without an error, so that the kernel has registered the
    /// entry.
    registered: bool,
    memory: IoBuf,
}

impl FuseEntry {
    /// Creates an entry of a queue for requests and replies with at most `payload` bytes of data.
    pub fn new(queue: u16, payload: usize) -> Box<Self> {
        let mut memory = IoBuf::for_overwrite(PAYLOAD + payload);
        memory[..PAYLOAD].fill(0);
        Box::new(FuseEntry { queue, registered: false, memory })
    }

    /// Records that a command has completed without an error: the kernel has registered the entry
    /// and put a request into it.
    pub fn took(&mut self) {
        self.registered = true;
    }

    /// Returns whether any command has completed without an error.
    pub fn is_registered(&self) -> bool {
        self.registered
    }

    /// Returns the header of the request; further bytes in the slice are meaningless.
    pub fn header(&self) -> &[u8] {
        &self.memory[..HEADER]
    }

    /// Returns the parameters of the request; further bytes in the slice are meaningless.
    pub fn parameters(&self) -> &[u8] {
        &self.memory[PARAMETERS..PARAMETERS + HEADER]
    }

    /// Returns the data of the request.
    pub fn data(&self) -> &[u8] {
        let bytes = self.memory.get(PAYLOAD_BYTES..).and_then(|rest| rest.first_chunk());
        let len = u32::from_ne_bytes(bytes.copied().unwrap_or_default()) as usize;
        let payload = self.memory.get(PAYLOAD..).unwrap_or_default();
        payload.get(..len).unwrap_or_default()
    }

    /// Returns the place for the data of the reply.
    pub fn payload(&mut self) -> &mut [u8] {
        self.memory.get_mut(PAYLOAD..).unwrap_or_default()
    }

    /// Writes the header of a reply that has the first `len` bytes of the payload.
    pub fn reply(&mut self, header: &[u8], len: usize) {
        let header = &header[..header.len().min(HEADER)];
        self.memory[..header.len()].copy_from_slice(header);
        self.memory[PAYLOAD_BYTES..PAYLOAD_BYTES + 4].copy_from_slice(&(len as u32).to_ne_bytes());
    }

    /// Returns the next command for the kernel. The entry must stay until the command has
    /// completed.
    pub(crate) fn command(&mut self, connection: types::Fd) -> squeue::Entry128 {
        let memory = self.memory.as_io_ptr().expose_provenance();
        let mut command = [0; COMMAND];
        if self.registered {
            command[8..16].copy_from_slice(&self.memory[COMMIT..COMMIT + 8]);
        }
        command[16..18].copy_from_slice(&self.queue.to_ne_bytes());
        let payload = self.memory.len() - PAYLOAD;
        let parts = [memory, ALL_HEADERS, memory + PAYLOAD, payload];
        for (place, number) in self.memory[PARTS..].chunks_exact_mut(size_of::<usize>()).zip(parts)
        {
            place.copy_from_slice(&number.to_ne_bytes());
        }
        let number = if self.registered { COMMIT_AND_FETCH } else { REGISTER };
        let request = opcode::UringCmd80::new(connection, number).cmd(command);
        let mut entry = request.addr(Some((memory + PARTS) as u64)).build();
        // SAFETY: an entry has 128 bytes, those of the kernel's `struct io_uring_sqe`, all of which
        // may have any value; the four written here are inside. The library has no way to set them
        // for this kind of request.
        unsafe {
            let bytes = std::ptr::from_mut(&mut entry).cast::<u8>();
            bytes.add(SUBMISSION_LEN).cast::<u32>().write_unaligned(parts.len() as u32 / 2);
        }
        entry
    }
}

const _: () = assert!(size_of::<squeue::Entry128>() == 128 && ALL_HEADERS <= PARTS);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_where_the_kernel_looks() {
        let mut entry = FuseEntry::new(3, 8192);
        let command = entry.command(types::Fd(7));
        // SAFETY: an entry has 128 bytes, all of them initialised.
        let bytes = unsafe { std::mem::transmute::<squeue::Entry128, [u8; 128]>(command) };
        let u32_at = |at: usize| u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four"));
        let u64_at = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight"));
        assert_eq!(
            (u32_at(4), u32_at(8), u32_at(24)),
            (7, REGISTER, 2),
            "descriptor, command, parts"
        );
        let memory = entry.memory.as_io_ptr().expose_provenance();
        assert_eq!(u64_at(16), (memory + PARTS) as u64);
        assert_eq!((u64_at(48), u64_at(56), u64_at(64)), (0, 0, 3), "flags, commit, queue");
        let parts: Vec<usize> = entry.memory[PARTS..PARTS + 32]
            .chunks_exact(8)
            .map(|bytes| usize::from_ne_bytes(bytes.try_into().expect("eight")))
            .collect();
        assert_eq!(parts, [memory, 288, memory + PAYLOAD, 8192]);
    }

    #[test]
    fn a_reply_names_the_request_that_it_is_for() {
        let mut entry = FuseEntry::new(0, 8192);
        entry.took();
        entry.memory[COMMIT..COMMIT + 8].copy_from_slice(&0x1234_u64.to_ne_bytes());
        entry.memory[PAYLOAD_BYTES..PAYLOAD_BYTES + 4].copy_from_slice(&100_u32.to_ne_bytes());
        assert_eq!(entry.data().len(), 100);
        entry.payload()[..3].copy_from_slice(b"abc");
        entry.reply(&[9; 16], 3);
        assert_eq!(
            (&entry.header()[..17], entry.data()),
            (&[9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 9, 0][..], &b"abc"[..])
        );
        let command = entry.command(types::Fd(7));
        // SAFETY: an entry has 128 bytes, all of them initialised.
        let bytes = unsafe { std::mem::transmute::<squeue::Entry128, [u8; 128]>(command) };
        assert_eq!(bytes[8..12], COMMIT_AND_FETCH.to_ne_bytes());
        assert_eq!(bytes[56..64], 0x1234_u64.to_ne_bytes());
    }

    #[test]
    fn more_data_than_there_is_room_for_are_none() {
        let mut entry = FuseEntry::new(0, 8192);
        entry.memory[PAYLOAD_BYTES..PAYLOAD_BYTES + 4].copy_from_slice(&8193_u32.to_ne_bytes());
        assert!(entry.data().is_empty());
    }

    #[test]
    fn the_last_cpu_of_a_list_is_found() {
        assert_eq!(
            [parse_last("0-1\n"), parse_last("0"), parse_last("0-3,8-11")],
            [Some(1), Some(0), Some(11)]
        );
        assert_eq!(parse_last(""), None);
        assert!(queues().is_some_and(|queues| queues > 0));
    }
}
