//! fio as a child: a job file, variables for it, what it has measured.
//!
//! fio runs in a process group of its own, so that a Ctrl-C reaches this process alone and fio is
//! ended in order: it is asked first, and killed if it does not listen.

use std::fs::File;
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::Signal;
use serde::Serialize;
use serde_json::Value;

use crate::error::{LabResult, other};
use crate::process::{LOOK, Stop, end};

/// Maximum time for fio to end when it is asked to.
const PATIENCE: Duration = Duration::from_secs(5);

/// Result of one job of a run in one direction.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Measured {
    /// The section of the job file.
    pub(crate) job: String,
    /// `read` or `write`.
    pub(crate) direction: &'static str,
    pub(crate) bytes_per_second: f64,
    pub(crate) iops: f64,
    /// From submission to completion, microseconds. The percentiles of a job file that does not ask
    /// for `lat_percentiles` leave the time out that the submission took.
    pub(crate) mean_us: f64,
    pub(crate) p50_us: f64,
    pub(crate) p99_us: f64,
    pub(crate) total_bytes: u64,
    pub(crate) total_ios: u64,
}

/// A run of fio.
pub(crate) struct Fio<'a> {
    /// The job file.
    pub(crate) file: &'a Path,
    /// Variables for the job file, as `${NAME}` stands in it.
    pub(crate) variables: &'a [(&'static str, String)],
    /// A directory of our own, for what fio writes.
    pub(crate) folder: &'a Path,
    /// Whether fio is to refuse to write.
    pub(crate) read_only: bool,
}

impl Fio<'_> {
    /// Runs it to its end; `progress` gets the share that is done.
    /// Errors: fio is missing or fails, with its own words; `Interrupted`, and fio has ended.
    pub(crate) fn run(&self, stop: &Stop, progress: &dyn Fn(f64)) -> LabResult<Vec<Measured>> {
        stop.check()?;
        let results = self.folder.join("results.json");
        let words = self.folder.join("words");
        let mut command = Command::new("fio");
        command.envs(self.variables.iter().map(|(name, value)| (name, value)));
        command.args(["--output-format=json", "--eta=always", "--eta-newline=1"]);
        command.arg(format!("--output={}", results.display()));
        if self.read_only {
            command.arg("--readonly");
        }
        command.arg(self.file).current_dir(self.folder).process_group(0);
        let status = self.folder.join("status");
        command.stdin(Stdio::null()).stdout(File::create(&status)?).stderr(File::create(&words)?);
        let child = command.spawn().map_err(|error| {
            other(format!("fio cannot be started ({error}); install it with 'apt-get install fio'"))
        })?;
        let status = Running(child).wait(File::open(&status)?, stop, progress)?;
        let text = std::fs::read_to_string(&results).unwrap_or_default();
        if !status.success() {
            let said = std::fs::read_to_string(&words).unwrap_or_default();
            // With --output, fio's complaints go there too.
            let said = if said.trim().is_empty() { text } else { said };
            return Err(other(format!("fio ended with {status}: {}", complaint(&said))));
        }
        parse(&text).ok_or_else(|| other("fio's results are not understood; is it older than 3.0?"))
    }
}

/// The line that says what is wrong.
fn complaint(said: &str) -> &str {
    let mut lines = said.lines().map(str::trim).filter(|line| !line.is_empty());
    let wrong = |line: &&str| line.starts_with("fio:") || line.contains("error");
    lines.clone().find(wrong).or_else(|| lines.next_back()).unwrap_or("it said nothing")
}

/// A child that is gone when this is dropped.
struct Running(Child);

