//! Random requests on two lanes above a disk that applies and answers them in any order. A reference
//! knows which values each sector may have.

use std::cell::Cell;
use std::collections::BTreeMap;

use forebay_core::ReplacementKind;

use super::*;
use crate::options::{RamBlock, TierOptions};

const SECTORS: u64 = 96;
const SECTOR: usize = SECTOR_SIZE as usize;

/// The lower tier: a disk whose requests take effect, and end, when the test says so.
#[derive(Default)]
struct Disk {
    image: RefCell<Vec<u32>>,
    /// What each sector had before its last write.
    before: RefCell<Vec<u32>>,
    losses: Cell<u64>,
    /// Reads that it was told of.
    told: Cell<u64>,
    waiting: RefCell<Vec<Waiting>>,
    /// Chance in percent that a small request is answered at once.
    quick: u32,
    /// Chance in percent that a write fails after it took effect in part.
    fails: u32,
    rng: RefCell<fastrand::Rng>,
}

struct Waiting {
    request: Request,
    sink: Rc<dyn CompletionSink>,
    done: Option<Result<(), IoError>>,
}

fn fill(bytes: &mut [u8], value: u32) {
    bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| *word = value.to_le_bytes());
}

fn value(bytes: &[u8]) -> u32 {
    let words = bytes.as_chunks::<4>().0;
    assert!(words.iter().all(|word| word == &words[0]), "a torn sector");
    u32::from_le_bytes(words[0])
}

fn sectors(offset: u64, len: u64) -> std::ops::Range<usize> {
    offset as usize / SECTOR..(offset + len) as usize / SECTOR
}

impl Disk {
    fn read(&self, offset: u64, into: &mut [u8]) {
        let range = sectors(offset, into.len() as u64);
        for (place, value) in into.chunks_mut(SECTOR).zip(&self.image.borrow()[range]) {
            fill(place, *value);
        }
    }

    /// Loses the last write to each sector of a range.
    fn lose(&self, range: std::ops::Range<usize>) {
        self.image.borrow_mut()[range.clone()].copy_from_slice(&self.before.borrow()[range]);
        self.losses.set(self.losses.get() + 1);
    }

    /// Applies a request.
    fn act(&self, request: &mut Request) -> Result<(), IoError> {
        let (offset, range) = (request.offset, sectors(request.offset, request.len));
        if matches!(request.op, Op::Write | Op::WriteZeroes) {
            let image = self.image.borrow();
            self.before.borrow_mut()[range.clone()].copy_from_slice(&image[range.clone()]);
        }
        let mut cut = range.len();
        let fails = request.op == Op::Write && self.rng.borrow_mut().u32(0..100) < self.fails;
        if fails {
            cut = self.rng.borrow_mut().usize(0..=cut);
        }
        match (request.op, &mut request.data) {
            (Op::Read, Some(data)) => self.read(offset, data),
            (Op::Write, Some(data)) => {
                for (place, bytes) in
                    self.image.borrow_mut()[range].iter_mut().zip(data.chunks(SECTOR)).take(cut)
                {
                    *place = value(bytes);
                }
            }
            (Op::WriteZeroes, _) => self.image.borrow_mut()[range].fill(0),
            _ => (),
        }
        if fails { Err(IoError::Io) } else { Ok(()) }
    }

    fn is_quick(&self) -> bool {
        self.rng.borrow_mut().u32(0..100) < self.quick
    }
}

impl BlockService for Disk {
    fn size(&self) -> u64 {
        SECTORS * SECTOR_SIZE
    }

