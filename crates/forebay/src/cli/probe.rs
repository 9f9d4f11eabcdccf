//! `forebay probe`: prints the role of a block device for Forebay: a cache device, the origin of a
//! volume, or the block device of one. Reads a few pages and files, changes nothing, and needs no
//! daemon. Called by udev for each block device (`dist/65-forebay.rules`).

use std::fmt::Write as _;
use std::fs::{self, File};
use std::io::{Seek, SeekFrom};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use clap::{Args, ValueHint};
use forebay_admin::{ApiError, VolumeName};
use forebay_core::text::one_line;
use forebay_device::blkid;
use forebay_device::loop_device::{self, LoopNumber};
use forebay_format::superblock::{COPY_A, COPY_B, MAGIC};
use forebay_format::{PAGE, Superblock};
use forebay_host::sysfs;

use crate::exit::VerbResult;
use crate::output::print_text;
use crate::paths;
use forebay_daemon::content::DeviceContent;
use forebay_daemon::devices::{DeviceKey, DeviceName};
use forebay_daemon::{may_be_dirty, peek_state};

/// Arguments of `probe`.
#[derive(Debug, Args)]
pub(crate) struct ProbeArgs {
    /// The device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) device: PathBuf,

    /// For a rule of udev: print nothing if it is nothing, and never fail
    #[arg(long)]
    pub(crate) udev: bool,

    /// Print its content instead, as create judges it: blank, content of other systems, or of an
    /// unknown kind
    #[arg(long, conflicts_with = "udev")]
    pub(crate) content: bool,

    /// Directory of the daemon's state, which names origins [default: as 'forebay daemon']
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,
}