impl Running {
    /// Waits for its end; `said` is the file with its output, which includes its progress.
    fn wait(
        mut self,
        mut said: File,
        stop: &Stop,
        progress: &dyn Fn(f64),
    ) -> LabResult<ExitStatus> {
        let (mut eta, mut some) = (Eta::default(), Vec::new());
        loop {
            some.clear();
            said.read_to_end(&mut some)?;
            if let Some(share) = eta.feed(&some) {
                progress(share);
            }
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            stop.check()?;
            std::thread::sleep(LOOK);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if matches!(self.0.try_wait(), Ok(None)) {
            let _ = end(&mut self.0, Signal::INT, PATIENCE);
        }
    }
}

/// Reads the share that is done out of fio's status line: `Jobs: 4 (f=4): [m(4)][45.5%][...`.
#[derive(Default)]
struct Eta {
    line: Vec<u8>,
}

impl Eta {
    /// The newest share in these bytes and what came before.
    fn feed(&mut self, bytes: &[u8]) -> Option<f64> {
        let mut newest = None;
        for &byte in bytes {
            match byte {
                b'\r' | b'\n' => self.line.clear(),
                b'%' => {
                    let text = String::from_utf8_lossy(&self.line).into_owned();
                    let number = text.rsplit('[').next().and_then(|text| text.parse::<f64>().ok());
                    newest = number.map(|percent| percent / 100.0).or(newest);
                }
                _ if self.line.len() < 512 => self.line.push(byte),
                _ => (),
            }
        }
        newest
    }
}

/// The jobs in fio's own JSON. Notes for people may stand before it.
pub(crate) fn jobs(text: &str) -> Option<Vec<Value>> {
    let json: Value = serde_json::from_str(text.get(text.find('{')?..)?).ok()?;
    Some(json.get("jobs")?.as_array()?.clone())
}

/// The results of each job, directions without I/O left out.
fn parse(text: &str) -> Option<Vec<Measured>> {
    let mut all = Vec::new();
    for job in jobs(text)? {
        for direction in ["read", "write"] {
            let part = job.get(direction)?;
            let number = |path: &str| part.pointer(path).and_then(Value::as_f64);
            let count = |path: &str| part.pointer(path).and_then(Value::as_u64);
            if count("/total_ios")? == 0 {
                continue;
            }
            let micros = |path: &str| number(path).unwrap_or(0.0) / 1e3;
            let percentile = |which: &str| {
                let whole = number(&format!("/lat_ns/percentile/{which}"));
                whole.map_or_else(|| micros(&format!("/clat_ns/percentile/{which}")), |ns| ns / 1e3)
            };
            all.push(Measured {
                job: job.get("jobname")?.as_str()?.to_owned(),
                direction,
                bytes_per_second: number("/bw_bytes")?,
                iops: number("/iops")?,
                mean_us: micros("/lat_ns/mean"),
                p50_us: percentile("50.000000"),
                p99_us: percentile("99.000000"),
                total_bytes: count("/io_bytes")?,
                total_ios: count("/total_ios")?,
            });
        }
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_and_idle_directions_left_out() {
        let text = r#"note: something
            {"jobs":[{"jobname":"mixed",
              "read":{"total_ios":10,"io_bytes":40960,"bw_bytes":4096000,"iops":1000.5,
                "clat_ns":{"mean":1.0,"percentile":{"50.000000":1000,"99.000000":9000}},
                "lat_ns":{"mean":1500.0,"percentile":{"99.000000":9500}}},
              "write":{"total_ios":0,"io_bytes":0,"bw_bytes":0,"iops":0.0,"clat_ns":{}}}]}"#;
        let all = parse(text).expect("good");
        assert_eq!(all.len(), 1);
        let one = &all[0];
        assert_eq!((one.job.as_str(), one.direction, one.total_bytes), ("mixed", "read", 40960));
        assert_eq!((one.mean_us, one.p50_us, one.p99_us), (1.5, 1.0, 9.5));
        assert!(parse("{}").is_none() && parse("").is_none());
    }

    #[test]
    fn progress_is_found_also_in_pieces() {
        let mut eta = Eta::default();
        assert_eq!(eta.feed(b"Jobs: 1 (f=1): [R(1)][45.5%][r=1"), Some(0.455));
        assert_eq!(eta.feed(b"2 IOPS][eta 00m:01s]\rJobs: 1 (f=1): [R(1)][-.-%]"), None);
        assert_eq!(eta.feed(b"\rJobs: 1 (f=1): [R(1)][7"), None);
        assert_eq!(eta.feed(b"5.0%]"), Some(0.75));
    }

    #[test]
    fn the_line_that_complains_is_found() {
        let said =
            "fio: looks like your file system does not support direct=1\nfio: more\nRun status\n";
        assert_eq!(complaint(said), "fio: looks like your file system does not support direct=1");
        assert_eq!(complaint("only this\n"), "only this");
        assert_eq!(complaint(""), "it said nothing");
    }
}
