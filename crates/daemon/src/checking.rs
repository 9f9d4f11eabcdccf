//! Checks of a daemon's options and state directory without a start, while another daemon may be
//! using them. Before a hand-over, the next program makes these checks before anything is closed.

use std::path::Path;

use forebay_admin::ApiError;
use rustix::fs::{Access, access};

use super::raw_names::RawNames;
use super::{Options, host, memory, private, state};
use crate::paths::{check_socket_path, io_error};

/// Checks the conditions of a start on this machine. Changes nothing, and locks nothing. Addresses
/// are not claimed, because a daemon that hands over still uses its own.
///
/// # Errors
/// A start with these options would fail.
pub fn check(options: Options) -> Result<(), ApiError> {
    check_socket_path("--socket", &options.socket)?;
    options.front_ends.complete(&options.socket)?.check()?;
    memory::limit(options.memory_limit)?;
    for export in &options.raw {
        let found = export.device.identity();
        found.map_err(|error| ApiError::invalid("--export-raw", error))?;
    }
    check_state(&options.state_dir)?;
    let volumes: Vec<_> =
        state::peek(&options.state_dir)?.into_iter().map(|volume| volume.name).collect();
    RawNames::new(host::names(&options.raw), &volumes).map(drop)
}

/// Checks that the state in a directory can be read, and the directory written to.
fn check_state(dir: &Path) -> Result<(), ApiError> {
    private::check_directory(dir)?;
    state::peek(dir)?;
    match access(dir, Access::WRITE_OK | Access::EXEC_OK) {
        // The start creates the directory.
        Ok(()) | Err(rustix::io::Errno::NOENT) => Ok(()),
        Err(errno) => {
            let failed = io_error("cannot write to the state directory", dir, &errno.into());
            Err(failed.about("--state-dir"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use forebay_testkit::TempDir;

    #[test]
    fn a_state_directory_in_use_is_checked_and_not_changed() {
        let dir = TempDir::new("checking");
        let path = dir.path().join("state");
        check_state(&path).expect("a start would make it");
        assert!(!path.exists());
        let state = state::State::open(&path).expect("free");
        check_state(&path).expect("empty");
        fs::write(path.join("state.json"), r#"{"version":99,"volumes":[]}"#).expect("writable");
        let error = check_state(&path).expect_err("of tomorrow").to_string();
        assert!(error.contains("version 99"), "{error}");
        drop(state);
    }
}
