//! Packed small numbers per node: one-bit marks, small counters.

/// One number of 1, 2, 4 or 8 bits per node, initially 0.
#[derive(Debug)]
pub(super) struct Fields {
    words: Vec<u64>,
    width: u32,
}

impl Fields {
    /// Creates the numbers for nodes `0..nodes`; `width` is 1, 2, 4 or 8 bits.
    pub(super) fn new(nodes: u32, width: u32) -> Self {
        debug_assert!(width.is_power_of_two() && width <= 8);
        let per_word = u64::from(64 / width);
        Fields { words: vec![0; u64::from(nodes).div_ceil(per_word) as usize], width }
    }

    fn place(&self, node: u32) -> (usize, u32) {
        let bit = u64::from(node) * u64::from(self.width);
        ((bit / 64) as usize, (bit % 64) as u32)
    }

    fn most(&self) -> u64 {
        (1 << self.width) - 1
    }

    /// Returns the number of a node.
    pub(super) fn get(&self, node: u32) -> u8 {
        let (word, shift) = self.place(node);
        (self.words[word] >> shift & self.most()) as u8
    }

    /// Whether the number is not 0.
    pub(super) fn is_set(&self, node: u32) -> bool {
        self.get(node) != 0
    }

    /// Sets the number; a value that is too large becomes the largest.
    pub(super) fn set(&mut self, node: u32, value: u8) {
        let (word, shift) = self.place(node);
        let value = u64::from(value).min(self.most());
        let rest = self.words[word] & !(self.most() << shift);
        self.words[word] = rest | value << shift;
    }

    /// Moves the number of `from` to `to`, and leaves 0.
    pub(super) fn replace(&mut self, from: u32, to: u32) {
        let value = self.get(from);
        self.set(from, 0);
        self.set(to, value);
    }

    /// Returns the allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_left_alone() {
        for width in [1, 2, 4, 8] {
            let mut fields = Fields::new(100, width);
            let most = ((1u32 << width) - 1) as u8;
            for node in 0..100 {
                fields.set(node, (node as u8) & most);
            }
            for node in 0..100 {
                assert_eq!(fields.get(node), (node as u8) & most);
            }
            fields.set(50, u8::MAX);
            assert_eq!(fields.get(50), most);
            assert_eq!((fields.get(49), fields.get(51)), (49 & most, 51 & most));
            fields.replace(50, 7);
            assert_eq!((fields.get(50), fields.get(7)), (0, most));
        }
    }
}
