//! A volume's device, and how it is made. Everything here runs off the lanes, because it makes
//! requests that these answer.
#![expect(clippy::disallowed_methods, reason = "draws marks that no other device has")]

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use forebay_device::ublk;
use forebay_engine::ExportError;
use forebay_export::errors::failed;
use forebay_export::{Note, Notes, Users, link};
use forebay_lane::MemoryBudget;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::board::{Board, Post, VolumeFacts};
use crate::control::{self, NewDevice, resets, survives};
use crate::errors::refused;
use crate::helper::{Step, Task, path, sysfs};
use crate::queues::{Queues, unserved};
use crate::wire::{DeviceInfo, state};

/// Time limit for the lanes to begin or to end.
pub(crate) const LANES: Duration = Duration::from_secs(5);
/// After how many milliseconds an older kernel notices that a server has ended that had all
/// requests that a queue can have.
const NOTICED: &str = "5000";

/// The tools to make devices.
pub(crate) struct Shop {
    pub(crate) notes: Notes,
    /// Directory that has the names of volumes by the names of devices.
    pub(crate) names: PathBuf,
    pub(crate) board: Arc<Board>,
    pub(crate) memory: Arc<MemoryBudget>,
    /// By volumes.
    pub(crate) begun: Mutex<BTreeMap<String, Begun>>,
}

/// A take-over that has failed but can be continued: see [`Shop::take_over`].
pub(crate) struct Begun {
    /// The mark of the device.
    pub(crate) mark: u64,
    /// See [`control::resets`].
    pub(crate) resets: bool,
    pub(crate) queues: Queues,
}

/// The device of a volume that the lanes serve.
pub(crate) struct Device {
    pub(crate) volume: String,
    pub(crate) info: DeviceInfo,
    /// The kernel gives out such a number with each block device, once; `None` before Linux 5.15.
    sequence: Option<u64>,
    link: Option<PathBuf>,
    /// Disconnected when no lane serves it any more.
    pub(crate) ended: Mutex<Receiver<()>>,
}

impl Shop {
    /// Exports a volume: takes its device over if a former daemon has left one, or makes one.
    /// `identity` is that of the volume, and `None` if data that it acknowledges as durable does
    /// not survive the daemon.
    ///
    /// # Errors
    /// Any step failed. A new device is removed then; one of a former daemon stays.
    pub(crate) fn begin(
        &self,
        volume: &str,
        identity: Option<String>,
    ) -> Result<Device, ExportError> {
        let facts = self.describe(volume)?;
        self.sweep(volume, false);
        if let Some(note) = self.notes.read(volume)
            && let Some(found) = find(note.mark)
        {
            let ours = identity.as_ref().is_some_and(|identity| *identity == note.identity);
            let goes_on = self.has_begun(volume) || resets(&found) || !note.half;
            if !goes_on {
                self.give_up_half(volume, found.number)?;
            } else if ours && survives(&found) && found.state != state::DEAD {
                match self.take_over(volume, found, &note, facts.size) {
                    // The former daemon was killed while the kernel read its partitions.
                    Err(error) if !self.has_begun(volume) && is_stuck(&error, found.number) => {
                        tracing::error!(
                            volume,
                            number = found.number,
                            "its ublk device is stuck until the machine starts again, and is given up: {error}"
                        );
                        self.notes.set_aside(volume);
                    }
                    result => return result,
                }
            } else {
                self.remove_left(volume, true)?;
            }
        }
        self.begun.lock().remove(volume);
        let mark = fastrand::u64(1..);
        let survives = identity.is_some();
        let note = Note { mark, identity: identity.unwrap_or_default(), half: false };
        self.notes.write(volume, &note).map_err(|error| failed("the state directory", error))?;
        self.make(volume, mark, survives, &facts)
    }

