//! Reads blocks through a volume, so that its tier caches them.

use std::cell::Cell;
use std::ops::Range;
use std::rc::Rc;
use std::time::Duration;

use forebay_core::{Cancelled, IoError};
use forebay_engine::BlockService;
use forebay_lane::Lane;

use crate::block::in_regions;
use crate::tier::Tier;
use crate::write_down::{each, read};

/// Number of reads in flight. A disk has the next read before the first has ended, and clients'
/// requests wait for few of them.
const DEPTH: usize = 2;

/// Longest time for which a read yields to clients, so that the prefetch ends even if they are
/// always active.
const GIVES_WAY: Duration = Duration::from_millis(100);

/// Interval at which a read that yields checks again.
const LOOK: Duration = Duration::from_millis(2);

/// A read that fails is split into parts of this size, until `MOST_BAD` of them have failed.
const PART: u64 = 64 << 10;
const MOST_BAD: u64 = 8;

/// The outcome of a prefetch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prefetched {
    /// Bytes read.
    pub bytes: u64,
    /// Number of failed reads; no client needed them.
    pub failed: u64,
}

/// Reads ranges of bytes of `volume`, whose tier is `tier`, in order and in requests of up to 1
/// MiB. Evicts nothing: blocks without room are left out. A read waits for a while as long as
/// `in_flight`, the number of requests in flight below the tier, exceeds the prefetch's own. Calls
/// `progress` with the bytes of the finished ranges; it may end the prefetch.
pub async fn prefetch(
    tier: &Tier,
    volume: &Rc<dyn BlockService>,
    lane: &Rc<Lane>,
    ranges: impl Iterator<Item = Range<u64>>,
    in_flight: impl Fn() -> u64,
    progress: impl Fn(u64) -> Result<(), Cancelled>,
) -> Prefetched {
    let (own, reading, done) = (Cell::new(0), Cell::new(0), Cell::new(0));
    let (bytes, failed, goes_on) = (Cell::new(0), Cell::new(0), Cell::new(true));
    let add = |count: &Cell<u64>, more| count.set(count.get() + more);
    let one = |range: Range<u64>| {
        let (own, reading, done, goes_on) = (&own, &reading, &done, &goes_on);
        let (bytes, failed, in_flight, progress) = (&bytes, &failed, &in_flight, &progress);
        async move {
            let mut wanted = missing(tier, &range, reading.get());
            if wanted.is_some() {
                let until = lane.now() + GIVES_WAY;
                while in_flight() > own.get() && lane.now() < until {
                    lane.sleep(LOOK).await;
                }
                // A client may have read the range meanwhile.
                wanted = missing(tier, &range, reading.get());
            }
            if let Some(wanted) = wanted {
                let len = wanted.end - wanted.start;
                own.set(own.get() + 1);
                reading.set(reading.get() + len);
                let result = read_parts(volume, wanted).await;
                own.set(own.get() - 1);
                reading.set(reading.get() - len);
                let (good, bad) = result?;
                add(bytes, good);
                add(failed, bad);
            }
            add(done, range.end - range.start);
            goes_on.set(goes_on.get() && progress(done.get()).is_ok());
            Ok(())
        }
    };
    let size = volume.size();
    let pieces = ranges.flat_map(move |range| in_regions(range.start..range.end.min(size)));
    let pieces = pieces.map(|(_, range)| range).take_while(|_| goes_on.get());
    // Only a volume that stops ends this early.
    let _ = each(DEPTH, pieces, one).await;
    Prefetched { bytes: bytes.get(), failed: failed.get() }
}

/// Reads a range. If a bad sector fails the whole, reads it in parts. Returns the number of bytes
/// that were read, and the number of failed reads that were not split.
///
/// # Errors
/// The volume stops.
async fn read_parts(
    volume: &Rc<dyn BlockService>,
    range: Range<u64>,
) -> Result<(u64, u64), IoError> {
    let (mut good, mut bad, mut rest) = (0, 0, vec![range]);
    while let Some(range) = rest.pop() {
        let len = range.end - range.start;
        match read(volume, range.start, len as usize).await {
            Ok(_) => good += len,
            Err(IoError::ShuttingDown) => return Err(IoError::ShuttingDown),
            Err(_) if len > PART && bad == 0 => {
                let first = range.start / PART * PART;
                let starts = (first..range.end).step_by(PART as usize);
                let part = |at: u64| at.max(range.start)..(at + PART).min(range.end);
                rest.extend(starts.map(part));
                rest.reverse();
            }
            Err(_) => {
                bad += 1;
                if bad >= MOST_BAD {
                    break;
                }
            }
        }
    }
    Ok((good, bad))
}

/// Returns the part of a range within one region that is to be read, given that `reading` bytes in
/// flight may need room too. `None`: the range is cached, or there is no room.
fn missing(tier: &Tier, range: &Range<u64>, reading: u64) -> Option<Range<u64>> {
    let (cached, room) = tier.room_at(range.start, range.end - range.start);
    let room = (room * tier.block().bytes()).saturating_sub(reading);
    let end = range.start.saturating_add(room).min(range.end);
    (!cached && range.start < end).then_some(range.start..end)
}
