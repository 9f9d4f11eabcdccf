//! `forebay pin`, `unpin`, `evict`, and `prefetch` with ranges: ranges of a volume, or files of the
//! file system on it.

use std::fs::{self, File};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use clap::{Args, ValueHint};
use forebay_admin::api::{self, Operate};
use forebay_admin::{ApiError, ByteRange, PinReport, RangesRequest, VolumeName};
use forebay_core::parse_size;
use forebay_core::units::format_size;
use forebay_device::file_extents;
use forebay_host::sysfs;

use super::{moved_by, operate};
use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::{json, note, print_text};

/// The help of arguments that name parts of a volume.
const PLACES: &str = "OFFSET+LENGTH of the volume, as 1G+512M, or a file on its device";

/// Arguments of `prefetch`.
#[derive(Debug, Args)]
pub(crate) struct PrefetchArgs {
    /// The volume
    pub(crate) name: VolumeName,

    #[arg(value_name = "RANGE|FILE", help = PLACES, value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<String>,
}

/// Arguments of `pin`.
#[derive(Debug, Args)]
pub(crate) struct PinArgs {
    /// The volume
    pub(crate) name: VolumeName,

    #[arg(value_name = "RANGE|FILE", help = PLACES, value_hint = ValueHint::FilePath)]
    pub(crate) places: Vec<String>,

    /// Print the pinned ranges as JSON
    #[arg(long, conflicts_with = "places")]
    pub(crate) json: bool,
}

/// Arguments of `unpin`.
#[derive(Debug, Args)]
pub(crate) struct UnpinArgs {
    /// The volume
    pub(crate) name: VolumeName,

    #[arg(value_name = "RANGE|FILE", help = PLACES, value_hint = ValueHint::FilePath)]
    #[arg(required_unless_present = "all")]
    pub(crate) places: Vec<String>,

    /// Unpin everything
    #[arg(long, conflicts_with = "places")]
    pub(crate) all: bool,
}

/// Arguments of `evict`.
#[derive(Debug, Args)]
pub(crate) struct EvictArgs {
    /// The volume
    pub(crate) name: VolumeName,

    #[arg(value_name = "RANGE|FILE", help = PLACES, value_hint = ValueHint::FilePath)]
    #[arg(required = true)]
    pub(crate) places: Vec<String>,
}

/// Ranges in one request: its body stays below the limit of the admin API.
const AT_ONCE: usize = 1000;

/// Pins ranges or, without any, prints those that are pinned.
pub(crate) fn pin(client: &DaemonClient, args: &PinArgs) -> VerbResult {
    if !args.places.is_empty() {
        return each(client, &api::PIN, &args.name, &args.places, "Pinning in").map(|_| ());
    }
    let report = client.get(&api::PINS, &args.name)?;
    if args.json { json::print(&report) } else { print_text(&render(&report)) }
}

/// Unpins ranges, or all.
pub(crate) fn unpin(client: &DaemonClient, args: &UnpinArgs) -> VerbResult {
    if args.all {
        return operate(client, &api::UNPIN, &args.name, &RangesRequest::default(), "Unpinning in");
    }
    each(client, &api::UNPIN, &args.name, &args.places, "Unpinning in").map(|_| ())
}

/// Discards clean blocks of ranges.
pub(crate) fn evict(client: &DaemonClient, args: &EvictArgs) -> VerbResult {
    let discarded = each(client, &api::EVICT, &args.name, &args.places, "Evicting from")?;
    note(&format!("{}: {} discarded from the cache", args.name, format_size(discarded)));
    Ok(())
}

/// Loads ranges into the cache or, without any, the blocks that the RAM tier held when the volume
/// was last stopped.
pub(crate) fn prefetch(client: &DaemonClient, args: &PrefetchArgs) -> VerbResult {
    if args.places.is_empty() {
        return operate(
            client,
            &api::PREFETCH,
            &args.name,
            &RangesRequest::default(),
            "Prefetching",
        );
    }
    each(client, &api::PREFETCH, &args.name, &args.places, "Prefetching").map(|_| ())
}

