//! Rough reuse times of all blocks, not only of the sampled ones.
//!
//! A few blocks can receive a large share of all accesses, and a sample either contains them or
//! not. Knowing about all accesses corrects for that: if a tenth of them were reuses after a short
//! time, such reuses make up a tenth of the curve, however many the sample has. The table loses
//! blocks to hash collisions; that does not matter as long as it does so for sampled and other
//! blocks alike.

use crate::exact::Key;

/// Entries in the table.
const PLACES: usize = 1 << 12;

/// Number of age classes.
pub(super) const AGES: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Recent {
    /// For each entry, a fingerprint of the last block and the time of its use.
    table: Vec<(u32, u32)>,
    now: u32,
}

impl Recent {
    pub(super) fn new() -> Self {
        Recent { table: vec![(u32::MAX, 0); PLACES], now: 0 }
    }

    /// Records a use of a block. Returns its age since the previous use, as one of [`AGES`]
    /// classes; the last class means that the table does not contain the block.
    #[inline]
    pub(super) fn touch(&mut self, Key(key): Key) -> usize {
        let hash = key.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let (place, name) = ((hash >> 32) as usize % PLACES, (hash >> 44) as u32 ^ key as u32);
        self.now = self.now.wrapping_add(1);
        let Some(entry) = self.table.get_mut(place) else {
            return AGES - 1;
        };
        let (before, when) = std::mem::replace(entry, (name, self.now));
        if before != name {
            return AGES - 1;
        }
        match self.now.wrapping_sub(when) {
            0..16 => 0,
            16..512 => 1,
            _ => 2,
        }
    }

    /// Returns the allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        self.table.capacity() * size_of::<(u32, u32)>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_are_told_apart() {
        let mut recent = Recent::new();
        assert_eq!(recent.touch(Key(7)), 3);
        assert_eq!(recent.touch(Key(7)), 0);
        (0..100).for_each(|other| assert_eq!(recent.touch(Key(1000 + other)), 3));
        assert_eq!(recent.touch(Key(7)), 1);
        (0..1_000_000).for_each(|other| assert_eq!(recent.touch(Key(10_000 + other)), 3));
        assert_eq!(recent.touch(Key(7)), 3);
    }
}
