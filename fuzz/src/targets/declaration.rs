//! The declaration of volumes, `forebay.toml`. An accepted one has its lines; an error names one.

use std::collections::BTreeSet;

use crate::memory;

/// Longest message that a bad declaration may cause, in bytes.
const MESSAGE_MOST: usize = 2400;

/// Bytes that the parser may hold for each byte of the text: it keeps tokens, events and the tree,
/// and a key of one byte has a place in each.
const PER_BYTE: usize = 512;

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let lines = 1..=text.lines().count().max(1) + 1;
    memory::within((256 << 10) + PER_BYTE * data.len(), || {
        match forebay_admin::declared::parse(text) {
            Ok(volumes) => {
                let names: BTreeSet<&str> =
                    volumes.iter().map(|volume| volume.name().as_str()).collect();
                assert_eq!(names.len(), volumes.len(), "a volume is declared twice");
                for volume in &volumes {
                    // Without `cache`, the volume keeps its copies in RAM alone.
                    assert!(volume.has("origin"), "a volume without an origin");
                    assert!(lines.contains(&volume.line_of("cache")));
                    // Each setting that it decides is one of its own keys, or of its profile.
                    let decided = volume.decided();
                    assert!(
                        decided
                            .iter()
                            .all(|s| volume.has(s.name) || volume.request.profile.is_some())
                    );
                }
            }
            Err(error) => {
                assert!(error.to_string().len() <= MESSAGE_MOST);
                assert!(lines.contains(&error.line), "{error}");
            }
        }
    });
}
