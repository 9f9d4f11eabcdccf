//! Volumes with devices, over a fake host and a fake front end.

use forebay_admin::StopRequest as Stopping;
use forebay_admin::{
    Assignments, CreateRequest, DeleteRequest, OperationId, SetRequest, StartRequest, VolumeState,
};

use super::*;
use crate::host_api::Count;
use crate::signals::StopRequest;
use crate::state::State;
use crate::testing::{FakeDevices, FakeFrontEnd, FakeHost, deleting};
use crate::volumes::Programs;
use forebay_testkit::TempDir;

struct Daemon {
    dir: TempDir,
    host: Arc<FakeHost>,
    devices: Arc<FakeDevices>,
    /// A better front end, which this host does not support unless a test says so.
    ublk: Arc<FakeDevices>,
    volumes: Arc<Volumes>,
}

fn name() -> VolumeName {
    "v".parse().expect("valid")
}

impl Daemon {
    fn new() -> Self {
        let dir = TempDir::new("exporting");
        for file in ["cache", "origin"] {
            std::fs::write(dir.path().join(file), [0; 512]).expect("writable");
        }
        Self::open(dir)
    }

    fn open(dir: TempDir) -> Self {
        let host = Arc::new(FakeHost::default());
        let devices = Arc::new(FakeDevices::new(FrontEndKind::Fuse));
        let ublk = Arc::new(FakeDevices::new(FrontEndKind::Ublk));
        ublk.fails(Some("check"));
        let state = State::open(&dir.path().join("state")).expect("free");
        let front_ends: Vec<Arc<dyn FrontEnd>> =
            vec![Arc::new(FakeFrontEnd), devices.clone(), ublk.clone()];
        let volumes = Volumes::new(host.clone(), state, front_ends, Programs::default());
        Daemon { dir, host, devices, ublk, volumes }
    }

    fn fails(&self, what: Option<&'static str>) {
        self.devices.fails(what);
    }

    fn end(&self, begun: Result<OperationId, ApiError>) -> Result<(), ApiError> {
        let ended = self.volumes.operations().wait(begun?, None).expect("just started");
        ended.error.map_or(Ok(()), Err)
    }

    fn create(&self, export: &str) -> Result<(), ApiError> {
        let path = |file: &str| self.dir.path().join(file).display().to_string();
        let mut settings = Assignments::default();
        settings.push("export", export).expect("valid");
        self.end(self.volumes.create(&CreateRequest {
            name: name(),
            cache: Some(path("cache")),
            origin: path("origin"),
            profile: None,
            block_size: None,
            alignment: 0,
            force: false,
            adopt: false,
            stored_as: None,
            settings,
        }))
    }

    fn set(&self, text: &str) -> Result<(), ApiError> {
        let settings = Assignments::parse(text.split(' ')).expect("valid");
        self.end(self.volumes.set(&name(), SetRequest { settings }))
    }

    /// Returns the device, the setting, and the reason why there is no device.
    fn export(&self) -> (Option<String>, String, Option<String>) {
        let report = self.volumes.show(&name(), Count::Fresh).expect("known");
        (report.export.device, report.settings.export.to_string(), report.export.error)
    }

    fn state(&self) -> VolumeState {
        self.volumes.show(&name(), Count::Fresh).expect("known").state
    }
}

const DEVICE: &str = "/dev/fake/v";

#[test]
fn a_device_lives_as_long_as_its_volume_is_served_and_has_it() {
    let daemon = Daemon::new();
    daemon.create("nbd").expect("good");
    assert_eq!(daemon.export(), (None, "nbd".into(), None));
    let there = (Some(DEVICE.to_owned()), "nbd,fuse".to_owned(), None);
    daemon.set("export=fuse").expect("good");
    assert_eq!(daemon.export(), there);
    daemon.set("idle=5s").expect("good");
    assert_eq!(daemon.export(), there);
    daemon.end(daemon.volumes.stop(&name(), Stopping::default())).expect("good");
    assert_eq!(daemon.export().0, None);
    assert!(daemon.devices.published.lock().is_empty());
    daemon.end(daemon.volumes.start(&name(), StartRequest::default())).expect("good");
    assert_eq!(daemon.export(), there);
    daemon.set("export=nbd").expect("good");
    assert_eq!(daemon.export(), (None, "nbd".into(), None));
    daemon.set("export=nbd,fuse").expect("good");
    daemon.end(daemon.volumes.delete(&name(), deleting(false))).expect("good");
    assert!(daemon.devices.published.lock().is_empty());
}

