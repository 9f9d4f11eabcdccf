//! Child programs, and their end when this program is interrupted: running commands are killed,
//! and the steps of a tear-down are run to their end nevertheless.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::error::{LabError, LabResult, other};

/// Interval of polling.
pub(crate) const LOOK: Duration = Duration::from_millis(20);

/// Maximum time of a step of a set-up or tear-down. It protects against a hang and nothing else.
pub(crate) const STEP_LIMIT: Duration = Duration::from_secs(600);

/// Maximum time for a server to end when it is asked to.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

/// Whether this program was asked to stop.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stop(Arc<AtomicBool>);

impl Stop {
    /// Makes SIGINT, SIGTERM and SIGHUP ask for a stop instead of ending the program.
    pub(crate) fn on_signals() -> LabResult<Self> {
        let stop = Stop::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, stop.0.clone())?;
        }
        Ok(stop)
    }

    /// Fails with `Interrupted` once a stop was asked for.
    pub(crate) fn check(&self) -> LabResult<()> {
        if self.is_asked() { Err(LabError::Interrupted) } else { Ok(()) }
    }

    pub(crate) fn is_asked(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Waits until `done` says so.
    pub(crate) fn wait(
        &self,
        what: &'static str,
        limit: Duration,
        mut done: impl FnMut() -> LabResult<bool>,
    ) -> LabResult<()> {
        let start = Instant::now();
        loop {
            self.check()?;
            if done()? {
                return Ok(());
            }
            if start.elapsed() > limit {
                return Err(LabError::Stuck(what, limit.as_secs()));
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Runs a command to its end; returns what it printed.
    pub(crate) fn run(&self, command: &mut Command, limit: Duration) -> LabResult<String> {
        run(command, limit, Some(self))
    }
}

/// Runs a step that must not be left half done; a request to stop is followed after it.
pub(crate) fn step<S: AsRef<OsStr>>(
    program: &str,
    arguments: impl IntoIterator<Item = S>,
) -> LabResult<String> {
    step_command(Command::new(program).args(arguments))
}

/// Like [`step`], for a complete command.
pub(crate) fn step_command(command: &mut Command) -> LabResult<String> {
    run(command, STEP_LIMIT, None)
}

fn run(command: &mut Command, limit: Duration, stop: Option<&Stop>) -> LabResult<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    // Files need no reader while the command runs, as pipes would.
    let (mut out, mut err) = (tempfile::tempfile()?, tempfile::tempfile()?);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(out.try_clone()?)
        .stderr(err.try_clone()?)
        // Ctrl-C on a terminal goes to us alone: a tear-down must not be cut short.
        .process_group(0)
        .spawn()
        .map_err(|error| other(format!("{name} cannot be started: {error}")))?;
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        let over = start.elapsed() > limit;
        if over || stop.is_some_and(Stop::is_asked) {
            end(&mut child, Signal::KILL, Duration::ZERO)?;
            let why = if over { "does not end" } else { "interrupted" };
            return Err(other(format!("{name}: {why}")));
        }
        std::thread::sleep(LOOK);
    };
    let (out, err) = (text(&mut out)?, text(&mut err)?);
    if !status.success() {
        let said: Vec<&str> = err.lines().filter(|line| !line.trim().is_empty()).collect();
        let said = said.get(said.len().saturating_sub(3)..).unwrap_or_default().join("; ");
        return Err(other(format!("{name} failed with {status}: {said}")));
    }
    Ok(out)
}

/// Reads a file from its start.
fn text(file: &mut File) -> LabResult<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// Starts a server in a process group of its own; its output goes to a file.
pub(crate) fn spawn(command: &mut Command, log: &Path) -> LabResult<Child> {
    let name = command.get_program().to_string_lossy().into_owned();
    let log = File::create(log)?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .process_group(0)
        .spawn()
        .map_err(|error| other(format!("{name} cannot be started: {error}")))
}

/// Sends a signal to a child and everything it started, waits so long for the child to end, and
/// kills what is left of them.
pub(crate) fn end(child: &mut Child, signal: Signal, patience: Duration) -> LabResult<()> {
    let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    for (signal, patience) in [(signal, patience), (Signal::KILL, Duration::from_secs(10))] {
        if let Some(group) = group {
            let _ = kill_process_group(group, signal);
        }
        let start = Instant::now();
        while start.elapsed() < patience && matches!(child.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK);
        }
    }
    match child.try_wait()? {
        Some(_) => Ok(()),
        None => Err(other(format!("process {} does not end", child.id()))),
    }
}

