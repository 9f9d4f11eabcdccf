//! Giving a block another address.

use super::{Address, Index};
use crate::index::shard::Locked;
use crate::table::LocalKey;

/// The result of [`Index::relocate`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Relocated {
    /// The block has its new address.
    Done,
    /// The block is not cached.
    Absent,
    /// The new address has no room; nothing has changed.
    Full,
}

impl Index {
    /// Moves a block's entry to another address, which must be free. The entry is inserted there
    /// before it is removed here, under both locks.
    pub(crate) fn relocate(&self, from: Address, to: Address) -> Relocated {
        let (old, new) = (self.geometry.place(from.0), self.geometry.place(to.0));
        let lock = |shard: u32| self.shards[shard as usize].lock();
        if old.shard == new.shard {
            let mut shard = lock(old.shard);
            self.regions.occupy(to);
            return relocate(&mut shard, None, (old.key, from), (new.key, to));
        }
        // Locks are taken in ascending order. No other code holds two of them.
        let mut first = lock(old.shard.min(new.shard));
        let mut second = lock(old.shard.max(new.shard));
        self.regions.occupy(to);
        let (source, target) = if old.shard < new.shard {
            (&mut first, &mut second)
        } else {
            (&mut second, &mut first)
        };
        relocate(source, Some(target), (old.key, from), (new.key, to))
    }
}

/// Moves an entry from `source` to `target`; `target` is `None` within one shard.
fn relocate(
    source: &mut Locked<'_>,
    target: Option<&mut Locked<'_>>,
    (old, from): (LocalKey, Address),
    (new, to): (LocalKey, Address),
) -> Relocated {
    let Some((_, entry)) = source.table().get(old) else { return Relocated::Absent };
    let mask = if entry.partial { source.masks.get(from.0).cloned() } else { None };
    let sequence = source.sequence;
    let inserted = match target {
        None => insert(source, new, to, entry, mask),
        Some(target) => {
            // The target shard assigns the sequence of the block's next version, which must be
            // higher than those of all earlier versions (invariant 5).
            target.sequence = target.sequence.max(sequence);
            insert(target, new, to, entry, mask)
        }
    };
    if !inserted {
        return Relocated::Full;
    }
    source.table_mut().remove(old);
    source.masks.remove(from.0);
    Relocated::Done
}

fn insert(
    shard: &mut Locked<'_>,
    key: LocalKey,
    address: Address,
    entry: crate::table::Entry,
    mask: Option<forebay_core::SectorMask>,
) -> bool {
    if shard.table_mut().insert(key, entry).is_err() {
        return false;
    }
    if let Some(mask) = mask {
        // The source shard gives up a mask, so the memory of both together suffices.
        shard.masks.insert(address.0, mask);
    }
    true
}
