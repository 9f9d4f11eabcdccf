//! The archive: a compressed tar of texts, which only its owner can read.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use flate2::Compression;
use flate2::write::GzEncoder;
use forebay_admin::ApiError;
use tar::{Builder, Header};
use time::OffsetDateTime;

use crate::paths::io_error;

/// Writes texts with their names below `dir` into a new file.
///
/// # Errors
/// The file is there already, or cannot be written; then nothing is left of it.
pub(super) fn write(path: &Path, dir: &str, texts: &[(String, String)]) -> Result<(), ApiError> {
    let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    let file = file.map_err(|error| io_error("cannot create", path, &error))?;
    fill(file, dir, texts).map_err(|error| {
        let _ = std::fs::remove_file(path);
        io_error("cannot write", path, &error)
    })
}

fn fill(file: File, dir: &str, texts: &[(String, String)]) -> io::Result<()> {
    let mut archive = Builder::new(GzEncoder::new(file, Compression::default()));
    let now = u64::try_from(OffsetDateTime::now_utc().unix_timestamp()).unwrap_or(0);
    for (name, text) in texts {
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_mtime(now);
        header.set_size(text.len() as u64);
        archive.append_data(&mut header, PathBuf::from(dir).join(name), text.as_bytes())?;
    }
    let mut file = archive.into_inner()?.finish()?;
    file.flush()?;
    file.sync_all()
}
