//! Tells udev that it should look at a device again: the daemon keeps devices open, so that udev
//! does not notice by itself that one was formatted.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

use forebay_admin::VolumeReport;

use forebay_daemon::devices::{DeviceName, NO_CACHE};

/// Announces the devices of a new volume, as far as the caller may.
pub(crate) fn announce(report: &VolumeReport) {
    for device in [&report.cache.path, &report.origin.path] {
        let name = DeviceName::parse("device", device).ok().filter(|_| device != NO_CACHE);
        let Some(path) = name.and_then(|name| name.path) else { continue };
        let Ok(metadata) = fs::metadata(path) else { continue };
        if metadata.file_type().is_block_device() {
            let number = metadata.rdev();
            let (major, minor) = (rustix::fs::major(number), rustix::fs::minor(number));
            // Without the permission the device is announced at the next boot.
            let _ = fs::write(format!("/sys/dev/block/{major}:{minor}/uevent"), "change");
        }
    }
}
