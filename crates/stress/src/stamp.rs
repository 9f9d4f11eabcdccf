//! The content of a sector: the number of the sector and of the write.

/// Bytes of a sector.
pub(crate) const SECTOR: usize = 512;
const WORD: usize = 8;

/// The number of a write of a sector: 1 for the first write; 0 before it.
pub(crate) type Sequence = u32;

/// The content of a sector.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectorValue {
    Zeroes,
    /// Written as this sector, with this sequence.
    Written(Sequence),
    /// The content of another sector, or a mixture of several writes.
    Alien,
}

/// Word `at` of a sector's content.
fn word(sector: u64, sequence: Sequence, at: u64) -> u64 {
    let head = sector << 32 | u64::from(sequence);
    match at {
        0 => head,
        at => (head ^ at << 56).wrapping_mul(0xd6e8_feb8_6659_fd93).rotate_left(at as u32),
    }
}

/// Fills a sector.
pub(crate) fn fill(into: &mut [u8], sector: u64, sequence: Sequence) {
    for (at, bytes) in into.chunks_exact_mut(WORD).enumerate() {
        bytes.copy_from_slice(&word(sector, sequence, at as u64).to_le_bytes());
    }
}

/// Reads a sector.
pub(crate) fn read(bytes: &[u8], sector: u64) -> SectorValue {
    let mut words = bytes.chunks_exact(WORD).map(|it| {
        let mut own = [0; WORD];
        own.copy_from_slice(it);
        u64::from_le_bytes(own)
    });
    let Some(head) = words.next() else { return SectorValue::Alien };
    if head == 0 {
        return if words.all(|word| word == 0) { SectorValue::Zeroes } else { SectorValue::Alien };
    }
    let sequence = head as Sequence;
    let own = words.zip(1..).all(|(found, at)| found == word(sector, sequence, at));
    if head >> 32 == sector && own { SectorValue::Written(sequence) } else { SectorValue::Alien }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_is_known_by_its_content_and_a_mixture_is_not() {
        let mut one = [0; SECTOR];
        assert_eq!(read(&one, 7), SectorValue::Zeroes);
        fill(&mut one, 7, 3);
        assert_eq!((read(&one, 7), read(&one, 8)), (SectorValue::Written(3), SectorValue::Alien));
        let mut other = [0; SECTOR];
        fill(&mut other, 7, 4);
        for at in (0..SECTOR).step_by(WORD) {
            let mut torn = other;
            torn[at..at + WORD].copy_from_slice(&one[at..at + WORD]);
            assert_eq!(read(&torn, 7), SectorValue::Alien, "{at}");
        }
    }
}
