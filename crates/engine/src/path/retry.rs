//! The result of a step that may have to be repeated.

use forebay_core::IoError;

use crate::io::copies::Unreadable;

/// Why a step was not completed.
pub(crate) enum Retry {
    /// A copy was forgotten or replaced, or the cache device hangs: look the block up again.
    Again,
    Fail(IoError),
}

impl Retry {
    /// Returns how to continue after reading copies, given those that could not be read.
    pub(crate) fn unless_all_read(unreadable: &[(usize, Unreadable)]) -> Result<(), Retry> {
        match unreadable {
            [] => Ok(()),
            some if some.iter().any(|(_, what)| *what == Unreadable::Lost) => {
                Err(Retry::Fail(IoError::Io))
            }
            _ => Err(Retry::Again),
        }
    }
}
