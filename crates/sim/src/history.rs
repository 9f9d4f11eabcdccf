//! The possible contents of one sector.
//!
//! Each submitted write is a version. Versions are ordered as far as their order can be known: a
//! write that was submitted after another had ended comes after it, and a read that returns a
//! version orders every version that had ended before the read before that version. A version is
//! *hidden* once no later read may return it, and *lost* once not even a crash may restore it.
//!
//! Times are event numbers, so no two are equal.

use forebay_core::Survives;

use crate::stamp::{SectorContent, Value};

/// The number of an event.
pub type Moment = u64;

const NEVER: Moment = Moment::MAX;

/// Identifies a version within its sector's volume: the number of the write or discard.
pub type VersionId = u32;

#[derive(Clone, Debug)]
struct SectorVersion {
    id: VersionId,
    value: Value,
    submitted: Moment,
    /// The moment at which it was acknowledged with success.
    acknowledged: Moment,
    /// The version took effect before this moment, or never will.
    settled: Moment,
    hidden: Moment,
    /// Made durable by a flush, by FUA or by recovery.
    durable: bool,
    /// Whether the version survives the death of the process, as long as the power does not fail.
    written: bool,
    /// Whether such a version replaced this one before the process died: unless the power fails
    /// before the system is up again, this version is then lost.
    superseded: bool,
    lost: bool,
    /// Whether the version is a discard, which hides nothing until a read returns its zeroes.
    advisory: bool,
    /// Versions that reads have proved to be later.
    before: Vec<VersionId>,
    /// Whether the version is on the origin, below a copy that may be dropped at any time.
    below: bool,
}

impl SectorVersion {
    fn precedes(&self, other: &SectorVersion) -> bool {
        self.settled < other.submitted || self.before.contains(&other.id)
    }
}

/// Why a value is not admissible.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wrong {
    /// The value was the content once, but no read may return it any more.
    Stale,
    /// The value had been ordered before a durable version, by a flush, FUA or an earlier read.
    CameBack,
    /// The value was never written to this sector.
    NeverWritten,
}

/// The versions of one sector.
#[derive(Clone, Debug)]
pub struct SectorHistory {
    versions: Vec<SectorVersion>,
    /// Values of recently removed versions; only for better messages.
    recent: [Option<Value>; 4],
    /// The moment at which the stored data was damaged: reads may fail until a later write is
    /// durable.
    tainted: Option<Moment>,
    /// Whether a later write has ended: no read may fail unless a crash loses that write.
    covered: bool,
}

impl SectorHistory {
    /// Creates the history of a sector with `value`, durably.
    pub fn new(value: Value) -> Self {
        let version = SectorVersion {
            id: 0,
            value,
            submitted: 0,
            acknowledged: 0,
            settled: 0,
            hidden: NEVER,
            durable: true,
            written: false,
            superseded: false,
            lost: false,
            advisory: false,
            before: Vec::new(),
            below: false,
        };
        SectorHistory { versions: vec![version], recent: [None; 4], tainted: None, covered: false }
    }

    /// Returns whether only one value is possible, now and after a crash.
    pub fn is_settled(&self) -> bool {
        matches!(&self.versions[..], [only] if only.durable && only.acknowledged != NEVER)
    }

    /// Records that a write (or, if `advisory`, a discard) is submitted.
    pub fn submit(&mut self, id: VersionId, value: Value, advisory: bool, now: Moment) {
        self.versions.push(SectorVersion {
            id,
            value,
            submitted: now,
            acknowledged: NEVER,
            settled: NEVER,
            hidden: NEVER,
            durable: false,
            written: false,
            superseded: false,
            lost: false,
            advisory,
            before: Vec::new(),
            below: false,
        });
    }

