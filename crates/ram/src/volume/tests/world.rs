//! Random requests on two lanes. A reference knows which values each sector may have.

use std::collections::BTreeMap;

use super::disk::Disk;
use super::reference::Reference;
use super::*;
use crate::block::REGION_BYTES;

/// A client's request that has no answer yet.
enum Asked {
    Write { range: Range<usize>, begin: u64, durable: bool, certain: bool },
    Read { range: Range<usize>, begin: u64 },
    Flush { begin: u64 },
    Prefetch { begin: u64 },
}

impl Asked {
    fn begin(&self) -> u64 {
        match self {
            Asked::Write { begin, .. }
            | Asked::Read { begin, .. }
            | Asked::Flush { begin }
            | Asked::Prefetch { begin } => *begin,
        }
    }
}

/// See the module.
pub(super) struct World {
    pub(super) disk: Rc<Disk>,
    pub(super) tier: Arc<Tier>,
    pub(super) clock: Arc<ManualClock>,
    pub(super) lanes: [Rc<Lane>; 2],
    pub(super) volumes: [Rc<RamVolume>; 2],
    pub(super) answers: Rc<Answers>,
    reference: Reference,
    asked: BTreeMap<u64, Asked>,
    next: u32,
    /// Ranges of most requests.
    hot: Vec<Range<u64>>,
    /// Sectors of the longest request, except for rare longer ones.
    longest: u64,
    /// Flushes and FUA writes make data durable.
    pub(super) heeds_flush: bool,
    pub(super) rng: fastrand::Rng,
}

