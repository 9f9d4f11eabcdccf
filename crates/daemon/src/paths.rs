//! Paths of sockets, and errors about paths.

use std::io;
use std::path::Path;

use forebay_admin::{ApiError, ErrorKind};
use forebay_host::unix_socket::{ListenError, check_name};

/// Checks the path of a unix socket.
///
/// # Errors
/// The path is empty, too long, or has a zero byte; `field` names its origin.
pub fn check_socket_path(field: &str, path: &Path) -> Result<(), ApiError> {
    check_name(path).map_err(|error| socket_error(field, &error))
}

/// Converts an error of a unix socket; `field` names the origin of its path.
pub(crate) fn socket_error(field: &str, error: &ListenError) -> ApiError {
    let kind = match error {
        ListenError::InUse(_) => ErrorKind::Refused,
        ListenError::System { cause, .. } => kind_of(cause),
        _ => ErrorKind::Invalid,
    };
    ApiError::new(kind, format!("{field}: {error}")).about(field)
}

/// Converts a system error about a path to an API error.
pub fn io_error(what: &str, path: &Path, error: &io::Error) -> ApiError {
    ApiError::new(kind_of(error), format!("{what} {}: {error}", path.display()))
}

fn kind_of(error: &io::Error) -> ErrorKind {
    match error.kind() {
        io::ErrorKind::AddrInUse | io::ErrorKind::WouldBlock => ErrorKind::Refused,
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory | io::ErrorKind::AlreadyExists => {
            ErrorKind::Invalid
        }
        _ => ErrorKind::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_sockets_name_the_field_and_have_a_kind() {
        let path = || "/run/s".into();
        let system = |kind: io::ErrorKind| ListenError::System { path: path(), cause: kind.into() };
        for (error, kind) in [
            (ListenError::InUse(path()), ErrorKind::Refused),
            (ListenError::Occupied(path()), ErrorKind::Invalid),
            (ListenError::NoDirectory(path()), ErrorKind::Invalid),
            (system(io::ErrorKind::NotADirectory), ErrorKind::Invalid),
            (system(io::ErrorKind::AddrInUse), ErrorKind::Refused),
            (system(io::ErrorKind::PermissionDenied), ErrorKind::Failed),
        ] {
            let error = socket_error("--socket", &error);
            assert_eq!(error.kind, kind);
            assert!(error.message.starts_with("--socket: "));
        }
    }
}