/// Begins an operation for the ranges, and follows it; returns the bytes that were discarded.
fn each(
    client: &DaemonClient,
    endpoint: &Operate<RangesRequest>,
    name: &VolumeName,
    places: &[String],
    doing: &str,
) -> Result<u64, ApiError> {
    let mut ranges = Vec::new();
    for place in places {
        match range(place) {
            Some(range) => ranges.push(range),
            None => ranges.extend(of_file(client, name, Path::new(place))?),
        }
    }
    let mut discarded = 0;
    for ranges in ranges.chunks(AT_ONCE) {
        let request = RangesRequest { ranges: ranges.to_vec() };
        discarded += moved_by(client, endpoint, name, &request, doing)?.discarded;
    }
    Ok(discarded)
}

/// Parses OFFSET+LENGTH; `None`: it is the path of a file.
fn range(text: &str) -> Option<ByteRange> {
    let (offset, len) = text.split_once('+')?;
    Some(ByteRange { offset: parse_size(offset).ok()?, len: parse_size(len).ok()? })
}

/// Returns where a file lies on a volume.
fn of_file(
    client: &DaemonClient,
    name: &VolumeName,
    path: &Path,
) -> Result<Vec<ByteRange>, ApiError> {
    let said = |reason: String| ApiError::invalid(&path.to_string_lossy(), reason);
    let file = File::open(path).map_err(|error| said(error.to_string()))?;
    let found = file.metadata().map_err(|error| said(error.to_string()))?;
    if !found.is_file() {
        return Err(said("neither a file nor a range like 1G+512M".to_owned()));
    }
    let report = client.get(&api::SHOW, name)?;
    let device = report.export.device.ok_or_else(|| {
        said(format!(
            "volume '{name}' is no block device of this machine; name a range like 1G+512M"
        ))
    })?;
    let volume = fs::metadata(&device).map_err(|error| said(error.to_string()))?.rdev();
    let start = start_on(found.dev(), volume).ok_or_else(|| {
        said(format!("it is not on a file system directly on {device}, the device of '{name}'"))
    })?;
    let extents = file_extents(&file)
        .map_err(|error| said(format!("its file system does not say where it is: {error}")))?;
    let places: Vec<ByteRange> = extents.into_iter().filter_map(|it| place(it, start)).collect();
    if places.is_empty() {
        return Err(said("it has no data on the device".to_owned()));
    }
    Ok(places)
}

fn place(extent: Range<u64>, start: u64) -> Option<ByteRange> {
    let offset = extent.start.checked_add(start)?;
    Some(ByteRange { offset, len: extent.end - extent.start })
}

/// Returns the byte of the device `disk` at which `device` begins: the same one, or one of its
/// partitions.
fn start_on(device: u64, disk: u64) -> Option<u64> {
    if device == disk {
        return Some(0);
    }
    let own = sysfs::directory(device)?;
    sysfs::start(&own).filter(|_| sysfs::number_of(sysfs::disk_of(&own)) == Some(disk))
}

fn render(report: &PinReport) -> String {
    let mut text = format!(
        "{} pinned, {} of it cached; {} can be pinned in all volumes of the cache\n",
        format_size(report.pinned),
        format_size(report.cached),
        format_size(report.most)
    );
    for ByteRange { offset, len } in &report.ranges {
        text.push_str(&format!("{offset}+{len}\n"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_told_from_files() {
        let some = |offset, len| Some(ByteRange { offset, len });
        assert_eq!(range("0+4096"), some(0, 4096));
        assert_eq!(range("1G+512M"), some(1 << 30, 512 << 20));
        for file in ["", "1G", "+1G", "1G+", "a+b", "./1+2", "1+2+3", "-1+2"] {
            assert_eq!(range(file), None, "{file}");
        }
    }

    #[test]
    fn a_device_begins_where_it_is() {
        assert_eq!(start_on(7, 7), Some(0));
        assert_eq!(start_on(u64::MAX, 7), None);
    }

    #[test]
    fn pins_are_printed_as_they_are_given() {
        let ranges = vec![ByteRange { offset: 0, len: 4096 }, ByteRange { offset: 8192, len: 512 }];
        let report = PinReport { pinned: 8192, cached: 4096, most: 1 << 30, ranges };
        let expected = "8K pinned, 4K of it cached; 1G can be pinned in all volumes of the cache\n0+4096\n8192+512\n";
        assert_eq!(render(&report), expected);
    }
}
