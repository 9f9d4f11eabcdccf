//! The daemon itself.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// State of the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct DaemonReport {
    /// Version of the daemon.
    pub version: String,
    /// Its process id.
    pub pid: u32,
    /// The directory of its state.
    pub state_dir: String,
    /// Number of lanes.
    pub lanes: u32,
    /// NBD addresses it listens on.
    pub nbd: Vec<String>,
    /// The program that it runs.
    #[serde(default)]
    pub program: String,
    /// Replacements of its program without disconnecting clients.
    #[serde(default)]
    pub hand_overs: u64,
    /// Whether every volume is served again that was served when it began.
    #[serde(default = "always")]
    pub ready: bool,
}

/// Daemons that do not say whether they are ready are.
fn always() -> bool {
    true
}
