//! Scanning a whole table.

use std::ops::Range;

use forebay_core::sync::atomic::Ordering;

use super::{Entry, LocalKey, Table};

impl Table {
    /// Visits every entry in the `range` of bucket numbers, and those in the overflow list whose
    /// first bucket is in it. Numbers past the last bucket are ignored.
    ///
    /// Ranges that cover the table visit each entry exactly once if nothing is inserted or removed
    /// meanwhile. An insertion may move any entry, so an entry can be missed otherwise.
    pub fn for_each_in(&self, range: Range<usize>, visit: impl FnMut(LocalKey, Entry)) {
        self.for_each_where(range, |_| true, visit);
    }

    /// Like [`Table::for_each_in`], but only for entries that are `wanted`. Testing an entry is
    /// cheaper than computing its key.
    #[inline]
    pub fn for_each_where(
        &self,
        range: Range<usize>,
        mut wanted: impl FnMut(&Entry) -> bool,
        mut visit: impl FnMut(LocalKey, Entry),
    ) {
        self.visit_buckets(range.clone(), &mut wanted, &mut visit);
        for overflow in &self.overflow {
            let entry = self.layout.entry(overflow.word);
            if range.contains(&self.divide(overflow.key).1) && wanted(&entry) {
                visit(overflow.key, entry);
            }
        }
    }

    #[inline]
    fn visit_buckets(
        &self,
        range: Range<usize>,
        wanted: &mut impl FnMut(&Entry) -> bool,
        visit: &mut impl FnMut(LocalKey, Entry),
    ) {
        let end = range.end.min(self.buckets.len());
        let start = range.start.min(end);
        for (bucket, words) in self.buckets[start..end].iter().enumerate() {
            let words = words.iter().map(|word| word.load(Ordering::Relaxed));
            for word in words.filter(|word| *word != 0) {
                let entry = self.layout.entry(word);
                if wanted(&entry) {
                    visit(self.key_of(word, start + bucket), entry);
                }
            }
        }
    }
}
