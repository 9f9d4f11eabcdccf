//! Block status: the state of a range of a volume in each metadata context.
//!
//! The order of the queries matters. Data can move down while they run, from RAM to the cache and
//! from there to the origin. The tiers are therefore asked before the origin, so that at least one
//! of them reports the data.

use std::future::Future;
use std::pin::pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use forebay_engine::{BlockService, Extent, StateExtent};
use forebay_lane::{Lane, yield_now};

use crate::holes::{HoleFinder, OriginExtent};
use crate::wire::{allocation, state};

/// Most extents in one answer.
pub(crate) const EXTENTS_MAX: usize = 480;

/// Time limit for looking blocks up for one answer; the rest of a long range is left to the next
/// one.
const LOOKED_UP_MAX: Duration = Duration::from_millis(50);

/// Time limit for the origin to report its holes.
const ORIGIN_MAX: Duration = Duration::from_secs(2);

/// Time limit for the index to be loaded, and the pause between two queries.
const LOADING_MAX: Duration = Duration::from_secs(20);
const LOADING_PAUSE: Duration = Duration::from_millis(20);

/// A set of metadata contexts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Contexts {
    /// `base:allocation`.
    pub allocation: bool,
    /// `forebay:state`.
    pub state: bool,
}

impl Contexts {
    /// Most contexts of one client.
    pub(crate) const MAX: usize = 2;

    /// Returns whether the set is empty.
    pub fn is_empty(self) -> bool {
        self == Contexts::default()
    }
}

/// Runs of bytes with their flags in one context.
pub(crate) type Runs = Vec<(u64, u32)>;

/// The answer to a query: for each context its number and its runs, at most [`EXTENTS_MAX`].
pub(crate) type Status = Vec<(u32, Runs)>;

/// A query for the status of a range.
#[derive(Clone, Copy)]
pub(crate) struct Query {
    pub(crate) contexts: Contexts,
    pub(crate) offset: u64,
    pub(crate) len: u64,
    /// Most runs in each context, at least 1.
    pub(crate) most: usize,
}

/// Returns at most `most` runs of equal flags within `len` bytes.
fn merge(len: u64, extents: impl IntoIterator<Item = (u64, u32)>, most: usize) -> Runs {
    let mut left = len;
    let mut runs = Runs::new();
    for (len, flags) in extents {
        let here = len.min(left);
        let full = runs.len() == most;
        match runs.last_mut() {
            _ if here == 0 => continue,
            Some((len, last)) if *last == flags => *len += here,
            Some(_) if full => break,
            _ => runs.push((here, flags)),
        }
        left -= here;
    }
    runs
}

fn allocation_flags(hole: bool, zero: bool) -> u32 {
    (if hole { allocation::HOLE } else { 0 }) | (if zero { allocation::ZERO } else { 0 })
}

impl Query {
    /// Finds the answer. `None`: the index was not loaded in time.
    pub(crate) async fn answer(
        self,
        target: &Rc<dyn BlockService>,
        finder: &HoleFinder,
        lane: &Rc<Lane>,
    ) -> Option<Status> {
        let Query { contexts, offset, len, most } = self;
        let origin = target.origin().filter(|origin| origin.knows_holes());
        let mut status = Status::new();
        if contexts.allocation && !contexts.state && origin.is_none() {
            let extents = target.extents(offset, len);
            let runs = merge(len, extents.iter().map(flags_of), most);
            return Some(vec![(allocation::ID, runs)]);
        }
        let states = self.states(target, lane).await?;
        let known = states.iter().map(|extent| extent.len).sum();
        if contexts.allocation {
            let runs = match origin {
                None => {
                    let extents = target.extents(offset, known);
                    merge(known, extents.iter().map(flags_of), most)
                }
                Some(_) if states.iter().all(|extent| extent.cached) => vec![(known, 0)],
                Some(origin) => {
                    let find = finder.find(origin, offset..offset + known, 2 * most);
                    let found = in_time(lane, ORIGIN_MAX, find).await.unwrap_or_default();
                    merge(known, overlay(&states, &found), most)
                }
            };
            status.push((allocation::ID, runs));
        }
        if contexts.state {
            let flags = |extent: &StateExtent| {
                let cached = if extent.cached { state::CACHED } else { 0 };
                (extent.len, cached | if extent.dirty { state::DIRTY } else { 0 })
            };
            status.push((state::ID, merge(known, states.iter().map(flags), most)));
        }
        Some(status)
    }

