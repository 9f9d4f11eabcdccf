//! `forebay-lab remote`: a volume whose origin has no seeks, under the rules for disks and under
//! its own. In virtual time, with the real engine, a PCIe SSD as cache device, and the models of
//! remote storage.
//!
//! Each workload runs twice for each origin, with `rotational=yes` and with `rotational=no`;
//! nothing else differs. The same seed gives the same rows on every machine.

use forebay_core::{Op, Rotational};
use forebay_device::model::ModelKind;
use forebay_engine::Settings;
use serde::Serialize;

use crate::error::LabResult;
use crate::experiments::dirty::{self, Dirty};
use crate::output::{Row, print_json, table};
use crate::progress::Progress;
use crate::virtual_time::access::{Shape, Workload, Zipf};
use crate::virtual_time::clients::{Server, Span, run as run_clients};
use crate::virtual_time::cpu::{Cpu, CpuCosts};
use crate::virtual_time::tally::{Histogram, Tally};
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::{Plan, World};

const BLOCK: u64 = 4096;
const ORIGIN: u64 = 100 << 30;
const SSD: u64 = 1 << 30;

/// The range of clients: four times as much as the cache holds.
const RANGE: u64 = 4 << 30;

/// Writes between two flushes, where flushes are measured.
const BETWEEN_FLUSHES: u64 = 64;

/// Arguments of `forebay-lab remote`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Origins: remote, remote-1g, or the model of a disk
    #[arg(long, value_delimiter = ',', default_value = "remote,remote-1g", value_name = "MODEL")]
    origins: Vec<String>,
    /// Only workloads whose name contains this
    #[arg(long, value_name = "TEXT")]
    only: Option<String>,
    /// Virtual seconds for which clients are measured
    #[arg(long, default_value_t = 4.0)]
    seconds: f64,
    /// Same seed, same rows
    #[arg(long, default_value_t = 1)]
    seed: u64,
    #[command(flatten)]
    costs: CpuCosts,
}

/// Work of clients or of an operator.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// A drain; each block is dirty with this probability. The others are cached if `neighbours`.
    Drain { share: f64, neighbours: bool },
    /// Random requests to a cache that is full of dirty blocks: percentage of writes, and requests
    /// in flight.
    Random { writes: u32, depth: usize },
    /// Flushes between writes to such a cache.
    Flush,
    /// Popular blocks are read, and written so often in a hundred.
    Zipf { writes: u32, depth: usize },
    /// A range half as large as the cache, or four times as large, is read from start to end, and
    /// again.
    Sequential { span: u64, depth: usize },
}

const WORK: [(&str, Work); 13] = [
    ("drain, 1 % dirty", Work::Drain { share: 0.01, neighbours: false }),
    ("drain, 10 % dirty, rest cached", Work::Drain { share: 0.1, neighbours: true }),
    ("drain, 50 % dirty", Work::Drain { share: 0.5, neighbours: false }),
    ("drain, 50 % dirty, rest cached", Work::Drain { share: 0.5, neighbours: true }),
    ("random writes, depth 128", Work::Random { writes: 100, depth: 128 }),
    ("30 % writes, depth 32", Work::Random { writes: 30, depth: 32 }),
    ("70 % writes, depth 128", Work::Random { writes: 70, depth: 128 }),
    ("flushes between 64 writes", Work::Flush),
    ("zipf reads, depth 32", Work::Zipf { writes: 0, depth: 32 }),
    ("zipf, 50 % writes, depth 32", Work::Zipf { writes: 50, depth: 32 }),
    ("sequential reads of half", Work::Sequential { span: SSD / 2, depth: 1 }),
    ("sequential reads of 4 x, depth 1", Work::Sequential { span: RANGE, depth: 1 }),
    ("sequential reads of 4 x, depth 8", Work::Sequential { span: RANGE, depth: 8 }),
];

