//! A volume's device: begun or taken over, and removed. Everything here runs off the lanes, because it
//! makes requests that these answer.
#![expect(clippy::disallowed_methods, reason = "waits for the kernel, on a thread of an operation")]

use std::fs;
use std::io;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_core::SECTOR_SIZE;
use forebay_device::ublk;
use forebay_engine::{ExportError, ExportErrorKind};
use forebay_export::errors::{busy, failed};
use forebay_export::sync::sync;
use forebay_export::{Note, Notes, Users, link};
use forebay_lane::MemoryBudget;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::board::{Board, NewQueue, Post, QueueMemory, VolumeFacts};
use crate::control::{self, NewDevice, resets, survives};
use crate::errors::refused;
use crate::helper::{Step, Task, path};
use crate::wire::{DeviceInfo, state};

/// How long the lanes may take to begin or to end.
const LANES: Duration = Duration::from_secs(5);
/// How long the kernel may take to notice that the former server has ended. If that had all requests that
/// a queue can have, an older kernel notices it when a request has taken [`NOTICED`].
const TAKEOVER: Duration = Duration::from_secs(60);
/// See [`TAKEOVER`]; milliseconds.
const NOTICED: &str = "5000";
/// How often something is checked.
const STEP: Duration = Duration::from_millis(20);

/// What devices are made with.
pub(crate) struct Shop {
    pub(crate) notes: Notes,
    /// Where the names of volumes are found by the names of devices.
    pub(crate) names: PathBuf,
    pub(crate) board: Arc<Board>,
    pub(crate) memory: Arc<MemoryBudget>,
}

/// The device of a volume that the lanes serve.
pub(crate) struct Device {
    volume: String,
    info: DeviceInfo,
    link: Option<PathBuf>,
    /// Disconnected when no lane serves it any more.
    ended: Mutex<Receiver<()>>,
}

impl Shop {
    /// Exports a volume: takes its device over if a former daemon has left one, or makes one.
    /// `identity` tells the volume from others of that name, and is `None` if what it acknowledges as
    /// durable does not survive the daemon.
    ///
    /// # Errors
    /// Any step failed. A new device is removed then; one of a former daemon stays.
    pub(crate) fn begin(
        &self,
        volume: &str,
        identity: Option<String>,
    ) -> Result<Device, ExportError> {
        let facts = self.describe(volume)?;
        if let Some(note) = self.notes.read(volume)
            && let Some(found) = find(note.mark)
        {
            let ours = identity.as_ref().is_some_and(|identity| *identity == note.identity);
            if note.half && !resets(&found) {
                tracing::error!(
                    volume,
                    number = found.number,
                    "the daemon was killed while it took over its ublk device, with which this kernel can do nothing any more; users of it get I/O errors"
                );
                self.remove_left(volume, true)?;
            } else if ours && survives(&found) && found.state != state::DEAD {
                match self.take_over(volume, found, &note, &facts) {
                    // The former daemon was killed while the kernel read its partitions.
                    Err(error) if is_stuck(&error, found.number) => {
                        tracing::error!(
                            volume,
                            number = found.number,
                            "its ublk device is stuck until the machine starts again, and is given up: {error}"
                        );
                    }
                    result => return result,
                }
            } else {
                self.remove_left(volume, true)?;
            }
        }
        let mark = fastrand::u64(1..);
        let survives = identity.is_some();
        let note = Note { mark, identity: identity.unwrap_or_default(), half: false };
        self.notes.write(volume, &note).map_err(|error| failed("the state directory", error))?;
        self.make(volume, mark, survives, &facts).inspect_err(|_| self.notes.remove(volume))
    }

    /// Makes a new device.
    fn make(
        &self,
        volume: &str,
        mark: u64,
        survives: bool,
        facts: &VolumeFacts,
    ) -> Result<Device, ExportError> {
        let VolumeFacts { size, read_only, block: preferred } = *facts;
        let queues = u16::try_from(self.board.lanes()).unwrap_or(u16::MAX);
        let new = NewDevice { mark, queues, size, read_only, preferred, survives };
        let info = control::add(&new).map_err(|error| refused("/dev/ublk-control", error))?;
        self.name(volume, info.number);
        let memory = self.prepare(volume, &info);
        let started = memory.and_then(|memory| self.serve(volume, info, memory));
        let started = started.and_then(|ended| {
            let started = Task::new(Step::Start, info.number, mark).run();
            started.map(|()| ended).map_err(|error| failed(path(info.number).display(), error))
        });
        match started {
            Ok(ended) => Ok(self.started(volume, info, ended)),
            Err(error) => {
                self.fail(volume);
                let cut = Task::new(Step::Cut, info.number, mark).run().is_ok();
                self.forget(volume, (info.number, mark), cut);
                Err(error)
            }
        }
    }

