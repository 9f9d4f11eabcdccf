//! The data path: one file for each kind of request, and the steps they share.

pub(crate) mod append;
pub(crate) mod discard;
pub(crate) mod fill;
pub(crate) mod flush;
pub(crate) mod memory;
pub(crate) mod offer;
pub(crate) mod read;
pub(crate) mod retry;
pub(crate) mod turns;
pub(crate) mod write;
