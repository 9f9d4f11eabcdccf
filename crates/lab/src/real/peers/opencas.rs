//! Open CAS, by `casadm`. Debian has no package of it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::disk::Disk;
use super::dm;
use super::host::load_module;
use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::{LabResult, other};
use crate::process::{STEP_LIMIT, find_program, step};

/// The number of the cache, which is unlikely to be taken.
const CACHE: &str = "4096";

#[derive(Default)]
pub(crate) struct OpenCas;

/// Returns the persistent name of a device, which `casadm` requires.
fn by_id(disk: &Disk) -> Option<PathBuf> {
    let links = fs::read_dir("/dev/disk/by-id").ok()?.flatten().map(|entry| entry.path());
    links.into_iter().find(|link| fs::canonicalize(link).is_ok_and(|path| path == disk.path()))
}

/// Returns the persistent name, or the reason why the system cannot run.
fn name(disk: &Disk) -> Result<String, WhyNot> {
    match by_id(disk) {
        Some(path) => Ok(path.display().to_string()),
        None => WhyNot::because(format!("{} has no name in /dev/disk/by-id", disk.name())),
    }
}

impl System for OpenCas {
    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        dm::block_devices(ground)?;
        if find_program("casadm").is_none() {
            return WhyNot::because("casadm is missing; Debian has no package of Open CAS");
        }
        load_module("cas_cache");
        if !Path::new("/dev/cas_ctrl").exists() {
            return WhyNot::because("the kernel module cas_cache is missing");
        }
        name(&ground.ssd).and_then(|_| name(&ground.hdd)).map(drop)
    }

    fn set_up(&mut self, mode: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let named = |disk| name(disk).map_err(|why| other(why.to_string()));
        let (ssd, hdd) = (named(&ground.ssd)?, named(&ground.hdd)?);
        let short = if mode == Mode::Writeback { "wb" } else { "wt" };
        step("casadm", ["-S", "-i", CACHE, "-d", &ssd, "-c", short, "--force"])?;
        undo.push("stopping the cache of Open CAS", || {
            step("casadm", ["-T", "-i", CACHE, "--no-data-flush"]).map(drop)
        });
        step("casadm", ["-A", "-i", CACHE, "-j", "1", "-d", &hdd])?;
        let params = ["-X", "-n", "seq-cutoff", "-i", CACHE, "-j", "1", "-p", "never"];
        step("casadm", params)?;
        Ok(Front::Block(PathBuf::from(format!("/dev/cas{CACHE}-1"))))
    }

    fn drain(&mut self, ground: &Ground) -> LabResult<()> {
        let mut command = Command::new("casadm");
        command.args(["-F", "-i", CACHE]);
        ground.stop.run(&mut command, STEP_LIMIT * 10).map(drop)
    }
}
