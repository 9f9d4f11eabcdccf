//! A system under comparison: it can be set up on two devices, offers a front that load can be put
//! on, and brings the origin up to date on request.

use std::fmt;
use std::path::PathBuf;

use serde::Serialize;

use super::disk::Disk;
use super::undo::Undo;
use crate::error::LabResult;
use crate::process::Stop;

/// Mode of a cache for writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Mode {
    /// There is no cache.
    Raw,
    Writethrough,
    Writeback,
}

impl Mode {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Mode::Raw => "raw",
            Mode::Writethrough => "writethrough",
            Mode::Writeback => "writeback",
        }
    }
}

/// Why a system cannot be compared on this host, in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WhyNot(pub(crate) String);

impl WhyNot {
    pub(crate) fn because<T>(reason: impl Into<String>) -> Result<T, WhyNot> {
        Err(WhyNot(reason.into()))
    }
}

impl fmt::Display for WhyNot {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        to.write_str(&self.0)
    }
}

/// Environment of every system: the devices, and a folder for small files.
pub(crate) struct Ground {
    /// The fast device.
    pub(crate) ssd: Disk,
    /// The origin.
    pub(crate) hdd: Disk,
    /// For sockets, logs and state; removed in the end.
    pub(crate) folder: PathBuf,
    /// The daemon's program, if there is one.
    pub(crate) forebay: Option<PathBuf>,
    pub(crate) stop: Stop,
}

/// Target of the load.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Front {
    /// A block device.
    Block(PathBuf),
    /// An NBD export on a unix socket.
    Nbd {
        /// The socket.
        socket: PathBuf,
        /// The name of the export.
        export: String,
    },
}

impl Front {
    /// `block` or `nbd`.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Front::Block(_) => "block",
            Front::Nbd { .. } => "nbd",
        }
    }
}

/// A cache, or a device without one. It is set up once for each mode, with a new value each time.
pub(crate) trait System {
    /// The modes it has.
    fn modes(&self) -> &'static [Mode] {
        &[Mode::Writethrough, Mode::Writeback]
    }

    /// Whether this host has all that it needs. Nothing is written.
    fn available(&self, ground: &Ground) -> Result<(), WhyNot>;

    /// Sets it up on empty devices. Every step leaves in `undo` how it is taken back; that is its
    /// whole tear-down.
    /// Errors: A step fails; `undo` has the steps before it.
    fn set_up(&mut self, mode: Mode, ground: &Ground, undo: &mut Undo) -> LabResult<Front>;

    /// Waits until the origin has everything that was written, and the front is not used any more.
    fn drain(&mut self, ground: &Ground) -> LabResult<()>;

    /// Returns the position of the front's first byte on the origin; `None` if it is not there.
    fn origin_offset(&self) -> Option<u64> {
        Some(0)
    }
}
