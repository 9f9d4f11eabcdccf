//! Types of the admin API, shared by the daemon and the command line.
//!
//! - [`name`]: what a volume may be called
//! - [`profiles`]: settings under the names of other caches
//! - [`request`]: what a client asks for
//! - [`report`]: what a volume looks like from outside
//! - [`curve`]: what caches of other sizes would hit
//! - [`operation`]: work that takes long, and how far it is
//! - [`error`]: why a request was turned down
#![forbid(unsafe_code)]

pub mod curve;
pub mod error;
pub mod lost;
pub mod name;
pub mod operation;
pub mod profiles;
pub mod reasons;
pub mod report;
pub mod request;

pub use error::{ApiError, ErrorKind};
pub use forebay_settings::{Assignments, SETTINGS, Setting, SettingError, Settings};
pub use name::VolumeName;
pub use operation::{Operation, OperationId, OperationState, Progress, Unit};
pub use profiles::{PROFILES, Profile, ProfileName};
pub use report::{DaemonReport, VolumeList, VolumeReport, VolumeState, VolumeSummary};
pub use request::{CreateRequest, DeleteRequest, SetRequest, StartRequest};

/// Version of the API; the first component of every path.
pub const API_VERSION: &str = "v1";

/// Largest body of a request, in bytes.
pub const MAX_REQUEST_BODY: usize = 64 << 10;
