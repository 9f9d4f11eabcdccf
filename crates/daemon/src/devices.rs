//! Devices as the operator names them, and whether two names share bytes.

use std::fs::{self, Metadata};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use forebay_admin::{ApiError, ErrorKind};
use forebay_device::{DeviceSpec, RemoteName};
use forebay_host::sysfs;

/// A device as the operator named it, parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeviceName {
    /// The whole name with an absolute path, so that it does not depend on the working directory.
    pub text: String,
    /// The file or block device; `None` for RAM and for devices of other machines.
    pub path: Option<PathBuf>,
    /// The device on another machine.
    pub remote: Option<RemoteName>,
    /// Whether a missing file is created.
    sized: bool,
}

impl DeviceName {
    /// Parses a name; `field` is the option it was given with.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if it is not a [`DeviceSpec`].
    pub fn parse(field: &str, text: &str) -> Result<Self, ApiError> {
        if text.contains(char::is_control) {
            let reason = "the name of the device contains a control character";
            return Err(ApiError::invalid(field, reason));
        }
        let spec: DeviceSpec = text.parse().map_err(|error| ApiError::invalid(field, error))?;
        let spec = spec.absolute().map_err(|error| ApiError::invalid(field, error))?;
        let (text, path) = (spec.to_string(), spec.path().map(Path::to_owned));
        Ok(DeviceName { text, path, remote: spec.remote().cloned(), sized: spec.has_size() })
    }

    /// Parses the name of an origin, which must be persistent.
    ///
    /// # Errors
    /// See [`DeviceName::parse`], or the origin is RAM.
    pub fn parse_origin(field: &str, text: &str) -> Result<Self, ApiError> {
        let name = DeviceName::parse(field, text)?;
        if name.path.is_none() && name.remote.is_none() {
            let reason = "RAM cannot be an origin: everything would be lost when the volume is \
                stopped; name a file, a block device, an export of an NBD server, or an image of Ceph";
            return Err(ApiError::invalid(field, reason));
        }
        Ok(name)
    }

    /// Resolves the name to the bytes behind it; `None` for RAM. Does not contact other machines.
    ///
    /// # Errors
    /// See [`DeviceKey::of`], except that a file with a given size may be missing.
    pub fn place(&self, field: &str) -> Result<Option<DeviceKey>, ApiError> {
        if let Some(name) = &self.remote {
            return Ok(Some(DeviceKey::Remote(name.clone())));
        }
        let Some(path) = &self.path else { return Ok(None) };
        let absent = || matches!(path.try_exists(), Ok(false));
        if self.sized && absent() {
            return Ok(Some(DeviceKey::Planned(path.clone())));
        }
        DeviceKey::of(field, path).map(Some)
    }
}

/// The bytes behind a path, independent of its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceKey {
    /// A file that will be created.
    Planned(PathBuf),
    /// A regular file: filesystem and inode number.
    File(u64, u64),
    /// A device on another machine.
    Remote(RemoteName),
    /// A block device.
    Block {
        /// The device number.
        number: u64,
        /// The device number of the whole disk, if this is a partition.
        whole: Option<u64>,
        /// The backing file, if this is a loop device.
        backing: Option<(u64, u64)>,
    },
}

impl DeviceKey {
    /// Resolves a path.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] if nothing exists at the path, or something that cannot be a device.
    pub fn of(field: &str, path: &Path) -> Result<Self, ApiError> {
        let metadata = fs::metadata(path).map_err(|error| {
            let message = format!("{field}: {}: {error}", path.display());
            let kind = match error.kind() {
                std::io::ErrorKind::PermissionDenied => ErrorKind::Failed,
                _ => ErrorKind::Invalid,
            };
            ApiError::new(kind, message).about(field)
        })?;
        let kind = metadata.file_type();
        if kind.is_file() {
            return Ok(DeviceKey::File(metadata.dev(), metadata.ino()));
        }
        if kind.is_block_device() {
            return Ok(DeviceKey::block(&metadata));
        }
        let what = match () {
            () if kind.is_dir() => "a directory",
            () if kind.is_fifo() => "a FIFO",
            () if kind.is_char_device() => "a character device",
            () if kind.is_socket() => "a socket",
            () => "neither file nor block device",
        };
        let path = path.display();
        Err(ApiError::invalid(field, format!("{path} is {what}; name a file or a block device")))
    }

    fn block(metadata: &Metadata) -> Self {
        let number = metadata.rdev();
        let own = sysfs::of_number(number);
        let is_partition = own.join("partition").exists();
        let whole = is_partition.then(|| sysfs::number_of(&own.join(".."))).flatten();
        let backing = sysfs::backing_file(&own)
            .and_then(|path| fs::metadata(path).ok())
            .map(|file| (file.dev(), file.ino()));
        DeviceKey::Block { number, whole, backing }
    }

    /// Whether the two share bytes, as far as names can show.
    pub fn overlaps(&self, other: &DeviceKey) -> bool {
        match (self, other) {
            (DeviceKey::File(..), DeviceKey::File(..))
            | (DeviceKey::Planned(_), DeviceKey::Planned(_)) => self == other,
            (DeviceKey::Remote(one), DeviceKey::Remote(other)) => one.is_same(other),
            (DeviceKey::Remote(_), _) | (_, DeviceKey::Remote(_)) => false,
            (DeviceKey::Planned(_), _) | (_, DeviceKey::Planned(_)) => false,
            (DeviceKey::File(device, inode), DeviceKey::Block { backing, .. })
            | (DeviceKey::Block { backing, .. }, DeviceKey::File(device, inode)) => {
                *backing == Some((*device, *inode))
            }
            (
                DeviceKey::Block { number, whole, backing },
                DeviceKey::Block { number: other, whole: other_whole, backing: other_backing },
            ) => {
                number == other
                    || *whole == Some(*other)
                    || *other_whole == Some(*number)
                    || (backing.is_some() && backing == other_backing)
            }
        }
    }
}

