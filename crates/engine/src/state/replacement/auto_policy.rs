//! The shadow caches of policy `auto` in the engine.
//!
//! Lanes put accesses to sampled blocks aside; `background::reclaim` shows them to the shadows, so
//! that no client waits for that. Until then at most [`AutoPolicy::MOST_ASIDE`] accesses are kept,
//! and further ones are dropped: all shadows miss them alike.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay_policy::auto::{Auto, RULES, Rule};
use forebay_policy::curve::{Access, Sample};
use forebay_policy::exact::Key;
use parking_lot::Mutex;

use crate::state::curve::FIRST;

enum Event {
    Access(Access, Key),
    Discard(Range<Key>),
}

/// See the module.
pub(crate) struct AutoPolicy {
    sample: Sample,
    aside: Mutex<Vec<Event>>,
    shadows: Mutex<Auto>,
    /// The rule in force, in [`RULES`].
    chosen: AtomicUsize,
    most_bytes: u64,
}

impl AutoPolicy {
    const MOST_ASIDE: usize = 4 << 10;

    /// Makes the shadows of a cache of `room` blocks, of which `percent` are kept.
    pub(super) fn new(room: u64, percent: u64) -> Self {
        let shadows = Auto::new(room, percent, FIRST);
        let aside = Self::MOST_ASIDE * size_of::<Event>();
        AutoPolicy {
            sample: shadows.sample(),
            aside: Mutex::default(),
            chosen: AtomicUsize::new(shadows.chosen()),
            most_bytes: shadows.most_bytes() + aside as u64,
            shadows: Mutex::new(shadows),
        }
    }

    /// Returns the rule in force.
    pub(crate) fn rule(&self) -> &'static Rule {
        RULES.get(self.chosen.load(Ordering::Relaxed)).unwrap_or(&Rule::S3_FIFO)
    }

    /// Puts aside the accesses of a request to sampled blocks. `key_of` makes a volume's block
    /// unique among volumes.
    pub(crate) fn access(&self, access: Access, blocks: Range<Key>, key_of: impl Fn(Key) -> Key) {
        for key in self.sample.of(blocks) {
            self.put_aside(Event::Access(access, key_of(key)));
        }
    }

    /// Puts aside a discard, if it has a sampled block.
    pub(crate) fn discard(&self, blocks: Range<Key>, key_of: impl Fn(Key) -> Key) {
        if self.sample.touches(blocks.clone()) {
            let end = Key(blocks.end.0.saturating_sub(1));
            let range = key_of(blocks.start)..Key(key_of(end).0.saturating_add(1));
            self.put_aside(Event::Discard(range));
        }
    }

    fn put_aside(&self, event: Event) {
        let mut aside = self.aside.lock();
        if aside.len() < Self::MOST_ASIDE {
            aside.push(event);
        }
    }

    /// Shows the shadows what was put aside, and takes over the rule that they choose.
    pub(crate) fn catch_up(&self) {
        let events = std::mem::take(&mut *self.aside.lock());
        if events.is_empty() {
            return;
        }
        let mut shadows = self.shadows.lock();
        for event in events {
            match event {
                Event::Access(access, key) => shadows.access(access, key),
                Event::Discard(keys) => shadows.discard(keys),
            }
        }
        let chosen = shadows.chosen();
        let before = self.chosen.swap(chosen, Ordering::Relaxed);
        if before != chosen {
            tracing::info!(rule = shadows.rule().name, "policy auto follows another rule");
        }
    }

    /// Returns a bound for the memory, in bytes.
    pub(super) fn most_bytes(&self) -> u64 {
        self.most_bytes
    }
}
