//! Metrics as text: the classic format of Prometheus, and OpenMetrics 1.0 for clients that request
//! it.
//!
//! Both are written by the same calls. They differ in the names after `# TYPE`, in units, and at
//! the end.

use std::fmt::Write;

use forebay_core::{LATENCY_BOUNDS_US, LatencyCounts};

/// The kind of a metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MetricKind {
    /// A number that only grows until its volume or the daemon is restarted.
    Counter,
    /// A number that changes in both directions.
    Gauge,
    /// Latencies by ranges.
    Histogram,
    /// Always 1; the labels have the content.
    Info,
}

/// A metric, as the table declares it.
#[derive(Debug)]
pub(super) struct Metric {
    /// The name, without the suffix that the kind adds.
    pub(super) name: &'static str,
    /// The kind of the metric.
    pub(super) kind: MetricKind,
    /// The unit, with which the name ends; empty if there is none.
    pub(super) unit: &'static str,
    /// The names of the labels, in the order of their values.
    pub(super) labels: &'static [&'static str],
    /// The meaning, in half a sentence.
    pub(super) help: &'static str,
}

/// A format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    /// OpenMetrics 1.0.
    OpenMetrics,
    /// The text format of Prometheus, version 0.0.4.
    Prometheus,
}

impl Format {
    /// Returns the format for the `Accept` header of a request: the classic one, unless the client
    /// names OpenMetrics 1.0 and does not give it less weight.
    pub(crate) fn for_client(accept: &str) -> Self {
        // The weights of OpenMetrics, of the classic format by name, and of ranges that contain it.
        let (mut open, mut classic, mut any) = (0.0_f64, None::<f64>, 0.0_f64);
        for range in accept.split(',') {
            let mut parts = range.split(';').map(str::trim);
            let name = parts.next().unwrap_or_default().to_ascii_lowercase();
            let (mut weight, mut version) = (1.0, None);
            for (key, value) in parts.filter_map(|part| part.split_once('=')) {
                match (key.trim(), value.trim().trim_matches('"')) {
                    // An invalid weight counts as no request for the format.
                    ("q" | "Q", value) => weight = value.parse().unwrap_or(0.0),
                    ("version", value) => version = Some(value),
                    _ => {}
                }
            }
            match (&*name, version) {
                ("application/openmetrics-text", None | Some("1.0.0")) => open = open.max(weight),
                ("text/plain", _) => classic = Some(classic.unwrap_or(0.0).max(weight)),
                ("text/*" | "*/*", _) => any = any.max(weight),
                _ => {}
            }
        }
        if open > 0.0 && open >= classic.unwrap_or(any) {
            Format::OpenMetrics
        } else {
            Format::Prometheus
        }
    }

    /// Returns the media type.
    pub(crate) fn media_type(self) -> &'static str {
        match self {
            Format::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
            Format::Prometheus => "text/plain; version=0.0.4; charset=utf-8",
        }
    }
}

/// Writes metrics, one family after the other.
pub(super) struct MetricsWriter {
    text: String,
    format: Format,
    family: &'static Metric,
}

impl MetricsWriter {
    /// Begins a text of about `bytes` bytes. A good estimate avoids that the text is copied
    /// repeatedly while it grows.
    pub(super) fn new(format: Format, bytes: usize, first: &'static Metric) -> Self {
        let mut writer =
            MetricsWriter { text: String::with_capacity(bytes), format, family: first };
        writer.begin(first);
        writer
    }

