//! Settings as JSON: an object with every setting.

use serde::de::{Deserialize, Deserializer, Error as _};
use serde::ser::{Serialize, SerializeMap, Serializer};

use crate::assignments::Stored;
use crate::table::{SETTINGS, Settings};

impl Serialize for Settings {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(Some(SETTINGS.len()))?;
        for setting in SETTINGS {
            map.serialize_entry(setting.name, &(setting.json)(self, &setting.kind))?;
        }
        map.end()
    }
}

impl<'de> Deserialize<'de> for Settings {
    /// Reads settings that a program has written, perhaps one of another version: an absent one is
    /// as in [`Settings::unsaid`], and a withdrawn value is replaced.
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut settings = Settings::unsaid();
        Stored::deserialize(deserializer)?.0.apply(&mut settings).map_err(D::Error::custom)?;
        Ok(settings)
    }
}
