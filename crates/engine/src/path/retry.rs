//! How a step of a request ended that may have to be done again.

use forebay_core::IoError;

use crate::io::copies::Unreadable;

/// Why a step was not done.
pub(crate) enum Retry {
    /// A clean copy was bad and has been forgotten: look again.
    Again,
    Fail(IoError),
}

impl Retry {
    /// What is to be done after copies were read of which some could not be.
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
