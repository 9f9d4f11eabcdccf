//! Why a setting was refused.

/// Why a setting was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no setting of this name.
    #[error("'{given}' is not a setting; {remedy}")]
    Unknown {
        /// The given name.
        given: String,
        /// The name that was probably meant, or else the names of all settings.
        remedy: String,
    },
    /// The same setting twice in one request.
    #[error("{name}: given twice; give each setting once")]
    Duplicate {
        /// The setting.
        name: String,
    },
    /// The text is not of the form `key=value`.
    #[error("'{given}' is not a setting; write key=value, like dirty_high=60")]
    NoValue {
        /// The given text.
        given: String,
    },
    /// The value is not valid for the setting, alone or together with the others.
    #[error("{name}: {reason}")]
    Value {
        /// The setting.
        name: &'static str,
        /// The problem, and a valid alternative.
        reason: String,
    },
}

impl SettingError {
    /// Returns the name of the setting at fault, or the text given instead.
    pub fn field(&self) -> &str {
        match self {
            SettingError::Unknown { given, .. } | SettingError::NoValue { given } => given,
            SettingError::Duplicate { name } => name,
            SettingError::Value { name, .. } => name,
        }
    }
}

/// Returns given text, escaped and cut to 60 characters for an error message.
pub fn shortened(text: &str) -> String {
    text.escape_debug().take(60).collect()
}
