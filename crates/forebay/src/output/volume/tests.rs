//! Tests of the report for people.

use forebay_admin::report::{ServedBy, WaitReport};
use forebay_admin::{Settings, VolumeState};

use super::*;

#[test]
fn numbers_are_readable() {
    for (number, text) in [(0, "0"), (999, "999"), (1000, "1,000"), (1_234_567, "1,234,567")] {
        assert_eq!(grouped(number), text);
    }
    for (time, text) in
        [(0.0, "-"), (0.62, "0.6 µs"), (85.0, "85 µs"), (1_500.0, "1.50 ms"), (2e6, "2.00 s")]
    {
        assert_eq!(micros(time), text);
    }
}

#[test]
fn latencies_name_their_requests() {
    let name = "v".parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
    assert!(!render(&report, false).contains("without NBD"));
    report.latency.read = Latency { count: 16, p50_us: 3.0, ..Latency::default() };
    let text = render(&report, false);
    assert!(text.contains("without NBD") && text.contains("one in 16"), "{text}");
}

#[test]
fn a_device_that_does_not_answer_is_named() {
    let name = "v".parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Waiting, Settings::default());
    assert!(render(&report, false).contains("state       waiting: the daemon has just started"));
    for (cause, because) in [(None, ""), (Some("refused".to_owned()), " (refused)")] {
        report.waiting_for = Some(WaitReport { device: "sdx".to_owned(), seconds: 12, cause });
        let expected = format!("waiting: sdx has not answered for 12 s{because}\n");
        assert!(render(&report, false).contains(&expected), "{}", render(&report, false));
    }
}

#[test]
fn unusual_states_are_shown_only_when_present() {
    let name = "v".parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
    report.requests.read_hits = 3000;
    report.requests.read_misses = 1000;
    let text = render(&report, false);
    assert!(text.contains("75.0 %") && text.contains("3,000"), "{text}");
    assert!(!text.contains("error") && !text.contains("lost"), "{text}");
    assert!(!text.contains("WHY") && !text.contains("cold"), "{text}");
    assert!(!text.contains("filled") && !text.contains("reinserted"), "{text}");
    assert!(text.lines().all(|line| line == line.trim_end()), "{text}");
    report.blocks.filled = 4000;
    report.blocks.carried_on = 1;
    report.errors.checksum = 2;
    report.errors.last = Some("bad block".to_owned());
    let text = render(&report, false);
    assert!(text.contains("2 checksum") && text.contains("bad block"), "{text}");
    assert!(text.contains("\n4,000 blocks filled, 1 reinserted\n"), "{text}");
}

#[test]
fn shares_of_serving_are_in_one_table() {
    let name = "v".parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
    assert!(!render(&report, false).contains("SERVED BY"));
    report.served.reads = ServedBy { total: 4000, ram: 2000, cache: 1500, origin: 500 };
    let text = render(&report, false);
    let line = |text: &str, words: &[&str]| {
        text.lines().any(|line| line.split_whitespace().eq(words.iter().copied()))
    };
    let reads = ["reads", "4,000", "2,000", "50.0", "%", "1,500", "37.5", "%", "500", "12.5", "%"];
    assert!(line(&text, &reads), "{text}");
    assert!(line(&text, &["writes", "0", "0", "-", "0", "-", "0", "-"]), "{text}");
    assert!(!line(&text, &["ram", "0", "0"]) && text.contains("REQUESTS"), "{text}");
    (report.bytes.ram_read, report.ram) = (8192, Some(RamReport::default()));
    let text = render(&report, false);
    assert!(line(&text, &["ram", "8K", "0"]) && text.contains("\nBELOW RAM"), "{text}");
    assert!(text.contains("\nLATENCY BELOW RAM"), "{text}");
}

#[test]
fn each_counted_reason_has_a_line_with_its_share() {
    let name = "v".parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
    report.why.miss.cold = 3000;
    report.why.miss.evicted = 1000;
    report.why.written_back.idle = 7;
    let text = render(&report, false);
    let words: Vec<Vec<&str>> =
        text.lines().map(|line| line.split_whitespace().collect()).collect();
    for line in [
        ["miss", "cold", "3,000", "75.0", "%"].as_slice(),
        &["evicted", "1,000", "25.0", "%"],
        &["written_back", "idle", "7", "100.0", "%"],
    ] {
        assert!(words.iter().any(|words| words == line), "{line:?} is not in\n{text}");
    }
    assert!(!text.contains("sequential  ") && !text.contains("bypass "), "{text}");
}

#[test]
fn settings_that_differ_are_shown_and_the_others_are_folded() {
    let name = "v".parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
    let text = settings(&report, false);
    assert!(text.starts_with("All ") && text.contains("'forebay show v --all'"), "{text}");
    report.settings.dirty_high = 77;
    let text = settings(&report, false);
    assert!(text.contains("dirty_high  77     50\n") && !text.contains("dirty_low"), "{text}");
    assert!(
        text.ends_with("other settings have their defaults: 'forebay show v --all' lists them.\n")
    );
    let all = settings(&report, true);
    assert_eq!(all.lines().count(), SETTINGS.len() + 1, "{all}");
    let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
    assert!(all.lines().any(|line| words(line) == ["dirty_high", "77", "50"]), "{all}");
    assert!(all.lines().any(|line| words(line) == ["dirty_low", "40"]), "{all}");
}

#[test]
fn memory_is_shown_as_accounted_and_as_the_process_has_it() {
    let name = "v".parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
    assert!(!render(&report, false).contains("occupies"));
    (report.memory.limit_bytes, report.memory.resident_bytes) = (1 << 30, 96 << 20);
    let text = render(&report, false);
    assert!(text.contains("accounts for 0 of 1G, and its process occupies 96M\n"), "{text}");
}

#[test]
fn a_stopped_volume_has_the_blocks_of_its_stop() {
    let name = "v".parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Stopped, Settings::default());
    assert!(render(&report, false).contains("unknown while the cache is closed"));
    let blocks = &mut report.blocks;
    (blocks.as_of_stop, blocks.cached, blocks.dirty) = (true, 4000, 256);
    let text = render(&report, false);
    assert!(text.contains("4,000 cached, 256 dirty (1M) when it was stopped\n"), "{text}");
}
