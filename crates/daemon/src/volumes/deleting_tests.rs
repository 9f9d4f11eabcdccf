//! Deletions that fail, and those that a crash interrupts.

use super::*;

#[test]
fn giving_up_a_volume_succeeds_even_if_its_devices_fail() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.fail("delete a discard");
    daemon.end(daemon.volumes.delete(&name("a"), deleting(true))).expect("it is forgotten");
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
    let daemon = daemon.restart();
    assert_eq!(daemon.volumes.state.known().facts().deleted.len(), 1);
    // Without discarding, a failure is an error, and the volume stays.
    daemon.create("a", "origin").expect("the name is free");
    daemon.fail("delete a");
    assert!(daemon.end(daemon.volumes.delete(&name("a"), deleting(false))).is_err());
    let entry = daemon.volumes.state.volume(&name("a")).expect("there");
    assert!(entry.started && !entry.deleting);
}

#[test]
fn a_deletion_that_fails_does_not_forget_an_interrupted_one() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    let work = Arc::default();
    daemon.volumes.state.edit(&name("a"), &work, |entry| entry.deleting = true).expect("good");
    let daemon = daemon.restart();
    daemon.fail("delete a");
    daemon.end(daemon.volumes.delete(&name("a"), deleting(false))).expect_err("told to fail");
    daemon.fail("unknown start a");
    let start = daemon.end(daemon.volumes.start(&name("a"), StartRequest::default()));
    assert_eq!(start.expect_err("it had been deleted").kind, ErrorKind::NotFound);
}

#[test]
fn the_next_daemon_settles_a_deletion_of_a_stopped_volume() {
    for (struck, fails) in [(false, false), (true, false), (false, true)] {
        let daemon = Daemon::new();
        daemon.create("a", "origin").expect("good");
        daemon.end(daemon.volumes.stop(&name("a"), Stopping::default())).expect("good");
        let work = Arc::default();
        daemon.volumes.state.edit(&name("a"), &work, |entry| entry.deleting = true).expect("good");
        let daemon = daemon.restart();
        if struck {
            daemon.fail("struck a");
        }
        if fails {
            daemon.fail("holds a");
        }
        daemon.volumes.restore(&StopRequest::default(), Duration::ZERO);
        assert!(daemon.volumes.operations().wait_all(Duration::from_secs(60)));
        let deleting = daemon.volumes.state.volume(&name("a")).ok().map(|entry| entry.deleting);
        assert_eq!(deleting, (!struck).then_some(fails));
    }
}

#[test]
fn deleting_forgets_only_what_is_gone() {
    let daemon = Daemon::new();
    daemon.create("a", "origin").expect("good");
    daemon.fail("delete a");
    assert!(daemon.end(daemon.volumes.delete(&name("a"), deleting(false))).is_err());
    assert_eq!(daemon.volumes.list(Count::Fresh).len(), 1);
    daemon.end(daemon.volumes.delete(&name("a"), deleting(true))).expect("good");
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
    assert!(daemon.restart().volumes.list(Count::Fresh).is_empty());
}
