//! Clients that submit random operations at random times.

use std::time::Duration;

use forebay_core::{Nanos, Op, Survives};

/// An operation that a client chooses.
#[derive(Clone, Copy, Debug)]
pub struct WorkloadOp {
    /// The kind of operation.
    pub op: Op,
    /// First sector.
    pub first: u64,
    /// Sectors; 0 for a flush.
    pub sectors: u64,
    /// Failures that the effect must survive once the operation has ended.
    pub survives: Survives,
    /// Whether to try first the path that does not wait.
    pub at_once: bool,
}

/// Weights of the operations.
#[derive(Clone, Debug)]
pub struct Mix {
    /// Reads.
    pub read: u32,
    /// Writes.
    pub write: u32,
    /// Flushes.
    pub flush: u32,
    /// Discards.
    pub discard: u32,
    /// Writes of zeroes.
    pub write_zeroes: u32,
    /// Prefetches.
    pub prefetch: u32,
    /// Percentage of writes that are FUA.
    pub fua_percent: u32,
    /// Percentage of the other writes that must survive the end of the daemon.
    pub written_percent: u32,
}

impl Mix {
    /// Chooses random weights. `zeroes`: whether operations that write zeroes are allowed.
    pub fn choose(rng: &mut fastrand::Rng, zeroes: bool) -> Self {
        // Requests like those of a file system that occasionally discards recent writes.
        let discards = if rng.u32(0..4) == 0 { 5..30 } else { 0..5 };
        Mix {
            read: rng.u32(5..60),
            write: rng.u32(10..60),
            flush: rng.u32(0..6),
            discard: if zeroes { rng.u32(discards) } else { 0 },
            write_zeroes: if zeroes { rng.u32(0..5) } else { 0 },
            prefetch: rng.u32(0..4),
            fua_percent: if rng.bool() { rng.u32(0..20) } else { 0 },
            written_percent: 0,
        }
    }

    fn op(&self, rng: &mut fastrand::Rng) -> Op {
        let weights = [
            (self.read, Op::Read),
            (self.write, Op::Write),
            (self.flush, Op::Flush),
            (self.discard, Op::Discard),
            (self.write_zeroes, Op::WriteZeroes),
            (self.prefetch, Op::Prefetch),
        ];
        let mut left = rng.u32(0..weights.iter().map(|entry| entry.0).sum::<u32>().max(1));
        for (weight, op) in weights {
            match left.checked_sub(weight) {
                Some(rest) => left = rest,
                None => return op,
            }
        }
        Op::Read
    }
}

/// One client of one volume on one lane.
pub struct SimClient {
    /// Index of the client's lane.
    pub lane: usize,
    /// Index of the client's volume.
    pub volume: u16,
    /// Operations in progress.
    pub underway: u32,
    rng: fastrand::Rng,
    mix: Mix,
    depth: u32,
    sectors: u64,
    /// First sector and length of the client's hot range.
    hot: (u64, u64),
    sequential: Option<u64>,
    next_at: Nanos,
}

impl SimClient {
    /// Creates a client of a volume of `sectors` sectors; the clients of a volume share the range
    /// `hot`.
    pub fn new(
        lane: usize,
        volume: u16,
        sectors: u64,
        hot: (u64, u64),
        mix: Mix,
        mut rng: fastrand::Rng,
    ) -> Self {
        let depth = if rng.bool() { rng.u32(1..4) } else { rng.u32(1..12) };
        let sequential = (rng.u32(0..5) == 0).then(|| rng.u64(0..sectors));
        let next_at = Nanos(0);
        SimClient { lane, volume, underway: 0, rng, mix, depth, sectors, hot, sequential, next_at }
    }

    /// Records that the client's volume now has `sectors` sectors.
    pub fn has_grown(&mut self, sectors: u64) {
        if sectors > self.sectors {
            self.sectors = sectors;
            if self.rng.bool() {
                self.hot.0 = sectors - self.hot.1;
            }
        }
    }

    /// Forgets the operations in progress.
    pub fn reset(&mut self) {
        self.underway = 0;
        self.next_at = Nanos(0);
    }

    /// Returns the time of the client's next submission, or `None` while it has enough operations
    /// in progress.
    pub fn due(&self) -> Option<Nanos> {
        (self.underway < self.depth).then_some(self.next_at)
    }

    /// Returns the client's next operation.
    pub fn next_op(&mut self, now: Nanos) -> WorkloadOp {
        self.next_at = now + self.pause();
        let op = self.mix.op(&mut self.rng);
        let at_once = self.rng.bool();
        if op == Op::Flush {
            return WorkloadOp { op, first: 0, sectors: 0, survives: Survives::Nothing, at_once };
        }
        let sectors = match op {
            // Long enough to be zeroed without a write.
            Op::WriteZeroes if self.rng.u32(0..8) == 0 => self.rng.u64(513..=1024),
            _ => self.length(),
        };
        let sectors = sectors.min(self.sectors);
        let first = self.start(sectors).min(self.sectors - sectors);
        let survives = match op {
            Op::Write | Op::WriteZeroes => self.promise(),
            _ => Survives::Nothing,
        };
        WorkloadOp { op, first, sectors, survives, at_once }
    }

    fn promise(&mut self) -> Survives {
        if self.rng.u32(0..100) < self.mix.fua_percent {
            return Survives::PowerLoss;
        }
        let written = self.mix.written_percent;
        if written > 0 && self.rng.u32(0..100) < written {
            return Survives::Daemon;
        }
        Survives::Nothing
    }

    /// Returns the pause before the next operation: mostly none, so that requests come in bursts,
    /// and sometimes one in which background work runs.
    fn pause(&mut self) -> Duration {
        match self.rng.u32(0..100) {
            0..60 => Duration::ZERO,
            60..95 => Duration::from_micros(self.rng.u64(0..2_000)),
            95..99 => Duration::from_millis(self.rng.u64(0..200)),
            _ => Duration::from_millis(self.rng.u64(0..4_000)),
        }
    }

    fn length(&mut self) -> u64 {
        match self.rng.u32(0..20) {
            0..8 => 8,
            8..12 => 8 * self.rng.u64(1..=8),
            12..18 => self.rng.u64(1..=16),
            _ => self.rng.u64(1..=256),
        }
    }

    fn start(&mut self, sectors: u64) -> u64 {
        if let Some(next) = &mut self.sequential {
            let first = if *next + sectors > self.sectors { 0 } else { *next };
            *next = first + sectors;
            return first;
        }
        let (start, len) = if self.rng.u32(0..10) < 8 { self.hot } else { (0, self.sectors) };
        let first = start + self.rng.u64(0..len.max(1));
        let aligned = sectors.is_multiple_of(8) && self.rng.u32(0..8) > 0;
        if aligned { first / 8 * 8 } else { first }
    }
}
