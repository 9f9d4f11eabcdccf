//! One tier of a shadow cache: a replacement policy and its blocks.
//!
//! A tier on the cache device is a log, of which the policy keeps a part. Blocks that it demotes
//! are readable until their space is needed; a dirty block stays until it has been written back,
//! even if the policy demotes it.

use forebay_core::ReplacementKind;

use crate::exact::list::Lists;
use crate::exact::{BlockPolicy, Key, Node, build, build_for_log};
use crate::table::BlockTable;

/// Maximum number of tiers of all shadows together.
pub(super) const MOST_LEVELS: usize = 24;

/// Marks a block that a tier does not have.
const ABSENT: u16 = u16::MAX;

/// For each tier, the node of a block.
#[derive(Clone, Debug)]
pub(super) struct Nodes([u16; MOST_LEVELS]);

impl Default for Nodes {
    fn default() -> Self {
        Nodes([ABSENT; MOST_LEVELS])
    }
}

/// The blocks that any shadow has.
pub(super) type Blocks = BlockTable<Nodes>;

/// State of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Resident {
    /// The number of the block.
    block: u32,
    /// Whether the block was used since it entered.
    used: bool,
    /// Whether the block was read since it entered.
    read: bool,
}

/// The index of the only list in each [`Lists`] here.
const ALL: usize = 0;

/// State that a log adds to a policy.
struct LogState {
    /// Demoted blocks, in the order in which their space is reused.
    demoted: Lists,
    dirty: Dirty,
    /// Dirty blocks that are demoted.
    demoted_dirty: u32,
    most_dirty: u32,
    /// Number of blocks that the policy keeps if none is demoted and dirty.
    kept: u32,
    /// Whether dirty demoted blocks reduce the number of kept blocks, as with ranks.
    yields_to_dirty: bool,
}

/// Dirty blocks. They are written back in the order of their nodes. This order is as independent of
/// their age as that of their addresses on the disk, in which the real writeback sweeps.
struct Dirty {
    is_dirty: Vec<bool>,
    number: u32,
    /// Position at which the sweep continues.
    hand: usize,
}

impl Dirty {
    fn new(nodes: u32) -> Self {
        Dirty { is_dirty: vec![false; nodes as usize], number: 0, hand: 0 }
    }

    fn holds(&self, node: u32) -> bool {
        self.is_dirty[node as usize]
    }

    /// Sets the state of a node. Returns whether that changed it.
    fn set(&mut self, node: u32, dirty: bool) -> bool {
        let before = std::mem::replace(&mut self.is_dirty[node as usize], dirty);
        self.number = self.number + u32::from(dirty) - u32::from(before);
        before != dirty
    }

    /// Removes and returns the next dirty node.
    fn pop(&mut self) -> Option<u32> {
        let (passed, ahead) = self.is_dirty.split_at(self.hand);
        let next = ahead.iter().chain(passed).position(|dirty| *dirty)?;
        let node = (self.hand + next) % self.is_dirty.len();
        self.hand = node;
        self.set(node as u32, false);
        Some(node as u32)
    }
}

/// See the module.
pub(super) struct Level {
    /// Number of the tier in [`Nodes`].
    number: usize,
    kind: ReplacementKind,
    policy: Box<dyn BlockPolicy>,
    log: Option<LogState>,
    nodes: Vec<Resident>,
    free: Vec<u16>,
}

impl Level {
    /// Creates an empty tier in RAM for `room` blocks, at least 1 and less than 65,534.
    pub(super) fn new(number: usize, kind: ReplacementKind, room: u32) -> Self {
        let policy = build(kind, room, room + 1, 0);
        Level::with(number, kind, room, policy, None)
    }

    /// Makes an empty tier in a log with room for `room` blocks, within the same limits.
    pub(super) fn in_log(number: usize, kind: ReplacementKind, room: u32) -> Self {
        let policy = build_for_log(kind, room, room + 1);
        let log = LogState {
            demoted: Lists::new(room + 1, 1),
            dirty: Dirty::new(room + 1),
            demoted_dirty: 0,
            most_dirty: room,
            kept: crate::Shares::of(room.into(), kind).kept as u32,
            yields_to_dirty: kind == ReplacementKind::S3Fifo,
        };
        Level::with(number, kind, room, policy, Some(log))
    }

