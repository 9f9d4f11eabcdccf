//! The whole table: every row is parsed, checked, encoded and described.

use forebay_core::NbdReach;

use crate::assignments::Assignments;
use crate::error::SettingError;
use crate::help::{help_text, json, markdown};
use crate::kind::SettingKind;
use crate::table::{SETTINGS, Setting, Settings};

fn set(text: &str) -> Result<Settings, SettingError> {
    let mut settings = Settings::default();
    Assignments::parse(text.split_whitespace())?.apply(&mut settings)?;
    Ok(settings)
}

#[test]
fn every_default_is_in_range_and_reads_back() {
    for setting in SETTINGS {
        let mut settings = Settings::default();
        assert_eq!(setting.read(&mut settings, &setting.default()), Ok(()), "{}", setting.name);
        assert_eq!(settings, Settings::default());
    }
    assert_eq!(Settings::default().validate(), Ok(()));
}

#[test]
fn every_word_of_a_choice_and_every_short_form_is_read() {
    for setting in SETTINGS {
        let SettingKind::Choice { words } = setting.kind else { continue };
        let range = words.join(" ");
        for word in range.split([' ', ',', '(', ')']).filter(|w| !w.is_empty()) {
            assert_eq!(setting.read(&mut Settings::default(), word), Ok(()), "{word}");
        }
    }
}

#[test]
fn every_value_that_is_listed_is_read() {
    for setting in SETTINGS {
        for value in setting.kind.listed() {
            assert_eq!(setting.read(&mut Settings::default(), value), Ok(()), "{value}");
        }
    }
    let count = |name| Setting::find(name).expect("it is there").kind.listed().len();
    assert_eq!((count("mode"), count("writeback_running"), count("idle")), (5, 2, 0));
}

#[test]
fn json_reads_back_and_keeps_types() {
    let settings =
        set("mode=wt sequential_cutoff=1000001 idle=off dirty_age=90s writeback_running=off \
             quiet_hours=22:00-06:30 writeback_rate_max=10M")
        .expect("good");
    let json = serde_json::to_value(&settings).expect("plain data");
    assert_eq!(json["mode"], "writethrough");
    assert_eq!(json["sequential_cutoff"], 1_000_001);
    assert_eq!(json["idle"], "0");
    assert_eq!(json["dirty_age"], "90s");
    assert_eq!(json["writeback_running"], false);
    assert_eq!((&json["admission"], &json["promote"]), (&"always".into(), &0.into()));
    assert_eq!(json["quiet_hours"], "22:00-06:30");
    assert_eq!(json["writeback_rate_max"], 10 << 20);
    assert_eq!(serde_json::from_value::<Settings>(json).expect("own output"), settings);
}

#[test]
fn admission_and_promote_values_read_back() {
    for rule in ["always", "second-hit", "ghost:2", "ghost:16"] {
        let settings = set(&format!("admission={rule}")).expect(rule);
        assert_eq!(Setting::find("admission").expect("it is there").text(&settings), rule);
        let json = serde_json::to_value(&settings).expect("plain data");
        assert_eq!(serde_json::from_value::<Settings>(json).expect("own output"), settings);
    }
    for shift in 11..=22 {
        let bytes = 1 << shift;
        assert_eq!(set(&format!("promote={bytes}")).expect("a power of two").promote, bytes);
    }
    assert_eq!(set("promote=256K").expect("a power of two").promote, 256 << 10);
}

#[test]
fn settings_survive_the_volume_table() {
    let settings =
        set("sequential_cutoff=7001 dirty_high=77 writeback_running=off cache_dirty_high=78 \
         cache_dirty_low=7 writeback_rate_min=5000 writeback_rate_max=1T writeback_latency=off \
         writeback_gap=12345 quiet_hours=01:00-00:59 commit_interval=250ms admission=ghost:4 \
         write_budget=5T congested_read_threshold=2ms congested_write_threshold=20ms \
         promote=256K ordered=on ram=3G ram_block=512 ram_policy=lru export=fuse \
         rotational=no nbd=off")
        .expect("good");
    let settings = Settings { version: 7, merge_bytes: 4096, ..settings };
    let mut read = Settings::default();
    read.apply_tags(&settings.to_tags());
    assert_eq!(read, settings);
    let tag = |name| Setting::find(name).expect("it is there").tag.expect("it has one");
    let odd = [("dirty_high", 101), ("cache_dirty_low", 101), ("commit_interval", 0)];
    let odd = odd.into_iter().chain([("admission", 17), ("admission", u64::MAX)]);
    let odd = odd.chain([("writeback_gap", 1 << 32), ("ram_block", 0), ("ram_policy", 99)]);
    let odd = odd.chain([1, 512, 4095, 12 << 10, 8 << 20, u64::MAX].map(|it| ("promote", it)));
    for (name, value) in odd {
        read.apply_tags(&[(tag(name), value), (9999, 1)]);
        assert_eq!(read, settings, "{name} {value}");
    }
    // 14 was `auto`.
    read.apply_tags(&[(tag("ram_policy"), 14)]);
    assert_eq!(read.ram_policy, forebay_core::ReplacementKind::S3Fifo);
    read.apply_tags(&[(tag("quiet_hours"), 0), (tag("writeback_depth"), 0)]);
    assert_eq!((read.quiet_hours, read.writeback_depth), (None, 1));
}

