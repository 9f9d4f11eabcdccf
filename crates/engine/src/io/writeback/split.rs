//! Splits failed writes to the origin until only the refused blocks are left.
//!
//! Each part is a write of its own: it locks its range, looks up the dirty blocks at that moment,
//! and reads them again. So clients do not wait for the range while a slow disk fails one part
//! after the other, and a part is as safe as any write.

use std::time::Duration;

use forebay_core::OriginBlock;
use forebay_core::why::WritebackReason;
use forebay_device::DeviceError;
use forebay_store::planted::{self, PlantedBug};

use super::read_turns::ReadTurns;
use super::run::SpanWriter;
use super::span::{Span, Written};
use crate::error::WritebackError;

/// Number of parts of a failed write. With more parts, fewer writes fail until a block is isolated,
/// each of which may take a disk many seconds; with fewer parts, fewer successful writes are needed
/// in between.
pub(crate) const PARTS: usize = 16;

/// Pauses before each retry of a single block that was not refused before, because disks and paths
/// have transient errors.
const RETRY_AFTER: [Duration; 2] = [Duration::from_millis(10), Duration::from_millis(250)];

impl SpanWriter<'_> {
    /// Writes a span back, see [`SpanWriter::write_back_span`], and splits it as long as a part
    /// fails and others may succeed. Blocks that the origin refuses alone are listed, and are no
    /// error.
    pub(crate) async fn write_back_parts(
        self,
        span: Span,
        why: WritebackReason,
        gap: u64,
        turns: &ReadTurns,
    ) -> (Vec<Written>, Option<WritebackError>) {
        let mut all = Vec::new();
        let mut rest = vec![span];
        while let Some(mut span) = rest.pop() {
            let (written, result) = self.try_span(&span, why, gap, turns).await;
            span.dirty.retain(|block| written.iter().all(|written| written.block != *block));
            all.extend(written);
            let failed = match result {
                Ok(()) => continue,
                Err(WritebackError::Origin(failed)) if failed.is_local() => failed,
                Err(error) => return (all, Some(error)),
            };
            if !self.0.volume.refused.failed() {
                return (all, Some(failed.into()));
            }
            if planted::has(PlantedBug::RunNotSplit) {
                let now = self.0.now();
                span.dirty.iter().for_each(|block| _ = self.0.volume.refuses(*block, &failed, now));
                continue;
            }
            match span.dirty[..] {
                [block] if span.tail == 0 => {
                    match self.write_back_alone(block, failed, why, turns).await {
                        Ok(written) => all.extend(written),
                        Err(error) => return (all, Some(error)),
                    }
                }
                _ => rest.extend(
                    parts(&span.dirty).rev().map(|part| Span { dirty: part.to_vec(), tail: 0 }),
                ),
            }
        }
        (all, None)
    }

    async fn try_span(
        self,
        span: &Span,
        why: WritebackReason,
        gap: u64,
        turns: &ReadTurns,
    ) -> (Vec<Written>, Result<(), WritebackError>) {
        let (written, error) = self.write_back_span(span, why, gap, turns).await;
        if !written.is_empty() {
            self.0.volume.origin_takes();
            written.iter().for_each(|it| self.0.volume.remove_refused(it.block));
        }
        (written, error.map_or(Ok(()), Err))
    }

    /// Tries a single block again that could not be written, and lists it if that fails as well.
    ///
    /// # Errors
    /// The block is not listed, because there are too many, or because the error is another one.
    async fn write_back_alone(
        self,
        block: OriginBlock,
        mut failed: DeviceError,
        why: WritebackReason,
        turns: &ReadTurns,
    ) -> Result<Vec<Written>, WritebackError> {
        let volume = &self.0.volume;
        let retries = if volume.is_refused(block) { &[][..] } else { &RETRY_AFTER[..] };
        let span = Span { dirty: vec![block], tail: 0 };
        for pause in retries {
            self.0.lane().sleep(*pause).await;
            let (written, result) = self.try_span(&span, why, 0, turns).await;
            failed = match result {
                Ok(()) => return Ok(written),
                Err(WritebackError::Origin(failed)) if failed.is_local() => failed,
                Err(error) => return Err(error),
            };
        }
        if !volume.refuses(block, &failed, self.0.now()) {
            return Err(failed.into());
        }
        if planted::has(PlantedBug::RefusedCleans) {
            return Ok(self.as_if_written(block, why));
        }
        Ok(Vec::new())
    }

    /// Returns a refused block as if it had been written: a planted bug.
    fn as_if_written(self, block: OriginBlock, why: WritebackReason) -> Vec<Written> {
        let (volume, store) = (&self.0.volume, &self.0.cache.store);
        let found = store.peek(&volume.space, block).filter(|found| found.entry.dirty);
        let version =
            found.and_then(|found| store.version_of(&volume.space, block, found.entry.slot));
        let failures = volume.syncs.failures();
        version.into_iter().map(|version| Written { block, version, failures, why }).collect()
    }
}

/// Splits the blocks that could not be written as a whole.
pub(crate) fn parts<T>(whole: &[T]) -> std::slice::Chunks<'_, T> {
    whole.chunks(whole.len().div_ceil(PARTS).max(1))
}