impl World {
    pub(super) fn new(seed: u64, sectors: u64, hot: &[Range<u64>]) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = Disk::new(sectors, rng.fork());
        disk.quick.set(rng.choice([0, 50, 90]).unwrap_or(0));
        disk.fails.set(rng.choice([0, 0, 10]).unwrap_or(0));
        let options = TierOptions {
            policy: rng.choice(ReplacementKind::ALL.iter().copied()).unwrap_or_default(),
            strategy: rng.choice(RamStrategy::ALL.iter().copied()).unwrap_or_default(),
            seed,
            ..options(rng.u64(1..192) * SECTOR_SIZE, 512 << rng.u32(0..5))
        };
        let (lanes, clock) = lanes();
        let tier = Arc::new(Tier::new(options, clock.clone()).expect("memory"));
        let volume = |lane: &Rc<Lane>| RamVolume::new(tier.clone(), disk.clone(), lane.clone());
        World {
            volumes: [volume(&lanes[0]), volume(&lanes[1])],
            lanes,
            clock,
            answers: Rc::default(),
            reference: Reference::new(sectors),
            asked: BTreeMap::new(),
            next: 1,
            hot: hot.to_vec(),
            longest: rng.choice([8, 20, 96]).unwrap_or(1),
            heeds_flush: true,
            disk,
            tier,
            rng,
        }
    }

    fn sectors(&self) -> u64 {
        self.disk.size() / SECTOR_SIZE
    }

    /// Returns a range of sectors.
    fn pick(&mut self) -> Range<usize> {
        let region = REGION_BYTES / SECTOR_SIZE;
        if self.sectors() > region && self.rng.u32(0..100) == 0 {
            // A region is zeroed as a whole this way.
            return 0..self.rng.choice([region, self.sectors()]).unwrap_or(region) as usize;
        }
        let hot = self.hot[self.rng.usize(0..self.hot.len())].clone();
        let first = self.rng.u64(hot);
        let most = if self.rng.u32(0..200) == 0 { u64::MAX } else { self.longest };
        let len = self.rng.u64(1..=(self.sectors() - first).min(most));
        first as usize..(first + len) as usize
    }

    /// Makes the disk lose writes that no flush has covered.
    pub(super) fn lose(&mut self) {
        let range = self.pick();
        self.disk.lose(range.clone());
        range.for_each(|sector| self.reference.lost(sector, self.disk.now(sector)));
    }

    /// Submits one of these requests.
    pub(super) fn ask(&mut self, ops: &[Op]) {
        if self.rng.u32(0..60) == 0 {
            // Memory becomes short, or is available again.
            let size = self.tier.options().bytes;
            self.tier.set_room(self.rng.u64(0..=2 * size));
        }
        let range = self.pick();
        let (offset, len) = (range.start as u64 * SECTOR_SIZE, range.len() * SECTOR);
        let volume = self.volumes[self.rng.usize(0..2)].clone();
        let tag = u64::from(self.next);
        self.next += 1;
        let op = self.rng.choice(ops.iter().copied()).unwrap_or(Op::Read);
        let mut sent = request(op, offset, len, None);
        let fua = matches!(op, Op::Write | Op::WriteZeroes) && self.rng.u32(0..8) == 0;
        let mut bytes = IoBuf::zeroed(len);
        let asked = match op {
            Op::Write | Op::WriteZeroes | Op::Discard => {
                let value = if op == Op::Write { self.next } else { 0 };
                let begin = self.reference.begin_write(&range, value);
                fill(&mut bytes, value);
                let certain = op != Op::Discard;
                let asked = Asked::Write { range, begin, durable: fua, certain };
                if op == Op::Write
                    && !fua
                    && let Some(result) = volume.write_now(offset, &bytes)
                {
                    return self.end(asked, result, None);
                }
                sent.data = (op == Op::Write).then_some(bytes);
                asked
            }
            Op::Read => {
                let asked = Asked::Read { range, begin: self.reference.tick() };
                if let Some(result) = volume.read_now(offset, &mut bytes) {
                    return self.end(asked, result, Some(&bytes));
                }
                sent.data = self.rng.bool().then_some(bytes);
                asked
            }
            Op::Flush => {
                sent = request(op, 0, 0, None);
                Asked::Flush { begin: self.reference.tick() }
            }
            Op::Prefetch => Asked::Prefetch { begin: self.reference.tick() },
        };
        self.asked.insert(tag, asked);
        let sink: Rc<dyn CompletionSink> = self.answers.clone();
        let no_hole = op == Op::WriteZeroes && self.rng.bool();
        let survives = if fua { Survives::PowerLoss } else { Survives::Nothing };
        volume.submit(Request { tag, survives, no_hole, ..sent }, &sink);
        self.take_answers();
    }

    fn take_answers(&mut self) {
        for Completion { tag, result, data } in self.answers.0.take() {
            let asked = self.asked.remove(&tag).expect("each request ends once");
            self.end(asked, result, data.as_deref());
        }
    }

    fn end(&mut self, asked: Asked, result: Result<(), IoError>, data: Option<&[u8]>) {
        let begins = self.asked.values().map(Asked::begin).chain([asked.begin()]);
        let oldest = begins.min().unwrap_or(0);
        let good = result.is_ok();
        match asked {
            Asked::Write { range, begin, durable, certain } => {
                self.reference.end_write(&range, begin, good && certain, oldest);
                if good && durable && self.heeds_flush {
                    for sector in range {
                        let found = self.disk.after_a_crash(sector);
                        self.reference.check_fua(sector, begin, found);
                    }
                }
            }
            Asked::Read { range, begin } => {
                assert!(good || self.disk.read_fails.get() > 0, "{result:?}");
                if good {
                    let data = data.expect("the data");
                    for (sector, bytes) in range.zip(data.chunks(SECTOR)) {
                        self.reference.end_read(sector, begin, value(bytes));
                    }
                }
            }
            Asked::Flush { begin } if good && self.heeds_flush => {
                for sector in 0..self.sectors() as usize {
                    let found = self.disk.after_a_crash(sector);
                    self.reference.check_flushed(sector, begin, found);
                }
            }
            Asked::Flush { .. } | Asked::Prefetch { .. } => (),
        }
    }

    /// Lets one waiting request take effect or, if it has taken effect, end.
    pub(super) fn progress(&mut self) -> bool {
        let progress = self.disk.progress(|count| self.rng.usize(0..count));
        self.take_answers();
        progress
    }

    /// Runs tasks that are ready, on one lane or on both.
    pub(super) fn run(&mut self) -> bool {
        let both = self.rng.bool();
        let first = self.rng.usize(0..2);
        let mut any = self.lanes[first].run_ready();
        any |= both && self.lanes[1 - first].run_ready();
        self.take_answers();
        any
    }

    /// Everything proceeds until no request waits.
    pub(super) fn settle(&mut self) {
        let mut idle = 0;
        while idle < 100 {
            let busy = self.run() | self.progress();
            idle = if busy { 0 } else { idle + 1 };
            if idle == 90 && !self.asked.is_empty() {
                self.clock.pass(std::time::Duration::from_secs(1));
            }
        }
    }

    /// Checks the state while no request is in flight. Returns the number of cached sectors.
    pub(super) fn check_at_rest(&self) -> u64 {
        assert!(self.asked.is_empty(), "every request ends");
        assert!(self.lanes.iter().all(|lane| lane.panics() == 0), "a task panicked");
        let mut bytes = vec![0; SECTOR];
        let mut hits = 0;
        self.tier.heed(self.disk.losses());
        for sector in 0..self.sectors() {
            let there = self.disk.now(sector as usize);
            self.reference.check_now(sector as usize, there);
            if self.tier.read(sector * SECTOR_SIZE, &mut bytes).is_some() {
                hits += 1;
                assert_eq!(value(&bytes), there, "sector {sector}: RAM and disk differ");
            }
        }
        hits
    }
}
