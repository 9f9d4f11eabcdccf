//! Tracks the length of sequential streams, so that long ones can bypass the cache.
//!
//! Disks are good at long sequential transfers, and a cache that admits them loses the blocks it is
//! useful for. The idea, the default threshold of 4 MiB and the table of recent streams with their
//! expected next addresses are bcache's (`sequential_cutoff`, 128 streams). The rules for
//! continuing a stream are our own:
//!
//! - A request continues a stream if it starts exactly at the stream's end.
//! - Requests that were in flight together may arrive in another order. A request that starts one
//!   to three times its own length after the end still continues the stream and leaves a hole. One
//!   that starts as far before the end must fill a hole.
//! - A stream with more than four requests' worth of holes is not sequential (a stride, or chance),
//!   and neither is one that reads or writes the same address twice. Either starts again at zero.
//!   This keeps random I/O to a small hot area, where every address is near the end of some stream,
//!   from counting as streams.
//! - Reads and writes are separate streams: a program that rewrites a range in place reads and
//!   writes the same addresses, which would look like using them twice.
//!
//! A run is the length of the stream *before* the request, so a single request is never a stream,
//! however large it is.
//!
//! A backup, or a scan by many threads, is many streams of small requests at once, interleaved with
//! other clients' random requests, each of which could be the first of a stream. So streams that
//! were continued twice are established: they have three quarters of the table, and keep their
//! entries until they have been inactive for long. A stream that leaves the table leaves a hash of
//! its end for a while, and its next request restores it. bcache uses the mean run of each task
//! instead; behind a network there are no tasks.
//!
//! One table per volume and lane, without locks. A client that spreads a stream over connections on
//! several lanes is found by [`SharedStreams`]. [`StreamRoute`] decides whether long writes should
//! bypass the cache.

mod route;
mod shared;

pub use route::{Route, StreamRoute};
pub use shared::SharedStreams;

/// Default number of streams in a table.
pub const DEFAULT_STREAMS: usize = 256;

/// Default threshold: 4 MiB, as in bcache.
pub const DEFAULT_THRESHOLD: u64 = 4 << 20;

/// Largest size of a stream's holes at a time, in lengths of the current request.
const MAX_HOLES: u64 = 4;

/// Largest distance between the end of a stream and a request, in lengths of the request.
const MAX_DISTANCE: u64 = 3;

/// Requests after which a stream is established.
const ESTABLISHED: u8 = 3;

/// An established stream may be replaced when this many requests have arrived since its last one.
const PATIENCE: u32 = 8192;

/// Number of remembered ends of streams that left the table.
const ENDS: usize = 2048;

const NONE: u16 = u16::MAX;

/// Length of the stream that a request continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StreamLength {
    /// Bytes of the stream before this request; 0 if the request continues none.
    pub run: u64,
}

impl StreamLength {
    /// Returns whether the request bypasses the cache at a threshold of `threshold` bytes; 0 means
    /// never.
    pub fn bypass(self, threshold: u64) -> bool {
        threshold != 0 && self.run >= threshold
    }
}

#[derive(Clone, Copy, Debug)]
struct Stream {
    /// The offset at which the next request is expected, in bytes.
    end: u64,
    /// Bytes covered so far.
    run: u64,
    /// Bytes before `end` that were skipped and have not arrived since.
    holes: u64,
    is_write: bool,
    /// Number of requests so far, up to [`ESTABLISHED`]; 0 if another stream has replaced this one.
    requests: u8,
    /// The list that contains the stream.
    list: Which,
    /// Sequence number of the stream's last request.
    heard: u32,
    /// Next in the chain of the same hash bucket.
    chain: u16,
    /// Neighbours in the list.
    newer: u16,
    older: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Which {
    New,
    Established,
}

/// A list of streams in the order of last use.
#[derive(Clone, Copy, Debug)]
struct StreamList {
    newest: u16,
    oldest: u16,
    len: usize,
}

/// A table of the streams continued last. Memory is fixed: about 64 bytes per stream, and 8 KiB.
#[derive(Debug)]
pub struct SequentialCutoff {
    streams: Vec<Stream>,
    capacity: usize,
    buckets: Vec<u16>,
    shift: u32,
    /// The lists, by [`Which`].
    lists: [StreamList; 2],
    /// Requests so far; wraps.
    requests: u32,
    /// Streams that left the table: 30 bits of a hash of their end, and their number of requests.
    ends: Box<[u32]>,
}

impl SequentialCutoff {
    /// Creates a table of `streams` streams, at least 1 and at most 32768.
    pub fn new(streams: usize) -> Self {
        let capacity = streams.clamp(1, 1 << 15);
        // Most lookups find nothing, so nearly all buckets should be empty.
        let buckets = (capacity * 8).next_power_of_two();
        SequentialCutoff {
            streams: Vec::with_capacity(capacity),
            capacity,
            buckets: vec![NONE; buckets],
            shift: 64 - buckets.trailing_zeros(),
            lists: [StreamList { newest: NONE, oldest: NONE, len: 0 }; 2],
            requests: 0,
            ends: vec![0; ENDS].into(),
        }
    }