#[test]
fn a_volume_that_a_deletion_serves_again_late_is_exported_again() {
    let daemon = Daemon::new();
    daemon.create("fuse").expect("good");
    let definition = daemon.volumes.state.volume(&name()).expect("known").volume;
    // The deletion is given up while the volume's last requests wait for a device.
    daemon.host.failing.lock().push("delete v".to_owned());
    daemon.host.await_device(&definition, true);
    daemon.end(daemon.volumes.delete(&name(), deleting(false))).expect_err("told to fail");
    let claim = daemon.volumes.claims.stored("delete", &definition);
    let stop = daemon.end(daemon.volumes.stop(&name(), Stopping::default()));
    assert_eq!(stop.expect_err("it may be served again").kind, ErrorKind::Busy);
    assert!(daemon.volumes.state.volume(&name()).expect("known").started);
    daemon.volumes.mend_exports();
    assert!(daemon.devices.published.lock().is_empty(), "it is not served yet");
    // The device answers, and the deletion fails.
    daemon.host.await_device(&definition, false);
    drop(claim);
    daemon.volumes.mend_exports();
    while daemon.volumes.operations().of_volume(&name()).is_some() {
        std::thread::yield_now();
    }
    assert_eq!(daemon.export().0.as_deref(), Some(DEVICE));
    daemon.end(daemon.volumes.stop(&name(), Stopping::default())).expect("nothing uses it");
}

#[test]
fn a_device_in_use_keeps_its_volume_as_it_is() {
    let daemon = Daemon::new();
    daemon.create("fuse").expect("good");
    daemon.fails(Some("withdraw"));
    for (verb, refused) in [
        ("stop", daemon.end(daemon.volumes.stop(&name(), Stopping::default()))),
        ("delete", daemon.end(daemon.volumes.delete(&name(), deleting(false)))),
        ("delete", daemon.end(daemon.volumes.delete(&name(), deleting(true)))),
        ("stop", daemon.set("export=nbd idle=7s")),
    ] {
        let refused = refused.expect_err("in use");
        assert_eq!(refused.kind, ErrorKind::Refused);
        let way_out = format!("end that first, or 'forebay {verb} --force v' cuts it off");
        assert!(refused.message.ends_with(&way_out), "{}", refused.message);
        assert_eq!(daemon.state(), VolumeState::Running);
        assert_eq!(daemon.export(), (Some(DEVICE.into()), "nbd,fuse".into(), None));
    }
    let idle = daemon.volumes.show(&name(), Count::Fresh).expect("known").settings.idle;
    assert_eq!(idle, Duration::from_secs(10));
    daemon
        .end(daemon.volumes.stop(&name(), Stopping { force: true, abandon: false }))
        .expect("by force");
    assert_eq!(daemon.state(), VolumeState::Stopped);
    daemon.end(daemon.volumes.start(&name(), StartRequest::default())).expect("good");
    let by_force = DeleteRequest { force: true, ..DeleteRequest::default() };
    daemon.end(daemon.volumes.delete(&name(), by_force)).expect("by force");
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
}

