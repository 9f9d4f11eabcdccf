//! The syntax of device specifications: on the command line, in settings, in benchmarks.
//!
//! | written | device |
//! |---|---|
//! | `PATH` | a regular file or a block device, links followed |
//! | `PATH,size=10G` | likewise; a missing file is created, sparse, and an existing one must have exactly that size, until the device is in use: see [`DeviceSpec::made`] |
//! | `nbd://HOST/EXPORT` and others, see [`crate::nbd_uri`] | an export of an NBD server |
//! | `rbd:POOL/IMAGE` and others, see [`crate::rbd_name`] | an image of a Ceph cluster |
//! | `ram:1G` | RAM, a new device each time, lost at the end |
//! | `hdd7200:DEVICE`, `sata-ssd:DEVICE`, `pcie-ssd:DEVICE`, `remote:DEVICE`, `remote-1g:DEVICE` | one of the above with the timing of that disk |
//! | `faulty:DEVICE`, `faulty:DEVICE,control=FILE` | for tests: one of the above with the faults in the control file `FILE`, by default the path with `.faults` added |
//!
//! A path whose first component contains a colon is written with a leading `./`. The rest of a path
//! is taken literally, commas included, unless it ends in `,size=`*something*, or in
//! `,control=`*something* after `faulty:`.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use forebay_core::parse_size;
use forebay_core::text::nearest;
use forebay_core::units::missing_unit;

use crate::api::Device;
use crate::faulty::FaultyDevice;
use crate::file::FileDevice;
use crate::model::{ModelKind, ModelledDevice};
use crate::open::{Access, DeviceIdentity, OpenError, OpenErrorKind, identity};
use crate::ram::RamDevice;
use crate::remote::{Connect, RemoteName, RemoteNameError};

const FAULTY: &str = "faulty";
/// The kinds of devices for operators.
const KINDS: [&str; 6] = ["ram", "hdd7200", "sata-ssd", "pcie-ssd", "remote", "remote-1g"];
const CONTROL_OPTION: &str = ",control=";
const SIZE_OPTION: &str = ",size=";
/// Sizes are multiples of this, in bytes.
const SIZE_UNIT: u64 = 4096;

/// The storage of the bytes.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Storage {
    Path { path: PathBuf, size: Option<u64> },
    Ram { size: u64 },
    Remote(RemoteName),
}

/// A device in the notation of operators, see the [module](self).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct DeviceSpec {
    /// The control file for faults.
    control: Option<PathBuf>,
    model: Option<ModelKind>,
    place: Storage,
}

/// Why a text is not a device.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SpecError {
    /// A path or a size is missing.
    #[error("a device is missing; write a path, or ram:SIZE")]
    Empty,
    /// An unknown kind of device before a colon.
    #[error(
        "'{0}:' is not a kind of device; choose ram, hdd7200, sata-ssd, pcie-ssd, remote or remote-1g, \
         write a URI like nbd://HOST/EXPORT or rbd:POOL/IMAGE, or a file of that name as './{0}:...'"
    )]
    UnknownKind(String),
    /// A kind of device that is spelled otherwise.
    #[error("'{0}:' is not a kind of device; did you mean '{1}:'?")]
    Misspelled(String, &'static str),
    /// A size after a name that is not a kind of device.
    #[error("'{0}:' is not a kind of device; a file of that size is written {0},size={1}")]
    SizedFile(String, String),
    /// A model of a model, or of a faulty device.
    #[error("a modelled disk can only be put in front of a path or of RAM")]
    Nested,
    /// A faulty device in RAM, which has no path for a control file.
    #[error("a faulty device without a path needs a file that controls it: add ',control=FILE'")]
    NoControl,
    /// A size that cannot be parsed, or that is not allowed for a device.
    #[error("'{0}' is not the size of a device; write a positive multiple of 4K, like 512M or 10G")]
    BadSize(String),
    /// A size that lacks a unit, as the text says.
    #[error("{0}")]
    NoUnit(String),
    /// The name of a device on another machine that has mistakes.
    #[error(transparent)]
    BadRemote(#[from] RemoteNameError),
    /// An invalid path.
    #[error("a path cannot contain a zero byte")]
    BadPath,
}

fn model_name(kind: ModelKind) -> &'static str {
    match kind {
        ModelKind::Hdd7200 => "hdd7200",
        ModelKind::SataSsd => "sata-ssd",
        ModelKind::PcieSsd => "pcie-ssd",
        ModelKind::Remote | ModelKind::RemoteGigabit => kind.as_str(),
    }
}

