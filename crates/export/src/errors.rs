//! Errors of exports, with the operator's remedies.

use std::fmt;
use std::io;
use std::path::Path;

use forebay_engine::{ExportError, ExportErrorKind};
use forebay_host::users::Users;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

/// Requirements of a front end, for the errors of [`refused`].
#[derive(Clone, Copy, Debug)]
pub struct Needs {
    /// End of the sentence if the daemon lacks privileges.
    pub privileges: &'static str,
    /// End of the sentence if the kernel lacks a feature.
    pub kernel: &'static str,
}

/// Returns the error of a step that needs privileges or parts of the kernel.
pub fn refused(needs: Needs, what: &str, cause: io::Error) -> ExportError {
    let (kind, remedy) = match cause.kind() {
        io::ErrorKind::PermissionDenied => (ExportErrorKind::NotPermitted, needs.privileges),
        io::ErrorKind::NotFound | io::ErrorKind::Unsupported => {
            (ExportErrorKind::Unavailable, needs.kernel)
        }
        _ => (ExportErrorKind::Failed, ""),
    };
    ExportError { kind, message: format!("{what}: {cause}{remedy}"), cause: Some(cause) }
}

/// Checks that this process may administer the machine.
///
/// # Errors
/// The process lacks the privilege, or its privileges are unknown.
pub fn check_privileged() -> io::Result<()> {
    let is_able =
        capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
    if is_able { Ok(()) } else { Err(Errno::PERM.into()) }
}

/// Returns the error of any other step.
pub fn failed(what: impl fmt::Display, cause: io::Error) -> ExportError {
    let message = format!("{what}: {cause}");
    ExportError { kind: ExportErrorKind::Failed, message, cause: Some(cause) }
}

/// Returns the error for a device in use. The daemon adds the remedy, see
/// [`ExportErrorKind::InUse`].
pub fn busy(volume: &str, device: &Path, users: &str) -> ExportError {
    let message = format!("{} of '{volume}' is in use: {users}", device.display());
    ExportError { kind: ExportErrorKind::InUse, message, cause: None }
}

/// Checks that no program uses a device that cannot outlive this daemon.
///
/// # Errors
/// A program uses the device.
pub fn check_ending(volume: &str, device: &Path) -> Result<(), ExportError> {
    let users = Users::remaining(device, None);
    if users.is_empty() {
        return Ok(());
    }
    Err(busy(volume, device, &format!("{users}, and ends with this program")))
}
