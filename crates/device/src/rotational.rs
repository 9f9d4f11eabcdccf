//! The kernel's `queue/rotational`: whether distance costs time on a file or block device.

use std::fs;
use std::os::fd::AsFd;
use std::path::Path;

use forebay_host::files::number;
use forebay_host::sysfs;
use rustix::fs::{FileType, Mode, OFlags};

/// Maximum number of files with loop devices on top that are followed to the device below.
const MOST_LOOPS: u32 = 8;

/// Returns whether the file or block device open as `fd` has a head that must move; of a file, the
/// device of its filesystem. `None`: it is unknown, because the filesystem has several devices, or
/// is on another machine.
pub(crate) fn rotational(fd: impl AsFd) -> Option<bool> {
    below(Path::new("/sys/dev/block"), fd, MOST_LOOPS)
}

fn below(devices: &Path, fd: impl AsFd, loops: u32) -> Option<bool> {
    let stat = rustix::fs::fstat(fd).ok()?;
    let is_block = FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice;
    let number = if is_block { stat.st_rdev } else { stat.st_dev };
    of_device(devices, &sysfs::number_text(number), loops)
}

/// Like [`rotational`], for the block device with this name, `MAJOR:MINOR`. A device that the
/// kernel stacks on others, like those of the device mapper, has their property in its own queue.
fn of_device(devices: &Path, name: &str, loops: u32) -> Option<bool> {
    // A partition's directory is inside that of its disk, which has the queue.
    let own = fs::canonicalize(devices.join(name)).ok()?;
    let disk = sysfs::disk_of(&own);
    // Some kernels report a loop device as rotational, or not, regardless of its file's device.
    if let Some(file) = sysfs::backing_file(disk) {
        let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = rustix::fs::open(file, flags, Mode::empty()).ok()?;
        return below(devices, file, loops.checked_sub(1)?);
    }
    match number(disk.join("queue/rotational"))? {
        0 => Some(false),
        1 => Some(true),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A system's directory of block devices.
    struct Devices(tempfile::TempDir);

    impl Devices {
        fn new() -> Self {
            let folder = tempfile::tempdir().expect("folder");
            fs::create_dir(folder.path().join("links")).expect("folder");
            Devices(folder)
        }

        /// Adds a device with these files in its directory.
        fn add(&self, number: &str, directory: &str, files: &[(&str, &str)]) {
            let own = self.0.path().join(directory);
            for (name, text) in files {
                let path = own.join(name);
                fs::create_dir_all(path.parent().expect("inside")).expect("folder");
                fs::write(path, text).expect("file");
            }
            let link = self.0.path().join("links").join(number);
            std::os::unix::fs::symlink(own, link).expect("link");
        }

        fn of(&self, number: &str) -> Option<bool> {
            of_device(&self.0.path().join("links"), number, 1)
        }
    }

    #[test]
    fn the_queue_of_the_disk_tells_it_for_a_partition() {
        for (text, known) in [("1\n", Some(true)), ("0\n", Some(false)), ("maybe\n", None)] {
            let devices = Devices::new();
            devices.add("8:0", "sda", &[("queue/rotational", text)]);
            devices.add("8:1", "sda/sda1", &[("partition", "1\n")]);
            assert_eq!((devices.of("8:0"), devices.of("8:1")), (known, known));
            assert_eq!(devices.of("0:42"), None);
        }
    }

    #[test]
    fn a_loop_device_is_like_the_disk_with_its_file() {
        let devices = Devices::new();
        let image = devices.0.path().join("image");
        fs::write(&image, "").expect("file");
        let name = format!("{}\n", image.display());
        let on = rustix::fs::stat(&image).expect("it is there").st_dev;
        devices.add(&sysfs::number_text(on), "sda", &[("queue/rotational", "1\n")]);
        let files = [("loop/backing_file", name.as_str()), ("queue/rotational", "0\n")];
        devices.add("7:0", "loop0", &files);
        assert_eq!(devices.of("7:0"), Some(true));
    }
}
