//! Index of frames by block: a hash table of frame numbers, whose keys are in the frames.

use forebay_device::hint::Spot;

/// Number of a frame: a place for one block in a shard, below [`MOST_FRAMES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Frame(pub(crate) u32);

impl Frame {
    pub(crate) fn number(self) -> usize {
        self.0 as usize
    }
}

/// Maximum number of frames of a table.
pub(crate) const MOST_FRAMES: u32 = (1 << FRAME_BITS) - 1;

/// Bits of an entry for the frame's number plus one. The others hold a part of the hash, so that
/// hardly any other frame is examined.
const FRAME_BITS: u32 = 24;

/// See the module. An entry whose position is taken goes to the next free one; at most three
/// quarters of the entries are in use.
pub(crate) struct Index {
    entries: Box<[u32]>,
    len: usize,
}

fn entry(frame: Frame, hash: u64) -> u32 {
    (hash as u32) << FRAME_BITS | (frame.0 + 1)
}

impl Index {
    /// Creates an empty table for at most `frames` entries.
    pub(crate) fn new(frames: u32) -> Self {
        let count = (frames as usize * 4).div_ceil(3).max(2).next_power_of_two();
        Index { entries: vec![0; count].into_boxed_slice(), len: 0 }
    }

    /// Returns the number of entries in use.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns the bytes of RAM.
    pub(crate) fn bytes(&self) -> usize {
        size_of_val(&*self.entries)
    }

    /// Returns the address at which the search for a hash begins, for a prefetch.
    pub(crate) fn spot(&self, hash: u64) -> Spot {
        Spot::of(&self.entries[self.first(hash)])
    }

    /// Returns a frame that probably has this hash. Reads only the memory that [`Index::spot`]
    /// names.
    pub(crate) fn guess(&self, hash: u64) -> Option<Frame> {
        let at = self.first(hash);
        let near = self.entries[at..].iter().take(4).take_while(|entry| **entry != 0);
        let same = |entry: &&u32| **entry >> FRAME_BITS == hash as u32 & 0xff;
        near.filter(same).map(|entry| Frame((entry & MOST_FRAMES) - 1)).next()
    }

    /// Returns the first entry of the search. Bits 8 to 39 of the hash choose it.
    fn first(&self, hash: u64) -> usize {
        (hash >> 8) as u32 as usize & (self.entries.len() - 1)
    }

    /// Returns the position of the entry for which `is_it` holds.
    fn place(&self, hash: u64, mut is_it: impl FnMut(Frame) -> bool) -> Option<usize> {
        let mut at = self.first(hash);
        loop {
            let found = self.entries[at];
            if found == 0 {
                return None;
            }
            let same_part = found >> FRAME_BITS == hash as u32 & 0xff;
            if same_part && is_it(Frame((found & MOST_FRAMES) - 1)) {
                return Some(at);
            }
            at = (at + 1) & (self.entries.len() - 1);
        }
    }

    /// Returns the frame with this hash for which `is_it` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is_it: impl FnMut(Frame) -> bool) -> Option<Frame> {
        let at = self.place(hash, is_it)?;
        Some(Frame((self.entries[at] & MOST_FRAMES) - 1))
    }

    /// Adds a frame, which is not in the table.
    pub(crate) fn insert(&mut self, hash: u64, frame: Frame) {
        let mut at = self.first(hash);
        while self.entries[at] != 0 {
            at = (at + 1) & (self.entries.len() - 1);
        }
        self.entries[at] = entry(frame, hash);
        self.len += 1;
    }

    /// Removes a frame, if it is in the table. `hash_of` returns the hash of any frame in it.
    pub(crate) fn remove(&mut self, frame: Frame, hash_of: impl Fn(Frame) -> u64) {
        let Some(mut hole) = self.place(hash_of(frame), |other| other == frame) else { return };
        self.len -= 1;
        let mask = self.entries.len() - 1;
        let mut at = hole;
        loop {
            at = (at + 1) & mask;
            let next = self.entries[at];
            if next == 0 {
                break;
            }
            // An entry may fill the hole unless its search begins behind the hole.
            let first = self.first(hash_of(Frame((next & MOST_FRAMES) - 1)));
            if (at.wrapping_sub(first) & mask) >= (at.wrapping_sub(hole) & mask) {
                self.entries[hole] = next;
                hole = at;
            }
        }
        self.entries[hole] = 0;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;

    #[test]
    fn frames_are_found_after_any_insertions_and_removals() {
        for frames in [1u32, 2, 7, 64, 300] {
            let mut rng = fastrand::Rng::with_seed(frames.into());
            let mut index = Index::new(frames);
            let mut model: HashMap<u32, u64> = HashMap::new();
            for _ in 0..5_000 {
                let frame = rng.u32(0..frames);
                match model.remove(&frame) {
                    Some(_) if rng.bool() => {
                        index.remove(Frame(frame), |other| hash(other.0));
                    }
                    Some(known) => {
                        model.insert(frame, known);
                    }
                    None => {
                        index.insert(hash(frame), Frame(frame));
                        model.insert(frame, hash(frame));
                    }
                }
                assert_eq!(index.len(), model.len());
                for number in 0..frames {
                    let found = index.find(hash(number), |other| other.0 == number);
                    assert_eq!(found.is_some(), model.contains_key(&number), "{number}");
                }
            }
        }
    }

    /// A hash with many collisions.
    fn hash(number: u32) -> u64 {
        u64::from(number) * 37 % 11 * 0x101
    }
}
