//! Steps that a daemon leaves to another process, because they may wait for a device without a way
//! to interrupt them, or parse untrusted bytes.

use std::ffi::OsString;

use forebay_admin::{ApiError, ErrorKind};
use forebay_export::{helper, sync};

use crate::content;

pub use forebay_export::helper::VERB;

/// Executes a step, and returns the line for the daemon.
///
/// # Errors
/// The task is unknown, or the marks of a device cannot be read.
pub fn run(task: &[OsString]) -> Result<String, ApiError> {
    if task == [content::MARKS_WORD] {
        return content::print_marks().map_err(|error| ApiError::failed(error.to_string()));
    }
    let result = if let Some(point) = sync::parse(task) {
        sync::execute(&point)
    } else if let Some(task) = forebay_fuse::helper::LoopTask::parse(task) {
        task.execute()
    } else if let Some(task) = forebay_ublk::helper::Task::parse(task) {
        task.execute()
    } else if let Some(task) = forebay_nbd_kernel::helper::Task::parse(task) {
        task.execute()
    } else {
        let message = "this verb is for daemons only; see 'forebay help'";
        return Err(ApiError::new(ErrorKind::Invalid, message));
    };
    Ok(helper::answer(&result))
}
