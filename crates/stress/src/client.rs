//! The clients of one lane: they read all blocks, write their own sectors, and flush.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Instant;

use forebay_core::{IoError, Op, Survives};
use forebay_device::IoBuf;
use forebay_engine::{BlockService, Completion, CompletionSink, Request};
use forebay_lane::Lane;

use crate::model::SectorModel;
use crate::own_lane::PATIENCE;
use crate::plan::Plan;
use crate::stamp::{self, SECTOR, Sequence};

/// Bytes of a block.
pub(crate) const BLOCK: u64 = 4096;
/// Sectors of a block.
pub(crate) const SECTORS: u64 = BLOCK / SECTOR as u64;
/// Number of neighbouring blocks that one lane writes.
const STRETCH: u64 = 64;
/// Requests in flight.
const DEPTH: usize = 24;

#[derive(Default)]
pub(crate) struct Sink(pub(crate) RefCell<Vec<Completion>>);

impl CompletionSink for Sink {
    fn complete(&self, completion: Completion) {
        self.0.borrow_mut().push(completion);
    }
}

/// A request in flight, with the data for the model.
enum Asked {
    Read { first: u64, least: Vec<Sequence> },
    Write { sectors: Range<u64>, sequences: Vec<Sequence>, durably: bool },
    Flush { acknowledged: Vec<Sequence> },
}

impl Asked {
    fn name(&self) -> &'static str {
        match self {
            Asked::Read { .. } => "a read",
            Asked::Write { .. } => "a write",
            Asked::Flush { .. } => "a flush",
        }
    }
}

/// See the module.
pub(crate) struct Clients {
    pub(crate) lane_number: u16,
    pub(crate) lanes: u16,
    pub(crate) plan: Plan,
    pub(crate) model: Arc<SectorModel>,
    pub(crate) volume: Rc<dyn BlockService>,
    pub(crate) lane: Rc<Lane>,
    /// Number of lanes whose clients have ended.
    pub(crate) ended: Arc<AtomicU16>,
    random: fastrand::Rng,
    asked: HashMap<u64, (Asked, Instant)>,
    /// Blocks with a write of this lane in flight.
    written: HashSet<u64>,
    last: u64,
    sink: Rc<Sink>,
}

fn blocks_of(sectors: &Range<u64>) -> Range<u64> {
    sectors.start / SECTORS..sectors.end.div_ceil(SECTORS)
}

pub(crate) fn request(tag: u64, op: Op, range: Range<u64>, data: Option<IoBuf>) -> Request {
    Request {
        tag,
        op,
        offset: range.start * SECTOR as u64,
        len: (range.end - range.start) * SECTOR as u64,
        survives: Survives::Nothing,
        fast: false,
        no_hole: false,
        data,
    }
}

impl Clients {
    pub(crate) fn new(
        (lane_number, lanes): (u16, u16),
        plan: Plan,
        model: &Arc<SectorModel>,
        volume: Rc<dyn BlockService>,
        lane: Rc<Lane>,
        (ended, seed): (&Arc<AtomicU16>, u64),
    ) -> Self {
        Clients {
            lane_number,
            lanes,
            plan,
            model: model.clone(),
            volume,
            lane,
            ended: ended.clone(),
            random: fastrand::Rng::with_seed(seed ^ u64::from(lane_number) << 48),
            asked: HashMap::new(),
            written: HashSet::new(),
            last: 0,
            sink: Rc::default(),
        }
    }

    /// Works until the model ends the run, and then continues to run the lane until no lane has a
    /// request in flight. `durable` is called whenever more data has become durable.
    pub(crate) fn run(&mut self, mut durable: impl FnMut(&mut fastrand::Rng), each: impl Fn()) {
        let mut told = false;
        while !(told && self.ended.load(Ordering::SeqCst) == self.lanes) {
            if !self.model.ends() {
                for _ in 0..8 {
                    if self.asked.len() < DEPTH {
                        self.ask();
                    }
                }
            } else if self.asked.is_empty() && !told {
                told = true;
                self.ended.fetch_add(1, Ordering::SeqCst);
            }
            let mut busy = false;
            for _ in 0..4 {
                busy |= self.lane.run_ready();
            }
            let completions = std::mem::take(&mut *self.sink.0.borrow_mut());
            for completion in completions {
                self.take(completion, &mut durable);
            }
            each();
            if !busy {
                self.look_for_hangs();
                std::thread::yield_now();
            }
        }
    }

    fn look_for_hangs(&self) {
        if let Some((asked, _)) = self.asked.values().find(|(_, began)| began.elapsed() > PATIENCE)
        {
            self.model.violated(format!("{} is not answered", asked.name()));
            // The thread would wait for ever.
            self.ended.store(self.lanes, Ordering::SeqCst);
        }
    }

    fn block(&mut self) -> u64 {
        let hot = self.random.u32(..4) > 0;
        self.random.u64(..if hot { self.plan.hot } else { self.plan.blocks })
    }

    fn ask(&mut self) {
        match self.random.u32(..1000) {
            0..500 => self.ask_to_read(),
            500..990 => self.ask_to_write(),
            _ => self.ask_to_flush(),
        }
    }

    fn submit(&mut self, asked: Asked, request: Request) {
        let sink: Rc<dyn CompletionSink> = self.sink.clone();
        self.asked.insert(request.tag, (asked, Instant::now()));
        self.volume.submit(request, &sink);
    }

