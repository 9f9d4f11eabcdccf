//! Pages of results: their rows, command and revision.

use std::path::PathBuf;
use std::sync::Arc;

use crate::error::{LabResult, other};
use crate::output::{try_directory, try_file};
use crate::report;
use crate::report::rows::About;

use super::Args;
use super::published::Report;

/// Options for output beside the table.
#[derive(Clone, Debug, clap::Args)]
pub(super) struct Options {
    /// Write pages with the tables and plots to this directory
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Keep rows, series and latencies in this file, for `forebay-lab report`
    #[arg(long, value_name = "FILE")]
    save: Option<PathBuf>,
    /// The revision that the pages name [default: that of this directory in git]
    #[arg(long, value_name = "REVISION")]
    revision: Option<String>,
}

impl Options {
    pub(super) fn wanted(&self) -> bool {
        self.report.is_some() || self.save.is_some()
    }

    /// Checks that both places can be written to, before hours of measuring.
    pub(super) fn try_out(&self) -> LabResult<()> {
        self.report.as_deref().map_or(Ok(()), try_directory)?;
        self.save.as_deref().map_or(Ok(()), try_file)
    }

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

/// Returns the command that gives the same rows again.
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

pub(super) fn about(args: &Args, reports: &[Arc<Report>]) -> About {
    About {
        command: Some(command(args)),
        revision: args.pages.revision.clone().or_else(revision),
        reports: reports.iter().map(|report| report.text.clone()).collect(),
    }
}
