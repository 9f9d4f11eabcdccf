//! The groups of one ordered volume, oldest first.

use std::collections::btree_map::Entry as Place;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use forebay_core::{Nanos, OriginBlock, RecordNumber, SectorMask, Slot};
use forebay_format::DataEntry;
use parking_lot::Mutex;

use super::Horizon;
use crate::index::Index;
use crate::table::{Check, Entry};

/// A version that the origin has to receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OrderedVersion {
    /// Slot of the version.
    pub slot: Slot,
    /// The known bits of the version's checksum.
    pub(crate) check: Check,
    /// Valid sectors of the version; `None` for all. Boxed, because few versions have a mask and
    /// many wait.
    pub(crate) mask: Option<Box<SectorMask>>,
    /// Sequence of the version; 0 if it is older than all others.
    pub(crate) sequence: u64,
}

impl OrderedVersion {
    /// Creates the version that a record's entry describes.
    pub(crate) fn of(slot: Slot, entry: &DataEntry) -> Self {
        let mask = (!entry.mask.is_all()).then(|| Box::new(entry.mask.clone()));
        OrderedVersion { slot, check: Check::new(entry.check), mask, sequence: entry.sequence }
    }

    pub(crate) fn entry(&self) -> Entry {
        let partial = self.mask.is_some();
        Entry { slot: self.slot, dirty: true, partial, rank: 0, check: self.check }
    }
}

/// The versions written between two flushes.
#[derive(Debug)]
pub(crate) struct Group {
    /// The horizon once the origin has the group; the open group has no upper sequence.
    pub(crate) through: Horizon,
    /// Whether the group is complete, and durable on the cache device.
    pub(crate) confirmed: bool,
    /// Whether the origin durably has the group.
    written: bool,
    /// True if a block was written twice in this group; the log holds both versions.
    pub(crate) collapsed: bool,
    closed_at: Nanos,
    pub(crate) versions: BTreeMap<OriginBlock, OrderedVersion>,
}

impl Group {
    pub(crate) fn through(through: Horizon) -> Self {
        Group {
            through,
            confirmed: false,
            written: false,
            collapsed: false,
            closed_at: Nanos(0),
            versions: BTreeMap::new(),
        }
    }

    fn open() -> Self {
        Group::through(Horizon { sequence: u64::MAX, record: RecordNumber(0) })
    }

    /// Adds a version unless there is a newer one; returns the version that is superseded.
    pub(crate) fn add(
        &mut self,
        block: OriginBlock,
        version: OrderedVersion,
    ) -> Option<OrderedVersion> {
        match self.versions.entry(block) {
            Place::Vacant(place) => {
                place.insert(version);
                None
            }
            Place::Occupied(mut place) => {
                self.collapsed = true;
                if place.get().sequence <= version.sequence {
                    Some(place.insert(version))
                } else {
                    Some(version)
                }
            }
        }
    }
}

/// The next group for the origin.
#[derive(Debug)]
pub struct Front {
    /// Versions of the group, in the order of blocks.
    pub versions: Vec<(OriginBlock, OrderedVersion)>,
    /// The horizon must durably cover the groups before this one, before any of it is written.
    pub settle_first: bool,
    /// The horizon once the origin has the group.
    pub through: Horizon,
    /// The time at which the group was closed; blocks that are dirty later were written after that.
    pub closed_at: Nanos,
}

/// The versions released by a horizon.
pub(crate) struct Settled {
    pub(crate) versions: Vec<(OriginBlock, OrderedVersion)>,
    pub(crate) kept: Vec<OrderedVersion>,
}

struct State {
    /// The last one is open.
    groups: VecDeque<Group>,
    /// The horizon in the volume table; `None` if the volume is not in order there.
    horizon: Option<Horizon>,
    /// Whether flushes close groups. Before the first cut, all versions belong to the first group.
    separates: bool,
    /// The last cut.
    cut: u64,
    /// Number of versions in all groups.
    held: u64,
    /// Versions that the origin has, kept until the horizon has this sequence: from them recovery
    /// derives which other versions the origin has.
    kept: (u64, Vec<OrderedVersion>),
}

impl State {
    fn written(&self) -> usize {
        self.groups.iter().take_while(|group| group.written).count()
    }

    fn close(&mut self, sequence: u64, now: Nanos) {
        self.cut = sequence;
        if let Some(open) = self.groups.back_mut() {
            open.through = Horizon { sequence, record: RecordNumber(0) };
            open.closed_at = now;
        }
        self.groups.push_back(Group::open());
    }
}

/// The groups of one ordered volume.
pub(crate) struct GroupQueue(Mutex<State>);

