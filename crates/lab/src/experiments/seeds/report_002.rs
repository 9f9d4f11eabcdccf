//! bcache under IOzone: 13 tests, four record sizes, a file of 16 GB, ten runs (2010).
//!
//! One SATA disk and an Intel X25-E, of which only a reader says that it had 64 GB; bcache came
//! before write-through and was run with the schedulers CFQ and NOOP. IOzone asks for one record
//! after the other, through the host's page cache.
//!
//! The given models fit neither device, so each is calibrated from the rows of the bare devices:
//! for each test a time for a record of `a + b * bytes`, by least squares of the relative errors
//! over the four record sizes. That leaves read-ahead and the page cache in the numbers, which
//! differ from test to test. Of the SSD, `a` is latency and `b` the link; of the disk both keep
//! the arm busy. Record rewrite is the page cache alone (up to 2.9 GB/s) and is not run.
//!
//! A repetition transfers another part of the file, one 128th of it: ten times 16 GB for each cell
//! would take hours. The whole file is cached before, once for all record sizes.

use std::sync::Arc;

use crate::error::LabResult;
use crate::virtual_time::access::{Shape, Workload};
use crate::virtual_time::clients::Span;
use crate::virtual_time::tally::Found;
use crate::virtual_time::timing::{Affine, Link, Timing};
use crate::virtual_time::world::{Plan, World};

use super::measure::{Context, Job, Measurement};
use super::published::{Config, DISK, Published, Report, SSD, Server};

const MIB: u64 = 1 << 20;
const FILE: u64 = 16 << 30;
const DISK_BYTES: u64 = 100_000_000_000 / 4096 * 4096;
const SSD_BYTES: u64 = 64_000_000_000 / 4096 * 4096;
const REPETITIONS: u64 = 10;
const PART: u64 = FILE / 128;
const RECORDS: [u64; 4] = [1, 4, 8, 16];

/// Tests in the order in which IOzone runs them; `true`: the test writes.
const TESTS: [(&str, bool); 12] = [
    ("write", true),
    ("rewrite", true),
    ("read", false),
    ("reread", false),
    ("rand_read", false),
    ("rand_write", true),
    ("backwards", false),
    ("stride", false),
    ("fwrite", true),
    ("frewrite", true),
    ("fread", false),
    ("freread", false),
];

/// Records between two of a strided read, as IOzone has it unless told otherwise.
const STRIDE: u64 = 17;

pub(super) fn report() -> LabResult<Report> {
    let mut report = Report::parse(include_str!("../../../published/002.toml"))?;
    let notes: Vec<_> = report.rows.iter().map(|row| noise(&report, row)).collect();
    for (row, note) in report.rows.iter_mut().zip(notes) {
        row.note = row.note.take().or(note);
    }
    Ok(report)
}

/// Record size in MiB, and test.
fn record_and_test(row: &Published) -> (u64, &str) {
    let (record, test) = row.experiment.split_once("M/").unwrap_or_default();
    (record.parse().unwrap_or(0), test)
}

/// Says why a baseline may be off: the published values do not lie on a line, or vary too much.
fn noise(report: &Report, row: &Published) -> Option<String> {
    let (record, test) = record_and_test(row);
    let mut notes = Vec::new();
    for (name, system, server) in [("disk", DISK, Server::Hdd), ("SSD", SSD, Server::Ssd)] {
        let value = row.values.get(system)?;
        let fit = fit(report, server, test);
        let modelled = 1024.0 * record as f64 * 1e9 / (fit.0 + fit.1 * (record * MIB) as f64);
        if (modelled / value.mean() - 1.0).abs() > 0.03 {
            let percent = value.deviation().unwrap_or(0.0) / value.mean() * 100.0;
            notes.push(format!(
                "The published {name} is not on a line with its other record sizes; its own \
                 standard deviation is {percent:.0} %."
            ));
        }
    }
    (!notes.is_empty()).then(|| notes.join(" "))
}

/// Nanoseconds for a record, and for each byte of it, of a device in a test.
fn fit(report: &Report, server: Server, test: &str) -> (f64, f64) {
    let (mut aa, mut ab, mut bb, mut a, mut b) = (0.0, 0.0, 0.0, 0.0, 0.0);
    for row in &report.rows {
        let (record, name) = record_and_test(row);
        let Some(published) = row.baseline(server).filter(|_| name == test) else { continue };
        let bytes = (record * MIB) as f64;
        let time = bytes * 1e9 / (published * 1024.0);
        let (x, y) = (1.0 / time, bytes / time);
        aa += x * x;
        ab += x * y;
        bb += y * y;
        a += x;
        b += y;
    }
    let determinant = aa * bb - ab * ab;
    let overhead = (a * bb - b * ab) / determinant;
    if overhead > 0.0 { (overhead, (aa * b - ab * a) / determinant) } else { (0.0, b / bb) }
}

