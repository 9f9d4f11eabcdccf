//! Volumes over a fake host: its requests, the stored state, and restarts.

use forebay_admin::{Assignments, DropRequest, Operation, SetRequest, StopRequest as Stopping};
use forebay_core::Durability;

use super::starting::Restored;
use super::*;
use crate::host_api::{BlockTask, Reports};
use crate::signals::{EndRequest, StopRequest};
use crate::testing::{FakeFrontEnd, FakeHost, deleting};
use forebay_testkit::TempDir;

#[path = "volumes/amounts_tests.rs"]
mod amounts;
#[path = "volumes/deleting_tests.rs"]
mod deletions;
#[path = "volumes/overlapping_tests.rs"]
mod overlapping;
#[path = "volumes/simulated_tests.rs"]
mod simulated;

struct Daemon {
    dir: TempDir,
    host: Arc<FakeHost>,
    volumes: Arc<Volumes>,
}

fn open(dir: &TempDir, host: &Arc<FakeHost>) -> Arc<Volumes> {
    let state = State::open(&dir.path().join("state")).expect("free");
    Volumes::new(host.clone(), state, vec![Arc::new(FakeFrontEnd)], Programs::default())
}

impl Daemon {
    fn new() -> Self {
        Daemon::within(TempDir::new("volumes"))
    }

    fn within(dir: TempDir) -> Self {
        let host = Arc::new(FakeHost::default());
        for name in ["cache", "origin", "other"] {
            std::fs::write(dir.path().join(name), [0; 512]).expect("writable");
        }
        let volumes = open(&dir, &host);
        Daemon { dir, host, volumes }
    }

    /// Kills the daemon and starts it again.
    fn restart(mut self) -> Self {
        drop(self.volumes);
        self.host = Arc::new(FakeHost::default());
        self.volumes = open(&self.dir, &self.host);
        self
    }

    fn request(&self, name: &str, origin: &str) -> CreateRequest {
        CreateRequest {
            name: name.parse().expect("valid"),
            cache: Some(self.dir.path().join("cache").display().to_string()),
            origin: self.dir.path().join(origin).display().to_string(),
            profile: None,
            block_size: None,
            alignment: 0,
            force: false,
            adopt: false,
            stored_as: None,
            settings: Assignments::default(),
        }
    }

    fn end(&self, started: Result<OperationId, ApiError>) -> Result<(), ApiError> {
        let Operation { error, .. } =
            self.volumes.operations().wait(started?, None).expect("just started");
        error.map_or(Ok(()), Err)
    }

    fn create(&self, name: &str, origin: &str) -> Result<(), ApiError> {
        self.end(self.volumes.create(&self.request(name, origin)))
    }

    fn state(&self, name: &str) -> VolumeState {
        self.volumes.show(&name.parse().expect("valid"), Count::Fresh).expect("there").state
    }

    fn asked(&self) -> Vec<String> {
        self.host.asked.lock().clone()
    }

    /// Runs `run` when the host gets the request `what`.
    fn on(&self, what: &str, run: impl Fn() + Send + 'static) {
        let what = what.to_owned();
        let hook = move |asked: &str| {
            if asked == what {
                run();
            }
        };
        *self.host.hook.lock() = Some(Box::new(hook));
    }

    fn fail(&self, what: &str) {
        self.host.failing.lock().push(what.to_owned());
    }
}

fn name(text: &str) -> VolumeName {
    text.parse().expect("valid")
}

fn restored(served: usize, waiting: usize, wanted: usize) -> Restored {
    Restored { served, waiting, wanted }
}