impl GroupQueue {
    /// Creates an empty queue of a volume whose origin is at this horizon.
    pub(crate) fn new(horizon: Option<Horizon>) -> Self {
        Self::recovered(horizon, Vec::new(), 0, Vec::new())
    }

    /// Makes a queue from recovered groups; `cut` is the highest known sequence.
    pub(crate) fn recovered(
        horizon: Option<Horizon>,
        groups: Vec<Group>,
        cut: u64,
        kept: Vec<OrderedVersion>,
    ) -> Self {
        let mut groups: VecDeque<_> = groups.into();
        for group in &mut groups {
            group.confirmed = true;
        }
        groups.push_back(Group::open());
        let separates = horizon.is_some();
        let held = groups.iter().map(|group| group.versions.len() as u64).sum();
        GroupQueue(Mutex::new(State { groups, horizon, separates, cut, held, kept: (cut, kept) }))
    }

    /// Visits all held versions.
    pub(crate) fn each(&self, mut visit: impl FnMut(&OrderedVersion)) {
        let state = self.0.lock();
        for group in &state.groups {
            group.versions.values().for_each(&mut visit);
        }
        state.kept.1.iter().for_each(visit);
    }

    /// Returns whether any group has a version of a block.
    pub(crate) fn has(&self, block: OriginBlock) -> bool {
        self.0.lock().groups.iter().any(|group| group.versions.contains_key(&block))
    }

    pub(crate) fn in_effect(&self) -> bool {
        self.0.lock().horizon.is_some()
    }

    pub(crate) fn len(&self) -> u64 {
        self.0.lock().held
    }

    /// Adds a version to its group; returns the version that is not held afterwards.
    pub(crate) fn add(
        &self,
        block: OriginBlock,
        version: OrderedVersion,
    ) -> Option<OrderedVersion> {
        let state = &mut *self.0.lock();
        let mut at = state.groups.len().saturating_sub(1);
        while at > 0 && state.groups[at - 1].through.sequence >= version.sequence {
            at -= 1;
        }
        // A confirmed group is complete. If a version still arrives for it, which would be a bug,
        // it joins the next unconfirmed group, so that the origin receives it.
        while state.groups.get(at).is_some_and(|group| group.confirmed) {
            at += 1;
        }
        let Some(group) = state.groups.get_mut(at) else { return Some(version) };
        let left = group.add(block, version);
        state.held += u64::from(left.is_none());
        left
    }

    /// See [`Store::cut`](crate::Store::cut). Runs under the queue's lock, so that no version
    /// beyond the cut can be added before the cut is known.
    pub(crate) fn cut(&self, index: &Index, now: Nanos) -> u64 {
        let state = &mut *self.0.lock();
        let sequence = index.highest_sequence();
        index.raise_sequence(sequence);
        // A version that was unreadable when its group was written is in the open group again; then
        // a cut is needed even if nothing was written since the last one.
        let again = state.groups.back().is_some_and(|open| !open.versions.is_empty());
        if state.separates && (sequence > state.cut || again) {
            state.close(sequence, now);
        }
        sequence
    }

    /// Takes the cut after all versions that existed before the volume was ordered.
    pub(crate) fn first_cut(&self, index: &Index, now: Nanos) -> u64 {
        let state = &mut *self.0.lock();
        let sequence = index.highest_sequence();
        index.raise_sequence(sequence);
        state.separates = true;
        state.close(sequence, now);
        sequence
    }

    /// See [`Store::confirm_cut`](crate::Store::confirm_cut). Earlier unconfirmed cuts are no
    /// boundaries: no flush was acknowledged between them and this one, so the groups that they
    /// separate are merged. Returns the versions that are not held afterwards.
    pub(crate) fn confirm(&self, cut: u64) -> Vec<OrderedVersion> {
        let state = &mut *self.0.lock();
        let mut released = Vec::new();
        let beyond = |group: &&Group| group.through.sequence > cut;
        let ends = state.groups.len() - state.groups.iter().rev().take_while(beyond).count();
        let open = |group: &&Group| !group.confirmed;
        let start = ends - state.groups.range(..ends).rev().take_while(open).count();
        for _ in start + 1..ends {
            let Some(older) = state.groups.remove(start) else { break };
            let Some(group) = state.groups.get_mut(start) else { break };
            group.collapsed |= older.collapsed;
            for (block, version) in older.versions {
                released.extend(group.add(block, version));
            }
        }
        if start < ends
            && let Some(group) = state.groups.get_mut(start)
        {
            group.confirmed = true;
            if group.versions.is_empty() && state.horizon.is_some() {
                state.groups.remove(start);
            }
        }
        state.held -= released.len() as u64;
        released
    }

