//! Reads samples of an origin, to compare its present content with its earlier content.
//!
//! Single samples stay valid while the cache writes elsewhere on the origin. The fingerprint covers
//! all of them, and holds from an orderly stop to the next start (invariant 12). The same is true
//! of the system's evidence of writes.

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::{Evidence, Since};
use forebay_device::{Device, DeviceError, IoBuf, Queue};
use forebay_format::volume::samples::{SAMPLE_BYTES, fingerprint_places, sample_places};
use forebay_format::volume::{Left, SampleCheck, Samples};
use forebay_format::{crc32c, crc32c_append};
use forebay_lane::{join_all, off_lane};

use crate::control::starts;
use crate::error::EngineError;

/// Returns the system's evidence of writes to an origin. The lane does not wait for a file server.
pub(crate) async fn write_evidence(origin: &Arc<dyn Device>) -> Option<Evidence> {
    if !origin.evidence_may_wait() {
        return origin.write_evidence();
    }
    let origin = origin.clone();
    off_lane::run("evidence", move || origin.write_evidence()).await?
}

/// The content of an origin at its sample places, and the system's evidence of writes to it.
pub struct SampledOrigin {
    size: u64,
    evidence: Option<Evidence>,
    starts: Option<u128>,
    pages: BTreeMap<u64, Result<IoBuf, DeviceError>>,
}

impl SampledOrigin {
    /// Syncs an origin and reads the samples of its first `size` bytes. Pages that cannot be read
    /// are recorded as errors.
    pub async fn take(device: &Arc<dyn Device>, origin: &Queue, size: u64) -> Self {
        // Writes of another program may still be in the kernel's cache, where nothing has counted
        // them.
        let synced = origin.sync().await;
        let look = Self::read(size, None, async |place, buf| origin.read(place, buf).await).await;
        // Taken last, so that it covers writes during the reading of the samples.
        let evidence = if synced.is_ok() { write_evidence(device).await } else { None };
        SampledOrigin { evidence, ..look }
    }

    /// Reads samples like [`SampledOrigin::take`], with given evidence and a given function to read
    /// the origin, which is synced.
    pub(crate) async fn read(
        size: u64,
        evidence: Option<Evidence>,
        read: impl AsyncFn(u64, IoBuf) -> Result<IoBuf, DeviceError>,
    ) -> Self {
        let read = &read;
        let reads = sample_places(size).into_iter().map(|place| async move {
            let len = SAMPLE_BYTES.min(size - place) as usize;
            (place, read(place, IoBuf::for_overwrite(len)).await)
        });
        let pages = join_all(reads).await.into_iter().collect();
        let starts = starts::digest(size, read).await;
        SampledOrigin { size, evidence, starts, pages }
    }

    /// Returns the state for the record of a volume that stops now, besides the fingerprint.
    pub(crate) fn left(&self) -> Left {
        Left { evidence: self.evidence.clone(), starts: self.starts }
    }

    /// Returns whether the start of a partition, or of the content in one, differs from the state
    /// in which the origin was left.
    pub(crate) fn starts_differ(&self, left: &Left) -> bool {
        left.starts.is_some() && self.starts != left.starts
    }

    /// Returns whether every sample is zeroes, as on any other origin to which little was written.
    pub(crate) fn is_blank(&self) -> bool {
        let zeroes = |page: &IoBuf| page.iter().all(|byte| *byte == 0);
        self.pages.values().all(|page| page.as_ref().is_ok_and(zeroes))
    }

    /// Returns the system's evidence of writes since an orderly stop that left the origin in this
    /// state.
    pub(crate) fn since(&self, left: &Left) -> Since {
        match (&self.evidence, &left.evidence) {
            (Some(now), Some(before)) => now.since(before),
            _ => Since::Unknown("its system tells of no writes"),
        }
    }

    fn checks(&self, by: SampleCheck) -> impl Iterator<Item = Option<u32>> + '_ {
        self.pages.values().map(move |page| page.as_ref().ok().map(|page| by.of(page)))
    }

    /// Returns the samples, marked untouched unless they cannot be read.
    pub fn samples(&self) -> Samples {
        let (by, mut untouched) = (SampleCheck::Digest, 0);
        let mut checks = Vec::new();
        for (number, check) in self.checks(by).enumerate() {
            untouched |= u128::from(check.is_some()) << number;
            checks.push(check.unwrap_or(0));
        }
        Samples { by, checks, untouched }
    }

    /// Returns whether an untouched sample differs now. Unreadable samples prove nothing.
    pub fn contradicts(&self, samples: &Samples) -> bool {
        let now: Vec<Option<u32>> = self.checks(samples.by).collect();
        samples.valid().any(|(number, check)| {
            now.get(number).copied().flatten().is_some_and(|now| now != check)
        })
    }

    /// Returns the digest of the size and all samples.
    ///
    /// # Errors
    /// A sample could not be read.
    pub fn fingerprint(&self) -> Result<[u8; 32], EngineError> {
        // Four running checksums: 128 bits, with the size in the clear.
        let mut sums = [crc32c(b"0"), crc32c(b"1"), crc32c(b"2"), crc32c(b"3")];
        for (number, place) in fingerprint_places(self.size).into_iter().enumerate() {
            let data: &[u8] = match self.pages.get(&place) {
                Some(Ok(page)) => page,
                Some(Err(error)) => return Err(error.clone().into()),
                None => &[],
            };
            let own = &mut sums[number % 4];
            *own = crc32c_append(*own, data);
            let sum = *own;
            for other in &mut sums {
                *other = crc32c_append(*other, &sum.to_le_bytes());
            }
        }
        let mut digest = [0; 32];
        digest[..8].copy_from_slice(&self.size.to_le_bytes());
        for (sum, place) in sums.iter().zip(digest[8..].chunks_exact_mut(4)) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        Ok(digest)
    }
}
