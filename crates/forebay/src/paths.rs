//! Default paths of sockets and state.

use std::path::PathBuf;

use forebay_admin::ApiError;
use forebay_daemon::paths::check_socket_path;
pub(crate) use forebay_daemon::paths::io_error;

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn from_env(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(name)?);
    path.is_absolute().then_some(path)
}

/// Returns the path of the admin socket: the given one, else `/run/forebay/admin.sock` for root and
/// `$XDG_RUNTIME_DIR/forebay/admin.sock` for others.
///
/// # Errors
/// No path is given and the variable is not set, or the path cannot be that of a socket.
pub(crate) fn admin_socket(given: Option<PathBuf>) -> Result<PathBuf, ApiError> {
    let path = match given {
        Some(path) => path,
        None if is_root() => PathBuf::from("/run/forebay/admin.sock"),
        None => from_env("XDG_RUNTIME_DIR").map(|dir| dir.join("forebay/admin.sock")).ok_or_else(
            || ApiError::invalid("--socket", "XDG_RUNTIME_DIR is not set; name the socket"),
        )?,
    };
    check_socket_path("--socket", &path)?;
    Ok(path)
}

/// Returns the daemon's state directory: the given one, else `/var/lib/forebay` for root and
/// `$XDG_STATE_HOME/forebay` (`~/.local/state/forebay`) for others.
///
/// # Errors
/// No path is given and there is no home directory.
pub(crate) fn state_dir(given: Option<PathBuf>) -> Result<PathBuf, ApiError> {
    if let Some(dir) = given {
        if dir.as_os_str().is_empty() {
            return Err(ApiError::invalid("--state-dir", "the path is empty; name a directory"));
        }
        return std::path::absolute(&dir).map_err(|error| ApiError::invalid("--state-dir", error));
    }
    if is_root() {
        return Ok(PathBuf::from("/var/lib/forebay"));
    }
    from_env("XDG_STATE_HOME")
        .or_else(|| from_env("HOME").map(|home| home.join(".local/state")))
        .map(|dir| dir.join("forebay"))
        .ok_or_else(|| ApiError::invalid("--state-dir", "HOME is not set; name the directory"))
}

/// Returns the file that declares the volumes: the given one, else `/etc/forebay/forebay.toml` for
/// root and `$XDG_CONFIG_HOME/forebay/forebay.toml` (`~/.config/forebay/forebay.toml`) for others.
///
/// # Errors
/// No path is given and there is no home directory.
pub(crate) fn config_file(given: Option<PathBuf>) -> Result<PathBuf, ApiError> {
    if let Some(path) = given {
        return Ok(path);
    }
    if is_root() {
        return Ok(PathBuf::from("/etc/forebay/forebay.toml"));
    }
    from_env("XDG_CONFIG_HOME")
        .or_else(|| from_env("HOME").map(|home| home.join(".config")))
        .map(|dir| dir.join("forebay/forebay.toml"))
        .ok_or_else(|| ApiError::invalid("--config", "HOME is not set; name the file"))
}
