//! How long ago blocks were used, roughly, for all of them and not only for the sample.
//!
//! A few blocks can have a large share of all accesses, and a sample either has them or not. What
//! is known of all accesses helps against that: if a tenth of all were to blocks used shortly
//! before, then they shall make up a tenth of the curve, however many of them the sample has. It
//! does not matter that the table here forgets blocks for others that fall on the same place, as
//! long as it does so for sampled and other blocks alike.

use crate::exact::Key;

/// Places in the table.
const PLACES: usize = 1 << 12;

/// How many ages are told from each other.
pub(super) const AGES: usize = 4;

/// See the module.
#[derive(Debug)]
pub(super) struct Recent {
    /// Which block was last at a place, and when.
    table: Vec<(u32, u32)>,
    now: u32,
}

impl Recent {
    pub(super) fn new() -> Self {
        Recent { table: vec![(u32::MAX, 0); PLACES], now: 0 }
    }

    /// A block is used: how long ago it was before, as one of [`AGES`]; the last one is long ago or
    /// never.
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

    /// What it takes in RAM.
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
