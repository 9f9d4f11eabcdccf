//! Requests of virtio-blk: the buffers of a chain, read as a request for a volume.

use crate::chain::{Buffers, Head, Segment, gather, scatter, total};
use crate::config::{REQUEST_MAX, SECTOR, ZEROED_MAX};
use crate::memory::{GuestMemory, OutOfMemory};

/// Bytes of a request's header.
const HEADER: u64 = 16;
/// Bytes of a range to discard or to zero.
const RANGE: usize = 16;
/// Most bytes of the name that the guest may ask for.
pub const ID_BYTES: usize = 20;

/// Most bytes of a list of buffers that is kept for reuse: 64 segments.
pub const KEPT_BYTES: u64 = 64 * size_of::<Segment>() as u64;

const IN: u32 = 0;
const OUT: u32 = 1;
const FLUSH: u32 = 4;
const GET_ID: u32 = 8;
const DISCARD: u32 = 11;
const WRITE_ZEROES: u32 = 13;
/// A range to zero may be deallocated.
const UNMAP: u32 = 1;

/// The result of a request, as the guest reads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Status {
    /// The request has succeeded.
    Ok = 0,
    /// The request has failed.
    Failed = 1,
    /// The device does not support the request.
    Unsupported = 2,
}

/// The operation of a request. Offsets and lengths are in bytes, multiples of 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuestOperation {
    /// Read `len` bytes into the writable buffers.
    Read {
        /// First byte.
        offset: u64,
        /// Number of bytes, at most [`REQUEST_MAX`].
        len: u64,
    },
    /// Write `len` bytes, which follow the header.
    Write {
        /// First byte.
        offset: u64,
        /// Number of bytes, at most [`REQUEST_MAX`].
        len: u64,
    },
    /// Make acknowledged writes durable.
    Flush,
    /// The content of a range is not needed any more.
    Discard {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
    },
    /// Write zeroes.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Number of bytes.
        len: u64,
        /// Whether the range must stay allocated.
        no_hole: bool,
    },
    /// Read the name of the device.
    Id,
    /// The request is refused with this status.
    Refused(Status),
}

/// A chain that is not a request, so that no status can be returned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// The header is incomplete.
    #[error("a request has no whole header")]
    Header,
    /// There is no buffer for the status.
    #[error("a request has no place for its status")]
    Status,
    /// A buffer is not in the memory any more.
    #[error(transparent)]
    Memory(#[from] OutOfMemory),
}

/// A request with its buffers.
#[derive(Debug)]
pub struct BlockRequest {
    /// Identifies the request to the guest.
    pub head: Head,
    /// The operation of the request.
    pub kind: GuestOperation,
    buffers: Buffers,
}

impl BlockRequest {
    /// Reads a request.
    ///
    /// # Errors
    /// The request cannot be answered.
    pub fn parse(head: Head, buffers: Buffers, memory: &GuestMemory) -> Result<Self, RequestError> {
        let mut header = [0; HEADER as usize];
        if gather(memory, buffers.readable(), 0, &mut header)? < header.len() {
            return Err(RequestError::Header);
        }
        let writable = total(buffers.writable());
        let room = writable.checked_sub(1).ok_or(RequestError::Status)?;
        let [k0, k1, k2, k3, _, _, _, _, s0, s1, s2, s3, s4, s5, s6, s7] = header;
        let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
        let data = total(buffers.readable()) - HEADER;
        let kind = match u32::from_le_bytes([k0, k1, k2, k3]) {
            IN => transfer(sector, room, |offset, len| GuestOperation::Read { offset, len }),
            OUT => transfer(sector, data, |offset, len| GuestOperation::Write { offset, len }),
            FLUSH => GuestOperation::Flush,
            GET_ID => GuestOperation::Id,
            DISCARD => zeroing(&buffers, data, memory, true)?,
            WRITE_ZEROES => zeroing(&buffers, data, memory, false)?,
            _ => GuestOperation::Refused(Status::Unsupported),
        };
        Ok(BlockRequest { head, kind, buffers })
    }

