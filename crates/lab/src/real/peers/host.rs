//! Modules and small files of the kernel.

use std::fs;
use std::path::Path;

use crate::error::{LabResult, other};
use crate::process::step;

/// Asks the kernel for a module. Whether it is there shows later: it may be built in.
pub(crate) fn load_module(name: &str) {
    let _ = step("modprobe", ["-q", name]);
}

/// Writes a word to a file of the kernel.
pub(crate) fn put(path: impl AsRef<Path>, word: &str) -> LabResult<()> {
    let path = path.as_ref();
    fs::write(path, word).map_err(|error| other(format!("{}: {error}", path.display())))
}

/// Reads a file of the kernel, without its line end.
pub(crate) fn get(path: impl AsRef<Path>) -> LabResult<String> {
    let path = path.as_ref();
    let text = fs::read_to_string(path);
    text.map(|text| text.trim().to_owned())
        .map_err(|error| other(format!("{}: {error}", path.display())))
}
