//! `forebay block-device`: a step that the daemon has another process take. Hidden.

use std::ffi::OsString;

use forebay_admin::{ApiError, ErrorKind};
use forebay_export::{helper, sync};

use crate::content;
use crate::exit::Outcome;
use crate::output::print_line;

/// Does a task of the daemon, and prints the result for it.
pub(super) fn run(task: &[OsString]) -> Outcome {
    if task == [content::MARKS_WORD] {
        let marks = content::print_marks();
        return print_line(&marks.map_err(|error| ApiError::failed(error.to_string()))?);
    }
    let result = if let Some(point) = sync::parse(task) {
        sync::execute(&point)
    } else if let Some(task) = forebay_fuse::helper::Task::parse(task) {
        task.execute()
    } else if let Some(task) = forebay_ublk::helper::Task::parse(task) {
        task.execute()
    } else if let Some(task) = forebay_nbd_kernel::helper::Task::parse(task) {
        task.execute()
    } else {
        let message = "this verb is for daemons only; see 'forebay help'";
        return Err(ApiError::new(ErrorKind::Invalid, message));
    };
    print_line(&helper::answer(&result))
}
