//! Requests as the oracles judge them, and the invariants that the oracles find broken.

use std::fmt;

use forebay_core::{Op, Survives};

use crate::history::VersionId;
use crate::stamp::{SectorAddress, Value};

/// A broken invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    /// Number of the invariant in the contract.
    pub invariant: u32,
    /// The sector, if the violation concerns data.
    pub place: Option<SectorAddress>,
    /// The admissible values.
    pub expected: Vec<Value>,
    /// The value that was found.
    pub got: String,
    /// A sentence about the circumstances.
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "invariant {}: {}", self.invariant, self.what)?;
        if let Some(place) = self.place {
            let expected: Vec<_> = self.expected.iter().map(Value::to_string).collect();
            write!(f, "; {place}: expected {}, got {}", expected.join(" or "), self.got)?;
        }
        Ok(())
    }
}

/// One request of a client.
#[derive(Clone, Copy, Debug)]
pub struct Asked {
    /// Index of the volume.
    pub volume: u16,
    /// The kind of operation.
    pub op: Op,
    /// First sector.
    pub first: u64,
    /// Sectors.
    pub sectors: u64,
    /// Failures that the effect must survive once the request has ended; none for a discard.
    pub survives: Survives,
    /// Number of the write or discard within its volume; 0 for other requests.
    pub id: VersionId,
}
