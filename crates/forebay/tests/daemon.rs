//! The daemon as a process: one of a kind, orderly in its beginning and its end.

mod common;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Output;

use common::{Daemon, TempDir, forebay, outcome};

/// Runs a daemon that is expected to end by itself.
fn daemon(socket: &Path, state: &Path) -> Output {
    let mut command = forebay();
    command.arg("--socket").arg(socket).arg("daemon").arg("--state-dir").arg(state);
    command.output().expect("it runs")
}

#[test]
fn signals_end_it_clean_and_its_socket_goes() {
    for signal in ["-TERM", "-INT"] {
        let dir = TempDir::new("signal");
        let daemon = Daemon::start(&dir);
        let socket = daemon.socket().to_owned();
        assert!(socket.exists());
        assert_eq!(daemon.signal(signal).code(), Some(0), "{signal}");
        assert!(!socket.exists());
    }
}

#[test]
fn a_second_daemon_is_refused_and_changes_nothing() {
    let dir = TempDir::new("second");
    let first = Daemon::start(&dir);
    let before = dir.snapshot();
    for (socket, state) in [
        (dir.at("admin.sock"), dir.at("state")),
        (dir.at("admin.sock"), dir.at("other-state")),
        (dir.at("other.sock"), dir.at("state")),
    ] {
        let (code, said) = outcome(&daemon(&socket, &state));
        assert_eq!(code, Some(3), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert_eq!(dir.snapshot(), before, "{said}");
    }
    assert!(first.run(["list"]).status.success(), "the first goes on");
}

#[test]
fn the_socket_and_locks_of_a_dead_daemon_do_not_block() {
    let dir = TempDir::new("stale");
    let first = Daemon::start(&dir);
    let socket = first.socket().to_owned();
    assert_eq!(first.signal("-KILL").code(), None);
    assert!(socket.exists(), "a killed daemon cannot tidy up");
    let second = Daemon::start(&dir);
    assert!(second.run(["list"]).status.success());
    assert_eq!(second.signal("-TERM").code(), Some(0));
}

#[test]
fn files_of_others_are_never_removed() {
    let dir = TempDir::new("foreign");
    std::fs::write(dir.at("file"), "precious").expect("writable");
    let _foreign = UnixListener::bind(dir.at("socket")).expect("free");
    let before = dir.snapshot();
    for (name, expected) in [("file", 2), ("socket", 3), ("absent/socket", 2)] {
        let (code, said) = outcome(&daemon(&dir.at(name), &dir.at("file")));
        assert_eq!((code, said.lines().count()), (Some(expected), 1), "{said}");
        assert_eq!(dir.snapshot(), before);
    }
}

#[test]
fn a_damaged_state_file_is_refused_and_left_alone() {
    let dir = TempDir::new("damaged");
    std::fs::create_dir(dir.at("state")).expect("writable");
    std::fs::write(dir.at("state/state.json"), "{\"version\":1,").expect("writable");
    let (code, said) = outcome(&daemon(&dir.at("admin.sock"), &dir.at("state")));
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert!(said.contains("state.json"), "{said}");
    let left = std::fs::read_to_string(dir.at("state/state.json")).expect("there");
    assert_eq!(left, "{\"version\":1,");
    assert!(!dir.at("admin.sock").exists());
}

#[test]
fn bad_devices_are_refused_by_name_and_untouched() {
    let dir = TempDir::new("devices");
    let text = |name: &str| dir.at(name).display().to_string();
    let mut ext4 = vec![0; 1 << 20];
    ext4[0x438..0x43a].copy_from_slice(b"\x53\xef");
    std::fs::write(dir.at("ext4"), &ext4).expect("writable");
    std::fs::write(dir.at("origin"), vec![7; 1 << 20]).expect("writable");
    std::fs::write(dir.at("cache"), vec![0; 1 << 20]).expect("writable");
    std::fs::hard_link(dir.at("origin"), dir.at("hard")).expect("writable");
    std::os::unix::fs::symlink(dir.at("origin"), dir.at("soft")).expect("writable");
    let made = std::process::Command::new("mkfifo").arg(dir.at("fifo")).status();
    assert!(made.expect("there is a mkfifo").success());
    let daemon = Daemon::start(&dir);
    // All but the daemon's own state.
    let devices = || {
        let mut found = dir.snapshot();
        found.retain(|(path, _)| !path.starts_with(dir.at("state")));
        found
    };
    let before = devices();
    for (cache, origin, code, field) in [
        ("origin", "origin", 2, "origin"),
        ("soft", "origin", 2, "origin"),
        ("origin", "hard", 2, "origin"),
        ("absent", "origin", 2, "cache"),
        ("cache", "absent", 2, "origin"),
        ("", "origin", 2, "cache"),
        ("cache", "", 2, "origin"),
        ("fifo", "origin", 2, "cache"),
        ("cache", "fifo", 2, "origin"),
        ("cache", "admin.sock", 2, "origin"),
        ("ext4", "origin", 4, "--force"),
    ] {
        let output = daemon.run(["create", "v", "-s", &text(cache), "-p", &text(origin)]);
        let (got, said) = outcome(&output);
        assert_eq!((got, said.lines().count()), (Some(code), 1), "{cache} {origin}: {said}");
        assert!(said.contains(field), "{cache} {origin}: {said}");
        assert_eq!(devices(), before, "{cache} {origin}");
    }
    for verb in ["show", "flush", "stop", "start", "delete"] {
        let (code, said) = outcome(&daemon.run([verb, "absent"]));
        assert_eq!((code, said.lines().count()), (Some(2), 1), "{verb}: {said}");
    }
    let (code, said) = outcome(&daemon.run(["create", "v", "-s", "/dev/null", "-p", "/dev/zero"]));
    assert_eq!(code, Some(2), "{said}");
    let list = daemon.run(["list", "--json"]);
    let list: serde_json::Value = serde_json::from_slice(&list.stdout).expect("JSON");
    assert_eq!(list, serde_json::json!({ "volumes": [] }));
}

#[test]
fn strange_clients_do_not_disturb_the_others() {
    let dir = TempDir::new("clients");
    let daemon = Daemon::start(&dir);
    let mut half = UnixStream::connect(daemon.socket()).expect("it listens");
    half.write_all(b"POST /v1/volumes HTTP/1.1\r\nContent-Le").expect("written");
    let _silent = UnixStream::connect(daemon.socket()).expect("it listens");
    for request in [
        &b"\x00\x01\x02\x03\r\n\r\n"[..],
        b"GET /v1/volumes HTTP/1.1\r\nHost: evil.example\r\n\r\n",
        b"POST /v1/volumes HTTP/1.1\r\nContent-Length: 99999999999\r\n\r\n",
        b"GET /v1/volumes/../../etc/passwd HTTP/1.1\r\n\r\n",
    ] {
        let mut stream = UnixStream::connect(daemon.socket()).expect("it listens");
        stream.write_all(request).expect("written");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        assert!(answer.starts_with("HTTP/1.1 4"), "{answer}");
        assert!(daemon.run(["list"]).status.success());
    }
    assert_eq!(daemon.signal("-TERM").code(), Some(0), "nor do they hold up the end");
}
