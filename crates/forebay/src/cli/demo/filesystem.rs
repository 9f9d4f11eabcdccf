//! An image full of files, and the check of their content.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use forebay_admin::ApiError;
use forebay_core::units::format_size;
use forebay_format::crc32c;

use super::client::NbdClient;
use super::workspace::Workspace;
use crate::output::volume::grouped;
use crate::paths::io_error;

/// Larger files are skipped, so that there are many.
const LARGEST: u64 = 8 << 20;
/// Bytes of one write.
const PIECE: usize = 1 << 20;
/// Number of writes in flight.
const DEPTH: usize = 8;

/// Length and checksum of a file.
type Sum = (u64, u32);

/// A filesystem in a file, and the files in it.
pub(super) struct FilesystemImage {
    path: PathBuf,
    disk: u64,
    files: BTreeMap<PathBuf, Sum>,
}

impl FilesystemImage {
    /// Fills a filesystem of `size` bytes with about `content` bytes of files of this system. The
    /// disk for it has `disk` bytes.
    pub(super) fn make(
        workspace: &Workspace,
        content: u64,
        size: u64,
        disk: u64,
    ) -> Result<Self, ApiError> {
        let (tree, path) = (workspace.at("tree"), workspace.at("pristine.img"));
        let mut copied = Copied { left: content, files: BTreeMap::new() };
        for source in ["usr/share", "usr/lib", "usr/bin"] {
            copied.directory(workspace, Path::new("/"), Path::new(source), &tree)?;
        }
        if copied.files.is_empty() {
            return Err(ApiError::failed("there are no files to copy in /usr"));
        }
        let inodes = copied.files.len() * 2 + 1000;
        let mut command = workspace.command("mke2fs");
        command.args([
            "-q",
            "-F",
            "-t",
            "ext4",
            "-b",
            "4096",
            "-m",
            "0",
            "-N",
            &inodes.to_string(),
        ]);
        command.arg("-d").arg(&tree).arg(&path).arg(format!("{}k", size >> 10));
        workspace.run_well("mke2fs", &mut command)?;
        workspace.say("removing the copies beside the image");
        fs::remove_dir_all(&tree).map_err(|error| io_error("cannot remove", &tree, &error))?;
        workspace.say(&format!(
            "{} files of {} are in the image",
            grouped(copied.files.len() as u64),
            format_size(copied.files.values().map(|(len, _)| len).sum())
        ));
        Ok(FilesystemImage { path, disk, files: copied.files })
    }

    /// Creates the disk: the image with its first `withheld` bytes zeroed.
    pub(super) fn make_origin(&self, origin: &Path, withheld: u64) -> Result<(), ApiError> {
        let failed = |error: std::io::Error| io_error("cannot write", origin, &error);
        fs::copy(&self.path, origin).map_err(failed)?;
        let file = File::options().write(true).open(origin).map_err(failed)?;
        file.set_len(self.disk).map_err(failed)?;
        let zeroes = vec![0; PIECE];
        for offset in (0..withheld).step_by(PIECE) {
            file.write_all_at(&zeroes, offset).map_err(failed)?;
        }
        file.sync_all().map_err(failed)
    }

    /// Writes the withheld bytes through the volume, and flushes it.
    pub(super) fn write_withheld(
        &self,
        workspace: &Workspace,
        socket: &Path,
        export: &str,
        withheld: u64,
    ) -> Result<(), ApiError> {
        let failed = |error: std::io::Error| io_error("cannot write through", socket, &error);
        let image = File::open(&self.path).map_err(failed)?;
        let mut client = NbdClient::connect(socket, export).map_err(failed)?;
        let mut bytes = vec![0; PIECE];
        let mut in_flight = 0;
        for offset in (0..withheld).step_by(PIECE) {
            workspace.go_on()?;
            image.read_exact_at(&mut bytes, offset).map_err(failed)?;
            if in_flight == DEPTH {
                client.acknowledged(1).map_err(failed)?;
                in_flight -= 1;
            }
            client.write(offset, &bytes).map_err(failed)?;
            in_flight += 1;
        }
        client.acknowledged(in_flight).map_err(failed)?;
        client.flush().map_err(failed)?;
        client.acknowledged(1).map_err(failed)
    }

