//! Why a setting is turned down.

/// Why a setting was turned down.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no setting of this name.
    #[error("'{given}' is not a setting; choose one of {choices}")]
    Unknown {
        /// What was given.
        given: String,
        /// Those that there are.
        choices: String,
    },
    /// The same setting twice in one request.
    #[error("{name}: given twice; give each setting once")]
    Duplicate {
        /// The setting.
        name: String,
    },
    /// Not of the form `key=value`.
    #[error("'{given}' is not a setting; write key=value, like dirty_high=60")]
    NoValue {
        /// What was given.
        given: String,
    },
    /// A value that the setting does not take, alone or beside the others.
    #[error("{name}: {reason}")]
    Value {
        /// The setting.
        name: &'static str,
        /// What is wrong, and what would be right.
        reason: String,
    },
}

impl SettingError {
    /// The name of the setting at fault, as far as it is known.
    pub fn field(&self) -> &str {
        match self {
            SettingError::Unknown { given, .. } | SettingError::NoValue { given } => given,
            SettingError::Duplicate { name } => name,
            SettingError::Value { name, .. } => name,
        }
    }
}

/// What somebody gave, as far as an error message can show it.
pub fn shortened(text: &str) -> String {
    text.escape_debug().take(60).collect()
}
