//! Records the requests of a volume's clients while recording is on. `serve::limited` feeds it.
//!
//! Each lane fills a ring of its own, which one reader empties. A lane never waits for the reader:
//! requests that find the ring full are counted and left out.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use forebay_core::{Nanos, Op};
use parking_lot::RwLock;

/// Requests that a ring holds.
const RING: usize = 16 << 10;

/// Bits of a ring's third word that hold the length; the others hold the operation.
const LEN_BITS: u32 = 56;

/// A request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recorded {
    /// The time of arrival, on the lanes' clock.
    pub time: Nanos,
    /// A read, a write or a discard. Zeroes are recorded in the way in which the cache treats them:
    /// a short range as a write, a long one as a discard.
    pub op: Op,
    /// The first byte on the volume.
    pub offset: u64,
    /// Bytes.
    pub len: u64,
}

impl Recorded {
    fn words(self) -> [u64; 3] {
        let op = match self.op {
            Op::Write => 1,
            Op::Discard => 2,
            _ => 0,
        };
        let len = self.len.min((1 << LEN_BITS) - 1);
        [self.time.0, self.offset, (op << LEN_BITS) | len]
    }

    fn from_words([time, offset, last]: [u64; 3]) -> Self {
        let op = match last >> LEN_BITS {
            1 => Op::Write,
            2 => Op::Discard,
            _ => Op::Read,
        };
        Recorded { time: Nanos(time), op, offset, len: last & ((1 << LEN_BITS) - 1) }
    }
}

/// The requests of one lane that have not been read.
struct Ring {
    slots: Box<[[AtomicU64; 3]]>,
    /// Number of requests that the lane has put in.
    put: AtomicU64,
    /// Number of requests that the reader has taken out.
    taken: AtomicU64,
    left_out: AtomicU64,
}

impl Ring {
    fn new() -> Self {
        Ring {
            slots: (0..RING).map(|_| Default::default()).collect(),
            put: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            left_out: AtomicU64::new(0),
        }
    }

    /// Adds a request. Called only by the ring's lane.
    fn put(&self, request: Recorded) {
        let put = self.put.load(Ordering::Relaxed);
        if put - self.taken.load(Ordering::Acquire) >= RING as u64 {
            self.left_out.fetch_add(1, Ordering::Relaxed);
            return;
        }
        if let Some(slot) = self.slots.get(put as usize % RING) {
            slot.iter()
                .zip(request.words())
                .for_each(|(to, word)| to.store(word, Ordering::Relaxed));
        }
        self.put.store(put + 1, Ordering::Release);
    }

    /// Moves all requests to `into`. Called only by the reader.
    fn take(&self, into: &mut Vec<Recorded>) {
        let (mut taken, put) =
            (self.taken.load(Ordering::Relaxed), self.put.load(Ordering::Acquire));
        while taken < put {
            if let Some(slot) = self.slots.get(taken as usize % RING) {
                let words = slot.each_ref().map(|word| word.load(Ordering::Relaxed));
                into.push(Recorded::from_words(words));
            }
            taken += 1;
        }
        self.taken.store(taken, Ordering::Release);
    }
}

/// The rings of all lanes.
pub(crate) struct RecordingRings(Box<[Ring]>);

impl RecordingRings {
    /// Requests that the ring of one lane holds.
    pub(crate) const EACH: usize = RING;

    /// Bytes of a request in a ring.
    pub(crate) const BYTES: usize = size_of::<[AtomicU64; 3]>();

    pub(crate) fn new(lanes: usize) -> Self {
        RecordingRings((0..lanes).map(|_| Ring::new()).collect())
    }

    /// Moves the requests of all lanes to `into`. Only the reader may call this.
    pub(crate) fn take(&self, into: &mut Vec<Recorded>) {
        self.0.iter().for_each(|ring| ring.take(into));
    }

    pub(crate) fn left_out(&self) -> u64 {
        self.0.iter().map(|ring| ring.left_out.load(Ordering::Relaxed)).sum()
    }
}

/// A volume's recording, if there is one.
#[derive(Default)]
pub(crate) struct Recorder {
    /// Whether requests are recorded. Read for each request.
    pub(crate) is_on: AtomicBool,
    pub(crate) rings: RwLock<Option<Arc<RecordingRings>>>,
}

impl Recorder {
    /// Records a request; must be called on this lane.
    #[cold]
    pub(crate) fn record(&self, lane: usize, request: Recorded) {
        // Held exclusively only for a moment, when a recording begins or ends.
        let Some(rings) = self.rings.try_read() else { return };
        if let Some(ring) = rings.as_ref().and_then(|rings| rings.0.get(lane)) {
            ring.put(request);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(number: u64) -> Recorded {
        let op = [Op::Read, Op::Write, Op::Discard][number as usize % 3];
        Recorded { time: Nanos(number), op, offset: number << 40, len: number + 1 }
    }

    #[test]
    fn a_full_ring_leaves_out_what_comes_and_counts_it() {
        let (ring, mut found) = (Ring::new(), Vec::new());
        let count = RING as u64 + 7;
        (0..count).for_each(|number| ring.put(request(number)));
        ring.take(&mut found);
        assert_eq!(found, (0..RING as u64).map(request).collect::<Vec<_>>());
        assert_eq!(ring.left_out.load(Ordering::Relaxed), 7);
        found.clear();
        (0..10).for_each(|number| ring.put(request(number)));
        ring.take(&mut found);
        assert_eq!(found, (0..10).map(request).collect::<Vec<_>>());
        ring.take(&mut found);
        assert_eq!(found.len(), 10);
    }

    #[test]
    fn the_longest_request_keeps_its_operation() {
        let long = Recorded { len: u64::MAX, ..request(2) };
        let found = Recorded::from_words(long.words());
        assert_eq!((found.op, found.len), (Op::Discard, (1 << LEN_BITS) - 1));
    }
}
