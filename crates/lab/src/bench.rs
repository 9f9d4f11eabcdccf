//! Benchmarks in real time on devices in RAM: one file for each subcommand, and their shared parts.
//!
//! - `driver`: requests one after the other, and caches filled with many blocks
//! - `device`: devices that count operations, and devices that store repetitive data compactly
//! - `pattern`: the blocks that requests address
//! - `fio_client`: fio as the client
//! - `measure`: time on the wall and on the CPU

pub(crate) mod amplification;
pub(crate) mod block;
pub(crate) mod commands;
pub(crate) mod device;
pub(crate) mod driver;
pub(crate) mod engine;
pub(crate) mod fio_client;
pub(crate) mod measure;
pub(crate) mod memory;
pub(crate) mod nbd;
pub(crate) mod observing;
pub(crate) mod pattern;
pub(crate) mod recovery;
pub(crate) mod vhost_user;
