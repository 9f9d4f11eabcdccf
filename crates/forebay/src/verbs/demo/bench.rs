//! Runs fio over NBD, the same for bare devices and cached volumes.

use std::time::Duration;

use forebay_admin::{ApiError, VolumeReport};
use forebay_core::units::format_size;
use serde_json::Value;

use super::daemon::Daemon;
use super::workspace::Workspace;
use crate::output::table::{Column, Table};
use crate::output::volume::grouped;

/// Duration of a row.
pub(super) struct Workload {
    /// Time before measuring.
    pub(super) ramp: Duration,
    /// Time of measuring.
    pub(super) time: Duration,
}

/// fio's result.
pub(super) struct Row {
    name: &'static str,
    bytes_per_second: f64,
    iops: f64,
    mean_us: f64,
    p99_us: f64,
    /// Share of reads that were hits; `None` without a cache.
    hits: Option<f64>,
}

fn uri(daemon: &Daemon<'_>, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", daemon.nbd().display())
}

/// Returns how many reads of 4 KiB RAM or the cache answered, and how many there were.
fn reads(report: &VolumeReport) -> (u64, u64) {
    let requests = &report.requests;
    let hits = requests.read_hits + report.ram.map_or(0, |ram| ram.hits);
    (hits, hits + requests.read_partial + requests.read_misses)
}

/// Runs fio with 4 KiB, 90 % reads, zipf 1.2, four jobs of depth 8.
pub(super) fn run(
    workspace: &Workspace,
    daemon: &Daemon<'_>,
    export: &str,
    name: &'static str,
    workload: &Workload,
    cached: bool,
) -> Result<Row, ApiError> {
    let before = if cached { Some(reads(&daemon.show(export)?)) } else { None };
    let mut command = workspace.command("fio");
    command.current_dir(workspace.at(""));
    command.args(["--name=row", "--ioengine=nbd", "--rw=randrw", "--rwmixread=90", "--bs=4k"]);
    command.args(["--iodepth=8", "--numjobs=4", "--random_distribution=zipf:1.2", "--norandommap"]);
    command.args(["--size=512m", "--randseed=20", "--time_based", "--group_reporting"]);
    command.args(["--unified_rw_reporting=mixed", "--output-format=json"]);
    command.arg(format!("--uri={}", uri(daemon, export)));
    command.arg(format!("--runtime={}", workload.time.as_secs()));
    command.arg(format!("--ramp_time={}", workload.ramp.as_secs()));
    let output = workspace.run_well("fio", &mut command)?;
    let hits = match before {
        None => None,
        Some((hits_before, all_before)) => {
            let (hits, all) = reads(&daemon.show(export)?);
            let (hits, all) = (hits - hits_before, all - all_before);
            (all > 0).then(|| hits as f64 / all as f64)
        }
    };
    parse(&output, name, hits).ok_or_else(|| ApiError::failed("cannot parse fio's output"))
}

fn parse(output: &str, name: &'static str, hits: Option<f64>) -> Option<Row> {
    // fio prints warnings before its JSON.
    let json: Value = serde_json::from_str(output.get(output.find('{')?..)?).ok()?;
    let mixed = json.pointer("/jobs/0/mixed")?;
    let number = |path: &str| mixed.pointer(path).and_then(Value::as_f64);
    Some(Row {
        name,
        bytes_per_second: number("/bw_bytes")?,
        iops: number("/iops")?,
        mean_us: number("/clat_ns/mean")? / 1e3,
        p99_us: number("/clat_ns/percentile/99.000000")? / 1e3,
        hits,
    })
}

/// Reads a volume sequentially from start to end.
pub(super) fn warm_up(
    workspace: &Workspace,
    daemon: &Daemon<'_>,
    export: &str,
) -> Result<(), ApiError> {
    let mut command = workspace.command("fio");
    command.current_dir(workspace.at(""));
    command.args(["--name=warm", "--ioengine=nbd", "--rw=read", "--bs=1m", "--iodepth=8"]);
    command.args(["--size=512m", "--output-format=json"]);
    command.arg(format!("--uri={}", uri(daemon, export)));
    workspace.run_well("fio", &mut command).map(drop)
}

/// Explains the table.
pub(super) fn explanation(disk: u64, ssd: u64, ram: u64) -> String {
    let [disk, ssd, ram] = [disk, ssd, ram].map(format_size);
    format!(
        "fio over NBD on {disk}: requests of 4 KiB, 90 % reads, zipf 1.2 (some blocks are requested far more\n\
         often than others), 32 at a time. The disk (7,200 rpm) and the SSD (SATA) are modelled: files\n\
         that are as slow as those. The cache has {ssd} of SSD, and in the last row {ram} of RAM before it.\n\
         MEAN and P99 are latencies of reads and writes as fio sees them, HITS reads that the cache\n\
         answered, x DISK requests per second by those of the bare disk. A power cut loses at most a second\n\
         of writes that were not flushed, in the rows with writeback; a flush always waits for the SSD.\n"
    )
}

/// Formats all rows, compared with the first.
pub(super) fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        Column::left("4K, 90 % READS, ZIPF 1.2"),
        Column::right("MB/s"),
        Column::right("IOPS"),
        Column::right("MEAN"),
        Column::right("P99"),
        Column::right("HITS"),
        Column::right("x DISK"),
    ]);
    let disk = rows.first().map_or(0.0, |row| row.iops);
    for row in rows {
        let times = if disk > 0.0 { format!("{:.1}", row.iops / disk) } else { "-".to_owned() };
        table.row([
            row.name.to_owned(),
            format!("{:.1}", row.bytes_per_second / 1e6),
            grouped(row.iops as u64),
            millis(row.mean_us),
            millis(row.p99_us),
            row.hits.map_or_else(|| "-".to_owned(), |hits| format!("{:.1} %", hits * 100.0)),
            times,
        ]);
    }
    table.render()
}

fn millis(micros: f64) -> String {
    format!("{:.2} ms", micros / 1e3)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fio_is_understood_and_rows_are_compared_with_the_first() {
        let output = r#"note: x
            {"jobs":[{"mixed":{"bw_bytes":4096000,"iops":1000.0,
            "clat_ns":{"mean":500000.0,"percentile":{"99.000000":2000000}}}}]}"#;
        let rows = [parse(output, "one", None), parse(output, "two", Some(0.5))];
        let rows: Vec<Row> = rows.into_iter().map(|row| row.expect("good")).collect();
        let text = table(&rows);
        let last: Vec<&str> = text.lines().last().expect("a row").split_whitespace().collect();
        assert_eq!(last, ["two", "4.1", "1,000", "0.50", "ms", "2.00", "ms", "50.0", "%", "1.0"]);
        assert!(parse("{}", "one", None).is_none() && parse("", "one", None).is_none());
    }
}
