//! The report of a volume for people: aligned, with units; unusual facts only if there are any.

mod clients;
mod served;

use std::collections::BTreeMap;
use std::fmt::Write;

use forebay_admin::report::{
    ExportReport, Latency, MemoryReport, OriginReport, RamReport, RestReport,
};
pub(crate) use forebay_admin::text::grouped;
use forebay_admin::{SETTINGS, VolumeReport, VolumeState};
use forebay_core::units::format_size;
use forebay_core::{Caching, Durability, Mode};

use super::table::{Column, Table};

/// Width of the labels on the left.
pub(crate) const LABEL: usize = 12;

/// Formats the full report of a volume, with all settings or those that differ from their defaults.
pub(crate) fn render(report: &VolumeReport, all: bool) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{}", format!("{label:LABEL$}{value}").trim_end());
    };
    line("volume", report.name.to_string());
    let because = match (&report.waiting_for, report.state) {
        (Some(wait), _) => format!(": {wait}"),
        (None, VolumeState::Waiting) => {
            ": the daemon has just started, and starts other volumes first".to_owned()
        }
        (None, _) => String::new(),
    };
    line("state", format!("{}{because}", report.state.name()));
    if let Some(share) = report.progress.and_then(|progress| progress.share()) {
        line("progress", percent(share));
    }
    let mode = mode(report.mode, report.caching);
    line("mode", format!("{mode}, {}, durability {}", report.policy, report.durability));
    line("origin", origin(report));
    cache_lines(report).into_iter().for_each(|(label, value)| line(label, value));
    ram_lines(report).into_iter().for_each(|(label, value)| line(label, value));
    let shift = match report.alignment {
        0 => String::new(),
        bytes => format!(", shifted by {bytes} bytes"),
    };
    line("block size", format!("{}{shift}", format_size(report.block_size)));
    line("blocks", blocks(report));
    if let Some(ordered) = ordered(report) {
        line("ordered", ordered);
    }
    if let Some(rest) = report.rest {
        let RestReport { wakes, rested_seconds, last_access_seconds } = rest;
        let (rested, last) = (time(rested_seconds as f64), time(last_access_seconds as f64));
        line("rests", format!("{rested} in all, woken {wakes} times, last accessed {last} ago"));
    }
    for (name, text) in [("limits", limits(report)), ("share", share(report))] {
        text.into_iter().for_each(|text| line(name, text));
    }
    line("memory", memory(&report.memory));
    exports(&report.export, &mut line);
    errors(report, &mut line);

    text.push('\n');
    text.push_str(&clients::clients(report));
    text.push_str(&served::served(report));
    text.push_str(&requests(report));
    text.push_str(&why(report));
    text.push('\n');
    text.push_str(&bytes(report));
    text.push('\n');
    text.push_str(&latencies(report));
    text.push('\n');
    text.push_str(&settings(report, all));
    text
}

/// Lists the settings that differ from their defaults, or all of them with a mark on those.
fn settings(report: &VolumeReport, all: bool) -> String {
    let mut table =
        Table::new(&[Column::left("SETTING"), Column::left("VALUE"), Column::left("DEFAULT")]);
    let mut folded = 0;
    for setting in SETTINGS {
        let (value, default) = (setting.text(&report.settings), setting.default());
        let differs = value != default;
        if differs || all {
            let default = if differs { default } else { String::new() };
            table.row([setting.name.to_owned(), value, default]);
        } else {
            folded += 1;
        }
    }
    let others = match folded {
        0 => return table.render(),
        _ if folded == SETTINGS.len() => {
            return format!(
                "All {folded} settings have their defaults: 'forebay show {} --all' lists them.\n",
                report.name
            );
        }
        1 => "1 other setting has its default".to_owned(),
        _ => format!("{folded} other settings have their defaults"),
    };
    format!("{}{others}: 'forebay show {} --all' lists them.\n", table.render(), report.name)
}

fn memory(memory: &MemoryReport) -> String {
    let resident = match memory.resident_bytes {
        0 => String::new(),
        bytes => format!(", and its process occupies {}", format_size(bytes)),
    };
    format!(
        "{} index, {} buffers; the daemon accounts for {} of {}{resident}",
        format_size(memory.index_bytes),
        format_size(memory.buffer_bytes),
        format_size(memory.used_bytes.total()),
        format_size(memory.limit_bytes)
    )
}

