//! The data of a volume that is lost with its cache device, because the origin was older.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::VolumeName;
use crate::ranges::ByteRange;

/// The answer to `GET /v1/volumes/NAME/lost`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LostReport {
    /// The volume.
    pub volume: VolumeName,
    /// Whether anything is known; `false` if the volume was never served with a note.
    pub known: bool,
    /// Whether the ranges are exactly the lost ones. Otherwise they may include more, because the
    /// daemon ended without noting what had been written back since.
    pub exact: bool,
    /// Bytes in all ranges.
    pub bytes: u64,
    /// The ranges, ascending.
    pub ranges: Vec<ByteRange>,
}
