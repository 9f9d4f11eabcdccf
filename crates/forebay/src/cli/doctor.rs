//! `forebay doctor`: checks this host for missing parts, and recommends a front end for volumes.
//! Changes nothing, and needs no daemon.
//!
//! `doctor::checks` looks at the host; here the results are shown.

mod checks;
mod host;

use std::time::Duration;

use clap::Args;
use forebay_admin::{ErrorKind, VolumeList, api};
use serde::Serialize;

use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::table::{Column, Table};
use crate::output::{json, print_text};
use crate::process::{self, Process};
use crate::sparse::{self, Shortage};
use host::Host;

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Time limit for the daemon's answer; then its process is examined.
const PATIENCE: Duration = Duration::from_secs(3);

/// The result of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Level {
    /// Nothing to improve.
    Good,
    /// It works, and could be better.
    Note,
    /// Something does not work.
    Missing,
}

impl Level {
    fn word(self) -> &'static str {
        match self {
            Level::Good => "ok",
            Level::Note => "note",
            Level::Missing => "missing",
        }
    }
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct HostCheck {
    /// Its subject; stable.
    name: &'static str,
    level: Level,
    /// The finding.
    found: String,
    /// The remedy; empty if there is nothing to do.
    remedy: String,
}

/// One way to use a volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Way {
    /// The front end, or the client of one; stable.
    name: &'static str,
    /// Whether it works on this host.
    works: bool,
    /// Whether it makes a block device of the host.
    block_device: bool,
    /// The command to use it, or the part that is missing.
    words: String,
}

/// Everything that was found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Findings {
    checks: Vec<HostCheck>,
    front_ends: Vec<Way>,
    /// The front end that makes the best block device here; `null`: none does.
    best: Option<&'static str>,
    /// The state of a daemon that does not answer; `null`: it answers, or there is none.
    silent_daemon: Option<SilentDaemon>,
}

/// A daemon that does not answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct SilentDaemon {
    /// The error of the request.
    error: String,
    /// Whether its socket takes no more connections, because too many have not been accepted.
    socket_is_full: bool,
    /// Its process, as far as this user may see it.
    process: Option<Process>,
}

/// The daemon's answer, or the state of its process.
enum Daemon {
    Answers {
        version: String,
        /// Filesystems that are too small for the files of volumes; `None`: the volumes are not
        /// known.
        shortages: Option<Vec<Shortage>>,
    },
    /// There is no daemon, or it refuses the request.
    Fails(String),
    Silent(SilentDaemon),
}

impl Daemon {
    fn look(client: &DaemonClient) -> Self {
        let socket = client.socket();
        match client.silently(PATIENCE).get(&api::DAEMON, &()) {
            Ok(report) => {
                let list = client.silently(PATIENCE).get(&api::LIST, &()).ok();
                let shortages = list.map(|VolumeList { volumes }| {
                    let each = volumes.iter().flat_map(|it| [&*it.cache, &*it.origin]);
                    sparse::shortages(&each.collect::<Vec<_>>())
                });
                Daemon::Answers { version: report.version, shortages }
            }
            Err(error) if error.kind == ErrorKind::NoAnswer => Daemon::Silent(SilentDaemon {
                error: error.message,
                socket_is_full: process::is_full(socket),
                process: process::listening_at(socket).and_then(Process::look),
            }),
            Err(error) => Daemon::Fails(error.message),
        }
    }
}

impl Findings {
    fn of(host: &Host, daemon: Daemon) -> Self {
        let mut checks = checks::all(host);
        checks.push(checks::daemon(&daemon));
        if let Daemon::Answers { shortages: Some(shortages), .. } = &daemon {
            checks.push(checks::space(shortages));
        }
        let front_ends = checks::ways(host);
        // In the order of preference.
        let best = front_ends.iter().find(|way| way.works && way.block_device);
        let silent_daemon = match daemon {
            Daemon::Silent(silent) => Some(silent),
            Daemon::Answers { .. } | Daemon::Fails(_) => None,
        };
        Findings { best: best.map(|way| way.name), checks, front_ends, silent_daemon }
    }

    fn render(&self) -> String {
        let mut table =
            Table::new(&[Column::left("CHECK"), Column::left("RESULT"), Column::left("FOUND")]);
        for check in &self.checks {
            let row = [check.name, check.level.word(), &check.found];
            table.row(row.map(str::to_owned));
            if !check.remedy.is_empty() {
                table.row(["", "", &check.remedy].map(str::to_owned));
            }
        }
        let mut ways =
            Table::new(&[Column::left("FRONT END"), Column::left("HERE"), Column::left("HOW")]);
        for way in &self.front_ends {
            let works = if way.works { "works" } else { "does not" };
            ways.row([way.name, works, &way.words].map(str::to_owned));
        }
        let best = match self.best {
            Some(best) => format!("Best for a block device on this host: {best}.\n"),
            None => {
                "No front end makes a block device on this host; use a client that speaks NBD, \
                     or run it in a virtual machine.\n"
                    .to_owned()
            }
        };
        format!("{}\n{}\n{best}", table.render(), ways.render())
    }
}

/// Looks at this host, and at the daemon if there is one.
pub(crate) fn run(client: &DaemonClient, args: &DoctorArgs) -> VerbResult {
    let findings = findings(client);
    if args.json { json::print(&findings) } else { print_text(&findings.render()) }
}

/// Returns the findings.
pub(super) fn findings(client: &DaemonClient) -> Findings {
    Findings::of(&Host::look(), Daemon::look(client))
}

#[cfg(test)]
mod tests;
