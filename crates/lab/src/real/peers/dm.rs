//! Device-mapper devices: made of a table, asked for their status, removed. A prefix tells ours
//! from others.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::host::{get, load_module};
use super::system::{Ground, WhyNot};
use super::undo::Undo;
use crate::error::{LabResult, other};
use crate::process::{find_program, step_command};

/// The first part of the name of every device that is made here.
pub(crate) const PREFIX: &str = "forebay-peer-";

/// Whether `dmsetup` and a target are there; loads the module.
pub(crate) fn available(ground: &Ground, module: &str, target: &str) -> Result<(), WhyNot> {
    block_devices(ground)?;
    if find_program("dmsetup").is_none() {
        return WhyNot::because("dmsetup is missing; install dmsetup");
    }
    load_module(module);
    let targets = dmsetup(["targets"]).map_err(|error| WhyNot(error.to_string()))?;
    if targets.split_whitespace().step_by(2).any(|name| name == target) {
        return Ok(());
    }
    WhyNot::because(format!("this kernel has no target '{target}' (module {module})"))
}

/// Whether both devices are block devices and we are root: what every cache of the kernel needs.
pub(crate) fn block_devices(ground: &Ground) -> Result<(), WhyNot> {
    if !rustix::process::geteuid().is_root() {
        return WhyNot::because("it needs root");
    }
    if !ground.ssd.is_block() || !ground.hdd.is_block() {
        return WhyNot::because("it needs block devices, and a file was given");
    }
    Ok(())
}

/// Runs `dmsetup`; returns what it prints.
fn dmsetup<const N: usize>(words: [&str; N]) -> LabResult<String> {
    let mut command = Command::new("dmsetup");
    command.args(words);
    if !Path::new("/run/udev/control").exists() {
        // Without udev, dmsetup has to make the nodes.
        command.env("DM_DISABLE_UDEV", "1");
    }
    step_command(&mut command)
}

/// Makes a device of one line of a table, which starts with the length in sectors.
pub(crate) fn create(name: &str, table: &str, undo: &mut Undo) -> LabResult<PathBuf> {
    let name = format!("{PREFIX}{name}");
    dmsetup(["create", &name, "--table", &format!("0 {table}")])?;
    let path = PathBuf::from("/dev/mapper").join(&name);
    undo.push(format!("removing {name}"), move || {
        // A program that looks at new devices, such as udev, may have it open for a moment.
        dmsetup(["remove", "--retry", &name]).map(drop)
    });
    if !path.exists() {
        return Err(other(format!("{} has not appeared", path.display())));
    }
    Ok(path)
}

/// The words of a device's status after its target's name.
pub(crate) fn status(name: &str) -> LabResult<Vec<String>> {
    let text = dmsetup(["status", &format!("{PREFIX}{name}")])?;
    Ok(text.split_whitespace().skip(3).map(str::to_owned).collect())
}

/// One number of a status.
pub(crate) fn number(status: &[String], index: usize) -> LabResult<u64> {
    let number = status.get(index).and_then(|word| word.parse().ok());
    number.ok_or_else(|| other(format!("an unexpected status: {}", status.join(" "))))
}

/// Sends a message to the target.
pub(crate) fn message(name: &str, text: &str) -> LabResult<()> {
    dmsetup(["message", &format!("{PREFIX}{name}"), "0", text]).map(drop)
}

/// Gives a device another table.
/// Errors: The kernel refuses it; the device then keeps the old one.
pub(crate) fn reload(name: &str, table: &str) -> LabResult<()> {
    let name = format!("{PREFIX}{name}");
    dmsetup(["suspend", &name])?;
    let loaded = dmsetup(["reload", &name, "--table", &format!("0 {table}")]);
    dmsetup(["resume", &name])?;
    loaded.map(drop)
}

/// Returns our device-mapper devices that exist.
pub(crate) fn left_over() -> Vec<String> {
    let Ok(devices) = fs::read_dir("/sys/block") else { return Vec::new() };
    let names = devices.flatten().filter_map(|device| get(device.path().join("dm/name")).ok());
    names.filter(|name| name.starts_with(PREFIX)).collect()
}
