//! Reading through a whole table, a part at a time.
//!
//! Insertions move other entries about. A scan in parts would miss an entry that moves from a
//! bucket that is still to be read to one that has been read, so while a scan is under way the
//! table notes the keys of these.

use std::mem::size_of;
use std::ops::Range;

use super::{Entry, LocalKey, Table};

/// How far the scan of a table has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    /// The first bucket that is still to be read; 0 when no scan is under way.
    next: usize,
    /// Keys that moved out of the way of the scan.
    missed: Vec<LocalKey>,
}

impl Progress {
    /// Whether an entry that moves between these buckets gets out of the way of the scan.
    #[inline]
    pub(super) fn is_missed(&self, from: usize, to: usize) -> bool {
        to < self.next && self.next <= from
    }

    /// Has the scan visit `key` at its end.
    pub(super) fn note(&mut self, key: LocalKey) {
        self.missed.push(key);
    }

    /// Bytes on the heap.
    pub(super) fn bytes(&self) -> u64 {
        (self.missed.capacity() * size_of::<LocalKey>()) as u64
    }
}

impl Table {
    /// Visits every entry whose position is in the `range` of bucket numbers, and those of the
    /// overflow list whose first bucket is. Numbers past the last bucket are ignored.
    ///
    /// Ranges that cover the table visit each entry exactly once if nothing is inserted or removed
    /// meanwhile; if that may happen, use [`Table::scan_next`].
    pub fn for_each_in(&self, range: Range<usize>, visit: impl FnMut(LocalKey, Entry)) {
        self.for_each_where(range, |_| true, visit);
    }

    /// As [`Table::for_each_in`], only entries that are `wanted`: what a key is costs more to find
    /// out than what its entry says.
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

    /// Starts a scan from the beginning; one that is under way is given up. A scan that is left
    /// unfinished costs 8 bytes for each entry that moves past it, until this is called.
    pub fn scan_start(&mut self) {
        self.scan = Progress::default();
    }

    /// Visits the entries in the next `buckets` buckets and returns whether there is more to scan.
    ///
    /// From [`Table::scan_start`] to the first `false`, every entry that is there all the time is
    /// visited at least once, whatever is inserted, changed and removed between the calls. An
    /// entry that moves may be visited twice; one that is inserted meanwhile, once, twice or not at
    /// all. After a `false` the next call starts over.
    pub fn scan_next(&mut self, buckets: usize, mut visit: impl FnMut(LocalKey, Entry)) -> bool {
        let start = self.scan.next;
        let end = start.saturating_add(buckets.max(1)).min(self.buckets.len());
        self.visit_buckets(start..end, &mut |_| true, &mut visit);
        if end < self.buckets.len() {
            self.scan.next = end;
            return true;
        }
        for overflow in &self.overflow {
            visit(overflow.key, self.layout.entry(overflow.word));
        }
        let missed = std::mem::take(&mut self.scan).missed;
        for key in missed {
            if let Some((_, entry)) = self.get(key) {
                visit(key, entry);
            }
        }
        false
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
            for &word in words.0.iter().filter(|&&word| word != 0) {
                let entry = self.layout.entry(word);
                if wanted(&entry) {
                    visit(self.key_of(word, start + bucket), entry);
                }
            }
        }
    }
}
