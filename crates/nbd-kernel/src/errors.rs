//! Requirements of exports by the kernel's NBD client.

use std::io;

use forebay_engine::{ExportError, ExportErrorKind};
use forebay_export::errors::{self, Needs};

const NEEDS: Needs = Needs {
    privileges: "; export=nbd-kernel needs a daemon with CAP_SYS_ADMIN, or leave it at export=nbd",
    kernel: "; export=nbd-kernel needs Linux 5.14 and the kernel's module nbd: load it with 'modprobe nbd', or use export=fuse",
};

/// Returns the error of a step that needs privileges or parts of the kernel.
pub(crate) fn refused(cause: io::Error) -> ExportError {
    errors::refused(NEEDS, "the kernel's NBD client", cause)
}

/// Returns the error for a daemon without a socket that the kernel could use.
pub(crate) fn no_socket() -> ExportError {
    let message = "export=nbd-kernel needs a unix socket among the daemon's NBD addresses: add '--nbd PATH' to its options, or use export=fuse";
    ExportError { kind: ExportErrorKind::Unavailable, message: message.to_owned(), cause: None }
}
