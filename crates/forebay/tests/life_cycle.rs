//! The life of a volume, through the command line and over NBD.

mod common;

use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use common::{Daemon, TempDir, forebay, outcome};
use serde_json::Value;

const SIZE: u64 = 16 << 20;

fn text(path: &Path) -> String {
    path.display().to_string()
}

fn sparse(path: &Path, size: u64) {
    std::fs::File::create(path).and_then(|file| file.set_len(size)).expect("writable");
}

/// Devices of a volume in a directory of their own.
struct Devices {
    dir: TempDir,
    cache: String,
    origin: String,
}

impl Devices {
    fn new(what: &str) -> Self {
        let dir = TempDir::new(what);
        let (cache, origin) = (dir.at("cache"), dir.at("origin"));
        sparse(&cache, 64 << 20);
        sparse(&origin, SIZE);
        let (cache, origin) = (text(&cache), text(&origin));
        Devices { dir, cache, origin }
    }

    fn create(&self, daemon: &Daemon, more: &[&str]) -> String {
        let args = [&["create", "v", "-s", &self.cache, "-p", &self.origin], more].concat();
        let output = daemon.run(args);
        assert!(output.status.success(), "{}", outcome(&output).1);
        String::from_utf8_lossy(&output.stdout).trim().to_owned()
    }

    fn on_origin(&self, offset: u64) -> u8 {
        let mut byte = [0];
        let file = std::fs::File::open(&self.origin).expect("there");
        file.read_exact_at(&mut byte, offset).expect("readable");
        byte[0]
    }
}

fn show(daemon: &Daemon) -> Value {
    let output = daemon.run(["show", "v", "--json"]);
    serde_json::from_slice(&output.stdout).expect("JSON")
}

fn well(daemon: &Daemon, args: &[&str]) {
    let output = daemon.run(args);
    assert!(output.status.success(), "{args:?}: {}", outcome(&output).1);
}

/// Runs commands of `qemu-io` against an export.
fn io(uri: &str, commands: &[&str]) {
    let mut run = Command::new("qemu-io");
    run.args(["-f", "raw", uri]);
    for command in commands {
        run.args(["-c", command]);
    }
    let output = run.output().expect("there is a qemu-io");
    let said = String::from_utf8_lossy(&output.stdout).into_owned() + &outcome(&output).1;
    let bad = ["failed", "error", "Pattern verification"].iter().any(|word| said.contains(word));
    assert!(output.status.success() && !bad, "{commands:?}: {said}");
}

fn check(cache: &str) -> (Option<i32>, Value) {
    let output = forebay().args(["check", "--json", cache]).output().expect("it runs");
    (output.status.code(), serde_json::from_slice(&output.stdout).unwrap_or_default())
}

#[test]
fn writes_come_back_after_stop_crash_and_flush() {
    let devices = Devices::new("life");
    let mut daemon = Daemon::start(&devices.dir);
    let uri = devices.create(&daemon, &[]);
    well(&daemon, &["set", "v", "writeback_running=off"]);
    io(&uri, &["write -P 0x5a 1M 64k", "write -P 0x6b 3M 4k", "flush"]);
    assert_eq!(
        (devices.on_origin(1 << 20), show(&daemon)["blocks"]["dirty"].as_u64()),
        (0, Some(17))
    );

    well(&daemon, &["stop", "v"]);
    let (code, report) = check(&devices.cache);
    assert_eq!((code, &report["blocks"]["dirty"]), (Some(0), &Value::from(17)), "{report}");
    well(&daemon, &["start", "v"]);
    io(&uri, &["read -P 0x5a 1M 64k", "read -P 0x6b 3M 4k", "read -P 0 2M 64k"]);

    io(&uri, &["write -P 0x7c 5M 64k", "flush"]);
    assert_eq!(daemon.signal("-KILL").code(), None);
    daemon = Daemon::start(&devices.dir);
    io(&uri, &["read -P 0x5a 1M 64k", "read -P 0x6b 3M 4k", "read -P 0x7c 5M 64k"]);

    well(&daemon, &["flush", "v"]);
    assert_eq!(show(&daemon)["blocks"]["dirty"], 0);
    let found = [1 << 20, 3 << 20, 5 << 20].map(|offset| devices.on_origin(offset));
    assert_eq!(found, [0x5a, 0x6b, 0x7c]);
    well(&daemon, &["delete", "v"]);
    assert_eq!(daemon.signal("-TERM").code(), Some(0));
}