#[test]
fn a_volume_from_before_a_setting_keeps_what_it_had() {
    let mut read = Settings::unsaid();
    read.apply_tags(&[]);
    assert_eq!((read.nbd, Settings::default().nbd), (NbdReach::All, NbdReach::Local));
    assert_eq!(serde_json::from_str::<Settings>("{}").expect("good"), Settings::unsaid());
    for nbd in NbdReach::ALL.iter().copied() {
        let mut read = Settings::unsaid();
        read.apply_tags(&Settings { nbd, ..Settings::default() }.to_tags());
        assert_eq!(read.nbd, nbd, "it is told from one that says nothing");
    }
}

#[test]
fn every_setting_has_a_tag_of_its_own_or_a_field() {
    let mut tags: Vec<u16> = Settings::default().to_tags().iter().map(|(tag, _)| *tag).collect();
    let count = tags.len();
    tags.dedup();
    assert_eq!(tags.len(), count);
    let fields = SETTINGS.iter().filter(|setting| setting.tag.is_none());
    let fields: Vec<_> = fields.map(|setting| setting.name).collect();
    assert_eq!(fields, ["mode", "policy", "durability"], "which a volume record has");
}

#[test]
fn settings_of_a_later_program_are_kept_when_others_are_changed() {
    let settings = Settings { write_budget: 7, ..Settings::default() };
    let old = [(17, 5), (60_000, 1), (1, 3), (60_001, 2)];
    let tags = settings.to_tags_beside(&old);
    assert_eq!(tags.len(), settings.to_tags().len() + 2);
    for tag in [(17, 7), (60_000, 1), (60_001, 2), (1, 4 << 20)] {
        assert!(tags.contains(&tag), "{tag:?}");
    }
}

#[test]
fn only_shared_settings_are_taken_over() {
    let one =
        set("policy=fifo cache_dirty_high=90 cache_dirty_low=80 dirty_high=70").expect("good");
    let mut other = Settings::default();
    assert!(other.share(&one) && !other.share(&one));
    let expected = set("policy=fifo cache_dirty_high=90 cache_dirty_low=80").expect("good");
    assert_eq!(other, expected);
}

