//! Reading cached blocks back, verified.

use std::sync::atomic::Ordering;

use forebay_core::{OriginBlock, Slot};
use forebay_device::{DeviceOp, IoBuf};

use crate::lane::StoreLane;
use crate::store::{Pinned, ReadFailure, Store, VolumeSpace};
use crate::table::Entry;

impl Store {
    /// Copies a block out of the log's buffer, if it is still there.
    pub(crate) fn copy_buffered(&self, slot: Slot, into: &mut [u8]) -> bool {
        let cut = self.log.cut();
        let Some(buffer) = self.segments.buffer(cut.segment_of(slot)) else { return false };
        let start = cut.byte_of(slot) as usize;
        let Some(bytes) = buffer.get(start..start + into.len()) else { return false };
        into.copy_from_slice(bytes);
        true
    }

    fn verify(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        entry: &Entry,
        payload: &[u8],
    ) -> bool {
        let check = self.check(space, block, payload);
        let good =
            entry.check_matches(self.index.geometry(), check) || self.is_intact_somewhere(payload);
        if !good {
            self.counters.corrupt_blocks.fetch_add(1, Ordering::Relaxed);
        }
        good
    }
}

impl StoreLane {
    /// A hint: the block will be read at once very soon.
    pub fn expect_read(&self, space: &VolumeSpace, block: OriginBlock) {
        if let Some(found) = self.store().peek(space, block) {
            self.queue().expect_read(self.store().geometry.slot_offset(found.entry.slot));
        }
    }

    /// Reads one whole block if that needs no waiting, `into` being of the block size.
    pub fn read_now(
        &self,
        space: &VolumeSpace,
        pinned: &Pinned<'_>,
        into: &mut [u8],
    ) -> Option<Result<(), ReadFailure>> {
        let store = self.store();
        let entry = &pinned.found.entry;
        if store.copy_buffered(entry.slot, into) {
            return Some(Ok(()));
        }
        match self.queue().read_now(store.geometry.slot_offset(entry.slot), into)? {
            Err(error) => return Some(Err(ReadFailure::Device(error))),
            Ok(()) => {
                store.counters.read_bytes.fetch_add(into.len() as u64, Ordering::Relaxed);
            }
        }
        let good = store.verify(space, pinned.block, entry, into);
        Some(if good { Ok(()) } else { Err(ReadFailure::Corrupt) })
    }

    /// Reads whole blocks that lie next to each other on the cache device in this order: with one
    /// operation if they are not in the log's buffers. `buf` is of the blocks' size. Gives the
    /// buffer back, and for each block whether it is good.
    pub async fn read_run(
        &self,
        space: &VolumeSpace,
        run: &[Pinned<'_>],
        mut buf: IoBuf,
    ) -> (IoBuf, Vec<Result<(), ReadFailure>>) {
        let store = self.store();
        let block = store.block_size().as_usize();
        let mut buffered = 0;
        for (pinned, into) in run.iter().zip(buf.chunks_exact_mut(block)) {
            if !store.copy_buffered(pinned.found.entry.slot, into) {
                break;
            }
            buffered += 1;
        }
        let Some(first) = run.get(buffered) else {
            return (buf, run.iter().map(|_| Ok(())).collect());
        };
        let rest = buf.split_off(buffered * block);
        let len = rest.len();
        let offset = store.geometry.slot_offset(first.found.entry.slot);
        let done = self.queue().run(DeviceOp::Read { offset, buf: rest }).await;
        let rest = done.buf.unwrap_or_else(|| IoBuf::zeroed(len));
        let mut results: Vec<_> = run[..buffered].iter().map(|_| Ok(())).collect();
        match done.result {
            Err(error) => {
                let failed = run[buffered..].iter();
                results.extend(failed.map(|_| Err(ReadFailure::Device(error.clone()))));
            }
            Ok(()) => {
                store.counters.read_bytes.fetch_add(len as u64, Ordering::Relaxed);
                for (pinned, payload) in run[buffered..].iter().zip(rest.chunks_exact(block)) {
                    let good = store.verify(space, pinned.block, &pinned.found.entry, payload);
                    results.push(if good { Ok(()) } else { Err(ReadFailure::Corrupt) });
                }
            }
        }
        (buf.join(rest), results)
    }

    /// Reads one whole block.
    pub async fn read_block(
        &self,
        space: &VolumeSpace,
        pinned: Pinned<'_>,
    ) -> Result<IoBuf, ReadFailure> {
        let buf = IoBuf::for_overwrite(self.store().block_size().as_usize());
        let run = [pinned];
        let (buf, results) = self.read_run(space, &run, buf).await;
        match results.into_iter().next() {
            Some(Err(failure)) => Err(failure),
            _ => Ok(buf),
        }
    }
}
