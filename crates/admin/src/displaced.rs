//! Devices in use to which their paths do not lead any more.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A device in use to which its path does not lead any more.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct DisplacedReport {
    /// `removed` or `replaced`: its content is lost once it is closed; `moved`: it is elsewhere.
    pub kind: String,
    /// The finding and the remedy, in one sentence.
    pub message: String,
    /// A path under which its content can be read until then.
    pub readable_at: String,
}
