//! Adapts a policy with lists to the log: a block's node is the number of its cell.
//!
//! Lanes only buffer events, each in a list of its own; they are applied to the policy when its
//! answer is needed. So lanes do not wait for each other at every hit, and nearly simultaneous
//! events of two lanes may be applied in the wrong order. That affects only which blocks are kept:
//! an event about a cell that has meanwhile been reused is corrected when its segment is reclaimed.
//!
//! Blocks that the policy evicts stay readable until their segment is reclaimed, and a hit inserts
//! them again.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use forebay_core::{ReplacementKind, SegmentId, Slot};
use forebay_policy::exact::{BlockPolicy, Key, Node, build};
use forebay_store::Store;
use parking_lot::Mutex;

/// Events buffered per lane before they are applied to the policy.
const NOTED: usize = 256;

#[derive(Clone, Copy, Debug)]
enum CellEvent {
    /// The block in this cell was used.
    Hit(Node, Key),
    /// A version was appended to the first cell; the second had the block's previous version.
    Placed(Node, Option<Node>, Key),
    /// A version was reinserted into the first cell from the second.
    Moved(Node, Node),
    /// The block in this cell is no longer cached.
    Gone(Node),
}

#[repr(align(128))]
#[derive(Default)]
struct PaddedEvents(Mutex<Vec<CellEvent>>);

/// The policy, and the events to apply to it.
struct Listener {
    policy: Box<dyn BlockPolicy>,
    /// Empty except while events are applied; keeps its memory.
    events: Vec<CellEvent>,
}

/// A policy with lists, shared by all lanes.
pub(crate) struct ListPolicy {
    listener: Mutex<Listener>,
    lanes: Box<[PaddedEvents]>,
    /// One bit for each cell: whether the policy keeps its block.
    kept: Box<[AtomicU64]>,
    /// Kept blocks of each segment.
    kept_in: Box<[AtomicU32]>,
    granules_per_block: u32,
    nodes_per_segment: u32,
    /// The policy admits every block.
    lets_all_in: bool,
}

impl ListPolicy {
    /// Returns a policy of this kind that keeps at most `capacity` blocks of a store.
    pub(super) fn new(kind: ReplacementKind, capacity: u64, store: &Store, lanes: usize) -> Self {
        let geometry = store.geometry();
        let nodes_per_segment = (geometry.segment_bytes / geometry.block.bytes()) as u32;
        let segments = store.segments.count();
        let nodes = nodes_per_segment.saturating_mul(segments);
        let capacity = u32::try_from(capacity).unwrap_or(u32::MAX);
        ListPolicy {
            listener: Mutex::new(Listener {
                policy: build(kind, capacity, nodes, store.options().seed),
                events: Vec::new(),
            }),
            lanes: (0..lanes.max(1)).map(|_| PaddedEvents::default()).collect(),
            kept: (0..nodes.div_ceil(64)).map(|_| AtomicU64::new(0)).collect(),
            kept_in: (0..segments).map(|_| AtomicU32::new(0)).collect(),
            granules_per_block: geometry.granules_per_block() as u32,
            nodes_per_segment,
            lets_all_in: kind != ReplacementKind::Smq,
        }
    }

    fn node(&self, slot: Slot) -> Node {
        Node(slot.0 / self.granules_per_block)
    }

    /// Records a hit on the block in `slot`.
    pub(crate) fn hit(&self, lane: usize, slot: Slot, key: Key) {
        self.note(lane, CellEvent::Hit(self.node(slot), key));
    }

    /// Records a version appended to `slot`; the previous version is in `old`.
    pub(crate) fn placed(&self, lane: usize, slot: Slot, old: Option<Slot>, key: Key) {
        let old = old.map(|slot| self.node(slot));
        self.note(lane, CellEvent::Placed(self.node(slot), old, key));
    }

    /// Records a block reinserted from `old` into `slot`.
    pub(crate) fn moved(&self, lane: usize, slot: Slot, old: Slot) {
        self.note(lane, CellEvent::Moved(self.node(slot), self.node(old)));
    }

    /// Records that the block in `slot` is no longer cached.
    pub(crate) fn gone(&self, lane: usize, slot: Slot) {
        self.note(lane, CellEvent::Gone(self.node(slot)));
    }

    fn note(&self, lane: usize, event: CellEvent) {
        let full = {
            let mut noted = self.lanes[lane % self.lanes.len()].0.lock();
            noted.push(event);
            noted.len() >= NOTED
        };
        // If the policy is locked, the holder of the lock or the next event applies these.
        if full && let Some(mut listener) = self.listener.try_lock() {
            self.hear(&mut listener);
        }
    }