#[test]
fn served_volumes_come_back_with_their_settings() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    let settings = Assignments::parse(["mode=wt", "dirty_high=70"]).expect("good");
    daemon.end(daemon.volumes.set(&name("a"), SetRequest { settings })).expect("good");
    daemon.end(daemon.volumes.stop(&name("b"), Stopping::default())).expect("good");
    assert_eq!(daemon.asked(), ["create a", "create b join", "set a", "stop b"]);

    let daemon = daemon.restart();
    assert_eq!(daemon.volumes.restore(&StopRequest::default(), Duration::ZERO), restored(1, 0, 1));
    assert_eq!(daemon.asked(), ["start a"]);
    assert_eq!(
        (daemon.state("a"), daemon.state("b")),
        (VolumeState::Running, VolumeState::Stopped)
    );
    let report = daemon.volumes.show(&name("a"), Count::Fresh).expect("there");
    assert_eq!(report.settings.dirty_high, 70);
    assert_eq!(report.export.nbd.as_deref(), Some("fake://a"));
    let stopped = daemon.volumes.show(&name("b"), Count::Fresh).expect("there");
    assert_eq!(stopped.export.nbd, None);
    assert_eq!(stopped.origin.size, crate::testing::FAKE_SIZE);
}

#[test]
fn a_volume_that_fails_to_start_does_not_stop_the_others() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    let daemon = daemon.restart();
    daemon.fail("start a");
    assert_eq!(daemon.volumes.restore(&StopRequest::default(), Duration::ZERO), restored(1, 0, 2));
    assert_eq!((daemon.state("a"), daemon.state("b")), (VolumeState::Failed, VolumeState::Running));
    let report = daemon.volumes.show(&name("a"), Count::Fresh).expect("there");
    assert_eq!(report.errors.last.as_deref(), Some("told to fail"));
    // The volume is still stored, and can be stopped, so that the next start does not try again.
    daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
    assert_eq!(daemon.state("a"), VolumeState::Stopped);
    let show = || daemon.volumes.show(&name("a"), Count::Fresh).expect("there");
    assert_eq!(show().errors.last, None);
    // A manual start that fails leaves the volume stopped, with the reason.
    daemon
        .end(daemon.volumes.start(&name("a"), StartRequest::default()))
        .expect_err("told to fail");
    assert_eq!(
        (show().state, show().errors.last.as_deref()),
        (VolumeState::Stopped, Some("told to fail"))
    );
    assert_eq!(show().memory.limit_bytes, daemon.volumes.memory().limit());
    assert_eq!(
        daemon.restart().volumes.restore(&StopRequest::default(), Duration::ZERO),
        restored(1, 0, 1)
    );
}

#[test]
fn a_volume_with_a_hanging_device_delays_no_other_volume() {
    let daemon = Daemon::new();
    for (name, origin) in [("a", "origin"), ("b", "other"), ("c", "third")] {
        std::fs::write(daemon.dir.path().join(origin), [0; 512]).expect("writable");
        daemon.create(name, origin).expect("good");
    }
    let daemon = daemon.restart();
    let states = || ["a", "b", "c"].map(|name| daemon.state(name));
    assert_eq!(states(), [VolumeState::Waiting; 3]);
    daemon.fail("hang start a");
    let back = daemon.volumes.restore(&StopRequest::default(), Duration::ZERO);
    assert_eq!(back, restored(2, 1, 3));
    assert_eq!(back.to_string(), "2 of 3 volumes served, 1 waiting for devices that do not answer");
    assert_eq!(states(), [VolumeState::Waiting, VolumeState::Running, VolumeState::Running]);
    let report = daemon.volumes.show(&name("a"), Count::Fresh).expect("there");
    let wait = report.waiting_for.expect("a device");
    assert_eq!((wait.device.as_str(), wait.seconds, report.export.nbd), ("/dev/hung", 60, None));
    daemon.end(daemon.volumes.stop(&name("b"), Stopping::default())).expect("it is not busy");
    let start = daemon.volumes.operations().of_volume(&name("a")).expect("still at work").id;
    daemon.host.failing.lock().clear();
    daemon.volumes.operations().wait(start, None);
    assert_eq!(states(), [VolumeState::Running, VolumeState::Stopped, VolumeState::Running]);
}