fn model_of(name: &str) -> Option<ModelKind> {
    ModelKind::ALL.into_iter().find(|&kind| model_name(kind) == name)
}

/// Splits off the kind before the first colon; a path with a slash before that colon has none.
fn split_kind(text: &str) -> Option<(&str, &str)> {
    text.split_once(':').filter(|(kind, _)| !kind.contains('/'))
}

fn read_size(text: &str) -> Result<u64, SpecError> {
    let fits =
        |&size: &u64| size > 0 && size.is_multiple_of(SIZE_UNIT) && i64::try_from(size).is_ok();
    parse_size(text).ok().filter(fits).ok_or_else(|| {
        missing_unit(text, |bytes| fits(&bytes))
            .map_or_else(|| SpecError::BadSize(text.chars().take(40).collect()), SpecError::NoUnit)
    })
}

/// Returns the error for a word before a colon that is not a kind of device.
fn unknown_kind(kind: &str, rest: &str) -> SpecError {
    let given = kind.chars().take(40).collect();
    if let Some(meant) = nearest(kind, KINDS.iter().copied()) {
        return SpecError::Misspelled(given, meant);
    }
    let with_unit = || read_size(&format!("{rest}G")).ok().map(exact_size);
    match read_size(rest).ok().map(exact_size).or_else(with_unit) {
        Some(size) if !kind.is_empty() => SpecError::SizedFile(given, size),
        _ => SpecError::UnknownKind(given),
    }
}

impl FromStr for DeviceSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        if let Some((FAULTY, text)) = split_kind(text) {
            return read_faulty(text);
        }
        let (model, rest) = match split_kind(text) {
            Some((kind, rest)) => match model_of(kind) {
                Some(model) => (Some(model), rest),
                None => (None, text),
            },
            None => (None, text),
        };
        let place = match split_kind(rest) {
            _ if RemoteName::is_one(rest) => Storage::Remote(rest.parse()?),
            Some(("ram", size)) => Storage::Ram { size: read_size(size)? },
            Some((kind, _)) if model.is_some() && (model_of(kind).is_some() || kind == FAULTY) => {
                return Err(SpecError::Nested);
            }
            Some((kind, rest)) => return Err(unknown_kind(kind, rest)),
            None => {
                let (path, size) = match rest.rsplit_once(SIZE_OPTION) {
                    Some((path, size)) => (path, Some(read_size(size)?)),
                    None => (rest, None),
                };
                if path.is_empty() {
                    return Err(SpecError::Empty);
                }
                if path.contains('\0') {
                    return Err(SpecError::BadPath);
                }
                Storage::Path { path: path.into(), size }
            }
        };
        Ok(DeviceSpec { control: None, model, place })
    }
}

/// Parses the text after `faulty:`.
fn read_faulty(text: &str) -> Result<DeviceSpec, SpecError> {
    let (device, control) = match text.rsplit_once(CONTROL_OPTION) {
        Some((_, "")) => return Err(SpecError::NoControl),
        Some((device, control)) => (device, Some(PathBuf::from(control))),
        None => (text, None),
    };
    if let Some((FAULTY, _)) = split_kind(device) {
        return Err(SpecError::UnknownKind(FAULTY.to_owned()));
    }
    let spec: DeviceSpec = device.parse()?;
    let beside = || spec.path().map(default_control);
    let control = control.or_else(beside).ok_or(SpecError::NoControl)?;
    Ok(DeviceSpec { control: Some(control), ..spec })
}

