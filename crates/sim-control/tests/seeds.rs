//! Some random worlds and some enumerated worlds.

use std::process::Command;

fn run(arguments: &[&str]) {
    let program = env!("CARGO_BIN_EXE_forebay-sim-control");
    let ran = Command::new(program).args(arguments).output().expect("it was built");
    let text = String::from_utf8_lossy(&ran.stdout).into_owned();
    assert!(ran.status.success(), "{arguments:?}:\n{text}");
}

#[test]
fn random_worlds_keep_their_promises() {
    run(&["--start", "1000", "--seeds", "40"]);
}

#[test]
fn commands_with_obstacles_do_what_they_reported() {
    for (what, start) in
        [("pairs", "4100"), ("triples", "2300"), ("kills", "900"), ("hung-starts", "1200")]
    {
        run(&["--all", what, "--start", start, "--seeds", "20"]);
    }
}

#[test]
fn worlds_that_failed_once_keep_their_promises() {
    // For each world, the failure that it found:
    let found = [
        // A stopped volume that was deleted while its cache device had failed stayed on it for
        // good.
        ("60575", None),
        // A stopped volume whose deletion had been completed before a crash stayed in the list
        // until a command examined it.
        ("490", Some("kills")),
        // A volume that was created while the policy of another was changed kept the old policy.
        ("22392", Some("pairs")),
    ];
    for (seed, all) in found {
        let all: Vec<&str> = all.map_or_else(Vec::new, |all| vec!["--all", all]);
        run(&[&all[..], &["--seed", seed]].concat());
    }
}