    /// Records a request for `len` bytes at `offset`. Returns the length of its stream before it.
    pub fn observe(&mut self, op_is_write: bool, offset: u64, len: u64) -> StreamLength {
        let Some(end) = offset.checked_add(len).filter(|_| len > 0) else {
            return StreamLength { run: 0 };
        };
        self.requests = self.requests.wrapping_add(1);
        if let Some(found) = self.find(op_is_write, offset) {
            return self.go_on(found, end, len, 0);
        }
        for requests in 1..=MAX_DISTANCE {
            let distance = len.saturating_mul(requests);
            if let Some(found) =
                offset.checked_sub(distance).and_then(|at| self.find(op_is_write, at))
            {
                return self.go_on(found, end, len, distance);
            }
            if let Some(found) =
                offset.checked_add(distance).and_then(|at| self.find(op_is_write, at))
            {
                return self.fill_hole(found, len);
            }
        }
        let requests = self.come_back(op_is_write, offset) + 1;
        self.start(op_is_write, end, len, requests.min(ESTABLISHED));
        StreamLength { run: 0 }
    }

    /// Continues the stream after `gap` unseen bytes.
    fn go_on(&mut self, slot: u16, end: u64, len: u64, gap: u64) -> StreamLength {
        // Another stream may already end here: this one passed through its data, and replaces it.
        let is_write = self.streams[slot as usize].is_write;
        if let Some(other) = self.find(is_write, end) {
            self.unchain(other);
            self.demote(other);
        }
        self.unchain(slot);
        let stream = &mut self.streams[slot as usize];
        let before = stream.run;
        stream.end = end;
        stream.holes = stream.holes.saturating_add(gap);
        let real = stream.holes <= len.saturating_mul(MAX_HOLES);
        if real {
            stream.run = before.saturating_add(len);
        } else {
            stream.run = len;
            stream.holes = 0;
        }
        self.chain(slot);
        self.promote(slot, real);
        StreamLength { run: if real { before } else { 0 } }
    }

    /// Handles a request before the end of a stream: late, or a repeated access.
    fn fill_hole(&mut self, slot: u16, len: u64) -> StreamLength {
        let stream = &mut self.streams[slot as usize];
        let before = stream.run;
        let late = stream.holes >= len;
        if late {
            stream.holes -= len;
            stream.run = before.saturating_add(len);
        } else {
            stream.holes = 0;
            stream.run = len;
        }
        self.promote(slot, late);
        StreamLength { run: if late { before } else { 0 } }
    }

    fn start(&mut self, is_write: bool, end: u64, len: u64, requests: u8) {
        let stream = Stream {
            end,
            run: len,
            holes: 0,
            is_write,
            requests,
            list: Which::New,
            heard: self.requests,
            chain: NONE,
            newer: NONE,
            older: NONE,
        };
        let slot = if self.streams.len() < self.capacity {
            self.streams.push(stream);
            (self.streams.len() - 1) as u16
        } else {
            let slot = self.lists[Which::New as usize].oldest;
            self.leave(slot);
            self.streams[slot as usize] = stream;
            slot
        };
        let which = self.list_for(slot);
        self.link_newest(slot, which);
        self.chain(slot);
    }

    /// Returns the list that a stream, currently in none, belongs to.
    fn list_for(&mut self, slot: u16) -> Which {
        let established = self.lists[Which::Established as usize];
        if self.streams[slot as usize].requests < ESTABLISHED {
            return Which::New;
        }
        // At least one entry is for new streams, so that one of them can always be replaced.
        if established.len < self.capacity - (self.capacity / 4).max(1) {
            return Which::Established;
        }
        if established.len == 0
            || self.requests.wrapping_sub(self.streams[established.oldest as usize].heard)
                < PATIENCE
        {
            return Which::New;
        }
        self.unlink(established.oldest);
        self.link_oldest(established.oldest);
        Which::Established
    }

    fn leave(&mut self, slot: u16) {
        self.unchain(slot);
        self.unlink(slot);
        let Stream { is_write, end, requests, .. } = self.streams[slot as usize];
        if requests > 0 {
            let (place, tag) = remembered(is_write, end);
            self.ends[place] = tag | u32::from(requests);
        }
    }