/// Names of properties for udev, and their values.
type Properties = Vec<(&'static str, String)>;

/// Prints the role of a device. With `--udev` it never fails: a device that cannot be read has no
/// role.
pub(crate) fn run(args: &ProbeArgs) -> VerbResult {
    if args.content {
        DeviceKey::of("DEVICE", &args.device)?;
        return print_text(&format!("{}\n", content(&args.device)?));
    }
    match look(args) {
        Ok(found) => print_text(&render(&found, args.udev)),
        Err(_) if args.udev => Ok(()),
        Err(error) => Err(error),
    }
}

fn render(found: &Properties, udev: bool) -> String {
    if found.is_empty() && !udev {
        return "nothing of Forebay's\n".to_owned();
    }
    let mut text = String::new();
    for (name, value) in found {
        let _ = writeln!(text, "{name}={value}");
    }
    text
}

fn look(args: &ProbeArgs) -> Result<Properties, ApiError> {
    let place = DeviceKey::of("DEVICE", &args.device)?;
    if let Some(volume) = volume_of(&args.device) {
        return Ok(vec![("FOREBAY_VOLUME", volume.to_string())]);
    }
    let found = cache(&args.device)
        .map_err(|error| paths::io_error("cannot read", &args.device, &error))?;
    if !found.is_empty() {
        return Ok(found);
    }
    let links = std::env::var("DEVLINKS").unwrap_or_default();
    let mut names: Vec<PathBuf> = links.split_whitespace().map(PathBuf::from).collect();
    names.push(args.device.clone());
    origin(&paths::state_dir(args.state_dir.clone())?, &place, &names)
}

/// Returns the volume whose block device this is: a loop device on a file of its name that the
/// daemon exports.
fn volume_of(device: &Path) -> Option<VolumeName> {
    let own = sysfs::directory(fs::metadata(device).ok()?.rdev())?;
    let file = sysfs::backing_file(&own)?;
    let name = own.file_name()?.to_str()?;
    let number = LoopNumber(name.strip_prefix("loop")?.parse().ok()?);
    let is_known = |mark: &str| match mark.parse::<u64>() {
        Ok(sequence) => number.sequence() == Some(sequence),
        Err(_) => loop_device::file_system(number).is_ok_and(|(found, _)| found == mark),
    };
    exported(file.to_str()?, name, |link| fs::read_link(link).ok(), is_known)
}

/// Returns the volume that a file below a daemon's directory for exports belongs to, if the daemon
/// has noted that in its private directory under the name of the device, with a mark that the
/// device has: another mount namespace has a file of that path as well, and another device may have
/// the name by now. The daemon of the initramfs has a tree of its own.
fn exported(
    file: &str,
    device: &str,
    read_link: impl Fn(&Path) -> Option<PathBuf>,
    is_known: impl Fn(&str) -> bool,
) -> Option<VolumeName> {
    let (tree, own) = match file.strip_prefix("/run/initramfs/forebay") {
        Some(own) => ("/run/initramfs/forebay", own),
        None => ("", file),
    };
    let volume: VolumeName = own.strip_prefix("/run/forebay/export/")?.parse().ok()?;
    let noted = read_link(Path::new(&format!("{tree}/run/forebay/fuse/{device}")))?;
    let (name, mark) = noted.to_str()?.split_once(' ')?;
    (name == volume.as_str() && is_known(mark)).then_some(volume)
}

/// Describes the content of a device.
fn content(device: &Path) -> Result<String, ApiError> {
    let unreadable = |error| paths::io_error("cannot read", device, &error);
    if !cache(device).map_err(unreadable)?.is_empty() {
        return Ok("a Forebay cache".to_owned());
    }
    let mut file = File::open(device).map_err(unreadable)?;
    let size = file.seek(SeekFrom::End(0)).map_err(unreadable)?;
    let marks = || blkid::marks(file.as_fd()).ok();
    let content = DeviceContent::look(size, &[], marks, |at, len| {
        let mut bytes = vec![0; len];
        file.read_exact_at(&mut bytes, at).map(|()| bytes)
    });
    let content = content.map_err(unreadable)?;
    let is_blank = content.blank && content.marks.is_empty();
    Ok(if is_blank { "blank".to_owned() } else { content.describe() })
}

/// Looks for the superblocks of a cache device. A device with a damaged superblock still counts as
/// a cache device.
fn cache(device: &Path) -> std::io::Result<Properties> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblock).open(device)?;
    let page = |at| {
        let mut bytes = vec![0; PAGE];
        file.read_exact_at(&mut bytes, at).map(|()| bytes)
    };
    let (first, second) = (page(COPY_A), page(COPY_B));
    let has_magic = |page: &std::io::Result<Vec<u8>>| {
        page.as_ref().is_ok_and(|bytes| bytes.starts_with(&MAGIC))
    };
    if !has_magic(&first) && !has_magic(&second) {
        // A device that is shorter is no cache; one that cannot be read is reported.
        return match first {
            Err(error) if error.kind() != std::io::ErrorKind::UnexpectedEof => Err(error),
            _ => Ok(Vec::new()),
        };
    }
    let mut found =
        vec![("ID_FS_TYPE", "forebay_cache".to_owned()), ("ID_FS_USAGE", "other".to_owned())];
    match Superblock::choose(&first.unwrap_or_default(), &second.unwrap_or_default()) {
        Ok(superblock) => {
            let uuid = superblock.cache.to_string();
            found.push(("ID_FS_UUID", uuid.clone()));
            found.push(("ID_FS_UUID_ENC", uuid));
        }
        Err(error) => found.push(("FOREBAY_DAMAGE", one_line(&error.to_string()))),
    }
    Ok(found)
}

