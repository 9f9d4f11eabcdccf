//! Assignments: an operator's changes to some settings of a volume.

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;

use forebay_core::ReplacementKind;
use forebay_core::units::missing_unit;

use crate::error::{SettingError, shortened};
use crate::kind::SettingKind;
use crate::table::{Setting, Settings};

/// A person who types fewer bytes than this without a unit means another unit.
const LEAST_TYPED: u64 = 4096;

/// New values for some settings, each setting at most once, each value valid by itself.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Assignments(Vec<(&'static str, String)>);

impl Assignments {
    /// Adds an assignment.
    ///
    /// # Errors
    /// The setting is unknown or already assigned, or the value is not valid for it.
    pub fn push(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let setting = Setting::find(name)?;
        if self.0.iter().any(|(present, _)| *present == setting.name) {
            return Err(SettingError::Duplicate { name: setting.name.to_owned() });
        }
        let mut scratch = Settings::default();
        setting.read(&mut scratch, value)?;
        self.0.push((setting.name, setting.text(&scratch)));
        Ok(())
    }

    /// Adds an assignment that a person has typed.
    ///
    /// # Errors
    /// As [`Assignments::push`], or a number of bytes lacks a unit and is absurdly small without.
    pub fn push_typed(&mut self, name: &str, value: &str) -> Result<(), SettingError> {
        let setting = Setting::find(name)?;
        let read = |value: &str| {
            let mut scratch = Settings::default();
            setting.read(&mut scratch, value).is_ok() && scratch.validate().is_ok()
        };
        let is_absurd = match setting.kind {
            SettingKind::Bytes { .. } => value.parse().is_ok_and(|bytes: u64| bytes < LEAST_TYPED),
            SettingKind::PowerOfTwo { .. } => !read(value),
            _ => false,
        };
        let reason = is_absurd.then(|| missing_unit(value, |bytes| read(&bytes.to_string())));
        match reason.flatten() {
            Some(reason) => Err(SettingError::Value { name: setting.name, reason }),
            None => self.push(name, value),
        }
    }

    /// Parses `key=value` texts.
    ///
    /// # Errors
    /// As [`Assignments::push_typed`], or a text has no `=`.
    pub fn parse<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Result<Self, SettingError> {
        let mut all = Assignments::default();
        for text in texts {
            let text = text.as_ref();
            let no_value = || SettingError::NoValue { given: shortened(text) };
            let (name, value) = text.split_once('=').ok_or_else(no_value)?;
            all.push_typed(name, value)?;
        }
        Ok(all)
    }

    /// Whether there are no assignments.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns names and normalised values, in the order in which they were given.
    pub fn iter(&self) -> impl Iterator<Item = (&'static str, &str)> {
        self.0.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Applies all assignments to `settings`, or none of them.
    ///
    /// # Errors
    /// The resulting settings contradict each other.
    pub fn apply(&self, settings: &mut Settings) -> Result<(), SettingError> {
        let mut changed = settings.clone();
        for (name, value) in &self.0 {
            Setting::find(name)?.read(&mut changed, value)?;
        }
        changed.validate()?;
        *settings = changed;
        Ok(())
    }
}

/// Returns the word that takes the place of a stored value which has been withdrawn.
pub fn successor(setting: &str, value: &str) -> Option<&'static str> {
    if !matches!(setting, "policy" | "ram_policy") {
        return None;
    }
    let found = ReplacementKind::WITHDRAWN.iter().find(|(_, name, _)| *name == value);
    found.map(|(_, _, successor)| successor.name())
}

/// Assignments that a program has stored, perhaps one of another version: values that have been
/// withdrawn are replaced.
pub(crate) struct Stored(pub(crate) Assignments);

impl<'de> Deserialize<'de> for Stored {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries { stored: true }).map(Stored)
    }
}

impl Serialize for Assignments {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for Assignments {
    /// Reads an object of strings, whole numbers and booleans; a duplicate key is an error.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_map(Entries { stored: false })
    }
}

/// Reads an object of settings.
struct Entries {
    /// By a program, not by an operator.
    stored: bool,
}

impl<'de> Visitor<'de> for Entries {
    type Value = Assignments;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("an object of settings, like {\"dirty_high\": 60}")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Assignments, A::Error> {
        let mut all = Assignments::default();
        while let Some(name) = map.next_key::<String>()? {
            let text = match map.next_value::<Value>()? {
                Value::String(text) => text,
                Value::Number(number) => number.to_string(),
                Value::Bool(value) => value.to_string(),
                _ => {
                    return Err(A::Error::custom(format!(
                        "{}: neither a string nor a number nor a boolean",
                        shortened(&name)
                    )));
                }
            };
            let successor = successor(&name, &text).filter(|_| self.stored);
            all.push(&name, successor.unwrap_or(&text)).map_err(A::Error::custom)?;
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn json_with_doubled_keys_or_other_values_is_refused() {
        for bad in [
            r#"{"mode":"wb","mode":"wt"}"#,
            r#"{"mode":["wb"]}"#,
            r#"{"mode":null}"#,
            r#"{"dirty_high":-1}"#,
            r#"{"dirty_high":5.5}"#,
            r#"{"nope":1}"#,
            r#"["mode"]"#,
        ] {
            assert!(serde_json::from_str::<Assignments>(bad).is_err(), "{bad}");
        }
        assert!(serde_json::from_str::<Assignments>(r#"{"dirty_high":60,"idle":"5m"}"#).is_ok());
    }

    #[test]
    fn a_withdrawn_policy_is_replaced_but_refused_if_typed() {
        for setting in ["policy", "ram_policy"] {
            let text = format!(r#"{{"{setting}":"auto"}}"#);
            let stored: Settings = serde_json::from_str(&text).expect("it was stored");
            let now = ReplacementKind::S3Fifo;
            assert_eq!((stored.policy, stored.ram_policy), (now, now));
            let typed = serde_json::from_str::<Assignments>(&text).expect_err("it was typed");
            let typed = typed.to_string();
            assert!(typed.contains("w-tinylfu") && typed.contains("'auto'"), "{typed}");
            assert!(Assignments::parse([format!("{setting}=auto")]).is_err());
        }
        assert!(serde_json::from_str::<Settings>(r#"{"policy":"autos"}"#).is_err());
        let export: Settings = serde_json::from_str(r#"{"export":"auto"}"#).expect("valid");
        assert!(export.export.is_auto());
    }

    #[test]
    fn a_change_is_whole_or_nothing() {
        let mut settings = Settings::default();
        let change = Assignments::parse(["mode=wt", "dirty_low=90"]).expect("good one by one");
        assert!(change.apply(&mut settings).is_err());
        assert_eq!(settings, Settings::default());
    }
}