#[derive(Default, Serialize)]
struct Measured {
    origin: &'static str,
    work: &'static str,
    rotational: bool,
    /// Blocks of a drain, flushes, or requests of clients.
    per_second: f64,
    /// Latency of reads, or of flushes.
    mean_ms: f64,
    p99_ms: f64,
    /// Latency of writes.
    write_mean_ms: f64,
    write_p99_ms: f64,
    hit_ratio: Option<f64>,
    /// Bytes written to the origin per byte that was dirty, or that clients wrote.
    origin_written_per_byte: f64,
    ssd_written_per_byte: f64,
    origin_operations: u64,
}

impl Measured {
    /// Fills in the requests of clients, or flushes as reads.
    fn take(&mut self, reads: &Tally, writes: &Tally, seconds: f64) {
        let millis = |latencies: &Histogram| latencies.quantile(0.99) / 1e6;
        self.per_second = (reads.requests + writes.requests) as f64 / seconds;
        (self.mean_ms, self.p99_ms) = (reads.mean() / 1e6, millis(&reads.latencies));
        (self.write_mean_ms, self.write_p99_ms) = (writes.mean() / 1e6, millis(&writes.latencies));
    }
}

impl Row for Measured {
    const COLUMNS: &'static str = "ORIGIN=origin | WORK=work | RULES=rotational:seekless/disk | /s=per_second:0 | \
        READ OR FLUSH ms=mean_ms:2- | p99 ms=p99_ms:2- | WRITE ms=write_mean_ms:2- | \
        p99 ms=write_p99_ms:2- | HITS=hit_ratio:1% | ORIGIN B/B=origin_written_per_byte:2- | \
        SSD B/B=ssd_written_per_byte:2- | ORIGIN I/O=origin_operations";
}

/// One run.
struct Job<'a> {
    args: &'a Args,
    kind: ModelKind,
    name: &'static str,
    work: Work,
    rotational: Rotational,
}