    /// Records the end of a write: with success, and the failures that it now survives, or with an
    /// error.
    pub fn end(
        &mut self,
        id: VersionId,
        success: bool,
        survives: Survives,
        now: Moment,
        oldest_read: Moment,
    ) {
        let Some(index) = self.versions.iter().position(|version| version.id == id) else { return };
        let version = &mut self.versions[index];
        version.settled = version.settled.min(now);
        if !success {
            return;
        }
        version.acknowledged = now;
        version.durable |= survives == Survives::PowerLoss;
        version.written |= survives >= Survives::Daemon;
        if !version.advisory {
            self.covered |= self.tainted.is_some_and(|tainted| tainted < version.submitted);
            let ended = version.clone();
            for other in &mut self.versions {
                if other.precedes(&ended) {
                    other.hidden = other.hidden.min(now);
                }
            }
        }
        self.lose();
        self.prune(oldest_read);
    }

    /// Records that a flush submitted at `submitted` was acknowledged.
    pub fn flushed(&mut self, submitted: Moment, oldest_read: Moment) {
        for version in &mut self.versions {
            version.durable |= version.acknowledged < submitted;
        }
        self.lose();
        self.prune(oldest_read);
    }

    fn lose(&mut self) {
        if let Some(tainted) = self.tainted {
            let mends = |it: &SectorVersion| it.durable && !it.advisory && it.submitted > tainted;
            self.tainted = self.tainted.filter(|_| !self.versions.iter().any(mends));
        }
        if self.versions.len() < 2 {
            return;
        }
        for index in 0..self.versions.len() {
            let version = &self.versions[index];
            let lost = self
                .versions
                .iter()
                .any(|other| other.durable && !other.advisory && version.precedes(other));
            self.versions[index].lost |= lost;
        }
    }

    fn prune(&mut self, oldest_read: Moment) {
        let recent = &mut self.recent;
        self.versions.retain(|version| {
            let gone = version.lost && version.hidden < oldest_read && version.settled != NEVER;
            if gone {
                recent.rotate_right(1);
                recent[0] = Some(version.value);
            }
            !gone
        });
    }

    /// Records that a read from `started` to `now` returned `content`.
    ///
    /// # Errors
    /// The content is not admissible.
    pub fn observe(
        &mut self,
        content: SectorContent,
        started: Moment,
        now: Moment,
        oldest_read: Moment,
    ) -> Result<(), Wrong> {
        let SectorContent::Own(value) = content else { return Err(Wrong::NeverWritten) };
        let admissible =
            |version: &SectorVersion| version.value == value && version.hidden > started;
        let matching: Vec<usize> =
            (0..self.versions.len()).filter(|&index| admissible(&self.versions[index])).collect();
        let Some(&first) = matching.first() else { return Err(self.explain(value)) };
        if self.versions.len() == 1 {
            return Ok(());
        }
        let id = self.versions[first].id;
        // A copy that should be dropped and the version below it may alternate, because reads may
        // bypass a clean copy: later writes hide both, but neither hides the other.
        let is_copy = matching.iter().all(|&index| self.versions[index].submitted == 0);
        let is_below = matching.iter().any(|&index| self.versions[index].below);
        let unique = matching.len() == 1;
        // Once the returned version has certainly taken effect, no read may return earlier
        // versions.
        let settled = matching.iter().map(|&index| self.versions[index].settled.min(now)).max();
        let settled = settled.unwrap_or(now);
        for (index, version) in self.versions.iter_mut().enumerate() {
            if matching.contains(&index) {
                if unique {
                    version.settled = settled;
                    version.advisory = false;
                }
            } else if version.settled < started && !(is_copy && (is_below || version.below)) {
                version.hidden = version.hidden.min(settled);
                if unique && !version.before.contains(&id) {
                    version.before.push(id);
                }
            }
        }
        self.lose();
        self.prune(oldest_read);
        Ok(())
    }

    fn explain(&self, value: Value) -> Wrong {
        match self.versions.iter().find(|version| version.value == value) {
            Some(version) if version.lost => Wrong::CameBack,
            Some(_) => Wrong::Stale,
            None if self.recent.contains(&Some(value)) => Wrong::CameBack,
            None if value == Value::Zero => Wrong::NeverWritten,
            None => Wrong::CameBack,
        }
    }

