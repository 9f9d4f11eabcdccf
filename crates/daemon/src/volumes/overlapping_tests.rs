//! Commands that interfere with each other: late ones, given up ones, and changes made meanwhile.

use forebay_core::ReplacementKind;

use super::*;
use crate::state::entry_of;

/// Waits until the host has received this request and has completed it.
fn until(what: &str, condition: impl Fn() -> bool) {
    let end = forebay_threads::Instant::now() + Duration::from_secs(60);
    while !condition() {
        assert!(forebay_threads::Instant::now() < end, "{what}");
        forebay_threads::sleep(Duration::from_millis(1));
    }
}

fn heal(daemon: &Daemon) {
    daemon.host.failing.lock().clear();
}

/// Waits until an operation has ended, however late it is.
fn end_of(daemon: &Daemon, id: OperationId) -> Operation {
    let state = || daemon.volumes.operations().wait(id, None).expect("known");
    until("it ends", || state().state != forebay_admin::OperationState::Running);
    state()
}

#[test]
fn a_command_that_panics_has_failed_and_leaves_nothing_stored() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    let facts = || {
        let entries = daemon.volumes.state.volumes().into_iter();
        let entries = entries.map(|mut entry| {
            entry.volume.version = 0;
            entry
        });
        (entries.collect::<Vec<_>>(), daemon.volumes.state.known().facts().deleted.clone())
    };
    for verb in ["create b join", "set a", "delete a", "stop a", "start a"] {
        if verb == "start a" {
            daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
        }
        let before = facts();
        *daemon.host.hook.lock() = Some(Box::new(move |what| assert_ne!(what, verb, "on purpose")));
        let begun = match verb {
            "create b join" => daemon.volumes.create(&daemon.request("b", "other")),
            "set a" => {
                let settings = Assignments::parse(["dirty_high=55"]).expect("good");
                daemon.volumes.set(&name("a"), SetRequest { settings })
            }
            "delete a" => daemon.volumes.delete(&name("a"), deleting(false)),
            "stop a" => daemon.volumes.stop(&name("a"), Stopping::default()),
            _ => daemon.volumes.start(&name("a"), StartRequest::default()),
        };
        let failed = daemon.end(begun).expect_err(verb);
        *daemon.host.hook.lock() = None;
        assert!(failed.message.contains("ended unexpectedly"), "{verb}: {failed}");
        assert_eq!(facts(), before, "{verb}");
        assert!(daemon.volumes.claims.is_empty(), "{verb}");
    }
}

#[test]
fn a_late_command_still_runs_and_excludes_others() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.fail("late stop a");
    let stop = daemon.volumes.stop(&name("a"), Stopping::default()).expect("free");
    let late = daemon.volumes.operations().wait(stop, None).expect("known");
    assert_eq!(late.state, forebay_admin::OperationState::Running);
    assert_eq!(late.error.map(|error| error.kind), Some(ErrorKind::UnderWay));
    // A cancellation comes too late as well.
    daemon.volumes.operations().cancel(stop);
    let busy = daemon.volumes.start(&name("a"), StartRequest::default()).expect_err("busy");
    assert_eq!(busy.kind, ErrorKind::Busy);
    assert!(busy.message.contains("'stop': it waits for /dev/hung"), "{busy}");
    let again = daemon.volumes.stop(&name("a"), Stopping::default()).expect_err("busy");
    assert_eq!(again.kind, ErrorKind::Busy);
    heal(&daemon);
    assert_eq!(end_of(&daemon, stop).error, None, "it has ended as it began");
    assert_eq!(daemon.state("a"), VolumeState::Stopped);
}

#[test]
fn a_volume_can_be_given_up_beside_a_late_command() {
    for verb in ["start", "stop", "set", "flush", "delete"] {
        let daemon = Daemon::new();
        daemon.create("a", "origin").expect("good");
        if verb == "start" {
            daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
        }
        daemon.fail(&format!("late {verb} a"));
        let begun = match verb {
            "start" => daemon.volumes.start(&name("a"), StartRequest::default()),
            "stop" => daemon.volumes.stop(&name("a"), Stopping::default()),
            "flush" => daemon.volumes.run(&name("a"), BlockTask::Flush),
            "delete" => daemon.volumes.delete(&name("a"), deleting(false)),
            _ => {
                let settings = Assignments::parse(["dirty_high=70"]).expect("good");
                daemon.volumes.set(&name("a"), SetRequest { settings })
            }
        };
        let begun = begun.expect("free");
        until("it is late", || {
            let operation = daemon.volumes.operations().wait(begun, None).expect("known");
            operation.error.is_some()
        });
        daemon.end(daemon.volumes.delete(&name("a"), deleting(true))).expect("it need not wait");
        assert!(daemon.volumes.list(Count::Fresh).is_empty(), "{verb}");
        heal(&daemon);
        end_of(&daemon, begun);
        assert!(daemon.volumes.list(Count::Fresh).is_empty(), "{verb}: it is back");
        assert!(daemon.host.report(&name("a"), Count::Known).is_none(), "{verb}: it is served");
        daemon.create("a", "origin").expect("the devices are free");
    }
}

