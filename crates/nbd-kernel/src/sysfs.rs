//! The kernel's data about the devices of its NBD client, below `/sys/block`.

use std::fs;
use std::io;
use std::path::PathBuf;

use forebay_core::SECTOR_SIZE;
use forebay_host::files::{numbers, text};

/// Highest number of a new device.
const HIGHEST: u32 = 1023;

/// Returns the path of a device.
pub(crate) fn path(number: u32) -> PathBuf {
    PathBuf::from(format!("/dev/nbd{number}"))
}

fn fact(number: u32, name: &str) -> Option<String> {
    text(format!("/sys/block/nbd{number}/{name}"))
}

/// Returns the text that the kernel stores with the device of a mark.
pub(crate) fn identifier(mark: u64) -> String {
    format!("forebay {mark:016x}")
}

/// Returns whether the kernel stores this mark with a device. It does so from the creation until
/// the device has ended and no program has it open.
pub(crate) fn has_mark(number: u32, mark: u64) -> bool {
    fact(number, "backend").is_some_and(|text| text == identifier(mark))
}

/// Finds the device with a mark, see [`has_mark`].
pub(crate) fn find(mark: u64) -> Option<u32> {
    numbers("/sys/block", "nbd").into_iter().find(|number| has_mark(*number, mark))
}

/// Returns numbers of devices that appear to be unused. The kernel creates missing devices.
pub(crate) fn unused() -> impl Iterator<Item = u32> {
    (0..=HIGHEST).filter(|number| fact(*number, "pid").is_none())
}

/// Returns whether the kernel treats a device as one with a volatile write cache, and flushes it.
pub(crate) fn flushes(number: u32) -> bool {
    fact(number, "queue/write_cache").is_some_and(|text| text == "write back")
}

/// Returns the bytes of a device.
pub(crate) fn size(number: u32) -> Option<u64> {
    fact(number, "size")?.parse::<u64>().ok()?.checked_mul(SECTOR_SIZE)
}

/// Sets after how many milliseconds the kernel looks after a request.
///
/// # Errors
/// The error of the system.
pub(crate) fn set_timeout(number: u32, milliseconds: u32) -> io::Result<()> {
    fs::write(format!("/sys/block/nbd{number}/queue/io_timeout"), milliseconds.to_string())
}
