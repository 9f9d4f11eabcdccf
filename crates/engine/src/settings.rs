//! Volume settings in the volume table: reading them from a record, and names of tags.

use forebay_format::VolumeRecord;
use forebay_format::volume::{
    CREATED_RECORD, DAMAGE_COUNT, DAMAGE_FIRST, QUIET_RECORD, SECTOR_BYTES,
};
use forebay_settings::{Setting, Settings};

/// Returns the settings in a volume's record.
pub fn settings_of(record: &VolumeRecord) -> Settings {
    let mut settings = Settings {
        mode: record.mode,
        durability: record.durability,
        policy: record.policy,
        ..Settings::unsaid()
    };
    settings.apply_tags(&record.settings);
    settings
}

/// Returns the name of a tag in the volume table: a setting's name, with its unit unless that is
/// bytes or a plain number, or the name of other data kept there. `None`: the tag is unknown; a
/// later version may define it.
pub fn tag_name(tag: u16) -> Option<String> {
    let other = match tag {
        DAMAGE_FIRST => "damage_first",
        DAMAGE_COUNT => "damage_count",
        CREATED_RECORD => "created_record",
        QUIET_RECORD => "quiet_record",
        SECTOR_BYTES => "sector_bytes",
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
        for own in [DAMAGE_FIRST, DAMAGE_COUNT, CREATED_RECORD, QUIET_RECORD, SECTOR_BYTES] {
            assert!(Setting::of_tag(own).is_none(), "{own}");
        }
    }
}