    /// Has the lanes serve the device of a former daemon.
    fn take_over(
        &self,
        volume: &str,
        found: DeviceInfo,
        note: &Note,
        facts: &VolumeFacts,
    ) -> Result<Device, ExportError> {
        let number = found.number;
        let device = path(number);
        let size = sectors(&device).map(|sectors| sectors * SECTOR_SIZE);
        if size != Some(facts.size) {
            let message = format!(
                "{} has {size:?} bytes instead of the {} of '{volume}'; 'forebay stop --force {volume}' removes it",
                device.display(),
                facts.size
            );
            return Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None });
        }
        let failed = |error| failed(device.display(), error);
        let begun = Instant::now();
        self.name(volume, number);
        let memory = self.prepare(volume, &found)?;
        wait_until_left(number, note.mark, begun + TAKEOVER).map_err(failed)?;
        // From here to the end, a kernel before 6.16 must not lose this process: so nothing in between waits
        // for anything else, and no other process is needed.
        let half = |half| self.notes.write(volume, &Note { half, ..note.clone() }).map_err(failed);
        recover((number, note.mark), begun + TAKEOVER, half)?;
        let ended = self.serve(volume, found, memory)?;
        control::end_recovery(number).map_err(failed)?;
        half(false)?;
        tracing::info!(volume, device = %device.display(), seconds = begun.elapsed().as_secs_f32(), "its device is served again");
        Ok(self.started(volume, found, ended))
    }

    /// Asks a lane about a volume.
    fn describe(&self, volume: &str) -> Result<VolumeFacts, ExportError> {
        let (tell, hear) = channel();
        self.board.post([(0, Post::Describe(volume.to_owned(), tell))]);
        hear.recv_timeout(LANES).map_err(|_| unserved(volume))
    }

    /// Takes the memory for all queues of a device.
    fn prepare(&self, volume: &str, info: &DeviceInfo) -> Result<Vec<QueueMemory>, ExportError> {
        let all = (0..info.queues).map(|_| QueueMemory::take(&self.memory, info)).collect();
        let message = || {
            format!("there is no memory to serve the device of '{volume}'; raise --memory-limit")
        };
        let kind = ExportErrorKind::Failed;
        Option::ok_or_else(all, || ExportError { kind, message: message(), cause: None })
    }

    /// Has the lanes serve all queues of a device.
    fn serve(
        &self,
        volume: &str,
        info: DeviceInfo,
        memory: Vec<QueueMemory>,
    ) -> Result<Mutex<Receiver<()>>, ExportError> {
        let fd = ublk::open(info.number).map_err(|error| failed("/dev/ublkc", error))?;
        let (fd, lanes) = (Arc::new(fd), self.board.lanes().max(1));
        let ((begun, beginnings), (ending, ended)) = (channel(), channel());
        let posts = (0..info.queues).zip(memory).map(|(number, memory)| {
            let (begun, ended) = (begun.clone(), ending.clone());
            let (volume, fd) = (volume.to_owned(), fd.clone());
            let queue = NewQueue { volume, fd, info, number, memory, begun, ended };
            (usize::from(number) % lanes, Post::Serve(queue))
        });
        self.board.post(posts.collect::<Vec<_>>());
        drop((begun, ending, fd));
        let end = Instant::now() + LANES;
        for _ in 0..info.queues {
            let left = end.saturating_duration_since(Instant::now());
            beginnings.recv_timeout(left).map_err(|_| unserved(volume))?;
        }
        Ok(Mutex::new(ended))
    }

    fn started(&self, volume: &str, info: DeviceInfo, ended: Mutex<Receiver<()>>) -> Device {
        let device = path(info.number);
        // Allowed in vain where sysfs is read-only; the rule of udev does it there.
        if survives(&info) {
            let _ = fs::write(sysfs(&device).join("queue/io_timeout"), NOTICED);
        }
        let link = link::make(volume, &device);
        Device { volume: volume.to_owned(), info, link, ended }
    }

    /// Tells udev whose device this is.
    fn name(&self, volume: &str, number: u32) {
        let name = self.name_of(number);
        let _ = fs::create_dir(&self.names);
        let _ = fs::remove_file(&name);
        if let Err(error) = symlink(volume, &name) {
            tracing::warn!(volume, %error, "udev will not know its device by name");
        }
    }

    fn name_of(&self, number: u32) -> PathBuf {
        self.names.join(path(number).file_name().unwrap_or_default())
    }

    /// Has the lanes answer everything with errors.
    fn fail(&self, volume: &str) {
        self.board.post_to_all(|| Post::Fail(volume.to_owned()));
    }

    /// Removes a device. With `force` its users get errors from now on.
    ///
    /// # Errors
    /// [`ExportErrorKind::InUse`], never with `force`; nothing has changed then.
    pub(crate) fn end(&self, device: &Device, force: bool) -> Result<(), ExportError> {
        let (volume, number, mark) = (&device.volume, device.info.number, device.info.mark);
        let first = |users: &Users| {
            if force {
                sync(users);
                self.fail(volume);
            }
        };
        let cut = cut(volume, (number, mark), force, first)?;
        if device.ended.lock().recv_timeout(LANES) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(volume, "its device is removed, but requests are still in flight");
        }
        self.forget(volume, (number, mark), cut);
        Ok(())
    }

    /// Removes the device of a volume that a former daemon has left, if there is one.
    ///
    /// # Errors
    /// As [`Shop::end`].
    pub(crate) fn remove_left(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        let Some(note) = self.notes.read(volume) else { return Ok(()) };
        match find(note.mark) {
            Some(found) => {
                let cut = cut(volume, (found.number, note.mark), force, |_| ())?;
                self.forget(volume, (found.number, note.mark), cut);
            }
            None => self.notes.remove(volume),
        }
        Ok(())
    }

    /// Removes all traces of a device. It is deleted too if it is `cut`: without a block device.
    fn forget(&self, volume: &str, (number, mark): (u32, u64), cut: bool) {
        link::remove_all(&path(number));
        let _ = fs::remove_file(self.name_of(number));
        // Only the last one succeeds.
        let _ = fs::remove_dir(&self.names);
        // Deleting a device that the kernel cannot remove would keep it from adding others.
        let deleted = if cut { Task::new(Step::Delete, number, mark).run() } else { Ok(()) };
        match deleted {
            // The note stays: it leads to the device.
            Err(error) if Errno::from_io_error(&error) != Some(Errno::NODEV) => {
                tracing::warn!(volume, number, %error, "its ublk device cannot be deleted");
            }
            _ => self.notes.remove(volume),
        }
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

    /// Returns whether another daemon can serve it later.
    pub(crate) fn survives(&self) -> bool {
        survives(&self.info)
    }
}