    /// Applies all buffered events to the policy, and makes it evict blocks until it keeps `most`.
    pub(crate) fn demote(&self, most: u64) {
        let mut listener = self.listener.lock();
        self.hear(&mut listener);
        while u64::from(listener.policy.resident()) > most
            && let Some(left) = listener.policy.evict()
        {
            self.set(left, false);
        }
    }

    fn hear(&self, listener: &mut Listener) {
        for lane in &self.lanes {
            listener.events.append(&mut lane.0.lock());
        }
        let policy = &mut *listener.policy;
        for event in listener.events.drain(..) {
            match event {
                CellEvent::Hit(node, key) => self.used(policy, node, key),
                CellEvent::Gone(node) => self.remove(policy, node),
                CellEvent::Moved(node, old) => self.follow(policy, node, old),
                CellEvent::Placed(node, old, key) => {
                    self.follow(policy, node, old.unwrap_or(node));
                    self.used(policy, node, key);
                }
            }
        }
    }

    /// Moves the block in `old` to `node`, which is free.
    fn follow(&self, policy: &mut dyn BlockPolicy, node: Node, old: Node) {
        self.remove(policy, node);
        if self.is_kept(old) {
            self.set(old, false);
            policy.moved(old, node);
            self.set(node, true);
        }
    }

    /// Records a hit, or inserts a block that the policy does not keep.
    fn used(&self, policy: &mut dyn BlockPolicy, node: Node, key: Key) {
        if self.is_kept(node) {
            policy.hit(node);
            return;
        }
        let left = policy.insert(node, key);
        self.set(node, true);
        if let Some(left) = left {
            self.set(left, false);
        }
    }

    fn remove(&self, policy: &mut dyn BlockPolicy, node: Node) {
        if self.is_kept(node) {
            policy.remove(node);
            self.set(node, false);
        }
    }

    fn is_kept(&self, node: Node) -> bool {
        let word = self.kept.get(node.0 as usize / 64);
        word.is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (node.0 % 64) != 0)
    }

    /// Changes a bit. The caller holds the policy's lock.
    fn set(&self, node: Node, kept: bool) {
        let bit = 1 << (node.0 % 64);
        let Some(word) = self.kept.get(node.0 as usize / 64) else { return };
        let count = self.kept_in.get((node.0 / self.nodes_per_segment) as usize);
        let was = if kept {
            word.fetch_or(bit, Ordering::Relaxed)
        } else {
            word.fetch_and(!bit, Ordering::Relaxed)
        } & bit
            != 0;
        match count {
            Some(count) if kept && !was => drop(count.fetch_add(1, Ordering::Relaxed)),
            Some(count) if was && !kept => drop(count.fetch_sub(1, Ordering::Relaxed)),
            _ => (),
        }
    }

    /// Returns whether the policy keeps the block in `slot`.
    pub(crate) fn keeps(&self, slot: Slot) -> bool {
        self.is_kept(self.node(slot))
    }

    /// Returns how many blocks of a segment the policy keeps.
    pub(crate) fn kept_in(&self, segment: SegmentId) -> u32 {
        self.kept_in.get(segment.0 as usize).map_or(0, |count| count.load(Ordering::Relaxed))
    }

    /// Removes a segment's blocks from the policy, because the segment is about to become free.
    pub(crate) fn emptied(&self, segment: SegmentId) {
        let mut listener = self.listener.lock();
        self.hear(&mut listener);
        if self.kept_in(segment) == 0 {
            return;
        }
        let first = segment.0 * self.nodes_per_segment;
        for node in first..first + self.nodes_per_segment {
            self.remove(&mut *listener.policy, Node(node));
        }
    }

    /// Returns whether an absent block may enter. Must be called once per miss.
    pub(crate) fn admits(&self, key: Key) -> bool {
        if self.lets_all_in {
            return true;
        }
        let mut listener = self.listener.lock();
        self.hear(&mut listener);
        listener.policy.admits(key)
    }

    /// Inserts a block that was cached before the policy was created.
    pub(crate) fn begin(&self, slot: Slot, key: Key) {
        let mut listener = self.listener.lock();
        let node = self.node(slot);
        if !self.is_kept(node) {
            self.used(&mut *listener.policy, node, key);
        }
    }

    /// Returns the memory in bytes: for cached blocks, and for ghosts.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let state = self.listener.lock().policy.state_bytes();
        let own = self.kept.len() * size_of::<AtomicU64>() + self.kept_in.len() * size_of::<u32>();
        ((state.resident + own) as u64, state.ghosts as u64)
    }
}
