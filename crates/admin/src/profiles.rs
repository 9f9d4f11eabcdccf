//! Profiles: named settings that make a volume behave like another cache, as documented.
//!
//! - [`tables`]: the settings of each profile, with their sources
//!
//! A profile is the starting point for a new volume: explicit settings of the request take
//! precedence, and settings that the profile does not name have Forebay's defaults. The volume does
//! not remember its profile.

pub mod tables;

use std::fmt::{self, Write as _};
use std::str::FromStr;

use forebay_core::units::parse_size;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use forebay_settings::error::shortened;
use forebay_settings::help::wrapped;
use forebay_settings::{Setting, SettingError, Settings};
pub use tables::PROFILES;

/// The one choice that is not a setting, because it cannot be changed on an existing volume.
const BLOCK_SIZE: &str = "block_size";

/// One setting of a profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Choice {
    /// The name of a setting, or `block_size`.
    pub setting: &'static str,
    /// Its value, as `forebay set` takes it.
    pub value: &'static str,
    /// The document and the place in it that specify the value.
    pub source: &'static str,
}

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// The imitated system, and its version or year.
    pub system: &'static str,
    /// The documents; the sources of the settings refer to them by their first word.
    pub documents: &'static [&'static str],
    /// Its settings.
    pub settings: &'static [Choice],
    /// Features of that system that Forebay lacks, in whole sentences; empty: none of importance.
    pub lacks: &'static str,
}

/// The answer to `GET /v1/profiles`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
pub struct ProfileList {
    /// The profiles.
    pub profiles: &'static [Profile],
}

impl Profile {
    /// Returns the defaults with the profile's settings applied.
    ///
    /// # Errors
    /// A value is not valid for its setting; this cannot happen for [`PROFILES`].
    pub fn settings(&self) -> Result<Settings, SettingError> {
        let mut settings = Settings::default();
        for choice in self.changeable() {
            Setting::find(choice.setting)?.read(&mut settings, choice.value)?;
        }
        settings.validate()?;
        Ok(settings)
    }

    /// Returns its block size in bytes, if it has one.
    pub fn block_size(&self) -> Option<u64> {
        let choice = self.settings.iter().find(|choice| choice.setting == BLOCK_SIZE)?;
        parse_size(choice.value).ok()
    }

    fn changeable(&self) -> impl Iterator<Item = &'static Choice> {
        self.settings.iter().filter(|choice| choice.setting != BLOCK_SIZE)
    }

    /// Returns the commands that apply its settings to an existing volume. A volume without a RAM
    /// tier gets one only when it is started.
    pub fn commands(&self) -> String {
        let assignments =
            self.changeable().map(|choice| format!(" {}={}", choice.setting, choice.value));
        let set = format!("forebay set NAME{}", assignments.collect::<String>());
        match self.changeable().any(|choice| choice.setting == "ram") {
            true => format!("forebay stop NAME && {set} && forebay start NAME"),
            false => set,
        }
    }

    /// Returns the table as text for people, in lines of about 100 characters.
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
        let documents: Vec<String> =
            self.documents.iter().map(|document| format!("Source: {document}.")).collect();
        let lacks = (!self.lacks.is_empty()).then(|| format!("Not available: {}", self.lacks));
        let command = format!("For an existing volume: {}", self.commands());
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
    /// Returns the profile.
    pub fn profile(self) -> &'static Profile {
        self.0
    }
}

/// The text is not the name of a profile.
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
    fn the_set_command_of_a_profile_gives_its_settings() {
        for profile in PROFILES {
            let commands = profile.commands();
            let set = commands
                .split(" && ")
                .find_map(|command| command.strip_prefix("forebay set NAME "));
            let mut settings = Settings::default();
            let changes = set.expect("a change").split(' ');
            let changes = crate::Assignments::parse(changes).expect(profile.name);
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
