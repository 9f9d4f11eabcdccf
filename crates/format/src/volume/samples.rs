//! Samples of an origin: checksums of some of its pages, and which of these pages the cache has not
//! written to since.
//!
//! The positions depend only on the size of the origin: the first 256 KiB, where file systems
//! change something at every mount, and 64 positions spread over the whole origin, including its
//! end.

use std::mem::size_of;

use zerocopy::little_endian::{U16, U32, U128};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{SAMPLES_HIGH, SAMPLES_LOW, SAMPLES_SUM, VolumeDefect};
use crate::{Digest, crc32c};

/// Bytes in a sample; fewer if the origin ends before.
pub const SAMPLE_BYTES: u64 = 4096;
/// Maximum number of samples of an origin.
pub const MAX_SAMPLES: usize = (START / SAMPLE_BYTES + SPREAD) as usize;

const START: u64 = 256 << 10;
const SPREAD: u64 = 64;

/// Returns the offsets of the samples of an origin of `origin_bytes`, in bytes, in the order in
/// which the fingerprint uses them. A place may appear more than once.
pub fn fingerprint_places(origin_bytes: u64) -> Vec<u64> {
    let mut places: Vec<u64> =
        (0..START.min(origin_bytes)).step_by(SAMPLE_BYTES as usize).collect();
    let last = origin_bytes.saturating_sub(SAMPLE_BYTES) / SAMPLE_BYTES * SAMPLE_BYTES;
    places.extend((1..=SPREAD).map(|number| {
        let place = u128::from(origin_bytes) * u128::from(number) / u128::from(SPREAD);
        (place as u64 / SAMPLE_BYTES * SAMPLE_BYTES).min(last)
    }));
    places
}

/// Returns the same places in ascending order, each once.
pub fn sample_places(origin_bytes: u64) -> Vec<u64> {
    let mut places = fingerprint_places(origin_bytes);
    places.sort_unstable();
    places.dedup();
    places
}

/// Method of computing the checksums of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SampleCheck {
    /// CRC32C, used by earlier programs. It does not detect changes of data that end with the
    /// CRC32C of the rest.
    Crc32c,
    /// The first 32 bits of a [`Digest`].
    Digest,
}

impl SampleCheck {
    /// Returns the checksum of a sample.
    pub fn of(self, page: &[u8]) -> u32 {
        match self {
            SampleCheck::Crc32c => crc32c(page),
            SampleCheck::Digest => {
                let mut digest = Digest::new();
                digest.add(page);
                (digest.value() >> 96) as u32
            }
        }
    }
}

/// The samples of one origin. Sample `i` is at the `i`-th of [`sample_places`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Samples {
    /// The method by which the checksums are computed.
    pub by: SampleCheck,
    /// The checksum of each sample, at most [`MAX_SAMPLES`].
    pub checks: Vec<u32>,
    /// Bit `i`: the cache has not written to sample `i` since its checksum was taken, so a mismatch
    /// means an external writer. Bits beyond the samples are 0.
    pub untouched: u128,
}

/// The fixed part; the checksums follow, 4 bytes each.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
struct OnDiskSamples {
    count: U16,
    untouched: U128,
}

const _: () = {
    assert!(size_of::<OnDiskSamples>() == 18);
    assert!(MAX_SAMPLES <= 128);
};

impl Samples {
    /// Returns the bits of `count` samples.
    fn all_bits(count: usize) -> u128 {
        u32::try_from(128 - count.min(128))
            .ok()
            .and_then(|cut| u128::MAX.checked_shr(cut))
            .unwrap_or(0)
    }

    /// Returns whether these samples are possible for an origin of `origin_bytes`.
    pub(super) fn check(&self, origin_bytes: u64) -> bool {
        self.checks.len() == sample_places(origin_bytes).len()
            && self.untouched & !Self::all_bits(self.checks.len()) == 0
    }