#[test]
fn a_stop_or_delete_supersedes_a_start_that_waits() {
    for end in ["stop", "delete", "shut down"] {
        let daemon = Daemon::new();
        daemon.create("a", "origin").expect("good");
        let daemon = daemon.restart();
        daemon.fail("hang start a");
        assert_eq!(
            daemon.volumes.restore(&StopRequest::default(), Duration::ZERO),
            restored(0, 1, 1)
        );
        match end {
            "stop" => {
                daemon
                    .end(daemon.volumes.stop(&name("a"), Stopping::default()))
                    .expect("it gives way");
                assert_eq!(daemon.state("a"), VolumeState::Stopped);
            }
            "delete" => {
                daemon
                    .end(daemon.volumes.delete(&name("a"), deleting(true)))
                    .expect("it gives way");
                assert!(daemon.volumes.list(Count::Fresh).is_empty());
            }
            _ => daemon.volumes.shut_down().expect("it gives way"),
        }
        let started = usize::from(end == "shut down");
        let daemon = daemon.restart();
        let back = daemon.volumes.restore(&StopRequest::default(), Duration::ZERO);
        assert_eq!(back, restored(started, 0, started), "{end}");
    }
}

#[test]
fn a_stop_request_ends_the_restore() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    let daemon = daemon.restart();
    let stop = StopRequest::default();
    assert!(stop.ask(EndRequest::Stop) && !stop.ask(EndRequest::Stop));
    assert_eq!(daemon.volumes.restore(&stop, Duration::ZERO), restored(0, 0, 1));
    assert!(daemon.asked().is_empty());
}

#[test]
fn a_create_that_fails_leaves_nothing() {
    let daemon = Daemon::new();
    daemon.fail("create a");
    assert!(daemon.create("a", "origin").is_err());
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
    // The state cannot be written at the end, so the volume must not stay served.
    let state = daemon.dir.path().join("state");
    daemon.on("create b", move || std::fs::remove_dir_all(&state).expect("writable"));
    assert!(daemon.create("b", "origin").is_err());
    assert_eq!(daemon.asked(), ["create a", "create b", "delete b discard"]);
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
}

#[test]
fn commands_change_nothing_if_the_state_cannot_be_written() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    daemon.end(daemon.volumes.stop(&name("b"), Stopping::default())).expect("good");
    let listed = || {
        let mut reports = daemon.volumes.list(Count::Fresh);
        // The memory of the process changes all the time.
        reports.iter_mut().for_each(|report| report.memory.resident_bytes = 0);
        reports
    };
    let before = (daemon.asked(), listed());
    std::fs::remove_dir_all(daemon.dir.path().join("state")).expect("writable");
    let settings = Assignments::parse(["dirty_high=70"]).expect("good");
    let mut adopted = daemon.request("b", "other");
    adopted.adopt = true;
    let third = daemon.dir.path().join("third");
    std::fs::write(third, [0; 512]).expect("writable");
    for (what, failed) in [
        ("create", daemon.create("c", "third")),
        ("adopt", daemon.end(daemon.volumes.create(&adopted))),
        ("set", daemon.end(daemon.volumes.set(&name("a"), SetRequest { settings }))),
        ("stop", daemon.end(daemon.volumes.stop(&name("a"), Stopping::default()))),
        ("start", daemon.end(daemon.volumes.start(&name("b"), StartRequest::default()))),
        ("delete", daemon.end(daemon.volumes.delete(&name("a"), deleting(false)))),
        ("discard", daemon.end(daemon.volumes.delete(&name("a"), deleting(true)))),
    ] {
        let error = failed.expect_err(what);
        assert!(error.message.contains("cannot write the state"), "{what}: {error}");
        assert_eq!((daemon.asked(), listed()), before, "{what}");
    }
}