    fn preferred_block(&self) -> u64 {
        SECTOR_SIZE
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_now(&self, offset: u64, into: &mut [u8]) -> Option<Result<(), IoError>> {
        self.is_quick().then(|| {
            self.read(offset, into);
            Ok(())
        })
    }

    fn write_now(&self, offset: u64, data: &[u8]) -> Option<Result<(), IoError>> {
        self.is_quick()
            .then(|| self.act(&mut request(Op::Write, offset, data.len(), Some(data.into()))))
    }

    fn losses(&self) -> u64 {
        self.losses.get()
    }

    fn used(&self, _: u64, _: u64) {
        self.told.set(self.told.get() + 1);
    }

    fn submit(&self, request: Request, sink: &Rc<dyn CompletionSink>) {
        self.waiting.borrow_mut().push(Waiting { request, sink: sink.clone(), done: None });
    }

    fn extents(&self, _: u64, len: u64) -> Vec<Extent> {
        vec![Extent { len, hole: false, zero: false }]
    }
}

fn request(op: Op, offset: u64, len: usize, data: Option<IoBuf>) -> Request {
    let len = len as u64;
    Request { tag: 0, op, offset, len, fua: false, fast: false, no_hole: false, data }
}

/// The values that a sector may have.
#[derive(Clone)]
struct Admissible {
    values: Vec<u32>,
    /// Values of writes since one was in flight.
    burst: Vec<u32>,
    writers: u32,
}

/// A client's request that has no answer yet.
enum Asked {
    Write(std::ops::Range<usize>),
    /// For each sector the values that may be read, and whether none was written meanwhile.
    Read {
        range: std::ops::Range<usize>,
        allowed: Vec<(Vec<u32>, bool)>,
    },
}

#[derive(Default)]
struct Answers(RefCell<Vec<Completion>>);

impl CompletionSink for Answers {
    fn complete(&self, completion: Completion) {
        self.0.borrow_mut().push(completion);
    }
}

struct World {
    disk: Rc<Disk>,
    tier: Arc<Tier>,
    lanes: [Rc<RamVolume>; 2],
    answers: Rc<Answers>,
    reference: Vec<Admissible>,
    asked: BTreeMap<u64, Asked>,
    next: u32,
    /// Sectors of the longest request.
    longest: u64,
    rng: fastrand::Rng,
}

impl World {
    fn new(seed: u64) -> Self {
        let mut rng = fastrand::Rng::with_seed(seed);
        let disk = Rc::new(Disk {
            image: RefCell::new(vec![0; SECTORS as usize]),
            before: RefCell::new(vec![0; SECTORS as usize]),
            quick: rng.choice([0, 50, 90]).unwrap_or(0),
            fails: rng.choice([0, 0, 10]).unwrap_or(0),
            rng: RefCell::new(rng.fork()),
            ..Disk::default()
        });
        let block = RamBlock::new(512 << rng.u32(0..5)).expect("a block size");
        let policy = ReplacementKind::ALL[rng.usize(0..ReplacementKind::ALL.len())];
        let bytes = rng.u64(1..2 * SECTORS) * SECTOR_SIZE;
        let tier = Arc::new(Tier::new(TierOptions { bytes, block, policy, seed }).expect("memory"));
        let lane = || RamVolume::new(tier.clone(), disk.clone());
        World {
            lanes: [lane(), lane()],
            answers: Rc::default(),
            reference: vec![
                Admissible { values: vec![0], burst: Vec::new(), writers: 0 };
                SECTORS as usize
            ],
            asked: BTreeMap::new(),
            next: 1,
            longest: rng.choice([8, 20, SECTORS]).unwrap_or(1),
            disk,
            tier,
            rng,
        }
    }

    fn begin_write(&mut self, range: &std::ops::Range<usize>, value: u32) {
        for sector in &mut self.reference[range.clone()] {
            sector.writers += 1;
            sector.values.push(value);
            sector.burst.push(value);
        }
        for asked in self.asked.values_mut() {
            if let Asked::Read { range: read, allowed } = asked {
                for (sector, (values, still)) in read.clone().zip(allowed) {
                    if range.contains(&sector) {
                        values.push(value);
                        *still = false;
                    }
                }
            }
        }
    }

