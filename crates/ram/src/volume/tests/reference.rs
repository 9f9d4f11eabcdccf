//! The possible values of each sector: a register that several clients read and write concurrently.

use std::ops::Range;

/// A time that never comes.
const NEVER: u64 = u64::MAX;

/// The certainty that a sector had a value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Proof {
    /// The request is in flight, has failed, or may have had no effect.
    None,
    /// A read has returned the value from a write in flight.
    Read,
    /// The write was acknowledged, or it has ended and a read has returned its value.
    Ended,
}

/// A sector had a value at some time from `begin` to `end`.
#[derive(Clone, Copy)]
struct Event {
    value: u32,
    begin: u64,
    end: u64,
    proof: Proof,
}

/// See the module.
pub(super) struct Reference {
    sectors: Vec<Vec<Event>>,
    now: u64,
}

impl Reference {
    /// Creates a reference for sectors that are zero.
    pub(super) fn new(sectors: u64) -> Self {
        let zero = Event { value: 0, begin: 0, end: 0, proof: Proof::Ended };
        Reference { sectors: vec![vec![zero]; sectors as usize], now: 0 }
    }

    /// Returns a time later than all before.
    pub(super) fn tick(&mut self) -> u64 {
        self.now += 1;
        self.now
    }

    /// Begins a write, and returns when.
    pub(super) fn begin_write(&mut self, range: &Range<usize>, value: u32) -> u64 {
        let begin = self.tick();
        for events in &mut self.sectors[range.clone()] {
            events.push(Event { value, begin, end: NEVER, proof: Proof::None });
        }
        begin
    }

    /// Ends the write that began at `begin`. `certain`: it took effect. `since`: the time at which
    /// the oldest request in flight began.
    pub(super) fn end_write(
        &mut self,
        range: &Range<usize>,
        begin: u64,
        certain: bool,
        since: u64,
    ) {
        let end = self.tick();
        for events in &mut self.sectors[range.clone()] {
            let own = events.iter_mut().find(|event| event.begin == begin && event.end == NEVER);
            let own = own.expect("the write has begun");
            own.end = end;
            own.proof = if certain { Proof::Ended } else { Proof::None };
            let last = last_certain(events, since, Proof::Ended);
            events.retain(|event| event.end >= last);
        }
    }

    /// Ends a read that began at `begin` and found `value`, and checks it.
    pub(super) fn end_read(&mut self, sector: usize, begin: u64, value: u32) {
        self.check(sector, begin, value, Proof::Read, "was read");
        let end = self.tick();
        let events = &mut self.sectors[sector];
        let in_flight = events.iter().any(|event| event.value == value && event.end == NEVER);
        let proof = if in_flight { Proof::Read } else { Proof::Ended };
        events.push(Event { value, begin, end, proof });
    }

    /// Records that the disk has lost writes and has this older value now.
    pub(super) fn lost(&mut self, sector: usize, value: u32) {
        let begin = self.tick();
        let event = Event { value, begin, end: begin, proof: Proof::None };
        self.sectors[sector].push(event);
    }

    fn check(&self, sector: usize, since: u64, found: u32, proof: Proof, what: &str) {
        let events = &self.sectors[sector];
        let last = last_certain(events, since, proof);
        let allowed: Vec<u32> =
            events.iter().filter(|event| event.end >= last).map(|event| event.value).collect();
        assert!(
            allowed.contains(&found),
            "sector {sector}: {found} {what}, which is none of {allowed:?}"
        );
    }

    /// Checks the content of a sector after a crash, if a flush that was submitted at `since` has
    /// succeeded.
    pub(super) fn check_flushed(&self, sector: usize, since: u64, found: u32) {
        self.check(sector, since, found, Proof::Ended, "was flushed");
    }

    /// Checks the content of a sector after a crash, if a FUA write that began at `begin` has
    /// succeeded.
    pub(super) fn check_fua(&self, sector: usize, begin: u64, found: u32) {
        let events = self.sectors[sector].iter();
        let allowed: Vec<u32> =
            events.filter(|event| event.end >= begin).map(|event| event.value).collect();
        assert!(
            allowed.contains(&found),
            "sector {sector}: {found} is durable, which is none of {allowed:?}"
        );
    }

    /// Checks the content of a sector while no request is in flight.
    pub(super) fn check_now(&self, sector: usize, found: u32) {
        self.check(sector, NEVER, found, Proof::Read, "is there");
    }
}

/// Returns the begin of the last event that was certainly before `since`: values that ended before
/// it cannot occur any more.
fn last_certain(events: &[Event], since: u64, proof: Proof) -> u64 {
    let certain = events.iter().filter(|event| event.proof >= proof && event.end < since);
    certain.map(|event| event.begin).max().unwrap_or(0)
}
