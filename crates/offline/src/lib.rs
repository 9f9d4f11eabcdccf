//! Commands on cache devices that no daemon uses. They change nothing.
//!
//! - [`check`]: verifies a device; [`dump`]: prints its content
//! - `device`: opens a device, on a lane of this process
#![forbid(unsafe_code)]

pub mod check;
mod device;
pub mod dump;
