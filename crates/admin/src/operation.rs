//! Long-running operations and their progress.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::error::ApiError;

/// Number of an operation; never reused by one daemon.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(transparent)]
pub struct OperationId(pub u64);

impl fmt::Display for OperationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for OperationId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        text.parse().map(OperationId)
    }
}

/// Unit of progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bytes.
    #[default]
    Bytes,
    /// Blocks of the cache.
    Blocks,
    /// Segments of the cache device.
    Segments,
    /// Steps of different kinds.
    Steps,
}

/// Progress of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Progress {
    /// Units done so far; may decrease when new work arrives.
    pub done: u64,
    /// Units in total as currently known; 0 while unknown.
    pub total: u64,
    /// The unit.
    pub unit: Unit,
}

impl Progress {
    /// Returns the share that is done, from 0 to 1; `None` while the total is unknown.
    pub fn share(self) -> Option<f64> {
        (self.total > 0).then(|| self.done.min(self.total) as f64 / self.total as f64)
    }
}

/// State of an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum OperationState {
    /// In progress.
    Running,
    /// Succeeded.
    Done,
    /// Failed.
    Failed,
}

/// Data that an operation has moved or discarded, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Moved {
    /// Dirty data that was written to the origin while it drained the volume.
    pub written_back: u64,
    /// Cached data that it discarded: clean data, unless it had to discard dirty data.
    pub discarded: u64,
}

/// An operation, as the API shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Operation {
    /// Its number.
    pub id: OperationId,
    /// Its verb: `create`, `set`, `flush`, `stop`, `start` or `delete`.
    pub verb: String,
    /// The volume that it works on.
    pub volume: String,
    /// Its state.
    pub state: OperationState,
    /// Its progress.
    pub progress: Progress,
    /// Milliseconds from its start until now, or until its end.
    pub elapsed_ms: u64,
    /// Data that it has moved so far, or moved until its end.
    #[serde(default)]
    pub moved: Moved,
    /// Why it failed, if it did; while it is in progress, the device that it waits for with no way
    /// back, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ApiError>,
}

/// The answer to `GET /v1/operations`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct OperationList {
    /// The operations, in progress and ended, oldest first.
    pub operations: Vec<Operation>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_never_above_one_or_of_nothing() {
        let progress = |done, total| Progress { done, total, unit: Unit::Blocks };
        assert_eq!(progress(5, 0).share(), None);
        assert_eq!(progress(9, 3).share(), Some(1.0));
        assert_eq!(progress(1, 4).share(), Some(0.25));
    }
}
