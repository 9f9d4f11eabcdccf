//! nbdkit with its cache filter: a cache in user space over NBD, so that there is a peer where the
//! kernel has none, and without root. It caches in a file: beside the file that stands in for the
//! fast device, or on a filesystem that is made on it.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use rustix::process::Signal;

use super::blocks;
use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::{LabResult, other};
use crate::process::{self, PATIENCE, STEP_LIMIT, find_program, step};

/// Share of the fast device that the cache may take, in percent; a filesystem needs the rest.
const SHARE: u64 = 90;

#[derive(Default)]
pub(crate) struct Nbdkit {
    front: Option<Front>,
}

/// Returns the directory of the cache's file.
fn cache_folder(ground: &Ground, undo: &mut Undo) -> LabResult<PathBuf> {
    if !ground.ssd.is_block() {
        let parent = ground.ssd.path().parent();
        return parent.map(PathBuf::from).ok_or_else(|| other("a file without a directory"));
    }
    let folder = ground.folder.join("nbdkit-cache");
    fs::create_dir_all(&folder)?;
    let (ssd, place) = (ground.ssd.name(), folder.display().to_string());
    step("mkfs.ext4", ["-q", "-F", &ssd])?;
    step("mount", ["-t", "ext4", &ssd, &place])?;
    undo.push(format!("unmounting {ssd}"), move || step("umount", [&place]).map(drop));
    Ok(folder)
}

impl System for Nbdkit {
    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        if find_program("nbdkit").is_none() {
            return WhyNot::because("nbdkit is missing; install nbdkit");
        }
        if !ground.ssd.is_block() {
            return Ok(());
        }
        if !rustix::process::geteuid().is_root() {
            return WhyNot::because("with a block device as cache it needs root, to mount it");
        }
        match ["mkfs.ext4", "mount"].into_iter().find(|name| find_program(name).is_none()) {
            Some(name) => WhyNot::because(format!("{name} is missing")),
            None => Ok(()),
        }
    }

    fn set_up(&mut self, mode: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let cache = cache_folder(ground, undo)?;
        let socket = ground.folder.join("nbdkit.sock");
        let mut command = Command::new("nbdkit");
        command.args(["--foreground", "--filter=cache", "--unix"]).arg(&socket);
        command.arg("file").arg(ground.hdd.path());
        command.arg(format!("cache={}", mode.name())).arg("cache-on-read=true");
        command.arg(format!("cache-max-size={}", ground.ssd.size() / 100 * SHARE));
        command.env("TMPDIR", &cache);
        let log = ground.folder.join("nbdkit.log");
        let mut child = process::spawn(&mut command, &log)?;
        let path = socket.clone();
        undo.push("ending nbdkit", move || {
            process::end(&mut child, Signal::TERM, PATIENCE)?;
            let _ = fs::remove_file(&path);
            Ok(())
        });
        let start = std::time::Instant::now();
        let front = Front::Nbd { socket: socket.clone(), export: String::new() };
        ground.stop.wait("nbdkit to start", STEP_LIMIT, || {
            let ready = blocks::open(&front).is_ok();
            if !ready && start.elapsed().as_secs() > 60 {
                let said = fs::read_to_string(&log).unwrap_or_default();
                return Err(other(format!("nbdkit: {}", said.lines().last().unwrap_or_default())));
            }
            Ok(ready)
        })?;
        self.front = Some(front.clone());
        Ok(front)
    }

    fn drain(&mut self, _: &Ground) -> LabResult<()> {
        // It writes back when a client flushes.
        match &self.front {
            Some(front) => blocks::open(front)?.flush(),
            None => Ok(()),
        }
    }
}
