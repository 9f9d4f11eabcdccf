//! Descriptors of the kernel's requests: the volume's request lies inside the device for any input.

use forebay_core::{Op, Survives};
use forebay_ublk::request::{DeviceFacts, convert};

use crate::{mend, mutation};

/// See [`super::Mutate`].
pub(crate) fn mutate(data: &mut [u8], size: usize, max_size: usize, seed: u32) -> usize {
    let size = mutation::change(data, size, max_size).max(24.min(max_size));
    if !seed.is_multiple_of(8) && size >= 24 {
        // An operation that exists, a length and a start of the right magnitude.
        let word = u32::from(data[0] % 8) | u32::from(data[1]) << 8;
        mend::put(&mut data[..size], 0, &word.to_ne_bytes());
        let sectors = u32::from(data[4]) << (data[5] % 16);
        mend::put(&mut data[..size], 4, &sectors.to_ne_bytes());
        let start = u64::from(data[8]) << (data[9] % 20);
        mend::put(&mut data[..size], 8, &start.to_ne_bytes());
    }
    size
}

/// See [`super::Target`].
pub(crate) fn run(data: &[u8]) {
    let descriptor = data.get(..24).unwrap_or(data);
    for (read_only, outlives) in [(false, false), (false, true), (true, true)] {
        let flushes = descriptor.first().is_some_and(|byte| byte & 128 == 0);
        let (size, max_io) = ((1 << 28) + 512, 256 << 10);
        let facts = DeviceFacts { size, read_only, max_io, outlives, flushes };
        let Ok(request) = convert(descriptor, &facts) else { continue };
        assert_eq!(descriptor.len(), 24);
        assert!(request.offset.is_multiple_of(512) && request.len.is_multiple_of(512));
        assert!(request.offset.checked_add(request.len).is_some_and(|end| end <= facts.size));
        assert!(request.data() <= facts.max_io as usize);
        assert!(request.done() >= 0 && request.done() as usize == request.data());
        let writes = matches!(request.op, Op::Write | Op::Discard | Op::WriteZeroes);
        assert!(!writes || !read_only && (request.survives > Survives::Nothing || !outlives));
        assert!(writes || request.survives == Survives::Nothing);
        assert!(request.op != Op::Flush || request.len == 0);
    }
}
