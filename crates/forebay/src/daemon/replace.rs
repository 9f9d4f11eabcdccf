//! Replaces files of the state directory.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Replaces a file atomically and durably: a crash at any point leaves the old or the new one, whole.
///
/// # Errors
/// It cannot be written; the old one is there then.
pub(crate) fn replace(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut fresh = path.as_os_str().to_owned();
    fresh.push(".new");
    let fresh = Path::new(&fresh);
    let written = write(fresh, bytes).and_then(|()| fs::rename(fresh, path));
    if written.is_err() {
        // On a full filesystem it would only take space.
        let _ = fs::remove_file(fresh);
    }
    written?;
    path.parent().map_or(Ok(()), |dir| File::open(dir)?.sync_all())
}

fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file =
        OpenOptions::new().create(true).truncate(true).write(true).mode(0o600).open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}
