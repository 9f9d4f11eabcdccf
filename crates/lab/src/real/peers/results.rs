//! Results: for programs as JSON, for people as one table.

use serde::Serialize;

use super::load::Side;
use super::system::Mode;
use crate::error::LabResult;
use crate::output::{Row, table};

/// Result of one experiment on one system.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Measured {
    pub(crate) report: &'static str,
    pub(crate) experiment: &'static str,
    pub(crate) jobs: u32,
    pub(crate) depth: u32,
    pub(crate) read: Option<Side>,
    pub(crate) write: Option<Side>,
    /// Microseconds of all processors of the machine, idle time left out, divided by the requests
    /// that were answered: this includes the load generator and all other processes.
    pub(crate) machine_cpu_us_per_io: f64,
    /// `None` where the kernel does not count them.
    pub(crate) ssd_bytes_written: Option<u64>,
    /// Bytes written to the fast device per byte that the client wrote.
    pub(crate) ssd_bytes_per_user_byte: Option<f64>,
    /// Requests per second against those of the raw fast device.
    pub(crate) share_of_ssd: Option<f64>,
}

impl Measured {
    /// Requests per second in both directions.
    pub(crate) fn iops(&self) -> f64 {
        self.read.iter().chain(&self.write).map(|side| side.iops).sum()
    }
}

/// A row of the table.
#[derive(Serialize)]
struct Line<'a> {
    system: String,
    front: Option<&'static str>,
    #[serde(flatten)]
    row: &'a Measured,
}

impl Row for Line<'_> {
    const COLUMNS: &'static str = "REPORT=report | EXPERIMENT=experiment | SYSTEM=system | FRONT=front | \
        READ MB/s=read.mb_per_second:1 | IO/s=read.iops:0 | MEAN us=read.mean_us:0 | \
        P99 us=read.p99_us:0 | WRITE MB/s=write.mb_per_second:1 | IO/s=write.iops:0 | \
        MEAN us=write.mean_us:0 | P99 us=write.p99_us:0 | OF SSD=share_of_ssd:3 | \
        CPU us/IO=machine_cpu_us_per_io:1 | SSD/USER=ssd_bytes_per_user_byte:2";
}

/// Bytes that were compared with the expected ones.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub(crate) struct Verified {
    /// Bytes that the load did not touch, after the load.
    pub(crate) beside_the_load: u64,
    /// Bytes that were overwritten after the load, through the cache.
    pub(crate) through_the_front: u64,
    /// The overwritten bytes on the origin without the cache; absent if there was no origin.
    pub(crate) on_the_origin: Option<u64>,
}

impl Verified {
    /// Bytes that were compared, all comparisons together.
    fn bytes(&self) -> u64 {
        self.beside_the_load + self.through_the_front + self.on_the_origin.unwrap_or(0)
    }
}

/// End of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Outcome {
    /// Run, verified, torn down.
    Done,
    /// This host cannot run it.
    Skipped,
    Failed,
}

/// One system in one mode.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Trial {
    pub(crate) system: &'static str,
    /// Absent where the system as a whole is skipped.
    pub(crate) mode: Option<Mode>,
    pub(crate) outcome: Outcome,
    /// Why it was skipped or has failed.
    pub(crate) reason: Option<String>,
    /// Kind of device under load: `block` or `nbd`.
    pub(crate) front: Option<&'static str>,
    pub(crate) verified: Option<Verified>,
    /// Whether nothing of it is left on the host.
    pub(crate) torn_down: bool,
    pub(crate) rows: Vec<Measured>,
}

impl Trial {
    pub(crate) fn new(system: &'static str, mode: Option<Mode>) -> Self {
        Trial {
            system,
            mode,
            outcome: Outcome::Failed,
            reason: None,
            front: None,
            verified: None,
            torn_down: false,
            rows: Vec::new(),
        }
    }

