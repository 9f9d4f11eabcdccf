//! Mutations of inputs. libFuzzer chooses them by the code that earlier inputs have reached; a
//! build without libFuzzer makes one simple change.

/// Changes the first `size` bytes of `data`, which has room for `max_size`; returns the new size.
#[cfg(fuzzing)]
pub(crate) fn change(data: &mut [u8], size: usize, max_size: usize) -> usize {
    libfuzzer_sys::fuzzer_mutate(data, size, max_size)
}

/// Changes the first `size` bytes of `data`, which has room for `max_size`; returns the new size.
/// The change depends on the input alone, so that inputs are the same in every run.
#[cfg(not(fuzzing))]
pub(crate) fn change(data: &mut [u8], size: usize, max_size: usize) -> usize {
    /// Words at the ends of a field's range.
    const EXTREMES: [u64; 6] = [0, 1, u64::MAX, 1 << 63, i64::MAX as u64, u32::MAX as u64 + 1];
    let mut rng = fastrand::Rng::with_seed(u64::from(forebay_format::crc32c(&data[..size])));
    if size == 0 {
        let grown = max_size.min(1 + rng.usize(0..64));
        rng.fill(&mut data[..grown]);
        return grown;
    }
    let at = rng.usize(0..size);
    let len = rng.usize(1..=(size - at).min(32));
    match rng.u8(0..6) {
        0 => data[at] ^= 1 << rng.u32(0..8),
        1 => rng.fill(&mut data[at..at + len]),
        2 => {
            let word = EXTREMES[rng.usize(0..EXTREMES.len())].to_le_bytes();
            let width = (1 << rng.u32(0..4)).min(size - at);
            data[at..at + width].copy_from_slice(&word[..width]);
        }
        3 => data.copy_within(at..at + len, rng.usize(0..=size - len)),
        4 if size > len => {
            data.copy_within(at + len..size, at);
            return size - len;
        }
        _ => {
            let len = len.min(max_size - size);
            data.copy_within(at..size, at + len);
            return size + len;
        }
    }
    size
}
