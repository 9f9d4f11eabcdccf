//! Memory that a shard returns to the system while memory is short, and takes again later.
//!
//! Frames `0..=room` are in use. To shrink, the policy evicts blocks, the remaining ones are moved
//! to lower frames, and the memory of the frames above is returned in one piece.

use forebay_policy::exact::Node;

use super::Shard;
use crate::index::Frame;

impl Shard {
    /// Returns the most blocks at the moment.
    pub(crate) fn room(&self) -> u32 {
        self.room
    }

    /// Returns the number of blocks for which the shard was made.
    pub(crate) fn capacity(&self) -> u32 {
        self.capacity
    }

    /// Returns the memory of up to `count` blocks to the system. Returns the number of these
    /// blocks, which is lower if pinned blocks must stay.
    pub(crate) fn shrink(&mut self, count: u32) -> u32 {
        let wanted = self.room.saturating_sub(count);
        while self.blocks() > wanted && self.evict() {}
        let (room, before) = (wanted.max(self.blocks()), self.room);
        if room >= before {
            return 0;
        }
        let mut occupied = vec![true; (before - room) as usize];
        self.free.retain(|frame| match frame.0.checked_sub(room + 1) {
            Some(above) => {
                occupied[above as usize] = false;
                false
            }
            None => true,
        });
        for from in (room + 1..=before).filter(|frame| occupied[(frame - room - 1) as usize]) {
            // There are `room + 1` frames below, and at most `room` blocks.
            let Some(to) = self.free.pop() else { break };
            self.relocate(Frame(from), to);
        }
        self.room = room;
        let size = self.block.bytes() as usize;
        self.data.release((room as usize + 1) * size..(before as usize + 1) * size);
        self.set_deferring(self.deferred.share);
        before - room
    }

    /// Takes memory for up to `count` blocks from the system again. Returns the number of these
    /// blocks.
    pub(crate) fn grow(&mut self, count: u32) -> u32 {
        let before = self.room;
        self.room = before.saturating_add(count).min(self.capacity);
        self.free.extend((before + 1..=self.room).rev().map(Frame));
        self.set_deferring(self.deferred.share);
        self.room - before
    }

    /// Moves a block to another frame, which is free.
    fn relocate(&mut self, from: Frame, to: Frame) {
        let (block, own) = (self.contents.block(from), self.contents.sectors(from));
        let (used, whole) = (self.contents.was_used(from), 0..self.block.sectors());
        let (source, target) = (self.bytes(from, &whole), self.bytes(to, &whole));
        self.data.copy_within(source, target.start);
        let contents = &self.contents;
        self.index.remove(from, |frame| contents.block(frame).hash());
        self.held.remove(self.block.region_of(block));
        self.place(block, to);
        self.contents.set_sectors(to, own);
        if used {
            self.contents.note_use(to);
        }
        if !own.pinned() {
            self.policy.moved(Node(from.0), Node(to.0));
        }
    }
}