fn exports(export: &ExportReport, line: &mut impl FnMut(&str, String)) {
    let uris = export.all.iter().filter(|uri| export.vhost_user.as_ref() != Some(*uri));
    for (index, uri) in uris.enumerate() {
        line(if index == 0 { "nbd" } else { "" }, uri.clone());
    }
    if let Some(device) = &export.device {
        let link = export.link.as_ref();
        line("device", link.map_or(device.clone(), |link| format!("{device}, {link}")));
    }
    if let Some(socket) = &export.vhost_user {
        line("socket", socket.clone());
    }
    if let Some(error) = &export.error {
        line("not exported", error.clone());
    }
}

/// Returns the origin with its size and its special properties.
fn origin(report: &VolumeReport) -> String {
    let OriginReport { path, size, rotational, read_only, sector_bytes, .. } = &report.origin;
    let rotational =
        rotational.map_or("", |it| if it { ", rotational" } else { ", not rotational" });
    let read_only = if *read_only == Some(true) { ", read-only" } else { "" };
    let unusual = sector_bytes.filter(|bytes| *bytes != 512);
    let sectors = unusual.map_or(String::new(), |bytes| format!(", sectors of {bytes} bytes"));
    format!("{path}  {}{rotational}{read_only}{sectors}", format_size(*size))
}

/// Returns the mode, and whether the volume is paused or frozen.
pub(crate) fn mode(mode: Mode, caching: Caching) -> String {
    match caching {
        Caching::On => mode.to_string(),
        caching => format!("{mode} ({caching})"),
    }
}

/// Returns a setting that has not taken effect yet, because the volume is served.
pub(crate) fn waits_for_start(report: &VolumeReport) -> Option<&'static str> {
    if !report.state.is_served() {
        return None;
    }
    if report.origin.read_only.is_some_and(|now| now != report.settings.read_only) {
        return Some("read_only");
    }
    match &report.ram {
        None => (report.settings.ram > 0).then_some("ram"),
        Some(ram) => (ram.block_size != report.settings.ram_block).then_some("ram_block"),
    }
}

fn cache_lines(report: &VolumeReport) -> Vec<(&'static str, String)> {
    let used = match report.cache.size {
        0 => String::new(),
        size => format!(
            "  {} of {} used ({}) by all of its volumes",
            format_size(report.cache.used),
            format_size(size),
            percent(report.cache.used as f64 / size as f64)
        ),
    };
    let mut lines = vec![("cache", format!("{}{used}", report.cache.path))];
    if let Some(share) = report.cache.index_loaded {
        let rest = "the other blocks are loaded on demand, and not counted yet";
        lines.push(("index", format!("{} loaded; {rest}", percent(share))));
    }
    lines
}

/// Returns the lines about the RAM tier.
fn ram_lines(report: &VolumeReport) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    if let Some(ram) = &report.ram {
        lines.push(("ram", ram_tier(ram)));
        if report.settings.durability == Durability::Deferred || ram.deferred > 0 {
            lines.push(("deferred", deferred_writes(ram)));
        }
        if report.settings.ignore_flush {
            let danger =
                "flushes are ignored: a crash loses data that clients believe to be durable";
            lines.push(("DANGER", danger.to_owned()));
        }
    }
    if let Some(setting) = waits_for_start(report) {
        let pending = format!("{setting} takes effect when the volume is started again");
        lines.push(("pending", pending));
    }
    lines
}

fn ram_tier(ram: &RamReport) -> String {
    let reads = ram.hits + ram.misses;
    let hits = match reads {
        0 => String::new(),
        _ => format!(
            "; {} of {} blocks read were in it",
            percent(ram.hits as f64 / reads as f64),
            grouped(reads)
        ),
    };
    let usable = if ram.usable < ram.size / 16 * 15 {
        format!(", {} of that until the volume is started again,", format_size(ram.usable))
    } else if ram.room < ram.usable {
        format!(", {} of that while memory is short,", format_size(ram.room))
    } else {
        String::new()
    };
    format!(
        "{} of {}{usable} used in blocks of {}, and {} for the index{hits}",
        format_size(ram.used),
        format_size(ram.size),
        format_size(ram.block_size),
        format_size(ram.overhead_bytes)
    )
}

fn deferred_writes(ram: &RamReport) -> String {
    let share = |part: u64| percent(part as f64 / ram.deferred_written.max(1) as f64);
    let mut text = format!(
        "{} wait in RAM; of {} written, {} were overwritten there and {} replaced below; {} went down in requests of {} on average",
        format_size(ram.deferred),
        format_size(ram.deferred_written),
        share(ram.coalesced),
        share(ram.superseded),
        format_size(ram.written_down),
        format_size(ram.written_down / ram.write_downs.max(1)),
    );
    if ram.urgent > 0 {
        text.push_str(&format!("; {} early, as space ran short", format_size(ram.urgent)));
    }
    for (count, what) in [
        (ram.waits, "writes waited for space"),
        (ram.late_write_downs, "requests were late"),
        (ram.failed_write_downs, "requests failed"),
    ] {
        if count > 0 {
            text.push_str(&format!("; {} {what}", grouped(count)));
        }
    }
    text
}