#[test]
fn a_cache_in_ram_is_drained_before_it_goes() {
    let devices = Devices::new("ram");
    let cache = ["-s", "ram:64M"];
    for end in ["stop", "signal", "delete"] {
        let daemon = Daemon::start(&devices.dir);
        let output = daemon.run(["create", "v", cache[0], cache[1], "-p", &devices.origin]);
        assert!(output.status.success(), "{}", outcome(&output).1);
        let uri = String::from_utf8_lossy(&output.stdout).trim().to_owned();
        well(&daemon, &["set", "v", "writeback_running=off"]);
        let byte = end.len() as u8;
        io(&uri, &[&format!("write -P {byte} 1M 64k")]);
        match end {
            "stop" => {
                well(&daemon, &["stop", "v"]);
                assert_eq!(devices.on_origin(1 << 20), byte);
                well(&daemon, &["start", "v"]);
                io(&uri, &[&format!("read -P {byte} 1M 64k")]);
                well(&daemon, &["delete", "v"]);
            }
            "delete" => well(&daemon, &["delete", "v"]),
            _ => {
                assert_eq!(daemon.signal("-TERM").code(), Some(0));
                assert_eq!(devices.on_origin(1 << 20), byte);
                let daemon = Daemon::start(&devices.dir);
                io(&uri, &[&format!("read -P {byte} 1M 64k")]);
                well(&daemon, &["delete", "v"]);
                continue;
            }
        }
        assert_eq!(devices.on_origin(1 << 20), byte, "{end}");
    }
}

#[test]
fn leaving_writeback_drains_and_a_smaller_change_does_not() {
    let devices = Devices::new("modes");
    let daemon = Daemon::start(&devices.dir);
    let uri = devices.create(&daemon, &["-b", "8K"]);
    well(&daemon, &["set", "v", "writeback_running=off"]);
    io(&uri, &["write -P 1 0 64k"]);
    well(&daemon, &["set", "v", "dirty_high=80"]);
    assert_eq!(show(&daemon)["blocks"]["dirty"], 8);
    well(&daemon, &["set", "v", "mode=wt"]);
    let report = show(&daemon);
    assert_eq!((&report["blocks"]["dirty"], devices.on_origin(0)), (&Value::from(0), 1));
    assert_eq!(
        (&report["mode"], &report["settings"]["dirty_high"]),
        (&"writethrough".into(), &80.into())
    );
    io(&uri, &["write -P 2 0 64k", "flush"]);
    assert_eq!(devices.on_origin(0), 2);
    assert_eq!(daemon.signal("-TERM").code(), Some(0));
    let daemon = Daemon::start(&devices.dir);
    assert_eq!(show(&daemon)["settings"], report["settings"], "settings outlive the daemon");
}

#[test]
fn a_device_in_use_and_a_foreign_cache_are_not_overwritten() {
    let devices = Devices::new("refused");
    let daemon = Daemon::start(&devices.dir);
    devices.create(&daemon, &[]);
    let (code, said) =
        outcome(&forebay().args(["check", &devices.cache]).output().expect("it runs"));
    assert_eq!((code, said.lines().count()), (Some(3), 1), "{said}");
    sparse(&devices.dir.at("other"), SIZE);
    let other = text(&devices.dir.at("other"));
    let create = |daemon: &Daemon, more: &[&str]| {
        outcome(&daemon.run([&["create", "w", "-s", &devices.cache, "-p", &other], more].concat()))
    };
    let (code, said) = create(&daemon, &["-b", "8K"]);
    assert_eq!(code, Some(2), "another block size: {said}");
    assert_eq!(create(&daemon, &["--force"]).0, Some(0), "it joins, and v stays");
    well(&daemon, &["show", "v"]);
    assert_eq!(daemon.signal("-TERM").code(), Some(0));

    std::fs::remove_dir_all(devices.dir.at("state")).expect("it is there");
    let before = devices.dir.snapshot();
    let daemon = Daemon::start(&devices.dir);
    let (code, said) = create(&daemon, &[]);
    assert_eq!(code, Some(4), "{said}");
    assert!(said.contains("v, w") && said.contains("--force"), "{said}");
    let cache = devices.dir.at("cache");
    let bytes = |snapshot: &[(std::path::PathBuf, Vec<u8>)]| {
        snapshot.iter().find(|(path, _)| *path == cache).map(|(_, bytes)| bytes.clone())
    };
    assert!(bytes(&before) == bytes(&devices.dir.snapshot()), "the cache device was touched");
    assert_eq!(create(&daemon, &["--force"]).0, Some(0));
}