/// Returns the default control file of the faulty device at `path`.
fn default_control(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".faults");
    name.into()
}

/// Formats a size in the largest unit that expresses it exactly.
fn exact_size(bytes: u64) -> String {
    [("P", 50), ("T", 40), ("G", 30), ("M", 20), ("K", 10)]
        .into_iter()
        .find(|(_, shift)| bytes.trailing_zeros() >= *shift && bytes > 0)
        .map_or_else(|| bytes.to_string(), |(unit, shift)| format!("{}{unit}", bytes >> shift))
}

impl fmt::Display for DeviceSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.control.is_some() {
            write!(f, "{FAULTY}:")?;
        }
        if let Some(model) = self.model {
            write!(f, "{}:", model_name(model))?;
        }
        match &self.place {
            Storage::Ram { size } => write!(f, "ram:{}", exact_size(*size)),
            Storage::Remote(name) => write!(f, "{name}"),
            Storage::Path { path, size: None } => write!(f, "{}", path.display()),
            Storage::Path { path, size: Some(size) } => {
                write!(f, "{}{SIZE_OPTION}{}", path.display(), exact_size(*size))
            }
        }?;
        match &self.control {
            Some(control) if self.path().map(default_control).as_ref() != Some(control) => {
                write!(f, "{CONTROL_OPTION}{}", control.display())
            }
            _ => Ok(()),
        }
    }
}

impl DeviceSpec {
    /// Returns the specification of the file or block device at `path`, even if its name looks like
    /// another kind.
    pub fn from_path(path: impl Into<PathBuf>) -> Self {
        DeviceSpec {
            control: None,
            model: None,
            place: Storage::Path { path: path.into(), size: None },
        }
    }

    /// Returns the same device without a size, for use once it exists: it is then opened with its
    /// actual size, and not created again if it is missing.
    pub fn made(&self) -> Self {
        let mut spec = self.clone();
        if let Storage::Path { size, .. } = &mut spec.place {
            *size = None;
        }
        spec
    }

    /// Opens a device of this machine, see [`DeviceSpec::open_with`].
    ///
    /// # Errors
    /// See [`OpenErrorKind`]; devices of other machines are of the wrong type.
    pub fn open(&self, access: Access) -> Result<Arc<dyn Device>, OpenError> {
        self.open_with(access, &|name, _| {
            let cause = "it is on another machine, and a device of this machine is needed here";
            Err(OpenError::new(OpenErrorKind::WrongType, name, cause))
        })
    }

    /// Opens the device, and claims it according to `access` until the device and its queues are
    /// dropped. RAM is a new device at each call. `connect` opens devices of other machines.
    ///
    /// # Errors
    /// See [`OpenErrorKind`].
    pub fn open_with(
        &self,
        access: Access,
        connect: Connect<'_>,
    ) -> Result<Arc<dyn Device>, OpenError> {
        self.check_there()?;
        let device: Arc<dyn Device> = match &self.place {
            Storage::Path { path, size } => FileDevice::open(path, access, *size)?,
            Storage::Remote(name) => connect(name, access)?,
            Storage::Ram { size } => {
                let name = format!("ram:{}", exact_size(*size));
                RamDevice::new(&name, *size)
                    .map_err(|error| OpenError::new(OpenErrorKind::BadSize, self, error))?
            }
        };
        let device = match self.model {
            Some(kind) => ModelledDevice::new(device, kind),
            None => device,
        };
        Ok(match &self.control {
            Some(control) => FaultyDevice::wrap(device, control),
            None => device,
        })
    }

    /// Checks that a faulty device is present.
    fn check_there(&self) -> Result<(), OpenError> {
        match &self.control {
            Some(control) => FaultyDevice::is_there(&self.to_string(), control),
            None => Ok(()),
        }
    }

