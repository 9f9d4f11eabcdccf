//! Needs of exports by ublk.

use std::io;

use forebay_engine::ExportError;
use forebay_export::errors::{self, Needs};

const NEEDS: Needs = Needs {
    privileges: "; export=ublk needs a daemon with CAP_SYS_ADMIN that may use /dev/ublk-control, or leave it at export=nbd",
    kernel: "; export=ublk needs Linux 6.0 and the kernel's module ublk_drv: 'modprobe ublk_drv', or use export=fuse",
};

/// Returns the error of a step that needs privileges or parts of the kernel.
pub(crate) fn refused(what: &str, cause: io::Error) -> ExportError {
    errors::refused(NEEDS, what, cause)
}
