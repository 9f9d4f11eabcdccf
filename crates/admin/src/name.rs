//! Names of volumes.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Name of a volume: 1 to 64 of the letters `A-Z a-z 0-9 . _ -`, the first a letter or digit.
///
/// Such a name needs no quoting in a shell, a URI, a file name or a log line.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct VolumeName(String);

/// The text is not a valid name of a volume.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "'{given}' cannot name a volume; use 1 to 64 letters, digits, '.', '_' or '-', \
     and begin with a letter or digit"
)]
pub struct NameError {
    given: String,
}

impl VolumeName {
    /// The longest name, in bytes.
    pub const MAX_LEN: usize = 64;

    /// Returns the name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for VolumeName {
    type Err = NameError;

    fn from_str(text: &str) -> Result<Self, NameError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        let first = text.bytes().next().is_some_and(|byte| byte.is_ascii_alphanumeric());
        if first && text.len() <= Self::MAX_LEN && text.bytes().all(allowed) {
            Ok(VolumeName(text.to_owned()))
        } else {
            Err(NameError { given: text.escape_debug().take(80).collect() })
        }
    }
}

impl TryFrom<String> for VolumeName {
    type Error = NameError;

    fn try_from(text: String) -> Result<Self, NameError> {
        text.parse()
    }
}

impl From<VolumeName> for String {
    fn from(name: VolumeName) -> String {
        name.0
    }
}

impl fmt::Display for VolumeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_need_no_quoting_are_taken() {
        let longest = "x".repeat(64);
        for good in ["a", "0", "vm-17", "Backup_2026.img", longest.as_str()] {
            assert_eq!(good.parse::<VolumeName>().map(String::from).as_deref(), Ok(good));
        }
    }

    #[test]
    fn all_other_names_are_refused() {
        let too_long = "x".repeat(65);
        for bad in
            ["", ".", "..", "-f", "_x", "a/b", "a b", "a\n", "a\0", "é", "a?", too_long.as_str()]
        {
            let error = bad.parse::<VolumeName>().expect_err(bad).to_string();
            assert!(!error.contains('\n') && error.contains("letters"), "{error}");
        }
        assert!(serde_json::from_str::<VolumeName>("\"a/b\"").is_err());
    }
}