    /// Copies the data of a write.
    ///
    /// # Errors
    /// A buffer is not in the memory any more.
    pub fn copy_data(&self, memory: &GuestMemory, into: &mut [u8]) -> Result<(), OutOfMemory> {
        gather(memory, self.buffers.readable(), HEADER, into).map(|_| ())
    }

    /// Copies data and status to the guest. Returns the number of bytes that were written.
    ///
    /// # Errors
    /// A buffer is not in the memory any more.
    pub fn answer(
        &self,
        memory: &GuestMemory,
        data: &[u8],
        status: Status,
    ) -> Result<u32, OutOfMemory> {
        let writable = self.buffers.writable();
        let room = total(writable).saturating_sub(1);
        let fits = usize::try_from(room).unwrap_or(usize::MAX).min(data.len());
        let copied = match data.get(..fits) {
            Some(data) if !data.is_empty() => scatter(memory, writable, 0, data)?,
            _ => 0,
        };
        self.put_status(memory, writable, room, status)?;
        Ok(u32::try_from(copied + 1).unwrap_or(u32::MAX))
    }

    /// Writes the status, which is the last byte.
    fn put_status(
        &self,
        memory: &GuestMemory,
        writable: &[Segment],
        at: u64,
        status: Status,
    ) -> Result<(), OutOfMemory> {
        scatter(memory, writable, at, &[status as u8]).map(|_| ())
    }

    /// Returns the bytes of memory of the request's list of buffers.
    pub fn bytes(&self) -> u64 {
        self.buffers.bytes()
    }

    /// Returns the list of buffers for reuse. Returns `None` if it is one of the few long ones: in
    /// time, every kept list would otherwise grow to the longest.
    pub fn into_buffers(self) -> Option<Buffers> {
        (self.buffers.bytes() <= KEPT_BYTES).then_some(self.buffers)
    }
}

fn transfer(sector: u64, len: u64, kind: impl Fn(u64, u64) -> GuestOperation) -> GuestOperation {
    match sector.checked_mul(SECTOR) {
        Some(offset) if len.is_multiple_of(SECTOR) && len <= REQUEST_MAX => kind(offset, len),
        _ => GuestOperation::Refused(Status::Failed),
    }
}

/// Reads the range of a discard or write-zeroes. The configuration allows one range per request.
fn zeroing(
    buffers: &Buffers,
    data: u64,
    memory: &GuestMemory,
    discard: bool,
) -> Result<GuestOperation, OutOfMemory> {
    let mut range = [0; RANGE];
    if data != RANGE as u64 {
        return Ok(GuestOperation::Refused(Status::Unsupported));
    }
    gather(memory, buffers.readable(), HEADER, &mut range)?;
    let [s0, s1, s2, s3, s4, s5, s6, s7, n0, n1, n2, n3, f0, f1, f2, f3] = range;
    let sector = u64::from_le_bytes([s0, s1, s2, s3, s4, s5, s6, s7]);
    let len = u64::from(u32::from_le_bytes([n0, n1, n2, n3])) * SECTOR;
    let flags = u32::from_le_bytes([f0, f1, f2, f3]);
    if flags & !UNMAP != 0 || (discard && flags != 0) {
        return Ok(GuestOperation::Refused(Status::Unsupported));
    }
    Ok(match sector.checked_mul(SECTOR) {
        Some(offset) if len <= ZEROED_MAX && discard => GuestOperation::Discard { offset, len },
        Some(offset) if len <= ZEROED_MAX => {
            GuestOperation::WriteZeroes { offset, len, no_hole: flags & UNMAP == 0 }
        }
        _ => GuestOperation::Refused(Status::Failed),
    })
}

#[cfg(test)]
mod tests;