#[test]
fn a_command_cut_off_by_a_crash_is_completed_by_repeating_it() {
    // The content of the state file during the host's request.
    let killed = |prepare: &dyn Fn(&Daemon), at: &str, run: &dyn Fn(&Daemon)| -> Daemon {
        let daemon = Daemon::new();
        prepare(&daemon);
        let file = daemon.dir.path().join("state/state.json");
        let then = Arc::new(Mutex::new(String::new()));
        let (own, read) = (then.clone(), file.clone());
        daemon.on(at, move || {
            *own.lock() = std::fs::read_to_string(&read).expect("there");
        });
        run(&daemon);
        std::fs::write(&file, &*then.lock()).expect("writable");
        daemon.restart()
    };
    let nothing = |_: &Daemon| ();
    let made = |daemon: &Daemon| daemon.create("a", "origin").expect("good");
    let restore = |daemon: &Daemon| daemon.volumes.restore(&StopRequest::default(), Duration::ZERO);

    let daemon = killed(&nothing, "create a", &|daemon| made(daemon));
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
    assert_eq!(daemon.volumes.state.known().facts().deleted.len(), 1, "what was half made goes");
    made(&daemon);

    let delete = |discard: bool| {
        move |daemon: &Daemon| {
            daemon.end(daemon.volumes.delete(&name("a"), deleting(discard))).expect("good");
        }
    };
    // The cache device may or may not have forgotten the volume.
    let daemon = killed(&made, "delete a", &delete(false));
    daemon.fail("unknown start a");
    assert_eq!(restore(&daemon), restored(0, 0, 1));
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
    let daemon = killed(&made, "delete a", &delete(false));
    assert_eq!(restore(&daemon), restored(1, 0, 1));
    delete(false)(&daemon);
    assert!(daemon.volumes.list(Count::Fresh).is_empty());

    let daemon = killed(&made, "delete a discard", &delete(true));
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
    assert_eq!(daemon.volumes.state.known().facts().deleted.len(), 1);

    let daemon = killed(&made, "stop a", &|daemon| {
        daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
    });
    assert_eq!((restore(&daemon), daemon.state("a")), (restored(0, 0, 0), VolumeState::Stopped));
    let daemon = killed(
        &|daemon| {
            made(daemon);
            daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
        },
        "start a",
        &|daemon| {
            daemon.end(daemon.volumes.start(&name("a"), StartRequest::default())).expect("good")
        },
    );
    assert_eq!((restore(&daemon), daemon.state("a")), (restored(1, 0, 1), VolumeState::Running));
    let daemon = killed(&made, "set a", &|daemon| {
        let settings = Assignments::parse(["dirty_high=70"]).expect("good");
        daemon.end(daemon.volumes.set(&name("a"), SetRequest { settings })).expect("good");
    });
    assert_eq!(restore(&daemon), restored(1, 0, 1));
    assert_eq!(
        daemon.volumes.show(&name("a"), Count::Fresh).expect("there").settings.dirty_high,
        70
    );
}

#[test]
fn a_forced_creation_that_fails_says_that_it_has_overwritten() {
    for force in [false, true] {
        let daemon = Daemon::new();
        let dir = daemon.dir.path().join("state");
        daemon.on(if force { "create a force" } else { "create a" }, move || {
            crate::faults::set(&dir, Some(crate::faults::Fault::Full));
        });
        let request = CreateRequest { force, ..daemon.request("a", "origin") };
        let failed = daemon.end(daemon.volumes.create(&request)).expect_err("not stored").message;
        assert_eq!(failed.contains("cache is overwritten: cannot write"), force, "{failed}");
        crate::faults::set(&daemon.dir.path().join("state"), None);
    }
}

#[test]
fn an_older_copy_is_accepted_for_one_volume_at_a_time() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    let daemon = daemon.restart();
    daemon.fail("older start a");
    daemon.fail("older start b");
    assert_eq!(daemon.volumes.restore(&StopRequest::default(), Duration::ZERO), restored(0, 0, 2));
    assert_eq!(daemon.state("a"), VolumeState::Failed);
    let start = |name_: &str, force| {
        daemon.end(daemon.volumes.start(&name(name_), StartRequest { force, verify: false }))
    };
    daemon.fail("older start a");
    start("a", true).expect("forced");
    assert_eq!(start("b", false).expect_err("not accepted").kind, ErrorKind::DataAtRisk);
    let daemon = daemon.restart();
    assert_eq!(daemon.volumes.restore(&StopRequest::default(), Duration::ZERO), restored(1, 0, 2));
    let start = |name_: &str, force| {
        daemon.end(daemon.volumes.start(&name(name_), StartRequest { force, verify: false }))
    };
    start("b", true).expect("forced");
    daemon.end(daemon.volumes.stop(&name("b"), Stopping::default())).expect("good");
    start("b", false).expect("accepted for good");
}

