//! The ranges of a volume that are lost with its cache device.

use std::ops::Range;

use forebay_admin::VolumeName;
use forebay_admin::lost::LostReport;
use forebay_admin::ranges::ByteRange;
use forebay_engine::Ledger;

use super::EngineHost;

impl EngineHost {
    /// See [`crate::host_api::Reports::lost`].
    pub(super) fn lost_of(&self, name: &VolumeName) -> LostReport {
        if let Ok(running) = self.served.get(name) {
            let volume = &running.volume;
            // Data on a failed device may be unreadable, even if reads have succeeded so far.
            if let Some(noted) = volume.noted_ranges() {
                return report(name, true, true, noted);
            }
            if !running.store().health.failed() {
                return report(name, true, true, volume.bad_ranges());
            }
            // Until the dirty blocks of a device that has just failed are noted, only regions are
            // known.
        }
        match self.caches.notes.note_of(name.as_str()) {
            Some(note) => report(name, true, note.exact, note.dirty),
            None => report(name, false, false, Vec::new()),
        }
    }
}

fn report(name: &VolumeName, known: bool, exact: bool, dirty: Vec<Range<u64>>) -> LostReport {
    let ranges: Vec<ByteRange> = dirty
        .into_iter()
        .map(|range| ByteRange { offset: range.start, len: range.end - range.start })
        .collect();
    let bytes = ranges.iter().map(|range| range.len).sum();
    LostReport { volume: name.clone(), known, exact, bytes, ranges }
}
