//! One tier of a shadow cache: a replacement policy and the blocks that it keeps.

use forebay_core::ReplacementKind;

use crate::exact::{BlockPolicy, Node, build};
use crate::table::Table;

/// Most tiers of all shadows together.
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
pub(super) type Blocks = Table<Nodes>;

/// What is known of a node.
#[derive(Clone, Copy, Debug, Default)]
struct Resident {
    /// The number of its block.
    block: u32,
    /// It was used since it entered.
    used: bool,
    /// It was read since it entered.
    read: bool,
}

/// See the module.
pub(super) struct Level {
    /// Its place in [`Nodes`].
    number: usize,
    policy: Box<dyn BlockPolicy>,
    nodes: Vec<Resident>,
    free: Vec<u16>,
}

impl Level {
    /// Makes an empty tier for `capacity` blocks, at least 1 and less than 65,535.
    pub(super) fn new(number: usize, kind: ReplacementKind, capacity: u32) -> Self {
        let nodes = capacity + 1;
        Level {
            number,
            policy: build(kind, capacity, nodes, 0),
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
        self.policy.admits(crate::exact::Key(key))
    }

    /// Notes a use. Returns whether the block is there.
    pub(super) fn hit(&mut self, blocks: &Blocks, block: u32) -> bool {
        let node = self.node(blocks, block);
        if let Some(node) = node {
            self.policy.hit(Node(node.into()));
            self.nodes[usize::from(node)].used = true;
        }
        node.is_some()
    }

    /// Returns whether the block is there and has not been used since it entered.
    pub(super) fn is_unused(&self, blocks: &Blocks, block: u32) -> bool {
        self.node(blocks, block).is_some_and(|node| !self.nodes[usize::from(node)].used)
    }

    /// Notes that a block that is there was read. Returns whether it had been read again before.
    pub(super) fn read_again(&mut self, blocks: &Blocks, block: u32) -> bool {
        let node = self.node(blocks, block).and_then(|node| self.nodes.get_mut(usize::from(node)));
        node.is_none_or(|resident| std::mem::replace(&mut resident.read, true))
    }

    /// Lets an absent block in. Returns the number of the block that left for it, which the caller has to
    /// release, and whether that one had been read again.
    pub(super) fn insert(&mut self, blocks: &mut Blocks, block: u32) -> Option<(u32, bool)> {
        // There is one node more than blocks can be there.
        let node = self.free.pop()?;
        let key = crate::exact::Key(blocks.blocks[block as usize].key);
        let left = self.policy.insert(Node(node.into()), key);
        self.nodes[usize::from(node)] = Resident { block, ..Resident::default() };
        blocks.blocks[block as usize].places.0[self.number] = node;
        blocks.hold(block);
        left.map(|Node(left)| self.forget(blocks, left as u16))
    }

    /// Frees the node of a block that has left the policy.
    fn forget(&mut self, blocks: &mut Blocks, node: u16) -> (u32, bool) {
        let Resident { block, read, .. } = self.nodes[usize::from(node)];
        blocks.blocks[block as usize].places.0[self.number] = ABSENT;
        self.free.push(node);
        (block, read)
    }

    /// Removes a block, if it is there.
    pub(super) fn remove(&mut self, blocks: &mut Blocks, block: u32) {
        if let Some(node) = self.node(blocks, block) {
            self.policy.remove(Node(node.into()));
            self.forget(blocks, node);
            blocks.release(block);
        }
    }

    /// Makes the tier one for `capacity` blocks, of those that it has and that `stays` names by their keys. They
    /// keep their order; to the policy they are blocks that have been used.
    pub(super) fn thin(&mut self, blocks: &mut Blocks, capacity: u32, stays: impl Fn(u64) -> bool) {
        let mut order = Vec::new();
        while let Some(Node(node)) = self.policy.evict() {
            let left = self.forget(blocks, node as u16);
            order.push(left);
        }
        *self = Level::new(self.number, self.policy.kind(), capacity);
        for (block, again) in order {
            if stays(blocks.blocks[block as usize].key) {
                if let Some((left, _)) = self.insert(blocks, block) {
                    blocks.release(left);
                }
                self.hit(blocks, block);
                self.hit(blocks, block);
                if again {
                    self.read_again(blocks, block);
                }
            }
            blocks.release(block);
        }
    }

    /// Returns the allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        self.policy.state_bytes().total()
            + self.nodes.capacity() * size_of::<Resident>()
            + self.free.capacity() * size_of::<u16>()
    }
}
