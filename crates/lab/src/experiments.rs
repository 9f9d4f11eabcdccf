//! Experiments in virtual time, and on traces.
//!
//! - `seeds`: published experiments
//! - `writeback`: dirty blocks on their way to a disk
//! - `remote`: origins without seeks
//! - `replay`: the engine under traces
//! - `policies`: replacement policies on traces
//! - `whatif`: a volume's predictions for other settings, beside replays with these settings
//! - `curve`: estimates of miss-ratio curves beside the exact ones
//! - `source`: traces on the command line; `dirty`: caches full of dirty blocks

pub(crate) mod curve;
mod dirty;
pub(crate) mod policies;
pub(crate) mod remote;
pub(crate) mod replay;
pub(crate) mod seeds;
pub(crate) mod source;
pub(crate) mod whatif;
pub(crate) mod writeback;