/// The cache device of a volume without one. A file of this name is written `./none`.
pub const NO_CACHE: &str = "none";

/// Returns the path of a device that is a file or a block device.
pub fn path_of(device: &str) -> Option<PathBuf> {
    if device == NO_CACHE {
        return None;
    }
    DeviceName::parse("device", device).ok()?.path
}

/// Returns whether a device is absent at present, although it may appear later, for example while a
/// machine boots.
pub fn is_missing(device: &str) -> bool {
    device != NO_CACHE
        && DeviceName::parse("device", device)
            .is_ok_and(|name| name.path.is_some() && name.place("device").is_err())
}

/// Returns the name of a cache device as it is stored: with an absolute path, or [`NO_CACHE`].
///
/// # Errors
/// See [`DeviceName::parse`].
pub fn cache_device(field: &str, text: &str) -> Result<String, ApiError> {
    match text {
        NO_CACHE => Ok(NO_CACHE.to_owned()),
        _ => match DeviceName::parse(field, text)? {
            DeviceName { remote: None, text, .. } => Ok(text),
            _ => {
                let reason = "a device of another machine cannot be a cache device, which has to be fast \
                    and to belong to this machine alone; name a file or a block device";
                Err(ApiError::invalid(field, reason))
            }
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::TempDir;

    #[test]
    fn names_become_absolute_and_keep_their_parts() {
        for (text, path) in [
            ("/a/b", Some("/a/b")),
            ("hdd7200:/a", Some("/a")),
            ("pcie-ssd:/a,size=1G", Some("/a")),
            ("faulty:/a,control=/b", Some("/a")),
            ("ram:1G", None),
            ("hdd7200:ram:1G", None),
        ] {
            let device = DeviceName::parse("origin", text).expect(text);
            assert_eq!((device.text.as_str(), device.path.as_deref()), (text, path.map(Path::new)));
        }
        let planned = DeviceName::parse("origin", "/nonexistent,size=1G").expect("good");
        let place = DeviceKey::Planned(PathBuf::from("/nonexistent"));
        assert_eq!(planned.place("origin"), Ok(Some(place)));
        assert!(
            DeviceName::parse("origin", "/nonexistent").expect("good").place("origin").is_err()
        );
        for (device, missing) in [
            ("/nonexistent", true),
            ("/nonexistent,size=1G", false),
            ("ram:1G", false),
            (NO_CACHE, false),
            ("/dev/null", true),
            ("/proc/self/exe", false),
        ] {
            assert_eq!(is_missing(device), missing, "{device}");
        }
        let missing = DeviceName::parse("origin", "faulty:/nonexistent,control=/a").expect("good");
        assert!(missing.place("origin").is_err(), "no size, so nothing is planned");
        let here = std::env::current_dir().expect("there is one");
        let device = DeviceName::parse("origin", "sata-ssd:x").expect("good");
        assert_eq!(device.text, format!("sata-ssd:{}", here.join("x").display()));
    }

    #[test]
    fn names_that_mean_nothing_are_refused() {
        for bad in [
            "",
            "ram:",
            "ram:-1",
            "ram:1e30",
            "ram:10 GB",
            "ram:18446744073709551616",
            "hdd7200:",
            "/a,size=",
            "/a,size=x",
            "/a\n",
        ] {
            let error = DeviceName::parse("cache", bad).expect_err(bad);
            assert_eq!((error.kind, error.field.as_deref()), (ErrorKind::Invalid, Some("cache")));
        }
    }

    #[test]
    fn links_lead_to_the_same_place_and_other_things_are_no_devices() {
        let dir = TempDir::new("places");
        let [file, link, hard, other] =
            ["file", "link", "hard", "other"].map(|name| dir.path().join(name));
        fs::write(&file, "x").expect("writable");
        fs::write(&other, "x").expect("writable");
        std::os::unix::fs::symlink(&file, &link).expect("writable");
        fs::hard_link(&file, &hard).expect("writable");
        let place = |path: &Path| DeviceKey::of("origin", path).expect("a file");
        assert!(place(&file).overlaps(&place(&link)) && place(&hard).overlaps(&place(&file)));
        assert!(!place(&file).overlaps(&place(&other)));
        for bad in [dir.path(), Path::new("/dev/null"), Path::new("/nonexistent")] {
            let error = DeviceKey::of("origin", bad).expect_err("no device");
            assert_eq!(error.kind, ErrorKind::Invalid, "{error}");
        }
    }

    #[test]
    fn partitions_overlap_their_disk_and_loops_their_file() {
        let block = |number, whole, backing| DeviceKey::Block { number, whole, backing };
        let disk = block(16, None, None);
        let (one, two) = (block(17, Some(16), None), block(18, Some(16), None));
        let looped = block(7, None, Some((1, 2)));
        assert!(disk.overlaps(&one) && two.overlaps(&disk) && one.overlaps(&one));
        assert!(!one.overlaps(&two) && !disk.overlaps(&looped));
        assert!(looped.overlaps(&DeviceKey::File(1, 2)) && DeviceKey::File(1, 2).overlaps(&looped));
        assert!(looped.overlaps(&block(8, None, Some((1, 2)))));
        assert!(!looped.overlaps(&DeviceKey::File(1, 3)));
    }
}
