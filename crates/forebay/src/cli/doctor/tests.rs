use super::host::{DriverState, Host};
use super::*;

fn host() -> Host {
    Host {
        release: "6.12.9-amd64".to_owned(),
        ring: Ok(()),
        ring_disabled: 0,
        files: 1 << 20,
        memory: 4 << 30,
        admin: true,
        service: Some(true),
        fuse: DriverState::Usable,
        loops: DriverState::Usable,
        ublk: DriverState::Absent,
        nbd: DriverState::Absent,
        qemu: true,
    }
}

fn best(host: &Host) -> Option<&'static str> {
    Findings::of(host, Daemon::Answers { version: "0".to_owned(), shortages: None }).best
}

#[test]
fn the_best_front_end_is_one_that_makes_a_block_device_here() {
    assert_eq!(best(&host()), Some("fuse"));
    assert_eq!(best(&Host { admin: false, ..host() }), None);
    for lacking in [DriverState::Absent, DriverState::Loadable, DriverState::Forbidden] {
        let without = Host { fuse: lacking, ..host() };
        assert_eq!(best(&without), None);
        assert_eq!(best(&Host { loops: lacking, ..host() }), None);
        let kernel = Host { nbd: DriverState::Usable, ..without };
        assert_eq!(best(&kernel), Some("nbd-kernel"));
        assert_eq!(best(&Host { admin: false, ..kernel }), None);
        assert_eq!(best(&Host { ublk: lacking, ..host() }), Some("fuse"));
    }
    let ublk = Host { ublk: DriverState::Usable, ..host() };
    assert_eq!(best(&ublk), Some("ublk"));
    assert_eq!(best(&Host { admin: false, ..ublk }), None);
}

#[test]
fn each_lack_has_a_remedy() {
    let worst = Host {
        ring: Err("Operation not permitted".to_owned()),
        ring_disabled: 2,
        files: 256,
        service: Some(false),
        fuse: DriverState::Loadable,
        ..host()
    };
    let findings = Findings::of(&worst, Daemon::Fails("no daemon".to_owned()));
    let lacking = |name: &str| {
        let check = findings.checks.iter().find(|check| check.name == name).expect("it is checked");
        (check.level, check.remedy.clone())
    };
    let io_uring = lacking("io_uring");
    assert_eq!(io_uring.0, Level::Missing);
    assert!(io_uring.1.contains("io_uring_disabled=0"));
    for (name, remedy) in [("open files", "LimitNOFILE"), ("service", "systemctl enable")] {
        let (level, words) = lacking(name);
        assert_eq!(level, Level::Note);
        assert!(words.contains(remedy), "{words}");
    }
    let text = findings.render();
    assert!(text.contains("modprobe fuse") && text.contains("no daemon"), "{text}");
}

#[test]
fn modules_are_found_by_their_whole_name() {
    let listed =
        "kernel/drivers/block/nbd.ko.xz: \nkernel/fs/fuse/fuse.ko:\nkernel/x/ublk_drv.ko\n";
    for (module, device) in [
        ("nbd", DriverState::Loadable),
        ("fuse", DriverState::Loadable),
        ("ublk_drv", DriverState::Loadable),
        ("loop", DriverState::Absent),
        ("drv", DriverState::Absent),
        ("bd", DriverState::Absent),
    ] {
        assert_eq!(DriverState::of_module(module, listed), device, "{module}");
    }
}

#[test]
fn this_host_can_be_looked_at() {
    let host = Host::look();
    assert!(host.memory > 0 && !host.release.is_empty());
}

#[test]
fn a_daemon_that_does_not_answer_is_described_without_it() {
    let process = Process {
        pid: 7,
        state: process::State::Stopped,
        threads: Vec::new(),
        busy_devices: Vec::new(),
    };
    for (process, words) in [(Some(process), "pid 7 is stopped"), (None, "cannot be seen")] {
        let error = "no answer".to_owned();
        let silent = SilentDaemon { error, socket_is_full: true, process };
        let findings = Findings::of(&host(), Daemon::Silent(silent.clone()));
        let check = findings.checks.iter().find(|check| check.name == "daemon").expect("checked");
        assert_eq!(check.level, Level::Missing);
        assert!(check.found.contains(words) && check.found.contains("no more connections"));
        assert_eq!(findings.silent_daemon, Some(silent));
    }
}
