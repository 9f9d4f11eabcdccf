//! `forebay-lab block`: block devices that are there already, one beside the other: those of
//! Forebay's front ends, of other servers, bare ones.

use std::path::PathBuf;
use std::time::Duration;

use forebay_core::parse_size;
use serde::Serialize;
use serde_json::json;

use crate::bench::fio_client::{self, Load};
use crate::bench::measure::in_turns;
use crate::error::{LabResult, other, usage};
use crate::output::{Row, show};
use crate::process::machine_cpu;
use crate::progress::Progress;
use crate::rig::BLOCK;
use crate::statistics::{Estimate, median_of};

/// Arguments of `forebay-lab block`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Block devices; the first one is compared with each of the others
    #[arg(required = true, value_name = "NAME=PATH", value_parser = device)]
    devices: Vec<Device>,
    /// Rounds in which every device has a sample
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// Duration of one sample
    #[arg(long, default_value_t = 1.0)]
    seconds_per_sample: f64,
    /// Requests in flight
    #[arg(long, default_value = "1,32", value_delimiter = ',')]
    depths: Vec<usize>,
    /// Bytes from the beginning of each device that are read and written
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = parse_size)]
    span: u64,
    /// Measure writes as well, which destroy the data on the devices
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
struct Compared {
    operation: &'static str,
    depth: usize,
    device: String,
    per_second: f64,
    machine_cpu_us: f64,
    /// The first device against this one.
    ratio: Option<Estimate>,
}

impl Row for Compared {
    const COLUMNS: &'static str = "OPERATION=operation | DEPTH=depth | DEVICE=device | IO/s=per_second:rate | \
        MACHINE CPU us=machine_cpu_us:2 | FIRST/THIS=ratio";
}

/// Result of one device in one sample.
struct Point {
    per_second: f64,
    machine_cpu_us: f64,
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let span = args.span;
    let time = Duration::try_from_secs_f64(args.seconds_per_sample)
        .map_err(|_| usage("a sample must take some time"))?;
    if span < BLOCK || args.depths.contains(&0) {
        return Err(usage("a span of a block or more and depths of 1 or more, please"));
    }
    let directions = if args.destroy { &[false, true][..] } else { &[false] };
    let steps = args.pairs * args.depths.len() * directions.len();
    let progress = Progress::new(steps as u64, "starting");
    let mut rows = Vec::new();
    for &write in directions {
        for &depth in &args.depths {
            let load = Load { write, sequential: false, depth, span, time };
            rows.extend(compare(&args.devices, &load, args.pairs, &progress)?);
        }
    }
    drop(progress);
    let common = json!({ "pairs": args.pairs, "span_bytes": span });
    show(json, common, &rows, |table| {
        format!(
            "{table}{} rounds; fio with libaio, past the page cache; random blocks of 4K",
            args.pairs
        )
    })
}

fn compare(
    devices: &[Device],
    load: &Load,
    pairs: usize,
    progress: &Progress,
) -> LabResult<Vec<Compared>> {
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
    let rows = points.iter().zip(devices).enumerate().map(|(index, (points, device))| Compared {
        operation,
        depth: load.depth,
        device: device.name.clone(),
        per_second: median_of(points, |point| point.per_second),
        machine_cpu_us: median_of(points, |point| point.machine_cpu_us),
        ratio: (index > 0).then(|| Estimate::of_ratios(first.iter().copied().zip(rates(points)))),
    });
    Ok(rows.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_has_a_name_and_a_path() {
        let parsed = device("ours=/dev/forebay/a").expect("good");
        assert_eq!((parsed.name.as_str(), parsed.path), ("ours", PathBuf::from("/dev/forebay/a")));
        assert!(device("/dev/forebay/a").is_err());
    }
}
