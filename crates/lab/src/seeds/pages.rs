//! Rows, and what is beside them, handed on to pages of results.

use std::path::PathBuf;

use crate::error::{LabResult, other};
use crate::report;
use crate::report::input::{About, Detail, ReportText};

use super::Args;
use super::published::Report;
use super::row::Row;
use super::tally::Sample;

/// What is wanted beside the table.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Options {
    /// Write pages with the tables and plots to this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Keep rows, series and latencies in this file, for `forebay-lab report`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The revision that the pages name; what git says of this directory unless said otherwise
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
}

impl Options {
    pub(super) fn wanted(&self) -> bool {
        self.report.is_some() || self.save.is_some()
    }

    /// # Errors
    /// A file cannot be written.
    pub(super) fn write(&self, text: &str) -> LabResult<()> {
        if let Some(file) = &self.save {
            std::fs::write(file, text)
                .map_err(|error| other(format!("{} cannot be written: {error}", file.display())))?;
        }
        match &self.report {
            Some(directory) => report::write(text, None, directory),
            None => Ok(()),
        }
    }
}

/// The revision of the sources in the working directory, if git knows.
fn revision() -> Option<String> {
    let git = |arguments: &[&str]| {
        let output = std::process::Command::new("git").args(arguments).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    let revision = git(&["rev-parse", "HEAD"]).filter(|revision| !revision.is_empty())?;
    let changed = git(&["status", "--porcelain", "--untracked-files=no"]);
    let unchanged = changed.is_some_and(|changed| changed.is_empty());
    Some(if unchanged { revision } else { format!("{revision}, with changes") })
}

/// What gives the same rows again.
fn command(args: &Args) -> String {
    let mut command = "forebay-lab seeds".to_owned();
    if !args.only.is_empty() {
        command.push_str(&format!(" --only {}", args.only.join(",")));
    }
    let costs = &args.costs;
    let scale = if args.scale < 1.0 { format!(" --scale {}", args.scale) } else { String::new() };
    command.push_str(&format!(
        " --seed {}{scale} --cpu-read {} --cpu-write {} --cpu-front {} --cpu-more {}",
        args.seed, costs.cpu_read, costs.cpu_write, costs.cpu_front, costs.cpu_more
    ));
    command
}

pub(super) fn about(args: &Args, reports: &[Report]) -> About {
    let text = |report: &Report| ReportText {
        number: report.number.into(),
        title: report.title.into(),
        cautions: report.cautions.iter().map(|caution| (*caution).to_owned()).collect(),
    };
    About {
        command: Some(command(args)),
        revision: args.pages.revision.clone().or_else(revision),
        reports: reports.iter().map(text).collect(),
    }
}

/// Four digits, as more than that cannot be seen.
fn short(value: f64) -> f64 {
    format!("{value:.3e}").parse().unwrap_or(value)
}

/// One for each run, however many rows it has.
pub(super) fn details(rows: &[Row]) -> Vec<Detail> {
    let mut details: Vec<Detail> = Vec::new();
    for row in rows {
        let Some(detail) = &row.detail else { continue };
        let known = details.iter().any(|known| {
            (known.report.as_str(), &known.experiment, &known.config)
                == (row.report, &row.experiment, &row.config)
        });
        if known {
            continue;
        }
        let column = |of: fn(&Sample) -> f64| detail.series.iter().map(of).map(short).collect();
        details.push(Detail {
            report: row.report.into(),
            experiment: row.experiment.clone(),
            config: row.config.clone(),
            repetitions: row.repetitions > 1,
            second: column(|sample| sample.second),
            hit_ratio: column(|sample| sample.hit_ratio),
            dirty_bytes: column(|sample| sample.dirty_bytes as f64),
            disk_busy: column(|sample| sample.disk_busy),
            read_latencies: detail.read_latencies.clone(),
            write_latencies: detail.write_latencies.clone(),
        });
    }
    details
}
