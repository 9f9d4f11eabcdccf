//! The threads that measure: one for each lane, and the jobs that they are given.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;
use std::time::Duration;

use forebay_core::{RamStrategy, ReplacementKind};
use forebay_device::{Claim, Device, LogBuffer, RamDevice};
use forebay_engine::{Cache, EngineLane};
use forebay_lane::MonotonicClock;
use forebay_ram::{RamBlock, Tier, TierOptions, write_down};
use forebay_store::StoreOptions;

use crate::bench::device::DmaDevice;
use crate::bench::driver::{BATCH, Driver, fill_clean, random_order, stamp};
use crate::bench::engine::shared::SharedBlocks;
use crate::bench::engine::{Case, Sizes};
use crate::bench::measure::{Sample, Stopwatch, pin};
use crate::bench::pattern::{Step, permutation};
use crate::error::{LabError, LabResult, other};
use crate::progress::Progress;
use crate::rig::{BLOCK, LocalLane, Plan, Rig, VOLUME};

/// Kind of a sample.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Work {
    /// Requests to the engine.
    Engine,
    /// Copies of the same blocks, by each lane in memory of its own.
    Copy,
    /// Copies of the same blocks, in memory that all lanes share.
    CopyShared,
}

/// One lane's thread, from the inside.
pub(crate) struct Worker {
    pub(crate) driver: Driver,
    /// Only where the cache was opened.
    pub(super) rig: Option<Rig>,
    engine: std::rc::Rc<EngineLane>,
    area: Claim,
    shared: Option<Arc<SharedBlocks>>,
    small: Vec<u8>,
    pub(super) steps: Arc<[Step]>,
    at: usize,
    /// Number of times that the steps were replaced.
    pub(super) round: usize,
}

type Job = Box<dyn FnOnce(&mut Worker) + Send>;

impl Worker {
    /// Puts the RAM tier in front of the volume. One lane writes down what is deferred.
    fn attach(mut self, tier: Arc<Tier>) -> Self {
        if self.rig.is_some() {
            let (lane, lower) = (self.driver.local.lane().clone(), self.driver.target.clone());
            lane.spawn(write_down::keep(tier.clone(), lower, lane.clone()));
        }
        self.driver = self.driver.with_ram(tier);
        self
    }

    /// Goes through the steps until the time is over.
    fn sample(&mut self, work: Work, time: Duration, once: bool) -> LabResult<Sample> {
        let steps = self.steps.clone();
        if once {
            self.at = 0;
        }
        let watch = Stopwatch::start();
        let mut operations = 0;
        loop {
            for _ in 0..8 {
                let end = (self.at + BATCH).min(steps.len());
                let batch = &steps[self.at..end];
                match work {
                    Work::Engine => self.driver.steps(batch)?,
                    Work::Copy => self.copy(batch),
                    Work::CopyShared => self.copy_shared(batch),
                }
                operations += batch.len() as u64;
                self.at = if end == steps.len() { 0 } else { end };
                if once && self.at == 0 {
                    return Ok(watch.sample(operations));
                }
            }
            if watch.wall() >= time {
                return Ok(watch.sample(operations));
            }
        }
    }

    fn copy(&mut self, batch: &[Step]) {
        let blocks = self.area.len() / BLOCK as usize;
        for step in batch {
            let at = step.block() as usize % blocks * BLOCK as usize;
            let place = &mut self.area[at..at + BLOCK as usize];
            if step.write() {
                stamp(&mut self.small);
                place.copy_from_slice(&self.small);
            } else {
                self.small.copy_from_slice(place);
            }
            std::hint::black_box(&self.small);
        }
    }

    /// Sets the memory that [`Work::CopyShared`] is in.
    pub(super) fn share(&mut self, blocks: Option<Arc<SharedBlocks>>) {
        self.shared = blocks;
    }

    fn copy_shared(&mut self, batch: &[Step]) {
        for step in batch {
            if let Some(shared) = &self.shared {
                shared.copy(*step, &mut self.small);
            }
            std::hint::black_box(&self.small);
        }
    }

    fn serve(&mut self, jobs: &Receiver<Job>) {
        let mut busy = false;
        loop {
            let job = if busy {
                jobs.try_recv().map_err(|error| match error {
                    mpsc::TryRecvError::Empty => RecvTimeoutError::Timeout,
                    mpsc::TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
                })
            } else {
                jobs.recv_timeout(Duration::from_micros(500))
            };
            match job {
                Ok(job) => job(self),
                Err(RecvTimeoutError::Timeout) => (),
                Err(RecvTimeoutError::Disconnected) => return,
            }
            busy = self.driver.local.turn();
        }
    }
}

