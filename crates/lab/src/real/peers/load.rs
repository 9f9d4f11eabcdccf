//! Load, by fio: the experiments of two of the reports, and one job on a front with what fio says
//! about it.
//!
//! 000, EnhanceIO's announcement: 4 KiB, 90 % reads, zipf 1.2, 4 jobs of depth 8, after a
//! sequential read of 90 % of the file. 003, dm-writeboost against bcache: 4 KiB random writes,
//! jobs x depth.

use std::process::Command;
use std::time::Duration;

use clap::ValueEnum;
use serde::Serialize;
use serde_json::Value;

use super::system::Front;
use crate::error::{LabResult, other};
use crate::fio;
use crate::process::Stop;

/// A report whose experiments are run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Of {
    /// EnhanceIO against bcache and dm-cache
    #[value(name = "000")]
    Mail,
    /// dm-writeboost against bcache
    #[value(name = "003")]
    Writeboost,
}

/// One experiment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Experiment {
    pub(crate) report: &'static str,
    pub(crate) name: &'static str,
    pattern: Pattern,
    pub(crate) jobs: u32,
    pub(crate) depth: u32,
}

impl Experiment {
    /// Its job on the first `size` bytes.
    pub(crate) fn job(&self, size: u64, seconds: u64) -> Job {
        Job { pattern: self.pattern, jobs: self.jobs, depth: self.depth, size, seconds }
    }
}

/// The experiments of a report, or of both.
pub(crate) fn list(only: Option<Of>) -> Vec<Experiment> {
    let write = |name, jobs, depth| Experiment {
        report: "003",
        name,
        pattern: Pattern::Write,
        jobs,
        depth,
    };
    let all = [
        Experiment {
            report: "000",
            name: "mix",
            pattern: Pattern::Mixed { reads: 90, zipf: 1.2 },
            jobs: 4,
            depth: 8,
        },
        write("1x4", 1, 4),
        write("1x32", 1, 32),
        write("4x4", 4, 4),
        write("4x32", 4, 32),
    ];
    let wanted = only.map(|only| if only == Of::Mail { "000" } else { "003" });
    all.into_iter().filter(|one| wanted.is_none_or(|report| one.report == report)).collect()
}

/// The warm-up: a sequential read of 90 % of the file, 4 KiB each, eight in flight.
pub(crate) fn warm_up(file: u64) -> Job {
    let size = file / 10 * 9 / 4096 * 4096;
    Job { pattern: Pattern::ReadOnce, jobs: 1, depth: 8, size, seconds: 0 }
}

/// Time beyond its own after which a job counts as hung: requests in flight on a slow disk have to
/// end.
const PATIENCE: Duration = Duration::from_secs(1800);

/// Kind of requests.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Pattern {
    /// Sequential reads of 4 KiB, once.
    ReadOnce,
    /// Random reads and writes of 4 KiB on blocks that are not equally popular: this many reads in
    /// a hundred, and the exponent of the distribution.
    Mixed {
        /// Percent.
        reads: u8,
        /// The exponent.
        zipf: f64,
    },
    /// Random writes of 4 KiB.
    Write,
}

/// A job: a pattern on the first `size` bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) pattern: Pattern,
    pub(crate) jobs: u32,
    /// Requests in flight of each job.
    pub(crate) depth: u32,
    pub(crate) size: u64,
    /// Duration; a single pass of reads ends by itself.
    pub(crate) seconds: u64,
}

/// Result of a job in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub(crate) struct Side {
    pub(crate) operations: u64,
    pub(crate) bytes: u64,
    pub(crate) mb_per_second: f64,
    pub(crate) iops: f64,
    /// Latency as the client sees it, in microseconds.
    pub(crate) mean_us: f64,
    pub(crate) p99_us: f64,
}

/// Result of a job in reads and writes, unless there was nothing in that direction.
pub(crate) type Measured = (Option<Side>, Option<Side>);

impl Job {
    /// The whole command line.
    fn command(&self, front: &Front) -> Command {
        let mut fio = Command::new("fio");
        fio.args(["--name=job", "--output-format=json", "--bs=4k", "--group_reporting"]);
        fio.args(["--randrepeat=1", "--norandommap", "--direct=1", "--allow_file_create=0"]);
        // Jobs that are processes go into sessions of their own, and outlive an fio that is killed.
        fio.arg("--thread").arg(format!("--size={}", self.size));
        fio.arg(format!("--numjobs={}", self.jobs)).arg(format!("--iodepth={}", self.depth));
        match front {
            Front::Block(path) => {
                fio.arg("--ioengine=libaio").arg(format!("--filename={}", path.display()));
            }
            Front::Nbd { socket, export } => {
                let uri = format!("nbd+unix:///{export}?socket={}", socket.display());
                fio.arg("--ioengine=nbd").arg(format!("--uri={uri}"));
            }
        }
        match self.pattern {
            Pattern::ReadOnce => {
                fio.arg("--rw=read");
            }
            Pattern::Mixed { reads, zipf } => {
                fio.arg("--rw=randrw").arg(format!("--rwmixread={reads}"));
                fio.arg(format!("--random_distribution=zipf:{zipf}"));
            }
            Pattern::Write => {
                fio.arg("--rw=randwrite");
            }
        }
        if self.pattern != Pattern::ReadOnce {
            fio.arg("--time_based").arg(format!("--runtime={}", self.seconds));
        }
        fio
    }

