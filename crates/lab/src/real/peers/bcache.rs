//! bcache, by its files in sysfs. Its bypass of sequential and of slow requests is switched off,
//! as in the published comparison, which compares caches.

use std::fs;
use std::path::{Path, PathBuf};

use super::disk::Disk;
use super::dm;
use super::host::{get, load_module, put};
use super::system::{Front, Ground, Mode, System, WhyNot};
use super::undo::Undo;
use crate::error::{LabResult, other};
use crate::process::{STEP_LIMIT, Stop, find_program, step};

const REGISTER: &str = "/sys/fs/bcache/register";
/// Bytes before the data on the origin.
const HEADER: u64 = 8192;

/// Returns the bytes of a bucket on a cache device of this size: 512 KiB, or less if there would be
/// fewer than the thousand buckets that the kernel requires.
fn bucket(size: u64) -> u64 {
    let most = (size / 1024).max(1);
    (1 << most.ilog2()).clamp(16 << 10, 512 << 10)
}

#[derive(Default)]
pub(crate) struct Bcache {
    /// The directory of the origin, while it is set up.
    backing: Option<PathBuf>,
}

/// The directory of bcache about a device; it is there while the device is registered.
fn folder(disk: &Disk) -> LabResult<PathBuf> {
    let about = disk.about().ok_or_else(|| other("bcache needs block devices"))?;
    Ok(about.join("bcache"))
}

/// Registers a device, unless udev was faster.
fn register(disk: &Disk, undo: &mut Undo) -> LabResult<PathBuf> {
    let folder = folder(disk)?;
    let (about, disk_again) = (folder.clone(), disk.clone());
    undo.push(format!("stopping bcache on {}", disk.name()), move || {
        stop(&about, &disk_again)?;
        // Otherwise udev might start it again.
        disk_again.wipe_first(HEADER)
    });
    if !folder.exists()
        && let Err(error) = put(REGISTER, &disk.name())
        && !folder.exists()
    {
        return Err(error);
    }
    Ok(folder)
}

/// Stops the cache of a cache device, or the device of an origin, and waits until it is gone.
fn stop(folder: &Path, disk: &Disk) -> LabResult<()> {
    for handle in ["set/stop", "stop"] {
        let handle = folder.join(handle);
        if handle.exists() {
            put(handle, "1")?;
        }
    }
    // This must not be interrupted. The directory goes before the device is released.
    Stop::default()
        .wait("stopping bcache", STEP_LIMIT, || Ok(!folder.exists() && disk.claim().is_ok()))
}

impl System for Bcache {
    fn available(&self, ground: &Ground) -> Result<(), WhyNot> {
        dm::block_devices(ground)?;
        if find_program("make-bcache").is_none() {
            return WhyNot::because("make-bcache is missing; install bcache-tools");
        }
        load_module("bcache");
        if !Path::new(REGISTER).exists() {
            return WhyNot::because("this kernel has no bcache");
        }
        Ok(())
    }

    fn set_up(&mut self, mode: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front> {
        let (ssd, hdd) = (&ground.ssd, &ground.hdd);
        // Both at once: the origin belongs to the cache from the start.
        step(
            "make-bcache",
            [
                "--bucket",
                &bucket(ssd.size()).to_string(),
                "--block",
                "4k",
                "-C",
                &ssd.name(),
                "-B",
                &hdd.name(),
            ],
        )?;
        let cache = register(ssd, undo)?;
        let backing = register(hdd, undo)?;
        ground.stop.wait("bcache to attach", STEP_LIMIT, || {
            Ok(backing.join("dev").exists() && get(backing.join("state"))? != "no cache")
        })?;
        put(backing.join("cache_mode"), mode.name())?;
        put(backing.join("sequential_cutoff"), "0")?;
        put(cache.join("set/congested_read_threshold_us"), "0")?;
        put(cache.join("set/congested_write_threshold_us"), "0")?;
        let device = fs::canonicalize(backing.join("dev"))?;
        let name = device.file_name().ok_or_else(|| other("bcache has a device without a name"))?;
        self.backing = Some(backing);
        Ok(Front::Block(Path::new("/dev").join(name)))
    }

    fn drain(&mut self, ground: &Ground) -> LabResult<()> {
        let Some(backing) = &self.backing else { return Ok(()) };
        // As fast as the disk can: without a target there is no rate to keep to.
        put(backing.join("writeback_percent"), "0")?;
        put(backing.join("detach"), "1")?;
        ground.stop.wait("bcache's writeback", STEP_LIMIT * 10, || {
            Ok(get(backing.join("state"))? == "no cache")
        })
    }

    fn origin_offset(&self) -> Option<u64> {
        Some(HEADER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_a_thousand_buckets_or_they_are_as_large_as_usual() {
        for (size, kib) in [(64 << 20, 64), (100 << 20, 64), (128 << 20, 128), (1 << 40, 512)] {
            assert_eq!(bucket(size), kib << 10, "{size}");
        }
    }
}
