//! A directory and child processes that are always removed at the end.

use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, ErrorKind};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use crate::output::note;
use crate::paths::io_error;

const STEP: Duration = Duration::from_millis(20);

/// Added to `PATH`, because that of a plain user often lacks these.
const SYSTEM_TOOLS: &str = "/usr/sbin:/sbin";

/// See the module.
pub(super) struct Workspace {
    dir: PathBuf,
    started: Instant,
    interrupted: Arc<AtomicBool>,
    path: String,
}

impl Workspace {
    /// Creates a new directory below `dir`, or below the directory for temporary files.
    pub(super) fn new(dir: Option<&Path>) -> Result<Self, ApiError> {
        let parent = match dir {
            Some(dir) => {
                std::path::absolute(dir).map_err(|error| ApiError::invalid("--dir", error))?
            }
            None => std::env::temp_dir(),
        };
        let dir = parent.join(format!("forebay-demo-{}", std::process::id()));
        forebay_daemon::paths::check_socket_path("--dir", &dir.join("admin.sock"))?;
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupted.clone())
                .map_err(|error| ApiError::failed(format!("signals: {error}")))?;
        }
        std::fs::create_dir(&dir)
            .map_err(|error| io_error("cannot make the directory", &dir, &error))?;
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{path}:{SYSTEM_TOOLS}");
        Ok(Workspace { dir, started: Instant::now(), interrupted, path })
    }

    /// Returns the path of a file in the directory.
    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    /// Reports the current step on stderr.
    pub(super) fn say(&self, what: &str) {
        note(&format!("[{:3.0} s] {what}", self.started.elapsed().as_secs_f64()));
    }

    /// Fails once the process was interrupted.
    pub(super) fn go_on(&self) -> Result<(), ApiError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(ApiError::new(ErrorKind::Cancelled, "interrupted; everything is removed"));
        }
        Ok(())
    }

    /// Sleeps, unless the process is interrupted.
    pub(super) fn sleep(&self, time: Duration) -> Result<(), ApiError> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.go_on()?;
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Fails unless these programs are installed.
    pub(super) fn need(&self, tools: &[&str]) -> Result<(), ApiError> {
        let there =
            |tool: &&&str| self.path.split(':').any(|dir| Path::new(dir).join(tool).is_file());
        match tools.iter().find(|tool| !there(tool)) {
            None => Ok(()),
            Some(tool) => Err(ApiError::failed(format!(
                "the demo needs '{tool}'; install it with 'apt-get install fio e2fsprogs'"
            ))),
        }
    }

    /// Makes a command that does not outlive its [`ChildProcess`]. It has a process group of its
    /// own, so that a Ctrl-C reaches only this process, which then cleans up in order.
    pub(super) fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> Command {
        let mut command = Command::new(program);
        command.env("PATH", &self.path).stdin(Stdio::null()).process_group(0);
        command
    }

    /// Starts a command with its output in the files `NAME.out` and `NAME.err`.
    pub(super) fn start(
        &self,
        name: &str,
        command: &mut Command,
    ) -> Result<ChildProcess, ApiError> {
        let file = |end: &str| {
            let path = self.at(&format!("{name}.{end}"));
            File::create(&path).map_err(|error| io_error("cannot write", &path, &error))
        };
        let child = command.stdout(file("out")?).stderr(file("err")?).spawn();
        let child = child.map_err(|error| ApiError::failed(format!("{name}: {error}")))?;
        Ok(ChildProcess { name: name.to_owned(), child: Some(child) })
    }

    /// Returns the output of a command that was started as `name`.
    pub(super) fn output(&self, name: &str, end: &str) -> String {
        let bytes = std::fs::read(self.at(&format!("{name}.{end}"))).unwrap_or_default();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Runs a command to its end.
    pub(super) fn run(&self, name: &str, command: &mut Command) -> Result<ExitStatus, ApiError> {
        let mut running = self.start(name, command)?;
        loop {
            if let Some(status) = running.ended()? {
                return Ok(status);
            }
            self.go_on()?;
            std::thread::sleep(STEP);
        }
    }

    /// Runs a command to its end, which must be successful, and returns its stdout.
    pub(super) fn run_well(&self, name: &str, command: &mut Command) -> Result<String, ApiError> {
        let status = self.run(name, command)?;
        if status.success() {
            return Ok(self.output(name, "out"));
        }
        let said = self.output(name, "err");
        let last = said.trim().lines().last().unwrap_or("it said nothing");
        Err(ApiError::failed(format!("{name} ended with {status}: {last}")))
    }

    /// Runs a verb of this program.
    pub(super) fn run_self(&self, args: &[&str]) -> Result<String, ApiError> {
        let name = format!("forebay-{}", args.first().unwrap_or(&""));
        self.run_well(&name, self.command(this_program()?).args(args))
    }
}

/// Returns the path of the running program.
pub(super) fn this_program() -> Result<PathBuf, ApiError> {
    std::env::current_exe().map_err(|error| ApiError::failed(format!("own program: {error}")))
}

impl Drop for Workspace {
    fn drop(&mut self) {
        // It can take a while, after everything of interest has been printed.
        self.say(&format!("removing {}", self.dir.display()));
        if let Err(error) = std::fs::remove_dir_all(&self.dir) {
            note(&format!("forebay: cannot remove {}: {error}", self.dir.display()));
        }
    }
}

/// A child process; killed on drop at the latest.
pub(super) struct ChildProcess {
    name: String,
    child: Option<Child>,
}

impl ChildProcess {
    /// Returns its exit status, if it has ended.
    pub(super) fn ended(&mut self) -> Result<Option<ExitStatus>, ApiError> {
        let Some(child) = &mut self.child else { return Ok(None) };
        let ended = child.try_wait();
        ended.map_err(|error| ApiError::failed(format!("{}: {error}", self.name)))
    }

    /// Kills it, as a crash would, and waits for its end.
    pub(super) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Terminates it, and waits for its end.
    pub(super) fn terminate(&mut self) -> Result<ExitStatus, ApiError> {
        let failed = |what: String| ApiError::failed(format!("{}: {what}", self.name));
        let Some(child) = &mut self.child else { return Err(failed("it is not there".to_owned())) };
        let id = rustix::process::Pid::from_child(child);
        rustix::process::kill_process(id, rustix::process::Signal::TERM)
            .map_err(|error| failed(error.to_string()))?;
        let status = child.wait().map_err(|error| failed(error.to_string()))?;
        self.child = None;
        Ok(status)
    }
}

impl Drop for ChildProcess {
    fn drop(&mut self) {
        self.kill();
    }
}