    fn next_tag(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    fn ask_to_read(&mut self) {
        let (first, most) = (self.block() * SECTORS, self.model.sectors());
        let range = match self.random.u32(..10) {
            0 => first + self.random.u64(..SECTORS)..first + SECTORS + self.random.u64(..30),
            1 => first..first + self.random.u64(1..8) * SECTORS,
            _ => first..first + SECTORS,
        };
        let range = range.start..range.end.min(most);
        let least: Vec<Sequence> = range.clone().map(|sector| self.model.least(sector)).collect();
        self.model.counts.reads.fetch_add(1, Ordering::Relaxed);
        let mut into = IoBuf::zeroed((range.end - range.start) as usize * SECTOR);
        match self.volume.read_now(range.start * SECTOR as u64, &mut into) {
            Some(Ok(())) => {
                self.model.counts.at_once.fetch_add(1, Ordering::Relaxed);
                self.model.check(range.start, &into, &least, "a read at once");
            }
            Some(Err(error)) => self.model.failed(&format!("a read at once fails: {error:?}")),
            None => {
                let request = request(self.next_tag(), Op::Read, range.clone(), None);
                self.submit(Asked::Read { first: range.start, least }, request);
            }
        }
    }

    /// Chooses sectors of this lane.
    fn own_sectors(&mut self) -> Range<u64> {
        let (own, lanes) = (u64::from(self.lane_number), u64::from(self.lanes));
        let block = self.block();
        if self.plan.shares_blocks {
            let share = SECTORS / lanes;
            let first = block * SECTORS + share * own;
            let skipped = self.random.u64(..share);
            return first + skipped..first + self.random.u64(skipped + 1..=share);
        }
        let stretch = (block / STRETCH / lanes * lanes + own) * STRETCH;
        let stretch = if stretch + STRETCH > self.plan.blocks { own * STRETCH } else { stretch };
        let within = self.random.u64(..STRETCH);
        let first = (stretch + within) * SECTORS;
        let left = (STRETCH - within) * SECTORS;
        match self.random.u32(..20) {
            0 => stretch * SECTORS..(stretch + STRETCH) * SECTORS,
            1..4 => first..first + (self.random.u64(1..5) * SECTORS).min(left),
            4..8 => {
                let skipped = self.random.u64(..SECTORS);
                first + skipped..first + self.random.u64(skipped + 1..=SECTORS)
            }
            _ => first..first + SECTORS,
        }
    }

    fn ask_to_write(&mut self) {
        let sectors = self.own_sectors();
        if blocks_of(&sectors).any(|block| self.written.contains(&block)) {
            return;
        }
        let (zeroes, durably) = (self.random.u32(..40) == 0, self.random.u32(..200) == 0);
        let mut data = IoBuf::zeroed((sectors.end - sectors.start) as usize * SECTOR);
        let mut sequences = Vec::new();
        for (sector, bytes) in sectors.clone().zip(data.chunks_exact_mut(SECTOR)) {
            let sequence = self.model.begin(sector, zeroes);
            if !zeroes {
                stamp::fill(bytes, sector, sequence);
            }
            sequences.push(sequence);
        }
        self.model.counts.writes.fetch_add(1, Ordering::Relaxed);
        if !zeroes && !durably {
            match self.volume.write_now(sectors.start * SECTOR as u64, &data) {
                Some(Ok(())) => {
                    self.model.counts.at_once.fetch_add(1, Ordering::Relaxed);
                    self.acknowledge(&sectors, &sequences);
                    return;
                }
                Some(Err(error)) => {
                    self.model.failed(&format!("a write at once fails: {error:?}"));
                    return;
                }
                None => (),
            }
        }
        self.written.extend(blocks_of(&sectors));
        let (op, data) = if zeroes { (Op::WriteZeroes, None) } else { (Op::Write, Some(data)) };
        let survives = if durably { Survives::PowerLoss } else { Survives::Nothing };
        let request = Request { survives, ..request(self.next_tag(), op, sectors.clone(), data) };
        self.submit(Asked::Write { sectors, sequences, durably }, request);
    }

    fn acknowledge(&self, sectors: &Range<u64>, sequences: &[Sequence]) {
        for (sector, sequence) in sectors.clone().zip(sequences) {
            self.model.acknowledge(sector, *sequence);
        }
    }

    fn ask_to_flush(&mut self) {
        let acknowledged = self.model.acknowledged();
        let request = request(self.next_tag(), Op::Flush, 0..0, None);
        self.submit(Asked::Flush { acknowledged }, request);
    }

    fn take(&mut self, completion: Completion, durable: &mut impl FnMut(&mut fastrand::Rng)) {
        let Completion { tag, result, data } = completion;
        let Some((asked, _)) = self.asked.remove(&tag) else {
            self.model.violated(format!("request {tag} completes twice"));
            return;
        };
        if let Asked::Write { sectors, .. } = &asked {
            blocks_of(sectors).for_each(|block| _ = self.written.remove(&block));
        }
        if let Err(error) = result {
            self.note_failure(&asked, &error);
            return;
        }
        match asked {
            Asked::Read { first, least } => match data {
                Some(data) => self.model.check(first, &data, &least, "a read"),
                None => self.model.violated("a read has no data".to_owned()),
            },
            Asked::Write { sectors, sequences, durably } => {
                self.acknowledge(&sectors, &sequences);
                if durably {
                    for (sector, sequence) in sectors.zip(sequences) {
                        self.model.is_durable(sector, sequence);
                    }
                    durable(&mut self.random);
                }
            }
            Asked::Flush { acknowledged } => {
                self.model.flushed(&acknowledged);
                durable(&mut self.random);
            }
        }
    }

    fn note_failure(&self, asked: &Asked, error: &IoError) {
        // Like a failed sync, a failed durable write may have lost earlier writes.
        if matches!(asked, Asked::Flush { .. } | Asked::Write { durably: true, .. }) {
            self.model.flush_failed();
        }
        self.model.failed(&format!("{} fails: {error:?}", asked.name()));
    }
}