#[test]
fn an_origin_that_is_being_claimed_is_not_claimed_twice() {
    let daemon = Daemon::new();
    daemon.fail("hang create a");
    let first = daemon.volumes.create(&daemon.request("a", "origin")).expect("free");
    until("it is asked", || {
        daemon.asked().is_empty() && daemon.host.condition(&name("a")).is_some()
    });
    let cache = daemon.dir.path().join("another");
    std::fs::write(&cache, [0; 512]).expect("writable");
    let second = |origin: &str, other_cache: bool| {
        let mut request = daemon.request("b", origin);
        if other_cache {
            request.cache = Some(cache.display().to_string());
        }
        daemon.end(daemon.volumes.create(&request)).map_err(|error| (error.kind, error.field))
    };
    let busy = |field: &str| Err((ErrorKind::Busy, Some(field.to_owned())));
    assert_eq!(second("origin", true), busy("origin"));
    assert_eq!(second("other", false), busy("cache"));
    daemon.volumes.operations().cancel(first);
    end_of(&daemon, first);
    assert_eq!(second("origin", true), Ok(()));
}

#[test]
fn changes_by_others_during_a_command_stay() {
    let settings = || Assignments::parse(["mode=wt"]).expect("good");
    for (verb, fails) in [
        ("delete a", true),
        ("stop a", false),
        ("stop a", true),
        ("start a", false),
        ("start a", true),
        ("set a", true),
        ("set a", false),
    ] {
        let daemon = Daemon::new();
        daemon.create("a", "origin").expect("good");
        daemon.create("b", "other").expect("good");
        if verb == "start a" {
            daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
        }
        let volumes = daemon.volumes.clone();
        // Like 'set b' with a setting that the volumes of a cache share.
        daemon.on(verb, move || {
            let change = |all: &mut Vec<Remembered>, _: &mut _| {
                all.iter_mut().for_each(|entry| entry.volume.settings.cache_dirty_high = 88);
                Ok(())
            };
            volumes.state.change(&Work::default(), change).expect("writable");
        });
        if fails {
            daemon.fail(verb);
        }
        let ended = daemon.end(match verb {
            "delete a" => daemon.volumes.delete(&name("a"), deleting(false)),
            "stop a" => daemon.volumes.stop(&name("a"), Stopping::default()),
            "start a" => daemon.volumes.start(&name("a"), StartRequest::default()),
            _ => daemon.volumes.set(&name("a"), SetRequest { settings: settings() }),
        });
        assert_eq!(ended.is_err(), fails, "{verb}");
        *daemon.host.hook.lock() = None;
        let daemon = daemon.restart();
        for entry in daemon.volumes.state.volumes() {
            let found = entry.volume.settings.cache_dirty_high;
            assert_eq!(found, 88, "{} after {verb}", entry.volume.name);
        }
    }
}

#[test]
fn shared_settings_are_shared_while_the_cache_device_is_away() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    for name_ in ["a", "b"] {
        daemon.end(daemon.volumes.stop(&name(name_), Stopping::default())).expect("good");
    }
    std::fs::remove_file(daemon.dir.path().join("cache")).expect("there");
    let settings = Assignments::parse(["cache_dirty_high=77"]).expect("good");
    daemon.end(daemon.volumes.set(&name("b"), SetRequest { settings })).expect("good");
    for entry in daemon.volumes.state.volumes() {
        assert_eq!(entry.volume.settings.cache_dirty_high, 77, "{}", entry.volume.name);
    }
}

#[test]
fn a_forced_start_that_fails_accepts_nothing() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    let daemon = daemon.restart();
    let cache = daemon.volumes.state.volume(&name("a")).expect("there").volume.uuid.expect("known");
    let position = crate::known::Position { generation: 9, record: 9 };
    daemon.volumes.state.known().facts().caches.insert(cache, position);
    let before = daemon.volumes.state.known().facts().clone();
    daemon.fail("older start a");
    daemon.fail("start a force");
    let force = StartRequest { force: true, verify: false };
    daemon.end(daemon.volumes.start(&name("a"), force)).expect_err("told to fail");
    assert_eq!(*daemon.volumes.state.known().facts(), before);
    let plain = daemon.end(daemon.volumes.start(&name("a"), StartRequest::default()));
    assert_eq!(plain.expect_err("not accepted").kind, ErrorKind::DataAtRisk);
}

