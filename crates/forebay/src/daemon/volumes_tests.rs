//! Volumes over a fake host: what is asked of it, what is remembered, what comes back.

use forebay_admin::{Assignments, Operation};

use super::*;
use crate::daemon::testing::{FakeHost, TempDir};

struct Daemon {
    dir: TempDir,
    host: Arc<FakeHost>,
    volumes: Arc<Volumes>,
}

fn open(dir: &TempDir, host: &Arc<FakeHost>) -> Arc<Volumes> {
    let state = State::open(&dir.path().join("state")).expect("free");
    let nbd = vec!["/run/nbd.sock".parse().expect("an address")];
    Volumes::new(host.clone(), state, nbd)
}

impl Daemon {
    fn new() -> Self {
        let (dir, host) = (TempDir::new("volumes"), Arc::new(FakeHost::default()));
        for name in ["cache", "origin", "other"] {
            std::fs::write(dir.path().join(name), [0; 512]).expect("writable");
        }
        let volumes = open(&dir, &host);
        Daemon { dir, host, volumes }
    }

    /// The daemon dies without a word and starts again.
    fn restart(mut self) -> Self {
        drop(self.volumes);
        self.host = Arc::new(FakeHost::default());
        self.volumes = open(&self.dir, &self.host);
        self
    }

    fn request(&self, name: &str, origin: &str) -> CreateRequest {
        CreateRequest {
            name: name.parse().expect("valid"),
            cache: self.dir.path().join("cache").display().to_string(),
            origin: self.dir.path().join(origin).display().to_string(),
            profile: None,
            block_size: None,
            alignment: 0,
            force: false,
            adopt: false,
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
        self.volumes.show(&name.parse().expect("valid")).expect("there").state
    }

    fn asked(&self) -> Vec<String> {
        self.host.asked.lock().expect("not poisoned").clone()
    }

    fn fail(&self, what: &str) {
        self.host.failing.lock().expect("not poisoned").push(what.to_owned());
    }
}

fn name(text: &str) -> VolumeName {
    text.parse().expect("valid")
}

#[test]
fn what_was_served_comes_back_with_its_settings() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    let settings = Assignments::parse(["mode=wt", "dirty_high=70"]).expect("good");
    daemon.end(daemon.volumes.set(&name("a"), SetRequest { settings })).expect("good");
    daemon.end(daemon.volumes.stop(&name("b"))).expect("good");
    assert_eq!(daemon.asked(), ["create a", "create b join", "set a", "stop b"]);

    let daemon = daemon.restart();
    assert_eq!(daemon.volumes.restore(&StopRequest::default()), (1, 1));
    assert_eq!(daemon.asked(), ["start a"]);
    assert_eq!(
        (daemon.state("a"), daemon.state("b")),
        (VolumeState::Running, VolumeState::Stopped)
    );
    let report = daemon.volumes.show(&name("a")).expect("there");
    assert_eq!(report.settings.dirty_high, 70);
    assert_eq!(report.export.nbd.as_deref(), Some("nbd+unix:///a?socket=/run/nbd.sock"));
    let stopped = daemon.volumes.show(&name("b")).expect("there");
    assert_eq!(stopped.export.nbd, None);
    assert_eq!(stopped.origin.size, crate::daemon::testing::FAKE_SIZE);
}

#[test]
fn a_volume_that_cannot_come_back_is_shown_as_failed_and_spares_the_others() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    let daemon = daemon.restart();
    daemon.fail("start a");
    assert_eq!(daemon.volumes.restore(&StopRequest::default()), (1, 2));
    assert_eq!((daemon.state("a"), daemon.state("b")), (VolumeState::Failed, VolumeState::Running));
    let report = daemon.volumes.show(&name("a")).expect("there");
    assert_eq!(report.errors.last.as_deref(), Some("told to fail"));
    // It is still remembered, and can be stopped, so that the next start does not try again.
    daemon.end(daemon.volumes.stop(&name("a"))).expect("good");
    assert_eq!(daemon.state("a"), VolumeState::Stopped);
    assert_eq!(daemon.restart().volumes.restore(&StopRequest::default()), (1, 1));
}

