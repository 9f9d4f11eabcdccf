//! One experiment with fio on a server in this process.

use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use forebay_device::model::ModelledDevice;
use forebay_device::{Device, RamDevice};

use super::Row;
use super::experiment::{Addresses, Configuration, DeviceKind, Experiment, Preparation};
use super::server::Server;
use crate::error::LabResult;
use crate::fio::Fio;
use crate::process::{CpuOf, Stop, cpu_time};
use crate::rig::Plan;

/// A device and the memory that it keeps its data in.
struct Made {
    device: Arc<dyn Device>,
    memory: Arc<dyn Device>,
}

fn make(name: &str, kind: DeviceKind, bytes: u64) -> LabResult<Made> {
    let memory: Arc<dyn Device> = RamDevice::new(name, bytes)?;
    let device = match kind.model() {
        Some(model) => ModelledDevice::new(memory.clone(), model),
        None => memory.clone(),
    };
    Ok(Made { device, memory })
}

/// Runs one experiment with one configuration.
/// Errors: fio or the engine fails; `Interrupted`.
pub(crate) fn measure(
    experiment: &Experiment,
    configuration: Configuration,
    stop: &Stop,
) -> LabResult<Row> {
    let folder = tempfile::Builder::new().prefix("forebay-lab-").tempdir()?;
    let (kind, bytes) = configuration.origin(experiment);
    let origin = make("origin", kind, bytes)?;
    let kind = if configuration.cached() { experiment.cache } else { DeviceKind::Ram };
    let cache = make("cache", kind, configuration.cache_bytes(experiment))?;
    let plan = Plan::new(cache.device, origin.device, configuration.settings());
    let memory = vec![origin.memory, cache.memory];
    let server = Server::start(plan, memory, &folder.path().join("nbd"), stop)?;
    let run = |text: String| run_fio(folder.path(), &text, stop);
    if let Some(first) = experiment.preparation {
        run(preparation(first, &server.uri()))?;
    }
    // The ramp is a run of its own: what is counted on this side then belongs to the measurement.
    if experiment.ramp_seconds > 0 {
        run(job(experiment, &server.uri(), experiment.ramp_seconds, 1))?;
    }
    let before = (server.counted()?, machine_time(), Instant::now(), children_time());
    let measured = run(job(experiment, &server.uri(), experiment.seconds, 2))?;
    let after = (server.counted()?, machine_time(), before.2.elapsed(), children_time());
    let cpu = after.0.cpu.saturating_sub(before.0.cpu).as_secs_f64();
    let client_cpu = after.3 - before.3;
    let ios: u64 = measured.iter().map(|one| one.total_ios).sum();
    let (totals, first) = (after.0.totals, before.0.totals);
    let hits = totals.read_hits - first.read_hits;
    let reads =
        hits + totals.read_partial + totals.read_misses - first.read_partial - first.read_misses;
    let all_hits = hits + totals.write_hits - first.write_hits;
    let all =
        reads + totals.write_hits + totals.write_misses - first.write_hits - first.write_misses;
    Ok(Row {
        report: experiment.report.clone(),
        experiment: experiment.name.clone(),
        config: configuration.name(),
        parameters: experiment.clone(),
        bytes_per_second: measured.iter().map(|one| one.bytes_per_second).sum(),
        iops: measured.iter().map(|one| one.iops).sum(),
        measured,
        hit_ratio: (configuration.cached() && reads > 0).then(|| hits as f64 / reads as f64),
        hit_ratio_of_all: (configuration.cached() && all > 0).then(|| all_hits as f64 / all as f64),
        server_cpu_us: cpu * 1e6 / ios.max(1) as f64,
        client_cpu_us: client_cpu * 1e6 / ios.max(1) as f64,
        server_busy: cpu / after.2.as_secs_f64().max(1e-9),
        machine_busy: busy_share(before.1, after.1),
    })
}

fn run_fio(folder: &Path, text: &str, stop: &Stop) -> LabResult<Vec<crate::fio::Measured>> {
    let file = folder.join("job.fio");
    std::fs::write(&file, text)?;
    Fio { file: &file, variables: &[], folder, read_only: false }.run(stop, &|_| ())
}

