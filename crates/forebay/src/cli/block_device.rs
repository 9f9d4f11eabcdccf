//! `forebay block-device`: a step that the daemon has another process take. Hidden.

use std::ffi::OsString;

use crate::exit::VerbResult;
use crate::output::print_line;

/// Does a task of the daemon, and prints the result for it.
pub(crate) fn run(task: &[OsString]) -> VerbResult {
    print_line(&forebay_daemon::helper::run(task)?)
}
