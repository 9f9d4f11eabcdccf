//! Runs fio over NBD, the same for bare devices and cached volumes.

use std::time::Duration;

use forebay_admin::ApiError;
use forebay_admin::report::ServedBy;
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
    /// Loss of writes that were not flushed, in a crash.
    loses: &'static str,
    bytes_per_second: f64,
    iops: f64,
    mean_us: f64,
    p99_us: f64,
    /// Bytes read by layer during the run; `None` without a cache.
    reads: Option<ServedBy>,
}

fn uri(daemon: &Daemon<'_>, export: &str) -> String {
    format!("nbd+unix:///{export}?socket={}", daemon.nbd().display())
}

/// Returns the bytes that each layer read between two reports.
fn between(before: &ServedBy, after: &ServedBy) -> ServedBy {
    ServedBy {
        total: after.total.saturating_sub(before.total),
        ram: after.ram.saturating_sub(before.ram),
        cache: after.cache.saturating_sub(before.cache),
        origin: after.origin.saturating_sub(before.origin),
    }
}

/// Runs fio with 4 KiB, 90 % reads, zipf 1.2, four jobs of depth 8.
pub(super) fn run(
    workspace: &Workspace,
    daemon: &Daemon<'_>,
    export: &str,
    [name, loses]: [&'static str; 2],
    workload: &Workload,
    cached: bool,
) -> Result<Row, ApiError> {
    let before = if cached { Some(daemon.show(export)?.served.reads) } else { None };
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
    let reads = match before {
        None => None,
        Some(before) => Some(between(&before, &daemon.show(export)?.served.reads)),
    };
    let row = parse(&output, name, reads);
    let row = row.ok_or_else(|| ApiError::failed("cannot parse fio's output"))?;
    Ok(Row { loses, ..row })
}

fn parse(output: &str, name: &'static str, reads: Option<ServedBy>) -> Option<Row> {
    // fio prints warnings before its JSON.
    let json: Value = serde_json::from_str(output.get(output.find('{')?..)?).ok()?;
    let mixed = json.pointer("/jobs/0/mixed")?;
    let number = |path: &str| mixed.pointer(path).and_then(Value::as_f64);
    Some(Row {
        name,
        loses: "",
        bytes_per_second: number("/bw_bytes")?,
        iops: number("/iops")?,
        mean_us: number("/clat_ns/mean")? / 1e3,
        p99_us: number("/clat_ns/percentile/99.000000")? / 1e3,
        reads,
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

/// Explains the table, in lines of at most 80 characters.
pub(super) fn explanation(disk: u64, ssd: u64, ram: u64) -> String {
    let [disk, ssd, ram] = [disk, ssd, ram].map(format_size);
    format!(
        "fio over NBD on {disk}: requests of 4 KiB, 90 % reads, 32 at a time, zipf 1.2\n\
         (some blocks are requested far more often than others). The disk (7,200 rpm)\n\
         and the SSD (SATA) are modelled: files that are as slow as those. The cache has\n\
         {ssd} of SSD; the last two rows have {ram} of RAM before it. MEAN and P99 are\n\
         latencies of reads and writes as fio sees them, RAM and SSD the shares of the\n\
         reads that these served, x DISK the requests per second by those of the disk.\n"
    )
}

/// Formats all rows, compared with the first.
pub(super) fn table(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        Column::left("4K, ZIPF 1.2"),
        Column::right("MB/s"),
        Column::right("IOPS"),
        Column::right("MEAN"),
        Column::right("P99"),
        Column::right("RAM"),
        Column::right("SSD"),
        Column::right("x DISK"),
    ]);
    let disk = rows.first().map_or(0.0, |row| row.iops);
    for row in rows {
        let times = if disk > 0.0 { format!("{:.1}", row.iops / disk) } else { "-".to_owned() };
        let shares = row.reads.and_then(|reads| reads.shares());
        let share = |part: usize| match shares {
            Some(shares) if shares[part] > 0.0 => format!("{:.1} %", shares[part] * 100.0),
            _ => "-".to_owned(),
        };
        table.row([
            row.name.to_owned(),
            format!("{:.1}", row.bytes_per_second / 1e6),
            grouped(row.iops as u64),
            millis(row.mean_us),
            millis(row.p99_us),
            share(0),
            share(1),
            times,
        ]);
    }
    table.render()
}

/// Lists what a crash costs with each row.
pub(super) fn losses(rows: &[Row]) -> String {
    let mut table = Table::new(&[
        Column::left("AFTER A CRASH"),
        Column::left("what may be lost of the writes that no flush has covered"),
    ]);
    rows.iter().for_each(|row| table.row([row.name.to_owned(), row.loses.to_owned()]));
    format!("{}What a flush has covered is never lost.\n", table.render())
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
        let reads = ServedBy { total: 8, ram: 4, cache: 3, origin: 1 };
        let rows = [parse(output, "one", None), parse(output, "two", Some(reads))];
        let rows: Vec<Row> = rows.into_iter().map(|row| row.expect("good")).collect();
        let text = table(&rows);
        let last: Vec<&str> = text.lines().last().expect("a row").split_whitespace().collect();
        let shares = ["50.0", "%", "37.5", "%", "1.0"];
        assert_eq!(last[..7], ["two", "4.1", "1,000", "0.50", "ms", "2.00", "ms"]);
        assert_eq!(last[7..], shares);
        let later = ServedBy { total: 10, ram: 5, cache: 4, origin: 1 };
        let two = ServedBy { total: 2, ram: 1, cache: 1, origin: 0 };
        assert_eq!(between(&reads, &later), two);
        let texts = [explanation(512 << 20, 384 << 20, 64 << 20), text, losses(&rows)];
        assert!(texts.iter().flat_map(|text| text.lines()).all(|line| line.chars().count() <= 80));
        assert!(parse("{}", "one", None).is_none() && parse("", "one", None).is_none());
    }
}