#[test]
fn clients_that_a_change_would_exclude_keep_the_volume_as_it_is() {
    let daemon = Daemon::new();
    daemon.create("fuse").expect("good");
    let nbd = || {
        let published = *daemon.devices.nbd.lock();
        let report = daemon.volumes.show(&name(), Count::Fresh).expect("known");
        (published, report.settings.nbd, report.settings.idle)
    };
    let idle = Duration::from_secs(10);
    assert_eq!(nbd(), (Some(NbdReach::Local), NbdReach::Local, idle), "of a new volume");
    daemon.set("nbd=all").expect("good");
    assert_eq!(nbd(), (Some(NbdReach::All), NbdReach::All, idle));
    daemon.fails(Some("narrow"));
    let before = daemon.host.asked.lock().len();
    let refused = daemon.set("nbd=off idle=7s").expect_err("in use");
    let way_out = "told to fail: narrow; end that first, or 'forebay stop --force v' cuts it off";
    assert_eq!((refused.kind, &*refused.message), (ErrorKind::Refused, way_out));
    assert_eq!(nbd(), (Some(NbdReach::All), NbdReach::All, idle));
    assert_eq!(daemon.host.asked.lock().len(), before, "nothing was set");
    daemon.fails(None);
    daemon.host.failing.lock().push("set v".to_owned());
    daemon.set("nbd=off").expect_err("told to fail");
    assert_eq!(nbd(), (Some(NbdReach::All), NbdReach::All, idle), "it is exported as before");
    daemon.host.failing.lock().clear();
    daemon.set("nbd=off").expect("good");
    assert_eq!(nbd(), (Some(NbdReach::Off), NbdReach::Off, idle));
    let Daemon { dir, volumes, .. } = daemon;
    drop(volumes);
    let daemon = Daemon::open(dir);
    daemon.volumes.restore(&StopRequest::default(), Duration::ZERO);
    assert_eq!(*daemon.devices.nbd.lock(), Some(NbdReach::Off));
}

#[test]
fn a_volume_stored_without_the_nbd_setting_stays_open_to_all() {
    let daemon = Daemon::new();
    daemon.create("fuse").expect("good");
    let Daemon { dir, volumes, .. } = daemon;
    drop(volumes);
    let file = dir.path().join("state/state.json");
    let text = std::fs::read_to_string(&file).expect("there");
    let mut state: serde_json::Value = serde_json::from_str(&text).expect("JSON");
    let settings = &mut state["volumes"][0]["volume"]["settings"];
    assert_eq!(settings.as_object_mut().expect("an object").remove("nbd"), Some("local".into()));
    std::fs::write(&file, state.to_string()).expect("writable");
    let daemon = Daemon::open(dir);
    daemon.volumes.restore(&StopRequest::default(), Duration::ZERO);
    assert_eq!(*daemon.devices.nbd.lock(), Some(NbdReach::All));
}

#[test]
fn impossible_exports_are_refused_before_anything_changes() {
    let daemon = Daemon::new();
    daemon.fails(Some("check"));
    assert_eq!(daemon.create("fuse").expect_err("no privileges").kind, ErrorKind::Invalid);
    assert!(daemon.host.asked.lock().is_empty());
    daemon.create("nbd").expect("good");
    assert_eq!(daemon.set("export=fuse").expect_err("no privileges").kind, ErrorKind::Invalid);
    assert_eq!(daemon.export(), (None, "nbd".into(), None));
}

#[test]
fn a_failed_export_leaves_no_new_volume_and_no_change() {
    let daemon = Daemon::new();
    daemon.fails(Some("publish"));
    daemon.create("fuse").expect_err("told to fail");
    assert!(daemon.volumes.list(Count::Fresh).is_empty());
    daemon.create("nbd").expect("its name and devices are free");
    daemon.set("export=fuse idle=7s").expect_err("told to fail");
    assert_eq!(daemon.export(), (None, "nbd".into(), None));
    assert_eq!(daemon.state(), VolumeState::Running);
}

