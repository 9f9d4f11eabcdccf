//! Verifies a cache device.

use std::fmt::Write;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay_admin::ApiError;
use forebay_admin::text::grouped;
use forebay_core::units::format_size;
use forebay_device::Access;
use forebay_lane::MemoryBudget;
use forebay_store::StoreOptions;
pub use forebay_store::check::CheckReport;
use forebay_store::check::{CheckOptions, check};
use serde_json::{Value, json};

use crate::device;

/// Width of the labels on the left.
const LABEL: usize = 13;

/// Maximum number of bad blocks that the text output lists.
const SHOWN: usize = 50;

/// Verifies a cache device with at most `memory` bytes of memory; `quick` skips the content of its
/// blocks. `waiting` is called repeatedly with the number of verified segments and the total
/// number.
///
/// # Errors
/// The device does not exist, is in use, or cannot be read, or the sizes that it claims need more
/// memory.
pub fn run(
    device: &str,
    quick: bool,
    memory: u64,
    mut waiting: impl FnMut(u64, u64),
) -> Result<CheckReport, ApiError> {
    let done = Arc::new((AtomicU64::new(0), AtomicU64::new(0)));
    let told = done.clone();
    device::run(
        device,
        Access::Shared,
        move |lane, device| async move {
            let open = device::opener(&lane);
            let progress = Rc::new(move |segments, total| {
                told.0.store(segments, Ordering::Relaxed);
                told.1.store(total, Ordering::Relaxed);
            });
            let memory = Arc::new(MemoryBudget::new(memory));
            let store = StoreOptions { memory, ..StoreOptions::default() };
            let options = CheckOptions { open: &*open, store, quick, progress };
            check(lane.lane(), device, options).await.map_err(device::store_error)
        },
        || waiting(done.0.load(Ordering::Relaxed), done.1.load(Ordering::Relaxed)),
    )
}

/// Returns the number of problems.
pub fn problems(report: &CheckReport) -> u64 {
    report.problems.len() as u64 + report.more_problems + report.bad_count
}

/// Returns a report for people.
pub fn as_text(device: &str, report: &CheckReport) -> String {
    let mut text = String::new();
    let mut line = |label: &str, value: String| {
        let _ = writeln!(text, "{label:LABEL$}{value}");
    };
    line("device", device.to_owned());
    if let Some(superblock) = &report.superblock {
        let geometry = &superblock.geometry;
        line("cache", superblock.cache.to_string());
        line(
            "size",
            format!("{}, blocks of {}", format_size(geometry.device_bytes), geometry.block),
        );
        line(
            "closed",
            if report.clean { "cleanly" } else { "not cleanly: it was recovered for this check" }
                .to_owned(),
        );
    }
    match &report.checkpoint {
        Some(header) => line(
            "checkpoint",
            format!("number {}, {} blocks", header.number, grouped(header.entry_count)),
        ),
        None => line("checkpoint", "none".to_owned()),
    }
    line(
        "log",
        format!("{} records since, {} torn", grouped(report.replayed), grouped(report.torn)),
    );
    for volume in &report.volumes {
        line(
            "volume",
            format!("{}  {}  {}", volume.name, format_size(volume.origin_bytes), volume.origin),
        );
    }
    line("blocks", format!("{} cached, {} dirty", grouped(report.blocks), grouped(report.dirty)));
    let depth = if report.quick { "their headers only" } else { "with their content" };
    line(
        "verified",
        format!(
            "{} blocks, {depth}, in {} records of {} segments",
            grouped(report.verified),
            grouped(report.records),
            grouped(report.segments)
        ),
    );
    for note in &report.notes {
        line("note", note.clone());
    }
    for problem in &report.problems {
        line("problem", problem.clone());
    }
    if report.more_problems > 0 {
        line("", format!("and {} more", grouped(report.more_problems)));
    }
    for bad in report.bad.iter().take(SHOWN) {
        let state = if bad.dirty { "dirty" } else { "clean" };
        line(
            "bad block",
            format!("{} bytes {}+{} ({state}): {}", bad.volume, bad.offset, bad.len, bad.what),
        );
    }
    let more = report.bad_count.saturating_sub(report.bad.len().min(SHOWN) as u64);
    if more > 0 {
        line("", format!("and {} more; --json lists them", grouped(more)));
    }
    line("result", verdict(report));
    text
}

/// Returns the verdict: how much of the data is still usable, and how to recover it.
fn verdict(report: &CheckReport) -> String {
    if report.is_sound() {
        return "everything is in order".to_owned();
    }
    if !report.recovered {
        return "damaged; the daemon cannot use it, and its dirty blocks cannot be determined"
            .to_owned();
    }
    let lost = match (report.bad_dirty, report.dirty.saturating_sub(report.bad_dirty)) {
        (0, 0) => "it holds no dirty blocks".to_owned(),
        (0, kept) => format!(
            "none of its {} dirty blocks is lost, and 'forebay flush' can still write them back",
            grouped(kept)
        ),
        (lost, kept) => format!(
            "{} dirty blocks are lost; {} are intact, and 'forebay flush' can still write them back",
            grouped(lost),
            grouped(kept)
        ),
    };
    if report.lost_records > 0 {
        let records = grouped(report.lost_records);
        return format!(
            "damaged; the content of {records} lost records is gone; of the rest, {lost}; \
             'forebay start --force' continues with the rest"
        );
    }
    match report.bad_count.saturating_sub(report.bad_dirty) {
        0 => format!("damaged; {lost}"),
        clean => {
            format!(
                "damaged; {lost}; {} clean ones are read from the origin instead",
                grouped(clean)
            )
        }
    }
}

/// Returns a report for programs.
pub fn as_json(device: &str, report: &CheckReport) -> Value {
    let bad: Vec<Value> = report
        .bad
        .iter()
        .map(|bad| {
            json!({
                "volume": bad.volume, "block": bad.block.0, "offset": bad.offset,
                "len": bad.len, "dirty": bad.dirty, "what": bad.what,
            })
        })
        .collect();
    let volumes: Vec<Value> = report
        .volumes
        .iter()
        .map(|volume| json!({"name": volume.name, "origin": volume.origin, "size": volume.origin_bytes}))
        .collect();
    json!({
        "device": device,
        "sound": report.is_sound(),
        "quick": report.quick,
        "cache": report.superblock.as_ref().map(|superblock| superblock.cache.to_string()),
        "clean": report.clean,
        "checkpoint": report.checkpoint.map(|header| header.number),
        "volumes": volumes,
        "blocks": {"cached": report.blocks, "dirty": report.dirty, "verified": report.verified},
        "records": {"replayed": report.replayed, "torn": report.torn, "found": report.records},
        "recovered": report.recovered,
        "lost_records": report.lost_records,
        "without_header": {"count": report.without_header, "dirty": report.without_header_dirty},
        "bytes_verified": report.bytes,
        "notes": report.notes,
        "problems": report.problems,
        "more_problems": report.more_problems,
        "bad": {"count": report.bad_count, "dirty": report.bad_dirty, "blocks": bad},
    })
}