#[test]
fn clients_see_a_new_volume_when_it_is_stored() {
    for adopt in [false, true] {
        let daemon = Daemon::new();
        let file = daemon.dir.path().join("state/state.json");
        let shown = Arc::new(Mutex::new(Vec::new()));
        let own = shown.clone();
        daemon.on("show a", move || {
            let stored = std::fs::read_to_string(&file).expect("written");
            own.lock().push(stored.contains("\"name\": \"a\""));
        });
        let request = CreateRequest { adopt, ..daemon.request("a", "origin") };
        daemon.end(daemon.volumes.create(&request)).expect("good");
        assert_eq!(*shown.lock(), [true], "adopt: {adopt}");
    }
}

/// Consent covers the content of the device when the command is given, not that after a wait.
#[test]
fn a_creation_looks_at_the_cache_device_before_it_waits() {
    let daemon = Daemon::new();
    let file = daemon.dir.path().join("state/state.json");
    let state = move || std::fs::read(&file).ok();
    let before = state();
    let changed = Arc::new(Mutex::new(Vec::new()));
    let own = changed.clone();
    *daemon.host.hook.lock() = Some(Box::new(move |asked| {
        own.lock().push((asked.to_owned(), state() != before));
    }));
    daemon.create("a", "origin").expect("good");
    let expected = [("look a", false), ("create a", true)];
    assert_eq!(changed.lock()[..2], expected.map(|(asked, changed)| (asked.to_owned(), changed)));
}

#[test]
fn a_command_that_may_not_survive_a_power_cut_says_so() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    let dir = daemon.dir.path().join("state");
    crate::faults::set(&dir, Some(crate::faults::Fault::NotSynced));
    let stop = daemon.end(daemon.volumes.stop(&name("a"), Stopping::default()));
    assert!(stop.expect_err("not durable").message.contains("a power cut may undo it"));
    assert_eq!(daemon.state("a"), VolumeState::Stopped, "memory, disk and clients agree");
    crate::faults::set(&dir, None);
    let daemon = daemon.restart();
    assert_eq!(daemon.state("a"), VolumeState::Stopped);
}

#[test]
fn shared_settings_take_effect_although_the_volume_is_stopped() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.create("b", "other").expect("good");
    daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
    let set = |text: &str| {
        let settings = Assignments::parse([text]).expect("good");
        daemon.end(daemon.volumes.set(&name("a"), SetRequest { settings }))
    };
    let asked = || daemon.host.asked.lock().last().cloned();
    let policies = || {
        let volumes = daemon.volumes.state.volumes().into_iter();
        volumes.map(|entry| entry.volume.settings.policy).collect::<Vec<_>>()
    };
    set("idle=7s").expect("good");
    assert_ne!(asked().as_deref(), Some("share b"), "nothing is shared");
    set("policy=lru").expect("good");
    assert_eq!(asked().as_deref(), Some("share b"));
    assert_eq!(policies(), [ReplacementKind::Lru; 2]);
    // A setting that cannot be applied is reverted, also in the data path if that has it by then.
    daemon.fail("share b");
    set("policy=fifo").expect_err("told to fail");
    assert_eq!(policies(), [ReplacementKind::Lru; 2]);
    assert_eq!(daemon.host.asked.lock().iter().filter(|asked| *asked == "share b").count(), 3);
}

#[test]
fn a_new_volume_takes_shared_settings_changed_meanwhile() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    let volumes = daemon.volumes.clone();
    daemon.on("create b join", move || {
        let change = |volumes: &mut Vec<Remembered>, _: &mut _| {
            entry_of(volumes, &name("a"))?.volume.settings.policy = ReplacementKind::Lru;
            Ok(())
        };
        volumes.state.change(&Work::default(), change).expect("writable");
    });
    daemon.create("b", "other").expect("good");
    let volumes = daemon.volumes.state.volumes().into_iter();
    let policies: Vec<_> = volumes.map(|entry| entry.volume.settings.policy).collect();
    assert_eq!(policies, [ReplacementKind::Lru; 2]);
    assert!(daemon.asked().contains(&"share b".to_owned()), "the data path has them too");
}
