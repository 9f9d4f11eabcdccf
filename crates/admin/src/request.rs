//! What a client asks for. Fields that are not known are refused.

use serde::{Deserialize, Serialize};

use crate::name::VolumeName;
use crate::profiles::ProfileName;
use forebay_settings::Assignments;

/// Make a volume and serve it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CreateRequest {
    /// What it will be called.
    pub name: VolumeName,
    /// The cache device.
    pub cache: String,
    /// The origin.
    pub origin: String,
    /// What block size and settings are if they are not given here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<ProfileName>,
    /// Unit of caching in bytes, a power of two from 2 KiB to 1 MiB; if absent that of the profile, or
    /// else 4 KiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block_size: Option<u64>,
    /// Bytes by which blocks are shifted on the origin: a multiple of 512 below the block size.
    #[serde(default)]
    pub alignment: u64,
    /// Overwrite what is on the cache device.
    #[serde(default)]
    pub force: bool,
    /// Take over the volume of this name that the cache device holds, as it is: nothing is
    /// formatted, and block size, alignment and settings are those on the device.
    #[serde(default)]
    pub adopt: bool,
    /// Settings other than those of the profile, or else the defaults.
    #[serde(default, skip_serializing_if = "Assignments::is_empty")]
    pub settings: Assignments,
}

/// Change settings.
#[derive(Clone, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SetRequest {
    /// The new values.
    pub settings: Assignments,
}

/// Serve a stopped volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartRequest {
    /// Go on although the log of the cache has lost records, or the origin was changed while the
    /// cache had newer blocks.
    #[serde(default)]
    pub force: bool,
}

/// Remove a volume from its cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DeleteRequest {
    /// Lose the dirty blocks instead of writing them back first.
    #[serde(default)]
    pub discard_dirty: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_reads_back_and_unknown_or_doubled_fields_are_refused() {
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
