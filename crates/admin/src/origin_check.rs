//! The origin of a volume, and the check of it by the last start.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::displaced::DisplacedReport;

/// The origin of a volume.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OriginReport {
    /// The device as the operator named it.
    pub path: String,
    /// Size in bytes; 0 if the volume was never started.
    pub size: u64,
    /// The logical sectors that clients see, in bytes; `null` while the volume is not served.
    #[serde(default)]
    pub sector_bytes: Option<u32>,
    /// Whether it is only read, and clients may only read; `null` while the volume is not served.
    #[serde(default)]
    pub read_only: Option<bool>,
    /// Whether distance costs time on it, as the setting or the origin says; `null` while the
    /// volume is not served.
    #[serde(default)]
    pub rotational: Option<bool>,
    /// The result of the check by the last start; `null` for a new volume and for one that is not
    /// served.
    #[serde(default)]
    pub check: Option<OriginCheckReport>,
    /// The way in which its path no longer leads to it; `null` if the path does.
    #[serde(default)]
    pub displaced: Option<DisplacedReport>,
}

/// Whether an origin is as its volume has left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OriginFound {
    /// It is known that nothing was written to it.
    Unchanged,
    /// Nothing shows that something was written to it.
    Unclear,
    /// Something was written to it.
    Changed,
    /// It is another device, accepted by force.
    Other,
}

/// The result of the check of an origin by the start of its volume.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct OriginCheckReport {
    /// The result.
    pub found: OriginFound,
    /// The evidence for the result, or the reason why no more can be said.
    pub evidence: String,
    /// Clean cached blocks that were compared with the origin.
    pub compared: u64,
    /// Compared blocks that differed.
    pub differing: u64,
    /// Clean blocks that were dropped.
    pub dropped: u64,
}
