//! Profiles: a name for the settings that make a volume behave as another cache is documented to.
//!
//! - [`tables`]: what each of them sets, and where that is written down
//!
//! A profile is a starting point of a new volume: what a request says beside it wins, and settings
//! that it does not name have Forebay's defaults. The volume does not remember that it had one.

pub mod tables;

use std::fmt::{self, Write as _};
use std::str::FromStr;

use forebay_core::units::parse_size;
use serde::{Deserialize, Serialize};

use forebay_settings::error::shortened;
use forebay_settings::help::wrapped;
use forebay_settings::{Setting, SettingError, Settings};
pub use tables::PROFILES;

/// The setting of a profile that is none of a volume, because it cannot be changed on a volume.
const BLOCK_SIZE: &str = "block_size";

/// One setting of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Choice {
    /// The name of a setting, or `block_size`.
    pub setting: &'static str,
    /// Its value, as `forebay set` takes it.
    pub value: &'static str,
    /// Which document says so, and where in it.
    pub source: &'static str,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Profile {
    /// What it is called.
    pub name: &'static str,
    /// The system that is meant, and from when.
    pub system: &'static str,
    /// The documents that the sources of its settings name by their first word.
    pub documents: &'static [&'static str],
    /// What it sets.
    pub settings: &'static [Choice],
    /// What that system has and Forebay does not, in whole sentences; empty: nothing of weight.
    pub lacks: &'static str,
}

impl Profile {
    /// What it sets, beside the defaults.
    ///
    /// # Errors
    /// A value that its setting does not take; there is none in [`PROFILES`].
    pub fn settings(&self) -> Result<Settings, SettingError> {
        let mut settings = Settings::default();
        for choice in self.changeable() {
            Setting::find(choice.setting)?.read(&mut settings, choice.value)?;
        }
        settings.validate()?;
        Ok(settings)
    }

    /// Its unit of caching in bytes, if it says one.
    pub fn block_size(&self) -> Option<u64> {
        let choice = self.settings.iter().find(|choice| choice.setting == BLOCK_SIZE)?;
        parse_size(choice.value).ok()
    }

    fn changeable(&self) -> impl Iterator<Item = &'static Choice> {
        self.settings.iter().filter(|choice| choice.setting != BLOCK_SIZE)
    }

    /// The command that gives its settings to a volume that is there already.
    pub fn as_command(&self) -> String {
        let assignments =
            self.changeable().map(|choice| format!(" {}={}", choice.setting, choice.value));
        format!("forebay set NAME{}", assignments.collect::<String>())
    }

    /// The table as text for people, in lines of about 100 characters.
    pub fn text(&self) -> String {
        let mut text = format!("{}: {}\n", self.name, self.system);
        let width = |of: fn(&Choice) -> &str| {
            self.settings.iter().map(|choice| of(choice).len()).max().unwrap_or(0)
        };
        let (name, value) = (width(|choice| choice.setting), width(|choice| choice.value));
        for choice in self.settings {
            let lines = wrapped(choice.source, 94_usize.saturating_sub(name + value));
            for (index, line) in lines.iter().enumerate() {
                let first = index == 0;
                let [left, middle] = if first { [choice.setting, choice.value] } else { ["", ""] };
                let _ = writeln!(text, "  {left:name$}  {middle:value$}  {line}");
            }
        }
        let documents: Vec<String> = self
            .documents
            .iter()
            .map(|document| format!("Where that is written: {document}."))
            .collect();
        let lacks = (!self.lacks.is_empty()).then(|| format!("Not there: {}", self.lacks));
        let command = format!("For a volume that is there already: {}", self.as_command());
        for paragraph in documents.into_iter().chain(lacks).chain([command]) {
            for line in wrapped(&paragraph, 96) {
                let _ = writeln!(text, "  {line}");
            }
        }
        text
    }
}

/// The name of one of [`PROFILES`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ProfileName(&'static Profile);

impl ProfileName {
    /// The profile.
    pub fn profile(self) -> &'static Profile {
        self.0
    }
}

/// A text that names no profile.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{given}' is not a profile; choose one of {}", names())]
pub struct ProfileError {
    given: String,
}

fn names() -> String {
    PROFILES.iter().map(|profile| profile.name).collect::<Vec<_>>().join(", ")
}

impl FromStr for ProfileName {
    type Err = ProfileError;

    fn from_str(text: &str) -> Result<Self, ProfileError> {
        let found = PROFILES.iter().find(|profile| profile.name == text);
        found.map(ProfileName).ok_or_else(|| ProfileError { given: shortened(text) })
    }
}

impl TryFrom<String> for ProfileName {
    type Error = ProfileError;

    fn try_from(text: String) -> Result<Self, ProfileError> {
        text.parse()
    }
}

impl From<ProfileName> for String {
    fn from(name: ProfileName) -> String {
        name.to_string()
    }
}

impl fmt::Display for ProfileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.0.name)
    }
}

#[cfg(test)]
mod tests {
    use forebay_core::BlockSize;

    use super::*;

    #[test]
    fn every_profile_is_valid_and_says_where_each_setting_is_from() {
        for profile in PROFILES {
            let name = profile.name;
            let settings = profile.settings().expect(name);
            assert_eq!(settings.validate(), Ok(()), "{name}");
            assert!(profile.block_size().and_then(BlockSize::new).is_some(), "{name}");
            for always in ["mode", "policy", "durability", "sequential_cutoff"] {
                assert!(profile.settings.iter().any(|choice| choice.setting == always), "{name}");
            }
            for (index, choice) in profile.settings.iter().enumerate() {
                let setting = choice.setting;
                let again = profile.settings.iter().skip(index + 1);
                assert!(again.clone().all(|other| other.setting != setting), "{name}: {setting}");
                let word = choice.source.split([' ', ',', ':']).next().expect("a first word");
                let documented =
                    profile.documents.iter().any(|document| document.starts_with(word));
                assert!(documented, "{name}: {setting}: '{word}' is no document of this profile");
            }
        }
    }

    #[test]
    fn the_command_for_a_volume_that_is_there_gives_the_same_settings() {
        for profile in PROFILES {
            let command = profile.as_command();
            let words = command.strip_prefix("forebay set NAME ").expect("a command");
            let mut settings = Settings::default();
            let changes = crate::Assignments::parse(words.split(' ')).expect(profile.name);
            changes.apply(&mut settings).expect(profile.name);
            assert_eq!(Ok(settings), profile.settings(), "{}", profile.name);
        }
    }

    #[test]
    fn names_are_read_and_others_are_refused_with_the_choices() {
        for profile in PROFILES {
            let name: ProfileName = profile.name.parse().expect("its own name");
            assert_eq!((name.profile(), name.to_string().as_str()), (profile, profile.name));
            let json = serde_json::to_string(&name).expect("plain data");
            assert_eq!(serde_json::from_str::<ProfileName>(&json).expect("own output"), name);
            assert!(profile.text().lines().all(|line| line.chars().count() <= 110), "{name}");
        }
        for bad in ["", "Bcache", "dm_cache", "bcache ", "flashcache"] {
            let error = bad.parse::<ProfileName>().expect_err(bad).to_string();
            assert!(PROFILES.iter().all(|profile| error.contains(profile.name)), "{error}");
        }
    }
}