fn head(uri: &str) -> String {
    format!("[global]\nioengine=nbd\nuri={uri}\nlat_percentiles=1\ngroup_reporting\nnorandommap\n")
}

/// The job file for what is done first.
fn preparation(preparation: Preparation, uri: &str) -> String {
    let Preparation { write, bytes, block, depth } = preparation;
    let kind = if write { "write" } else { "read" };
    format!("{}[prepare]\nrw={kind}\nbs={block}\nsize={bytes}\niodepth={depth}\n", head(uri))
}

/// The job file for so many seconds of the load.
fn job(experiment: &Experiment, uri: &str, seconds: u64, seed: u32) -> String {
    let sequential = experiment.addresses == Addresses::Sequential;
    let kind = match (sequential, experiment.write_percent) {
        (true, 0) => "read",
        (true, 100) => "write",
        (true, _) => "rw",
        (false, 0) => "randread",
        (false, 100) => "randwrite",
        (false, _) => "randrw",
    };
    let distribution = match experiment.addresses {
        Addresses::Zipf(skew) => format!("random_distribution=zipf:{skew}\n"),
        Addresses::Sequential | Addresses::Uniform => String::new(),
    };
    format!(
        "{}{distribution}[run]\nrw={kind}\nrwmixwrite={}\nbs={}\nsize={}\nnumjobs={}\niodepth={}\n\
         time_based\nruntime={seconds}\nrandseed={seed}\n",
        head(uri),
        experiment.write_percent,
        experiment.block,
        experiment.span,
        experiment.jobs,
        experiment.depth,
    )
}

/// CPU seconds of the children that have ended.
fn children_time() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    cpu_time(&stat, CpuOf::Children).unwrap_or_default().as_secs_f64()
}

/// Busy and idle time of all CPUs together, in ticks.
fn machine_time() -> (u64, u64) {
    parse_machine_time(&std::fs::read_to_string("/proc/stat").unwrap_or_default())
}

fn parse_machine_time(stat: &str) -> (u64, u64) {
    let line = stat.lines().find(|line| line.starts_with("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_whitespace().skip(1).map(|word| word.parse().unwrap_or(0)).collect();
    let at = |place: usize| ticks.get(place).copied().unwrap_or(0);
    let idle = at(3) + at(4);
    // The first eight; the others are contained in them.
    let all: u64 = ticks.iter().take(8).sum();
    (all - idle, idle)
}

fn busy_share(before: (u64, u64), after: (u64, u64)) -> f64 {
    let busy = after.0.saturating_sub(before.0) as f64;
    let idle = after.1.saturating_sub(before.1) as f64;
    if busy + idle > 0.0 { busy / (busy + idle) } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::real::scaled::experiment::scaled_down;

    #[test]
    fn job_files_say_what_the_experiment_says() {
        let find = |name: &str| {
            scaled_down()
                .expect("well formed")
                .into_iter()
                .find(|(one, _)| one.name == name)
                .expect("known")
                .0
        };
        let text = job(&find("mail"), "nbd://h/x", 7, 1);
        for line in [
            "rw=randrw",
            "rwmixwrite=10",
            "random_distribution=zipf:1.2",
            "bs=4096",
            "size=419430400",
            "numjobs=4",
            "iodepth=8",
            "runtime=7",
            "uri=nbd://h/x",
        ] {
            assert!(text.lines().any(|one| one == line), "{line} in {text}");
        }
        assert!(job(&find("sata/seq-read"), "x", 1, 1).contains("rw=read\n"));
        assert!(job(&find("4x32"), "x", 1, 1).contains("rw=randwrite\n"));
        let text = preparation(find("mail").preparation.expect("one"), "x");
        assert!(text.contains("rw=read\n") && text.contains("size=377487360\n"), "{text}");
    }

    #[test]
    fn the_machines_time_is_read() {
        let stat = "cpu  10 1 20 100 5 2 3 4 9 9\ncpu0 1 1 1 1\n";
        assert_eq!(parse_machine_time(stat), (40, 105));
        assert_eq!(parse_machine_time(""), (0, 0));
        assert_eq!(busy_share((40, 105), (70, 115)), 0.75);
        assert_eq!(busy_share((0, 0), (0, 0)), 0.0);
    }
}
