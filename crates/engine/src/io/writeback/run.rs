//! One write to the origin: dirty neighbours, and the clean blocks between them.
//!
//! A clean block that is wholly valid is the same on the origin and in the cache, so writing it
//! along changes nothing there, as long as no other task writes to the origin in between. Every
//! other writer to the origin (around or through the cache, or a discard) holds the range
//! exclusively and first takes the clean copy out of the index. This write holds its whole range
//! exclusively before it looks up the cached blocks.

use std::time::Duration;

use forebay_core::OriginBlock;
use forebay_core::why::WritebackReason;
use forebay_device::IoBuf;
use forebay_lane::join_all;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Pinned, VersionId};

use super::read_turns::ReadTurns;
use super::span::{Span, Written};
use crate::error::WritebackError;
use crate::io::copies::Copies;
use crate::io::notes::NoteKeeper;
use crate::io::origin::OriginIo;
use crate::lane::LaneVolume;
use crate::state::volume::VolumeState;
use crate::state::volume::layout::bytes_of;

/// Maximum number of reads of the cache device that one write has in progress.
const READ_TOGETHER: usize = 32;

/// The content of blocks that are adjacent on the origin, ready to be written.
struct Stretch {
    payload: IoBuf,
    /// The origin offset of each part of `payload`, and its byte range there.
    pieces: Vec<(u64, std::ops::Range<usize>)>,
    /// The dirty versions that the origin has after the write.
    on_origin: Vec<(OriginBlock, VersionId)>,
}

/// Writes spans of a volume to its origin.
#[derive(Clone, Copy)]
pub(crate) struct SpanWriter<'a>(pub(crate) &'a LaneVolume);

impl<'a> SpanWriter<'a> {
    /// Writes the dirty blocks of a span back, with as few writes as their valid sectors allow; up
    /// to `gap` adjacent clean blocks are written along. Returns the versions that were written,
    /// not yet durably, and the first failure.
    pub(crate) async fn write_back_span(
        self,
        span: &Span,
        why: WritebackReason,
        gap: u64,
        turns: &ReadTurns,
    ) -> (Vec<Written>, Option<WritebackError>) {
        let volume = &self.0.volume;
        let mut written = Vec::new();
        let failures = volume.syncs.failures();
        let blocks = span.blocks();
        if blocks.is_empty() {
            return (written, None);
        }
        let unlocked = planted::has(PlantedBug::GapUnlocked);
        let early = if unlocked { self.look_up_span(span) } else { Vec::new() };
        if unlocked {
            // Gives the race of the planted bug time to happen.
            self.0.lane().sleep(Duration::from_millis(20)).await;
        }
        let is_dirty = |pinned: &Pinned<'_>| pinned.found.entry.dirty;
        let edge = |number| volume.block_range(OriginBlock(number));
        let range = volume.widen(edge(blocks.start).start..edge(blocks.end - 1).end);
        // No other task may write here meanwhile, or read an older state.
        let _range = volume.ranges.exclusive(range).await;
        if volume.state() == VolumeState::Removed {
            // Another volume may own the origin from now on.
            return (written, Some(WritebackError::Stopped));
        }
        if volume.is_ordered() {
            // Only ordered writeback may write to the origin now; it will write these blocks.
            return (written, None);
        }
        let mut pinned = self.look_up_span(span);
        if unlocked {
            pinned.retain(is_dirty);
            pinned.extend(early.into_iter().filter(|pinned| !is_dirty(pinned)));
            pinned.sort_by_key(|pinned| pinned.block);
            pinned.dedup_by_key(|pinned| pinned.block);
        }
        let mut error = self.make_durable(&mut pinned).await;
        // Read everything before writing anything. The pins are then released before the writes, so
        // an origin that does not answer keeps no segment from being reused.
        let mut ready = Vec::new();
        for stretch in stretches(pinned, gap, blocks.end) {
            let reading = turns.take(volume.is_rotational()).await;
            let read = {
                let mut read = std::pin::pin!(self.read_stretch(&stretch));
                self.0.cache.unless_hung(&mut read).await
            };
            let Some(read) = read else {
                // Clients wait for this range, and may not need the cache device, which hangs.
                error.get_or_insert(WritebackError::CacheHung);
                break;
            };
            drop(reading);
            ready.push(self.cut_stretch(&stretch, read));
        }
        for stretch in ready {
            match self.write_stretch(stretch, why).await {
                Ok(versions) => {
                    written.extend(versions.into_iter().map(|(block, version)| Written {
                        block,
                        version,
                        failures,
                        why,
                    }))
                }
                Err(failed) => {
                    error.get_or_insert(failed);
                    break;
                }
            }
        }
        (written, error)
    }

