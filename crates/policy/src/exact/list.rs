//! Doubly linked lists of nodes in one array: the order of eviction.
//!
//! A node is in at most one list. Each list has an anchor, stored behind the nodes; list and anchor
//! form a ring, so that no operation has a special case for an end. A node linked to itself is in
//! no list. 8 bytes per node; nothing is allocated after construction.

/// The neighbours of a node.
#[derive(Clone, Copy, Debug)]
struct Neighbours {
    older: u32,
    newer: u32,
}

/// Lists over nodes `0..nodes`.
#[derive(Debug)]
pub(crate) struct Lists {
    links: Vec<Neighbours>,
    nodes: u32,
    lens: Vec<u32>,
}

impl Lists {
    /// Makes `lists` empty lists over `nodes` nodes; together fewer than 2^32.
    pub(crate) fn new(nodes: u32, lists: u32) -> Self {
        let all = nodes.saturating_add(lists);
        Lists {
            links: (0..all).map(|place| Neighbours { older: place, newer: place }).collect(),
            nodes,
            lens: vec![0; lists as usize],
        }
    }

    fn anchor(&self, list: usize) -> u32 {
        self.nodes + list as u32
    }

    /// Returns the node at a place, or `None` for an anchor.
    fn node(&self, place: u32) -> Option<u32> {
        (place < self.nodes).then_some(place)
    }

    /// Returns the number of nodes in a list.
    pub(crate) fn len(&self, list: usize) -> u32 {
        self.lens[list]
    }

    /// Whether the node is in any list.
    pub(crate) fn holds(&self, node: u32) -> bool {
        self.links[node as usize].newer != node
    }

    /// Returns the node that has been in the list for longest.
    pub(crate) fn oldest(&self, list: usize) -> Option<u32> {
        self.node(self.links[self.anchor(list) as usize].newer)
    }

    /// Returns the node that was added last.
    pub(crate) fn newest(&self, list: usize) -> Option<u32> {
        self.node(self.links[self.anchor(list) as usize].older)
    }

    /// Returns the node added next after this one, in the same list.
    pub(crate) fn newer(&self, node: u32) -> Option<u32> {
        self.node(self.links[node as usize].newer)
    }

    /// Appends a node, which is in no list, as the newest.
    pub(crate) fn push(&mut self, list: usize, node: u32) {
        debug_assert!(!self.holds(node), "node {node} is in a list");
        let anchor = self.anchor(list);
        let last = self.links[anchor as usize].older;
        self.links[node as usize] = Neighbours { older: last, newer: anchor };
        self.links[last as usize].newer = node;
        self.links[anchor as usize].older = node;
        self.lens[list] += 1;
    }

    /// Prepends a node, which is in no list, as the oldest.
    pub(crate) fn push_oldest(&mut self, list: usize, node: u32) {
        debug_assert!(!self.holds(node), "node {node} is in a list");
        let anchor = self.anchor(list);
        let first = self.links[anchor as usize].newer;
        self.links[node as usize] = Neighbours { older: anchor, newer: first };
        self.links[first as usize].older = node;
        self.links[anchor as usize].newer = node;
        self.lens[list] += 1;
    }

    /// Removes a node from its list.
    pub(crate) fn remove(&mut self, list: usize, node: u32) {
        debug_assert!(self.holds(node), "node {node} is in no list");
        let Neighbours { older, newer } = self.links[node as usize];
        self.links[older as usize].newer = newer;
        self.links[newer as usize].older = older;
        self.links[node as usize] = Neighbours { older: node, newer: node };
        self.lens[list] -= 1;
    }

    /// Removes the oldest node.
    pub(crate) fn pop(&mut self, list: usize) -> Option<u32> {
        let node = self.oldest(list)?;
        self.remove(list, node);
        Some(node)
    }

    /// Makes a node the newest of its list.
    pub(crate) fn renew(&mut self, list: usize, node: u32) {
        self.remove(list, node);
        self.push(list, node);
    }

    /// Puts `to`, which is in no list, in the place of `from`.
    pub(crate) fn replace(&mut self, from: u32, to: u32) {
        debug_assert!(self.holds(from) && !self.holds(to), "{from} is not there, or {to} is");
        let link = self.links[from as usize];
        self.links[to as usize] = link;
        self.links[link.older as usize].newer = to;
        self.links[link.newer as usize].older = to;
        self.links[from as usize] = Neighbours { older: from, newer: from };
    }

    /// Appends all nodes of one list to another; the first is empty then.
    pub(crate) fn append(&mut self, from: usize, to: usize) {
        let (source, target) = (self.anchor(from), self.anchor(to));
        let Neighbours { older: newest, newer: oldest } = self.links[source as usize];
        if newest == source {
            return;
        }
        let before = self.links[target as usize].older;
        self.links[before as usize].newer = oldest;
        self.links[oldest as usize].older = before;
        self.links[newest as usize].newer = target;
        self.links[target as usize].older = newest;
        self.links[source as usize] = Neighbours { older: source, newer: source };
        self.lens[to] += self.lens[from];
        self.lens[from] = 0;
    }

    /// Returns the allocated bytes.
    pub(crate) fn bytes(&self) -> usize {
        self.links.capacity() * size_of::<Neighbours>() + self.lens.capacity() * size_of::<u32>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(lists: &Lists, list: usize) -> Vec<u32> {
        let found: Vec<u32> =
            std::iter::successors(lists.oldest(list), |node| lists.newer(*node)).collect();
        assert_eq!(found.len(), lists.len(list) as usize);
        assert_eq!(found.last().copied(), lists.newest(list));
        found
    }

    /// Every operation matches the same one on vectors.
    #[test]
    fn lists_do_what_vectors_do() {
        let mut random = fastrand::Rng::with_seed(1);
        let mut lists = Lists::new(20, 3);
        let mut model: [Vec<u32>; 3] = Default::default();
        for _ in 0..20_000 {
            let list = random.usize(0..3);
            let node = random.u32(0..20);
            let at = model.iter().position(|list| list.contains(&node));
            match (random.u32(0..7), at) {
                (6, None) => {
                    lists.push_oldest(list, node);
                    model[list].insert(0, node);
                }
                (0 | 1, None) => {
                    lists.push(list, node);
                    model[list].push(node);
                }
                (0, Some(list)) => {
                    lists.remove(list, node);
                    model[list].retain(|other| *other != node);
                }
                (1, Some(list)) => {
                    lists.renew(list, node);
                    model[list].retain(|other| *other != node);
                    model[list].push(node);
                }
                (2, Some(list)) => {
                    let absent = (0..20).find(|other| !model.iter().any(|l| l.contains(other)));
                    if let Some(to) = absent {
                        lists.replace(node, to);
                        let place = model[list].iter().position(|other| *other == node);
                        model[list][place.expect("is there")] = to;
                    }
                }
                (3, _) => {
                    let popped = (!model[list].is_empty()).then(|| model[list].remove(0));
                    assert_eq!(lists.pop(list), popped);
                }
                (4, _) if random.u32(0..20) == 0 => {
                    let to = (list + 1) % 3;
                    lists.append(list, to);
                    let moved = std::mem::take(&mut model[list]);
                    model[to].extend(moved);
                }
                _ => {}
            }
            for (list, expected) in model.iter().enumerate() {
                assert_eq!(&nodes(&lists, list), expected);
            }
            assert_eq!(lists.holds(node), model.iter().any(|list| list.contains(&node)));
        }
    }
}