/// Finds a program as a shell would, and in the directories of root's programs as well.
pub(crate) fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from))
        .map(|folder| folder.join(name))
        .find(|path| path.is_file())
}

/// Reads the CPU time of all threads that a process has or had out of the text of `/proc/PID/stat`:
/// user and system, in whole clock ticks.
pub(crate) fn cpu_time(stat: &str) -> Option<Duration> {
    // The name of the program comes first and may hold anything, also blanks and brackets.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11);
    let mut ticks = || fields.next()?.parse::<u64>().ok();
    let ticks = ticks()? + ticks()?;
    let per_second = rustix::param::clock_ticks_per_second().max(1);
    Some(Duration::from_secs_f64(ticks as f64 / per_second as f64))
}

/// CPU time of the whole machine. Guests of this machine are part of it, the time that a hypervisor
/// took is not.
pub(crate) fn machine_cpu() -> LabResult<Duration> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let ticks = busy_ticks(&text).ok_or_else(|| other("/proc/stat is not understood"))?;
    Ok(Duration::from_secs_f64(
        ticks as f64 / rustix::param::clock_ticks_per_second().max(1) as f64,
    ))
}

/// The ticks of user, nice, system, irq and softirq: all but idle, waiting and stolen ones.
fn busy_ticks(stat: &str) -> Option<u64> {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
    let ticks: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
    let ticks = ticks?;
    [0, 1, 2, 5, 6].iter().map(|&index| ticks.get(index).copied()).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_return_what_they_print_and_say_why_they_fail() {
        let stop = Stop::default();
        let shell = |script: &str| {
            let mut command = Command::new("sh");
            command.args(["-c", script]);
            stop.run(&mut command, STEP_LIMIT).map_err(|error| error.to_string())
        };
        assert_eq!(shell("echo out; echo err >&2"), Ok("out\n".to_owned()));
        let error = shell("echo no such luck >&2; exit 3").expect_err("it fails");
        assert!(error.contains('3') && error.contains("no such luck"), "{error}");
        assert!(step("/nonexistent/program", [""; 0]).is_err());
        assert!(find_program("sh").is_some() && find_program("no-such-program").is_none());
    }

    #[test]
    fn a_request_to_stop_kills_a_command_and_spares_a_step() {
        let stop = Stop::default();
        stop.0.store(true, Ordering::Relaxed);
        let start = Instant::now();
        let mut command = Command::new("sh");
        command.args(["-c", "sleep 1000 & wait"]);
        assert!(stop.run(&mut command, STEP_LIMIT).is_err());
        assert!(start.elapsed() < Duration::from_secs(500), "it was waited for");
        assert!(stop.check().is_err());
        assert_eq!(step("echo", ["still"]).ok().as_deref(), Some("still\n"));
    }

    #[test]
    fn cpu_time_is_found_behind_any_name() {
        let stat = "1 (a ) b) S 2 3 4 5 6 7 8 9 10 11 30 7 200 100 14";
        let per_second = rustix::param::clock_ticks_per_second() as f64;
        let ticks = cpu_time(stat).map(|time| (time.as_secs_f64() * per_second).round());
        assert_eq!(ticks, Some(37.0));
        assert_eq!(cpu_time("1 (a) S 1"), None);
    }

    #[test]
    fn idle_time_does_not_count() {
        let stat = "cpu  10 2 300 99999 88888 4 5 77777 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n";
        assert_eq!(busy_ticks(stat), Some(321));
        assert_eq!(busy_ticks("intr 1 2 3"), None);
        assert_eq!(busy_ticks("cpu  1 2 x 4 5 6 7"), None);
        assert_eq!(busy_ticks("cpu  1 2"), None);
    }
}
