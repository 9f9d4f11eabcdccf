//! Tests of the state, beside its file.

use std::fs;

use forebay_admin::Settings;

use super::*;
use crate::faults::{self, Fault};
use forebay_testkit::TempDir;

fn entry(name: &str, started: bool) -> Remembered {
    let volume = Definition {
        name: name.parse().expect("valid"),
        cache: "ram:1G".to_owned(),
        origin: "/dev/null".to_owned(),
        block_size: 4096,
        alignment: 512,
        settings: Settings::default(),
        version: 1,
        uuid: None,
        cache_uuid: None,
        origin_identity: None,
        stored_as: None,
    };
    Remembered { started, ..Remembered::served(volume, 4096) }
}

#[test]
fn a_name_that_is_nearly_right_is_proposed() {
    let all = [entry("data", true), entry("backup", false)];
    let error = |name: &str, all: &[Remembered]| not_found(&name.parse().expect("valid"), all);
    for (name, all, words) in [
        ("dta", all.as_slice(), "there is no volume 'dta'; did you mean 'data'?"),
        ("Backup", &all, "did you mean 'backup'?"),
        ("scratch", &all, "'forebay list' shows the existing ones"),
        ("data", &[], "'forebay create' makes one"),
    ] {
        let error = error(name, all);
        assert!(error.kind == ErrorKind::NotFound && error.message.contains(words), "{error}");
    }
}

#[test]
fn volumes_are_there_after_a_restart_in_order() {
    let dir = TempDir::new("state-order");
    {
        let state = State::open(dir.path()).expect("empty");
        for name in ["b", "a", "c"] {
            state.put(entry(name, true)).expect("writable");
        }
        state.put(entry("a", false)).expect("writable");
        state.remove(&"c".parse().expect("valid"), &Work::default()).expect("writable");
    }
    let state = State::open(dir.path()).expect("own file");
    assert_eq!(state.volumes(), [entry("b", true), entry("a", false)]);
    assert_eq!(
        state.volume(&"c".parse().expect("valid")).map_err(|error| error.kind),
        Err(ErrorKind::NotFound)
    );
}

#[test]
fn a_change_that_could_not_be_synced_is_in_force_and_reported() {
    let dir = TempDir::new("state-doubt");
    let state = State::open(dir.path()).expect("empty");
    let (name, work): (VolumeName, _) = ("a".parse().expect("valid"), Work::default());
    state.put(entry("a", true)).expect("writable");
    state.settle(&work).expect("durable");
    faults::set(dir.path(), Some(Fault::NotSynced));
    state.edit(&name, &work, |entry| entry.started = false).expect("the new file is there");
    let told = state.settle(&work).expect_err("not durable");
    assert!(told.message.contains("a power cut may undo it"), "{told}");
    let stored = read(&dir.path().join("state.json")).expect("own file");
    assert_eq!(stored.volumes, state.volumes(), "memory and disk are the same");
    assert!(!state.volume(&name).expect("there").started);
    faults::set(dir.path(), None);
    state.settle(&work).expect("written again");
}

#[test]
fn a_state_directory_has_one_daemon_and_ignores_a_torn_file() {
    let dir = TempDir::new("state-lock");
    let state = State::open(dir.path()).expect("empty");
    state.put(entry("a", true)).expect("writable");
    let refused = State::open(dir.path()).map(drop).expect_err("in use");
    assert_eq!(refused.kind, ErrorKind::Refused);
    // Handed over, the claim lasts.
    let left = state.lock().expect("descriptors");
    drop(state);
    assert!(State::open(dir.path()).is_err(), "free for a moment");
    let state = State::go_on(dir.path(), Some(left)).expect("ours");
    assert!(State::open(dir.path()).is_err());
    drop(state);
    let elsewhere = TempDir::new("state-lock-elsewhere");
    let left = State::open(elsewhere.path()).expect("free").lock().expect("descriptors");
    let state = State::go_on(dir.path(), Some(left)).expect("free");
    assert!(State::open(dir.path()).is_err(), "the lock of another directory is none of this");
    drop(state);
    fs::write(dir.path().join("state.json.new"), "{\"version\":1,\"vol").expect("writable");
    assert_eq!(State::open(dir.path()).expect("free").volumes().len(), 1);
}

#[test]
fn unusable_files_are_refused_and_left_alone() {
    let dir = TempDir::new("state-bad");
    let good = serde_json::to_string(&entry("a", true)).expect("plain data");
    let path = dir.path().join("state.json");
    for text in [
        String::new(),
        "{}".to_owned(),
        "[]".to_owned(),
        "{\"version\":3,\"volumes\":[]}".to_owned(),
        "{\"version\":0,\"volumes\":[]}".to_owned(),
        "{\"version\":1,\"volumes\":[],\"more\":1}".to_owned(),
        format!("{{\"version\":1,\"volumes\":[{good},{good}]}}"),
        format!("{{\"version\":1,\"volumes\":[{}]}}", good.replace("\"a\"", "\"a/b\"")),
        format!("{{\"version\":1,\"volumes\":[{}]}}", good.replace("dirty_high", "dirty_hi")),
        "[".repeat(100_000),
    ] {
        fs::write(&path, &text).expect("writable");
        let error = State::open(dir.path()).map(drop).expect_err("unusable");
        assert_eq!(error.kind, ErrorKind::Invalid, "{text:.60}: {error}");
        assert_eq!(fs::read_to_string(&path).expect("readable"), text);
    }
}
