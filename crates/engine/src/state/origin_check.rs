//! Findings about the origin at the start of a volume.

use std::fmt;

use forebay_core::identity::Difference;

/// The relation of an origin to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The device is the volume's origin, and was not written to.
    Same,
    /// The device is the volume's origin, unchanged as far as the evidence shows; the text says why
    /// more is not known.
    Unclear(&'static str),
    /// The device is the volume's origin, but an external writer has changed it.
    Changed(Sign),
    /// The origin is another device.
    Other(Difference),
}

/// Evidence that an external writer has changed an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The system's evidence, as a sentence.
    System(&'static str),
    /// Another volume has used the origin since.
    OtherVolume,
    /// Samples of its content differ.
    Samples,
    /// The start of a partition, or of a filesystem or volume in one, differs.
    Starts,
    /// The origin differs from clean blocks of the cache.
    Blocks {
        /// Whether lost records of the log may be the cause as well: those that no later record
        /// confirms look torn.
        after_crash: bool,
    },
}

impl fmt::Display for Sign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Sign::System(how) => f.write_str(how),
            Sign::OtherVolume => f.write_str("another volume has used it"),
            Sign::Samples => f.write_str("samples of its content differ"),
            Sign::Starts => f.write_str("the start of a partition or filesystem differs"),
            Sign::Blocks { after_crash: false } => f.write_str("it differs from cached blocks"),
            Sign::Blocks { after_crash: true } => f.write_str(
                "it differs from cached blocks; if nothing wrote to it, the cache device has lost its last records",
            ),
        }
    }
}

/// Findings about the origin at the start of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginCheck {
    /// The result.
    pub verdict: Verdict,
    /// Number of clean cached blocks that were compared with the origin.
    pub compared: u64,
    /// Number of compared blocks that differed.
    pub differing: u64,
    /// Number of clean blocks that were dropped.
    pub dropped: u64,
}
