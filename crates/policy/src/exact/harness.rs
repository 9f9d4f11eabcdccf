//! A cache around a policy, for tests: maps keys to nodes, and checks after each call.

use std::collections::HashMap;

use forebay_core::ReplacementKind;

use super::{BlockPolicy, Key, Node, build};

/// Outcome of an access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AccessOutcome {
    Hit,
    /// The key was not resident; the evicted key, if any.
    Miss(Option<u64>),
    /// The key was not resident and was not admitted.
    Refused,
}

pub(super) struct Cache {
    pub(super) policy: Box<dyn BlockPolicy>,
    capacity: u32,
    nodes: HashMap<u64, u32>,
    keys: HashMap<u32, u64>,
    free: Vec<u32>,
}

impl Cache {
    /// Creates a cache with a few more nodes than it needs.
    pub(super) fn new(kind: ReplacementKind, capacity: u32, seed: u64) -> Self {
        let nodes = capacity + 5;
        Cache {
            policy: build(kind, capacity, nodes, seed),
            capacity,
            nodes: HashMap::new(),
            keys: HashMap::new(),
            free: (0..nodes).collect(),
        }
    }

    pub(super) fn access(&mut self, key: u64) -> AccessOutcome {
        if let Some(node) = self.nodes.get(&key) {
            self.policy.hit(Node(*node));
            return AccessOutcome::Hit;
        }
        if !self.policy.admits(Key(key)) {
            return AccessOutcome::Refused;
        }
        let node = self.free.pop().expect("a node is free");
        let full = self.is_full();
        let left = self.policy.insert(Node(node), Key(key)).map(|left| self.left(left));
        assert_eq!(left.is_some(), full, "a block leaves if and only if the cache is full");
        self.nodes.insert(key, node);
        self.keys.insert(node, key);
        self.check();
        AccessOutcome::Miss(left)
    }

    /// Accounts for a block that was evicted. Returns its key.
    fn left(&mut self, Node(node): Node) -> u64 {
        let key = self.keys.remove(&node).expect("only a resident block leaves");
        self.nodes.remove(&key);
        self.free.push(node);
        key
    }

    pub(super) fn evict(&mut self) -> Option<u64> {
        let empty = self.nodes.is_empty();
        let left = self.policy.evict().map(|left| self.left(left));
        assert_eq!(left.is_none(), empty, "a block leaves if there is one");
        self.check();
        left
    }

    pub(super) fn remove(&mut self, key: u64) {
        if let Some(node) = self.nodes.remove(&key) {
            self.keys.remove(&node);
            self.policy.remove(Node(node));
            // Removing the node twice is not an error.
            self.policy.remove(Node(node));
            self.free.push(node);
            self.check();
        }
    }

    /// Moves a block to the node that was free for longest.
    pub(super) fn moved(&mut self, key: u64) {
        if let Some(from) = self.nodes.get(&key).copied() {
            let to = self.free.remove(0);
            self.policy.moved(Node(from), Node(to));
            self.keys.remove(&from);
            self.keys.insert(to, key);
            self.nodes.insert(key, to);
            self.free.push(from);
            self.check();
        }
    }

    pub(super) fn is_full(&self) -> bool {
        self.nodes.len() == self.capacity as usize
    }

    fn check(&self) {
        assert_eq!(self.policy.resident() as usize, self.nodes.len());
        assert!(self.nodes.len() <= self.capacity as usize);
    }
}

/// Keys that look like a workload: some hot ones, loops, and scans.
pub(super) fn workload(random: &mut fastrand::Rng, keys: u64, len: usize) -> Vec<u64> {
    let mut accesses = Vec::with_capacity(len);
    while accesses.len() < len {
        let start = random.u64(0..keys);
        let run = random.u64(1..keys.max(2));
        match random.u32(0..10) {
            0 => accesses.extend((0..run).map(|step| (start + step) % keys)),
            1 => accesses.extend((0..2 * run).map(|step| (start + step % run) % keys)),
            _ => accesses.extend((0..run).map(|_| {
                let share = random.f64();
                (share * share * share * keys as f64) as u64
            })),
        }
    }
    accesses.truncate(len);
    accesses
}