    /// The disk loses writes: each sector has its value or the one before.
    fn lose(&mut self) {
        let first = self.rng.usize(0..SECTORS as usize);
        let range = first..self.rng.usize(first..SECTORS as usize) + 1;
        self.disk.lose(range.clone());
        let before = self.disk.before.borrow().clone();
        for sector in range.clone() {
            let known = &mut self.reference[sector];
            known.values.push(before[sector]);
            if known.writers > 0 {
                known.burst.push(before[sector]);
            }
        }
        for asked in self.asked.values_mut() {
            if let Asked::Read { range: read, allowed } = asked {
                for (sector, (values, still)) in read.clone().zip(allowed) {
                    if range.contains(&sector) {
                        values.push(before[sector]);
                        *still = false;
                    }
                }
            }
        }
    }

    fn end_write(&mut self, range: std::ops::Range<usize>, good: bool) {
        for sector in &mut self.reference[range] {
            sector.writers -= 1;
            if !good {
                // What was there before may still be there.
                sector.burst.extend(sector.values.iter().copied());
            }
            if sector.writers == 0 {
                sector.values = std::mem::take(&mut sector.burst);
            }
        }
    }

    fn begin_read(&self, range: &std::ops::Range<usize>) -> Vec<(Vec<u32>, bool)> {
        let sectors = &self.reference[range.clone()];
        sectors.iter().map(|sector| (sector.values.clone(), sector.writers == 0)).collect()
    }

    fn end_read(
        &mut self,
        range: std::ops::Range<usize>,
        allowed: Vec<(Vec<u32>, bool)>,
        data: &[u8],
    ) {
        for ((sector, (allowed, still)), bytes) in range.zip(allowed).zip(data.chunks(SECTOR)) {
            let found = value(bytes);
            assert!(allowed.contains(&found), "sector {sector}: {found} is none of {allowed:?}");
            let known = &mut self.reference[sector];
            if still {
                // From now on it is this one.
                known.values = vec![found];
            } else if found != 0 && known.burst.contains(&found) {
                // What a write in flight replaces does not come back once the new value was read.
                // Zeroes may be older ones.
                known.values = known.burst.clone();
            }
        }
    }

    fn ask(&mut self) {
        let first = self.rng.u64(0..SECTORS);
        let len = self.rng.u64(1..=(SECTORS - first).min(self.longest)) * SECTOR_SIZE;
        let offset = first * SECTOR_SIZE;
        let range = sectors(offset, len);
        let lane = self.lanes[self.rng.usize(0..2)].clone();
        let tag = u64::from(self.next);
        self.next += 1;
        let op = self.rng.choice([Op::Read, Op::Read, Op::Write, Op::WriteZeroes, Op::Flush]);
        let op = op.unwrap_or(Op::Read);
        let sink: Rc<dyn CompletionSink> = self.answers.clone();
        let mut bytes = IoBuf::zeroed(len as usize);
        match op {
            Op::Write => {
                fill(&mut bytes, self.next);
                self.begin_write(&range, self.next);
                if let Some(result) = lane.write_now(offset, &bytes) {
                    return self.end_write(range, result.is_ok());
                }
                self.asked.insert(tag, Asked::Write(range));
            }
            Op::WriteZeroes => {
                self.begin_write(&range, 0);
                self.asked.insert(tag, Asked::Write(range));
            }
            Op::Read => {
                let allowed = self.begin_read(&range);
                if let Some(result) = lane.read_now(offset, &mut bytes) {
                    assert_eq!(result, Ok(()));
                    return self.end_read(range, allowed, &bytes);
                }
                self.asked.insert(tag, Asked::Read { range, allowed });
            }
            _ => (),
        }
        let data = (op == Op::Write).then_some(bytes);
        lane.submit(Request { tag, ..request(op, offset, len as usize, data) }, &sink);
        self.take_answers();
    }

    fn take_answers(&mut self) {
        for Completion { tag, result, data } in self.answers.0.take() {
            match self.asked.remove(&tag) {
                Some(Asked::Write(range)) => self.end_write(range, result.is_ok()),
                Some(Asked::Read { range, allowed }) => {
                    assert_eq!(result, Ok(()));
                    self.end_read(range, allowed, &data.expect("the data"));
                }
                None => (),
            }
        }
    }

