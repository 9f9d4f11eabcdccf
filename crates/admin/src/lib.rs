//! Types of the admin API, shared by the daemon and the command line.
//!
//! - [`name`]: names of volumes
//! - [`profiles`]: settings that imitate other caches
//! - [`api`]: every request, declared once; [`endpoint`]: the parts of a declaration
//! - [`request`]: bodies of requests
//! - [`declared`]: the file that declares all volumes
//! - [`ranges`]: ranges of a volume that are pinned, evicted or read ahead
//! - [`report`]: state and statistics of a volume
//! - [`activity`]: rates between two reports
//! - [`curve`]: hit ratios of caches of other sizes
//! - [`event`]: events of volumes, devices and the daemon
//! - [`operation`]: long-running operations and their progress
//! - [`schema`]: JSON schemas of all of these, for the description of the API
//! - [`error`]: why a request was refused
//! - [`text`]: numbers as text
#![forbid(unsafe_code)]

pub mod activity;
#[expect(missing_docs, reason = "each has a summary, for programs too")]
pub mod api;
pub mod curve;
pub mod declared;
mod displaced;
pub mod endpoint;
pub mod error;
pub mod event;
pub mod lost;
pub mod name;
pub mod operation;
pub mod origin_check;
pub mod profiles;
pub mod ranges;
pub mod reasons;
pub mod report;
pub mod request;
pub mod schema;
pub mod text;

pub use declared::Declared;
pub use error::{ApiError, ErrorBody, ErrorKind};
pub use event::{Event, EventId, EventKind, EventList, Severity};
pub use forebay_settings::{Assignments, SETTINGS, Setting, SettingError, Settings};
pub use name::VolumeName;
pub use operation::{Moved, Operation, OperationId, OperationState, Progress, Unit};
pub use profiles::{PROFILES, Profile, ProfileName};
pub use ranges::{ByteRange, PinReport, RangesRequest};
pub use report::{
    DaemonReport, LogReport, ReportList, VolumeList, VolumeReport, VolumeState, VolumeSummary,
};
pub use request::{
    CreateRequest, DeleteRequest, DropRequest, HandOverRequest, MemoryRequest, SetRequest,
    StartRequest, StopRequest,
};

/// Largest body of a request, in bytes.
pub const MAX_REQUEST_BODY: usize = 64 << 10;
