//! `forebay-lab observing`: CPU time that observation and control add to a cached read and write,
//! on one lane.
//!
//! The same volume with and without, turn about. Always in front of the volume is the layer that
//! limits and records, as in the daemon, where it does nothing in the turns without.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use clap::ValueEnum;
use forebay_core::parse_size;
use forebay_device::RamDevice;
use forebay_engine::stats::Kind;
use forebay_engine::{BlockSet, LimitedVolume, Recording, Settings};
use forebay_lane::MonotonicClock;
use serde::Serialize;
use serde_json::json;

use crate::bench::driver::{Driver, fill_clean, random_order};
use crate::bench::engine::cases::Case;
use crate::bench::measure::{Sample, Stopwatch, in_turns, pin};
use crate::bench::pattern::{Step, uniform};
use crate::error::{LabResult, other, usage};
use crate::output::{Goal, Row, name_of, show};
use crate::progress::Progress;
use crate::rig::{BLOCK, LocalLane, Plan, Rig, VOLUME};
use crate::statistics::{Estimate, median_of};

/// Promised cost of all observers together, as a factor.
const GOAL: f64 = 1.01;

/// Steps that are gone through again and again.
const STEPS: usize = 1 << 18;

/// Interval at which the daemon updates the curve, and at which clients like `top` poll.
const LOOK: Duration = Duration::from_secs(1);

/// Interval at which the daemon takes recorded requests.
const TAKE: Duration = Duration::from_millis(10);

/// Arguments of `forebay-lab observing`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Pairs of samples
    #[arg(long, default_value_t = 31)]
    pairs: usize,
    /// Size of the cache device, in RAM; the origin is as large, and half of the blocks are used
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = parse_size)]
    cache: u64,
    /// Duration of one sample
    #[arg(long, default_value_t = 1.0)]
    seconds_per_sample: f64,
}

/// Observers and rules that are added to the volume in a turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Added {
    Nothing,
    /// The miss-ratio curve and the shadow caches, brought up to date and looked at each second
    /// with all counters.
    Watching,
    /// Limits that are not reached, shares of the cache, and pinned blocks.
    Control,
    /// Both.
    All,
    /// A recording of all requests.
    Recording,
}

const TURNS: [Added; 5] =
    [Added::Nothing, Added::Watching, Added::Control, Added::All, Added::Recording];

impl Added {
    fn watches(self) -> bool {
        matches!(self, Added::Watching | Added::All)
    }

    fn controls(self) -> bool {
        matches!(self, Added::Control | Added::All)
    }
}

#[derive(Serialize)]
struct Cost {
    case: String,
    added: String,
    cpu_us: f64,
    /// CPU time of all threads as a multiple of that with nothing added.
    factor: Estimate,
    /// CPU time of the lane's thread as a multiple of that with nothing added.
    lane_factor: Estimate,
    goal: Option<Goal>,
}

impl Row for Cost {
    const COLUMNS: &'static str = "CASE=case | ADDED=added | CPU us=cpu_us:3 | FACTOR=factor.median:3 | \
        FROM=factor.low:3 | TO=factor.high:3 | OF THE LANE=lane_factor.median:3 | \
        FROM=lane_factor.low:3 | TO=lane_factor.high:3 | GOAL=goal:<=2";
}

/// CPU microseconds of a request.
#[derive(Clone, Copy)]
struct Point {
    all: f64,
    lane: f64,
}

/// The volume and its driver.
struct Bench {
    rig: Rig,
    driver: Driver,
    settings: Settings,
    blocks: u64,
}

/// A thread that looks at the volume until it is ended.
struct Beside {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<Sample>>,
}

impl Beside {
    fn start(period: Duration, mut look: impl FnMut() + Send + 'static) -> LabResult<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let end = ends.clone();
        let thread = std::thread::Builder::new().name("beside".into()).spawn(move || {
            // Not on the lane's CPU.
            pin(1);
            let watch = Stopwatch::start();
            while !end.load(Ordering::Relaxed) {
                std::thread::park_timeout(period);
                look();
            }
            watch.sample(0)
        })?;
        Ok(Beside { ends, thread: Some(thread) })
    }

    /// Ends the thread and returns the CPU time that it took.
    fn end(mut self) -> LabResult<Duration> {
        self.ends.store(true, Ordering::Relaxed);
        let thread = self.thread.take().ok_or_else(|| other("the thread has ended"))?;
        thread.thread().unpark();
        Ok(thread.join().map_err(|_| other("the thread beside the lane has panicked"))?.cpu)
    }
}

