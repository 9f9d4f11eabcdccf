//! Data of a device that the lanes serve, and the kernel's facts about devices.

use std::fs;
use std::path::Path;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use forebay_export::volume_devices::Made;
use forebay_host::files::{number, numbers};
use forebay_host::sysfs;
use parking_lot::Mutex;

use crate::control::{self, survives};
use crate::helper::path;
use crate::queues::Queues;
use crate::wire::DeviceInfo;

/// Time limit for the lanes to begin or to end.
pub(crate) const LANES: Duration = Duration::from_secs(5);
/// Time in milliseconds after which an older kernel notices that a server has ended that held all
/// requests of a queue.
const NOTICED: &str = "5000";

/// A take-over that has failed but can be continued: see [`crate::recovery`].
pub(crate) struct TakeOver {
    /// The mark of the device.
    pub(crate) mark: u64,
    /// See [`control::resets`].
    pub(crate) resets: bool,
    pub(crate) queues: Queues,
}

/// Data of a device that the lanes serve.
pub(crate) struct Served {
    /// Number that the kernel gives to each block device and never reuses; `None` before Linux
    /// 5.15.
    pub(crate) sequence: Option<u64>,
    /// Disconnected when no lane serves the device any more.
    pub(crate) ended: Mutex<Receiver<()>>,
}

/// Returns a device that the lanes serve.
pub(crate) fn started_with(info: DeviceInfo, queues: Queues) -> Made<Served> {
    let device = path(info.number);
    let survives = survives(&info);
    // The write fails where sysfs is read-only; a udev rule sets the time there.
    if survives {
        let _ = fs::write(sysfs::of_disk(&device).join("queue/io_timeout"), NOTICED);
    }
    let own = Served { sequence: sequence(&device), ended: Mutex::new(queues.into_end()) };
    Made { number: info.number, survives, own }
}

/// Returns the present sequence number of a block device, see [`Served::sequence`].
pub(crate) fn sequence(device: &Path) -> Option<u64> {
    number(sysfs::of_disk(device).join("diskseq"))
}

/// Finds the device with a mark.
pub(crate) fn find(mark: u64) -> Option<u32> {
    let mut numbers = numbers("/sys/class/ublk-char", "ublkc").into_iter();
    numbers.find(|number| control::owned(*number, mark).is_ok())
}
