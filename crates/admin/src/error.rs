//! API errors, for programs and operators.

pub use forebay_core::text::one_line;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::NameError;
use forebay_settings::SettingError;

/// The kind of an error, which determines the caller's next step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request itself is invalid; nothing was changed.
    Invalid,
    /// The volume, operation or path does not exist.
    NotFound,
    /// A device, name or socket is in use, or a device is not the expected one.
    Refused,
    /// The volume is busy with another operation, or the daemon has too many.
    Busy,
    /// The request would destroy data; it needs an explicit force.
    DataAtRisk,
    /// The caller may not use this daemon.
    Forbidden,
    /// The operation was cancelled on request, or because the daemon stops.
    Cancelled,
    /// The operation waits for a device, can no longer be withdrawn, and ends by itself: not a
    /// failure, but its end is open.
    UnderWay,
    /// The daemon has not answered in time, says its client: a command that was sent may still be
    /// carried out.
    NoAnswer,
    /// Any other failure of the device, the system or the daemon.
    Failed,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [ErrorKind; 10] = [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::Refused,
        ErrorKind::Busy,
        ErrorKind::DataAtRisk,
        ErrorKind::Forbidden,
        ErrorKind::Cancelled,
        ErrorKind::UnderWay,
        ErrorKind::NoAnswer,
        ErrorKind::Failed,
    ];

    /// Returns the HTTP status for this kind.
    pub fn http_status(self) -> u16 {
        match self {
            ErrorKind::Invalid => 400,
            ErrorKind::Forbidden => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::Refused | ErrorKind::Busy | ErrorKind::Cancelled | ErrorKind::UnderWay => {
                409
            }
            ErrorKind::DataAtRisk => 412,
            // The daemon itself never says that it does not answer.
            ErrorKind::Failed | ErrorKind::NoAnswer => 500,
        }
    }

    /// Returns the exit code of the command line: 2 usage, 3 refused, 4 data at risk, 5 no answer
    /// or still under way, 1 the rest.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Invalid | ErrorKind::NotFound => 2,
            ErrorKind::Refused | ErrorKind::Busy => 3,
            ErrorKind::DataAtRisk => 4,
            ErrorKind::NoAnswer | ErrorKind::UnderWay => 5,
            ErrorKind::Forbidden | ErrorKind::Cancelled | ErrorKind::Failed => 1,
        }
    }
}

/// A refused request: its kind, the field at fault and one line for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error, JsonSchema)]
#[error("{message}")]
pub struct ApiError {
    /// The kind, to match on.
    pub kind: ErrorKind,
    /// The field of the request at fault, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// The problem and its remedy, in one line.
    pub message: String,
}

impl ApiError {
    /// Makes an error of this kind; line breaks in `message` become spaces.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        ApiError { kind, field: None, message: one_line(&message.into()) }
    }

    /// Makes an [`ErrorKind::Invalid`] error about one field, which the message names.
    pub fn invalid(field: &str, message: impl std::fmt::Display) -> Self {
        ApiError::new(ErrorKind::Invalid, format!("{field}: {message}")).about(field)
    }

    /// Makes an [`ErrorKind::Failed`] error.
    pub fn failed(message: impl Into<String>) -> Self {
        ApiError::new(ErrorKind::Failed, message)
    }

    /// Sets the field at fault.
    #[must_use]
    pub fn about(mut self, field: &str) -> Self {
        self.field = Some(field.to_owned());
        self
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        ApiError::invalid("name", error)
    }
}

impl From<SettingError> for ApiError {
    fn from(error: SettingError) -> Self {
        ApiError::new(ErrorKind::Invalid, error.to_string()).about(error.field())
    }
}

/// The body of an error answer.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "Refusal")]
pub struct ErrorBody {
    #[allow(missing_docs)]
    pub error: ApiError,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_failing_status_and_exit_code() {
        for kind in ErrorKind::ALL {
            assert!((400..600).contains(&kind.http_status()));
            assert!((1..=5).contains(&kind.exit_code()));
        }
    }

    #[test]
    fn messages_are_one_line_whatever_goes_in() {
        let error = ApiError::invalid("origin", "a\nb\u{1b}[31m\tc  d");
        assert_eq!(error.message, "origin: a b [31m c d");
        let json = serde_json::to_string(&error).expect("plain data");
        assert_eq!(serde_json::from_str::<ApiError>(&json).expect("own output"), error);
    }
}