    /// Returns the number of requests of a replaced stream that continues at `offset`, and forgets
    /// it.
    fn come_back(&mut self, is_write: bool, offset: u64) -> u8 {
        let (place, tag) = remembered(is_write, offset);
        let known = self.ends[place];
        if known & !3 != tag {
            return 0;
        }
        self.ends[place] = 0;
        (known & 3) as u8
    }

    fn bucket(&self, is_write: bool, end: u64) -> usize {
        (hash(is_write, end) >> self.shift) as usize
    }

    fn find(&self, is_write: bool, end: u64) -> Option<u16> {
        let mut slot = self.buckets[self.bucket(is_write, end)];
        while slot != NONE {
            let stream = &self.streams[slot as usize];
            if stream.end == end && stream.is_write == is_write {
                return Some(slot);
            }
            slot = stream.chain;
        }
        None
    }

    fn chain(&mut self, slot: u16) {
        let stream = self.streams[slot as usize];
        let bucket = self.bucket(stream.is_write, stream.end);
        self.streams[slot as usize].chain = self.buckets[bucket];
        self.buckets[bucket] = slot;
    }

    /// Removes a stream from its hash chain, if it is in one.
    fn unchain(&mut self, slot: u16) {
        let stream = self.streams[slot as usize];
        let bucket = self.bucket(stream.is_write, stream.end);
        let mut at = self.buckets[bucket];
        if at == slot {
            self.buckets[bucket] = stream.chain;
            return;
        }
        while at != NONE {
            let next = self.streams[at as usize].chain;
            if next == slot {
                self.streams[at as usize].chain = stream.chain;
                return;
            }
            at = next;
        }
    }

    fn unlink(&mut self, slot: u16) {
        let stream = self.streams[slot as usize];
        let list = &mut self.lists[stream.list as usize];
        list.len -= 1;
        match stream.newer {
            NONE => list.newest = stream.older,
            newer => self.streams[newer as usize].older = stream.older,
        }
        match stream.older {
            NONE => list.oldest = stream.newer,
            older => self.streams[older as usize].newer = stream.newer,
        }
    }

    fn link_newest(&mut self, slot: u16, which: Which) {
        let list = &mut self.lists[which as usize];
        let before = std::mem::replace(&mut list.newest, slot);
        list.len += 1;
        match before {
            NONE => list.oldest = slot,
            newest => self.streams[newest as usize].newer = slot,
        }
        let stream = &mut self.streams[slot as usize];
        (stream.newer, stream.older, stream.list) = (NONE, before, which);
    }

    /// Makes a stream the next to be replaced.
    fn link_oldest(&mut self, slot: u16) {
        let list = &mut self.lists[Which::New as usize];
        let before = std::mem::replace(&mut list.oldest, slot);
        list.len += 1;
        match before {
            NONE => list.newest = slot,
            oldest => self.streams[oldest as usize].older = slot,
        }
        let stream = &mut self.streams[slot as usize];
        (stream.newer, stream.older, stream.list) = (before, NONE, Which::New);
    }

    /// Moves a stream up after it was continued, or (`real` is false) after it started again.
    fn promote(&mut self, slot: u16, real: bool) {
        let now = self.requests;
        let stream = &mut self.streams[slot as usize];
        stream.heard = now;
        stream.requests = if real { (stream.requests + 1).min(ESTABLISHED) } else { 1 };
        let newest = self.lists[stream.list as usize].newest == slot;
        if newest && (stream.list == Which::Established) == (stream.requests == ESTABLISHED) {
            return;
        }
        self.unlink(slot);
        let which = self.list_for(slot);
        self.link_newest(slot, which);
    }

    /// Demotes a stream that another stream has passed through.
    fn demote(&mut self, slot: u16) {
        self.unlink(slot);
        self.streams[slot as usize].requests = 0;
        self.link_oldest(slot);
    }
}

fn hash(is_write: bool, end: u64) -> u64 {
    // Fibonacci hashing; the direction only has to change the bucket.
    end.wrapping_add(u64::from(is_write)).wrapping_mul(0x9E37_79B9_7F4A_7C15)
}

/// Returns the index at which the end of a stream is remembered, and its 30-bit tag; two more bits
/// hold the number of requests.
fn remembered(is_write: bool, end: u64) -> (usize, u32) {
    let hash = hash(is_write, end);
    // The tag has bits that the index does not depend on.
    ((hash >> 32) as usize % ENDS, ((hash >> 34) as u32 ^ hash as u32) & !3)
}

#[cfg(test)]
mod tests;
