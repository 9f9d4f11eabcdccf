//! The names, kinds, units and labels of metrics are as published, in `tests/metrics.txt` and
//! `docs/metrics.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use forebay_admin::Settings;
use forebay_admin::ranges::ByteRange;

use super::table::ALL;
use super::text::MetricKind;
use super::*;

/// Labels whose values are not listed, because operators or the version choose them.
const FREE: [&str; 8] =
    ["volume", "cache", "origin", "version", "mode", "caching", "policy", "durability"];

fn root(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns a report in which no field is absent.
fn full(name: &str) -> VolumeReport {
    let name = name.parse().expect("valid");
    let mut report = VolumeReport::empty(name, VolumeState::Running, Settings::default());
    report.cache.path = "/dev/fast".to_owned();
    report.origin.path = "/dev/slow".to_owned();
    report.ram = Some(RamReport::default());
    report.rest = Some(forebay_admin::report::RestReport::default());
    report.blocks.known = true;
    (report.blocks.dirty, report.blocks.cached) = (3, 5);
    report.writeback.seconds_to_clean = Some(1.5);
    report.errors.lost = vec![ByteRange { offset: 0, len: 4096 }];
    report.why.miss.cold = 7;
    report.latency.read.counts.count(30_000, 2);
    report.devices.cache.read.bytes = 8192;
    report
}

fn daemon() -> DaemonReport {
    serde_json::from_value(serde_json::json!({
        "version": "1.2.3", "pid": 1, "state_dir": "/s", "lanes": 2, "nbd": [],
    }))
    .expect("the fields of a report")
}

fn text(format: Format) -> String {
    let events: Vec<_> = EventKind::ALL.iter().map(|kind| (*kind, 1)).collect();
    let volumes = [full("a"), full("b")];
    write(format, &daemon(), &DaemonMemory::default(), (&events, &LogCounts::default()), &volumes)
}

/// One family in a text of metrics.
#[derive(Default)]
struct Family {
    kind: String,
    unit: String,
    /// The labels in order, and their values.
    labels: Vec<(String, BTreeSet<String>)>,
    lines: usize,
}

/// Parses OpenMetrics strictly: families follow each other, each with its lines after its head.
fn read(text: &str) -> BTreeMap<String, Family> {
    let (mut all, mut name) = (BTreeMap::<String, Family>::new(), String::new());
    let lines = text.strip_suffix("# EOF\n").expect("the end").lines();
    for line in lines {
        if let Some(head) = line.strip_prefix("# ") {
            let (word, rest) = head.split_once(' ').expect("a word");
            let (of, rest) = rest.split_once(' ').expect("a name");
            match word {
                "TYPE" => {
                    name = of.to_owned();
                    let family = Family { kind: rest.to_owned(), ..Family::default() };
                    assert!(all.insert(name.clone(), family).is_none(), "{of} comes twice");
                }
                "UNIT" => all.get_mut(of).expect("a type before").unit = rest.to_owned(),
                "HELP" => assert!(of == name && rest.ends_with('.'), "{line}"),
                other => panic!("{other}"),
            }
            continue;
        }
        let (sample, number) = line.rsplit_once(' ').expect("a number");
        assert!(number.parse::<f64>().is_ok(), "{line}");
        let (sample, labels) = sample.split_once('{').unwrap_or((sample, "}"));
        let family = all.get_mut(&name).expect("a head before");
        let suffixes: &[&str] = match &*family.kind {
            "counter" => &["_total"],
            "gauge" => &[""],
            "info" => &["_info"],
            "histogram" => &["_bucket", "_count", "_sum"],
            other => panic!("{other}"),
        };
        let suffix = sample.strip_prefix(&name).expect("the name of the family");
        assert!(suffixes.contains(&suffix), "{line}");
        family.lines += 1;
        let labels = labels.strip_suffix('}').expect("the end of the labels");
        for label in labels.split(',').filter(|label| !label.is_empty()) {
            let (label, value) = label.split_once('=').expect("a value");
            let (label, value) = (label.to_owned(), value.trim_matches('"').to_owned());
            match family.labels.iter_mut().find(|(known, _)| *known == label) {
                Some((_, values)) => _ = values.insert(value),
                None => family.labels.push((label, BTreeSet::from([value]))),
            }
        }
    }
    all
}

fn labels(family: &Family) -> String {
    let listed = family.labels.iter().map(|(label, values)| {
        let values: Vec<&str> = values.iter().map(String::as_str).collect();
        match FREE.contains(&label.as_str()) {
            true => label.clone(),
            false => format!("{label}={}", values.join("|")),
        }
    });
    listed.collect::<Vec<_>>().join(" ")
}

/// Compares a file, or a part of it, with the expected text; writes it with `UPDATE_METRICS`.
fn compare(path: &Path, found: &str, expected: &str, whole: impl FnOnce() -> String) {
    if std::env::var_os("UPDATE_METRICS").is_some() {
        std::fs::write(path, whole()).expect("writable");
        return;
    }
    assert!(
        found == expected,
        "{} is not what the daemon writes. Names of metrics are stable: dashboards and alerts depend on them. If the change \
         is wanted, UPDATE_METRICS=1 cargo test -p forebay-daemon metrics\n{expected}",
        path.display()
    );
}

#[test]
fn metrics_are_as_published() {
    let families = read(&text(Format::OpenMetrics));
    let mut golden = String::new();
    for metric in ALL {
        let family = families.get(metric.name).expect("every metric of the table is written");
        assert!(family.lines > 0, "{} has no values", metric.name);
        let names: Vec<&str> = family
            .labels
            .iter()
            .map(|(label, _)| label.as_str())
            .filter(|it| *it != "le")
            .collect();
        assert_eq!(names, metric.labels, "{}", metric.name);
        let unit = if family.unit.is_empty() { "-" } else { &family.unit };
        assert!(unit == "-" || metric.name.ends_with(&format!("_{unit}")), "{}", metric.name);
        let line = format!("{} {} {unit} {}", metric.name, family.kind, labels(family));
        golden.push_str(line.trim_end());
        golden.push('\n');
    }
    assert_eq!(families.len(), ALL.len(), "no other metric is written");
    let path = root("crates/daemon/tests/metrics.txt");
    let found = std::fs::read_to_string(&path).unwrap_or_default();
    compare(&path, &found, &golden, || golden.clone());
}

#[test]
fn the_documentation_has_every_metric() {
    const BEGIN: &str =
        "<!-- The table is written by UPDATE_METRICS=1 cargo test -p forebay-daemon metrics -->\n";
    const END: &str = "<!-- end -->\n";
    let families = read(&text(Format::OpenMetrics));
    let mut table = String::from("\n| metric | type | labels | meaning |\n|---|---|---|---|\n");
    for metric in ALL {
        let suffix = match metric.kind {
            MetricKind::Counter => "_total",
            MetricKind::Info => "_info",
            MetricKind::Gauge | MetricKind::Histogram => "",
        };
        let family = &families[metric.name];
        let parts: Vec<String> = family
            .labels
            .iter()
            .filter(|(label, _)| label != "le")
            .map(|(label, values)| match FREE.contains(&label.as_str()) {
                true => format!("`{label}`"),
                false => {
                    let values: Vec<&str> = values.iter().map(String::as_str).collect();
                    format!("`{label}` ({})", values.join(", "))
                }
            })
            .collect();
        let _ = writeln!(
            table,
            "| `{}{suffix}` | {} | {} | {} |",
            metric.name,
            family.kind,
            parts.join(", "),
            metric.help
        );
    }
    table.push('\n');
    let path = root("docs/metrics.md");
    let page = std::fs::read_to_string(&path).expect("the page");
    let (before, rest) = page.split_once(BEGIN).expect("where the table begins");
    let (found, after) = rest.split_once(END).expect("where the table ends");
    compare(&path, found, &table, || format!("{before}{BEGIN}{table}{END}{after}"));
}

/// Runs promtool on a text or a file; `None` if promtool is not installed.
fn promtool(words: &[&str], input: &str) -> Option<(bool, String)> {
    let spawned = Command::new("promtool")
        .args(words)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let Ok(mut child) = spawned else {
        eprintln!("skipped: there is no promtool (Debian's package prometheus)");
        return None;
    };
    child.stdin.take().expect("piped").write_all(input.as_bytes()).expect("it reads");
    let output = child.wait_with_output().expect("it ends");
    let said = [output.stdout, output.stderr].concat();
    Some((output.status.success(), String::from_utf8_lossy(&said).into_owned()))
}

#[test]
fn the_classic_format_has_no_kinds_of_open_metrics() {
    let classic = text(Format::for_client(""));
    assert_eq!(classic, text(Format::Prometheus));
    for line in classic.lines().filter(|line| line.starts_with('#')) {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        let kind = ["counter", "gauge", "histogram"];
        assert!(words[1] == "HELP" || words[1] == "TYPE" && kind.contains(&words[3]), "{line}");
    }
    let open = text(Format::for_client("application/openmetrics-text;version=1.0.0"));
    assert!(open.ends_with("\n# EOF\n") && open.contains("# TYPE forebay_build info\n"));
}

#[test]
fn promtool_finds_nothing_to_complain_about() {
    let Some((good, said)) = promtool(&["check", "metrics"], &text(Format::Prometheus)) else {
        return;
    };
    assert!(good && said.trim().is_empty(), "{said}");
}

#[test]
fn promtool_accepts_the_alerts_and_they_use_metrics_that_exist() {
    let path = root("dist/prometheus/forebay.rules.yml");
    check_names(&std::fs::read_to_string(&path).expect("the alerts"));
    if let Some((good, said)) = promtool(&["check", "rules", &path.to_string_lossy()], "") {
        assert!(good, "{said}");
    }
}

#[test]
fn the_dashboard_uses_metrics_that_exist() {
    let page = std::fs::read_to_string(root("dist/grafana/forebay.json")).expect("the dashboard");
    let dashboard: serde_json::Value = serde_json::from_str(&page).expect("JSON");
    assert_eq!(dashboard["uid"], "forebay");
    check_names(&page);
}

/// Checks that every word that looks like a metric is one.
fn check_names(text: &str) {
    let mut known = BTreeSet::new();
    for metric in ALL {
        let suffixes: &[&str] = match metric.kind {
            MetricKind::Counter => &["_total"],
            MetricKind::Info => &["_info"],
            MetricKind::Gauge => &[""],
            MetricKind::Histogram => &["_bucket", "_count", "_sum"],
        };
        known.extend(suffixes.iter().map(|suffix| format!("{}{suffix}", metric.name)));
    }
    let word = |c: char| !(c.is_ascii_alphanumeric() || c == '_');
    let used: BTreeSet<&str> =
        text.split(word).filter(|word| word.starts_with("forebay_")).collect();
    assert!(used.len() > 5, "{used:?}");
    let unknown: Vec<_> = used.iter().filter(|name| !known.contains(**name)).collect();
    assert!(unknown.is_empty(), "not metrics: {unknown:?}");
}

#[test]
fn a_stopped_volume_has_a_state_and_no_counters() {
    let stopped =
        VolumeReport::empty("s".parse().expect("valid"), VolumeState::Stopped, Settings::default());
    let nothing: (&[_], _) = (&[], &LogCounts::default());
    let text = write(Format::OpenMetrics, &daemon(), &DaemonMemory::default(), nothing, &[stopped]);
    assert!(text.contains("forebay_volume_state{volume=\"s\",state=\"stopped\"} 1\n"), "{text}");
    assert!(!text.contains("forebay_volume_misses_total{"), "{text}");
    assert!(!text.contains("forebay_volume_dirty_bytes{"), "{text}");
}
