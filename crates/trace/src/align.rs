//! Alignment: whether requests start where blocks do.
//!
//! A partition that begins at an odd sector shifts everything on it: requests of 4 KiB then touch
//! two blocks of 4 KiB each. If most requests start at the same offset within a block, that offset
//! counts as the beginning of the clients' blocks.

use super::{BLOCK, Request, SECTOR};

/// Minimum percentage of requests that must start at one offset.
const MOST: u64 = 50;

/// Counts where in a block requests start.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alignment {
    starts: [u64; (BLOCK / SECTOR) as usize],
}

/// The shift that would align most requests to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Suggestion {
    /// Bytes to add to every offset.
    pub shift: u64,
    /// Percentage of requests that start at a block after the shift.
    pub percent: u64,
}

impl Alignment {
    /// Counts a request.
    pub fn add(&mut self, request: &Request) {
        let place = request.offset % BLOCK / SECTOR;
        if let Some(count) = self.starts.get_mut(place as usize) {
            *count += 1;
        }
    }

    /// Returns the shift, if most requests start at one offset that is not the start of a block.
    pub fn suggestion(&self) -> Option<Suggestion> {
        let all: u64 = self.starts.iter().sum();
        let most = (0..).zip(self.starts).max_by_key(|(_, count)| *count);
        let (place, count): (u64, u64) = most.filter(|(place, _)| *place > 0)?;
        let percent = count * 100 / all.max(1);
        (percent >= MOST).then_some(Suggestion { shift: BLOCK - place * SECTOR, percent })
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::Op;

    use super::*;

    fn suggestion(offsets: &[u64]) -> Option<Suggestion> {
        let mut alignment = Alignment::default();
        for offset in offsets {
            let request = Request { time: None, op: Op::Read, offset: *offset, len: 1, device: 0 };
            alignment.add(&request);
        }
        alignment.suggestion()
    }

    #[test]
    fn the_offset_of_most_requests_decides() {
        assert_eq!(suggestion(&[]), None);
        assert_eq!(suggestion(&[0, 4096, 512]), None);
        assert_eq!(suggestion(&[512, 1024, 1536, 2048, 0, 4096]), None);
        let found = suggestion(&[63 * 512, 71 * 512, 79 * 512, 87 * 512, 0]);
        assert_eq!(found, Some(Suggestion { shift: 512, percent: 80 }));
    }
}
