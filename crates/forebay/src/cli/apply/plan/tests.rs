use forebay_admin::declared;

use super::*;
use forebay_daemon::definition;

fn wanted(text: &str) -> Vec<Wanted> {
    let all = declared::parse(text).expect("a good declaration");
    let define = |declared: Declared| {
        let definition = definition(&declared.request).expect("a good volume");
        Wanted { declared, definition }
    };
    all.into_iter().map(define).collect()
}

/// Returns the report of the volume that this request makes.
fn made(one: &Wanted, state: VolumeState) -> VolumeReport {
    let definition = &one.definition;
    let mut report =
        VolumeReport::empty(definition.name.clone(), state, definition.settings.clone());
    report.cache.path.clone_from(&definition.cache);
    report.origin.path.clone_from(&definition.origin);
    (report.block_size, report.alignment) = (definition.block_size, definition.alignment);
    report
}

fn planned(
    wanted: &[Wanted],
    present: &[VolumeReport],
    prune: bool,
) -> Result<Vec<(String, StepAction)>, ApiError> {
    let steps = plan(Path::new("f"), wanted, present, prune, &|one, other| one == other)?;
    Ok(steps.into_iter().map(|step| (step.volume.to_string(), step.action)).collect())
}

const ONE: &str = "[volumes.v]\ncache = '/c'\norigin = '/o'\nprofile = 'bcache'\nmode = 'wt'\nblock_size = '8K'\n";

#[test]
fn volumes_created_from_the_file_need_no_step() {
    let wanted = wanted(ONE);
    assert_eq!(planned(&wanted, &[], false), Ok(vec![("v".to_owned(), StepAction::Create)]));
    for state in VolumeState::ALL {
        let expected = match state {
            VolumeState::Stopped | VolumeState::Failed => StepAction::Start,
            _ => StepAction::Keep,
        };
        let present = [made(&wanted[0], state)];
        assert_eq!(planned(&wanted, &present, true), Ok(vec![("v".to_owned(), expected)]));
    }
}

#[test]
fn only_what_the_file_decides_is_changed() {
    let wanted = wanted(ONE);
    let mut report = made(&wanted[0], VolumeState::Running);
    let other = Assignments::parse([
        "quiet_hours=01:00-02:00",
        "policy=random",
        "caching=frozen",
        "ram=1G",
    ]);
    other.expect("good").apply(&mut report.settings).expect("they fit");
    assert_eq!(
        planned(&wanted, std::slice::from_ref(&report), false).expect("good")[0].1,
        StepAction::Keep
    );
    let other = Assignments::parse(["mode=wb", "dirty_high=99"]);
    other.expect("good").apply(&mut report.settings).expect("they fit");
    let steps = planned(&wanted, &[report], false).expect("good");
    let [(_, StepAction::Set { changes })] = steps.as_slice() else { panic!("{steps:?}") };
    let text = |change: &SettingChange| format!("{} {} {}", change.setting, change.old, change.new);
    let profile = forebay_admin::PROFILES[1].settings().expect("good").dirty_high;
    assert_eq!(text(&changes[0]), "mode writeback writethrough");
    assert_eq!(text(&changes[1]), format!("dirty_high 99 {profile}"));
    let settings = assignments(changes).expect("values of settings");
    assert_eq!(settings.iter().next(), Some(("mode", "writethrough")));
}

#[test]
fn a_volume_without_a_cache_device_keeps_its_mode() {
    let wanted = wanted("[volumes.v]\norigin = '/o'\nprofile = 'fancycache'\nram = '1G'\n");
    let present = [made(&wanted[0], VolumeState::Running)];
    assert_eq!(planned(&wanted, &present, false).expect("good")[0].1, StepAction::Keep);
}

