//! Converts a descriptor of the kernel to a request to the volume. No I/O.

use forebay_core::{IoError, Op, SECTOR_SIZE, Survives};
use rustix::io::Errno;
use zerocopy::FromBytes;

use crate::wire::{Descriptor, io_flag, op};

/// The properties of a device on which the conversion depends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceFacts {
    /// Bytes, a multiple of 512.
    pub size: u64,
    /// Writes are refused.
    pub read_only: bool,
    /// Bytes of the longest read or write.
    pub max_io: u32,
    /// The device outlives its server.
    pub outlives: bool,
    /// The kernel sends flushes, because the device has a volatile write cache.
    pub flushes: bool,
}

impl DeviceFacts {
    /// Returns the failure that each write survives at least. Users of a device that outlives its
    /// server do not notice the end of the server, so their next flush would otherwise cover writes
    /// that were lost.
    fn promise(&self) -> Survives {
        match (self.outlives, self.flushes) {
            (_, false) => Survives::PowerLoss,
            (true, true) => Survives::Daemon,
            (false, true) => Survives::Nothing,
        }
    }
}

/// A request to the volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VolumeRequest {
    /// The operation.
    pub op: Op,
    /// First byte, a multiple of 512.
    pub offset: u64,
    /// Bytes, a multiple of 512.
    pub len: u64,
    /// Must survive this before the answer.
    pub survives: Survives,
    /// The range must stay allocated (`WriteZeroes` only).
    pub no_hole: bool,
}

impl VolumeRequest {
    /// Returns the bytes of data that the request transfers.
    pub fn data(&self) -> usize {
        match self.op {
            Op::Read | Op::Write => self.len as usize,
            _ => 0,
        }
    }

    /// Returns the kernel's result of a successful request: the bytes of a read or write.
    pub fn done(&self) -> i32 {
        i32::try_from(self.data()).unwrap_or(i32::MAX)
    }
}

/// Converts the descriptor of a request.
///
/// # Errors
/// The answer, if the request cannot be made to this device.
pub fn convert(bytes: &[u8], facts: &DeviceFacts) -> Result<VolumeRequest, Errno> {
    let descriptor = Descriptor::read_from_bytes(bytes).map_err(|_| Errno::INVAL)?;
    let fua = descriptor.op_flags & io_flag::FUA != 0;
    let (operation, writes) = match descriptor.op_flags & 0xff {
        op::READ => (Op::Read, false),
        op::WRITE => (Op::Write, true),
        op::FLUSH => {
            let (offset, len, survives, no_hole) = (0, 0, Survives::Nothing, false);
            return Ok(VolumeRequest { op: Op::Flush, offset, len, survives, no_hole });
        }
        op::DISCARD => (Op::Discard, true),
        op::WRITE_ZEROES => (Op::WriteZeroes, true),
        _ => return Err(Errno::OPNOTSUPP),
    };
    if writes && facts.read_only {
        return Err(Errno::ROFS);
    }
    let len = u64::from(descriptor.sectors) * SECTOR_SIZE;
    let offset = descriptor.start.checked_mul(SECTOR_SIZE).ok_or(Errno::NOSPC)?;
    if len == 0 {
        return Err(Errno::INVAL);
    }
    match offset.checked_add(len) {
        Some(end) if end <= facts.size => {}
        _ => return Err(Errno::NOSPC),
    }
    if matches!(operation, Op::Read | Op::Write) && len > u64::from(facts.max_io) {
        return Err(Errno::INVAL);
    }
    Ok(VolumeRequest {
        op: operation,
        offset,
        len,
        survives: match writes {
            true if fua => Survives::PowerLoss,
            true => facts.promise(),
            false => Survives::Nothing,
        },
        no_hole: operation == Op::WriteZeroes && descriptor.op_flags & io_flag::NOUNMAP != 0,
    })
}