    /// Records a crash with nothing in flight afterwards: any version that is not lost may be
    /// found, and must then stay. `power`: a device lost its power, and not only the process died.
    pub fn crash(&mut self, power: bool, now: Moment) {
        self.covered = false;
        self.versions.retain(|version| !version.lost);
        for index in 0..self.versions.len() {
            let version = &self.versions[index];
            let replaces =
                |other: &SectorVersion| other.written && !other.advisory && version.precedes(other);
            let superseded = version.superseded || self.versions.iter().any(replaces);
            self.versions[index].superseded = superseded && !power;
        }
        self.versions.sort_by_key(|version| (version.value, version.superseded));
        self.versions.dedup_by_key(|version| version.value);
        for version in &mut self.versions {
            version.submitted = 0;
            version.acknowledged = now;
            version.settled = now;
            version.hidden = if version.superseded { now } else { NEVER };
            version.durable = true;
            version.written = false;
            version.advisory = false;
            version.before.clear();
        }
    }

    /// Records that the system is up after a crash: the content found now stays, whatever fails
    /// next.
    pub fn opened(&mut self) {
        self.versions.retain(|version| !version.superseded);
    }

    /// Records that a device lost writes in a failed sync: only durable data survives.
    pub fn unwritten(&mut self) {
        self.versions.iter_mut().for_each(|version| version.written = false);
    }

    /// Records that the origin failed a sync and lost some versions, as a client of a plain disk
    /// would have to expect: versions that had ended and were not durable are possible again.
    /// Durable ones, which may be on the cache device, stay durable; and reads in progress may
    /// still return the values that they found.
    pub fn reopen(&mut self, now: Moment, oldest_read: Moment) {
        for version in self.versions.iter_mut().filter(|version| version.lost) {
            version.hidden = version.hidden.min(now);
        }
        self.prune(oldest_read);
        let open = |version: &&mut SectorVersion| !version.lost && version.settled < now;
        for version in self.versions.iter_mut().filter(open) {
            version.submitted = 0;
            version.acknowledged = now;
            version.settled = now;
            version.hidden = NEVER;
            version.durable = false;
            version.written = false;
            version.before.clear();
        }
    }

    /// Records that the stored data was damaged on purpose.
    pub fn taint(&mut self, now: Moment) {
        (self.tainted, self.covered) = (Some(now), false);
    }

    /// Returns whether the data on the device may still be damaged although no read may fail,
    /// because of a later write, which a RAM tier may have.
    pub fn is_tainted_below(&self) -> bool {
        self.tainted.is_some()
    }

    /// Returns whether a read may fail.
    pub fn is_tainted(&self) -> bool {
        self.tainted.is_some() && !self.covered
    }

    /// Records that the log records of the sector were lost by damage while the system was down:
    /// any of these values, which the sector had at some time, may be found, and must then stay. If
    /// the value found is a copy that should be dropped, reads may also return one of those
    /// `below`.
    pub fn doubt(&mut self, values: &[Value], below: &[Value], now: Moment) {
        for &value in values {
            if self.versions.iter().all(|version| version.value != value) {
                self.versions.push(SectorVersion {
                    acknowledged: now,
                    settled: now,
                    ..SectorHistory::new(value).versions.remove(0)
                });
            }
        }
        for version in &mut self.versions {
            version.below |= below.contains(&version.value);
        }
    }

    /// Returns the values that may be found after a crash now.
    pub fn after_a_crash(&self) -> Vec<Value> {
        self.values(|version| !version.lost)
    }

    /// Returns the values that a read that starts now may return, for messages.
    pub fn expected(&self) -> Vec<Value> {
        self.values(|version| version.hidden == NEVER)
    }

    fn values(&self, of: impl Fn(&SectorVersion) -> bool) -> Vec<Value> {
        let versions = self.versions.iter().filter(|version| of(version));
        let mut values: Vec<_> = versions.map(|version| version.value).collect();
        values.sort_unstable();
        values.dedup();
        values
    }
}

#[cfg(test)]
mod tests;
