//! Errors of exports, with what an operator can do.

use std::fmt;
use std::io;
use std::path::Path;

use forebay_engine::{ExportError, ExportErrorKind};

/// A step that takes privileges or parts of the kernel.
pub(crate) fn refused(what: &str, cause: io::Error) -> ExportError {
    let (kind, remedy) = match cause.kind() {
        io::ErrorKind::PermissionDenied => (
            ExportErrorKind::NotPermitted,
            "; export=fuse needs a daemon with CAP_SYS_ADMIN that may use /dev/fuse and loop devices, or leave it at export=nbd",
        ),
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => (
            ExportErrorKind::Unavailable,
            "; export=fuse needs the kernel's modules fuse and loop: 'modprobe fuse loop', or leave it at export=nbd",
        ),
        _ => (ExportErrorKind::Failed, ""),
    };
    ExportError { kind, message: format!("{what}: {cause}{remedy}"), cause: Some(cause) }
}

/// Any other step.
pub(crate) fn failed(what: impl fmt::Display, cause: io::Error) -> ExportError {
    let message = format!("{what}: {cause}");
    ExportError { kind: ExportErrorKind::Failed, message, cause: Some(cause) }
}

/// The device is in use.
pub(crate) fn busy(volume: &str, device: &Path, users: &str) -> ExportError {
    let message = format!(
        "{} of '{volume}' is in use: {users}; end that first, or 'forebay stop --force {volume}' cuts it off",
        device.display()
    );
    ExportError { kind: ExportErrorKind::InUse, message, cause: None }
}