    /// Looks up the blocks to write: dirty blocks that are listed in the span, and wholly valid
    /// clean ones.
    fn look_up_span(self, span: &Span) -> Vec<Pinned<'a>> {
        let mut wanted = span.dirty.iter().peekable();
        span.blocks()
            .filter_map(|number| {
                let block = OriginBlock(number);
                let in_span = wanted.next_if(|wanted| **wanted == block).is_some();
                let pinned = self.0.cache.store.look_up(&self.0.volume.space, block)?;
                let found = &pinned.found;
                let usable = if found.entry.dirty { in_span } else { found.mask.is_none() };
                usable.then_some(pinned)
            })
            .collect()
    }

    /// Makes the records of dirty blocks durable. Blocks whose records cannot become durable are
    /// removed; an error is returned then.
    async fn make_durable(self, pinned: &mut Vec<Pinned<'_>>) -> Option<WritebackError> {
        let store = &self.0.cache.store;
        let undurable = |pinned: &Pinned<'_>| {
            pinned.found.entry.dirty && !store.is_durable(pinned.found.entry.slot)
        };
        // Barrier for invariant 6: the origin must not have a version that a power cut could remove
        // from the log, where an older version would come back as clean.
        if !pinned.iter().any(undurable) {
            return None;
        }
        let store = self.0.store.clone();
        let error = match self.0.unless_hung(async move { store.commit().await }).await {
            Some(Ok(_)) => return None,
            Some(Err(_)) if NoteKeeper(self.0).distrust().await => return None,
            Some(Err(_)) => WritebackError::CacheFailed,
            None => WritebackError::CacheHung,
        };
        pinned.retain(|pinned| !undurable(pinned));
        Some(error)
    }

    /// Cuts blocks that are adjacent on the origin into writes, given their content and which of
    /// them are readable.
    fn cut_stretch(self, stretch: &[Pinned<'_>], (payload, good): (IoBuf, Vec<bool>)) -> Stretch {
        let (volume, store) = (&self.0.volume, &self.0.cache.store);
        let mut on_origin = Vec::new();
        let mut pieces: Vec<(u64, std::ops::Range<usize>)> = Vec::new();
        for (number, (pinned, good)) in stretch.iter().zip(good).enumerate() {
            if !good {
                continue;
            }
            let valid = volume.valid_sectors(pinned.block, pinned.found.mask.as_ref());
            let start = number * volume.block.as_usize();
            for valid in valid.runs() {
                let offset = volume.origin_offset(pinned.block, valid.start);
                let bytes = bytes_of(&valid);
                let bytes = start + bytes.start..start + bytes.end;
                match pieces.last_mut() {
                    Some((at, before))
                        if before.end == bytes.start && *at + before.len() as u64 == offset =>
                    {
                        before.end = bytes.end;
                    }
                    _ => pieces.push((offset, bytes)),
                }
            }
            if pinned.found.entry.dirty {
                on_origin.extend(
                    store
                        .version_of(&volume.space, pinned.block, pinned.found.entry.slot)
                        .map(|version| (pinned.block, version)),
                );
            }
        }
        Stretch { payload, pieces, on_origin }
    }

    /// Writes a stretch to the origin. Returns its dirty versions.
    async fn write_stretch(
        self,
        stretch: Stretch,
        why: WritebackReason,
    ) -> Result<Vec<(OriginBlock, VersionId)>, WritebackError> {
        let Stretch { payload, pieces, on_origin } = stretch;
        match &pieces[..] {
            [(offset, bytes)] if *bytes == (0..payload.len()) => {
                OriginIo(self.0).write_back(*offset, payload, why).await?;
            }
            _ => {
                for (offset, bytes) in pieces {
                    let part = IoBuf::copy_from(&payload[bytes]);
                    OriginIo(self.0).write_back(offset, part, why).await?;
                }
            }
        }
        Ok(on_origin)
    }

    /// Reads cached blocks into one buffer, one after the other. Returns it with a flag for each
    /// block: whether it is readable.
    async fn read_stretch(self, stretch: &[Pinned<'_>]) -> (IoBuf, Vec<bool>) {
        let block = self.0.volume.block.as_usize();
        let mut rest = IoBuf::for_overwrite(stretch.len() * block);
        let mut chains = Vec::new();
        let mut from = 0;
        while let Some(chain) = stretch.get(from..).filter(|chain| !chain.is_empty()) {
            let count = self.chain(chain);
            let back = rest.split_off(count * block);
            chains.push((&chain[..count], std::mem::replace(&mut rest, back)));
            from += count;
        }
        let mut chains = chains.into_iter();
        let mut payload = IoBuf::empty();
        let mut good = Vec::with_capacity(stretch.len());
        loop {
            let some: Vec<_> = chains.by_ref().take(READ_TOGETHER).collect();
            if some.is_empty() {
                return (payload, good);
            }
            let read = some.iter().map(|(chain, _)| *chain).collect::<Vec<_>>();
            let copies = Copies(self.0);
            let reads = some.into_iter().map(|(chain, buf)| copies.read_copies(chain, buf));
            for (chain, (buf, unreadable)) in read.into_iter().zip(join_all(reads).await) {
                payload = payload.join(buf);
                let from = good.len();
                good.resize(from + chain.len(), true);
                unreadable.iter().for_each(|(at, _)| good[from + at] = false);
            }
        }
    }

    /// Returns the number of blocks at the beginning that are also adjacent on the cache device.
    fn chain(self, blocks: &[Pinned<'_>]) -> usize {
        let store = &self.0.cache.store;
        let granules = store.geometry().granules_per_block() as u32;
        let follows = |pair: &&[Pinned<'_>]| {
            let (one, next) = (pair[0].found.entry.slot, pair[1].found.entry.slot);
            one.0.checked_add(granules) == Some(next.0)
                && store.segment_of(one) == store.segment_of(next)
        };
        blocks.len().min(1) + blocks.windows(2).take_while(follows).count()
    }
}

/// Cuts ascending blocks into stretches: where a block is missing, and where more than `gap` clean
/// blocks are adjacent. Clean blocks at the ends of a stretch are dropped, except up to `gap` that
/// reach `end`, where another write continues.
fn stretches(pinned: Vec<Pinned<'_>>, gap: u64, end: u64) -> Vec<Vec<Pinned<'_>>> {
    let mut all: Vec<Vec<Pinned<'_>>> = Vec::new();
    // Clean blocks that directly follow the last dirty one.
    let mut between: Vec<Pinned<'_>> = Vec::new();
    for next in pinned {
        let before = between.last().or_else(|| all.last().and_then(|stretch| stretch.last()));
        let joins = before.is_some_and(|before| before.block.0 + 1 == next.block.0);
        if !next.found.entry.dirty {
            if joins {
                between.push(next);
            } else {
                between.clear();
            }
            continue;
        }
        match all.last_mut().filter(|_| joins && between.len() as u64 <= gap) {
            Some(stretch) => {
                stretch.append(&mut between);
                stretch.push(next);
            }
            None => all.push(vec![next]),
        }
        between.clear();
    }
    let reaches = between.last().is_some_and(|last| last.block.0 + 1 == end);
    if let Some(stretch) = all.last_mut().filter(|_| reaches && between.len() as u64 <= gap) {
        stretch.append(&mut between);
    }
    all
}
