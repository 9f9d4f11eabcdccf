//! Files of private keys.

use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bits of a mode with which users besides the owner and the group may read or write, and the group
/// may write.
const OPEN: u32 = 0o026;

/// Logs a warning if users besides the owner and the group of a key can read it, or others than the
/// owner replace it.
pub fn warn_of_readable_key(path: &Path) {
    if let Some(mode) = std::fs::metadata(path).ok().and_then(|found| too_open(found.mode())) {
        tracing::warn!(
            key = %path.display(),
            "the private key has mode {mode:04o}, so that other users can read or change it: run 'chmod 0600' on it"
        );
    }
}

/// Returns the permissions in `mode` if they are too wide for a key, `None` otherwise. Read
/// permission for the group is allowed, because systems have a group for keys.
fn too_open(mode: u32) -> Option<u32> {
    (mode & OPEN != 0).then_some(mode & 0o7777)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_other_users_can_read_or_change_is_told() {
        for mode in [0o600, 0o400, 0o640, 0o440, 0o100_640] {
            assert_eq!(too_open(mode), None, "{mode:o}");
        }
        for mode in [0o644, 0o604, 0o660, 0o602, 0o100_666] {
            assert_eq!(too_open(mode), Some(mode & 0o7777), "{mode:o}");
        }
    }
}