    /// One waiting request takes effect or, if it has, ends.
    fn progress(&mut self) -> bool {
        let mut waiting = self.disk.waiting.borrow_mut();
        if waiting.is_empty() {
            return false;
        }
        let number = self.rng.usize(0..waiting.len());
        if waiting[number].done.is_none() {
            waiting[number].done = Some(self.disk.act(&mut waiting[number].request));
        } else {
            let Waiting { request, sink, done } = waiting.swap_remove(number);
            drop(waiting);
            let result = done.expect("it has taken effect");
            sink.complete(Completion { tag: request.tag, result, data: request.data });
            self.take_answers();
        }
        true
    }
}

#[test]
fn reads_return_what_the_lower_tier_has() {
    let mut hits = 0;
    for seed in 0..400 {
        let mut world = World::new(seed);
        for _ in 0..600 {
            match world.rng.u32(0..100) {
                0..40 => world.ask(),
                40 => {
                    let options = world.tier.options();
                    let options = TierOptions { bytes: options.bytes / 2 + 512, ..options };
                    world.tier.change(options).expect("memory");
                }
                41 if seed % 3 == 0 => world.lose(),
                _ => drop(world.progress()),
            }
        }
        while world.progress() {}
        assert!(world.asked.is_empty(), "every request ends");
        // At rest RAM and disk agree.
        let mut bytes = vec![0; SECTOR];
        for sector in 0..SECTORS {
            if world.tier.read(sector * SECTOR_SIZE, &mut bytes).is_some() {
                hits += 1;
                assert_eq!(value(&bytes), world.disk.image.borrow()[sector as usize], "{sector}");
            }
        }
    }
    assert!(hits > 300, "only {hits} sectors were cached");
}

#[test]
fn some_hits_are_told_to_the_lower_tier() {
    let world = World::new(3);
    let mut bytes = IoBuf::zeroed(SECTOR);
    world.tier.change(TierOptions { bytes: 1 << 20, ..world.tier.options() }).expect("memory");
    let sink: Rc<dyn CompletionSink> = world.answers.clone();
    let mut world = world;
    world.lanes[0].submit(request(Op::Read, 0, SECTOR, None), &sink);
    while world.progress() {}
    let before = world.tier.counts().hits;
    for _ in 0..160 {
        assert_eq!(world.lanes[1].read_now(0, &mut bytes), Some(Ok(())));
    }
    assert_eq!(world.tier.counts().hits, before + 160);
    assert_eq!(world.disk.told.get(), 10);
}

#[test]
fn a_closed_tier_serves_nothing() {
    let mut world = World::new(1);
    (0..200).for_each(|_| world.ask());
    while world.progress() {}
    world.tier.close();
    (0..200).for_each(|_| world.ask());
    while world.progress() {}
    assert_eq!(world.tier.counts().cached, 0);
    let mut bytes = [0; SECTOR];
    assert!((0..SECTORS).all(|sector| world.tier.read(sector * SECTOR_SIZE, &mut bytes).is_none()));
}

#[test]
fn a_tier_takes_no_more_memory_than_it_says() {
    for policy in ReplacementKind::ALL {
        for (mib, block) in [(1, 4096), (32, 4096), (256, 4096), (64, 512), (256, 64 << 10)] {
            let block = RamBlock::new(block).expect("a block size");
            let options = TierOptions { bytes: mib << 20, block, policy: *policy, seed: 0 };
            let tier = Tier::new(options).expect("memory");
            let overhead = tier.counts().overhead_bytes;
            assert!(options.bytes + overhead <= options.memory(), "{options:?}: {overhead}");
            let smaller = TierOptions { bytes: 1 << 20, ..options };
            tier.change(smaller).expect("memory");
            let overhead = tier.counts().overhead_bytes;
            assert!(smaller.bytes + overhead <= tier.memory_after(&smaller), "{overhead}");
        }
    }
}
