//! Walking through the headers of segments.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_core::{Generation, SegmentId};
use forebay_device::Queue;
use forebay_format::{Geometry, PAGE, RecordHeader, Uuid, record};
use forebay_lane::{Lane, concurrently};

use super::{Basis, Replay};
use crate::error::StoreError;
use crate::retry;
use crate::team::{WorkList, still_running};

/// Bytes read at a time while searching for a header.
pub(super) const LOOK_AHEAD: u64 = 256 << 10;

/// Walks through the segments that no other lane has taken, and returns the findings.
pub(super) async fn walk_all(
    lane: &Rc<Lane>,
    queue: &Queue,
    part: Replay,
    walks: WorkList<(SegmentId, Generation)>,
    reads: usize,
) -> Result<Replay, StoreError> {
    let found = Rc::new(RefCell::new((part, Ok(()))));
    let (queue, into, rest) = (queue.clone(), found.clone(), walks.clone());
    let work = walks.map(move |segment| {
        let (queue, into, rest) = (queue.clone(), into.clone(), rest.clone());
        async move {
            if let Err(error) = walk(&queue, &into, segment).await {
                into.borrow_mut().1 = Err(error);
                rest.cancel();
            }
        }
    });
    concurrently(lane, reads, work).await;
    let found = Rc::try_unwrap(found).map_err(|_| still_running())?;
    let (part, result) = found.into_inner();
    result.map(|()| part)
}

/// Collects the records of one segment's life.
async fn walk(
    queue: &Queue,
    into: &RefCell<(Replay, Result<(), StoreError>)>,
    segment: (SegmentId, Generation),
) -> Result<(), StoreError> {
    let basis = into.borrow().0.basis.clone();
    let mut added = Ok(());
    let walked = walk_headers(queue, &basis.geometry, &basis.cache, segment, |header| {
        if added.is_ok() {
            added = into.borrow_mut().0.add(&header);
        }
    });
    let walked = walked.await?;
    added?;
    let (replay, _) = &mut *into.borrow_mut();
    replay.bytes_read += walked.bytes;
    replay.unreadable += walked.unreadable;
    Ok(())
}

/// The cost of a walk through a segment, and the number of positions that it could not read.
pub(crate) struct Walked {
    pub(crate) bytes: u64,
    /// Number of possible header positions that cannot be read.
    pub(crate) unreadable: u64,
}

/// Visits the headers of one segment's life. After a page without one, the search continues page by
/// page: a record may be damaged or torn and the next one intact.
pub(crate) async fn walk_headers(
    queue: &Queue,
    geometry: &Geometry,
    cache: &Uuid,
    (segment, generation): (SegmentId, Generation),
    mut visit: impl FnMut(RecordHeader),
) -> Result<Walked, StoreError> {
    let (start, bytes, granule) =
        (geometry.segment_offset(segment), geometry.segment_bytes, geometry.granule());
    let page = PAGE as u64;
    let mut take = |at: u64, content: &[u8]| {
        let header = header_in(content, geometry, cache, segment, (at / granule) as u32)?;
        if header.generation != generation {
            return None;
        }
        let end = (at + page + u64::from(header.payload_bytes)).next_multiple_of(page);
        visit(header);
        Some(end)
    };
    let (mut at, mut walked) = (0, Walked { bytes: 0, unreadable: 0 });
    while at + page <= bytes {
        let here = retry::read_pages(queue, start + at, PAGE).await?;
        walked.bytes += page;
        if let Some(end) = take(at, &here.bytes) {
            at = end;
            continue;
        }
        at += page;
        if !here.all_readable() {
            if at == page {
                // An opening contains nothing that the header behind it lacks, so only the loss of
                // the header counts.
                continue;
            }
            walked.unreadable += 1;
        }
        while at + page <= bytes {
            let len = LOOK_AHEAD.min(bytes - at);
            let ahead = retry::read_pages(queue, start + at, len as usize).await?;
            walked.bytes += len;
            let next = ahead
                .bytes
                .chunks_exact(PAGE)
                .enumerate()
                .find_map(|(number, buf)| take(at + number as u64 * page, buf));
            match next {
                Some(end) => {
                    at = end;
                    break;
                }
                None => at += len,
            }
        }
    }
    Ok(walked)
}

/// Decodes the header in `page`, if it is valid for this place.
pub(super) fn header_in(
    page: &[u8],
    geometry: &Geometry,
    cache: &Uuid,
    segment: SegmentId,
    position: u32,
) -> Option<RecordHeader> {
    let header = record::decode(page, geometry, cache).ok()?;
    (header.segment == segment && header.position == position).then_some(header)
}

/// The lives of a segment according to its headers.
pub(crate) struct SegmentScan {
    /// The highest generation in any header.
    pub(crate) generation: Option<Generation>,
    /// Whether both the opening and the first header are unreadable.
    pub(crate) hides_its_start: bool,
    /// The bytes that were read.
    pub(crate) bytes: u64,
}

/// Returns the highest generation in any header of a segment.
pub(crate) async fn newest_generation(
    queue: &Queue,
    basis: &Basis,
    segment: SegmentId,
) -> Result<SegmentScan, StoreError> {
    let geometry = &basis.geometry;
    let (start, bytes) = (geometry.segment_offset(segment), geometry.segment_bytes);
    let (mut generation, mut hides_its_start, mut at) = (None, false, 0);
    while at < bytes {
        let len = LOOK_AHEAD.min(bytes - at);
        let pages = retry::read_pages(queue, start + at, len as usize).await?;
        if at == 0 {
            hides_its_start = pages.readable.iter().take(2).all(|readable| !readable);
        }
        for (number, page) in pages.bytes.chunks_exact(PAGE).enumerate() {
            let position = ((at + (number * PAGE) as u64) / geometry.granule()) as u32;
            generation = generation.max(basis.generation_at(page, segment, position));
        }
        at += len;
    }
    Ok(SegmentScan { generation, hides_its_start, bytes: at })
}
