//! The settings of a volume as the volume table has them.

use forebay_format::VolumeRecord;
use forebay_format::volume::{CREATED_RECORD, DAMAGE_COUNT, DAMAGE_FIRST, QUIET_RECORD};
use forebay_settings::{Setting, Settings};

/// The settings that a volume's record says.
pub fn settings_of(record: &VolumeRecord) -> Settings {
    let mut settings = Settings {
        mode: record.mode,
        durability: record.durability,
        policy: record.policy,
        ..Settings::default()
    };
    settings.apply_tags(&record.settings);
    settings
}

/// What a tag in the volume table stands for: the name of a setting, with the unit where that is not bytes
/// or a plain number, or of what else is kept there. `None`: only a later program knows it.
pub fn tag_name(tag: u16) -> Option<String> {
    let other = match tag {
        DAMAGE_FIRST => "damage_first",
        DAMAGE_COUNT => "damage_count",
        CREATED_RECORD => "created_record",
        QUIET_RECORD => "quiet_record",
        _ => return Setting::of_tag(tag).map(Setting::tag_name),
    };
    Some(other.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tag_has_a_name_of_its_own() {
        let tags = Settings::default().to_tags();
        let names: std::collections::HashSet<_> =
            tags.iter().map(|(tag, _)| tag_name(*tag).unwrap_or_else(|| panic!("{tag}"))).collect();
        assert_eq!(names.len(), tags.len());
        assert!(names.contains("dirty_age_ms"));
        assert_eq!(tag_name(60_000), None);
        for own in [DAMAGE_FIRST, DAMAGE_COUNT, CREATED_RECORD, QUIET_RECORD] {
            assert!(Setting::of_tag(own).is_none(), "{own}");
        }
    }
}
