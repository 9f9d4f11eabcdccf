//! Volume settings in the volume table: reading them from a record, and names of tags.

use forebay_core::ReplacementKind;
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

/// Returns the settings in a volume's record whose values are withdrawn: the name, the withdrawn
/// value, and its replacement.
fn withdrawn(record: &VolumeRecord) -> Vec<(&'static str, &'static str, ReplacementKind)> {
    let policy = record.withdrawn_policy.map(|old| ("policy", old, record.policy));
    let in_ram = record.settings.iter().filter_map(|(tag, number)| {
        let setting = Setting::of_tag(*tag).filter(|setting| setting.name == "ram_policy")?;
        let code = u8::try_from(*number).ok()?;
        let old = ReplacementKind::withdrawn_name(code)?;
        Some((setting.name, old, ReplacementKind::from_code(code)?))
    });
    policy.into_iter().chain(in_ram).collect()
}

/// Logs which settings of a volume have withdrawn values, and the values that are in force.
pub(crate) fn tell_withdrawn(record: &VolumeRecord) {
    for (setting, old, new) in withdrawn(record) {
        tracing::warn!(
            volume = record.name,
            "{setting}={old} was withdrawn; {setting}={new} is in its place"
        );
    }
}

/// Returns the name of a tag in the volume table: a setting's name, with its unit unless that is
/// bytes or a plain number, or the name of other data. `None` if the tag is unknown, because a
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
    use forebay_core::{Durability, Mode, VolumeId};
    use forebay_format::Uuid;

    use super::*;

    #[test]
    fn withdrawn_policies_are_told_with_their_successors() {
        let tag = |name| Setting::find(name).ok().and_then(|setting| setting.tag).expect("a tag");
        let record = VolumeRecord {
            id: VolumeId(1),
            uuid: Uuid::from_u128(1),
            name: "a".to_owned(),
            origin: "/o".to_owned(),
            origin_bytes: 1 << 20,
            alignment: 0,
            mode: Mode::Writeback,
            durability: Durability::Flush,
            policy: ReplacementKind::S3Fifo,
            withdrawn_policy: ReplacementKind::withdrawn_name(14),
            started: true,
            fingerprint: None,
            identity: None,
            left: Default::default(),
            samples: None,
            settings: vec![(tag("ram_policy"), 14), (tag("idle"), 14)],
        };
        let now = ReplacementKind::S3Fifo;
        let expected = vec![("policy", "auto", now), ("ram_policy", "auto", now)];
        assert_eq!(withdrawn(&record), expected);
        let settings = settings_of(&record);
        assert_eq!((settings.policy, settings.ram_policy), (now, now));
        let current = ReplacementKind::Lru.code().into();
        let settings = vec![(tag("ram_policy"), current)];
        let other = VolumeRecord { withdrawn_policy: None, settings, ..record };
        assert_eq!(withdrawn(&other), []);
    }

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
