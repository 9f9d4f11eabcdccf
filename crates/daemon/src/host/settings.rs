//! Converts settings between the operator's and the cache device's.

use forebay_settings::Settings;

use crate::host_api::Definition;

/// Returns the settings of a volume for the engine.
pub(super) fn of(volume: &Definition) -> Settings {
    Settings { version: volume.version, ..volume.settings.clone() }
}

/// Returns the engine's settings, with internal values reset to their defaults.
pub(super) fn for_operator(settings: &Settings) -> Settings {
    let Settings { version, merge_bytes, .. } = Settings::default();
    Settings { version, merge_bytes, ..settings.clone() }
}
