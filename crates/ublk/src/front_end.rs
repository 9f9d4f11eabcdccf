//! ublk as one of the daemon's front ends: the driver of its devices.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};

use forebay_core::FrontEndKind;
use forebay_device::ring::Ring;
use forebay_device::ublk;
use forebay_engine::{ExportError, ExportErrorKind, Exports, FrontEnd, LaneFrontEnd};
use forebay_export::Identify;
use forebay_export::errors::{check_privileged, failed};
use forebay_export::sync::sync;
use forebay_export::volume_devices::{DeviceId, Driver, Made, Publication, VolumeDevices};
use forebay_host::sysfs;
use forebay_host::users::Users;
use forebay_lane::{Lane, MemoryBudget};
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::board::{Post, QueueBoard, VolumeFacts};
use crate::control::{self, NewDevice};
use crate::device::{LANES, Served, TakeOver, find, sequence, started_with};
use crate::errors::refused;
use crate::helper::{Step, Task, path};
use crate::queues::{Queues, unserved};
use crate::server;
use crate::wire::state;

/// Claims the front end, see [`VolumeDevices::claim`]. Requests share `memory`.
pub fn claim(
    (notes, names): (&Path, &Path),
    wanted: impl Fn(&str) -> bool,
    identify: Identify,
    memory: Arc<MemoryBudget>,
) -> Arc<dyn FrontEnd> {
    let driver = Ublk { board: Arc::default(), memory, begun: Mutex::default() };
    Arc::new(VolumeDevices::claim(driver, (notes, names), wanted, identify))
}

/// The driver.
pub(crate) struct Ublk {
    pub(crate) board: Arc<QueueBoard>,
    pub(crate) memory: Arc<MemoryBudget>,
    /// Takeovers that have begun, by volume.
    pub(crate) begun: Mutex<BTreeMap<String, TakeOver>>,
}

impl Driver for Ublk {
    const KIND: FrontEndKind = FrontEndKind::Ublk;
    const REMOVED: &'static str = "removed";
    const SETS_ASIDE: bool = true;

    type Facts = VolumeFacts;
    type Own = Served;

    fn join(&self, lane: &Rc<Lane>, ring: &Rc<Ring>, of: Rc<dyn Exports>) -> Box<dyn LaneFrontEnd> {
        server::serve(lane, ring, of, &self.board, &self.memory)
    }

    fn check(&self) -> Result<(), ExportError> {
        let control = "/dev/ublk-control";
        let opened = OpenOptions::new().read(true).write(true).open(control);
        opened.and_then(|_| check_privileged()).map_err(|error| refused(control, error))
    }

    fn path(&self, number: u32) -> PathBuf {
        path(number)
    }

    fn find(&self, mark: u64) -> Option<u32> {
        find(mark)
    }

    /// Another program may have a device of this number by now.
    fn is_lost(&self, id: DeviceId, own: &Served) -> bool {
        let path = path(id.number);
        sequence(&path) != own.sequence || !sysfs::of_disk(&path).exists()
    }

    fn prepare(&self, volume: &str) -> Result<VolumeFacts, ExportError> {
        let (tell, hear) = channel();
        self.board.post([(0, Post::Describe(volume.to_owned(), tell))]);
        hear.recv_timeout(LANES).map_err(|_| unserved(volume))
    }

    fn make(&self, of: &Publication<'_>, facts: &VolumeFacts) -> Result<Made<Served>, ExportError> {
        let (volume, mark, survives) = (of.volume, of.note.mark, of.note.survives());
        self.begun.lock().remove(volume);
        let VolumeFacts { size, read_only, sectors, block: preferred } = *facts;
        let queues = u16::try_from(self.board.lanes()).unwrap_or(u16::MAX);
        let new = NewDevice { mark, queues, size, read_only, sectors, preferred, survives };
        let info = control::add(&new).map_err(|error| refused("/dev/ublk-control", error))?;
        let device = path(info.number);
        of.name(&device);
        let mut queues = Queues::new(info);
        let served = queues
            .prepare(volume, &self.memory)
            .and_then(|()| queues.serve(volume, &self.board, ublk::open, LANES));
        let started = served.and_then(|()| {
            let started = Task::new(Step::Start, info.number, mark).run();
            started.map_err(|error| failed(device.display(), error))
        });
        started.inspect_err(|_| self.fail(volume))?;
        Ok(started_with(info, queues))
    }

    fn can_revive(&self, of: &Publication<'_>, number: u32) -> Result<bool, ExportError> {
        self.can_take_over(of, number)
    }

    fn revive(
        &self,
        of: &Publication<'_>,
        number: u32,
        facts: &VolumeFacts,
    ) -> Result<Option<Made<Served>>, ExportError> {
        let volume = of.volume;
        match self.take_over(of, number, facts.size) {
            // The former daemon was killed while the kernel read the partitions of the device.
            Err(error) if !self.has_begun(volume) && is_stuck(&error, number) => {
                tracing::error!(
                    volume,
                    number,
                    "its ublk device is stuck until the machine starts again, and is given up: {error}"
                );
                Ok(None)
            }
            result => result.map(Some),
        }
    }

    fn before_cut(&self, volume: &str, _: DeviceId, users: &Users, served: bool) {
        if served {
            sync(users);
            self.fail(volume);
        }
    }

    fn remove(&self, DeviceId { number, mark }: DeviceId, force: bool) -> io::Result<()> {
        Task::new(if force { Step::Cut } else { Step::Stop }, number, mark).run()
    }

    fn ended(&self, volume: &str, own: &Served) {
        if own.ended.lock().recv_timeout(LANES) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(volume, "its device is removed, but requests are still in flight");
        }
    }

    fn forget(&self, volume: &str) {
        self.begun.lock().remove(volume);
    }

    fn delete(&self, volume: &str, DeviceId { number, mark }: DeviceId) -> bool {
        match Task::new(Step::Delete, number, mark).run() {
            Err(error) if Errno::from_io_error(&error) != Some(Errno::NODEV) => {
                tracing::warn!(volume, number, %error, "its ublk device cannot be deleted");
                false
            }
            _ => true,
        }
    }

    fn is_removed(&self, id: DeviceId, force: bool) -> bool {
        let found = control::owned(id.number, id.mark);
        found.is_ok_and(|found| found.state == state::DEAD)
            || (force && self.remove(id, true).is_ok())
    }

    fn check_hand_over(&self, volume: &str) -> Result<(), ExportError> {
        if !self.only_this_process_goes_on(volume) {
            return Ok(());
        }
        let message = format!(
            "the device of '{volume}' is not taken over from the former daemon yet, which only this program can do: 'forebay start {volume}' tries again, 'forebay stop --force {volume}' removes it"
        );
        Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None })
    }
}

impl Ublk {
    /// Has the lanes answer everything with errors.
    pub(crate) fn fail(&self, volume: &str) {
        self.board.post_to_all(|| Post::Fail(volume.to_owned()));
    }
}

/// Returns whether no program can use a device that could not be taken over.
fn is_stuck(error: &ExportError, number: u32) -> bool {
    let busy = error.cause.as_ref().and_then(Errno::from_io_error);
    let timed_out =
        error.cause.as_ref().is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut);
    (timed_out || busy == Some(Errno::BUSY)) && Users::of(&path(number), None).is_empty()
}
