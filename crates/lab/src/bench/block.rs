//! `forebay-lab block`: block devices that are there already, one beside the other: those of Forebay's front
//! ends, of other servers, bare ones.

use std::path::PathBuf;
use std::time::Duration;

use forebay_core::parse_size;
use rustix::param::clock_ticks_per_second;
use serde::Serialize;

use crate::bench::fio_client::{self, Load};
use crate::bench::measure::in_turns;
use crate::error::{LabResult, other, usage};
use crate::output::{Table, print_json, rate};
use crate::progress::Progress;
use crate::rig::BLOCK;
use crate::statistics::{Estimate, median_of};

/// What is measured.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Block devices; the first one is compared with each of the others
    #[arg(required = true, value_name = "NAME=PATH", value_parser = device)]
    devices: Vec<Device>,
    /// Rounds in which every device has a sample
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// How long one sample takes
    #[arg(long, default_value_t = 1.0)]
    seconds_per_sample: f64,
    /// Requests in flight
    #[arg(long, default_value = "1,32", value_delimiter = ',')]
    depths: Vec<usize>,
    /// Bytes from the beginning of each device that are read and written
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    span: String,
    /// Measure writes as well, which destroy what is there
    #[arg(long)]
    destroy: bool,
}

#[derive(Clone, Debug)]
struct Device {
    name: String,
    path: PathBuf,
}

fn device(text: &str) -> Result<Device, String> {
    let (name, path) = text.split_once('=').ok_or("NAME=PATH is expected")?;
    Ok(Device { name: name.to_owned(), path: path.into() })
}

#[derive(Serialize)]
struct Row {
    operation: &'static str,
    depth: usize,
    device: String,
    per_second: f64,
    machine_cpu_us: f64,
    /// The first device against this one.
    ratio: Option<Estimate>,
}

#[derive(Serialize)]
struct Report {
    pairs: usize,
    span_bytes: u64,
    rows: Vec<Row>,
}

/// What one device did in one sample.
struct Point {
    per_second: f64,
    machine_cpu_us: f64,
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let span = parse_size(&args.span).map_err(|error| usage(error.to_string()))?;
    let time = Duration::try_from_secs_f64(args.seconds_per_sample)
        .map_err(|_| usage("a sample must take some time"))?;
    if span < BLOCK || args.depths.contains(&0) {
        return Err(usage("a span of a block or more and depths of 1 or more, please"));
    }
    let directions = if args.destroy { &[false, true][..] } else { &[false] };
    let steps = args.pairs * args.depths.len() * directions.len();
    let progress = Progress::new(steps as u64, "starting");
    let mut report = Report { pairs: args.pairs, span_bytes: span, rows: Vec::new() };
    for &write in directions {
        for &depth in &args.depths {
            let load = Load { write, sequential: false, depth, span, time };
            report.rows.extend(compare(&args.devices, &load, args.pairs, &progress)?);
        }
    }
    drop(progress);
    if json { print_json(&report) } else { print(&report) }
}

fn compare(
    devices: &[Device],
    load: &Load,
    pairs: usize,
    progress: &Progress,
) -> LabResult<Vec<Row>> {
    let operation = if load.write { "write" } else { "read" };
    progress.label(format!("{operation}s at depth {}", load.depth));
    let points = in_turns((pairs, devices.len()), progress, |index| {
        let device = devices.get(index).ok_or_else(|| other("no such device"))?;
        let before = machine_cpu()?;
        let sample = fio_client::device(&device.path, load)?;
        let used = machine_cpu()?.saturating_sub(before);
        Ok(Point {
            per_second: sample.per_second(),
            machine_cpu_us: used.as_secs_f64() * 1e6 / sample.operations.max(1) as f64,
        })
    })?;
    let rates = |of: &[Point]| of.iter().map(|point| point.per_second).collect::<Vec<_>>();
    let first = points.first().map(|of| rates(of)).unwrap_or_default();
    let rows = points.iter().zip(devices).enumerate().map(|(index, (points, device))| Row {
        operation,
        depth: load.depth,
        device: device.name.clone(),
        per_second: median_of(points, |point| point.per_second),
        machine_cpu_us: median_of(points, |point| point.machine_cpu_us),
        ratio: (index > 0).then(|| Estimate::of_ratios(first.iter().copied().zip(rates(points)))),
    });
    Ok(rows.collect())
}

/// CPU time of the whole machine: a device's is spent by a server, the kernel's threads and the client.
fn machine_cpu() -> LabResult<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks = busy_ticks(&text).ok_or_else(|| other("/proc/stat is not understood"))?;
    Ok(Duration::from_secs_f64(ticks as f64 / clock_ticks_per_second().max(1) as f64))
}

/// Reads the ticks in which a CPU ran something out of `/proc/stat`: all but idle, waiting and stolen ones.
fn busy_ticks(text: &str) -> Option<u64> {
    let mut fields = text.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let mut next = || fields.next()?.parse::<u64>().ok();
    let [user, nice, system, _idle, _iowait, irq, softirq] =
        [next()?, next()?, next()?, next()?, next()?, next()?, next()?];
    Some(user + nice + system + irq + softirq)
}

fn print(report: &Report) -> LabResult<()> {
    let mut table = Table::new("OPERATION | DEPTH | DEVICE | IO/s | MACHINE CPU us | FIRST/THIS");
    for row in &report.rows {
        table.row([
            row.operation.to_owned(),
            row.depth.to_string(),
            row.device.clone(),
            rate(row.per_second),
            format!("{:.2}", row.machine_cpu_us),
            row.ratio.map_or_else(|| "-".into(), |ratio| ratio.to_string()),
        ]);
    }
    print!("{}", table.render());
    println!("{} rounds; fio with libaio, past the page cache; random blocks of 4K", report.pairs);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_ticks_that_ran_something_count() {
        let text = "cpu  10 1 20 500 300 3 4 50 7 0\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        assert_eq!(busy_ticks(text), Some(38));
        assert_eq!(busy_ticks("intr 5"), None);
    }

    #[test]
    fn a_device_has_a_name_and_a_path() {
        let parsed = device("ours=/dev/forebay/a").expect("good");
        assert_eq!((parsed.name.as_str(), parsed.path), ("ours", PathBuf::from("/dev/forebay/a")));
        assert!(device("/dev/forebay/a").is_err());
    }
}