    /// See [`Store::drop_before`](crate::Store::drop_before).
    pub(crate) fn drop_through(&self, cut: u64) -> Vec<OrderedVersion> {
        let state = &mut *self.0.lock();
        let mut dropped = Vec::new();
        for group in &mut state.groups {
            let old = group.versions.extract_if(.., |_, version| version.sequence <= cut);
            dropped.extend(old.map(|(_, version)| version));
        }
        state.held -= dropped.len() as u64;
        dropped
    }

    pub(crate) fn front(&self) -> Option<Front> {
        let state = self.0.lock();
        let written = state.written();
        let next = state.groups.get(written).filter(|group| group.confirmed)?;
        let settle_first = state.groups.iter().take(written).any(|before| {
            // Without a horizon that covers `before`, recovery after a crash would write its
            // versions again: over newer ones of the next group, or, if a block was written twice
            // in it, an older version over the newer one although the next group has begun.
            let (few, many) = if before.versions.len() < next.versions.len() {
                (&before.versions, &next.versions)
            } else {
                (&next.versions, &before.versions)
            };
            before.collapsed || few.keys().any(|block| many.contains_key(block))
        });
        let settle_first = settle_first || (written > 0 && state.horizon.is_none());
        let versions = next.versions.iter().map(|(block, version)| (*block, version.clone()));
        let (versions, through) = (versions.collect(), next.through);
        Some(Front { versions, settle_first, through, closed_at: next.closed_at })
    }

    /// Marks the front group as on the origin, without the `unreadable` blocks. Returns their
    /// versions.
    pub(crate) fn written(
        &self,
        through: Horizon,
        unreadable: &BTreeSet<OriginBlock>,
    ) -> Vec<OrderedVersion> {
        let state = &mut *self.0.lock();
        let written = state.written();
        let front = state.groups.get_mut(written).filter(|group| group.through == through);
        let Some(group) = front else { return Vec::new() };
        group.written = true;
        let left: Vec<_> =
            unreadable.iter().filter_map(|block| group.versions.remove(block)).collect();
        state.held -= left.len() as u64;
        left
    }

    pub(crate) fn unwrite(&self) {
        self.0.lock().groups.iter_mut().for_each(|group| group.written = false);
    }

    /// Returns the number of versions that the origin has and that are not settled.
    pub(crate) fn unsettled(&self) -> Option<u64> {
        let state = self.0.lock();
        let written = state.written();
        let versions = state.groups.iter().take(written).map(|group| group.versions.len() as u64);
        (written > 0).then(|| versions.sum())
    }

    pub(crate) fn has_settled(&self, cut: u64) -> bool {
        let state = self.0.lock();
        let front = state.groups.front();
        state.horizon.is_some() && front.is_none_or(|group| group.through.sequence > cut)
    }

    /// Returns the horizon after all written groups; `None` if none was written.
    pub(crate) fn written_through(&self) -> Option<Horizon> {
        let state = self.0.lock();
        let written = state.groups.iter().take_while(|group| group.written);
        let through = written.map(|group| group.through).reduce(Horizon::max)?;
        Some(state.horizon.unwrap_or_default().max(through))
    }

    /// Removes the groups and kept versions that a durable horizon covers.
    pub(crate) fn settle(&self, horizon: Horizon) -> Settled {
        let state = &mut *self.0.lock();
        state.horizon = Some(horizon);
        let mut versions = Vec::new();
        let covered = |group: &&Group| {
            let Horizon { sequence, record } = group.through;
            group.written && sequence <= horizon.sequence && record <= horizon.record
        };
        for _ in 0..state.groups.iter().take_while(covered).count() {
            versions.extend(state.groups.pop_front().into_iter().flat_map(|group| group.versions));
        }
        state.held -= versions.len() as u64;
        let over = horizon.sequence >= state.kept.0;
        let kept = if over { std::mem::take(&mut state.kept.1) } else { Vec::new() };
        Settled { versions, kept }
    }

    /// Takes the order out of effect, but keeps collecting groups.
    pub(crate) fn release_all(&self) {
        self.0.lock().horizon = None;
    }

    /// Removes all versions and returns them.
    pub(crate) fn clear(&self) -> Vec<OrderedVersion> {
        let state = &mut *self.0.lock();
        let groups = std::mem::take(&mut state.groups).into_iter();
        let mut all: Vec<_> = groups.flat_map(|group| group.versions.into_values()).collect();
        all.append(&mut state.kept.1);
        state.held = 0;
        all
    }
}

#[cfg(test)]
mod tests;
