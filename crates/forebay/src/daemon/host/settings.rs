//! Settings: what an operator has set, and what the cache device keeps.

use forebay_core::Mode;
use forebay_settings::Settings;

use crate::daemon::host_api::Definition;

/// Settings of a volume for the engine.
pub(super) fn of(volume: &Definition) -> Settings {
    Settings { version: volume.version, ..volume.settings.clone() }
}

/// Settings as the engine has them, without what an operator cannot set.
pub(super) fn for_operator(settings: &Settings) -> Settings {
    let Settings { version, merge_bytes, .. } = Settings::default();
    Settings { version, merge_bytes, ..settings.clone() }
}

/// Whether blocks may stay dirty in this mode.
pub(super) fn keeps_dirty(mode: Mode) -> bool {
    matches!(mode, Mode::Writeback | Mode::Writeonly)
}
