//! Finding the segments that were opened since the checkpoint, by their first pages.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{Generation, SegmentId};
use forebay_device::Queue;
use forebay_format::checkpoint::SegmentUse;
use forebay_format::{PAGE, SegmentState as SegmentLine, record};
use forebay_lane::{Lane, concurrently, turns};

use super::READS;
use crate::error::StoreError;
use crate::replay::{Basis, Replay, newest_generation};
use crate::retry::{self, Pages};
use crate::team::{Team, WorkList, still_running};

/// The generations of a segment that are possible in addition to the one in the checkpoint.
pub(super) struct Bounds {
    /// Every segment opened since the checkpoint has this generation or a higher one. Headers with
    /// lower ones were left by an earlier crash; its recovery did not accept them, nor may this
    /// one.
    pub(super) lowest: Generation,
    /// The checkpoint's segment table.
    pub(super) lines: Arc<Vec<SegmentLine>>,
}

impl Bounds {
    /// Returns whether a segment had been opened before the checkpoint.
    fn was_used(&self, segment: SegmentId) -> bool {
        let line = self.lines.get(segment.0 as usize);
        line.is_some_and(|line| line.usage != SegmentUse::Free)
    }

    /// Returns whether a segment can have been opened with this generation since the checkpoint.
    fn is_new(&self, segment: SegmentId, generation: Generation) -> bool {
        let line = self.lines.get(segment.0 as usize);
        generation >= self.lowest && line.is_some_and(|line| generation > line.generation)
    }
}

/// A search for segments that were opened again.
struct Search {
    basis: Arc<Basis>,
    bounds: Bounds,
    /// Examine all headers of every segment.
    all: bool,
    /// Bytes of the second page that are read at first: a logical block of the device.
    part: usize,
    /// Reads in flight on a lane.
    reads: usize,
}

/// The findings of one lane.
struct Firsts {
    reopened: Vec<(SegmentId, Generation)>,
    bytes_read: u64,
    /// Whether the first pages of all segments could be read.
    readable: bool,
    /// Segments that may have been opened: their start is unreadable, and no later header is new.
    hidden: u64,
    failure: Option<StoreError>,
}

/// Returns the generations with which segments were opened since the checkpoint. `all`: examine
/// all headers of every segment.
pub(super) async fn reopened(
    team: &Team,
    replay: &mut Replay,
    bounds: Bounds,
    all: bool,
) -> Result<Vec<Option<Generation>>, StoreError> {
    let count = bounds.lines.len() as u32;
    let (part, reads) = (team.logical_block(), READS.div_ceil(team.lanes()));
    let search = Arc::new(Search { basis: replay.basis.clone(), bounds, all, part, reads });
    let segments =
        WorkList::new(turns::filled(count as usize, |number| SegmentId(number as u32)).await);
    let parts = team.run(move |lane, queue| {
        let (search, segments) = (search.clone(), segments.clone());
        async move { search.part(&lane, &queue, segments).await }
    });
    let mut generations = none(count as usize).await;
    for part in parts.await {
        let Firsts { reopened, bytes_read, readable, hidden, failure } = part?;
        if let Some(error) = failure {
            return Err(error);
        }
        for (segment, generation) in reopened {
            generations[segment.0 as usize] = Some(generation);
        }
        replay.bytes_read += bytes_read;
        replay.firsts_readable &= readable;
        replay.unreadable += hidden;
    }
    Ok(generations)
}

/// Returns no generation for each of `count` segments.
pub(super) async fn none(count: usize) -> Vec<Option<Generation>> {
    turns::filled(count, |_| None).await
}

