//! The real daemon as a child process.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use forebay_admin::{ApiError, VolumeReport, VolumeState, api};

use super::workspace::{ChildProcess, Workspace, this_program};
use crate::client::DaemonClient;

/// Maximum time for the daemon to answer or to recover.
const PATIENCE: Duration = Duration::from_secs(30);

const STEP: Duration = Duration::from_millis(50);

/// A daemon with its state and sockets in the workspace.
pub(super) struct Daemon<'a> {
    workspace: &'a Workspace,
    running: ChildProcess,
    client: DaemonClient,
}

impl<'a> Daemon<'a> {
    /// Starts the daemon and waits until it answers. The devices in `raw` are served without a
    /// cache.
    pub(super) fn start(workspace: &'a Workspace, raw: &[String]) -> Result<Self, ApiError> {
        let socket = workspace.at("admin.sock");
        let mut command = workspace.command(this_program()?);
        command.arg("--socket").arg(&socket).args(["daemon", "--log", "warn", "--state-dir"]);
        command.arg(workspace.at("state")).arg("--nbd").arg(workspace.at("nbd.sock"));
        for raw in raw {
            command.args(["--export-raw", raw]);
        }
        let running = workspace.start("daemon", &mut command)?;
        let client = DaemonClient::new(Some(socket), None)?;
        let mut daemon = Daemon { workspace, running, client };
        daemon.wait(|daemon| daemon.client.get(&api::DAEMON, &()).is_ok())?;
        Ok(daemon)
    }

    fn wait(&mut self, mut done: impl FnMut(&Self) -> bool) -> Result<(), ApiError> {
        let end = Instant::now() + PATIENCE;
        while !done(self) {
            self.workspace.go_on()?;
            if self.running.ended()?.is_some() || Instant::now() > end {
                let said = self.workspace.output("daemon", "err");
                let last = said.trim().lines().last().unwrap_or("it said nothing");
                return Err(ApiError::failed(format!("the daemon does not start: {last}")));
            }
            std::thread::sleep(STEP);
        }
        Ok(())
    }

    /// Waits until a volume is served.
    pub(super) fn wait_until_served(&self, name: &str) -> Result<(), ApiError> {
        let end = Instant::now() + PATIENCE;
        loop {
            self.workspace.go_on()?;
            let report = self.show(name)?;
            match report.state {
                VolumeState::Running => return Ok(()),
                VolumeState::Waiting | VolumeState::Recovering if Instant::now() < end => {
                    std::thread::sleep(STEP);
                }
                state => {
                    let why = report.errors.last.unwrap_or_else(|| "no reason is given".to_owned());
                    let state = state.name();
                    return Err(ApiError::failed(format!("volume '{name}' is {state}: {why}")));
                }
            }
        }
    }

    /// Returns the report of a volume.
    pub(super) fn show(&self, name: &str) -> Result<VolumeReport, ApiError> {
        self.client.get(&api::SHOW, &name.parse()?)
    }

    /// Runs a verb against the daemon.
    pub(super) fn cli(&self, args: &[&str]) -> Result<String, ApiError> {
        let socket = self.workspace.at("admin.sock").display().to_string();
        let args = [args, &["--socket", &socket]].concat();
        self.workspace.run_self(&args)
    }

    /// Returns the path of its NBD socket.
    pub(super) fn nbd(&self) -> PathBuf {
        self.workspace.at("nbd.sock")
    }

    /// Kills the daemon, as a crash would.
    pub(super) fn kill(mut self) -> Result<(), ApiError> {
        if let Some(status) = self.running.ended()? {
            return Err(ApiError::failed(format!("the daemon had ended by itself with {status}")));
        }
        self.running.kill();
        Ok(())
    }

    /// Stops the daemon in order.
    pub(super) fn terminate(mut self) -> Result<(), ApiError> {
        let status = self.running.terminate()?;
        if status.success() {
            return Ok(());
        }
        Err(ApiError::failed(format!("the daemon did not stop cleanly: {status}")))
    }
}