    /// Extracts every file of the filesystem on `origin`, and compares it with the original.
    pub(super) fn compare(
        &self,
        workspace: &Workspace,
        origin: &Path,
    ) -> Result<Result<String, String>, ApiError> {
        let out = workspace.at("extracted");
        fs::create_dir(&out).map_err(|error| io_error("cannot make", &out, &error))?;
        let mut command = workspace.command("debugfs");
        command.arg("-R").arg(format!("rdump /usr {}", out.display())).arg(origin);
        workspace.run_well("debugfs", &mut command)?;
        let mut wrong = Vec::new();
        for (path, expected) in &self.files {
            workspace.go_on()?;
            match fs::read(out.join(path)) {
                Ok(bytes) if sum(&bytes) == *expected => (),
                Ok(_) => wrong.push(format!("/{} differs", path.display())),
                Err(error) => wrong.push(format!("/{}: {error}", path.display())),
            }
        }
        Ok(match wrong.first() {
            None => Ok(format!("all {} have their checksums", grouped(self.files.len() as u64))),
            Some(first) => {
                Err(format!("{} of {} are wrong: {first}", wrong.len(), self.files.len()))
            }
        })
    }
}

/// Checks the filesystem on `origin`.
pub(super) fn fsck(
    workspace: &Workspace,
    origin: &Path,
) -> Result<Result<String, String>, ApiError> {
    let status = workspace.run("e2fsck", workspace.command("e2fsck").arg("-fn").arg(origin))?;
    if status.success() {
        return Ok(Ok("the filesystem on the disk is clean".to_owned()));
    }
    let said = workspace.output("e2fsck", "out");
    let last = said.trim().lines().last().unwrap_or("it said nothing").to_owned();
    Ok(Err(format!("it ended with {status}: {last}")))
}

fn sum(bytes: &[u8]) -> Sum {
    (bytes.len() as u64, crc32c(bytes))
}

/// Files copied so far.
struct Copied {
    left: u64,
    files: BTreeMap<PathBuf, Sum>,
}

impl Copied {
    /// Copies plain files below `root/path` to the same path below `tree`, up to the limit.
    /// Unreadable files are skipped.
    fn directory(
        &mut self,
        workspace: &Workspace,
        root: &Path,
        path: &Path,
        tree: &Path,
    ) -> Result<(), ApiError> {
        workspace.go_on()?;
        let Ok(entries) = fs::read_dir(root.join(path)) else { return Ok(()) };
        let mut entries: Vec<_> = entries.flatten().collect();
        entries.sort_by_key(|entry| entry.file_name());
        for entry in entries {
            let name = entry.file_name();
            // The name goes through debugfs, which parses blanks and quotes in its own way.
            let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"._-+".contains(byte);
            if self.left == 0 || !name.as_encoded_bytes().iter().all(plain) {
                continue;
            }
            let own = path.join(&name);
            match entry.metadata() {
                Ok(found) if found.is_dir() => self.directory(workspace, root, &own, tree)?,
                Ok(found) if found.is_file() && (1..=LARGEST).contains(&found.len()) => {
                    if let Ok(bytes) = fs::read(root.join(&own)) {
                        self.file(&own, &bytes, tree)?;
                    }
                }
                _ => (),
            }
        }
        Ok(())
    }

    fn file(&mut self, path: &Path, bytes: &[u8], tree: &Path) -> Result<(), ApiError> {
        let target = tree.join(path);
        let failed = |error: std::io::Error| io_error("cannot write", &target, &error);
        if let Some(parent) = target.parent() {
            fs::create_dir_all(parent).map_err(failed)?;
        }
        fs::write(&target, bytes).map_err(failed)?;
        self.files.insert(path.to_owned(), sum(bytes));
        self.left = self.left.saturating_sub(bytes.len() as u64);
        Ok(())
    }
}
