//! Screens of fixed states are as published, as text and as images.
//!
//! `UPDATE_TOP=1 cargo test -p forebay top` writes `tests/top/` and `docs/images/`.

use std::path::{Path, PathBuf};

use forebay_admin::report::{LatencyReport, ServedBy};
use forebay_admin::{ReportList, Settings, VolumeReport, VolumeState};
use forebay_core::LatencyCounts;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::KeyCode;

use super::svg::picture;
use super::*;

/// Looks in the fixed states: more than the widest screen has columns for.
const LOOKS: u64 = 220;

const SMALL: (u16, u16) = (80, 24);
const LARGE: (u16, u16) = (200, 50);

/// A wave between 0 and 100 without fractions, so that every machine has the same.
fn wave(second: u64, period: u64) -> u64 {
    let place = (second % period) * 200 / period;
    if place < 100 { place } else { 200 - place }
}

/// Numbers that look random and are always the same.
fn noise(second: u64, below: u64) -> u64 {
    (second.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) % below
}

fn empty(name: &str, state: VolumeState) -> VolumeReport {
    let name = name.parse().expect("valid");
    let mut report = VolumeReport::empty(name, state, Settings::default());
    report.cache.path = "/dev/nvme0n1p4".to_owned();
    report.origin.path = "/dev/sdb".to_owned();
    report
}

/// Counts operations with latencies around one.
fn spread(counts: &mut LatencyCounts, nanos: u64, operations: u64) {
    let mut rest = operations;
    for (percent, factor) in [(25, 5), (14, 2), (10, 20), (3, 1), (2, 40), (1, 100)] {
        let part = operations * percent / 100;
        counts.count(nanos * factor / 10, part);
        rest -= part;
    }
    counts.count(nanos, rest);
}

/// Adds a second of requests to a report.
fn serve(report: &mut VolumeReport, reads: u64, missed: u64, writes: u64, slow: u64) {
    let add = |to: &mut ServedBy, cache: u64, origin: u64| {
        *to = ServedBy {
            total: to.total + cache + origin,
            cache: to.cache + cache,
            origin: to.origin + origin,
            ..*to
        };
    };
    add(&mut report.served.reads, reads - missed, missed);
    add(&mut report.served.writes, writes, 0);
    report.bytes.user_read += reads * 8192;
    report.bytes.user_written += writes * 8192;
    report.why.miss.cold += missed * 6 / 10;
    report.why.miss.evicted += missed * 3 / 10;
    report.why.miss.sequential += missed / 10;
    let LatencyReport { read, write, flush, discard } = &mut report.latency;
    spread(&mut read.counts, 12_000, reads - missed);
    spread(&mut read.counts, 6_000_000, missed);
    read.counts.count(90_000_000, slow);
    spread(&mut write.counts, 9_000, writes);
    spread(&mut flush.counts, 800_000, writes / 50);
    spread(&mut discard.counts, 40_000_000, writes / 100);
    let device = |of: &mut forebay_admin::report::OpReport, count: u64, nanos: u64| {
        of.bytes += count * 8192;
        spread(&mut of.latency, nanos, count);
    };
    device(&mut report.devices.cache.read, (reads - missed) / 10, 90_000);
    device(&mut report.devices.cache.write, writes / 40, 60_000);
    device(&mut report.devices.cache.sync, writes / 50, 700_000);
    device(&mut report.devices.origin.read, missed, 6_000_000);
    device(&mut report.devices.origin.write, writes / 8, 9_000_000);
}

