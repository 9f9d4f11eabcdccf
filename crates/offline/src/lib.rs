//! Cache devices that no daemon uses, for the command line: nothing is changed.
//!
//! - [`check`]: verifies one; [`dump`]: prints the content of one
//! - `device`: opens one, on a lane of this process
#![forbid(unsafe_code)]

pub mod check;
mod device;
pub mod dump;
