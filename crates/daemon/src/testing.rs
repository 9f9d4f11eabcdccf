//! Shared by the daemon's own tests: temporary directories, and a host and a front end without a
//! data path.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use forebay_admin::curve::{CurveReport, CurveRow, Hits};
use forebay_admin::lost::LostReport;
use forebay_admin::report::{BlockReport, RamReport, WaitReport};
use forebay_admin::{
    ApiError, ByteRange, DeleteRequest, DropRequest, ErrorKind, PinReport, Settings, StartRequest,
    Unit, VolumeName, VolumeReport, VolumeState,
};
use forebay_core::{FrontEndKind, NbdReach};
use forebay_device::ring::Ring;
use forebay_engine::{
    ExportError, ExportErrorKind, ExportedDevice, Exports, FrontEnd, HandedOver, LaneFrontEnd,
    Recording,
};
use forebay_format::Uuid;
use forebay_lane::{Lane, MemoryBudget};
use forebay_threads::Mutex;

use super::hand_over::Items;
use super::host_api::{
    BlockTask, CachedBlocks, Closing, Condition, Copied, Count, Creation, Definition, Existing,
    Making, Remains, Reports, Serving, StartError, VolumeUuids,
};
use super::work::Work;
use crate::curve::{Sizes, ram_row};

/// A front end that has an address and serves no client.
pub(crate) struct FakeFrontEnd;

impl FrontEnd for FakeFrontEnd {
    fn kind(&self) -> Option<FrontEndKind> {
        Some(FrontEndKind::Nbd)
    }

    fn addresses(&self) -> Vec<String> {
        vec!["fake".into()]
    }

    fn describe(&self, volume: &str, _: NbdReach) -> Vec<String> {
        vec![format!("fake://{volume}")]
    }

    fn serve(&self, _: &Rc<Lane>, _: &Rc<Ring>, _: Rc<dyn Exports>) -> Box<dyn LaneFrontEnd> {
        unreachable!("no test has lanes")
    }

    fn release(&self) {}
}

/// A request to delete a volume.
pub(crate) fn deleting(discard_dirty: bool) -> DeleteRequest {
    DeleteRequest { discard_dirty, ..DeleteRequest::default() }
}

/// A front end that makes devices, and fails at configured steps.
pub(crate) struct FakeDevices {
    kind: FrontEndKind,
    /// The volumes that have a device.
    pub(crate) published: Mutex<BTreeSet<String>>,
    /// The setting `nbd` of the volume that was published last.
    pub(crate) nbd: Mutex<Option<NbdReach>>,
    /// The step that fails: `check`, `publish`, `narrow`, `hand over`, or `withdraw` without force.
    pub(crate) failing: Mutex<Option<&'static str>>,
}

impl FakeDevices {
    pub(crate) fn new(kind: FrontEndKind) -> Self {
        let (published, nbd, failing) = Default::default();
        FakeDevices { kind, published, nbd, failing }
    }

    pub(crate) fn fails(&self, what: Option<&'static str>) {
        *self.failing.lock() = what;
    }

    pub(crate) fn has(&self, volume: &str) -> bool {
        self.published.lock().contains(volume)
    }

    fn answer(&self, what: &str) -> Result<(), ExportError> {
        if *self.failing.lock() != Some(what) {
            return Ok(());
        }
        let kind = match what {
            "check" => ExportErrorKind::NotPermitted,
            "withdraw" | "narrow" | "hand over" => ExportErrorKind::InUse,
            _ => ExportErrorKind::Failed,
        };
        Err(ExportError { kind, message: format!("told to fail: {what}"), cause: None })
    }
}

impl FrontEnd for FakeDevices {
    fn kind(&self) -> Option<FrontEndKind> {
        Some(self.kind)
    }

    fn serve(&self, _: &Rc<Lane>, _: &Rc<Ring>, _: Rc<dyn Exports>) -> Box<dyn LaneFrontEnd> {
        unreachable!("no test has lanes")
    }

    fn check(&self) -> Result<(), ExportError> {
        self.answer("check")
    }

    fn publish(&self, volume: &str, settings: &Settings) -> Result<(), ExportError> {
        self.answer("publish")?;
        self.published.lock().insert(volume.to_owned());
        *self.nbd.lock() = Some(settings.nbd);
        Ok(())
    }

    fn narrow(&self, _: &str, _: &Settings) -> Result<(), ExportError> {
        self.answer("narrow")
    }

    fn withdraw(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        let mut published = self.published.lock();
        if published.contains(volume) && !force {
            self.answer("withdraw")?;
        }
        published.remove(volume);
        Ok(())
    }

    fn check_hand_over(&self, volume: &str) -> Result<(), ExportError> {
        let published = self.published.lock().contains(volume);
        if published { self.answer("hand over") } else { Ok(()) }
    }

