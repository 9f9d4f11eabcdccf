//! Recognising an origin: a digest of its size and of samples of its content.
//!
//! Taken when a volume stops and compared when it starts again (invariant 12). It sees what
//! filesystems change at every mount: the start and the end of the device, and 64 places between.

use forebay_device::{IoBuf, Queue};
use forebay_format::{crc32c, crc32c_append};

use crate::error::EngineError;

const SAMPLE: u64 = 4096;
const SAMPLES: u64 = 64;
const START: u64 = 256 << 10;

/// The fingerprint of an origin of `size` bytes.
///
/// # Errors
/// The origin cannot be read.
pub async fn fingerprint(origin: &Queue, size: u64) -> Result<[u8; 32], EngineError> {
    let mut places = Vec::new();
    let mut at = 0;
    while at < START.min(size) {
        places.push(at);
        at += SAMPLE;
    }
    for sample in 1..=SAMPLES {
        let place = (size as u128 * u128::from(sample) / u128::from(SAMPLES)) as u64;
        places.push((place / SAMPLE * SAMPLE).min(size.saturating_sub(SAMPLE) / SAMPLE * SAMPLE));
    }
    // Four independent running checksums: 128 bits, and the size in the clear.
    let mut sums = [crc32c(b"0"), crc32c(b"1"), crc32c(b"2"), crc32c(b"3")];
    for (number, place) in places.into_iter().enumerate() {
        let len = SAMPLE.min(size - place) as usize;
        let data = origin.read(place, IoBuf::for_overwrite(len)).await?;
        let own = &mut sums[number % 4];
        *own = crc32c_append(*own, &data);
        let sum = *own;
        for other in &mut sums {
            *other = crc32c_append(*other, &sum.to_le_bytes());
        }
    }
    let mut digest = [0; 32];
    digest[..8].copy_from_slice(&size.to_le_bytes());
    for (sum, place) in sums.iter().zip(digest[8..].chunks_exact_mut(4)) {
        place.copy_from_slice(&sum.to_le_bytes());
    }
    Ok(digest)
}
