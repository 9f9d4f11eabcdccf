//! Prints the content of a cache device.

mod json;
mod text;

use std::sync::Arc;

use forebay_admin::ApiError;
use forebay_core::{SegmentId, Slot};
use forebay_device::{Access, Device, IoBuf, Queue};
use forebay_format::{
    Body, CheckpointHeader, Geometry, PAGE, RecordHeader, SegmentState, Superblock, VolumeRecord,
    record,
};
use forebay_lane::LaneLoop;
use forebay_store::{CheckpointSource, read_roots};

use crate::device::{self, store_error};

/// Bytes printed at a time.
const PIECE: usize = 64 << 10;

/// An output format.
trait DumpWriter: Send {
    fn roots(&mut self, superblock: &Superblock, volumes: &[VolumeRecord]);
    fn checkpoint(&mut self, header: Result<&CheckpointHeader, &str>);
    /// Some lines of the segment table, from the segment `first` on.
    fn segments(&mut self, first: usize, lines: &[SegmentState]);
    /// The end of the segment table.
    fn end_of_segments(&mut self);
    fn record(&mut self, header: &RecordHeader, geometry: &Geometry, with_entries: bool);
    /// Returns the text written since the last call.
    fn take(&mut self) -> String;
    /// Returns whether enough text has been collected to print.
    fn is_full(&self) -> bool;
}

/// Options of a dump in addition to the superblock, the volume table and the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The header of every record in the log.
    pub records: bool,
    /// Every block in the records.
    pub entries: bool,
    /// Print JSON, one value per line.
    pub json: bool,
}

/// Hands the content of a cache device to `print`, piece by piece.
///
/// # Errors
/// The device does not exist, is in use, or cannot be read; or the error of `print`.
pub fn run(
    device: &str,
    options: Options,
    print: impl Fn(&str) -> Result<(), ApiError> + Send + 'static,
) -> Result<(), ApiError> {
    let writer: Box<dyn DumpWriter> = match options.json {
        true => Box::new(json::JsonLines::default()),
        false => Box::new(text::Text::default()),
    };
    let job = move |lane, device| dump(lane, device, writer, options, print);
    device::run(device, Access::Shared, job, || ())
}

/// Returns the superblock, the volume table and the header of the checkpoint as JSON. If a daemon
/// uses the device, they may be from slightly different times.
///
/// # Errors
/// The device cannot be read, or has no cache.
pub fn roots_of(device: &str) -> Result<String, ApiError> {
    let job = async |lane: LaneLoop, device: Arc<dyn Device>| {
        let mut writer = json::JsonLines::default();
        let queue = lane.open(&*device).map_err(|error| ApiError::failed(error.to_string()))?;
        let roots = read_roots(&device, &queue).await.map_err(store_error)?;
        writer.roots(&roots.superblock, &roots.volumes);
        match CheckpointSource::open(&queue, &roots.superblock).await {
            Ok(Some(source)) => writer.checkpoint(Ok(source.header())),
            Ok(None) => writer.checkpoint(Err("none")),
            Err(error) => writer.checkpoint(Err(&error.to_string())),
        }
        Ok(writer.take().lines().map(without_identities).collect())
    };
    device::run(device, Access::Unlocked, job, || ())
}

/// Leaves serial numbers out of a line.
fn without_identities(line: &str) -> String {
    let mut value: serde_json::Value = serde_json::from_str(line).unwrap_or_default();
    if let Some(identity) = value.get_mut("identity")
        && let Some(parts) = identity.as_object()
    {
        *identity = parts.keys().cloned().collect();
    }
    format!("{value}\n")
}

async fn dump(
    lane: LaneLoop,
    device: Arc<dyn Device>,
    mut writer: Box<dyn DumpWriter>,
    Options { records, entries, .. }: Options,
    print: impl Fn(&str) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let failed = |error: forebay_device::DeviceError| ApiError::failed(error.to_string());
    let queue = lane.open(&*device).map_err(failed)?;
    let roots = read_roots(&device, &queue).await.map_err(store_error)?;
    writer.roots(&roots.superblock, &roots.volumes);
    checkpoint(&queue, &roots.superblock, &mut *writer, &print).await?;
    print(&writer.take())?;
    if !records && !entries {
        return Ok(());
    }
    let geometry = &roots.superblock.geometry;
    for number in 0..geometry.segment_count {
        let start = geometry.segment_offset(SegmentId(number));
        let mut at = 0;
        while at + PAGE as u64 <= geometry.segment_bytes {
            let bytes = queue.read(start + at, IoBuf::for_overwrite(PAGE)).await.map_err(failed)?;
            let header = record::decode(&bytes, geometry, &roots.superblock.cache).ok();
            let header = header.filter(|header| {
                let place = u64::from(header.position) * geometry.granule();
                header.segment.0 == number && place == at
            });
            at += PAGE as u64;
            if let Some(header) = header {
                if !header.body.is_opening() {
                    writer.record(&header, geometry, entries);
                }
                at = (at + u64::from(header.payload_bytes)).next_multiple_of(PAGE as u64);
            } else if at == PAGE as u64 {
                // No record was ever written to this segment, or its first record is damaged.
                break;
            }
            if writer.is_full() {
                print(&writer.take())?;
            }
        }
    }
    print(&writer.take())
}

/// Prints the header and the segment table of the current checkpoint while reading them.
async fn checkpoint(
    queue: &Queue,
    superblock: &Superblock,
    writer: &mut dyn DumpWriter,
    print: &impl Fn(&str) -> Result<(), ApiError>,
) -> Result<(), ApiError> {
    let mut source = match CheckpointSource::open(queue, superblock).await {
        Ok(Some(source)) => source,
        Ok(None) => {
            writer.checkpoint(Err("none"));
            return Ok(());
        }
        Err(error) => {
            writer.checkpoint(Err(&error.to_string()));
            return Ok(());
        }
    };
    writer.checkpoint(Ok(source.header()));
    let (mut first, count) = (0, superblock.geometry.segment_count as usize);
    while first < count {
        let lines: Result<Vec<_>, _> = match source.read().await {
            Ok(Some(chunk)) => source.items(&chunk).map(|items| items.segments().collect()),
            Ok(None) => break,
            Err(error) => Err(error),
        };
        match lines {
            Ok(lines) => {
                writer.segments(first, &lines);
                first += lines.len();
            }
            Err(error) => {
                writer.checkpoint(Err(&error.to_string()));
                return Ok(());
            }
        }
        if writer.is_full() {
            print(&writer.take())?;
        }
    }
    writer.end_of_segments();
    Ok(())
}

/// Returns the name of a record's kind, and its number of blocks or marks.
fn kind(header: &RecordHeader) -> (&'static str, usize) {
    match &header.body {
        Body::Data(entries) => ("data", entries.len()),
        Body::Marks(marks) => ("marks", marks.len()),
        Body::Opening(_) => ("opening", 0),
    }
}

fn slot_of(header: &RecordHeader, geometry: &Geometry, index: usize) -> Slot {
    header.cell(geometry, index)
}