/// A device during a test. The direction that the test does not measure takes as long as in its
/// plain test.
fn timing(report: &Report, server: Server, test: &str, write: bool) -> Timing {
    let link = |test: &str| {
        let (overhead, per_byte) = fit(report, server, test);
        match server {
            Server::Hdd => Link { overhead, per_byte, latency: 0.0 },
            Server::Ssd | Server::Forebay => Link { overhead: 0.0, per_byte, latency: overhead },
        }
    };
    let (read, write) = if write { ("read", test) } else { (test, "write") };
    let sync = if server == Server::Hdd { 8_333_333 } else { 200_000 };
    Timing::affine(Affine { read: link(read), write: link(write), shared: true, sync })
}

fn workload(test: &str, write: bool, record: u64, repetition: u64) -> Workload {
    let len = record * MIB;
    let (shape, start, span) = match test {
        "rand_read" | "rand_write" => (Shape::Random, 0, FILE),
        "stride" => (Shape::Stride(STRIDE), repetition * len, FILE - REPETITIONS * len),
        "backwards" => (Shape::Backwards, repetition * PART, PART),
        _ => (Shape::Sequential, repetition * PART, PART),
    };
    let writes = if write { 100 } else { 0 };
    Workload { shape, start, span: span / len * len, len, writes, depth: 1 }
}

/// Record sizes in MiB, and the tests of each.
fn each_cell() -> impl Iterator<Item = (u64, (&'static str, bool))> {
    RECORDS.into_iter().flat_map(|record| TESTS.map(|test| (record, test)))
}

fn raw(context: &Context, report: &Report) -> LabResult<Vec<Measurement>> {
    let mut measurements = Vec::new();
    for (record, (test, write)) in each_cell() {
        let name = format!("{record}M/{test}");
        for server in [Server::Hdd, Server::Ssd] {
            let mut found = Vec::new();
            for repetition in 0..REPETITIONS {
                let work = workload(test, write, record, repetition);
                let span = Span::requests(PART / (record * MIB));
                let timing = timing(report, server, test, write);
                found.push(context.raw(timing, &name, work, span)?);
            }
            measurements.push(Measurement::of_model(server, name.clone(), found));
        }
    }
    Ok(measurements)
}

fn cached(context: &Context, report: &Report, config: &Config) -> LabResult<Vec<Measurement>> {
    let timing = |server, test, write| timing(report, server, test, write);
    let ssd = (SSD_BYTES, timing(Server::Ssd, "write", true));
    let disk = (DISK_BYTES, timing(Server::Hdd, "read", false));
    let mut world = World::new(Plan::new(ssd, disk, config.settings.clone(), context.seed))?;
    world.warm(0..FILE)?;
    let mut measurements = Vec::new();
    for (record, (test, write)) in each_cell() {
        let name = format!("{record}M/{test}");
        world
            .replace_devices(timing(Server::Ssd, test, write), timing(Server::Hdd, test, write))?;
        let mut found: Vec<Found> = Vec::new();
        for repetition in 0..REPETITIONS {
            let work = workload(test, write, record, repetition);
            let span = Span::requests(PART / (record * MIB));
            found.push(context.volume(&mut world, &name, repetition, work, span)?);
        }
        measurements.push(Measurement::of_volume(config, name, found));
    }
    Ok(measurements)
}

pub(super) fn jobs(report: &Arc<Report>) -> Vec<Job> {
    let own = report.clone();
    let mut jobs = vec![Job::new("002", "bare models", 0.1, move |context| raw(context, &own))];
    for config in &report.configs {
        let (report, config) = (report.clone(), config.clone());
        let name = config.name.clone();
        let work = move |context: &Context| cached(context, &report, &config);
        jobs.push(Job::new("002", name, 50.0, work));
    }
    jobs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_of_the_report_is_there() {
        let report = report().expect("well formed");
        for record in RECORDS {
            for test in TESTS.iter().map(|(test, _)| *test).chain(["record_rewrite"]) {
                let same = |row: &&Published| record_and_test(row) == (record, test);
                let count = report.rows.iter().filter(same).count();
                assert_eq!(count, 1, "{record}M {test}");
            }
        }
        assert_eq!(report.rows.len(), 52);
    }

    #[test]
    fn fits_meet_what_lies_on_a_line() {
        let report = report().expect("well formed");
        let (overhead, per_byte) = fit(&report, Server::Ssd, "rand_read");
        for (record, published) in [(1, 199_183.0), (4, 253_023.4), (16, 272_936.3)] {
            let bytes = (record * MIB) as f64;
            let modelled = bytes / 1024.0 * 1e9 / (overhead + per_byte * bytes);
            assert!((modelled / published - 1.0).abs() < 0.005, "{record}: {modelled}");
        }
    }
}