/// One lane's thread, from the outside.
struct Member {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Member {
    fn ask<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> LabResult<Receiver<T>> {
        let (tell, hear) = mpsc::sync_channel(1);
        let job: Job = Box::new(move |worker| {
            let _ = tell.send(job(worker));
        });
        let jobs = self.jobs.as_ref().ok_or_else(gone)?;
        jobs.send(job).map_err(|_| gone())?;
        Ok(hear)
    }
}

pub(super) fn gone() -> LabError {
    other("a lane's thread has ended")
}

/// All lanes of one cache.
pub(crate) struct Crew {
    members: Vec<Member>,
    pub(super) cache: Arc<Cache>,
    pub(super) tier: Option<Arc<Tier>>,
    sizes: Sizes,
}

impl Crew {
    /// Makes a cache and starts its lanes.
    pub(crate) fn start(sizes: Sizes, lanes: usize, pinned: bool) -> LabResult<Self> {
        let clock = Arc::new(MonotonicClock::new());
        let area = LogBuffer::new(sizes.cache_bytes as usize);
        let share = sizes.cache_bytes / lanes as u64 / BLOCK * BLOCK;
        let ram = RamDevice::new("cache", sizes.cache_bytes)?;
        let cache_device: Arc<dyn Device> = if sizes.dma { DmaDevice::new(ram) } else { ram };
        let plan = Plan {
            options: StoreOptions { lanes, ..StoreOptions::default() },
            touched: true,
            ..Plan::new(
                cache_device,
                RamDevice::new("origin", sizes.origin_bytes)?,
                Case::OverwriteDirty.settings(),
            )
        };
        let tier = match sizes.ram_bytes {
            0 => None,
            bytes => {
                let (block, policy) = (RamBlock::default(), ReplacementKind::default());
                let strategy = RamStrategy::default();
                let options =
                    TierOptions { bytes, block, policy, strategy, locked: false, seed: 0 };
                Some(Arc::new(Tier::new(options, clock.clone())?))
            }
        };
        let mut members = Vec::new();
        let mut cache: Option<Arc<Cache>> = None;
        for number in 0..lanes {
            let start = number * share as usize;
            let mut area = area.claim(start..start + share as usize).ok_or_else(gone)?;
            let (send, receive) = mpsc::channel::<Job>();
            let (tell, hear) = mpsc::sync_channel(1);
            let (plan, clock, known) = (plan.clone(), clock.clone(), cache.clone());
            let own_tier = tier.clone();
            let thread =
                std::thread::Builder::new().name(format!("lane-{number}")).spawn(move || {
                    if pinned {
                        pin(number);
                    }
                    area.fill(1);
                    match enter(number, clock, plan, known, area) {
                        Ok(worker) => {
                            let mut worker = match own_tier {
                                Some(tier) => worker.attach(tier),
                                None => worker,
                            };
                            let _ = tell.send(Ok(worker.engine.cache.clone()));
                            worker.serve(&receive);
                        }
                        Err(error) => {
                            let _ = tell.send(Err(error));
                        }
                    }
                })?;
            cache = Some(hear.recv().map_err(|_| gone())??);
            members.push(Member { jobs: Some(send), thread: Some(thread) });
        }
        let cache = cache.ok_or_else(gone)?;
        Ok(Crew { members, cache, tier, sizes })
    }

    pub(crate) fn lanes(&self) -> usize {
        self.members.len()
    }

    pub(crate) fn sizes(&self) -> Sizes {
        self.sizes
    }

    pub(crate) fn segment_bytes(&self) -> u64 {
        self.cache.store.geometry().segment_bytes
    }

    /// Runs something on one lane and waits for it.
    pub(crate) fn on<T: Send + 'static>(
        &self,
        lane: usize,
        job: impl FnOnce(&mut Worker) -> T + Send + 'static,
    ) -> LabResult<T> {
        let member = self.members.get(lane).ok_or_else(gone)?;
        member.ask(job)?.recv().map_err(|_| gone())
    }