    /// Begins a family. The following values belong to it; all values of one family must be written
    /// together.
    pub(super) fn begin(&mut self, family: &'static Metric) {
        self.family = family;
        let Metric { name, kind, unit, help, .. } = *family;
        let (suffix, word) = match (self.format, kind) {
            (_, MetricKind::Gauge) => ("", "gauge"),
            (_, MetricKind::Histogram) => ("", "histogram"),
            (Format::OpenMetrics, MetricKind::Counter) => ("", "counter"),
            (Format::OpenMetrics, MetricKind::Info) => ("", "info"),
            (Format::Prometheus, MetricKind::Counter) => ("_total", "counter"),
            (Format::Prometheus, MetricKind::Info) => ("_info", "gauge"),
        };
        let text = &mut self.text;
        // Writing to a string does not fail.
        let _ = writeln!(text, "# TYPE {name}{suffix} {word}");
        if self.format == Format::OpenMetrics && !unit.is_empty() {
            let _ = writeln!(text, "# UNIT {name} {unit}");
        }
        let _ = writeln!(text, "# HELP {name}{suffix} {help}.");
    }

    /// Writes a number, with a value for each label.
    pub(super) fn number(&mut self, labels: &[&str], number: u64) {
        self.head(self.suffix(), labels);
        self.value(itoa::Buffer::new().format(number));
    }

    /// Writes as [`MetricsWriter::number`] does, a number with a fraction.
    pub(super) fn fraction(&mut self, labels: &[&str], number: f64) {
        self.head(self.suffix(), labels);
        let _ = writeln!(self.text, " {number}");
    }

    /// Writes a latency distribution. Its sum and the bounds are in seconds.
    pub(super) fn latencies(&mut self, labels: &[&str], counts: &LatencyCounts) {
        // Only the bound differs between the lines, and there are many, so the rest is copied.
        let begin = self.text.len();
        self.head("_bucket", labels);
        if self.text.ends_with('}') {
            self.text.pop();
            self.text.push(',');
        } else {
            self.text.push('{');
        }
        self.text.push_str("le=\"");
        let line = self.text.split_off(begin);
        let (mut count, mut digits) = (0, itoa::Buffer::new());
        for (requests, bound) in counts.ranges.iter().zip(BOUNDS.iter().chain(&["+Inf"])) {
            count += requests;
            self.text.push_str(&line);
            self.text.push_str(bound);
            self.text.push_str("\"}");
            self.value(digits.format(count));
        }
        self.head("_count", labels);
        self.value(digits.format(count));
        self.head("_sum", labels);
        let _ = writeln!(self.text, " {}", counts.sum_nanos as f64 / 1e9);
    }

    /// Returns the whole text.
    pub(super) fn end(mut self) -> String {
        if self.format == Format::OpenMetrics {
            self.text.push_str("# EOF\n");
        }
        self.text
    }

    /// Ends a line.
    fn value(&mut self, digits: &str) {
        self.text.push(' ');
        self.text.push_str(digits);
        self.text.push('\n');
    }

    fn suffix(&self) -> &'static str {
        match self.family.kind {
            MetricKind::Counter => "_total",
            MetricKind::Info => "_info",
            MetricKind::Gauge | MetricKind::Histogram => "",
        }
    }

    /// Writes everything before the number.
    fn head(&mut self, suffix: &str, values: &[&str]) {
        let family = self.family;
        debug_assert_eq!(family.labels.len(), values.len(), "{}", family.name);
        let text = &mut self.text;
        text.push_str(family.name);
        text.push_str(suffix);
        let mut before = '{';
        for (label, value) in family.labels.iter().zip(values) {
            text.push(before);
            before = ',';
            text.push_str(label);
            text.push_str("=\"");
            escape(text, value);
            text.push('"');
        }
        if before == ',' {
            text.push('}');
        }
    }
}

/// Appends the value of a label, with three characters escaped.
fn escape(text: &mut String, value: &str) {
    let mut rest = value;
    while let Some(at) = rest.find(['\\', '"', '\n']) {
        text.push_str(&rest[..at]);
        text.push('\\');
        text.push(if rest.as_bytes()[at] == b'\n' { 'n' } else { rest.as_bytes()[at] as char });
        rest = &rest[at + 1..];
    }
    text.push_str(rest);
}

/// The bounds of latencies in seconds: [`LATENCY_BOUNDS_US`] as text.
const BOUNDS: [&str; LATENCY_BOUNDS_US.len()] = [
    "5e-06", "1e-05", "2e-05", "5e-05", "0.0001", "0.0002", "0.0005", "0.001", "0.002", "0.005",
    "0.01", "0.02", "0.05", "0.1", "0.2", "0.5", "1.0", "2.0", "5.0", "10.0",
];

