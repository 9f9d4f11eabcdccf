//! Forebay itself: its daemon, a volume, and the kernel's NBD client if there is one, so that it is
//! a block device as the others are; otherwise fio's own client on the socket.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::Signal;

use super::host::{get, load_module};
use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::{LabResult, other};
use crate::process::{self, PATIENCE, STEP_LIMIT, find_program, step};

/// Name of the volume.
const VOLUME: &str = "peer";
/// Connections of the kernel's client: as many as the widest load has jobs.
const CONNECTIONS: &str = "4";

pub(crate) struct Forebay {
    /// Whether the kernel's client is used where there is one.
    block: bool,
    program: PathBuf,
    admin: PathBuf,
}

impl Forebay {
    pub(crate) fn new(block: bool) -> Self {
        Forebay { block, program: PathBuf::new(), admin: PathBuf::new() }
    }

    /// A verb of the command line.
    fn verb(&self, words: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--socket").arg(&self.admin).args(words);
        command
    }
}

/// Returns a free device of the kernel's NBD client.
fn free_nbd() -> Option<PathBuf> {
    load_module("nbd");
    find_program("nbd-client")?;
    (0..16).find_map(|number| {
        let about = format!("/sys/block/nbd{number}");
        let free = Path::new(&about).exists() && !Path::new(&about).join("pid").exists();
        free.then(|| PathBuf::from(format!("/dev/nbd{number}")))
    })
}

impl System for Forebay {
    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        if ground.forebay.is_none() {
            return WhyNot::because(
                "the program forebay is neither beside this one nor on the PATH; name it with --forebay",
            );
        }
        Ok(())
    }

    fn set_up(&mut self, mode: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let folder = ground.folder.join("forebay");
        fs::create_dir_all(&folder)?;
        self.program = ground.forebay.clone().unwrap_or_default();
        self.admin = folder.join("admin.sock");
        let (socket, log) = (folder.join("nbd.sock"), folder.join("log"));
        let mut daemon = self.verb(&["daemon", "--log", "warn"]);
        daemon.arg("--state-dir").arg(folder.join("state")).arg("--nbd").arg(&socket);
        let mut child = process::spawn(&mut daemon, &log)?;
        let gone = folder.clone();
        undo.push("ending the daemon", move || {
            process::end(&mut child, Signal::TERM, PATIENCE)?;
            // The next trial must not find this volume in the state.
            Ok(fs::remove_dir_all(&gone)?)
        });
        let admin = self.admin.clone();
        ground.stop.wait("the daemon to start", STEP_LIMIT, || Ok(admin.exists()))?;
        let (ssd, hdd) = (ground.ssd.name(), ground.hdd.name());
        let made = ground.stop.run(
            &mut self.verb(&[
                "create",
                VOLUME,
                "--cache",
                &ssd,
                "--origin",
                &hdd,
                "--mode",
                mode.name(),
                "--force",
            ]),
            STEP_LIMIT,
        );
        made.map_err(|error| {
            let log = fs::read_to_string(&log).unwrap_or_default();
            other(format!("{error} {}", log.lines().last().unwrap_or_default()))
        })?;
        // As with the others: the comparison is about the cache, so sequential requests use it.
        ground.stop.run(&mut self.verb(&["set", VOLUME, "sequential_cutoff=0"]), STEP_LIMIT)?;
        let root = rustix::process::geteuid().is_root();
        let Some(device) = Some(()).filter(|()| self.block && root).and_then(|()| free_nbd())
        else {
            return Ok(Front::Nbd { socket, export: VOLUME.to_owned() });
        };
        let name = device.display().to_string();
        let path = socket.display().to_string();
        step("nbd-client", ["-unix", &path, &name, "-N", VOLUME, "-b", "4096", "-C", CONNECTIONS])?;
        let about = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
        let (pid, size) = (about.join("pid"), about.join("size"));
        undo.push(format!("disconnecting {name}"), move || {
            step("nbd-client", ["-d", &name])?;
            process::Stop::default().wait("disconnecting", STEP_LIMIT, || Ok(!pid.exists()))
        });
        ground.stop.wait("the NBD device", STEP_LIMIT, || Ok(get(&size)? != "0"))?;
        Ok(Front::Block(device))
    }

    fn drain(&mut self, ground: &Ground) -> LabResult<()> {
        ground.stop.run(&mut self.verb(&["flush", VOLUME]), STEP_LIMIT * 10).map(drop)
    }
}