impl Job<'_> {
    fn world(&self, settings: Settings, ssd: u64) -> LabResult<World> {
        let settings = Settings { rotational: self.rotational, ..settings };
        World::new(Plan::new(
            (ssd, Timing::model(ModelKind::PcieSsd, ssd)),
            (ORIGIN, Timing::model(self.kind, ORIGIN)),
            settings,
            self.args.seed,
        ))
    }

    fn load(shape: Shape, len: u64, span: u64, writes: u32, depth: usize) -> Workload {
        Workload { shape, start: 0, span, len, writes, depth }
    }

    fn clients(
        &self,
        world: &mut World,
        load: Workload,
        span: Span,
        row: &mut Measured,
    ) -> LabResult<()> {
        let cpu = Cpu::new(self.args.costs);
        let found = run_clients(world, cpu, load, self.args.seed, span)?;
        row.take(&found.reads, &found.writes, found.seconds);
        let (gauges, bytes) = (found.gauges, found.writes.bytes.max(1) as f64);
        if found.writes.bytes > 0 {
            row.origin_written_per_byte = gauges.disk_written as f64 / bytes;
            row.ssd_written_per_byte = gauges.ssd_written as f64 / bytes;
        }
        row.hit_ratio = gauges.hit_ratio();
        Ok(())
    }

    /// Clients on a cache of their own.
    fn alone(
        &self,
        settings: Settings,
        load: Workload,
        span: Span,
        row: &mut Measured,
    ) -> LabResult<()> {
        let mut world = self.world(settings, SSD)?;
        self.clients(&mut world, load, span, row)?;
        row.origin_operations = world.disk_accesses();
        Ok(())
    }

    fn measure(&self) -> LabResult<Measured> {
        let mut row = Measured {
            origin: self.kind.as_str(),
            work: self.name,
            rotational: self.rotational == Rotational::Yes,
            ..Measured::default()
        };
        let timed = Span { warm_up: 4.0, ..Span::seconds(self.args.seconds) };
        match self.work {
            Work::Drain { share, neighbours } => self.drain(share, neighbours, &mut row)?,
            Work::Random { writes, depth } => {
                let settings = Settings { sequential_cutoff: 0, ..Settings::default() };
                let load = Self::load(Shape::Random, BLOCK, RANGE, writes, depth);
                self.alone(settings, load, timed, &mut row)?;
            }
            Work::Flush => self.flushes(&mut row)?,
            Work::Zipf { writes, depth } => {
                let zipf = Shape::Zipf(Zipf::new((RANGE / BLOCK) as u32));
                let load = Self::load(zipf, BLOCK, RANGE, writes, depth);
                self.alone(Settings::default(), load, timed, &mut row)?;
            }
            Work::Sequential { span, depth } => {
                const LEN: u64 = 128 << 10;
                let load = Self::load(Shape::Sequential, LEN, span, 0, depth);
                let laps = Span::requests(span / LEN * 3);
                self.alone(Settings::default(), load, laps, &mut row)?;
            }
        }
        Ok(row)
    }

    /// Writes blocks in random order to a cache that writes nothing back, then all of them back.
    fn drain(&self, share: f64, neighbours: bool, row: &mut Measured) -> LabResult<()> {
        const DIRTY: u64 = 60_000;
        let dirty = Dirty::choose(share, DIRTY, self.args.seed);
        let cached = dirty.range().end + DIRTY * BLOCK;
        let ssd = (cached / 4 * 5 + SSD).next_multiple_of(4 << 20);
        let mut world = self.world(dirty::settings(), ssd)?;
        dirty.write(&mut world, neighbours)?;
        let (before, operations) = (world.gauges(), world.disk_accesses());
        let seconds = world.drain()?.as_secs_f64();
        row.per_second = DIRTY as f64 / seconds;
        let written = (world.gauges().disk_written - before.disk_written) as f64;
        row.origin_written_per_byte = written / (DIRTY * BLOCK) as f64;
        row.origin_operations = world.disk_accesses() - operations;
        Ok(())
    }

    /// Flushes a cache that is full of dirty blocks, after some writes each time.
    fn flushes(&self, row: &mut Measured) -> LabResult<()> {
        let settings = Settings { sequential_cutoff: 0, ..Settings::default() };
        let mut world = self.world(settings, SSD)?;
        let load = |depth| Self::load(Shape::Random, BLOCK, RANGE, 100, depth);
        self.clients(&mut world, load(128), Span::seconds(4.0), row)?;
        let (mut flushes, mut writes) = (Tally::default(), Tally::default());
        let (began, before) = (world.now(), world.gauges());
        for round in 0..500 {
            let cpu = Cpu::new(self.args.costs);
            let seed = self.args.seed + round;
            let some = Span::requests(BETWEEN_FLUSHES);
            let found = run_clients(&mut world, cpu, load(16), seed, some)?;
            writes.add(&found.writes);
            let asked = world.now();
            world.plain(Op::Flush, 0, 0)?;
            flushes.record(0, world.now().0 - asked.0);
        }
        let seconds = (world.now().0 - began.0) as f64 / 1e9;
        let (bytes, after) = (writes.bytes as f64, world.gauges());
        row.take(&flushes, &writes, seconds);
        row.per_second = flushes.requests as f64 / seconds;
        row.origin_written_per_byte = (after.disk_written - before.disk_written) as f64 / bytes;
        row.ssd_written_per_byte = (after.ssd_written - before.ssd_written) as f64 / bytes;
        row.origin_operations = world.disk_accesses();
        row.hit_ratio = None;
        Ok(())
    }
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let kinds: Vec<ModelKind> = args
        .origins
        .iter()
        .map(|name| {
            let unknown = || crate::error::other(format!("there is no model named {name}"));
            ModelKind::from_name(name).ok_or_else(unknown)
        })
        .collect::<LabResult<_>>()?;
    let wanted = |name: &str| args.only.as_deref().is_none_or(|only| name.contains(only));
    let work: Vec<_> = WORK.into_iter().filter(|(name, _)| wanted(name)).collect();
    let progress = Progress::new((kinds.len() * work.len() * 2) as u64, "in virtual time");
    let mut rows = Vec::new();
    for kind in kinds {
        for (name, work) in &work {
            for rotational in [Rotational::Yes, Rotational::No] {
                progress.label(format!("{kind}: {name}"));
                let job = Job { args, kind, name, work: *work, rotational };
                rows.push(job.measure()?);
                progress.advance(1);
            }
        }
    }
    drop(progress);
    if json {
        return print_json(&rows);
    }
    print!("{}", table(&rows)?);
    Ok(())
}
