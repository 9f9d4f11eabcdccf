//! Ranges of a volume: pinned, evicted, read ahead.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::ApiError;

/// A range of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ByteRange {
    /// First byte.
    pub offset: u64,
    /// Length.
    pub len: u64,
}

/// Body of `POST /v1/volumes/NAME/pin`, `unpin`, `evict` and `prefetch`. Blocks that a range
/// touches are meant as a whole.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RangesRequest {
    /// The ranges, in any order. An empty list means all pinned ranges for `unpin`, and the blocks
    /// that the RAM tier held for `prefetch`.
    #[serde(default)]
    pub ranges: Vec<ByteRange>,
}

impl RangesRequest {
    /// Returns the ranges, for a verb that needs some.
    ///
    /// # Errors
    /// There is none.
    pub fn named(self) -> Result<Vec<ByteRange>, ApiError> {
        match self.ranges.is_empty() {
            true => Err(ApiError::invalid("ranges", "there is none; name at least one")),
            false => Ok(self.ranges),
        }
    }
}

/// The answer to `GET /v1/volumes/NAME/pins`.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct PinReport {
    /// Bytes of pinned blocks.
    pub pinned: u64,
    /// Pinned bytes of blocks that are cached.
    pub cached: u64,
    /// The limit of pinned bytes, of all volumes of the cache together.
    pub most: u64,
    /// The ranges, ascending.
    pub ranges: Vec<ByteRange>,
}
