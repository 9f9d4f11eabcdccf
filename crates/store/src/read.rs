//! Reading cached blocks back, verified.

use std::sync::atomic::Ordering;

use forebay_core::{OriginBlock, Slot};
use forebay_device::{DeviceOp, IoBuf};

use crate::lane::StoreLane;
use crate::latency;
use crate::store::{PayloadCheck, Pinned, ReadFailure, Store, VolumeSpace};
use crate::table::Entry;

impl Store {
    /// Copies a block out of the log's buffer, if it is still buffered.
    pub(crate) fn copy_buffered(&self, slot: Slot, into: &mut [u8]) -> bool {
        let layout = self.log.layout();
        let Some(buffer) = self.segments.buffer(layout.segment_of(slot)) else { return false };
        let start = layout.byte_of(slot) as usize;
        let Some(bytes) = buffer.get(start..start + into.len()) else { return false };
        into.copy_from_slice(bytes);
        true
    }

    /// Returns whether the RAM image of a slot's segment exists.
    fn is_buffered(&self, slot: Slot) -> bool {
        self.segments.is_buffered(self.segment_of(slot))
    }

    /// Returns the check of a payload that was read back; `None` if it does not match the written
    /// one.
    fn verify(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        entry: &Entry,
        payload: &[u8],
    ) -> Option<PayloadCheck> {
        let check = self.check(space, block, payload);
        let good = self.index.check_matches(entry, check) || self.is_intact_somewhere(payload);
        if !good {
            self.counters.corrupt_blocks.fetch_add(1, Ordering::Relaxed);
        }
        good.then_some(PayloadCheck(check))
    }
}

impl StoreLane {
    /// A hint: the block will be read at once very soon.
    pub fn expect_read(&self, space: &VolumeSpace, block: OriginBlock) {
        if let Some(found) = self.store().peek(space, block) {
            self.queue().expect_read(self.store().geometry.slot_offset(found.entry.slot));
        }
    }

    /// A hint: the slot will be read at once very soon.
    pub fn expect_slot(&self, slot: Slot) {
        self.queue().expect_read(self.store().geometry.slot_offset(slot));
    }

    /// Looks up a block that is read with [`StoreLane::read_now`] before this lane does anything
    /// else. This costs less than [`Store::look_up`]; holding the result longer is safe, but loses
    /// that advantage. `rank` returns the entry's new rank. It is called again if the new rank has
    /// to be written.
    #[inline]
    pub fn look_up_now(
        &self,
        space: &VolumeSpace,
        block: OriginBlock,
        rank: impl FnMut(&Entry) -> u8,
    ) -> Option<Pinned<'_>> {
        self.store().look_up_now(self.hazard, space, block, rank)
    }

    /// Returns whether a slot can be read without waiting.
    #[inline]
    pub fn reads_now(&self, slot: Slot) -> bool {
        self.queue().reads_now() || self.store().is_buffered(slot)
    }

    fn count_read(&self, bytes: usize) {
        let store = self.store();
        if !store.hazards.count_read(self.hazard, bytes as u64) {
            store.counters.read_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }

    /// Reads one whole block if that needs no waiting; `into` has the size of a block.
    pub fn read_now(
        &self,
        space: &VolumeSpace,
        pinned: &Pinned<'_>,
        into: &mut [u8],
    ) -> Option<Result<(), ReadFailure>> {
        let store = self.store();
        if store.copy_buffered(pinned.found.entry.slot, into) {
            return Some(Ok(()));
        }
        Some(self.read_device_now(space, pinned, into)?.map(|_| ()))
    }

    /// Reads one whole block from the device, if that needs no waiting and the block is no longer
    /// in the log's buffers. `into` has the size of a block.
    pub fn read_device_now(
        &self,
        space: &VolumeSpace,
        pinned: &Pinned<'_>,
        into: &mut [u8],
    ) -> Option<Result<PayloadCheck, ReadFailure>> {
        let store = self.store();
        let entry = &pinned.found.entry;
        if store.is_buffered(entry.slot) {
            return None;
        }
        match self.queue().read_now(store.geometry.slot_offset(entry.slot), into)? {
            Err(error) => return Some(Err(ReadFailure::Device(error))),
            Ok(()) => {
                self.count_read(into.len());
            }
        }
        Some(store.verify(space, pinned.block, entry, into).ok_or(ReadFailure::Corrupt))
    }

    /// Reads whole blocks that are adjacent on the cache device in this order: with one operation
    /// if they are not in the log's buffers. `buf` has the size of these blocks. Returns the
    /// buffer, and the blocks that could not be read, by their index in `run`.
    pub async fn read_run(
        &self,
        space: &VolumeSpace,
        run: &[Pinned<'_>],
        mut buf: IoBuf,
    ) -> (IoBuf, Vec<(usize, ReadFailure)>) {
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
            return (buf, Vec::new());
        };
        let rest = buf.split_off(buffered * block);
        let len = rest.len();
        let offset = store.geometry.slot_offset(first.found.entry.slot);
        let started = store.latency.start(self.lane());
        let done = self.queue().run(DeviceOp::Read { offset, buf: rest }).await;
        latency::note(&store.latency.reads, self.lane(), started);
        let rest = done.buf.unwrap_or_else(|| IoBuf::zeroed(len));
        let on_device = run.iter().enumerate().skip(buffered);
        let failed = match done.result {
            Err(error) => {
                on_device.map(|(at, _)| (at, ReadFailure::Device(error.clone()))).collect()
            }
            Ok(()) => {
                self.count_read(len);
                let payloads = on_device.zip(rest.chunks_exact(block));
                payloads
                    .filter(|((_, pinned), payload)| {
                        let entry = &pinned.found.entry;
                        store.verify(space, pinned.block, entry, payload).is_none()
                    })
                    .map(|((at, _), _)| (at, ReadFailure::Corrupt))
                    .collect()
            }
        };
        (buf.join(rest), failed)
    }

    /// Reads one whole block.
    pub async fn read_block(
        &self,
        space: &VolumeSpace,
        pinned: Pinned<'_>,
    ) -> Result<IoBuf, ReadFailure> {
        let buf = IoBuf::for_overwrite(self.store().block_size().as_usize());
        let run = [pinned];
        let (buf, failed) = self.read_run(space, &run, buf).await;
        failed.into_iter().next().map_or(Ok(buf), |(_, failure)| Err(failure))
    }
}
