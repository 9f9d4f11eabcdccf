//! JSON schemas of the types of the admin API that other crates define; all others derive theirs.

use forebay_core::why::Why;
use forebay_core::{Caching, Durability, LATENCY_RANGES, Mode, ReplacementKind};
use forebay_settings::{SETTINGS, Settings};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value, json};

use crate::{PROFILES, ProfileName, VolumeName};

fn words<'a>(words: impl Iterator<Item = &'a str>) -> Schema {
    json_schema!({ "type": "string", "enum": words.collect::<Vec<_>>() })
}

pub(crate) fn mode(_: &mut SchemaGenerator) -> Schema {
    words(Mode::ALL.iter().map(|it| it.name()))
}

pub(crate) fn caching(_: &mut SchemaGenerator) -> Schema {
    words(Caching::ALL.iter().map(|it| it.name()))
}

pub(crate) fn policy(_: &mut SchemaGenerator) -> Schema {
    words(ReplacementKind::ALL.iter().map(|it| it.name()))
}

pub(crate) fn durability(_: &mut SchemaGenerator) -> Schema {
    words(Durability::ALL.iter().map(|it| it.name()))
}

pub(crate) fn time(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "string", "format": "date-time" })
}

fn object(properties: Map<String, Value>) -> Value {
    let names: Vec<String> = properties.keys().cloned().collect();
    json!({ "type": "object", "properties": properties, "required": names })
}

/// Counts by their reasons, in groups.
pub(crate) fn why(_: &mut SchemaGenerator) -> Schema {
    let mut groups = Map::<String, Value>::new();
    Why::default().each(|group, reason, _| {
        let counts = groups.entry(group).or_insert_with(|| Value::Object(Map::new()));
        if let Some(counts) = counts.as_object_mut() {
            counts.insert(reason.to_owned(), json!({ "type": "integer", "minimum": 0 }));
        }
    });
    let groups = groups.into_iter().map(|(group, counts)| match counts {
        Value::Object(counts) => (group, object(counts)),
        other => (group, other),
    });
    schema(object(groups.collect()))
}

pub(crate) fn latencies(_: &mut SchemaGenerator) -> Schema {
    let count = json!({ "type": "integer", "minimum": 0 });
    let ranges = json!({
        "type": "array", "items": count, "minItems": LATENCY_RANGES, "maxItems": LATENCY_RANGES,
        "description": "Operations by ranges of their latencies, each counted once.",
    });
    let properties = [("ranges".to_owned(), ranges), ("sum_nanos".to_owned(), count)];
    schema(object(properties.into_iter().collect()))
}

fn schema(value: Value) -> Schema {
    Schema::try_from(value).unwrap_or_default()
}

/// Every setting, as reports have them.
pub(crate) fn settings(_: &mut SchemaGenerator) -> Schema {
    let defaults = serde_json::to_value(Settings::default()).unwrap_or_default();
    let properties = SETTINGS.iter().map(|setting| {
        let kind = match &defaults[setting.name] {
            Value::Number(_) => "integer",
            Value::Bool(_) => "boolean",
            _ => "string",
        };
        let about = json!({
            "type": kind,
            "description": format!("{} Values: {}.", setting.help, setting.kind.range()),
        });
        (setting.name.to_owned(), about)
    });
    schema(object(properties.collect()))
}

/// Some settings, as requests give them: texts as 'forebay set' takes them, numbers or switches.
pub(crate) fn assignments(_: &mut SchemaGenerator) -> Schema {
    let properties = SETTINGS.iter().map(|setting| {
        let about = json!({
            "type": ["string", "integer", "boolean"],
            "description": format!("{} Values: {}.", setting.help, setting.kind.range()),
        });
        (setting.name.to_owned(), about)
    });
    let properties: Map<String, Value> = properties.collect();
    json_schema!({ "type": "object", "properties": properties, "additionalProperties": false })
}

impl JsonSchema for VolumeName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "VolumeName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$" })
    }
}

impl JsonSchema for ProfileName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "ProfileName".into()
    }

    fn inline_schema() -> bool {
        true
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        words(PROFILES.iter().map(|profile| profile.name))
    }
}

/// The answer to `GET /v1/knobs`, which is made from the table of settings.
pub struct SettingList;

impl JsonSchema for SettingList {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "SettingList".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let setting = json!({
            "type": "object",
            "properties": {
                "name": { "type": "string" },
                "kind": { "description": "The values that it accepts." },
                "default": { "type": ["string", "integer", "boolean"] },
                "help": { "type": "string", "description": "Its effect, in one sentence." },
            },
            "required": ["name", "kind", "default", "help"],
        });
        json_schema!({
            "type": "object",
            "properties": { "knobs": { "type": "array", "items": setting } },
            "required": ["knobs"],
        })
    }
}
