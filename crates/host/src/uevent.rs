//! Makes udev examine a device again. The daemon keeps devices open, so udev does not notice by
//! itself that one was formatted.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use crate::sysfs;

/// Announces a change of a block device, if permissions allow it. Has no effect on other files.
pub fn announce(device: &Path) {
    let Ok(metadata) = fs::metadata(device) else { return };
    if metadata.file_type().is_block_device() {
        // Without the permission the device is announced at the next boot.
        let _ = fs::write(sysfs::of_number(metadata.rdev()).join("uevent"), "change");
    }
}
