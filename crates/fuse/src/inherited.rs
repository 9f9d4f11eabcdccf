//! The parts that the next program inherits: the directory with its lock, the connections of
//! mounted files, and the loop devices on top of them, which stay as they are.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use forebay_device::loop_device::LoopNumber;
use forebay_engine::HandedOver;
use forebay_export::link;

use crate::marks::{Mark, Marks};
use crate::stale;

/// Label of the directory's lock: its path.
const DIRECTORY: &str = "directory";
/// Label of one lane's connection for a file: the volume and, if the service manager has kept the
/// connection, the volume's identity.
pub(crate) const CONNECTION: &str = "connection";
/// Label of an export: the volume, the number of the loop device, and the link to the device, if
/// there is one.
const EXPORT: &str = "export";

/// Labels a connection.
pub(crate) fn connection(volume: &str, descriptor: OwnedFd) -> HandedOver {
    let label = vec![CONNECTION.to_owned(), volume.to_owned()];
    HandedOver { label, descriptor: Some(descriptor), ..HandedOver::default() }
}

/// Labels an export.
pub(crate) fn export(volume: &str, number: LoopNumber, link: Option<&Path>) -> HandedOver {
    let mut label = vec![EXPORT.to_owned(), volume.to_owned(), number.0.to_string()];
    label.extend(link.map(|link| link.to_string_lossy().into_owned()));
    HandedOver { label, ..HandedOver::default() }
}

/// Returns the volume of a connection or an export; `None` for any other label.
pub(crate) fn volume_of(item: &HandedOver) -> Option<&str> {
    let words = item.labelled(CONNECTION).or_else(|| item.labelled(EXPORT))?;
    words.first().map(String::as_str)
}

/// Labels the lock of a directory.
pub(crate) fn directory(dir: &Path, lock: OwnedFd) -> HandedOver {
    let label = vec![DIRECTORY.to_owned(), dir.to_string_lossy().into_owned()];
    HandedOver { label, descriptor: Some(lock), ..HandedOver::default() }
}

/// A file with its loop device that the previous program has served.
#[derive(Debug)]
pub(crate) struct LeftExport {
    pub(crate) mark: Mark,
    pub(crate) link: Option<PathBuf>,
    /// Descriptors of the connection, at least one.
    pub(crate) connections: Vec<OwnedFd>,
    /// Identity of the volume, which differs for another volume of the same name; always present if
    /// the connections were kept.
    pub(crate) identity: Option<String>,
    /// Whether the service manager has kept the connections; otherwise they were handed over.
    pub(crate) kept: bool,
}

/// All exports that the previous program has left.
#[derive(Debug, Default)]
pub(crate) struct Inherited {
    /// The lock of the directory.
    pub(crate) lock: Option<File>,
    /// The exports of each volume that is not served again yet.
    pub(crate) exports: BTreeMap<String, LeftExport>,
    /// Volumes and identities of kept connections that cannot be served.
    pub(crate) useless: Vec<(String, String)>,
}