    fn with(
        number: usize,
        kind: ReplacementKind,
        room: u32,
        policy: Box<dyn BlockPolicy>,
        log: Option<LogState>,
    ) -> Self {
        // One more than blocks can be there: a block enters before another one leaves.
        let nodes = room + 1;
        Level {
            number,
            kind,
            policy,
            log,
            nodes: vec![Resident::default(); nodes as usize],
            free: (0..nodes as u16).rev().collect(),
        }
    }

    fn node(&self, blocks: &Blocks, block: u32) -> Option<u16> {
        let node = blocks.blocks[block as usize].places.0[self.number];
        (node != ABSENT).then_some(node)
    }

    pub(super) fn has(&self, blocks: &Blocks, block: u32) -> bool {
        self.node(blocks, block).is_some()
    }

    /// Whether the policy lets a missed block in.
    pub(super) fn admits(&mut self, key: u64) -> bool {
        self.policy.admits(Key(key))
    }

    /// Records a use. Returns whether the block is in the tier.
    pub(super) fn hit(&mut self, blocks: &Blocks, block: u32) -> bool {
        self.used(blocks, block, false)
    }

    /// Records that a block was overwritten and is clean. Returns whether it is in the tier.
    pub(super) fn overwrite(&mut self, blocks: &Blocks, block: u32) -> bool {
        self.used(blocks, block, true)
    }

    fn used(&mut self, blocks: &Blocks, block: u32, overwritten: bool) -> bool {
        let Some(node) = self.node(blocks, block) else { return false };
        self.nodes[usize::from(node)].used = true;
        let number = u32::from(node);
        match &mut self.log {
            Some(log) if log.demoted.holds(number) => {
                log.take_demoted(number);
                let key = Key(blocks.blocks[block as usize].key);
                let left = self.policy.returned(Node(number), key);
                self.demote(left);
            }
            _ if overwritten => self.policy.overwritten(Node(number)),
            _ => self.policy.hit(Node(number)),
        }
        true
    }

    /// Adds a block that has left the policy to the demoted ones, and demotes more if too many are
    /// demoted and dirty.
    fn demote(&mut self, left: Option<Node>) {
        let Some(log) = &mut self.log else { return };
        left.into_iter().for_each(|Node(node)| log.add_demoted(node));
        while log.yields_to_dirty
            && self.policy.resident() > log.kept.saturating_sub(log.demoted_dirty).max(1)
            && let Some(Node(node)) = self.policy.evict()
        {
            log.add_demoted(node);
        }
    }

    /// Makes a block of the tier dirty, and others clean if there are too many dirty ones.
    pub(super) fn set_dirty(&mut self, blocks: &Blocks, block: u32) {
        let node = self.node(blocks, block);
        let Some(log) = &mut self.log else { return };
        if let Some(node) = node
            && log.dirty.set(node.into(), true)
        {
            log.demoted_dirty += u32::from(log.demoted.holds(node.into()));
        }
        log.write_back();
    }

    /// Sets the maximum number of dirty blocks.
    pub(super) fn set_most_dirty(&mut self, most: u32) {
        if let Some(log) = &mut self.log {
            log.most_dirty = most;
            log.write_back();
        }
    }

    /// Returns whether the block is in the tier and has not been used since it entered.
    pub(super) fn is_unused(&self, blocks: &Blocks, block: u32) -> bool {
        self.node(blocks, block).is_some_and(|node| !self.nodes[usize::from(node)].used)
    }

    /// Records that a block of the tier was read. Returns whether it had been read again before.
    pub(super) fn read_again(&mut self, blocks: &Blocks, block: u32) -> bool {
        let node = self.node(blocks, block).and_then(|node| self.nodes.get_mut(usize::from(node)));
        node.is_none_or(|resident| std::mem::replace(&mut resident.read, true))
    }

