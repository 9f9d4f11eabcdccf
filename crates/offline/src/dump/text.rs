//! A dump for people.

use std::fmt::Write;

use forebay_admin::text::grouped;
use forebay_core::units::format_size;
use forebay_engine::settings::tag_name;
use forebay_format::checkpoint::SegmentUse;
use forebay_format::{
    Body, CheckpointHeader, Geometry, MarkKind, RecordHeader, SegmentState, Superblock,
    VolumeRecord,
};

use super::{DumpWriter, PIECE, kind, slot_of};

/// Width of the labels on the left.
const LABEL: usize = 18;

/// See the module.
#[derive(Default)]
pub(super) struct Text {
    text: String,
    table: SegmentSummary,
}

/// Contents of the segment table.
#[derive(Default)]
struct SegmentSummary {
    closed: u64,
    open: u64,
    free: u64,
    /// The highest generation.
    highest: u64,
}

impl Text {
    fn line(&mut self, label: &str, value: impl std::fmt::Display) {
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{label:LABEL$}{value}");
    }

    fn volume(&mut self, volume: &VolumeRecord) {
        self.text.push('\n');
        self.line("volume", format_args!("{} (number {})", volume.name, volume.id));
        self.line("uuid", volume.uuid);
        self.line(
            "origin",
            format_args!("{}  {}", volume.origin, format_size(volume.origin_bytes)),
        );
        self.line("alignment", volume.alignment);
        self.line(
            "mode",
            format_args!("{}, {}, durability {}", volume.mode, volume.policy, volume.durability),
        );
        self.line("started", if volume.started { "yes" } else { "no" });
        self.line(
            "fingerprint",
            if volume.fingerprint.is_some() {
                "taken"
            } else {
                "none: the origin is in use, or was when the daemon ended"
            },
        );
        match &volume.identity {
            Some(identity) => self.line("identity", identity),
            None => self.line("identity", "unknown"),
        }
        match &volume.samples {
            Some(samples) => self.line(
                "samples",
                format_args!(
                    "{}, {} untouched",
                    samples.checks.len(),
                    samples.untouched.count_ones()
                ),
            ),
            None => self.line("samples", "none"),
        }
        for (index, (tag, value)) in volume.settings.iter().enumerate() {
            let label = if index == 0 { "settings" } else { "" };
            match tag_name(*tag) {
                Some(name) => self.line(label, format_args!("{name}={value}")),
                None => self.line(label, format_args!("number {tag} (unknown): {value}")),
            }
        }
    }
}

impl DumpWriter for Text {
    fn roots(&mut self, superblock: &Superblock, volumes: &[VolumeRecord]) {
        let geometry = &superblock.geometry;
        self.line("cache", superblock.cache);
        self.line("generation", superblock.generation);
        let (compat, incompat) = (superblock.compat, superblock.incompat);
        self.line(
            "features",
            format_args!(
                "compat {compat:#x}, incompat {incompat:#x}, ro_compat {:#x}",
                superblock.ro_compat
            ),
        );
        self.line("clean shutdown", if superblock.clean_shutdown { "yes" } else { "no" });
        self.line("last record", superblock.last_record.0);
        if let Some(accepted) = &superblock.accepted {
            self.line(
                "accepted log",
                format_args!(
                    "through record {}, without {} ranges of numbers and {} torn cells",
                    accepted.through.0,
                    accepted.left_out.len(),
                    accepted.torn.len()
                ),
            );
        }
        self.line("next volume", superblock.next_volume_id);
        self.line(
            "device size",
            format_args!(
                "{} ({} bytes)",
                format_size(geometry.device_bytes),
                geometry.device_bytes
            ),
        );
        self.line("block size", geometry.block);
        self.line(
            "segments",
            format_args!(
                "{} of {} from byte {}",
                geometry.segment_count,
                format_size(geometry.segment_bytes),
                geometry.segments_offset
            ),
        );
        let [first, second] = geometry.volume_areas;
        self.line(
            "volume tables",
            format_args!(
                "at {first} and {second}, {} each, number {} counts",
                format_size(geometry.volume_area_bytes),
                superblock.volume_table.area
            ),
        );
        let [first, second] = geometry.checkpoint_areas;
        self.line(
            "checkpoint areas",
            format_args!(
                "at {first} and {second}, {} each",
                format_size(geometry.checkpoint_area_bytes)
            ),
        );
        volumes.iter().for_each(|volume| self.volume(volume));
    }

    fn checkpoint(&mut self, header: Result<&CheckpointHeader, &str>) {
        self.text.push('\n');
        match header {
            Ok(header) => {
                self.line(
                    "checkpoint",
                    format_args!("number {}, {}", header.number, format_size(header.len)),
                );
                self.line(
                    "contains",
                    format_args!(
                        "records up to {}, sequences up to {}",
                        header.base.0, header.highest_sequence
                    ),
                );
                self.line(
                    "entries",
                    format_args!(
                        "{}, {} partial, {} check bits",
                        grouped(header.entry_count),
                        grouped(header.mask_count),
                        header.check_bits
                    ),
                );
            }
            Err(why) => self.line("checkpoint", why),
        }
    }

    fn segments(&mut self, _: usize, lines: &[SegmentState]) {
        let table = &mut self.table;
        for line in lines {
            *match line.usage {
                SegmentUse::Free => &mut table.free,
                SegmentUse::Open => &mut table.open,
                SegmentUse::Closed => &mut table.closed,
            } += 1;
            table.highest = table.highest.max(line.generation.0);
        }
    }

    fn end_of_segments(&mut self) {
        let SegmentSummary { closed, open, free, highest } = std::mem::take(&mut self.table);
        let (closed, open, free) = (grouped(closed), grouped(open), grouped(free));
        self.line("segment table", format_args!("{closed} closed, {open} open, {free} free"));
        self.line("generations", format_args!("up to {highest}"));
    }

    fn record(&mut self, header: &RecordHeader, geometry: &Geometry, with_entries: bool) {
        let (kind, count) = kind(header);
        let _ = writeln!(
            self.text,
            "record {} segment {} generation {} position {}: {count} {kind}, durable through {}",
            header.number.0,
            header.segment.0,
            header.generation.0,
            header.position,
            header.durable_through.0
        );
        if !with_entries {
            return;
        }
        match &header.body {
            Body::Data(entries) => {
                for (index, entry) in entries.iter().enumerate() {
                    let slot = slot_of(header, geometry, index).0;
                    let _ = if entry.void {
                        writeln!(self.text, "  slot {slot}: void")
                    } else {
                        let state = if entry.dirty { "dirty" } else { "clean" };
                        let (valid, all) = (entry.mask.count(), entry.mask.sectors());
                        writeln!(
                            self.text,
                            "  slot {slot}: volume {} block {} sequence {} {state} {valid}/{all} check {:08x}",
                            entry.volume, entry.block.0, entry.sequence, entry.check
                        )
                    };
                }
            }
            Body::Opening(_) => (),
            Body::Marks(marks) => {
                for mark in marks {
                    let what = match mark.kind {
                        MarkKind::Clean => "clean",
                        MarkKind::Gone => "gone",
                    };
                    let _ = writeln!(
                        self.text,
                        "  slot {} generation {}: {what}",
                        mark.slot.0, mark.generation.0
                    );
                }
            }
        }
    }

    fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }

    fn is_full(&self) -> bool {
        self.text.len() >= PIECE
    }
}