impl Bench {
    fn new(case: Case, bytes: u64) -> LabResult<Self> {
        let settings = case.settings();
        let local = LocalLane::new(0, Arc::new(MonotonicClock::new()));
        let (cache, origin) = (RamDevice::new("cache", bytes)?, RamDevice::new("origin", bytes)?);
        let plan = Plan { touched: true, ..Plan::new(cache, origin, settings.clone()) };
        let rig = Rig::create(local.clone(), plan)?;
        let target = rig.target()?;
        let limited = LimitedVolume::new(target.clone(), target.clone() as Rc<_>);
        let driver = Driver::new(local, target).with_top(limited);
        let mut bench = Bench { rig, driver, settings, blocks: bytes / BLOCK / 2 };
        let quiet = Progress::new(bench.blocks, "filling");
        match case {
            Case::ReadHit => fill_clean(&bench.driver, 0..bench.blocks, &quiet)?,
            _ => {
                for round in 0..4 {
                    bench.driver.steps(&random_order(round, bench.blocks))?;
                }
            }
        }
        Ok(bench)
    }

    fn prepare(&self, added: Added) -> LabResult<()> {
        let mut settings = self.settings.clone();
        let mut pinned = BlockSet::default();
        if added.controls() {
            settings.limit_iops = u64::MAX / 2;
            settings.limit_bandwidth = u64::MAX / 2;
            settings.share_min = 10;
            settings.share_max = 90;
            pinned = BlockSet::from(0..self.blocks / 8);
        }
        self.rig.set(settings)?;
        self.rig.engine.pin(VOLUME, &pinned)?;
        self.driver.target.volume().watch(added.watches());
        Ok(())
    }

    fn sample(&mut self, added: Added, steps: &[Step], time: Duration) -> LabResult<Point> {
        self.prepare(added)?;
        // The caches of the CPU get used to it.
        self.driver.steps(&steps[..steps.len() / 8])?;
        let volume = self.driver.target.volume().clone();
        let beside = match added {
            Added::Nothing | Added::Control => None,
            Added::Watching | Added::All => Some(Beside::start(LOOK, move || {
                volume.catch_up();
                std::hint::black_box((volume.what_if(), volume.curve()));
                std::hint::black_box((volume.stats.totals(), volume.stats.why()));
                std::hint::black_box(
                    [Kind::Read, Kind::Write].map(|kind| volume.stats.latency(kind)),
                );
            })?),
            Added::Recording => {
                let recording = Recording::begin(&volume);
                let mut recording = recording.ok_or_else(|| other("it is being recorded"))?;
                let mut taken = Vec::new();
                Some(Beside::start(TAKE, move || {
                    recording.take(&mut taken);
                    std::hint::black_box(&mut taken).clear();
                })?)
            }
        };
        let watch = Stopwatch::start();
        let mut done = 0;
        while watch.wall() < time {
            for part in steps.chunks(1 << 10).take(1 << 5) {
                self.driver.steps(part)?;
                done += part.len() as u64;
            }
        }
        let lane = watch.sample(done).cpu;
        let more = beside.map_or(Ok(Duration::ZERO), Beside::end)?;
        let each = |cpu: Duration| cpu.as_secs_f64() * 1e6 / done.max(1) as f64;
        Ok(Point { all: each(lane + more), lane: each(lane) })
    }
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let cache_bytes = args.cache;
    let time = Duration::try_from_secs_f64(args.seconds_per_sample).ok();
    let time = time.filter(|time| !time.is_zero());
    let time = time.ok_or_else(|| usage("a sample must take more than no time"))?;
    let cases = [Case::ReadHit, Case::OverwriteDirty];
    let progress = Progress::new((cases.len() * args.pairs) as u64, "preparing");
    pin(0);
    let mut rows = Vec::new();
    for case in cases {
        progress.label(case.name());
        let mut bench = Bench::new(case, cache_bytes)?;
        let steps = uniform(1, bench.blocks as u32, case != Case::ReadHit, STEPS);
        let points = in_turns((args.pairs, TURNS.len()), &progress, |turn| {
            bench.sample(TURNS[turn], &steps, time)
        })?;
        for (added, of) in TURNS.iter().zip(&points) {
            let factor = |field: fn(&Point) -> f64| {
                Estimate::of_ratios(of.iter().map(field).zip(points[0].iter().map(field)))
            };
            let all = factor(|point| point.all);
            rows.push(Cost {
                case: case.name(),
                added: name_of(*added),
                cpu_us: median_of(of, |point| point.all),
                factor: all,
                lane_factor: factor(|point| point.lane),
                goal: (*added == Added::All).then(|| Goal::at_most(GOAL, all.median)),
            });
        }
    }
    drop(progress);
    let (pairs, seconds) = (args.pairs, args.seconds_per_sample);
    let common =
        json!({ "pairs": pairs, "seconds_per_sample": seconds, "cache_bytes": cache_bytes });
    show(json, common, &rows, |table| {
        format!(
            "{table}\n{pairs} pairs of {seconds} s, medians of the ratios and their 95 % intervals"
        )
    })
}