#[test]
fn bad_settings_are_refused_and_named() {
    let matrix = [
        ("dirty_high", "dirty_high"),
        ("=5", "''"),
        ("dirty_hihg=5", "dirty_hihg"),
        ("dirty_high=5 dirty_high=5", "dirty_high: given twice"),
        ("dirty_high=101", "dirty_high"),
        ("dirty_high=-1", "dirty_high"),
        ("dirty_high=1e1", "dirty_high"),
        ("dirty_high=", "dirty_high"),
        ("dirty_high=18446744073709551616", "dirty_high"),
        ("dirty_low=60", "dirty_low"),
        ("dirty_high=30", "dirty_low"),
        ("mode=WB", "mode"),
        ("mode=", "mode"),
        ("policy=mru", "policy"),
        ("export=nbd,loop", "export"),
        ("durability=none", "durability"),
        ("sequential_cutoff=10GB", "sequential_cutoff"),
        ("sequential_cutoff=-1", "sequential_cutoff"),
        ("sequential_cutoff=2T", "sequential_cutoff"),
        ("dirty_age=30", "dirty_age"),
        ("dirty_age=1ms", "dirty_age"),
        ("dirty_age=31d", "dirty_age"),
        ("idle=-1s", "idle"),
        ("commit_interval=0", "commit_interval"),
        ("writeback_depth=0", "writeback_depth"),
        ("writeback_depth=+4", "writeback_depth"),
        ("writeback_running=yes", "writeback_running"),
        ("ordered=1", "ordered"),
        ("ordered=on mode=wt", "ordered=off"),
        ("mode=pt ordered=on", "mode=writeback"),
        ("admission=", "admission"),
        ("admission=never", "admission"),
        ("admission=Second-Hit", "admission"),
        ("admission=ghost", "admission"),
        ("admission=ghost:0", "admission"),
        ("admission=ghost:17", "ghost:16"),
        ("admission=ghost:-1", "admission"),
        ("write_budget=-1", "write_budget"),
        ("write_budget=100GB/day", "write_budget"),
        ("write_budget=2P", "write_budget"),
        ("promote=12K", "promote"),
        ("promote=1K", "promote"),
        ("promote=8M", "promote"),
        ("promote=3", "power of two"),
        ("durability=deferred", "ram=SIZE, a stop and a start"),
        ("congested_read_threshold=2", "congested_read_threshold"),
        ("congested_read_threshold=500us", "congested_read_threshold"),
        ("congested_write_threshold=61s", "congested_write_threshold"),
        ("congested_write_threshold=-1ms", "congested_write_threshold"),
        ("cache_dirty_high=40", "cache_dirty_low"),
        ("cache_dirty_low=101", "cache_dirty_low"),
        ("writeback_gap=2M", "writeback_gap"),
        ("writeback_gap=-1", "writeback_gap"),
        ("writeback_rate_min=1.5M", "writeback_rate_min"),
        ("writeback_rate_min=2M writeback_rate_max=1M", "writeback_rate_min"),
        ("writeback_rate_max=1K", "writeback_rate_min"),
        ("writeback_rate_max=2T", "writeback_rate_max"),
        ("writeback_rate_max=fast", "writeback_rate_max"),
        ("writeback_latency=50", "writeback_latency"),
        ("writeback_latency=2m", "writeback_latency"),
        ("quiet_hours=", "quiet_hours"),
        ("quiet_hours=on", "quiet_hours"),
        ("quiet_hours=22-6", "quiet_hours"),
        ("quiet_hours=22:00-24:00", "quiet_hours"),
        ("quiet_hours=06:00-06:00", "quiet_hours"),
    ];
    matrix.into_iter().for_each(refused);
}

fn refused((text, expected): (&str, &str)) {
    let error = set(text).expect_err(text).to_string();
    assert!(error.contains(expected) && !error.contains('\n'), "{text}: {error}");
}

#[test]
fn a_refusal_names_the_setting_or_unit_that_was_meant() {
    let matrix = [
        ("ram=4", "ram: '4' would be 4 bytes; add a unit, like 4G"),
        ("promote=256", "like 256K"),
        ("ram_block=4", "like 4K"),
        ("writeback_gap=64", "like 64K"),
        ("limit_bandwidth=4095", "like 4095M"),
        ("dirty-high=60", "'dirty-high' is not a setting; did you mean 'dirty_high'?"),
        ("sequntial_cutoff=4M", "did you mean 'sequential_cutoff'?"),
    ];
    matrix.into_iter().for_each(refused);
}

#[test]
fn help_and_markdown_have_a_line_for_every_knob() {
    for setting in SETTINGS {
        assert!(help_text().contains(setting.name) && help_text().contains(&setting.default()));
        assert!(help_text().lines().all(|line| line.len() <= 80));
        assert!(markdown().contains(&format!("| `{}` |", setting.name)));
    }
    assert_eq!(markdown().lines().count(), SETTINGS.len() + 2);
    assert_eq!(json()["knobs"].as_array().map(Vec::len), Some(SETTINGS.len()));
}

#[test]
fn paused_is_passthrough_and_frozen_defers_no_writes() {
    use forebay_core::Mode;

    let deferred = "ram=1M durability=deferred ordered=on";
    for (caching, mode, keeps, frozen, defers) in [
        ("on", Mode::Writeback, true, false, true),
        ("frozen", Mode::Writeback, true, true, false),
        ("paused", Mode::Passthrough, false, false, false),
    ] {
        let settings = set(&format!("caching={caching} {deferred}")).expect("good");
        assert_eq!((settings.mode, settings.effective_mode()), (Mode::Writeback, mode));
        assert_eq!((settings.keeps_dirty(), settings.wants_order()), (keeps, keeps), "{caching}");
        assert_eq!((settings.is_frozen(), settings.defers_writes()), (frozen, defers), "{caching}");
    }
    let through = set("mode=wt").expect("good");
    assert!(!through.keeps_dirty() && !through.wants_order() && !through.defers_writes());
}