    /// Returns the identity of the file or block device, to compare differently written
    /// specifications. `None` for RAM, which is a new device each time.
    ///
    /// # Errors
    /// See [`DeviceSpec::open`]; a file that does not exist yet is `NotFound`.
    pub fn identity(&self) -> Result<Option<DeviceIdentity>, OpenError> {
        self.check_there()?;
        self.path().map(identity).transpose()
    }

    /// Returns the path, if there is one.
    pub fn path(&self) -> Option<&Path> {
        match &self.place {
            Storage::Path { path, .. } => Some(path),
            Storage::Ram { .. } | Storage::Remote(_) => None,
        }
    }

    /// Returns the name of the device on another machine, if it is one.
    pub fn remote(&self) -> Option<&RemoteName> {
        match &self.place {
            Storage::Remote(name) => Some(name),
            Storage::Path { .. } | Storage::Ram { .. } => None,
        }
    }

    /// Returns whether the size is given, so that a missing file is created.
    pub fn has_size(&self) -> bool {
        self.size().is_some()
    }

    /// Returns the size in bytes, if it is given.
    pub fn size(&self) -> Option<u64> {
        match self.place {
            Storage::Ram { size } => Some(size),
            Storage::Path { size, .. } => size,
            Storage::Remote(_) => None,
        }
    }

    /// Returns the modelled disk, if any.
    pub fn model(&self) -> Option<ModelKind> {
        self.model
    }

    /// Returns whether the content is lost when the process ends.
    pub fn is_volatile(&self) -> bool {
        matches!(self.place, Storage::Ram { .. })
    }