    /// Brings the cache into the state that a case starts from, and warms it up.
    pub(crate) fn prepare(&self, case: Case) -> LabResult<()> {
        let lanes = self.lanes();
        for lane in 0..lanes {
            let sizes = self.sizes;
            self.on(lane, move |worker| {
                worker.steps = case.steps(sizes, lane, lanes);
                worker.at = 0;
            })?;
        }
        self.end_deferral()?;
        if case.defers() {
            return self.prepare_deferred(case);
        }
        let (blocks, ram) = (self.sizes.working_set_blocks, self.sizes.ram_bytes > 0);
        self.on(0, move |worker| {
            let rig = worker.rig.as_ref().ok_or_else(gone)?;
            rig.set(case.settings())?;
            match case {
                Case::ReadHit
                | Case::WriteClean
                | Case::WriteThrough
                | Case::WriteAround
                | Case::WriteThroughStrict => {
                    rig.drain()?;
                    let quiet = Progress::new(blocks, "filling");
                    fill_clean(&worker.driver, 0..blocks, &quiet)?;
                    if ram {
                        worker.driver.steps(&permutation(0, blocks as u32, false))?;
                    }
                    Ok(())
                }
                Case::OverwriteDirty | Case::WriteDefault | Case::WriteStrict => {
                    // Several times over, so that reclaim has found its pace.
                    for round in 0..4 {
                        worker.driver.steps(&random_order(round, blocks))?;
                    }
                    Ok(())
                }
                Case::ReadMiss | Case::ReadRefused => {
                    rig.drain()?;
                    let steps = worker.steps.clone();
                    worker.driver.steps(&steps)
                }
                Case::Zipf | Case::DeferDirty | Case::DeferClean | Case::DeferAbsent => {
                    let steps = worker.steps.clone();
                    for _ in 0..4 {
                        worker.driver.steps(&steps)?;
                    }
                    Ok(())
                }
            }
        })?
    }

    /// Prepares a sample of the engine as the case requires.
    pub(crate) fn before_sample(&self, case: Case) -> LabResult<()> {
        if case.defers() {
            return self.before_deferred_sample(case);
        }
        if case != Case::WriteClean {
            return Ok(());
        }
        self.on(0, |worker| worker.rig.as_ref().ok_or_else(gone)?.drain())?
    }

    /// One sample on the first `count` lanes at the same time.
    pub(crate) fn sample(
        &self,
        case: Case,
        work: Work,
        time: Duration,
        count: usize,
    ) -> LabResult<Vec<Sample>> {
        self.together(count, move |worker, _| worker.sample(work, time, case.once()))?
            .into_iter()
            .collect()
    }

    /// Runs `job` on each of the first `count` lanes at the same time, with the lane's number.
    pub(crate) fn together<T: Send + 'static>(
        &self,
        count: usize,
        job: impl Fn(&mut Worker, usize) -> T + Clone + Send + 'static,
    ) -> LabResult<Vec<T>> {
        let barrier = Arc::new(Barrier::new(count));
        let answers: Vec<_> = (self.members.iter().take(count).enumerate())
            .map(|(lane, member)| {
                let (barrier, job) = (barrier.clone(), job.clone());
                member.ask(move |worker| {
                    barrier.wait();
                    job(worker, lane)
                })
            })
            .collect::<LabResult<_>>()?;
        answers.into_iter().map(|answer| answer.recv().map_err(|_| gone())).collect()
    }
}

/// Sets a lane up on its own thread.
fn enter(
    number: usize,
    clock: Arc<MonotonicClock>,
    plan: Plan,
    known: Option<Arc<Cache>>,
    area: Claim,
) -> LabResult<Worker> {
    let local = LocalLane::new(number as u16, clock);
    let (rig, engine) = match known {
        None => {
            let rig = Rig::create(local.clone(), plan)?;
            let engine = rig.engine.clone();
            (Some(rig), engine)
        }
        Some(cache) => (None, EngineLane::join(&cache, local.context.clone())?),
    };
    let target = engine.target(VOLUME).ok_or_else(|| other("the volume is not running"))?;
    Ok(Worker {
        driver: Driver::new(local, target),
        rig,
        engine,
        area,
        shared: None,
        small: vec![0x5a; BLOCK as usize],
        steps: Arc::new([]),
        at: 0,
        round: 0,
    })
}

impl Drop for Crew {
    fn drop(&mut self) {
        // The last lane first: the others may depend on the background work of lane 0.
        while let Some(mut member) = self.members.pop() {
            member.jobs = None;
            if let Some(thread) = member.thread.take() {
                let _ = thread.join();
            }
        }
    }
}