fn ordered(report: &VolumeReport) -> Option<String> {
    let Some(order) = report.ordered else {
        let pending = report.settings.wants_order() && report.state == VolumeState::Running;
        return pending.then(|| "not in effect yet".to_owned());
    };
    let how = match order.in_effect {
        true => "the origin is at a flush",
        false => "not in effect until all earlier dirty blocks are on the origin",
    };
    Some(format!("{how}, {} versions waiting", grouped(order.waiting)))
}

/// Returns the limits of the volume's clients, if there are any, and their effect.
fn limits(report: &VolumeReport) -> Option<String> {
    let (iops, bandwidth) = (report.settings.limit_iops, report.settings.limit_bandwidth);
    let requests = (iops > 0).then(|| format!("{} requests", grouped(iops)));
    let bytes = (bandwidth > 0).then(|| format!("{} bytes", format_size(bandwidth)));
    let limits: Vec<String> = requests.into_iter().chain(bytes).collect();
    let waited = match report.requests.limited {
        0 => "none has waited".to_owned(),
        count => {
            let mean = report.requests.limited_ms as f64 / count as f64;
            format!("{} requests have waited, {mean:.1} ms on average", grouped(count))
        }
    };
    (!limits.is_empty()).then(|| format!("{} per second; {waited}", limits.join(" and ")))
}

/// Returns the volume's share of the cache, if it has one.
fn share(report: &VolumeReport) -> Option<String> {
    let set = match (report.settings.share_min, report.settings.share_max) {
        (0, 100) => return None,
        (0, most) => format!("at most {most} %"),
        (least, 100) => format!("at least {least} % if it is used"),
        (least, most) => format!("{least} % to {most} %"),
    };
    let cached = report.blocks.cached.saturating_mul(report.block_size) as f64;
    let percent = cached * 100.0 / report.cache.size.max(1) as f64;
    Some(if report.blocks.known { format!("{percent:.1} % of the cache; {set}") } else { set })
}

fn blocks(report: &VolumeReport) -> String {
    if !report.blocks.known && !report.blocks.as_of_stop {
        return "unknown while the cache is closed; there may be dirty blocks on the cache device"
            .into();
    }
    // If the volume is served, the line about ordered writeback shows the waiting versions.
    let held = match report.blocks.held {
        1.. if report.ordered.is_none() => {
            format!(", {} held for ordered writeback", grouped(report.blocks.held))
        }
        _ => String::new(),
    };
    let when = if report.blocks.as_of_stop { " when it was stopped" } else { "" };
    format!(
        "{} cached, {} dirty ({}){held}{when}",
        grouped(report.blocks.cached),
        grouped(report.blocks.dirty),
        format_size(report.blocks.dirty.saturating_mul(report.block_size))
    )
}

fn errors(report: &VolumeReport, line: &mut impl FnMut(&str, String)) {
    let errors = &report.errors;
    if errors.is_empty() {
        return;
    }
    let counts: Vec<String> = [
        ("origin read", errors.origin_read),
        ("origin write", errors.origin_write),
        ("cache read", errors.cache_read),
        ("cache write", errors.cache_write),
        ("checksum", errors.checksum),
    ]
    .into_iter()
    .filter(|(_, count)| *count > 0)
    .map(|(what, count)| format!("{} {what}", grouped(count)))
    .collect();
    if !counts.is_empty() {
        line("errors", counts.join(", "));
    }
    if let Some(last) = &errors.last {
        line("last error", last.clone());
    }
    for range in &errors.lost {
        line("lost", format!("{} bytes at {}", range.len, range.offset));
    }
    for range in &errors.refused {
        line("refused", format!("{} bytes at {}", range.len, range.offset));
    }
}

