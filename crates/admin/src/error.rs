//! Why a request was turned down, in a form that a program and an operator can use.

pub use forebay_core::text::one_line;
use serde::{Deserialize, Serialize};

use crate::name::NameError;
use forebay_settings::SettingError;

/// What a caller's next step depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The request itself is wrong; nothing was touched.
    Invalid,
    /// There is no such volume, operation or path.
    NotFound,
    /// A device, name or socket is in use, or a device is not the one that belongs here.
    Refused,
    /// The volume is at work on another operation, or the daemon has too many.
    Busy,
    /// Going on would destroy data; it takes an explicit force.
    DataAtRisk,
    /// The caller may not talk to this daemon.
    Forbidden,
    /// The operation was given up on request, or because the daemon stops.
    Cancelled,
    /// Anything else: the device, the system or the daemon failed.
    Failed,
}

impl ErrorKind {
    /// Every kind.
    pub const ALL: [ErrorKind; 8] = [
        ErrorKind::Invalid,
        ErrorKind::NotFound,
        ErrorKind::Refused,
        ErrorKind::Busy,
        ErrorKind::DataAtRisk,
        ErrorKind::Forbidden,
        ErrorKind::Cancelled,
        ErrorKind::Failed,
    ];

    /// The HTTP status that goes with this kind.
    pub fn http_status(self) -> u16 {
        match self {
            ErrorKind::Invalid => 400,
            ErrorKind::Forbidden => 403,
            ErrorKind::NotFound => 404,
            ErrorKind::Refused | ErrorKind::Busy | ErrorKind::Cancelled => 409,
            ErrorKind::DataAtRisk => 412,
            ErrorKind::Failed => 500,
        }
    }

    /// The exit code of the command line: 2 usage, 3 refused, 4 data at risk, 1 the rest.
    pub fn exit_code(self) -> u8 {
        match self {
            ErrorKind::Invalid | ErrorKind::NotFound => 2,
            ErrorKind::Refused | ErrorKind::Busy => 3,
            ErrorKind::DataAtRisk => 4,
            ErrorKind::Forbidden | ErrorKind::Cancelled | ErrorKind::Failed => 1,
        }
    }
}

/// A request that was turned down: its kind, the field at fault and one line for the operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct ApiError {
    /// What to match on.
    pub kind: ErrorKind,
    /// The field of the request that is at fault, if it is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
    /// What is wrong and the way out, in one line.
    pub message: String,
}

impl ApiError {
    /// An error of this kind; line breaks in `message` become spaces.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        ApiError { kind, field: None, message: one_line(&message.into()) }
    }

    /// An [`ErrorKind::Invalid`] error about one field, which the message names.
    pub fn invalid(field: &str, message: impl std::fmt::Display) -> Self {
        ApiError::new(ErrorKind::Invalid, format!("{field}: {message}")).about(field)
    }

    /// A [`ErrorKind::Failed`] error.
    pub fn failed(message: impl Into<String>) -> Self {
        ApiError::new(ErrorKind::Failed, message)
    }

    /// The same error, about `field`.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_a_failing_status_and_exit_code() {
        for kind in ErrorKind::ALL {
            assert!((400..600).contains(&kind.http_status()));
            assert!((1..=4).contains(&kind.exit_code()));
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