/// Returns the error that the kernel gets for an error of the volume.
pub fn errno(error: IoError) -> Errno {
    match error {
        IoError::Invalid => Errno::INVAL,
        IoError::NoSpace => Errno::NOSPC,
        IoError::ReadOnly => Errno::ROFS,
        IoError::Io | IoError::ShuttingDown => Errno::IO,
        IoError::NotSupported => Errno::OPNOTSUPP,
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    const FACTS: DeviceFacts = DeviceFacts {
        size: 1 << 20,
        read_only: false,
        max_io: 64 << 10,
        outlives: true,
        flushes: true,
    };

    fn request(
        op_flags: u32,
        start: u64,
        sectors: u32,
        facts: DeviceFacts,
    ) -> Result<VolumeRequest, Errno> {
        let descriptor = Descriptor { op_flags, sectors, start, address: 0 };
        convert(descriptor.as_bytes(), &facts)
    }

    #[test]
    fn each_operation_becomes_that_of_the_volume() {
        for (code, operation, result) in [
            (op::READ, Op::Read, 4096),
            (op::WRITE, Op::Write, 4096),
            (op::DISCARD, Op::Discard, 0),
            (op::WRITE_ZEROES, Op::WriteZeroes, 0),
        ] {
            let found = request(code, 3, 8, FACTS).expect("valid");
            assert_eq!((found.op, found.offset, found.len), (operation, 1536, 4096));
            assert_eq!(found.done(), result);
            assert!(!found.no_hole);
        }
        let flush = request(op::FLUSH, u64::MAX, u32::MAX, FACTS).expect("it has no range");
        assert_eq!((flush.op, flush.len, flush.done()), (Op::Flush, 0, 0));
        let zeroes = request(op::WRITE_ZEROES | io_flag::NOUNMAP, 0, 8, FACTS).expect("valid");
        assert!(zeroes.no_hole);
        for code in [4, 6, 17, 255] {
            assert_eq!(request(code, 0, 8, FACTS), Err(Errno::OPNOTSUPP), "operation {code}");
        }
    }

    #[test]
    fn answers_of_a_device_that_outlives_its_server_survive_it() {
        for (outlives, flushes, least) in [
            (true, true, Survives::Daemon),
            (false, true, Survives::Nothing),
            (true, false, Survives::PowerLoss),
            (false, false, Survives::PowerLoss),
        ] {
            let facts = DeviceFacts { outlives, flushes, ..FACTS };
            let survives = |code| request(code, 0, 8, facts).expect("valid").survives;
            for code in [op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
                assert_eq!(survives(code), least, "{facts:?}");
                assert_eq!(survives(code | io_flag::FUA), Survives::PowerLoss, "{facts:?}");
            }
            assert_eq!(survives(op::READ), Survives::Nothing);
        }
    }

    #[test]
    fn ranges_outside_and_writes_to_a_read_only_device_are_refused() {
        let read_only = DeviceFacts { read_only: true, ..FACTS };
        for code in [op::WRITE, op::DISCARD, op::WRITE_ZEROES] {
            assert_eq!(request(code, 0, 8, read_only), Err(Errno::ROFS));
        }
        assert!(request(op::READ, 0, 8, read_only).is_ok());
        assert!(request(op::READ, 2047, 1, FACTS).is_ok());
        for (start, sectors) in [(2048, 1), (2047, 2), (u64::MAX, 1), (u64::MAX / 512, u32::MAX)] {
            assert_eq!(request(op::DISCARD, start, sectors, FACTS), Err(Errno::NOSPC));
        }
        assert_eq!(request(op::WRITE, 0, 0, FACTS), Err(Errno::INVAL));
        assert!(request(op::WRITE, 0, 128, FACTS).is_ok());
        assert_eq!(request(op::WRITE, 0, 129, FACTS), Err(Errno::INVAL));
        assert!(request(op::DISCARD, 0, 129, FACTS).is_ok());
        assert_eq!(convert(&[0; 23], &FACTS), Err(Errno::INVAL));
    }
}