    /// Runs it.
    pub(crate) fn run(&self, front: &Front, stop: &Stop) -> LabResult<Measured> {
        let limit = match self.pattern {
            // A disk that reads a megabyte a second would be a museum's.
            Pattern::ReadOnce => Duration::from_secs(self.size >> 20),
            _ => Duration::from_secs(self.seconds),
        };
        let text = stop.run(&mut self.command(front), limit + PATIENCE)?;
        parse(&text)
    }
}

/// Reads fio's report.
fn parse(text: &str) -> LabResult<Measured> {
    let jobs = fio::jobs(text).ok_or_else(|| other(format!("fio printed no result: {text}")))?;
    let [job] = jobs.as_slice() else {
        return Err(other("fio's result does not have exactly one group of jobs"));
    };
    match job.get("error").and_then(Value::as_i64) {
        Some(0) => (),
        Some(error) => return Err(other(format!("fio ended with error {error}"))),
        None => return Err(other("fio's result does not say whether it failed")),
    }
    let side = |name: &str| job.get(name).and_then(side);
    match (side("read"), side("write")) {
        (Some(read), Some(write)) => {
            let some = |side: Side| (side.operations > 0).then_some(side);
            Ok((some(read), some(write)))
        }
        _ => Err(other("fio's result lacks expected numbers")),
    }
}

fn side(value: &Value) -> Option<Side> {
    let number = |path: &str| value.pointer(path).and_then(Value::as_f64);
    let bytes = value.get("io_bytes")?.as_u64()?;
    Some(Side {
        operations: value.get("total_ios")?.as_u64()?,
        bytes,
        mb_per_second: number("/bw_bytes")? / 1e6,
        iops: number("/iops")?,
        mean_us: number("/clat_ns/mean")? / 1e3,
        // Absent where nothing was done.
        p99_us: number("/clat_ns/percentile/99.000000").unwrap_or(0.0) / 1e3,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(error: i64) -> String {
        let side = |ios: u64| {
            serde_json::json!({
                "io_bytes": ios * 4096, "total_ios": ios, "bw_bytes": 2_000_000, "iops": 488.3,
                "clat_ns": { "mean": 1500.0, "percentile": { "99.000000": 9000 } },
            })
        };
        let job = serde_json::json!({ "error": error, "read": side(9), "write": side(1) });
        format!("fio: a note\n{}", serde_json::json!({ "jobs": [job] }))
    }

    #[test]
    fn a_report_is_read() {
        let (read, write) = parse(&report(0)).expect("well formed");
        let (read, write) = (read.expect("it has read"), write.expect("it has written"));
        assert_eq!((read.operations, write.bytes), (9, 4096));
        assert_eq!((read.mb_per_second, read.p99_us), (2.0, 9.0));
        assert_eq!(write.mean_us, 1.5);
    }

    #[test]
    fn a_failed_or_empty_report_is_no_result() {
        for bad in [report(5), String::new(), "{}".into(), r#"{"jobs":[{"error":0}]}"#.into()] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn the_jobs_are_those_of_the_reports() {
        let job = |pattern| Job { pattern, jobs: 4, depth: 8, size: 1 << 20, seconds: 9 };
        let line = |job: Job, front: &Front| {
            let command = job.command(front);
            let words = command.get_args().map(|word| word.to_string_lossy().into_owned());
            words.collect::<Vec<_>>().join(" ")
        };
        let block = Front::Block("/dev/x".into());
        let mixed = line(job(Pattern::Mixed { reads: 90, zipf: 1.2 }), &block);
        for part in [
            "--ioengine=libaio --filename=/dev/x",
            "--rw=randrw --rwmixread=90 --random_distribution=zipf:1.2",
            "--time_based --runtime=9",
            "--numjobs=4 --iodepth=8",
        ] {
            assert!(mixed.contains(part), "{part}: {mixed}");
        }
        assert!(!line(job(Pattern::ReadOnce), &block).contains("time_based"));
        let nbd = Front::Nbd { socket: "/s".into(), export: "v".into() };
        let write = line(job(Pattern::Write), &nbd);
        assert!(write.contains("--ioengine=nbd --uri=nbd+unix:///v?socket=/s"), "{write}");
    }

    #[test]
    fn every_experiment_is_in_one_report() {
        let (mail, boost) = (list(Some(Of::Mail)), list(Some(Of::Writeboost)));
        assert_eq!((mail.len(), boost.len()), (1, 4));
        assert_eq!(list(None), [mail, boost].concat());
        for one in list(None).iter().filter(|one| one.report == "003") {
            assert_eq!(one.name, format!("{}x{}", one.jobs, one.depth));
        }
    }

    #[test]
    fn the_warm_up_reads_nine_tenths_in_whole_blocks() {
        let job = warm_up(10 << 20);
        assert_eq!((job.size, job.pattern), ((9 << 20), Pattern::ReadOnce));
    }
}