    /// Makes a new device.
    fn make(
        &self,
        volume: &str,
        mark: u64,
        survives: bool,
        facts: &VolumeFacts,
    ) -> Result<Device, ExportError> {
        let VolumeFacts { size, read_only, sectors, block: preferred } = *facts;
        let queues = u16::try_from(self.board.lanes()).unwrap_or(u16::MAX);
        let new = NewDevice { mark, queues, size, read_only, sectors, preferred, survives };
        let info = control::add(&new).map_err(|error| {
            // One that has timed out may still be carried out.
            if error.kind() != io::ErrorKind::TimedOut && find(mark).is_none() {
                self.notes.remove(volume);
            }
            refused("/dev/ublk-control", error)
        })?;
        self.name(volume, info.number);
        let mut queues = Queues::new(info);
        let served = queues
            .prepare(volume, &self.memory)
            .and_then(|()| queues.serve(volume, &self.board, ublk::open, LANES));
        let started = served.and_then(|()| {
            let started = Task::new(Step::Start, info.number, mark).run();
            started.map_err(|error| failed(path(info.number).display(), error))
        });
        match started {
            Ok(()) => Ok(self.started(volume, info, queues)),
            Err(error) => {
                self.fail(volume);
                let cut = Task::new(Step::Cut, info.number, mark).run().is_ok();
                self.forget(volume, (info.number, mark), cut);
                Err(error)
            }
        }
    }

    /// Asks a lane about a volume.
    fn describe(&self, volume: &str) -> Result<VolumeFacts, ExportError> {
        let (tell, hear) = channel();
        self.board.post([(0, Post::Describe(volume.to_owned(), tell))]);
        hear.recv_timeout(LANES).map_err(|_| unserved(volume))
    }

    /// Returns a device that the lanes serve.
    pub(crate) fn started(&self, volume: &str, info: DeviceInfo, queues: Queues) -> Device {
        let device = path(info.number);
        // Fails where sysfs is read-only; the rule of udev does it there.
        if survives(&info) {
            let _ = fs::write(sysfs(&device).join("queue/io_timeout"), NOTICED);
        }
        let link = link::make(volume, &device);
        let ended = Mutex::new(queues.into_end());
        let sequence = sequence(&device);
        Device { volume: volume.to_owned(), info, sequence, link, ended }
    }

    /// Names the volume of the device for udev.
    pub(crate) fn name(&self, volume: &str, number: u32) {
        let name = self.name_of(number);
        let _ = fs::create_dir(&self.names);
        let _ = fs::remove_file(&name);
        if let Err(error) = symlink(volume, &name) {
            tracing::warn!(volume, %error, "udev will not know its device by name");
        }
    }

    /// Returns where udev finds it.
    pub(crate) fn name_of(&self, number: u32) -> PathBuf {
        self.names.join(path(number).file_name().unwrap_or_default())
    }
}

impl Device {
    /// Returns its path.
    pub(crate) fn path(&self) -> PathBuf {
        path(self.info.number)
    }

    /// Returns the link to it.
    pub(crate) fn link(&self) -> Option<&Path> {
        self.link.as_deref()
    }

    /// Returns whether it was removed without the daemon, and the number may be another program's.
    pub(crate) fn is_lost(&self) -> bool {
        let path = self.path();
        sequence(&path) != self.sequence || !sysfs(&path).exists()
    }

    /// Removes the links to it, which would lead to another program's device.
    pub(crate) fn unlink(&self) {
        link::remove_of(&self.volume, &self.path());
    }

    /// Returns whether another daemon can serve it later.
    pub(crate) fn survives(&self) -> bool {
        survives(&self.info)
    }
}

fn sequence(device: &Path) -> Option<u64> {
    fs::read_to_string(sysfs(device).join("diskseq")).ok()?.trim().parse().ok()
}

/// Returns whether a device that cannot be taken over is useless to all programs.
fn is_stuck(error: &ExportError, number: u32) -> bool {
    let busy = error.cause.as_ref().and_then(Errno::from_io_error);
    let timed_out =
        error.cause.as_ref().is_some_and(|cause| cause.kind() == io::ErrorKind::TimedOut);
    (timed_out || busy == Some(Errno::BUSY)) && Users::of(&path(number), None).is_empty()
}

/// Finds the device with a mark.
pub(crate) fn find(mark: u64) -> Option<DeviceInfo> {
    let entries = fs::read_dir("/sys/class/ublk-char").into_iter().flatten().flatten();
    let numbers = entries.filter_map(|entry| {
        let name = entry.file_name().into_string().ok()?;
        name.strip_prefix("ublkc")?.parse().ok()
    });
    let mut all = numbers.filter_map(|number| control::info(number).ok());
    all.find(|info| info.mark == mark)
}
