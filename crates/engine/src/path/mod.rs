//! The data path: one file for each kind of request, and what they have in common.

pub(crate) mod admission;
pub(crate) mod append;
pub(crate) mod copies;
pub(crate) mod discard;
pub(crate) mod fill;
pub(crate) mod first_write;
pub(crate) mod flush;
pub(crate) mod memory;
pub(crate) mod notes;
pub(crate) mod plan;
pub(crate) mod policy;
pub(crate) mod read;
pub(crate) mod turns;
pub(crate) mod unavailable;
pub(crate) mod write;