    fn user_of<'a>(&self, item: &'a HandedOver) -> Option<&'a str> {
        item.labelled("client")?.first().map(String::as_str)
    }

    fn device(&self, volume: &str) -> Option<ExportedDevice> {
        let published = self.published.lock();
        let path = PathBuf::from("/dev/fake").join(volume);
        published.contains(volume).then_some(ExportedDevice { path, link: None })
    }

    fn release(&self) {}
}

/// Size of the origins of a [`FakeHost`], in bytes.
pub(crate) const FAKE_SIZE: u64 = 123 << 20;

/// The cache of every volume of a [`FakeHost`].
pub(crate) const FAKE_CACHE: Uuid = Uuid::from_u128(7);

/// Called on each request to the host.
type Hook = Box<dyn Fn(&str) + Send>;

/// A host that records its requests, and fails as configured.
#[derive(Default)]
pub(crate) struct FakeHost {
    running: Mutex<BTreeMap<VolumeName, Definition>>,
    /// Volumes that wait for a device.
    hung: Mutex<BTreeMap<VolumeName, Settings>>,
    /// Every request, like `create v`.
    pub(crate) asked: Mutex<Vec<String>>,
    /// Requests that fail, as worded in `asked`. With the prefix `hang`, they run until they are
    /// cancelled; with `late`, they have passed their commit point and wait for a device; with
    /// `older` or `unknown`, a start fails with that error, once; with `refuse`, a stop fails and
    /// the volume stays served.
    pub(crate) failing: Mutex<Vec<String>>,
    /// Requests in progress, with their volumes and their work.
    present: Mutex<Vec<(VolumeName, String, Arc<Work>)>>,
    /// Requests that arrived during another one for the same volume.
    pub(crate) overlaps: Mutex<Vec<String>>,
    /// The blocks and the RAM tier that its volumes report, and how many blocks a drop discards.
    pub(crate) contents: Mutex<(BlockReport, Option<RamReport>, u64)>,
    dropped: Mutex<u64>,
    /// Called with each request.
    pub(crate) hook: Mutex<Option<Hook>>,
    memory: Arc<MemoryBudget>,
}

/// A request to a host that is in progress.
struct Present<'a> {
    host: &'a FakeHost,
    work: Arc<Work>,
}

impl Drop for Present<'_> {
    fn drop(&mut self) {
        self.host.present.lock().retain(|(_, _, work)| !Arc::ptr_eq(work, &self.work));
    }
}

impl FakeHost {
    fn fails(&self, what: &str) -> bool {
        self.failing.lock().iter().any(|failing| failing == what)
    }

    fn answer(&self, what: String) -> Result<(), ApiError> {
        let fails = self.fails(&what);
        self.asked.lock().push(what);
        if fails { Err(ApiError::new(ErrorKind::Failed, "told to fail")) } else { Ok(()) }
    }

    fn ask(
        &self,
        verb: &str,
        volume: &VolumeName,
        how: &str,
        work: &Arc<Work>,
    ) -> Result<(), ApiError> {
        work.report(1, 1, Unit::Steps);
        let what = format!("{verb} {volume}{how}");
        let _present = self.enter(volume, &what, work);
        if let Some(hook) = &*self.hook.lock() {
            hook(&what);
        }
        while self.fails(&format!("late {what}")) {
            if work.commit().is_err() {
                return Err(ApiError::new(ErrorKind::Cancelled, "cancelled"));
            }
            work.is_late(ApiError::new(ErrorKind::UnderWay, "it waits for /dev/hung"));
            forebay_threads::yield_now();
        }
        let hangs = || self.fails(&format!("hang {what}"));
        let has_hung = hangs();
        while hangs() {
            self.hung.lock().insert(volume.clone(), Settings::default());
            if work.is_cancelled() {
                self.hung.lock().remove(volume);
                return Err(ApiError::new(ErrorKind::Cancelled, "given up"));
            }
            forebay_threads::yield_now();
        }
        if has_hung {
            self.hung.lock().remove(volume);
        }
        self.answer(what)
    }

    /// Notes a request, until the result is dropped.
    fn enter<'a>(&'a self, volume: &VolumeName, what: &str, work: &Arc<Work>) -> Present<'a> {
        let mut present = self.present.lock();
        for (_, other, at_work) in present.iter().filter(|(name, ..)| name == volume) {
            // The deletion of a volume must not wait for devices; a start that it overtook deletes
            // it as well.
            let goes_beside =
                at_work.late().is_some() || (what == other && what.ends_with("discard"));
            if !goes_beside {
                self.overlaps.lock().push(format!("{what} during {other}"));
            }
        }
        present.push((volume.clone(), what.to_owned(), work.clone()));
        Present { host: self, work: work.clone() }
    }

    /// Makes a served volume wait for a device, or serves it again.
    pub(crate) fn await_device(&self, volume: &Definition, waits: bool) {
        let mut hung = self.hung.lock();
        match waits {
            true => hung.insert(volume.name.clone(), volume.settings.clone()),
            false => hung.remove(&volume.name),
        };
    }

    fn serve(&self, volume: &Definition) {
        self.running.lock().insert(volume.name.clone(), volume.clone());
    }
}