#[test]
fn a_volume_whose_export_fails_at_start_is_served_with_a_reason() {
    let daemon = Daemon::new();
    daemon.create("fuse").expect("good");
    let Daemon { dir, volumes, .. } = daemon;
    drop(volumes);
    let daemon = Daemon::open(dir);
    daemon.fails(Some("publish"));
    assert_eq!(daemon.volumes.restore(&StopRequest::default(), Duration::ZERO).served, 1);
    let failed = (None, "nbd,fuse".to_owned(), Some("told to fail: publish".to_owned()));
    assert_eq!(daemon.export(), failed);
    // No other setting depends on it.
    daemon.set("idle=7s").expect("good");
    daemon.fails(None);
    daemon.end(daemon.volumes.start(&name(), StartRequest::default())).expect("a start exports it");
    assert_eq!(daemon.export(), (Some(DEVICE.into()), "nbd,fuse".into(), None));
    daemon.volumes.shut_down().expect("good");
    assert!(daemon.devices.published.lock().is_empty());
}

#[test]
fn export_auto_takes_the_best_device_and_keeps_it() {
    let daemon = Daemon::new();
    let kinds = || (daemon.ublk.has("v"), daemon.devices.has("v"));
    daemon.create("auto").expect("good");
    assert_eq!(kinds(), (false, true));
    assert_eq!(daemon.export(), (Some(DEVICE.into()), "nbd,auto".into(), None));
    // A module that is loaded later is used from the next start on, not under a mounted device.
    daemon.ublk.fails(None);
    daemon.set("idle=7s").expect("good");
    daemon.end(daemon.volumes.start(&name(), StartRequest::default())).expect("served already");
    assert_eq!(kinds(), (false, true));
    daemon.end(daemon.volumes.stop(&name(), Stopping::default())).expect("good");
    daemon.end(daemon.volumes.start(&name(), StartRequest::default())).expect("good");
    assert_eq!(kinds(), (true, false));
    // A listed device is enough, and stays when it is no longer listed.
    daemon.set("export=auto,fuse").expect("good");
    assert_eq!(kinds(), (false, true));
    daemon.set("export=auto").expect("good");
    assert_eq!(kinds(), (false, true));
    daemon.fails(Some("withdraw"));
    daemon.set("export=auto,ublk").expect_err("the other one is in use");
    assert_eq!(kinds(), (false, true));
    assert_eq!(daemon.export().1, "nbd,auto");
    daemon.fails(None);
    daemon.set("export=nbd").expect("good");
    assert_eq!(kinds(), (false, false));
}

#[test]
fn auto_is_nbd_alone_where_no_device_can_be_made() {
    let daemon = Daemon::new();
    daemon.fails(Some("check"));
    daemon.create("auto").expect("good");
    assert_eq!(daemon.export(), (None, "nbd,auto".into(), None));
}

#[test]
fn a_hand_over_is_refused_that_would_cut_off_users_of_a_device() {
    let daemon = Daemon::new();
    daemon.create("fuse").expect("good");
    daemon.volumes.note_ready();
    let ask = || daemon.volumes.ask_hand_over("/does/not/exist".into()).expect_err("no program");
    daemon.fails(Some("hand over"));
    let refused = ask();
    let way_out =
        "told to fail: hand over; end that first, or 'forebay stop --force v' cuts it off";
    assert_eq!((refused.kind, &*refused.message), (ErrorKind::Refused, way_out));
    assert_eq!(daemon.export(), (Some(DEVICE.into()), "nbd,fuse".into(), None));
    daemon.fails(None);
    assert!(ask().message.contains("/does/not/exist"), "the program is asked only then");
}

#[test]
fn a_refusal_by_one_front_end_leaves_the_exports_of_the_others() {
    let daemon = Daemon::new();
    daemon.ublk.fails(None);
    daemon.create("fuse,ublk").expect("good");
    daemon.ublk.fails(Some("withdraw"));
    for refused in [
        daemon.end(daemon.volumes.stop(&name(), Stopping::default())),
        daemon.end(daemon.volumes.delete(&name(), deleting(false))),
        daemon.set("export=nbd"),
    ] {
        assert_eq!(refused.expect_err("in use").kind, ErrorKind::Refused);
        assert_eq!((daemon.devices.has("v"), daemon.ublk.has("v")), (true, true));
    }
}