#[test]
fn check_and_dump_show_what_is_there_and_what_is_wrong() {
    let devices = Devices::new("check");
    let daemon = Daemon::start(&devices.dir);
    let uri = devices.create(&daemon, &[]);
    well(&daemon, &["set", "v", "writeback_running=off"]);
    io(&uri, &["write -P 0x5a 1M 64k", "flush"]);
    assert_eq!(daemon.signal("-KILL").code(), None);
    let before = std::fs::read(&devices.cache).expect("readable");
    let (code, report) = check(&devices.cache);
    assert_eq!((code, &report["sound"]), (Some(0), &Value::from(true)), "{report}");
    let dump = forebay().args(["dump", "--json", "--entries", &devices.cache]).output();
    let dump = String::from_utf8_lossy(&dump.expect("it runs").stdout).into_owned();
    let lines: Vec<Value> =
        dump.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let records: usize = lines
        .iter()
        .filter(|line| line["type"] == "record")
        .map(|line| line["entries"].as_array().map_or(0, Vec::len))
        .sum();
    assert!(records >= 16, "{dump}");
    assert!(std::fs::read(&devices.cache).expect("readable") == before, "nothing is written");

    // An orderly end makes the record surely durable: the last record before a crash may be torn.
    assert_eq!(Daemon::start(&devices.dir).signal("-TERM").code(), Some(0));
    let before = std::fs::read(&devices.cache).expect("readable");
    let place = before.windows(4096).step_by(4096).position(|page| page == [0x5a; 4096]);
    let place = place.expect("the data is on the device") * 4096 + 77;
    let mut damaged = before.clone();
    damaged[place] ^= 4;
    std::fs::write(&devices.cache, &damaged).expect("writable");
    let (code, report) = check(&devices.cache);
    assert_eq!(code, Some(1), "{report}");
    assert_eq!(report["sound"], false);
    std::fs::write(&devices.cache, vec![0; before.len()]).expect("writable");
    assert_eq!(check(&devices.cache).0, Some(3), "no cache device at all");
}

#[test]
fn starting_accepts_a_grown_origin_and_creates_no_missing_file() {
    let devices = Devices::new("grown");
    let made = text(&devices.dir.at("made"));
    let daemon = Daemon::start(&devices.dir);
    let sized = [format!("{}cache,size=64M", text(&devices.dir.at(""))), format!("{made},size=8M")];
    let output = daemon.run(["create", "v", "-s", &sized[0], "-p", &sized[1]]);
    assert!(output.status.success(), "{}", outcome(&output).1);
    well(&daemon, &["stop", "v"]);
    for file in [&made, &devices.cache] {
        let file = std::fs::File::options().write(true).open(file).expect("there");
        file.set_len(96 << 20).expect("writable");
    }
    well(&daemon, &["start", "v"]);
    assert_eq!(show(&daemon)["origin"]["size"].as_u64(), Some(96 << 20));
    well(&daemon, &["stop", "v"]);
    std::fs::remove_file(&made).expect("there");
    let (code, said) = outcome(&daemon.run(["start", "v"]));
    assert_eq!((code, said.lines().count()), (Some(2), 1), "{said}");
    assert!(!Path::new(&made).exists());
}

#[test]
fn dirty_blocks_count_as_cached_at_once() {
    let devices = Devices::new("counts");
    let daemon = Daemon::start(&devices.dir);
    let uri = devices.create(&daemon, &["--set", "writeback_running=off"]);
    let other = text(&devices.dir.at("other"));
    sparse(Path::new(&other), SIZE);
    well(&daemon, &["create", "w", "-s", &devices.cache, "-p", &other]);
    assert_eq!(show(&daemon)["blocks"]["cached"], 0);
    io(&uri, &["write 0 1M"]);
    let blocks = &show(&daemon)["blocks"];
    assert_eq!((&blocks["dirty"], &blocks["cached"]), (&Value::from(256), &Value::from(256)));
}
