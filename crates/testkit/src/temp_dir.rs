//! Directories for tests.

use std::fs::DirBuilder;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

/// A directory that is removed with its contents on drop.
pub struct TempDir(PathBuf);

impl TempDir {
    /// Creates a new directory; `what` becomes part of its name.
    pub fn new(what: &str) -> Self {
        TempDir::within(std::env::temp_dir(), what)
    }

    /// Like [`TempDir::new`], but in memory if the system has a memory file system: syncs cost
    /// nothing there.
    pub fn in_memory(what: &str) -> Self {
        let memory = PathBuf::from("/dev/shm");
        TempDir::within(if memory.is_dir() { memory } else { std::env::temp_dir() }, what)
    }

    fn within(parent: PathBuf, what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-{what}-{}-{count}", std::process::id());
        let path = parent.join(name);
        // As private as a state directory must be, for any umask.
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        made.expect("a temporary directory");
        TempDir(path)
    }

    /// Returns the path of the directory.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