#[cfg(test)]
mod tests {
    use super::*;

    static COUNTER: Metric = Metric {
        name: "a_bytes",
        kind: MetricKind::Counter,
        unit: "bytes",
        labels: &["volume"],
        help: "bytes",
    };
    static TIMES: Metric = Metric {
        name: "b_seconds",
        kind: MetricKind::Histogram,
        unit: "seconds",
        labels: &[],
        help: "times",
    };

    #[test]
    fn bounds_are_the_same_as_those_of_reports() {
        for (text, micros) in BOUNDS.iter().zip(LATENCY_BOUNDS_US) {
            let seconds: f64 = text.parse().expect("a number");
            assert!((seconds * 1e6 - micros as f64).abs() < 1e-6, "{text} is not {micros} us");
        }
    }

    #[test]
    fn values_of_labels_cannot_break_a_line() {
        let mut writer = MetricsWriter::new(Format::OpenMetrics, 0, &COUNTER);
        writer.number(&["a\"b\\c\nd"], 7);
        let text = writer.end();
        let expected = "# TYPE a_bytes counter\n# UNIT a_bytes bytes\n# HELP a_bytes bytes.\n\
            a_bytes_total{volume=\"a\\\"b\\\\c\\nd\"} 7\n# EOF\n";
        assert_eq!(text, expected);
    }

    #[test]
    fn ranges_are_cumulative_and_the_older_format_has_its_own_names() {
        let mut counts = LatencyCounts::default();
        counts.count(4_000, 2);
        counts.count(1_500_000_000, 1);
        counts.sum_nanos = 1_500_008_000;
        let mut writer = MetricsWriter::new(Format::Prometheus, 0, &COUNTER);
        writer.begin(&TIMES);
        writer.latencies(&[], &counts);
        let text = writer.end();
        assert!(text.starts_with("# TYPE a_bytes_total counter\n# HELP a_bytes_total "), "{text}");
        for line in [
            "b_seconds_bucket{le=\"5e-06\"} 2",
            "b_seconds_bucket{le=\"1.0\"} 2",
            "b_seconds_bucket{le=\"2.0\"} 3",
            "b_seconds_bucket{le=\"+Inf\"} 3",
            "b_seconds_count 3",
            "b_seconds_sum 1.500008",
        ] {
            assert!(text.lines().any(|there| there == line), "{line} is missing in {text}");
        }
        assert!(!text.contains("# EOF") && !text.contains("# UNIT"));
    }

    #[test]
    fn open_metrics_is_for_clients_that_ask_for_it_by_weight() {
        let three = "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,\
            application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,\
            text/plain;version=0.0.4;q=0.3,*/*;q=0.2";
        for accept in [
            "application/openmetrics-text",
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
            "Application/OpenMetrics-Text;version=\"1.0.0\";q=0.5,text/plain;q=0.2",
            "application/openmetrics-text, text/plain, */*",
            "text/plain;q=0.5,application/openmetrics-text;q=0.7",
            "application/openmetrics-text;q=0.1,text/plain;q=0,*/*",
            three,
        ] {
            assert_eq!(Format::for_client(accept), Format::OpenMetrics, "{accept}");
        }
        for accept in [
            "",
            "*/*",
            "text/plain;version=0.0.4",
            "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8",
            "application/json",
            "application/openmetrics-text;q=0.2,text/plain;q=0.5",
            "application/openmetrics-text;q=0.2,*/*;q=0.5",
            "application/openmetrics-text;q=0",
            "application/openmetrics-text;q=much",
            "application/openmetrics-text;version=2.0.0",
            "application/vnd.google.protobuf;q=0.7,text/plain;q=0.3,*/*;q=0.1",
        ] {
            assert_eq!(Format::for_client(accept), Format::Prometheus, "{accept}");
        }
    }
}
