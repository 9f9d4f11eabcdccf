//! Settings in the volume table: numbers with tags.

use crate::table::{INTERNAL, SETTINGS, Setting, Settings};

/// From this tag on, settings that are as [`Settings::unsaid`] are left out: each tag takes space
/// in the volume table, which many volumes need for the samples of their origins. Their values
/// there must not change.
const OMITTED_FROM: u16 = 40;

impl Settings {
    /// Returns the settings without fields of their own in the volume table, by tag.
    pub fn to_tags(&self) -> Vec<(u16, u64)> {
        let unsaid = Settings::unsaid();
        let all = SETTINGS.iter().chain(INTERNAL);
        let numbers = all.filter_map(|it| Some((it, it.tag?, (it.to_number)(self))));
        let written = numbers.filter(|(setting, tag, number)| {
            *tag < OMITTED_FROM || *number != (setting.to_number)(&unsaid)
        });
        let mut tags: Vec<_> = written.map(|(_, tag, number)| (tag, number)).collect();
        tags.sort_unstable();
        tags
    }

    /// Returns the tags of [`Settings::to_tags`], and those of `old` that only a later version
    /// knows.
    pub fn to_tags_beside(&self, old: &[(u16, u64)]) -> Vec<(u16, u64)> {
        let mut tags = self.to_tags();
        tags.extend(old.iter().filter(|(tag, _)| Setting::of_tag(*tag).is_none()));
        tags
    }

    /// Applies numbers from [`Settings::to_tags`]; unknown tags and invalid values are ignored.
    pub fn apply_tags(&mut self, tags: &[(u16, u64)]) {
        for &(tag, number) in tags {
            if let Some(setting) = Setting::of_tag(tag) {
                (setting.apply_number)(self, number, &setting.kind);
            }
        }
    }
}