impl Inherited {
    /// Takes the parts of `dir` from `items`. All others are closed, and their users get errors.
    pub(crate) fn new(dir: &Path, items: Vec<HandedOver>, marks: &Marks) -> Self {
        let mut inherited = Inherited::default();
        let mut connections: BTreeMap<String, Vec<OwnedFd>> = BTreeMap::new();
        let mut kept: BTreeMap<(String, String), Vec<OwnedFd>> = BTreeMap::new();
        let own = dir.to_string_lossy();
        for item in items {
            let label = item.label.clone();
            let words: Vec<&str> = label.iter().map(String::as_str).collect();
            match (words.as_slice(), item.descriptor) {
                ([DIRECTORY, path], Some(lock)) if *path == own => {
                    inherited.lock = Some(File::from(lock));
                }
                ([CONNECTION, volume], Some(descriptor)) => {
                    connections.entry((*volume).to_owned()).or_default().push(descriptor);
                }
                ([CONNECTION, volume, identity], Some(descriptor)) => {
                    let key = ((*volume).to_owned(), (*identity).to_owned());
                    kept.entry(key).or_default().push(descriptor);
                }
                ([EXPORT, volume, number, link @ ..], None) => {
                    let Ok(number) = number.parse().map(LoopNumber) else { continue };
                    let link = link.first().map(PathBuf::from);
                    // `None`: the device was detached meanwhile and belongs to another program.
                    if let Some(mark) = marks.recognise(volume, number) {
                        let (connections, identity) = (Vec::new(), item.identity);
                        let left = LeftExport { mark, link, connections, identity, kept: false };
                        inherited.exports.insert((*volume).to_owned(), left);
                    }
                }
                _ => {
                    tracing::warn!(
                        ?label,
                        "the previous program left something that this version does not understand; it is closed"
                    );
                }
            }
        }
        for (volume, descriptors) in connections {
            if let Some(export) = inherited.exports.get_mut(&volume) {
                export.connections = descriptors;
            }
        }
        inherited.exports.retain(|volume, export| {
            let whole = !export.connections.is_empty() && inherited.lock.is_some();
            if !whole {
                tracing::error!(
                    volume,
                    "the previous program could not hand its file over; its users get errors"
                );
            }
            whole
        });
        for ((volume, identity), connections) in kept {
            match revived(dir, &volume, (identity.clone(), connections), marks) {
                Some(left) => {
                    inherited.exports.insert(volume, left);
                }
                None => {
                    tracing::error!(
                        volume,
                        "its file was kept, but has no loop device any more; its users get errors"
                    );
                    inherited.useless.push((volume, identity));
                }
            }
        }
        inherited
    }
}

/// Finds the loop device on top of a file whose connections were kept.
fn revived(
    dir: &Path,
    volume: &str,
    (identity, connections): (String, Vec<OwnedFd>),
    marks: &Marks,
) -> Option<LeftExport> {
    let file = dir.join(volume);
    let (mark, _) = stale::attached(dir, marks).into_iter().find(|(_, path)| *path == file)?;
    let link = link::find(volume, &mark.number.path());
    Some(LeftExport { mark, link, connections, identity: Some(identity), kept: true })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor() -> OwnedFd {
        File::open("/dev/null").expect("there is one").into()
    }

    #[test]
    fn exports_read_back_if_they_are_whole() {
        let number = LoopNumber(0);
        if number.sequence().is_none() {
            // The machine has no loop devices, or its kernel assigns no sequence numbers.
            return;
        }
        let dir = Path::new("/run/forebay/export");
        let link = Path::new("/dev/forebay/v");
        let items = vec![
            connection("v", descriptor()),
            connection("v", descriptor()),
            export("v", number, Some(link)),
            export("no-connection", number, None),
            connection("no-export", descriptor()),
            directory(dir, descriptor()),
            HandedOver { label: vec!["of-tomorrow".into()], ..HandedOver::default() },
        ];
        let volumes: Vec<_> = items.iter().map(volume_of).collect();
        let [v, other, none] = [Some("v"), Some("no-connection"), None];
        assert_eq!(volumes, [v, v, v, other, Some("no-export"), none, none]);
        let notes = tempfile::tempdir().expect("a directory");
        let marks = Marks::new(&notes.path().join("notes"), &notes.path().join("names"), dir);
        for volume in ["v", "no-connection"] {
            marks.made(volume, Mark::of(number));
        }
        let inherited = Inherited::new(dir, items, &marks);
        assert!(inherited.lock.is_some());
        let names: Vec<_> = inherited.exports.keys().map(String::as_str).collect();
        assert_eq!(names, ["v"]);
        let left = &inherited.exports["v"];
        assert_eq!((left.mark.number, left.link.as_deref()), (number, Some(link)));
        assert_eq!(left.connections.len(), 2);
        // Without the lock another daemon may be using the directory.
        let items = vec![connection("v", descriptor()), export("v", number, None)];
        assert!(Inherited::new(dir, items, &marks).exports.is_empty());
    }
}