    /// Inserts an absent block. Returns the number of the block that was evicted for it, which the
    /// caller has to release, and whether that block had been read again.
    pub(super) fn insert(&mut self, blocks: &mut Blocks, block: u32) -> Option<(u32, bool)> {
        let node = self.free.pop()?;
        let key = Key(blocks.blocks[block as usize].key);
        let mut left = self.policy.insert(Node(node.into()), key);
        self.nodes[usize::from(node)] = Resident { block, ..Resident::default() };
        blocks.blocks[block as usize].places.0[self.number] = node;
        blocks.hold(block);
        if self.log.is_some() {
            self.demote(left);
            left = if self.free.is_empty() { self.evict() } else { None };
        }
        left.map(|Node(left)| self.forget(blocks, left as u16))
    }

    /// Takes the space of a demoted block, or of any other if none is demoted.
    fn evict(&mut self) -> Option<Node> {
        let Some(log) = &mut self.log else { return self.policy.evict() };
        // Dirty blocks move to the end of the log. If all are dirty, one has to be written back.
        for _ in 0..log.demoted.len(ALL) {
            match log.demoted.oldest(ALL) {
                Some(node) if log.dirty.holds(node) => log.demoted.renew(ALL, node),
                _ => break,
            }
        }
        let Some(node) = log.demoted.oldest(ALL) else { return self.policy.evict() };
        log.take_demoted(node);
        Some(Node(node))
    }

    /// Frees the node of a block that has left the policy and the log.
    fn forget(&mut self, blocks: &mut Blocks, node: u16) -> (u32, bool) {
        let Resident { block, read, .. } = self.nodes[usize::from(node)];
        if let Some(log) = &mut self.log {
            log.dirty.set(node.into(), false);
        }
        blocks.blocks[block as usize].places.0[self.number] = ABSENT;
        self.free.push(node);
        (block, read)
    }

    /// Removes a block if it is in the tier.
    pub(super) fn remove(&mut self, blocks: &mut Blocks, block: u32) {
        let Some(node) = self.node(blocks, block) else { return };
        match &mut self.log {
            Some(log) if log.demoted.holds(node.into()) => log.take_demoted(node.into()),
            _ => self.policy.remove(Node(node.into())),
        }
        self.forget(blocks, node);
        blocks.release(block);
    }

    /// Reduces the tier to `room` blocks, of those in it whose keys `stays` accepts. They keep
    /// their order; to the policy they are used blocks.
    pub(super) fn thin(&mut self, blocks: &mut Blocks, room: u32, stays: impl Fn(u64) -> bool) {
        let mut order = Vec::new();
        while let Some(Node(node)) = self.evict() {
            let dirty = self.log.as_ref().is_some_and(|log| log.dirty.holds(node));
            order.push((self.forget(blocks, node as u16), dirty));
        }
        *self = match self.log {
            None => Level::new(self.number, self.kind, room),
            Some(_) => Level::in_log(self.number, self.kind, room),
        };
        for ((block, again), dirty) in order {
            if stays(blocks.blocks[block as usize].key) {
                if let Some((left, _)) = self.insert(blocks, block) {
                    blocks.release(left);
                }
                self.hit(blocks, block);
                self.hit(blocks, block);
                if again {
                    self.read_again(blocks, block);
                }
                if dirty {
                    self.set_dirty(blocks, block);
                }
            }
            blocks.release(block);
        }
    }

    /// Returns the allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        let lists =
            self.log.as_ref().map_or(0, |log| log.demoted.bytes() + log.dirty.is_dirty.len());
        self.policy.state_bytes().total()
            + lists
            + self.nodes.capacity() * size_of::<Resident>()
            + self.free.capacity() * size_of::<u16>()
    }
}

impl LogState {
    fn add_demoted(&mut self, node: u32) {
        self.demoted.push(ALL, node);
        self.demoted_dirty += u32::from(self.dirty.holds(node));
    }

    fn take_demoted(&mut self, node: u32) {
        self.demoted.remove(ALL, node);
        self.demoted_dirty -= u32::from(self.dirty.holds(node));
    }

    fn write_back(&mut self) {
        while self.dirty.number > self.most_dirty
            && let Some(node) = self.dirty.pop()
        {
            self.demoted_dirty -= u32::from(self.demoted.holds(node));
        }
    }
}