#[test]
fn bad_creates_never_reach_the_host() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    let kind = |result: Result<(), ApiError>| result.expect_err("bad").kind;
    assert_eq!(kind(daemon.create("a", "other")), ErrorKind::Refused);
    assert_eq!(kind(daemon.create("b", "origin")), ErrorKind::Refused);
    assert_eq!(kind(daemon.create("b", "cache")), ErrorKind::Invalid);
    assert_eq!(kind(daemon.create("b", "absent")), ErrorKind::Invalid);
    let said = |result: Result<(), ApiError>| result.expect_err("bad").message;
    assert!(said(daemon.create("a", "other")).contains("choose another name"));
    let again = said(daemon.create("a", "origin"));
    assert!(again.contains("'forebay start a'") && !again.contains("another"), "{again}");
    assert_eq!(daemon.asked(), ["create a"]);
}

#[test]
fn settings_are_changed_whole_and_also_while_stopped() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    let set = |text: &str| {
        let settings = Assignments::parse(text.split(' ')).expect("good one by one");
        daemon.end(daemon.volumes.set(&name("a"), SetRequest { settings }))
    };
    assert_eq!(set("mode=wt dirty_low=99").expect_err("low above high").kind, ErrorKind::Invalid);
    daemon.fail("set a");
    assert!(set("dirty_high=80").is_err());
    let high = || daemon.volumes.show(&name("a"), Count::Fresh).expect("there").settings.dirty_high;
    assert_eq!(high(), 50, "what the host refused is not remembered");
    daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
    set("dirty_high=80").expect("the host is not asked");
    assert_eq!(high(), 80);
    let refused = set("caching=paused").expect_err("nobody writes its dirty blocks back");
    assert_eq!(refused.kind, ErrorKind::Refused);
    assert!(refused.message.contains("start it to pause it"), "{refused}");
    set("caching=frozen").expect("nothing is to be written back");
}

#[test]
fn a_failed_change_keeps_a_concurrent_one_of_another_volume() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    let volumes = daemon.volumes.clone();
    daemon.on("set a", move || {
        let change = |all: &mut Vec<Remembered>| {
            let mut those = all.iter_mut().filter(|entry| entry.volume.name.as_str() == "b");
            those.next().expect("there").volume.settings.durability = Durability::Strict;
            Ok(())
        };
        volumes.state.change(&Work::default(), |all, _| change(all)).expect("writable");
    });
    daemon.fail("set a");
    let settings = Assignments::parse(["mode=wt", "dirty_high=70"]).expect("good");
    assert!(daemon.end(daemon.volumes.set(&name("a"), SetRequest { settings })).is_err());
    let of = |text: &str| daemon.volumes.state.volume(&name(text)).expect("there").volume.settings;
    assert_eq!((of("a").dirty_high, of("b").dirty_high), (50, 50));
    assert_eq!(of("b").durability, Durability::Strict);
}

#[test]
fn a_new_volume_takes_the_policy_of_its_cache_or_is_refused() {
    let daemon = Daemon::new();
    let create = |name: &str, origin: &str, settings: &[&str]| {
        std::fs::write(daemon.dir.path().join(origin), [0; 512]).expect("writable");
        let mut request = daemon.request(name, origin);
        request.settings = Assignments::parse(settings).expect("good");
        daemon.end(daemon.volumes.create(&request))
    };
    let policies = || -> Vec<String> {
        let list = daemon.volumes.list(Count::Fresh);
        list.iter().map(|report| report.settings.policy.to_string()).collect()
    };
    create("a", "origin", &["policy=fifo"]).expect("good");
    create("b", "other", &[]).expect("good");
    create("c", "third", &["policy=fifo"]).expect("the same");
    for other in ["lru", "random"] {
        let refused = create("d", "fourth", &[&format!("policy={other}")]).expect_err("another");
        assert_eq!((refused.kind, refused.field.as_deref()), (ErrorKind::Invalid, Some("policy")));
        assert!(refused.message.contains("fifo") && refused.message.contains("set d policy="));
    }
    assert_eq!(policies(), ["fifo"; 3]);
    let settings = Assignments::parse(["policy=random"]).expect("good");
    daemon.end(daemon.volumes.set(&name("b"), SetRequest { settings })).expect("good");
    assert_eq!(policies()[1], "random");
    let remembered = daemon.volumes.state.volumes();
    assert!(remembered.iter().all(|entry| entry.volume.settings.policy.name() == "random"));
}