/// The volumes as they are after each of the looks.
fn looks() -> Vec<ReportList> {
    let mut pg = empty("pg", VolumeState::Running);
    let mut vm = empty("vm-images", VolumeState::Running);
    let mut logs = empty("logs", VolumeState::Degraded);
    logs.errors.last = Some("the origin /dev/sdc has not answered for 12 s".to_owned());
    let archive = empty("archive", VolumeState::Stopped);
    let mut all = Vec::new();
    for second in 0..LOOKS {
        let busy = 9_000 + 40 * wave(second, 60) + noise(second, 900);
        let slow = if second % 37 == 5 { 3 } else { 0 };
        serve(&mut pg, busy, busy / (20 + wave(second, 90)), busy / 4, slow);
        let reads = 300 + noise(second, 200);
        serve(
            &mut vm,
            reads,
            reads * (100 - wave(second, 120) / 2) / 100,
            40 + wave(second, 40),
            0,
        );
        serve(&mut logs, 0, 0, 5 + noise(second, 4), 0);
        pg.blocks.dirty = 180_000 + wave(second, 80) * 1_500;
        pg.writeback.bytes_per_second = 30e6 + wave(second, 30) as f64 * 2e5;
        pg.writeback.seconds_to_clean = Some(pg.blocks.dirty as f64 * 4096.0 / 3.1e7);
        vm.blocks.dirty = 1_000 + second * 120;
        vm.writeback.bytes_per_second = 1.5e6;
        vm.writeback.seconds_to_clean = Some(vm.blocks.dirty as f64 * 4096.0 / 1.5e6);
        logs.blocks.dirty = 2_048;
        let volumes = vec![pg.clone(), vm.clone(), logs.clone(), archive.clone()];
        all.push(ReportList { volumes });
    }
    all
}

/// A model that has seen these answers, a second apart, and the time of the last one.
fn seen(coloured: bool, looks: impl IntoIterator<Item = ReportList>) -> (TopModel, Instant) {
    let begun = Instant::now();
    let mut model = TopModel::new(Theme::new(coloured), Duration::from_secs(1), None, begun);
    let mut at = begun;
    for (second, reports) in (1..).zip(looks) {
        at = begun + Duration::from_secs(second);
        model.news(Look { at, time: second as f64, answer: Ok(reports) });
    }
    (model, at)
}

fn press(model: &mut TopModel, keys: &[KeyCode]) {
    for key in keys {
        model.key(*key);
    }
}

fn drawn(model: &mut TopModel, now: Instant, (width, height): (u16, u16)) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("in memory");
    terminal.draw(|frame| page::draw(model, frame, now)).expect("in memory");
    terminal.backend().buffer().clone()
}

