//! The clients of a volume.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The connection of a client.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Transport {
    /// By a unix socket, on the daemon's machine.
    Unix,
    /// By TCP.
    Tcp,
}

/// One connection of a client that has the volume open.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ClientReport {
    /// The front end, as in the setting `export`.
    pub front_end: String,
    /// Its connection.
    pub transport: Transport,
    /// The address and port of a client by TCP; `null` for others, and if it is unknown.
    pub address: Option<String>,
    /// The process that has connected by the unix socket; `null` for others, and if the daemon
    /// cannot see it.
    pub pid: Option<u32>,
    /// The name of that process; `null` if it has ended.
    pub process: Option<String>,
}