impl Reports for FakeHost {
    fn lanes(&self) -> u32 {
        1
    }

    fn pulse(&self, _patience: std::time::Duration) -> Result<(), ApiError> {
        Ok(())
    }

    fn memory(&self) -> &Arc<MemoryBudget> {
        &self.memory
    }

    fn report(&self, name: &VolumeName, _: Count) -> Option<VolumeReport> {
        if let Some(settings) = self.hung.lock().get(name) {
            let mut report =
                VolumeReport::empty(name.clone(), VolumeState::Waiting, settings.clone());
            let device = "/dev/hung".to_owned();
            report.waiting_for = Some(WaitReport { device, seconds: 60, cause: None });
            return Some(report);
        }
        let volume = self.running.lock().get(name)?.clone();
        let mut report = VolumeReport::empty(name.clone(), VolumeState::Running, volume.settings);
        report.origin.size = FAKE_SIZE;
        (report.blocks, report.ram, _) = *self.contents.lock();
        report.why.invalidated.dropped = *self.dropped.lock();
        Some(report)
    }

    fn condition(&self, name: &VolumeName) -> Option<Condition> {
        self.report(name, Count::Known).map(|report| Condition::of(report.state))
    }

    fn identity(&self, name: &VolumeName) -> Option<VolumeUuids> {
        let volume = self.running.lock().get(name)?.uuid?;
        Some(VolumeUuids { volume, cache: FAKE_CACHE })
    }

    fn told_apart(&self, name: &VolumeName) -> Option<forebay_export::VolumeIdentity> {
        self.identity(name).map(VolumeUuids::told_apart)
    }

    fn note_positions(&self) {}

    fn lost(&self, name: &VolumeName) -> LostReport {
        let ranges = vec![ByteRange { offset: 4096, len: 8192 }];
        LostReport { volume: name.clone(), known: true, exact: true, bytes: 8192, ranges }
    }

    fn curve(&self, name: &VolumeName, sizes: &Sizes) -> Result<CurveReport, ApiError> {
        if !self.running.lock().contains_key(name) {
            return Err(ApiError::new(ErrorKind::Refused, "not served"));
        }
        let row = |bytes| CurveRow { bytes, reads: None, all: Hits { share: 0.25, error: 0.125 } };
        Ok(CurveReport {
            volume: name.clone(),
            block_size: 4096,
            accesses: 1000,
            reads: 0,
            footprint: FAKE_SIZE,
            one_of: 16,
            sampled_blocks: 10,
            state_bytes: 1 << 20,
            present: row(1 << 30),
            rotational: Some(true),
            what_if: None,
            ram: None,
            ram_rows: sizes.ram.iter().map(|bytes| ram_row(*bytes, 1 << 30, &row)).collect(),
            rows: sizes.cache.iter().copied().map(row).collect(),
            curve: vec![row(4096), row(FAKE_SIZE)],
        })
    }

    fn record(&self, _: &VolumeName) -> Result<Recording, ApiError> {
        Err(ApiError::new(ErrorKind::Refused, "not served"))
    }
}

struct FakeCreation<'a> {
    host: &'a FakeHost,
    volume: Definition,
    existing: Existing,
    work: Arc<Work>,
}

impl Creation for FakeCreation<'_> {
    fn create(self: Box<Self>) -> Result<(), ApiError> {
        let how = match self.existing {
            Existing::Spare => "",
            Existing::Join => " join",
            Existing::Overwrite => " force",
        };
        self.host.ask("create", &self.volume.name, how, &self.work)?;
        self.host.serve(&self.volume);
        Ok(())
    }
}

impl Making for FakeHost {
    fn begin_creation<'a>(
        &'a self,
        volume: &Definition,
        existing: Existing,
        _volumes: &[Definition],
        work: &Arc<Work>,
    ) -> Result<Box<dyn Creation + 'a>, ApiError> {
        if let Some(hook) = &*self.hook.lock() {
            hook(&format!("look {}", volume.name));
        }
        let (volume, work) = (volume.clone(), work.clone());
        Ok(Box::new(FakeCreation { host: self, volume, existing, work }))
    }

    fn adopt(
        &self,
        volume: &mut Definition,
        _force: bool,
        work: &Arc<Work>,
    ) -> Result<Copied, StartError> {
        self.ask("adopt", &volume.name, "", work)?;
        volume.block_size = 8192;
        volume.version = 5;
        self.serve(volume);
        Ok(Copied::Current)
    }

    fn wipe(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        self.ask("wipe", &volume.name, "", work)
    }
}

