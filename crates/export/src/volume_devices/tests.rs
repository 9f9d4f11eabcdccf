use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use forebay_engine::ExportErrorKind;

use super::*;

/// The devices of a kernel, which outlive a daemon: marks and numbers.
#[derive(Default)]
struct Kernel {
    devices: Mutex<BTreeMap<u64, u32>>,
    numbers: AtomicU32,
    /// Devices are not removed.
    stuck: AtomicBool,
    /// Devices are added, but cannot be served.
    broken: AtomicBool,
}

impl Kernel {
    fn numbers(&self) -> Vec<u32> {
        self.devices.lock().values().copied().collect()
    }
}

struct Fake<const ASIDE: bool>(Arc<Kernel>);

impl<const ASIDE: bool> Driver for Fake<ASIDE> {
    const KIND: FrontEndKind = FrontEndKind::Ublk;
    const REMOVED: &'static str = "removed";
    const SETS_ASIDE: bool = ASIDE;

    type Facts = ();
    type Own = ();

    fn join(&self, _: &Rc<Lane>, _: &Rc<Ring>, _: Rc<dyn Exports>) -> Box<dyn LaneFrontEnd> {
        unreachable!("there is no lane")
    }

    fn check(&self) -> Result<(), ExportError> {
        Ok(())
    }

    fn path(&self, number: u32) -> PathBuf {
        format!("/dev/forebay-test{number}").into()
    }

    fn find(&self, mark: u64) -> Option<u32> {
        self.0.devices.lock().get(&mark).copied()
    }

    fn is_lost(&self, id: DeviceId, (): &()) -> bool {
        self.find(id.mark).is_none()
    }

    fn prepare(&self, _: &str) -> Result<(), ExportError> {
        Ok(())
    }

    fn make(&self, of: &Publication<'_>, (): &()) -> Result<Made<()>, ExportError> {
        let number = self.0.numbers.fetch_add(1, Ordering::Relaxed);
        of.name(&self.path(number));
        self.0.devices.lock().insert(of.note.mark, number);
        match self.0.broken.load(Ordering::Relaxed) {
            true => Err(failed("a step", Errno::IO.into())),
            false => Ok(Made { number, survives: of.note.survives(), own: () }),
        }
    }

    fn revive(
        &self,
        of: &Publication<'_>,
        number: u32,
        (): &(),
    ) -> Result<Option<Made<()>>, ExportError> {
        of.name(&self.path(number));
        let stuck = self.0.stuck.load(Ordering::Relaxed);
        Ok((!stuck).then_some(Made { number, survives: true, own: () }))
    }

    fn before_cut(&self, _: &str, _: DeviceId, _: &Users, _: bool) {}

    fn remove(&self, id: DeviceId, force: bool) -> io::Result<()> {
        if self.0.stuck.load(Ordering::Relaxed) {
            return Err(if force { Errno::TIMEDOUT } else { Errno::BUSY }.into());
        }
        self.0.devices.lock().remove(&id.mark).map(drop).ok_or(Errno::NODEV.into())
    }

    fn is_removed(&self, id: DeviceId, force: bool) -> bool {
        force && self.remove(id, true).is_ok()
    }
}

struct World {
    dir: tempfile::TempDir,
    kernel: Arc<Kernel>,
}

impl World {
    fn new() -> Self {
        World { dir: tempfile::tempdir().expect("a directory"), kernel: Arc::default() }
    }

    /// Starts a daemon that serves volumes with the given identity; it does not last if the text is
    /// empty.
    fn daemon<const ASIDE: bool>(&self, identity: &str, wants: bool) -> VolumeDevices<Fake<ASIDE>> {
        let dirs = [self.dir.path().join("notes"), self.dir.path().join("names")];
        let told = VolumeIdentity { text: identity.to_owned(), lasts: !identity.is_empty() };
        let identify = Box::new(move |_: &str| Some(told.clone()));
        let driver = Fake(self.kernel.clone());
        VolumeDevices::claim(driver, (&dirs[0], &dirs[1]), move |_| wants, identify)
    }

    fn named(&self) -> usize {
        std::fs::read_dir(self.dir.path().join("names")).map_or(0, Iterator::count)
    }
}

fn publish<D: Driver>(daemon: &VolumeDevices<D>) -> Result<PathBuf, ExportError> {
    daemon.publish("v", &Settings::default())?;
    Ok(daemon.device("v").expect("published").path)
}