    /// Returns the numbers and checksums of the samples that are untouched.
    pub fn valid(&self) -> impl Iterator<Item = (usize, u32)> + '_ {
        let checks = self.checks.iter().copied().enumerate();
        checks.filter(|(number, _)| self.untouched >> number & 1 == 1)
    }

    fn sum(&self) -> u64 {
        let mut sum = Digest::new();
        self.checks.iter().for_each(|check| sum.add_word(u64::from(*check)));
        sum.value() as u64
    }

    /// Returns the settings that mark the checksums as digests. Releases that do not know digests
    /// would compare them with CRC32Cs: for these releases no sample is untouched, and the bits of
    /// untouched samples are among these settings.
    pub(super) fn settings(&self) -> Vec<(u16, u64)> {
        let (low, high) = (self.untouched as u64, (self.untouched >> 64) as u64);
        match self.by {
            SampleCheck::Crc32c => Vec::new(),
            SampleCheck::Digest => {
                vec![(SAMPLES_SUM, self.sum()), (SAMPLES_LOW, low), (SAMPLES_HIGH, high)]
            }
        }
    }

    /// Removes these settings from those of a volume. If they describe other samples, a program
    /// that does not know them has taken the samples since.
    pub(super) fn take_settings(samples: Option<&mut Samples>, settings: &mut Vec<(u16, u64)>) {
        let mut take = |wanted| {
            let value = settings.iter().find(|(tag, _)| *tag == wanted).map(|(_, value)| *value);
            settings.retain(|(tag, _)| *tag != wanted);
            value
        };
        let found = (take(SAMPLES_SUM), take(SAMPLES_LOW), take(SAMPLES_HIGH));
        if let (Some(samples), (Some(sum), Some(low), Some(high))) = (samples, found)
            && samples.untouched == 0
            && samples.sum() == sum
        {
            samples.by = SampleCheck::Digest;
            samples.untouched = u128::from(high) << 64 | u128::from(low);
        }
    }

    pub(super) fn encode_into(&self, bytes: &mut Vec<u8>) {
        let count = (self.checks.len() as u16).into();
        let untouched = match self.by {
            SampleCheck::Crc32c => self.untouched.into(),
            SampleCheck::Digest => 0.into(),
        };
        let raw = OnDiskSamples { count, untouched };
        bytes.extend_from_slice(raw.as_bytes());
        for check in &self.checks {
            bytes.extend_from_slice(U32::new(*check).as_bytes());
        }
    }

    pub(super) fn decode(bytes: &[u8]) -> Result<(Samples, &[u8]), VolumeDefect> {
        let (raw, rest) = OnDiskSamples::ref_from_prefix(bytes).map_err(|_| VolumeDefect::Cut)?;
        let count = usize::from(raw.count.get());
        if count > MAX_SAMPLES {
            return Err(VolumeDefect::Field("samples"));
        }
        let (checks, rest) =
            <[U32]>::ref_from_prefix_with_elems(rest, count).map_err(|_| VolumeDefect::Cut)?;
        let checks = checks.iter().map(|check| check.get()).collect();
        let by = SampleCheck::Crc32c;
        Ok((Samples { by, checks, untouched: raw.untouched.get() }, rest))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_lie_within_the_origin_and_reach_its_end() {
        for size in
            [512, 4096, 4608, 256 << 10, (256 << 10) + 512, 12 << 20, 4 << 40, u64::MAX >> 8]
        {
            let places = sample_places(size);
            assert!(places.len() <= MAX_SAMPLES && places.is_sorted(), "{size}");
            assert!(places.iter().all(|place| *place < size && place % SAMPLE_BYTES == 0));
            assert!(places.last().is_some_and(|place| size - place < 2 * SAMPLE_BYTES), "{size}");
            assert_eq!(places.first(), Some(&0));
        }
        assert_eq!(sample_places(1 << 40).len(), MAX_SAMPLES);
        assert_eq!(sample_places(8192), [0, 4096]);
        // Stored fingerprints were taken in this order.
        assert_eq!(fingerprint_places(4096 * 3)[..5], [0, 4096, 8192, 0, 0]);
    }

    #[test]
    fn bits_beyond_the_samples_and_other_counts_are_refused() {
        let by = SampleCheck::Crc32c;
        let samples = |count: usize, untouched| Samples { by, checks: vec![7; count], untouched };
        assert!(samples(2, 3).check(8192));
        assert!(samples(2, 0).check(8192));
        assert!(!samples(2, 4).check(8192));
        assert!(!samples(3, 3).check(8192));
        assert!(samples(MAX_SAMPLES, u128::MAX).check(1 << 40));
        assert_eq!(samples(3, 5).valid().collect::<Vec<_>>(), [(0, 7), (2, 7)]);
    }

    #[test]
    fn a_digest_sees_metadata_that_a_crc_is_blind_to() {
        // Like a superblock of ext4: 1020 bytes, and their CRC32C.
        let page = |mounts: u8| {
            let mut page = vec![0; SAMPLE_BYTES as usize];
            page[1024 + 52] = mounts;
            let check = !crc32c(&page[1024..2044]);
            page[2044..2048].copy_from_slice(&check.to_le_bytes());
            page
        };
        let both = |by: SampleCheck| (by.of(&page(1)), by.of(&page(2)));
        let (before, after) = both(SampleCheck::Crc32c);
        assert_eq!(before, after);
        let (before, after) = both(SampleCheck::Digest);
        assert_ne!(before, after);
    }
}
