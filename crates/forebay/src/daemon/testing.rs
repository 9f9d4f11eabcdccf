//! What the daemon's own tests share: directories that go away, and a host without a data path.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};

use forebay_admin::curve::{CurveReport, CurveRow, Hits};
use forebay_admin::{ApiError, ErrorKind, Settings, Unit, VolumeName, VolumeReport, VolumeState};

use super::host_api::{Definition, Existing, Host};
use super::operations::Work;

/// A directory that is removed with all it holds.
pub(crate) struct TempDir(PathBuf);

impl TempDir {
    /// A new directory; `what` makes it recognisable.
    pub(crate) fn new(what: &str) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("forebay-{what}-{}-{count}", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a temporary directory");
        TempDir(path)
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Size of the origins of a [`FakeHost`], in bytes.
pub(crate) const FAKE_SIZE: u64 = 123 << 20;

/// A host that remembers what it was asked, and fails where it is told to.
#[derive(Default)]
pub(crate) struct FakeHost {
    running: Mutex<BTreeMap<VolumeName, Settings>>,
    /// Everything that was asked, like `create v`.
    pub(crate) asked: Mutex<Vec<String>>,
    /// What fails, in the words of `asked`; with `hang` in front, what runs until it is cancelled.
    pub(crate) failing: Mutex<Vec<String>>,
}

impl FakeHost {
    fn ask(&self, what: String, work: &Work) -> Result<(), ApiError> {
        work.report(1, 1, Unit::Steps);
        let hangs = format!("hang {what}");
        while self.failing.lock().expect("not poisoned").contains(&hangs) {
            if work.is_cancelled() {
                return Err(ApiError::new(ErrorKind::Cancelled, "given up"));
            }
            std::thread::yield_now();
        }
        let fails = self.failing.lock().expect("not poisoned").contains(&what);
        self.asked.lock().expect("not poisoned").push(what);
        if fails { Err(ApiError::new(ErrorKind::Failed, "told to fail")) } else { Ok(()) }
    }
}

impl Host for FakeHost {
    fn lanes(&self) -> u32 {
        1
    }

    fn create(&self, volume: &Definition, existing: Existing, work: &Work) -> Result<(), ApiError> {
        let how = match existing {
            Existing::Spare => "",
            Existing::Join => " join",
            Existing::Overwrite => " force",
        };
        self.ask(format!("create {}{how}", volume.name), work)?;
        let mut running = self.running.lock().expect("not poisoned");
        running.insert(volume.name.clone(), volume.settings.clone());
        Ok(())
    }

    fn adopt(&self, volume: &mut Definition, _force: bool, work: &Work) -> Result<(), ApiError> {
        self.ask(format!("adopt {}", volume.name), work)?;
        volume.block_size = 8192;
        let mut running = self.running.lock().expect("not poisoned");
        running.insert(volume.name.clone(), volume.settings.clone());
        Ok(())
    }

    fn start(&self, volume: &Definition, force: bool, work: &Work) -> Result<(), ApiError> {
        let how = if force { " force" } else { "" };
        self.ask(format!("start {}{how}", volume.name), work)?;
        let mut running = self.running.lock().expect("not poisoned");
        running.insert(volume.name.clone(), volume.settings.clone());
        Ok(())
    }

    fn stop(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError> {
        self.running.lock().expect("not poisoned").remove(name);
        self.ask(format!("stop {name}"), work)
    }

    fn set(&self, name: &VolumeName, settings: &Settings, work: &Work) -> Result<(), ApiError> {
        self.ask(format!("set {name}"), work)?;
        self.running.lock().expect("not poisoned").insert(name.clone(), settings.clone());
        Ok(())
    }

    fn flush(&self, name: &VolumeName, work: &Work) -> Result<(), ApiError> {
        self.ask(format!("flush {name}"), work)
    }

    fn delete(
        &self,
        volume: &Definition,
        discard_dirty: bool,
        work: &Work,
    ) -> Result<(), ApiError> {
        let how = if discard_dirty { " discard" } else { "" };
        self.ask(format!("delete {}{how}", volume.name), work)?;
        self.running.lock().expect("not poisoned").remove(&volume.name);
        Ok(())
    }

    fn report(&self, name: &VolumeName) -> Option<VolumeReport> {
        let settings = self.running.lock().expect("not poisoned").get(name)?.clone();
        let mut report = VolumeReport::empty(name.clone(), VolumeState::Running, settings);
        report.origin.size = FAKE_SIZE;
        Some(report)
    }

    fn curve(&self, name: &VolumeName, sizes: &[u64]) -> Result<CurveReport, ApiError> {
        if !self.running.lock().expect("not poisoned").contains_key(name) {
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
            rows: sizes.iter().copied().map(row).collect(),
            curve: vec![row(4096), row(FAKE_SIZE)],
        })
    }

    fn shut_down(&self, work: &Work) -> Result<(), ApiError> {
        self.ask("shut down".to_owned(), work)
    }
}