#[test]
fn a_device_comes_and_goes_with_its_export() {
    let world = World::new();
    let daemon = world.daemon::<true>("a", true);
    assert!(!daemon.holds("v"));
    let path = publish(&daemon).expect("made");
    assert_eq!(publish(&daemon).expect("there"), path);
    assert_eq!((world.kernel.numbers(), world.named()), (vec![0], 1));
    daemon.withdraw("v", false).expect("unused");
    daemon.withdraw("v", false).expect("nothing to do");
    assert!(!daemon.holds("v") && daemon.device("v").is_none());
    assert_eq!((world.kernel.numbers().len(), world.named()), (0, 0));
}

#[test]
fn the_next_daemon_serves_the_device_of_the_same_volume() {
    let world = World::new();
    let first = publish(&world.daemon::<true>("a", true)).expect("made");
    let next = world.daemon::<true>("a", true);
    assert!(next.holds("v") && next.device("v").is_none());
    assert_eq!(publish(&next).expect("revived"), first);
    let another = world.daemon::<true>("b", true);
    assert_ne!(publish(&another).expect("made"), first);
    assert_eq!(world.kernel.numbers(), [1]);
    let unwanted = world.daemon::<true>("b", false);
    assert!(!unwanted.holds("v"));
    assert_eq!((world.kernel.numbers().len(), world.named()), (0, 0));
}

#[test]
fn a_device_that_does_not_survive_ends_with_the_daemon() {
    let world = World::new();
    let daemon = world.daemon::<true>("", true);
    publish(&daemon).expect("made");
    daemon.check_hand_over("v").expect("unused");
    daemon.leave("v").expect("removed");
    assert_eq!(world.kernel.numbers().len(), 0);
}

#[test]
fn a_device_that_is_stuck_makes_room_if_notes_are_set_aside() {
    let world = World::new();
    let daemon = world.daemon::<true>("a", true);
    publish(&daemon).expect("made");
    world.kernel.stuck.store(true, Ordering::Relaxed);
    let error = daemon.withdraw("v", false).expect_err("it is held");
    assert_eq!(error.kind, ExportErrorKind::InUse);
    daemon.withdraw("v", true).expect("forced");
    assert!(!daemon.holds("v"));
    publish(&daemon).expect("another one");
    assert_eq!(world.kernel.numbers().len(), 2);
    world.kernel.stuck.store(false, Ordering::Relaxed);
    daemon.withdraw("v", true).expect("both");
    assert_eq!((world.kernel.numbers().len(), world.named()), (0, 0));
}

#[test]
fn the_note_of_a_stuck_device_stays_otherwise() {
    let world = World::new();
    publish(&world.daemon::<false>("a", true)).expect("made");
    world.kernel.stuck.store(true, Ordering::Relaxed);
    let next = world.daemon::<false>("b", false);
    assert!(next.holds("v"));
    world.kernel.stuck.store(false, Ordering::Relaxed);
    next.withdraw("v", true).expect("removed");
    assert!(!next.holds("v"));
    assert_eq!(world.kernel.numbers().len(), 0);
}

#[test]
fn a_device_of_no_use_is_replaced() {
    let world = World::new();
    let first = publish(&world.daemon::<true>("a", true)).expect("made");
    world.kernel.stuck.store(true, Ordering::Relaxed);
    let next = world.daemon::<true>("a", true);
    assert_ne!(publish(&next).expect("another one"), first);
    assert_eq!((world.kernel.numbers().len(), world.named()), (2, 1));
}

#[test]
fn a_lost_device_is_reported_and_replaced() {
    let world = World::new();
    let daemon = world.daemon::<false>("a", true);
    let first = publish(&daemon).expect("made");
    assert!(daemon.lost().is_empty());
    world.kernel.devices.lock().clear();
    assert_eq!((daemon.lost(), world.named()), (vec!["v".to_owned()], 0));
    assert_ne!(publish(&daemon).expect("another one"), first);
    assert!(daemon.lost().is_empty());
}

#[test]
fn nothing_is_left_of_a_device_that_cannot_be_made() {
    let world = World::new();
    world.kernel.broken.store(true, Ordering::Relaxed);
    let daemon = world.daemon::<true>("a", true);
    publish(&daemon).expect_err("a step fails");
    assert!(!daemon.holds("v"));
    assert_eq!((world.kernel.numbers().len(), world.named()), (0, 0));
}