/// The characters of a screen, in lines without blanks at their ends.
fn text(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width.max(1));
    let lines = buffer.content().chunks(width).map(|cells| {
        let line: String = cells.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// Compares a file with its expected content; writes it with `UPDATE_TOP`.
fn check(path: &Path, expected: &str) {
    if std::env::var_os("UPDATE_TOP").is_some() {
        std::fs::create_dir_all(path.parent().expect("a directory")).expect("writable");
        std::fs::write(path, expected).expect("writable");
    }
    let there = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        there == expected,
        "{} differs; if that is wanted, UPDATE_TOP=1 cargo test -p forebay top\n{expected}",
        path.display()
    );
}

fn check_text(name: &str, buffer: &Buffer) {
    check(&root("tests/top").join(format!("{name}.txt")), &text(buffer));
}

#[test]
fn screens_are_as_published() {
    for size @ (width, height) in [SMALL, LARGE] {
        let (mut model, now) = seen(false, looks());
        check_text(&format!("list-{width}x{height}"), &drawn(&mut model, now, size));
        press(&mut model, &[KeyCode::Enter]);
        check_text(&format!("detail-{width}x{height}"), &drawn(&mut model, now, size));
    }
}

#[test]
fn images_of_the_documentation_are_what_is_drawn() {
    for size @ (width, height) in [SMALL, LARGE] {
        let (mut model, now) = seen(true, looks());
        let file = |screen: &str| {
            root("../../docs/images").join(format!("top-{screen}-{width}x{height}.svg"))
        };
        let list = picture("forebay top: all volumes", &drawn(&mut model, now, size));
        check(&file("list"), &list);
        press(&mut model, &[KeyCode::Enter]);
        let detail = picture("forebay top: one volume", &drawn(&mut model, now, size));
        check(&file("detail"), &detail);
    }
}

#[test]
fn colours_say_nothing_that_characters_do_not_say() {
    let (mut with, now) = seen(true, looks());
    let (mut without, other) = seen(false, looks());
    for keys in [&[][..], &[KeyCode::Enter], &[KeyCode::Tab], &[KeyCode::Char('?')]] {
        press(&mut with, keys);
        press(&mut without, keys);
        let plain = drawn(&mut without, other, SMALL);
        assert_eq!(text(&drawn(&mut with, now, SMALL)), text(&plain));
        let coloured = |cell: &ratatui::buffer::Cell| {
            (cell.fg, cell.bg) != (ratatui::style::Color::Reset, ratatui::style::Color::Reset)
        };
        assert!(!plain.content().iter().any(coloured));
    }
}

#[test]
fn a_daemon_that_does_not_answer_is_waited_for_and_leaves_a_gap() {
    let all = looks();
    let (mut model, now) = seen(false, all.iter().take(30).cloned());
    let error = ApiError::failed("no daemon answers at /run/forebay/admin.sock");
    let later = now + Duration::from_secs(5);
    model.news(Look { at: later, time: 35.0, answer: Err(error.clone()) });
    model.news(Look { at: later, time: 35.0, answer: Err(error) });
    check_text("waiting-80x24", &drawn(&mut model, later, SMALL));
    // It was started again, and counts from the beginning.
    for (second, reports) in (6..).zip(all.iter().take(4).cloned()) {
        let at = now + Duration::from_secs(second);
        model.news(Look { at, time: 30.0 + second as f64, answer: Ok(reports) });
    }
    press(&mut model, &[KeyCode::Enter, KeyCode::Tab]);
    check_text("again-80x24", &drawn(&mut model, now + Duration::from_secs(9), SMALL));
    press(&mut model, &[KeyCode::Tab, KeyCode::Tab]);
    check_text("discards-80x24", &drawn(&mut model, now + Duration::from_secs(9), SMALL));
    // An answer that is late has no reason yet.
    let silent = drawn(&mut model, now + Duration::from_secs(20), SMALL);
    assert!(text(&silent).ends_with(" waiting for the daemon for 11 s\n"), "{}", text(&silent));
}

#[test]
fn volumes_come_and_go_and_a_selected_one_is_waited_for() {
    let all = looks();
    let (mut model, now) = seen(false, [ReportList::default()]);
    assert!(text(&drawn(&mut model, now, SMALL)).contains("measuring"));
    let (mut model, now) = seen(false, [ReportList::default(), ReportList::default()]);
    assert!(text(&drawn(&mut model, now, SMALL)).contains("No volumes."));
    // All counts of a new volume are from the time since the last look.
    let next = now + Duration::from_secs(2);
    model.news(Look { at: next, time: 4.0, answer: Ok(all[0].clone()) });
    let reads = all[0].volumes[0].served.reads.total as f64;
    assert_eq!(model.rows()[0].read_iops, reads / 2.0);
    press(&mut model, &[KeyCode::Enter]);
    let gone = next + Duration::from_secs(1);
    model.news(Look { at: gone, time: 5.0, answer: Ok(ReportList::default()) });
    let screen = text(&drawn(&mut model, gone, SMALL));
    assert!(screen.contains(" pg\n There is no volume of this name"), "{screen}");
    model.news(Look { at: gone + Duration::from_secs(1), time: 6.0, answer: Ok(all[1].clone()) });
    assert!(text(&drawn(&mut model, gone, SMALL)).contains("pg  running"));
}

#[test]
fn a_volume_that_was_started_again_counts_anew() {
    let all = looks();
    let (model, _) = seen(false, [all[9].clone(), all[0].clone()]);
    let fresh = &all[0].volumes[0];
    assert_eq!(model.rows()[0].read_iops, fresh.served.reads.total as f64);
    assert_eq!(model.rows()[0].latency.read.counts, fresh.latency.read.counts);
}

#[test]
fn rows_are_sorted_and_the_selection_stays_with_its_volume() {
    let (mut model, now) = seen(false, looks());
    let names = |model: &TopModel| {
        model.rows().iter().map(|row| row.name.to_string()).collect::<Vec<_>>().join(" ")
    };
    press(&mut model, &[KeyCode::Down]);
    for (key, expected) in [
        ('n', "archive logs pg vm-images"),
        ('n', "vm-images pg logs archive"),
        ('h', "vm-images pg logs archive"),
        ('i', "pg vm-images logs archive"),
        ('b', "pg vm-images logs archive"),
        ('l', "vm-images pg logs archive"),
        ('d', "pg vm-images logs archive"),
        ('w', "pg vm-images logs archive"),
        ('w', "archive logs vm-images pg"),
        ('c', "pg vm-images logs archive"),
    ] {
        press(&mut model, &[KeyCode::Char(key)]);
        assert_eq!(names(&model), expected, "{key}");
        assert_eq!(model.selected.as_ref().map(VolumeName::as_str), Some("vm-images"));
    }
    press(&mut model, &[KeyCode::End, KeyCode::Char('d')]);
    check_text("sorted-80x24", &drawn(&mut model, now, SMALL));
    press(&mut model, &[KeyCode::Char('?')]);
    check_text("keys-80x24", &drawn(&mut model, now, SMALL));
    press(&mut model, &[KeyCode::Esc]);
    assert!(!model.help && model.screen == model::Screen::List);
}

#[test]
fn more_volumes_than_there_is_space_for_are_scrolled() {
    let many = |count: u64| {
        let volumes = (0..20).map(|number| {
            let mut report = empty(&format!("v{number:02}"), VolumeState::Running);
            (0..count).for_each(|_| serve(&mut report, 100, 10, 10, 0));
            report
        });
        ReportList { volumes: volumes.collect() }
    };
    let (mut model, now) = seen(false, [many(1), many(2)]);
    let mut visible = |keys: &[KeyCode]| {
        press(&mut model, keys);
        let screen = text(&drawn(&mut model, now, SMALL));
        let names =
            screen.lines().filter_map(|line| line[1..].strip_prefix('v').map(|_| &line[..4]));
        names.map(str::to_owned).collect::<Vec<_>>()
    };
    let down = [KeyCode::Down; 8];
    assert_eq!(visible(&[]), [">v00", " v01", " v02", " v03", " v04", " v05", " v06"]);
    assert_eq!(visible(&down), [" v02", " v03", " v04", " v05", " v06", " v07", ">v08"]);
    assert_eq!(visible(&[KeyCode::End])[6], ">v19");
    assert_eq!(visible(&[KeyCode::PageUp])[..1], [">v12"]);
    assert_eq!(visible(&[KeyCode::Home])[..2], [">v00", " v01"]);
}

#[test]
fn no_size_is_too_small() {
    let (mut model, now) = seen(true, looks());
    for keys in [&[][..], &[KeyCode::Char('?')], &[KeyCode::Esc, KeyCode::Enter]] {
        press(&mut model, keys);
        for size in (0..60).flat_map(|width| (0..30).map(move |height| (width, height))) {
            drawn(&mut model, now, size);
        }
    }
}

#[test]
fn json_has_the_names_that_are_documented() {
    let page = std::fs::read_to_string(root("../../docs/monitoring.md")).expect("the page");
    let all = looks();
    let mut looks = Looks::default();
    let begun = Instant::now();
    looks.next(begun, 1.0, all[0].clone());
    let interval = looks.next(begun + Duration::from_secs(2), 3.0, all[1].clone());
    let line = line(&only(interval.expect("two looks"), Some(&"pg".parse().expect("valid"))));
    let json: serde_json::Value = serde_json::from_str(&line.expect("plain data")).expect("JSON");
    assert_eq!((&json["time"], &json["seconds"]), (&3.0.into(), &2.0.into()));
    let volume = json["volumes"][0].as_object().expect("an object");
    assert_eq!(json["volumes"].as_array().map(Vec::len), Some(1));
    for name in volume.keys() {
        assert!(page.contains(&format!("`{name}`")), "docs/monitoring.md lacks {name}");
    }
    for path in [
        "latency/read/count",
        "latency/write/p50_us",
        "latency/flush/p99_us",
        "latency/read/counts/ranges",
        "devices/cache/read/iops",
        "devices/origin/sync/latency/p99_us",
        "devices/cache/discard/errors",
        "devices/origin/write/bytes_per_second",
        "writeback/seconds_to_clean",
        "miss/cold",
    ] {
        assert!(json["volumes"][0].pointer(&format!("/{path}")).is_some(), "{path}");
    }
    let reads = all[1].volumes[0].served.reads.total - all[0].volumes[0].served.reads.total;
    assert_eq!(volume["read_iops"], reads as f64 / 2.0);
    let table = table(&only(
        {
            let mut looks = Looks::default();
            looks.next(begun, 1.0, all[0].clone());
            looks.next(begun + Duration::from_secs(1), 2.0, all[1].clone()).expect("two looks")
        },
        None,
    ));
    check(&root("tests/top/once.txt"), &table);
}

#[test]
fn counts_of_a_range_are_those_of_an_operation() {
    let mut counts = LatencyCounts::default();
    counts.count(15_000, 1);
    assert_eq!(time(counts.quantile_us(0.5)), "20µs");
}