/// Looks for a volume in the daemon's state whose origin this is, or is on. While udev handles an
/// event, the links to the device are only planned: `names` has them.
fn origin(state: &Path, place: &DeviceKey, names: &[PathBuf]) -> Result<Properties, ApiError> {
    for volume in peek_state(state)? {
        let Ok(name) = DeviceName::parse("origin", &volume.origin) else { continue };
        let named = name.path.as_ref().is_some_and(|path| names.contains(path));
        let same = || matches!(name.place("origin"), Ok(Some(origin)) if lies_on(place, &origin));
        if named || same() {
            let mut found = vec![("FOREBAY_ORIGIN", volume.name.to_string())];
            if may_be_dirty(state, volume.name.as_str()) {
                found.push(("FOREBAY_INCOMPLETE", "1".to_owned()));
            }
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// Whether a device is the origin or a partition of it. A disk with an origin on one of its
/// partitions is not.
fn lies_on(device: &DeviceKey, origin: &DeviceKey) -> bool {
    match (device, origin) {
        (DeviceKey::Block { number, whole, .. }, DeviceKey::Block { number: origin, .. }) => {
            number == origin || *whole == Some(*origin)
        }
        _ => device.overlaps(origin),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_testkit::TempDir;

    #[test]
    fn only_files_of_exports_are_volumes() {
        let noted = |link: &Path| match link.to_str() {
            Some("/run/forebay/fuse/loop3") => Some("a.b-c 7".into()),
            Some("/run/forebay/fuse/loop5") => Some("a.b-c 6".into()),
            Some("/run/forebay/fuse/loop6") => Some("a.b-c".into()),
            Some("/run/initramfs/forebay/run/forebay/fuse/loop3") => Some("r 7".into()),
            _ => None,
        };
        let is_known = |mark: &str| mark == "7";
        let of =
            |file, device| exported(file, device, noted, is_known).map(|name| name.to_string());
        let name = |file| of(file, "loop3");
        assert_eq!(name("/run/forebay/export/a.b-c"), Some("a.b-c".to_owned()));
        assert_eq!(name("/run/initramfs/forebay/run/forebay/export/r"), Some("r".to_owned()));
        // The same path in another mount namespace, on another device.
        assert_eq!(of("/run/forebay/export/a.b-c", "loop4"), None);
        // Another device has got the name of one that was noted, or the note has no mark.
        assert_eq!(of("/run/forebay/export/a.b-c", "loop5"), None);
        assert_eq!(of("/run/forebay/export/a.b-c", "loop6"), None);
        assert_eq!(name("/run/forebay/export/r"), None);
        for other in [
            "/run/forebay/export/",
            "/run/forebay/export/a/b",
            "/run/forebay/export/a (deleted)",
            "/x/a",
        ] {
            assert_eq!(name(other), None, "{other}");
        }
    }

    #[test]
    fn a_device_with_one_magic_is_a_cache_device_however_damaged() {
        let dir = TempDir::new("probe");
        let path = dir.path().join("d");
        let keys = |bytes: &[u8]| {
            fs::write(&path, bytes).expect("writable");
            let found = cache(&path).expect("readable");
            found.into_iter().map(|(name, _)| name).collect::<Vec<_>>()
        };
        let mut bytes = vec![0; 128 << 10];
        assert!(keys(&bytes).is_empty());
        assert!(keys(&[]).is_empty() && keys(&MAGIC).is_empty());
        bytes[COPY_B as usize..][..8].copy_from_slice(&MAGIC);
        let damaged = ["ID_FS_TYPE", "ID_FS_USAGE", "FOREBAY_DAMAGE"];
        assert_eq!(keys(&bytes), damaged);
        assert_eq!(keys(&[&MAGIC[..], &[0; 5000]].concat()), damaged);
    }

    #[test]
    fn a_partition_of_an_origin_is_on_it_and_its_disk_is_not() {
        let block = |number, whole| DeviceKey::Block { number, whole, backing: None };
        let (disk, part, other) = (block(16, None), block(17, Some(16)), block(32, None));
        assert!(lies_on(&disk, &disk) && lies_on(&part, &disk));
        assert!(!lies_on(&disk, &part) && !lies_on(&other, &disk));
        let loop_device = DeviceKey::Block { number: 7, whole: None, backing: Some((1, 2)) };
        assert!(lies_on(&loop_device, &DeviceKey::File(1, 2)));
    }

    #[test]
    fn properties_are_lines_without_quotes() {
        let found = vec![("A", "b c".to_owned()), ("D", "e".to_owned())];
        assert_eq!(render(&found, true), "A=b c\nD=e\n");
        assert_eq!(render(&Vec::new(), true), "");
        assert_eq!(render(&Vec::new(), false), "nothing of Forebay's\n");
    }
}
