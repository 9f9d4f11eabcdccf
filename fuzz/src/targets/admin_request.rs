//! Bodies of requests to the admin API, and settings from the command line. The first byte chooses.

use std::fmt::Debug;

use crate::memory;
use forebay_admin::{
    Assignments, CreateRequest, DeleteRequest, MAX_REQUEST_BODY, SetRequest, Settings,
};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// A parsed value is written and read again, and is the same then.
fn read<T: DeserializeOwned + Serialize + PartialEq + Debug>(bytes: &[u8]) -> Option<T> {
    let request = serde_json::from_slice::<T>(bytes).ok()?;
    let text = serde_json::to_string(&request).expect("plain data");
    assert_eq!(serde_json::from_str::<T>(&text).expect("own output"), request, "{text}");
    Some(request)
}

fn apply(assignments: &Assignments) {
    let mut settings = Settings::default();
    match assignments.apply(&mut settings) {
        Ok(()) => {
            assert_eq!(settings.validate(), Ok(()));
            let mut again = settings.clone();
            assignments.apply(&mut again).expect("twice is once");
            assert_eq!(again, settings);
            let text = serde_json::to_string(&settings).expect("plain data");
            assert_eq!(serde_json::from_str::<Settings>(&text).expect("own output"), settings);
        }
        Err(_) => assert_eq!(settings, Settings::default(), "half a change"),
    }
    let texts: Vec<String> =
        assignments.iter().map(|(name, value)| format!("{name}={value}")).collect();
    assert_eq!(Assignments::parse(&texts).as_ref(), Ok(assignments));
}

/// Runs one input.
pub(crate) fn run(data: &[u8]) {
    let Some((choice, body)) = data.split_first() else { return };
    if body.len() > MAX_REQUEST_BODY {
        return;
    }
    memory::within((1 << 20) + 64 * body.len(), || match choice % 5 {
        0 => {
            if let Some(request) = read::<CreateRequest>(body) {
                apply(&request.settings);
            }
        }
        1 => {
            if let Some(request) = read::<SetRequest>(body) {
                apply(&request.settings);
            }
        }
        2 => {
            read::<DeleteRequest>(body);
        }
        3 => {
            read::<Settings>(body);
        }
        _ => {
            if let Ok(assignments) = Assignments::parse(String::from_utf8_lossy(body).lines()) {
                apply(&assignments);
            }
        }
    });
}