/// Waits until the kernel has noticed that the former server of a device has ended.
fn wait_until_left(number: u32, mark: u64, end: Instant) -> io::Result<()> {
    loop {
        match control::owned(number, mark)?.state {
            state::QUIESCED | state::FAIL_IO => return Ok(()),
            _ if Instant::now() < end => std::thread::sleep(STEP),
            _ => return Err(Errno::BUSY.into()),
        }
    }
}

/// Makes a device ready for its next server, when the kernel has let go of the former one. From then on
/// `half` is noted.
fn recover(
    (number, mark): (u32, u64),
    end: Instant,
    half: impl Fn(bool) -> Result<(), ExportError>,
) -> Result<(), ExportError> {
    loop {
        let failed = |error| failed(path(number).display(), error);
        control::owned(number, mark).map_err(failed)?;
        half(true)?;
        let Err(error) = control::start_recovery(number) else { return Ok(()) };
        half(false)?;
        if Errno::from_io_error(&error) != Some(Errno::BUSY) || Instant::now() >= end {
            return Err(failed(error));
        }
        std::thread::sleep(STEP);
    }
}

/// Returns whether a device that cannot be taken over is of no use to anybody.
fn is_stuck(error: &ExportError, number: u32) -> bool {
    let busy = error.cause.as_ref().and_then(Errno::from_io_error);
    let waits = matches!(busy, Some(Errno::BUSY | Errno::TIMEDOUT));
    waits && Users::of(&path(number), None).is_empty()
}

/// Removes a block device. `first` is called with its users before they are cut off. Returns whether it is
/// gone; it always is without `force`.
fn cut(
    volume: &str,
    (number, mark): (u32, u64),
    force: bool,
    first: impl FnOnce(&Users),
) -> Result<bool, ExportError> {
    let device = path(number);
    let users = if force { Users::of(&device, None) } else { Users::remaining(&device, None) };
    if !users.is_empty() && !force {
        return Err(busy(volume, &device, &users.to_string()));
    }
    if !users.is_empty() {
        tracing::warn!(volume, device = %device.display(), "the device is removed although it is {users}: they get I/O errors");
    }
    first(&users);
    let step = if force { Step::Cut } else { Step::Stop };
    match Task::new(step, number, mark).run() {
        Err(error) if !force && Errno::from_io_error(&error) == Some(Errno::BUSY) => {
            let elsewhere = "mounted or held where the daemon cannot see it";
            Err(busy(volume, &device, elsewhere))
        }
        Err(error) if !force && Errno::from_io_error(&error) != Some(Errno::NODEV) => {
            Err(failed(device.display(), error))
        }
        Err(error) => {
            let gone = Errno::from_io_error(&error) == Some(Errno::NODEV);
            if !gone {
                tracing::warn!(volume, device = %device.display(), %error, "the device cannot be removed");
            }
            Ok(gone)
        }
        Ok(()) => Ok(true),
    }
}

fn unserved(volume: &str) -> ExportError {
    let message = format!("not every lane can serve the device of '{volume}'; see the log");
    ExportError { kind: ExportErrorKind::Failed, message, cause: None }
}

fn sysfs(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// Returns the size of a block device in sectors.
fn sectors(device: &Path) -> Option<u64> {
    fs::read_to_string(sysfs(device).join("size")).ok()?.trim().parse().ok()
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
