//! Time that the disk of a small office's server sleeps, with eager and with lazy writeback.
//!
//! The server appends to a log every few minutes, day and night. On workdays from 9 to 18 h its
//! clients read and write some files every few minutes. The first week warms the cache; the second
//! is measured. The disk goes to sleep after ten minutes without an access.

use forebay_core::{Laziness, Nanos, Op};
use forebay_device::model::ModelKind;
use forebay_engine::Settings;
use serde::Serialize;

use crate::error::LabResult;
use crate::output::Row;
use crate::virtual_time::access::Access;
use crate::virtual_time::clients::Server;
use crate::virtual_time::timing::Timing;
use crate::virtual_time::world::{Plan, World};

const BLOCK: u64 = 4096;
const DISK: u64 = 2_000_000_000_000 / BLOCK * BLOCK;
const SSD: u64 = 4 << 30;

/// The log goes round in this range; the files follow behind it.
const LOG: u64 = 64 << 20;
const FILES: u64 = 16 << 30;

const SECOND: u64 = 1_000_000_000;
const DAY: u64 = 24 * 3600;
const WEEK: u64 = 7 * DAY;

/// The disk's sleep timer, in seconds.
const SLEEPS_AFTER: u64 = 600;

/// Mean seconds between two writes to the log, and between two bursts of requests in working hours.
const LOG_EVERY: f64 = 180.0;
const BURST_EVERY: f64 = 240.0;

/// Requests in a burst, and the share of reads in percent.
const BURST: u32 = 64;
const READS: u32 = 70;

#[derive(Serialize)]
pub(super) struct Slept {
    writeback: &'static str,
    wakes_per_workday: f64,
    wakes_per_free_day: f64,
    asleep_hours_per_workday: f64,
    asleep_hours_per_free_day: f64,
    most_dirty_mib: f64,
    disk_written_mib: f64,
}

impl Row for Slept {
    const COLUMNS: &'static str = "WRITEBACK=writeback | WAKE-UPS/WORKDAY=wakes_per_workday:1 | \
        h ASLEEP=asleep_hours_per_workday:1 | WAKE-UPS/FREE DAY=wakes_per_free_day:1 | \
        h ASLEEP=asleep_hours_per_free_day:1 | MOST DIRTY MiB=most_dirty_mib:0 | \
        DISK WRITTEN MiB=disk_written_mib:0";
}

/// Both kinds of writeback.
pub(super) fn jobs() -> Vec<Laziness> {
    Laziness::ALL.to_vec()
}

fn is_free(seconds: u64) -> bool {
    seconds / DAY % 7 >= 5
}

fn is_working(seconds: u64) -> bool {
    !is_free(seconds) && (9..18).contains(&(seconds % DAY / 3600))
}

/// The disk as its sleep timer sees it; days without work second.
#[derive(Default)]
struct Sleeper {
    accesses: u64,
    last: u64,
    wakes: [u64; 2],
    asleep: [u64; 2],
}

impl Sleeper {
    /// Counts the sleep up to `now`, in seconds, if the disk has been accessed since the last call.
    fn look(&mut self, accesses: u64, now: u64, measured: bool) {
        if accesses == self.accesses {
            return;
        }
        if measured && self.slept(now) {
            self.wakes[usize::from(is_free(now))] += 1;
        }
        (self.accesses, self.last) = (accesses, now);
    }

    /// Counts the sleep from the last access to `now`, as far as it is in the measured weeks.
    /// Returns whether the disk slept.
    fn slept(&mut self, now: u64) -> bool {
        let sleeps = self.last + SLEEPS_AFTER;
        let measured = sleeps.max(WEEK)..now;
        measured.for_each(|second| self.asleep[usize::from(is_free(second))] += 1);
        now > sleeps
    }
}

/// The world and its observers.
struct Office {
    world: World,
    sleeper: Sleeper,
    started: Nanos,
    most_dirty: u64,
}

impl Office {
    fn seconds(&self) -> u64 {
        (self.world.now().0 - self.started.0) / SECOND
    }

    fn look(&mut self) {
        let now = self.seconds();
        self.sleeper.look(self.world.disk_accesses(), now, now >= WEEK);
        self.most_dirty = self.most_dirty.max(self.world.gauges().dirty_bytes);
    }

    /// Lets time pass.
    fn until(&mut self, at: Nanos) -> LabResult<()> {
        let mut ended = Vec::new();
        loop {
            self.world.settle(&mut ended)?;
            self.look();
            match self.world.next_event().filter(|next| *next <= at) {
                Some(next) => self.world.advance(next.max(self.world.now())),
                None => break,
            }
        }
        self.world.advance(at.max(self.world.now()));
        Ok(())
    }

    fn request(&mut self, access: &Access) -> LabResult<()> {
        if !self.world.start(0, access)? {
            self.world.finish()?;
        }
        self.look();
        Ok(())
    }
}

/// One row.
pub(super) fn measure(writeback: Laziness, weeks: u64, seed: u64) -> LabResult<Slept> {
    let world = World::new(Plan::new(
        (SSD, Timing::model(ModelKind::SataSsd, SSD)),
        (DISK, Timing::model(ModelKind::Hdd7200, DISK)),
        Settings { writeback, ..Settings::default() },
        seed,
    ))?;
    let started = world.now();
    let mut office = Office { world, sleeper: Sleeper::default(), started, most_dirty: 0 };
    let mut rng = fastrand::Rng::with_seed(seed);
    let pause = |rng: &mut fastrand::Rng, mean: f64| {
        (-mean * (1.0 - rng.f64()).ln() * SECOND as f64) as u64
    };
    let (mut log_at, mut burst_at, mut log) = (0, 0, 0);
    let mut written = 0;
    let end = (1 + weeks) * WEEK * SECOND;
    while u64::min(log_at, burst_at) < end {
        let next = u64::min(log_at, burst_at);
        if next >= WEEK * SECOND && written == 0 {
            written = office.world.gauges().disk_written;
        }
        office.until(Nanos(started.0 + next))?;
        if log_at <= burst_at {
            for _ in 0..1 + rng.u64(0..4) {
                let offset = log % LOG;
                office.request(&Access { offset, len: BLOCK, write: true })?;
                log += BLOCK;
            }
            office.world.plain(Op::Flush, 0, 0)?;
            log_at = next + pause(&mut rng, LOG_EVERY);
        } else {
            for _ in 0..if is_working(next / SECOND) { BURST } else { 0 } {
                // Few files are used often.
                let block = (rng.f64().powi(6) * (FILES / BLOCK) as f64) as u64;
                let write = rng.u32(0..100) >= READS;
                office.request(&Access { offset: LOG + block * BLOCK, len: BLOCK, write })?;
            }
            burst_at = next + pause(&mut rng, BURST_EVERY);
        }
    }
    office.until(Nanos(started.0 + end))?;
    let Office { mut sleeper, world, most_dirty, .. } = office;
    sleeper.slept((1 + weeks) * WEEK);
    let per_day = |count: u64, days: u64| count as f64 / (days * weeks) as f64;
    Ok(Slept {
        writeback: writeback.name(),
        wakes_per_workday: per_day(sleeper.wakes[0], 5),
        wakes_per_free_day: per_day(sleeper.wakes[1], 2),
        asleep_hours_per_workday: per_day(sleeper.asleep[0], 5) / 3600.0,
        asleep_hours_per_free_day: per_day(sleeper.asleep[1], 2) / 3600.0,
        most_dirty_mib: most_dirty as f64 / f64::from(1 << 20),
        disk_written_mib: (world.gauges().disk_written - written) as f64 / f64::from(1 << 20),
    })
}