#[test]
fn verbs_are_about_volumes_that_are_there() {
    let daemon = Daemon::new();
    let absent = name("absent");
    for result in [
        daemon.volumes.run(&absent, BlockTask::Flush),
        daemon.volumes.stop(&absent, Stopping::default()),
        daemon.volumes.start(&absent, StartRequest::default()),
        daemon.volumes.delete(&absent, deleting(true)),
        daemon.volumes.set(&absent, SetRequest::default()),
    ] {
        assert_eq!(result.expect_err("absent").kind, ErrorKind::NotFound);
    }
    daemon.create("a", "origin").expect("good");
    daemon.end(daemon.volumes.start(&name("a"), StartRequest::default())).expect("it is running");
    daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
    daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("it is stopped");
    let refused =
        daemon.end(daemon.volumes.run(&name("a"), BlockTask::Flush)).expect_err("stopped");
    assert_eq!(refused.kind, ErrorKind::Refused);
    assert_eq!(daemon.asked(), ["create a", "stop a"]);
}

#[test]
fn shutting_down_ends_clean_or_says_so() {
    let daemon = Daemon::new();
    daemon.volumes.shut_down().expect("clean");
    assert!(daemon.create("a", "origin").is_err(), "nothing starts any more");
    daemon.fail("shut down");
    assert!(daemon.volumes.shut_down().is_err());
}

#[test]
fn a_stop_does_not_wait_for_a_flush_that_never_ends() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.fail("hang flush a");
    let flush = daemon.volumes.run(&name("a"), BlockTask::Flush).expect("free");
    let busy = daemon.volumes.start(&name("a"), StartRequest::default()).expect_err("busy");
    assert_eq!(busy.kind, ErrorKind::Busy);
    daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("the flush gives up");
    let flush = daemon.volumes.operations().wait(flush, None).expect("known");
    assert_eq!(flush.error.map(|error| error.kind), Some(ErrorKind::Cancelled));
    assert_eq!(daemon.state("a"), VolumeState::Stopped);
}

/// Waits until the host has been asked this.
fn until_asked(daemon: &Daemon, what: &str) {
    let end = forebay_threads::Instant::now() + Duration::from_secs(60);
    while !daemon.asked().iter().any(|asked| asked == what) {
        assert!(
            forebay_threads::Instant::now() < end,
            "'{what}' is not asked: {:?}",
            daemon.asked()
        );
        forebay_threads::sleep(Duration::from_millis(1));
    }
}

#[test]
fn every_start_prefetches_if_the_setting_says_so() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    let settings = Assignments::parse(["prefetch=on"]).expect("good");
    daemon.end(daemon.volumes.set(&name("a"), SetRequest { settings })).expect("good");
    let daemon = daemon.restart();
    assert_eq!(daemon.volumes.restore(&StopRequest::default(), Duration::ZERO), restored(2, 0, 2));
    until_asked(&daemon, "prefetch a");
    daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
    daemon.host.asked.lock().clear();
    daemon.end(daemon.volumes.start(&name("a"), StartRequest::default())).expect("good");
    until_asked(&daemon, "prefetch a");
    assert!(!daemon.asked().contains(&"prefetch b".to_owned()));
}

#[test]
fn a_prefetch_ends_for_any_other_command() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.fail("hang prefetch a");
    for round in 0..3 {
        let id = daemon.volumes.run(&name("a"), BlockTask::Prefetch).expect("good");
        let busy = daemon.volumes.run(&name("a"), BlockTask::Prefetch).expect_err("one at a time");
        assert_eq!(busy.kind, ErrorKind::Busy);
        let other = match round {
            0 => daemon.volumes.run(&name("a"), BlockTask::Flush),
            1 => daemon.volumes.run(&name("a"), BlockTask::Drop(DropRequest::default())),
            _ => daemon.volumes.stop(&name("a"), Stopping::default()),
        };
        daemon.end(other).expect("it need not wait");
        let ended = daemon.end(Ok(id)).expect_err("it was cancelled");
        assert_eq!(ended.kind, ErrorKind::Cancelled);
    }
}
