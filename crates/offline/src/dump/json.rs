//! The machine-readable dump: one JSON value per line, each with its `type`.

use forebay_core::identity::identity_part_name;
use forebay_engine::settings::tag_name;
use forebay_format::checkpoint::SegmentUse;
use forebay_format::{
    AcceptedLog, Body, CheckpointHeader, Geometry, MarkKind, RecordHeader, SegmentState,
    Superblock, VolumeRecord,
};
use serde_json::{Value, json};

use super::{DumpWriter, PIECE, kind, slot_of};

/// See the module.
#[derive(Default)]
pub(super) struct JsonLines(String);

impl JsonLines {
    fn line(&mut self, value: &Value) {
        self.0.push_str(&value.to_string());
        self.0.push('\n');
    }
}

/// Describes the part of the log that recovery accepts.
fn accepted(log: &AcceptedLog) -> Value {
    json!({
        "through": log.through.0,
        "sequence": log.sequence,
        "next_generation": log.next_generation.0,
        "left_out": log.left_out.iter().map(|it| [*it.start(), *it.end()]).collect::<Vec<_>>(),
        "torn": log.torn.iter().map(|slot| slot.0).collect::<Vec<_>>(),
    })
}

impl DumpWriter for JsonLines {
    fn roots(&mut self, superblock: &Superblock, volumes: &[VolumeRecord]) {
        let geometry = &superblock.geometry;
        self.line(&json!({
            "type": "superblock",
            "cache": superblock.cache.to_string(),
            "generation": superblock.generation,
            "features": {
                "compat": superblock.compat,
                "incompat": superblock.incompat,
                "ro_compat": superblock.ro_compat,
            },
            "clean_shutdown": superblock.clean_shutdown,
            "next_volume_id": superblock.next_volume_id,
            "last_record": superblock.last_record.0,
            "accepted": superblock.accepted.as_ref().map(accepted),
            "checkpoint_area": superblock.checkpoint.map(|reference| reference.area),
            "volume_table_area": superblock.volume_table.area,
        }));
        self.line(&json!({
            "type": "geometry",
            "device_bytes": geometry.device_bytes,
            "block_size": geometry.block.bytes(),
            "segment_bytes": geometry.segment_bytes,
            "segment_count": geometry.segment_count,
            "segments_offset": geometry.segments_offset,
            "volume_areas": geometry.volume_areas,
            "volume_area_bytes": geometry.volume_area_bytes,
            "checkpoint_areas": geometry.checkpoint_areas,
            "checkpoint_area_bytes": geometry.checkpoint_area_bytes,
        }));
        for volume in volumes {
            let settings: Vec<Value> = volume
                .settings
                .iter()
                .map(|(tag, value)| json!({"tag": tag, "name": tag_name(*tag), "value": value}))
                .collect();
            let identity: serde_json::Map<String, Value> = volume
                .identity
                .iter()
                .flat_map(|identity| identity.parts())
                .map(|(code, text)| (identity_part_name(code).to_owned(), text.into()))
                .collect();
            self.line(&json!({
                "type": "volume",
                "id": volume.id.0,
                "uuid": volume.uuid.to_string(),
                "name": volume.name,
                "origin": volume.origin,
                "origin_bytes": volume.origin_bytes,
                "alignment": volume.alignment,
                "mode": volume.mode.name(),
                "durability": volume.durability.name(),
                "policy": volume.policy.name(),
                "started": volume.started,
                "fingerprint": volume.fingerprint.is_some(),
                "identity": identity,
                "samples": volume.samples.as_ref().map(|samples| json!({
                    "count": samples.checks.len(),
                    "untouched": samples.untouched.count_ones(),
                })),
                "settings": settings,
            }));
        }
    }

    fn checkpoint(&mut self, header: Result<&CheckpointHeader, &str>) {
        let value = match header {
            Ok(header) => json!({
                "type": "checkpoint",
                "number": header.number,
                "base": header.base.0,
                "highest_sequence": header.highest_sequence,
                "check_bits": header.check_bits,
                "entries": header.entry_count,
                "masks": header.mask_count,
                "bytes": header.len,
            }),
            Err(why) => json!({"type": "checkpoint", "missing": why}),
        };
        self.line(&value);
    }

    fn segments(&mut self, first: usize, lines: &[SegmentState]) {
        for (number, line) in (first..).zip(lines) {
            let usage = match line.usage {
                SegmentUse::Free => continue,
                SegmentUse::Open => "open",
                SegmentUse::Closed => "closed",
            };
            self.line(&json!({
                "type": "segment",
                "segment": number,
                "generation": line.generation.0,
                "use": usage,
                "write_position": line.write_position,
            }));
        }
    }

    fn end_of_segments(&mut self) {}

    fn record(&mut self, header: &RecordHeader, geometry: &Geometry, with_entries: bool) {
        let (kind, count) = kind(header);
        let mut value = json!({
            "type": "record",
            "number": header.number.0,
            "segment": header.segment.0,
            "generation": header.generation.0,
            "position": header.position,
            "kind": kind,
            "count": count,
            "payload_bytes": header.payload_bytes,
            "durable_through": header.durable_through.0,
        });
        if with_entries {
            let entries: Vec<Value> = match &header.body {
                Body::Data(entries) => entries
                    .iter()
                    .enumerate()
                    .map(|(index, entry)| {
                        json!({
                            "slot": slot_of(header, geometry, index).0,
                            "void": entry.void,
                            "volume": entry.volume.0,
                            "block": entry.block.0,
                            "sequence": entry.sequence,
                            "dirty": entry.dirty,
                            "valid_sectors": entry.mask.count(),
                            "check": entry.check,
                        })
                    })
                    .collect(),
                Body::Opening(_) => Vec::new(),
                Body::Marks(marks) => marks
                    .iter()
                    .map(|mark| {
                        let what = match mark.kind {
                            MarkKind::Clean => "clean",
                            MarkKind::Gone => "gone",
                        };
                        json!({"slot": mark.slot.0, "generation": mark.generation.0, "is": what})
                    })
                    .collect(),
            };
            value["entries"] = Value::Array(entries);
        }
        self.line(&value);
    }

    fn take(&mut self) -> String {
        std::mem::take(&mut self.0)
    }

    fn is_full(&self) -> bool {
        self.0.len() >= PIECE
    }
}