    /// Returns the states of the beginning of the range. `None`: the index was not loaded in time.
    async fn states(
        self,
        target: &Rc<dyn BlockService>,
        lane: &Rc<Lane>,
    ) -> Option<Vec<StateExtent>> {
        let since = lane.now();
        let end = self.offset + self.len;
        let (mut at, mut states) = (self.offset, Vec::new());
        let in_time = |at| at == self.offset || lane.now().since(since) < LOOKED_UP_MAX;
        while at < end && states.len() <= self.most && in_time(at) {
            let Some(next) = target.states(at, end - at) else {
                if !states.is_empty() {
                    break;
                }
                if !self.contexts.state {
                    // Unknown blocks may be dirty.
                    return Some(vec![StateExtent { len: self.len, cached: true, dirty: true }]);
                }
                if lane.now().since(since) > LOADING_MAX {
                    return None;
                }
                lane.sleep(LOADING_PAUSE).await;
                continue;
            };
            let before = at;
            for extent in next {
                at += extent.len;
                extent.push(&mut states);
            }
            if at == before {
                break;
            }
            yield_now().await;
        }
        Some(states)
    }
}

fn flags_of(extent: &Extent) -> (u64, u32) {
    (extent.len, allocation_flags(extent.hole, extent.zero))
}

/// Returns the allocation of a range from the states above its origin and the extents of the
/// origin. A range counts as allocated where the extents are unknown.
fn overlay(states: &[StateExtent], origin: &[OriginExtent]) -> Vec<(u64, u32)> {
    let mut runs = Vec::new();
    let mut below = origin.iter().copied();
    let mut under = below.next();
    for above in states {
        let mut left = above.len;
        while left > 0 {
            let (here, hole) = match &mut under {
                Some(extent) => {
                    let here = left.min(extent.len);
                    extent.len -= here;
                    (here, extent.hole)
                }
                None => (left, false),
            };
            let hole = hole && !above.cached && !above.dirty;
            runs.push((here, allocation_flags(hole, hole)));
            left -= here;
            while under.is_some_and(|extent| extent.len == 0) {
                under = below.next();
            }
        }
    }
    runs
}

/// Returns the output of `future`, or `None` if it takes longer than `limit`.
async fn in_time<F: Future>(lane: &Rc<Lane>, limit: Duration, future: F) -> Option<F::Output> {
    let (mut future, mut sleep) = (pin!(future), pin!(lane.sleep(limit)));
    std::future::poll_fn(|context| {
        if let Poll::Ready(output) = future.as_mut().poll(context) {
            return Poll::Ready(Some(output));
        }
        sleep.as_mut().poll(context).map(|()| None)
    })
    .await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_merged_cut_and_limited() {
        let alternating: Vec<_> = (0..3000).map(|at| (512, at % 2)).collect();
        type Case<'a> = (&'a [(u64, u32)], usize, &'a [(u64, u32)]);
        let cases: [Case<'_>; 7] = [
            (&[(u64::MAX, 3)], 9, &[(1 << 20, 3)]),
            (&[(512, 2), (512, 2)], 1, &[(1024, 2)]),
            (&[(512, 1), (512, 0)], 1, &[(512, 1)]),
            (&[(0, 1), (512, 0)], 9, &[(512, 0)]),
            (&[(1 << 20, 0), (512, 1)], 9, &[(1 << 20, 0)]),
            (&alternating, 2, &[(512, 0), (512, 1)]),
            (&[], 9, &[]),
        ];
        for (extents, most, expected) in cases {
            assert_eq!(merge(1 << 20, extents.iter().copied(), most), expected);
        }
        assert_eq!(merge(u64::MAX, alternating, EXTENTS_MAX).len(), EXTENTS_MAX);
    }

    #[test]
    fn only_a_hole_with_nothing_above_it_is_one() {
        let state = |len, cached, dirty| StateExtent { len, cached, dirty };
        let extent = |len, hole| OriginExtent { len, hole };
        let states = [state(8, false, false), state(4, true, false), state(4, true, true)];
        let merged = |origin: &[OriginExtent]| merge(64, overlay(&states, origin), 99);
        assert_eq!(merged(&[extent(16, true)]), [(8, 3), (8, 0)]);
        assert_eq!(
            merged(&[extent(2, false), extent(3, true), extent(11, false)]),
            [(2, 0), (3, 3), (11, 0)]
        );
        assert_eq!(merged(&[extent(2, true)]), [(2, 3), (14, 0)]);
        assert_eq!(merged(&[]), [(16, 0)]);
        assert_eq!(merged(&[extent(0, true), extent(99, true)]), [(8, 3), (8, 0)]);
        assert_eq!(overlay(&[], &[extent(4, true)]), []);
    }
}
