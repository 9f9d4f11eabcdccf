//! Paths of sockets, and errors about paths.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use forebay_admin::{ApiError, ErrorKind};

/// Longest path of a unix socket that the kernel accepts, in bytes.
const SOCKET_PATH_MAX: usize = 107;

/// Checks the path of a unix socket.
///
/// # Errors
/// The path is empty, too long, or has a zero byte; `field` names its origin.
pub fn check_socket_path(field: &str, path: &Path) -> Result<(), ApiError> {
    let len = path.as_os_str().len();
    if len == 0 {
        return Err(ApiError::invalid(field, "the path is empty; name a socket"));
    }
    if len > SOCKET_PATH_MAX {
        return Err(ApiError::invalid(
            field,
            format!(
                "a socket path has at most {SOCKET_PATH_MAX} bytes, this one has {len}; choose a shorter one"
            ),
        ));
    }
    if path.as_os_str().as_bytes().contains(&0) {
        return Err(ApiError::invalid(field, "the path contains a zero byte"));
    }
    Ok(())
}

/// Converts a system error about a path to an API error.
pub fn io_error(what: &str, path: &Path, error: &std::io::Error) -> ApiError {
    let kind = match error.kind() {
        std::io::ErrorKind::AddrInUse | std::io::ErrorKind::WouldBlock => ErrorKind::Refused,
        std::io::ErrorKind::NotFound
        | std::io::ErrorKind::NotADirectory
        | std::io::ErrorKind::AlreadyExists => ErrorKind::Invalid,
        _ => ErrorKind::Failed,
    };
    ApiError::new(kind, format!("{what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    #[test]
    fn socket_paths_have_a_length() {
        let path = |len: usize| PathBuf::from("/".to_owned() + &"x".repeat(len - 1));
        assert!(check_socket_path("--socket", &path(107)).is_ok());
        for bad in [path(108), path(5000), PathBuf::new(), PathBuf::from("a\0b")] {
            let error = check_socket_path("--socket", &bad).expect_err("bad");
            assert_eq!(error.kind, ErrorKind::Invalid);
            assert!(error.message.starts_with("--socket: "));
        }
    }
}