    /// Returns the same device with an absolute path, so that it can be stored and used from
    /// another working directory. Links are not resolved.
    ///
    /// # Errors
    /// `Io` if the process has no working directory; `WrongType` if the path is not UTF-8, because
    /// specifications are stored as text.
    pub fn absolute(&self) -> Result<Self, OpenError> {
        let mut spec = self.clone();
        let failed = |error| OpenError::new(OpenErrorKind::Io, self, error);
        let path = match &mut spec.place {
            Storage::Path { path, .. } => Some(path),
            Storage::Ram { .. } => None,
            Storage::Remote(name) => {
                *name = name.absolute().map_err(failed)?;
                None
            }
        };
        for path in path.into_iter().chain(&mut spec.control) {
            *path = std::path::absolute(&*path).map_err(failed)?;
            if path.to_str().is_none() {
                let cause = format!(
                    "the path of the working directory is not UTF-8 ({path:?}); give an absolute path that is, such as a link"
                );
                return Err(OpenError::new(OpenErrorKind::WrongType, self, cause));
            }
        }
        let is_remote = matches!(spec.place, Storage::Remote(_));
        if is_remote && spec.to_string().parse().as_ref() != Ok(&spec) {
            let cause = "it has a path relative to the working directory, whose path is not UTF-8; give an absolute one";
            return Err(OpenError::new(OpenErrorKind::WrongType, self, cause));
        }
        Ok(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(text: &str) -> DeviceSpec {
        text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
    }

    #[test]
    fn every_good_form_is_read_and_written_back() {
        let places: [(&str, Option<&str>, Option<u64>); 11] = [
            ("/dev/sda", Some("/dev/sda"), None),
            ("relative.img", Some("relative.img"), None),
            ("./ram:1G", Some("./ram:1G"), None),
            (
                "/dev/disk/by-path/pci-0000:00:1f.2",
                Some("/dev/disk/by-path/pci-0000:00:1f.2"),
                None,
            ),
            ("/a,b.img", Some("/a,b.img"), None),
            ("/a b/ü", Some("/a b/ü"), None),
            ("/a,size", Some("/a,size"), None),
            ("/a,size=10G", Some("/a"), Some(10 << 30)),
            ("/a,size=4K,size=12K", Some("/a,size=4K"), Some(12 << 10)),
            ("ram:1G", None, Some(1 << 30)),
            ("ram:1028K", None, Some(1028 << 10)),
        ];
        for (text, path, size) in places {
            for model in ModelKind::ALL.into_iter().map(Some).chain([None]) {
                let text = match model {
                    Some(model) => format!("{}:{text}", model_name(model)),
                    None => text.to_owned(),
                };
                let spec = spec(&text);
                assert_eq!(spec.model(), model, "{text}");
                assert_eq!(spec.path(), path.map(Path::new), "{text}");
                assert_eq!(spec.is_volatile(), path.is_none());
                let found = match spec.place {
                    Storage::Path { size, .. } => size,
                    Storage::Ram { size } => Some(size),
                    Storage::Remote(_) => None,
                };
                assert_eq!(found, size, "{text}");
                assert_eq!(spec.to_string(), text);
            }
        }
    }

    #[test]
    fn sizes_are_written_exactly() {
        for (given, printed) in [
            ("ram:4096", "ram:4K"),
            ("ram:1536K", "ram:1536K"),
            ("ram:2048M", "ram:2G"),
            ("ram:1gib", "ram:1G"),
        ] {
            assert_eq!(spec(given).to_string(), printed);
        }
    }

    #[test]
    fn every_bad_form_is_refused() {
        for text in ["", ",size=1G", "hdd7200:", "sata-ssd:,size=1G"] {
            assert_eq!(text.parse::<DeviceSpec>(), Err(SpecError::Empty), "{text}");
        }
        for text in [
            "ram:",
            "ram:0",
            "ram:-1G",
            "ram:1.5G",
            "ram:1G,size=1G",
            "ram:8P,x",
            "ram:8192P",
            "ram:/a",
            "/a,size=",
            "/a,size=0",
            "/a,size=1e9",
            "/a,size= 1G",
            "pcie-ssd:ram:x",
            "ram:ram:1G",
            "ram:hdd7200:1G",
        ] {
            let refused = text.parse::<DeviceSpec>();
            assert!(matches!(refused, Err(SpecError::BadSize(_))), "{text}: {refused:?}");
        }
        for text in [
            "foo:/dev/sda",
            "hdd:/dev/sda",
            ":/dev/sda",
            "C:\\disk",
            "hdd7200:foo:/a",
            "nbd:host:1",
        ] {
            let refused = text.parse::<DeviceSpec>();
            assert!(matches!(refused, Err(SpecError::UnknownKind(_))), "{text}: {refused:?}");
        }
        for (text, words) in [
            ("ram:10", "'10' would be 10 bytes; add a unit, like 10G"),
            ("/a,size=513", "'513' would be 513 bytes; add a unit, like 513G"),
            ("f:10", "'f:' is not a kind of device; a file of that size is written f,size=10G"),
            ("f:512M", "f,size=512M"),
            ("RAM:1G", "did you mean 'ram:'?"),
            ("sata_ssd:/a", "did you mean 'sata-ssd:'?"),
        ] {
            let refused = text.parse::<DeviceSpec>().expect_err(text).to_string();
            assert!(refused.contains(words), "{text}: {refused}");
        }
        assert_eq!("hdd7200:pcie-ssd:/a".parse::<DeviceSpec>(), Err(SpecError::Nested));
        assert_eq!("/a\0b".parse::<DeviceSpec>(), Err(SpecError::BadPath));
    }

    #[test]
    fn a_faulty_device_names_its_control_file() {
        for (text, control, printed) in [
            ("faulty:/a", "/a.faults", None),
            ("faulty:/a,size=4K", "/a.faults", None),
            ("faulty:hdd7200:/a,size=4K,control=/b,c", "/b,c", None),
            ("faulty:/a,control=/a.faults", "/a.faults", Some("faulty:/a")),
            ("faulty:ram:4K,control=/c", "/c", None),
            ("faulty:sata-ssd:ram:4K,control=/c", "/c", None),
        ] {
            let spec = spec(text);
            assert_eq!(spec.control.as_deref(), Some(Path::new(control)), "{text}");
            assert_eq!(spec.to_string(), printed.unwrap_or(text));
        }
        assert_eq!(spec("/a,control=/b").path(), Some(Path::new("/a,control=/b")));
        for (text, error) in [
            ("faulty:", SpecError::Empty),
            ("faulty:,control=/a", SpecError::Empty),
            ("faulty:ram:4K", SpecError::NoControl),
            ("faulty:/a,control=", SpecError::NoControl),
            ("faulty:faulty:/a", SpecError::UnknownKind("faulty".to_owned())),
            ("hdd7200:faulty:/a", SpecError::Nested),
        ] {
            assert_eq!(text.parse::<DeviceSpec>(), Err(error), "{text}");
        }
        let stored = spec("faulty:a,control=c").absolute().expect("a working directory");
        assert!(stored.control.as_deref().is_some_and(Path::is_absolute));
        assert_eq!(spec(&stored.to_string()), stored);
    }

    #[test]
    fn specifications_open_what_they_say() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("new.img").display().to_string();
        for (text, size) in [
            (format!("{path},size=1M"), 1 << 20),
            (path.clone(), 1 << 20),
            (format!("hdd7200:{path}"), 1 << 20),
            ("ram:64K".to_owned(), 64 << 10),
            ("pcie-ssd:ram:64K".to_owned(), 64 << 10),
        ] {
            let device = spec(&text).open(Access::Exclusive).expect("opened");
            assert_eq!(device.size(), size, "{text}");
        }
        let refused = spec(&format!("{path}.not")).open(Access::Exclusive).err().expect("missing");
        assert_eq!(refused.kind, OpenErrorKind::NotFound);
        let huge = spec("ram:4P").open(Access::Exclusive).err().expect("too large");
        assert_eq!(huge.kind, OpenErrorKind::BadSize);
    }

    #[test]
    fn an_existing_file_keeps_its_size() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("a");
        let given = spec(&format!("hdd7200:{},size=1M", path.display()));
        drop(given.open(Access::Exclusive).expect("made"));
        let file = std::fs::File::options().write(true).open(&path).expect("there");
        file.set_len(2 << 20).expect("grown");
        assert_eq!(given.made().open(Access::Exclusive).expect("there").size(), 2 << 20);
        std::fs::remove_file(&path).expect("there");
        let refused = given.made().open(Access::Exclusive).err().expect("missing");
        assert_eq!(refused.kind, OpenErrorKind::NotFound);
        assert_eq!(spec("ram:4K").made(), spec("ram:4K"));
    }

    #[test]
    fn two_names_of_one_device_are_recognised() {
        let folder = tempfile::tempdir().expect("folder");
        let at = |name: &str| folder.path().join(name);
        std::fs::write(at("a"), [0; 4096]).expect("file");
        std::os::unix::fs::symlink(at("a"), at("link")).expect("link");
        let identity = |text: String| spec(&text).identity().expect("there");
        let one = identity(at("a").display().to_string());
        assert!(one.is_some());
        assert_eq!(identity(format!("sata-ssd:{},size=4K", at("link").display())), one);
        assert_eq!(identity("ram:4K".to_owned()), None);
    }

    #[test]
    fn paths_can_be_made_absolute() {
        let stored = spec("hdd7200:a.img,size=4K").absolute().expect("a working directory");
        assert!(stored.path().is_some_and(Path::is_absolute));
        assert_eq!(spec(&stored.to_string()), stored);
        assert_eq!(spec("ram:4K").absolute().expect("unchanged"), spec("ram:4K"));
        assert_eq!(DeviceSpec::from_path("/a").to_string(), "/a");
    }
}
