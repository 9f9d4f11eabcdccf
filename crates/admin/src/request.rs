//! Bodies of requests. Unknown fields are refused.

use std::path::PathBuf;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::name::VolumeName;
use crate::profiles::ProfileName;
use forebay_settings::Assignments;

/// Creates a volume and serves it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// Name of the new volume.
    pub name: VolumeName,
    /// The cache device; absent or `none` for a volume with copies in RAM alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<String>,
    /// The origin.
    pub origin: String,
    /// Provides the defaults for block size and settings.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    /// Block size in bytes, a power of two from 2 KiB to 1 MiB; if absent that of the profile, or
    /// else 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u64>,
    /// Bytes by which blocks are shifted on the origin: a multiple of 512 below the block size.
    #[serde(default)]
    pub alignment: u64,
    /// Overwrite the content of the cache device.
    #[serde(default)]
    pub force: bool,
    /// Adopt the volume of this name that the cache device holds, unchanged: nothing is formatted,
    /// and block size, alignment and settings are read from the device.
    #[serde(default)]
    pub adopt: bool,
    /// With `adopt`, the name that the cache device has for the volume, if that is another one: it
    /// is renamed there, and gets a new UUID. So can a copy of a cache device be used beside the
    /// original.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stored_as: Option<VolumeName>,
    /// Settings that differ from the profile, or else from the defaults.
    #[serde(default, skip_serializing_if = "Assignments::is_empty")]
    #[schemars(schema_with = "crate::schema::assignments")]
    pub settings: Assignments,
}

/// Replaces the daemon's program without disconnecting clients.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct HandOverRequest {
    /// Absolute path of the program.
    pub program: PathBuf,
}

/// Changes the daemon's memory limit until it ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemoryRequest {
    /// The new limit in bytes.
    pub limit_bytes: u64,
}

/// Changes settings.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct SetRequest {
    /// The new values.
    #[schemars(schema_with = "crate::schema::assignments")]
    pub settings: Assignments,
}

/// Serves a stopped volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// Continue although the log of the cache has lost records, or the origin was changed while the
    /// cache had newer blocks.
    #[serde(default)]
    pub force: bool,
    /// Compare every clean cached block with the origin first, and drop those that differ.
    #[serde(default)]
    pub verify: bool,
}

/// Stops serving a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct StopRequest {
    /// Cut off its clients and the users of its block device.
    #[serde(default)]
    pub force: bool,
    /// Stop although the path of a device leads elsewhere: the content of a removed file is lost.
    #[serde(default)]
    pub abandon: bool,
}

/// Discards clean cached blocks of a volume; without any tier, from both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DropRequest {
    /// From the RAM tier.
    #[serde(default)]
    pub ram: bool,
    /// From the cache device.
    #[serde(default)]
    pub ssd: bool,
}

/// Removes a volume from its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DeleteRequest {
    /// Discard the dirty blocks instead of writing them back first.
    #[serde(default)]
    pub discard_dirty: bool,
    /// Wipe the cache device afterwards, so that it shows no mark of Forebay any more; refused if
    /// it holds other volumes.
    #[serde(default)]
    pub wipe: bool,
    /// Cut off its clients and the users of its block device.
    #[serde(default)]
    pub force: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn create_requests_with_unknown_or_doubled_fields_are_refused() {
        let text = r#"{"name":"v","cache":"ram:1G","origin":"/o","profile":"bcache","settings":{"mode":"wt"}}"#;
        let request: CreateRequest = serde_json::from_str(text).expect("good");
        let json = serde_json::to_string(&request).expect("plain data");
        assert_eq!(serde_json::from_str::<CreateRequest>(&json).expect("own output"), request);
        for bad in [
            r#"{"name":"v","cache":"c","origin":"o","forced":true}"#,
            r#"{"name":"v","name":"w","cache":"c","origin":"o"}"#,
            r#"{"name":"v","cache":"c"}"#,
            r#"{"name":"v","cache":"c","origin":"o","profile":"Bcache"}"#,
            r#"{"name":"v","cache":"c","origin":"o","block_size":-4096}"#,
            r#"{"name":"v","cache":"c","origin":"o","alignment":18446744073709551616}"#,
        ] {
            assert!(serde_json::from_str::<CreateRequest>(bad).is_err(), "{bad}");
        }
    }
}