fn requests(report: &VolumeReport) -> String {
    let requests = &report.requests;
    let mut table = Table::new(&[
        Column::left(if report.ram.is_some() { "BELOW RAM" } else { "REQUESTS" }),
        Column::right("HITS"),
        Column::right("PARTIAL"),
        Column::right("MISSES"),
        Column::right("HIT RATIO"),
    ]);
    let ratio = |ratio: Option<f64>| ratio.map_or_else(|| "-".to_owned(), percent);
    table.row([
        "read".to_owned(),
        grouped(requests.read_hits),
        grouped(requests.read_partial),
        grouped(requests.read_misses),
        ratio(requests.read_hit_ratio()),
    ]);
    table.row([
        "write".to_owned(),
        grouped(requests.write_hits),
        "-".to_owned(),
        grouped(requests.write_misses),
        ratio(requests.write_hit_ratio()),
    ]);
    table.render()
        + &counts([
            ("bypassed", requests.bypassed),
            ("flushes", requests.flushes),
            ("discards", requests.discards),
            ("failed", requests.failed),
        ])
}

/// Lists the counted reasons, each with its share of its group; empty if there are none.
fn why(report: &VolumeReport) -> String {
    let mut totals = BTreeMap::new();
    report.why.each(|group, _, count| *totals.entry(group).or_insert(0) += count);
    let mut table = Table::new(&[
        Column::left("WHY"),
        Column::left("REASON"),
        Column::right("COUNT"),
        Column::right("SHARE"),
    ]);
    let (mut rows, mut last) = (0, "");
    report.why.each(|group, name, count| {
        let total = totals.get(group).copied().unwrap_or(0);
        if count == 0 || total == 0 {
            return;
        }
        let shown = if group == last { "" } else { group };
        table.row([
            shown.to_owned(),
            name.to_owned(),
            grouped(count),
            percent(count as f64 / total as f64),
        ]);
        (rows, last) = (rows + 1, group);
    });
    if rows == 0 { String::new() } else { format!("\n{}", table.render()) }
}

fn bytes(report: &VolumeReport) -> String {
    let bytes = &report.bytes;
    let mut table =
        Table::new(&[Column::left("BYTES"), Column::right("READ"), Column::right("WRITTEN")]);
    for (who, read, written) in [
        ("user", bytes.user_read, bytes.user_written),
        ("ram", bytes.ram_read, bytes.ram_written),
        ("cache", bytes.cache_read, bytes.cache_written),
        ("origin", bytes.origin_read, bytes.origin_written),
    ] {
        if who != "ram" || report.ram.is_some() {
            table.row([who.to_owned(), format_size(read), format_size(written)]);
        }
    }
    table.render()
        + &counts([
            ("blocks filled", report.blocks.filled),
            ("written back", report.blocks.written_back),
            ("reinserted", report.blocks.carried_on),
        ])
}

/// Lists the counts that are not zero, in one line.
fn counts<const N: usize>(of: [(&str, u64); N]) -> String {
    let some = of.iter().filter(|(_, count)| *count > 0);
    let texts: Vec<String> =
        some.map(|(what, count)| format!("{} {what}", grouped(*count))).collect();
    if texts.is_empty() { String::new() } else { format!("{}\n", texts.join(", ")) }
}

fn latencies(report: &VolumeReport) -> String {
    let mut table = Table::new(&[
        Column::left(if report.ram.is_some() { "LATENCY BELOW RAM" } else { "LATENCY" }),
        Column::right("MEAN"),
        Column::right("P50"),
        Column::right("P99"),
        Column::right("MAX"),
    ]);
    for (what, latency) in report.latency.kinds() {
        let Latency { mean_us, p50_us, p99_us, max_us, .. } = *latency;
        table.row(
            std::iter::once(what.to_owned()).chain([mean_us, p50_us, p99_us, max_us].map(micros)),
        );
    }
    let mut text = table.render();
    if [report.latency.read, report.latency.write].iter().any(|latency| latency.count > 0) {
        text.push_str(
            "Inside the daemon, without NBD and the network. Of requests that complete at once, one in 16\n\
             is measured and counts as 16.\n",
        );
    }
    text
}

/// Formats a share as `42.0 %`.
fn percent(share: f64) -> String {
    format!("{:.1} %", share * 100.0)
}

/// Formats a time in seconds, rounded according to its size.
pub(crate) fn time(seconds: f64) -> String {
    match seconds {
        ..120.0 => format!("{seconds:.0} s"),
        ..7200.0 => format!("{:.0} min", seconds / 60.0),
        _ => format!("{:.1} h", seconds / 3600.0),
    }
}

/// Formats a time in microseconds with a suitable unit; a dash for 0.
fn micros(micros: f64) -> String {
    match micros {
        ..=0.0 => "-".to_owned(),
        ..10.0 => format!("{micros:.1} µs"),
        ..1e3 => format!("{micros:.0} µs"),
        ..1e6 => format!("{:.2} ms", micros / 1e3),
        _ => format!("{:.2} s", micros / 1e6),
    }
}

#[cfg(test)]
mod tests;
