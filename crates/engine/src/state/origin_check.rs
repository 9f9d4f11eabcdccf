//! What the start of a volume has found out about its origin.

use std::fmt;

use forebay_core::identity::Difference;

/// How an origin relates to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is the volume's origin, and nothing was written to it.
    Same,
    /// It is the volume's origin, unchanged as far as can be told; why more cannot be told.
    Unclear(&'static str),
    /// It is the volume's origin, but an external writer has changed it.
    Changed(Sign),
    /// It is another device.
    Other(Difference),
}

/// What shows that an external writer has changed an origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sign {
    /// Its system says so, and how.
    System(&'static str),
    /// Another volume has used it since.
    OtherVolume,
    /// Samples of its content differ.
    Samples,
    /// The start of a partition, or of a filesystem or volume in one, differs.
    Starts,
    /// It differs from clean blocks of the cache.
    Blocks {
        /// Lost records of the log may be the cause as well: those that no later one confirms look torn.
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

/// What the start of a volume has found out about its origin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OriginCheck {
    /// The result.
    pub verdict: Verdict,
    /// Clean cached blocks that were compared with the origin.
    pub compared: u64,
    /// Those among them that differed.
    pub differing: u64,
    /// Clean blocks that were dropped.
    pub dropped: u64,
}