#[test]
fn volumes_that_are_not_declared_are_stopped_at_most() {
    let known = wanted(ONE);
    let present = [made(&known[0], VolumeState::Running)];
    let step = |action| Ok(vec![("v".to_owned(), action)]);
    assert_eq!(planned(&[], &present, false), step(StepAction::Undeclared));
    assert_eq!(planned(&[], &present, true), step(StepAction::Stop));
    let present = [made(&known[0], VolumeState::Stopped)];
    assert_eq!(planned(&[], &present, true), step(StepAction::Undeclared));
}

#[test]
fn a_volume_may_be_declared_and_not_served() {
    let wanted = wanted(&format!("{ONE}serve = false\n"));
    let step = |action| Ok(vec![("v".to_owned(), action)]);
    assert_eq!(planned(&wanted, &[], false), step(StepAction::Keep));
    assert_eq!(
        planned(&wanted, &[made(&wanted[0], VolumeState::Running)], false),
        step(StepAction::Stop)
    );
    assert_eq!(
        planned(&wanted, &[made(&wanted[0], VolumeState::Stopped)], false),
        step(StepAction::Keep)
    );
}

#[test]
fn stops_and_settings_come_before_creations_and_starts() {
    let text = "[volumes.new]\ncache = '/c'\norigin = '/n'\n[volumes.off]\ncache = '/c'\norigin = '/f'\nidle = '9s'\n\
                [volumes.on]\ncache = '/c'\norigin = '/o'\nidle = '9s'\n";
    let wanted = wanted(text);
    let mut present = [
        made(&wanted[1], VolumeState::Stopped),
        made(&wanted[2], VolumeState::Running),
        made(&wanted[0], VolumeState::Running),
    ];
    present[2].name = "old".parse().expect("valid");
    for report in &mut present {
        report.settings = Default::default();
    }
    let steps = planned(&wanted, &present, true).expect("good");
    let order: Vec<String> =
        steps.iter().map(|(name, action)| format!("{} {name}", action.rank())).collect();
    assert_eq!(order, ["0 old", "1 off", "1 on", "2 new", "3 off"]);
}

#[test]
fn fixed_properties_are_refused_with_their_line() {
    let wanted = wanted(ONE);
    type Change = fn(&mut VolumeReport);
    let changes: [(&str, usize, Change); 4] = [
        ("cache", 2, |report| report.cache.path = "/x".to_owned()),
        ("origin", 3, |report| report.origin.path = "/x".to_owned()),
        ("block_size", 6, |report| report.block_size = 4096),
        ("alignment", 1, |report| report.alignment = 512),
    ];
    for (key, line, change) in changes {
        let mut report = made(&wanted[0], VolumeState::Running);
        change(&mut report);
        let result = planned(&wanted, &[report], false);
        if key == "alignment" {
            // The file does not say anything about it.
            assert_eq!(result.expect("good")[0].1, StepAction::Keep);
            continue;
        }
        let error = result.expect_err(key);
        assert_eq!((error.kind, error.field.as_deref()), (ErrorKind::Refused, Some(key)));
        assert!(error.message.starts_with(&format!("f: line {line}: {key}: ")), "{error}");
    }
}

#[test]
fn volumes_of_one_cache_agree_about_what_they_share() {
    let text = |first: &str, second: &str, cache: &str| {
        format!(
            "[volumes.a]\ncache = '/c'\norigin = '/a'\n{first}\n[volumes.b]\ncache = '{cache}'\norigin = '/b'\n{second}\n"
        )
    };
    let check = |text: &str| {
        check_shared(Path::new("f"), &wanted(text), &|one, other| one == other)
            .map_err(|error| error.message)
    };
    let (lru, fifo) = ("policy = 'lru'", "policy = 'fifo'");
    assert_eq!(check(&text(lru, lru, "/c")), Ok(()));
    assert_eq!(check(&text(lru, "", "/c")), Ok(()));
    assert_eq!(check(&text(lru, fifo, "/d")), Ok(()));
    assert_eq!(check(&text("idle = '1s'", "idle = '2s'", "/c")), Ok(()));
    let error = check(&text(lru, fifo, "/c")).expect_err("they share it");
    assert!(error.starts_with("f: line 8: policy: volume 'a'"), "{error}");
}
