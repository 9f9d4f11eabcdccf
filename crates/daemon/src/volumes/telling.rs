//! Events of commands on volumes.

use std::path::Path;
use std::sync::Arc;

use forebay_admin::{ApiError, ErrorKind, EventKind, SETTINGS, VolumeName};
use forebay_core::units::format_size;

use super::Volumes;
use crate::events::{Events, NewEvent};
use crate::host_api::{BlockTask, Definition};
use crate::memory;

impl Volumes {
    /// Returns the events.
    pub(crate) fn events(&self) -> &Arc<Events> {
        self.state.events()
    }

    /// Records an event about a volume.
    pub(super) fn tell(&self, name: &VolumeName, event: NewEvent) {
        self.events().record(event.volume(name));
    }

    pub(super) fn tell_created(&self, volume: &Definition, adopted: bool) {
        let Definition { name, origin, cache, settings, .. } = volume;
        let (kind, how) = match adopted {
            true => (EventKind::Adopted, "adopted from its cache device"),
            false => (EventKind::Created, "created"),
        };
        let said = format!("volume '{name}' was {how}: origin {origin}, cache {cache}");
        let event = NewEvent::new(kind, said).with("origin", &**origin).with("cache", &**cache);
        self.tell(name, event.with("mode", settings.mode.name()));
    }

    pub(super) fn tell_deleted(&self, name: &VolumeName, discard_dirty: bool) {
        let how = if discard_dirty { ", and its dirty blocks were discarded" } else { "" };
        let event = NewEvent::new(EventKind::Deleted, format!("volume '{name}' was deleted{how}"));
        self.tell(name, event.with("discard_dirty", discard_dirty));
    }

    pub(super) fn tell_export_lost(&self, name: &VolumeName, former: Option<&Path>) {
        let former = former.map_or_else(String::new, |device| device.display().to_string());
        let said = format!(
            "another program has ended {former}, the block device of volume '{name}'; the volume gets another one"
        );
        tracing::error!(volume = %name, "{said}");
        self.tell(name, NewEvent::new(EventKind::ExportLost, said).with("former", former));
    }

    pub(super) fn tell_started(&self, name: &VolumeName, forced: bool) {
        let how = if forced { ", by force" } else { "" };
        let event = NewEvent::new(EventKind::Started, format!("volume '{name}' is served{how}"));
        self.tell(name, event.with("forced", forced));
    }

    pub(super) fn tell_start_failed(&self, name: &VolumeName, error: &ApiError) {
        let said = format!("volume '{name}' cannot be served: {error}");
        self.tell(name, NewEvent::new(EventKind::StartFailed, said).with("error", &*error.message));
    }

    pub(super) fn tell_stopped(&self, name: &VolumeName, forced: bool) {
        let how = if forced { ", by force" } else { "" };
        let event = NewEvent::new(EventKind::Stopped, format!("volume '{name}' was stopped{how}"));
        self.tell(name, event.with("forced", forced));
    }

    /// Records each setting that differs.
    pub(super) fn tell_settings(&self, old: &Definition, new: &Definition) {
        for setting in SETTINGS {
            let (from, to) = (setting.text(&old.settings), setting.text(&new.settings));
            if from == to {
                continue;
            }
            let (name, key) = (&new.name, setting.name);
            let event = match key {
                "mode" => NewEvent::new(
                    EventKind::ModeSwitched,
                    format!("the mode of volume '{name}' was changed from {from} to {to}"),
                ),
                _ => NewEvent::new(
                    EventKind::SettingChanged,
                    format!("{key} of volume '{name}' was changed from {from} to {to}"),
                )
                .with("setting", key),
            };
            self.tell(name, event.with("from", from).with("to", to));
        }
    }

    pub(super) fn tell_pins(&self, name: &VolumeName, task: &BlockTask) {
        let (BlockTask::Pin(ranges) | BlockTask::Unpin(ranges)) = task else { return };
        let (count, bytes) = (ranges.len(), ranges.iter().map(|range| range.len).sum::<u64>());
        let what = format!("{count} ranges of volume '{name}', {},", format_size(bytes));
        let event = match task {
            BlockTask::Pin(_) => NewEvent::new(EventKind::Pinned, format!("{what} were pinned")),
            _ if ranges.is_empty() => NewEvent::new(
                EventKind::Unpinned,
                format!("nothing of volume '{name}' is pinned any more"),
            ),
            _ => NewEvent::new(EventKind::Unpinned, format!("{what} are no longer pinned")),
        };
        self.tell(name, event.with("ranges", count).with("bytes", bytes));
    }

    /// Records that a command failed because of a device or the system, and not because of the
    /// request.
    pub(super) fn tell_failed(&self, name: &VolumeName, verb: &str, error: &ApiError) {
        if error.kind == ErrorKind::Failed {
            let said = format!("'{verb}' of volume '{name}' failed: {error}");
            let event = NewEvent::new(EventKind::OperationFailed, said).with("verb", verb);
            self.tell(name, event.with("error", &*error.message));
        }
    }

    /// Changes the memory limit until the daemon ends.
    ///
    /// # Errors
    /// The limit is too low, or higher than the memory that exists; nothing has changed then.
    pub(crate) fn set_memory_limit(&self, limit: u64) -> Result<(), ApiError> {
        let from = self.memory().limit();
        memory::set_limit(self.memory(), limit)?;
        let said = format!(
            "the memory limit was changed from {} to {}",
            format_size(from),
            format_size(limit)
        );
        let event = NewEvent::new(EventKind::MemoryLimitChanged, said);
        self.events().record(event.with("from", from).with("to", limit));
        Ok(())
    }
}
