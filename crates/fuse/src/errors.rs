//! Needs of exports by FUSE.

use std::io;

use forebay_engine::ExportError;
use forebay_export::errors::{self, Needs};

const NEEDS: Needs = Needs {
    privileges: "; export=fuse needs a daemon with CAP_SYS_ADMIN that may use /dev/fuse and loop devices, or leave it at export=nbd",
    kernel: "; export=fuse needs the kernel's modules fuse and loop: 'modprobe fuse loop', or leave it at export=nbd",
};

/// Returns the error of a step that needs privileges or parts of the kernel.
pub(crate) fn refused(what: &str, cause: io::Error) -> ExportError {
    errors::refused(NEEDS, what, cause)
}