impl Search {
    /// Examines segments that no other lane has taken yet.
    async fn part(
        self: Arc<Self>,
        lane: &Rc<Lane>,
        queue: &Queue,
        segments: WorkList<SegmentId>,
    ) -> Result<Firsts, StoreError> {
        let firsts = Firsts {
            reopened: Vec::new(),
            bytes_read: 0,
            readable: true,
            hidden: 0,
            failure: None,
        };
        let firsts = Rc::new(RefCell::new(firsts));
        let (queue, into, reads) = (queue.clone(), firsts.clone(), self.reads);
        let rest = segments.clone();
        let work = segments.map(move |segment| {
            let (search, queue, into) = (self.clone(), queue.clone(), into.clone());
            let rest = rest.clone();
            async move {
                match search.reopening(&queue, &into, segment).await {
                    Ok(Some(generation)) => into.borrow_mut().reopened.push((segment, generation)),
                    Ok(None) => (),
                    Err(error) => {
                        into.borrow_mut().failure = Some(error);
                        rest.cancel();
                    }
                }
            }
        });
        concurrently(lane, reads, work).await;
        Rc::try_unwrap(firsts).map(RefCell::into_inner).map_err(|_| still_running())
    }

    /// Returns the generation with which a segment was opened since the checkpoint, if it was. The
    /// opening and the first header both contain it; one of them may be damaged, or may not have
    /// been overwritten before the crash. If neither is readable, later headers are searched.
    async fn reopening(
        &self,
        queue: &Queue,
        into: &RefCell<Firsts>,
        segment: SegmentId,
    ) -> Result<Option<Generation>, StoreError> {
        let is_new = |generation: &Generation| self.bounds.is_new(segment, *generation);
        if !self.all {
            let is_used = self.bounds.was_used(segment);
            let len = if is_used { PAGE + self.part } else { 2 * PAGE };
            let mut pages = self.read(queue, into, segment, len).await?;
            let mut opening = self.opening(&pages.bytes, segment);
            // In most segments the first header is no newer than the opening; then its page need
            // not be read as a whole and verified.
            if opening.is_some()
                && self.claimed(&pages.bytes, segment) <= opening
                && pages.all_readable()
            {
                return Ok(opening.filter(is_new));
            }
            if len < 2 * PAGE {
                pages = self.read(queue, into, segment, 2 * PAGE).await?;
                opening = self.opening(&pages.bytes, segment);
            }
            into.borrow_mut().readable &= pages.all_readable();
            let record =
                self.basis.generation_at(&pages.bytes[PAGE..], segment, self.second_position());
            let newest = [opening, record].into_iter().flatten().filter(is_new).max();
            // Both are zero, so the segment was never written. A damaged opening alone may also be
            // zero.
            if newest.is_some()
                || opening.is_some()
                || (pages.all_readable() && is_zero(&pages.bytes))
            {
                return Ok(newest);
            }
        }
        let newest = newest_generation(queue, &self.basis, segment).await?;
        let generation = newest.generation.filter(is_new);
        let mut firsts = into.borrow_mut();
        firsts.bytes_read += newest.bytes;
        // The segment may have been opened for the newest record of all; nothing else would show
        // that this record existed.
        firsts.hidden += u64::from(newest.hides_its_start && generation.is_none());
        Ok(generation)
    }

    /// Reads the start of a segment.
    async fn read(
        &self,
        queue: &Queue,
        into: &RefCell<Firsts>,
        segment: SegmentId,
        len: usize,
    ) -> Result<Pages, StoreError> {
        let offset = self.basis.geometry.segment_offset(segment);
        let pages = retry::read_pages(queue, offset, len).await?;
        into.borrow_mut().bytes_read += len as u64;
        Ok(pages)
    }

    /// Returns the generation in the first page of a segment.
    fn opening(&self, start: &[u8], segment: SegmentId) -> Option<Generation> {
        self.basis.generation_at(&start[..PAGE], segment, 0)
    }

    /// Returns the position of the second page.
    fn second_position(&self) -> u32 {
        self.basis.geometry.granules_per_header() as u32
    }

    /// Returns the generation that the second page claims to have. A page that is no header, or is
    /// in the wrong place, claims the highest one, because it must be examined.
    fn claimed(&self, start: &[u8], segment: SegmentId) -> Option<Generation> {
        let claimed = record::claimed(&start[PAGE..], &self.basis.cache);
        let here = claimed
            .filter(|(at, position, _)| *at == segment && *position == self.second_position());
        Some(here.map_or(Generation(u64::MAX), |(.., generation)| generation))
    }
}

/// Returns whether all bytes are zero. Compares whole cache lines, which takes a tenth of the time
/// of single bytes.
fn is_zero(bytes: &[u8]) -> bool {
    bytes.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}
