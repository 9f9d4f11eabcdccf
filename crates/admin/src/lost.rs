//! What of a volume was newer on its cache device than on its origin, when that device is lost.

use serde::{Deserialize, Serialize};

use crate::name::VolumeName;
use crate::report::LostRange;

/// The answer to `GET /v1/volumes/NAME/lost`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LostReport {
    /// The volume.
    pub volume: VolumeName,
    /// Whether anything is known; `false` of a volume that was never served with a note.
    pub known: bool,
    /// The ranges are neither more nor less than what is lost; otherwise they may be more, because the
    /// daemon ended without noting what had been written back since.
    pub exact: bool,
    /// Bytes in all of them.
    pub bytes: u64,
    /// The ranges, ascending.
    pub ranges: Vec<LostRange>,
}