#[test]
fn volumes_whose_turn_has_not_come_wait_and_can_be_stopped_meanwhile() {
    let daemon = Daemon::new();
    for (name, origin) in [("a", "origin"), ("b", "other"), ("c", "third")] {
        std::fs::write(daemon.dir.path().join(origin), [0; 512]).expect("writable");
        daemon.create(name, origin).expect("good");
    }
    let daemon = daemon.restart();
    let states = || ["a", "b", "c"].map(|name| daemon.state(name));
    assert_eq!(states(), [VolumeState::Waiting; 3]);
    daemon.fail("hang start a");
    std::thread::scope(|scope| {
        let restored = scope.spawn(|| daemon.volumes.restore(&StopRequest::default()));
        while daemon.volumes.operations().of_volume(&name("a")).is_none() {
            std::thread::yield_now();
        }
        let report = daemon.volumes.show(&name("b")).expect("there");
        assert_eq!((report.state, report.export.nbd), (VolumeState::Waiting, None));
        daemon.end(daemon.volumes.stop(&name("b"))).expect("it is not busy");
        assert_eq!(daemon.state("b"), VolumeState::Stopped);
        daemon.host.failing.lock().expect("not poisoned").clear();
        assert_eq!(restored.join().expect("no panic"), (2, 3));
    });
    assert_eq!(states(), [VolumeState::Running, VolumeState::Stopped, VolumeState::Running]);
    assert_eq!(daemon.asked(), ["start a", "start c"]);
}

#[test]
fn a_stop_request_ends_the_restore() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    let daemon = daemon.restart();
    let stop = StopRequest::default();
    assert!(stop.ask() && !stop.ask());
    assert_eq!(daemon.volumes.restore(&stop), (0, 1));
    assert!(daemon.asked().is_empty());
}

#[test]
fn a_create_that_fails_leaves_nothing() {
    let daemon = Daemon::new();
    daemon.fail("create a");
    assert!(daemon.create("a", "origin").is_err());
    assert!(daemon.volumes.list().is_empty());
    // A state that cannot be written: the volume must not go on being served.
    std::fs::remove_dir_all(daemon.dir.path().join("state")).expect("writable");
    assert!(daemon.create("b", "origin").is_err());
    assert_eq!(daemon.asked(), ["create a", "create b", "stop b"]);
    assert!(daemon.volumes.list().is_empty());
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
    let high = || daemon.volumes.show(&name("a")).expect("there").settings.dirty_high;
    assert_eq!(high(), 50, "what the host refused is not remembered");
    daemon.end(daemon.volumes.stop(&name("a"))).expect("good");
    set("dirty_high=80").expect("the host is not asked");
    assert_eq!(high(), 80);
}

#[test]
fn a_new_volume_takes_the_policy_of_its_cache_and_does_not_change_it() {
    let daemon = Daemon::new();
    let create = |name: &str, origin: &str, settings: &[&str]| {
        std::fs::write(daemon.dir.path().join(origin), [0; 512]).expect("writable");
        let mut request = daemon.request(name, origin);
        request.settings = Assignments::parse(settings).expect("good");
        daemon.end(daemon.volumes.create(&request))
    };
    let policies = || -> Vec<String> {
        let list = daemon.volumes.list();
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
fn deleting_forgets_only_what_is_gone() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.fail("delete a");
    assert!(daemon.end(daemon.volumes.delete(&name("a"), false)).is_err());
    assert_eq!(daemon.volumes.list().len(), 1);
    daemon.end(daemon.volumes.delete(&name("a"), true)).expect("good");
    assert!(daemon.volumes.list().is_empty());
    assert!(daemon.restart().volumes.list().is_empty());
}

#[test]
fn verbs_are_about_volumes_that_are_there() {
    let daemon = Daemon::new();
    let absent = name("absent");
    for result in [
        daemon.volumes.flush(&absent),
        daemon.volumes.stop(&absent),
        daemon.volumes.start(&absent, false),
        daemon.volumes.delete(&absent, true),
        daemon.volumes.set(&absent, SetRequest::default()),
    ] {
        assert_eq!(result.expect_err("absent").kind, ErrorKind::NotFound);
    }
    daemon.create("a", "origin").expect("good");
    daemon.end(daemon.volumes.start(&name("a"), false)).expect("it is running");
    daemon.end(daemon.volumes.stop(&name("a"))).expect("good");
    daemon.end(daemon.volumes.stop(&name("a"))).expect("it is stopped");
    let refused = daemon.end(daemon.volumes.flush(&name("a"))).expect_err("stopped");
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
    let flush = daemon.volumes.flush(&name("a")).expect("free");
    let busy = daemon.volumes.start(&name("a"), false).expect_err("busy");
    assert_eq!(busy.kind, ErrorKind::Busy);
    daemon.end(daemon.volumes.stop(&name("a"))).expect("the flush gives up");
    let flush = daemon.volumes.operations().wait(flush, None).expect("known");
    assert_eq!(flush.error.map(|error| error.kind), Some(ErrorKind::Cancelled));
    assert_eq!(daemon.state("a"), VolumeState::Stopped);
}