    /// One line about how it ended.
    pub(crate) fn summary(&self) -> String {
        let name = self.name();
        let reason = self.reason.as_deref().unwrap_or_default();
        match (self.outcome, &self.verified) {
            (Outcome::Skipped, _) => format!("{name}: skipped: {reason}"),
            (Outcome::Done, Some(verified)) => format!(
                "{name}: {} experiments, {} MiB verified, torn down",
                self.rows.len(),
                verified.bytes() >> 20
            ),
            _ => format!("{name}: FAILED: {reason}"),
        }
    }

    /// `bcache writeback`.
    pub(crate) fn name(&self) -> String {
        match self.mode {
            Some(mode) => format!("{} {}", self.system, mode.name()),
            None => self.system.to_owned(),
        }
    }
}

/// Results of all trials.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Report {
    pub(crate) ssd: String,
    pub(crate) hdd: String,
    pub(crate) ssd_bytes: u64,
    pub(crate) hdd_bytes: u64,
    /// Bytes that carry stamps; the load is on the first 15 sixteenths.
    pub(crate) range_bytes: u64,
    pub(crate) seconds: u64,
    pub(crate) trials: Vec<Trial>,
}

impl Report {
    /// Puts every row beside that of the raw fast device.
    pub(crate) fn compare(&mut self) {
        let raw: Vec<(&str, &str, f64)> = self
            .trials
            .iter()
            .filter(|trial| trial.system == "raw-ssd")
            .flat_map(|trial| &trial.rows)
            .map(|row| (row.report, row.experiment, row.iops()))
            .collect();
        for row in self.trials.iter_mut().flat_map(|trial| &mut trial.rows) {
            let same = raw.iter().find(|raw| (raw.0, raw.1) == (row.report, row.experiment));
            row.share_of_ssd = same.filter(|raw| raw.2 > 0.0).map(|raw| row.iops() / raw.2);
        }
    }

    /// Returns the table, grouped by experiment, and the trials that were not run.
    pub(crate) fn render(&self) -> LabResult<String> {
        let mut seen: Vec<(&str, &str)> = Vec::new();
        let rows =
            || self.trials.iter().flat_map(|trial| trial.rows.iter().map(move |r| (trial, r)));
        for (_, row) in rows() {
            if !seen.contains(&(row.report, row.experiment)) {
                seen.push((row.report, row.experiment));
            }
        }
        let lines = seen.into_iter().flat_map(|experiment| {
            let here = rows().filter(move |(_, row)| (row.report, row.experiment) == experiment);
            here.map(|(trial, row)| Line { system: trial.name(), front: trial.front, row })
        });
        let mut text = table(&lines.collect::<Vec<_>>())?;
        for trial in self.trials.iter().filter(|trial| trial.outcome != Outcome::Done) {
            text.push_str(&trial.summary());
            text.push('\n');
        }
        Ok(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(system: &'static str, iops: f64) -> Trial {
        let write = Some(Side { operations: 9, iops, ..Side::default() });
        let mut trial = Trial::new(system, Some(Mode::Writeback));
        trial.outcome = Outcome::Done;
        trial.rows.push(Measured {
            report: "003",
            experiment: "1x4",
            jobs: 1,
            depth: 4,
            read: None,
            write,
            machine_cpu_us_per_io: 1.0,
            ssd_bytes_written: None,
            ssd_bytes_per_user_byte: None,
            share_of_ssd: None,
        });
        trial
    }

    #[test]
    fn rows_are_compared_with_the_raw_device_and_the_rest_is_named() {
        let mut missing = Trial::new("opencas", None);
        missing.outcome = Outcome::Skipped;
        missing.reason = Some("casadm is missing".into());
        let mut report = Report {
            ssd: String::new(),
            hdd: String::new(),
            ssd_bytes: 0,
            hdd_bytes: 0,
            range_bytes: 0,
            seconds: 1,
            trials: vec![trial("raw-ssd", 200.0), trial("bcache", 50.0), missing],
        };
        report.compare();
        assert_eq!(report.trials[1].rows[0].share_of_ssd, Some(0.25));
        let text = report.render().expect("a table");
        assert!(text.contains("bcache writeback") && text.contains("0.250"), "{text}");
        assert!(text.ends_with("opencas: skipped: casadm is missing\n"), "{text}");
    }
}
