//! Stored settings with values that were withdrawn since the state was written.

use std::collections::BTreeMap;

use serde::Deserialize;

/// Logs which settings in the text of a state file have a withdrawn value, and its replacement,
/// which the next write of the file will contain.
pub(crate) fn tell(text: &str) {
    for (volume, setting, old, new) in withdrawn(text) {
        tracing::warn!(volume, "{setting}={old} was withdrawn; {setting}={new} is in its place");
    }
}

/// Returns the stored settings with withdrawn values: the volume, the name, the withdrawn value,
/// and its replacement.
fn withdrawn(text: &str) -> Vec<(String, String, String, &'static str)> {
    #[derive(Deserialize)]
    struct File {
        volumes: Vec<Entry>,
    }
    #[derive(Deserialize)]
    struct Entry {
        volume: Stored,
    }
    #[derive(Deserialize)]
    struct Stored {
        name: String,
        settings: BTreeMap<String, serde_json::Value>,
    }
    let file = serde_json::from_str(text).unwrap_or(File { volumes: Vec::new() });
    let all = file.volumes.into_iter().flat_map(|Entry { volume: Stored { name, settings } }| {
        settings.into_iter().filter_map(move |(setting, value)| {
            let new = forebay_settings::successor(&setting, value.as_str()?)?;
            Some((name.clone(), setting, value.as_str()?.to_owned(), new))
        })
    });
    all.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use forebay_testkit::TempDir;

    use super::*;
    use crate::state::State;

    #[test]
    fn a_withdrawn_policy_in_the_state_is_replaced() {
        let dir = TempDir::new("state-withdrawn");
        let settings = r#"{"policy":"auto","ram_policy":"lru"}"#;
        let text = format!(
            r#"{{"version":1,"volumes":[{{"volume":{{"name":"a","cache":"/c","origin":"/o",
            "block_size":4096,"alignment":0,"settings":{settings}}},"started":true}}]}}"#
        );
        fs::write(dir.path().join("state.json"), &text).expect("writable");
        let expected = ("a".to_owned(), "policy".to_owned(), "auto".to_owned(), "s3-fifo");
        assert_eq!(withdrawn(&text), [expected]);
        let state = State::open(dir.path()).expect("it opens");
        let settings = state.volumes().remove(0).volume.settings;
        assert_eq!((settings.policy.name(), settings.ram_policy.name()), ("s3-fifo", "lru"));
    }
}