impl Serving for FakeHost {
    fn start(
        &self,
        volume: &Definition,
        how: StartRequest,
        work: &Arc<Work>,
    ) -> Result<Copied, StartError> {
        let with = if how.force { " force" } else { "" };
        self.ask("start", &volume.name, with, work)?;
        let mut failing = self.failing.lock();
        let has = |failing: &[String], way: &str| {
            let what = format!("{way} start {}", volume.name);
            failing.iter().position(|failing| *failing == what)
        };
        if let Some(place) = has(&failing, "unknown") {
            failing.remove(place);
            return Err(StartError::Unknown(ApiError::new(ErrorKind::DataAtRisk, "unknown")));
        }
        let copied = match has(&failing, "older") {
            None => Copied::Current,
            Some(_) if !how.force => {
                return Err(ApiError::new(ErrorKind::DataAtRisk, "older").into());
            }
            Some(place) => {
                failing.remove(place);
                Copied::Older(FAKE_CACHE)
            }
        };
        drop(failing);
        self.serve(volume);
        Ok(copied)
    }

    fn show(&self, name: &VolumeName) {
        if let Some(hook) = &*self.hook.lock() {
            hook(&format!("show {name}"));
        }
    }

    fn share(&self, name: &VolumeName, work: &Arc<Work>) -> Result<(), ApiError> {
        self.ask("share", name, "", work)
    }

    fn set(&self, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        self.ask("set", &volume.name, "", work)?;
        if let Some(running) = self.running.lock().get_mut(&volume.name) {
            running.clone_from(volume);
        }
        Ok(())
    }

    fn stop(&self, volume: &Definition, _abandon: bool, work: &Arc<Work>) -> Result<(), ApiError> {
        if self.fails(&format!("refuse stop {}", volume.name)) {
            return Err(ApiError::new(ErrorKind::DataAtRisk, "it stays served"));
        }
        let asked = self.ask("stop", &volume.name, "", work);
        self.running.lock().remove(&volume.name);
        asked
    }

    fn holds(&self, volume: &Definition, work: &Arc<Work>) -> Result<bool, ApiError> {
        self.ask("holds", &volume.name, "", work)?;
        Ok(!self.fails(&format!("struck {}", volume.name)))
    }

    fn delete(
        &self,
        volume: &Definition,
        discard_dirty: bool,
        work: &Arc<Work>,
    ) -> Result<Remains, ApiError> {
        let how = if discard_dirty { " discard" } else { "" };
        let asked = self.ask("delete", &volume.name, how, work);
        if asked.is_ok() || discard_dirty {
            self.running.lock().remove(&volume.name);
        }
        asked.map(|()| Remains::None)
    }
}

impl CachedBlocks for FakeHost {
    fn run(&self, task: &BlockTask, volume: &Definition, work: &Arc<Work>) -> Result<(), ApiError> {
        let how = match task {
            BlockTask::Drop(DropRequest { ram: true, .. }) => " ram",
            BlockTask::Drop(DropRequest { ssd: true, .. }) => " ssd",
            _ => "",
        };
        if matches!(task, BlockTask::Drop(_) | BlockTask::Evict(_)) {
            let mut contents = self.contents.lock();
            *self.dropped.lock() += contents.2;
            contents.1.iter_mut().for_each(|ram| ram.used = 0);
        }
        self.ask(task.verb(), &volume.name, how, work)
    }

    fn has_pins(&self, _: &Definition) -> bool {
        false
    }

    fn pins(&self, _: &VolumeName) -> Result<PinReport, ApiError> {
        Ok(PinReport::default())
    }
}

impl Closing for FakeHost {
    fn shut_down(&self) -> Result<(), ApiError> {
        self.answer("shut down".to_owned())
    }

    fn prepare_hand_over(
        &self,
        _: &dyn Fn() -> bool,
        begin: &dyn Fn() -> Result<(), ApiError>,
    ) -> Result<(), ApiError> {
        self.answer("prepare hand over".to_owned())?;
        if let Some(hook) = &*self.hook.lock() {
            hook("prepare hand over");
        }
        begin()
    }

    fn hand_over(&self, goes_on: &dyn Fn() -> bool) -> (Option<Items>, Result<(), ApiError>) {
        let closed = self.answer("hand over".to_owned());
        (goes_on().then(Items::new), closed)
    }
}
