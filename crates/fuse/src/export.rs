//! One exported volume: the mounted file, the loop device on top of it, and the link to the device.
//! This runs off the lanes, because it sends requests that the lanes answer.
#![expect(clippy::disallowed_methods, reason = "waits for the kernel, on a thread of an operation")]

use std::ffi::CString;
use std::fs::{self, OpenOptions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use forebay_core::SECTOR_SIZE;
use forebay_device::fuse::{clone_connection, open_connection};
use forebay_device::loop_device::{self, LoopNumber};
use forebay_engine::{ExportError, ExportErrorKind};
use forebay_export::errors::{busy, failed};
use forebay_export::link;
use forebay_export::sync::sync;
use forebay_host::mounts::{Mount, mounts};
use forebay_host::users::Users;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::process::{getegid, geteuid};

use crate::answer::FileFacts;
use crate::board::{ChannelBoard, Connection, Post};
use crate::channel::Queues;
use crate::errors::refused;
use crate::helper::LoopTask;
use crate::inherited::LeftExport;
use crate::keeping::Keeping;
use crate::marks::{Mark, Marks};
use crate::stale::FS_TYPE;

/// Time limit for attaching a loop device; nothing in it waits for a device.
const ATTACHING: Duration = Duration::from_secs(30);
/// Time limit for the kernel and the lanes to release a removed device.
const LETTING_GO: Duration = Duration::from_secs(5);
/// Interval at which the release is checked.
const STEP: Duration = Duration::from_millis(10);

/// The tools to make exports.
#[derive(Clone, Copy)]
pub(crate) struct Tools<'a> {
    pub(crate) board: &'a ChannelBoard,
    pub(crate) keeping: &'a Keeping,
    pub(crate) marks: &'a Marks,
}

/// An exported volume.
pub(crate) struct ExportedFile {
    volume: String,
    file: PathBuf,
    mark: Mark,
    link: Option<PathBuf>,
    /// Another daemon can take the export over.
    outlives: bool,
    /// Requests come through io_uring, so no other program can take the connection over.
    io_uring: bool,
    /// Disconnected when no lane serves the file any more.
    ended: Mutex<Receiver<()>>,
}

/// A mounted file. It is unmounted on drop.
struct Mounted {
    file: PathBuf,
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let _ = unmount(&self.file, UnmountFlags::DETACH);
        let _ = fs::remove_file(&self.file);
    }
}

impl ExportedFile {
    /// Mounts the file of a volume in `dir`, makes the lanes serve it, and attaches a loop device.
    ///
    /// # Errors
    /// Any step failed; the others are undone.
    pub(crate) fn begin(
        dir: &Path,
        volume: &str,
        tools: Tools<'_>,
        io_uring: bool,
    ) -> Result<Self, ExportError> {
        let connection = open_connection().map_err(|error| refused("/dev/fuse", error))?;
        let file = dir.join(volume);
        let mounted = mount_file(&connection, file.clone())?;
        let mount = mounts().into_iter().rfind(|mount| mount.point == file);
        let file_system = mount.map_or_else(String::new, |mount| mount.device);
        let noted = tools.marks.begin(volume, &file_system);
        noted.map_err(|error| failed("the state directory", error))?;
        let (facts, ended) = serve(volume, vec![connection], tools, io_uring)?;
        let attached = attach(&file, &facts, tools.marks.names());
        let mark = match attached {
            Ok(mark) => mark,
            Err(error) => {
                tools.keeping.forget(volume);
                close(tools.board, volume);
                return Err(error);
            }
        };
        std::mem::forget(mounted);
        tools.marks.made(volume, mark);
        let link = link::make(volume, &mark.number.path());
        let ended = Mutex::new(ended);
        let FileFacts { outlives, io_uring, .. } = facts;
        let volume = volume.to_owned();
        let export = ExportedFile { volume, file, mark, link, outlives, io_uring, ended };
        if let Err(error) = export.check(&facts) {
            let _ = export.end(tools, true);
            return Err(error);
        }
        Ok(export)
    }

    /// Takes over an export of the previous program, which lacks only a server. The device keeps
    /// its size even if the volume has grown.
    ///
    /// # Errors
    /// The lanes cannot serve the export. Its users get errors.
    pub(crate) fn resume(
        dir: &Path,
        volume: &str,
        left: LeftExport,
        tools: Tools<'_>,
    ) -> Result<Self, ExportError> {
        let LeftExport { mark, link, connections, .. } = left;
        let (facts, ended) = serve(volume, connections, tools, false)?;
        let (file, ended, outlives) = (dir.join(volume), Mutex::new(ended), facts.outlives);
        let (io_uring, named) = (false, volume.to_owned());
        let export = ExportedFile { volume: named, file, mark, link, outlives, io_uring, ended };
        tools.marks.made(volume, mark);
        if let Err(error) = export.check(&facts) {
            tracing::warn!(volume, "the volume keeps the device of the previous program: {error}");
        }
        Ok(export)
    }

    /// Removes an export of the previous program that has no server. Its users get errors.
    pub(crate) fn abandon(dir: &Path, volume: &str, left: LeftExport, tools: Tools<'_>) {
        let LeftExport { mark, link, connections, identity, kept: _ } = left;
        // Without these descriptors the kernel fails the waiting requests. After a hand-over the
        // service manager may hold descriptors as well.
        drop(connections);
        if let Some(identity) = identity {
            tools.keeping.forget_former(volume, &identity);
        }
        let (_, ended) = channel();
        let (file, ended, outlives) = (dir.join(volume), Mutex::new(ended), false);
        let (io_uring, named) = (false, volume.to_owned());
        let export = ExportedFile { volume: named, file, mark, link, outlives, io_uring, ended };
        if let Err(error) = export.end(tools, true) {
            tracing::error!(volume, "its export is left behind: {error}");
        }
    }

    /// Returns the number of the loop device.
    pub(crate) fn number(&self) -> LoopNumber {
        self.mark.number
    }

    /// Returns whether something other than the daemon has detached the loop device or attached
    /// another file to it.
    pub(crate) fn is_lost(&self) -> bool {
        !self.mark.is_there()
    }

    /// Removes the link to a device that belongs to another program by now.
    pub(crate) fn unlink(&self) {
        if let Some(link) = &self.link {
            link::remove(link, &self.number().path());
        }
    }

    /// Returns whether the export ends with this program, because no other one can take it over.
    pub(crate) fn is_bound_to_program(&self) -> bool {
        self.io_uring
    }

    /// Returns the link to the device.
    pub(crate) fn link(&self) -> Option<&Path> {
        self.link.as_deref()
    }

    /// Checks the device against the volume.
    fn check(&self, facts: &FileFacts) -> Result<(), ExportError> {
        let read = |name: &str| {
            let text = fs::read_to_string(self.number().sysfs().join(name)).unwrap_or_default();
            text.trim().parse::<u64>().ok()
        };
        if read("loop/dio") != Some(1) {
            tracing::warn!(volume = self.volume, device = %self.number().path().display(), "the loop device has no direct I/O, so that memory holds its data twice");
        }
        match read("size").map(|sectors| sectors * SECTOR_SIZE) {
            Some(size) if size == facts.size => Ok(()),
            size => {
                let device = self.number().path();
                let message = format!(
                    "{} has {size:?} bytes instead of the volume's {}",
                    device.display(),
                    facts.size
                );
                Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None })
            }
        }
    }

    /// Removes file, loop device and link. With `force`, users get errors from now on.
    ///
    /// # Errors
    /// [`ExportErrorKind::InUse`], never with `force`; nothing has changed then.
    pub(crate) fn end(&self, tools: Tools<'_>, force: bool) -> Result<(), ExportError> {
        let device = self.number().path();
        let file = Some(&*self.file);
        // Another program may have a device of this number by now, with users of its own.
        let users = if self.is_lost() {
            Users::default()
        } else if force {
            Users::of(&device, file)
        } else {
            Users::remaining(&device, file)
        };
        if !users.is_empty() && !force {
            return Err(busy(&self.volume, &device, &users.to_string()));
        }
        if !users.is_empty() {
            tracing::warn!(volume = self.volume, device = %device.display(), "the device is removed although it is {users}: they get I/O errors");
            sync(&users);
        }
        // As soon as the device is detached, another daemon may get its number and make a link to
        // it.
        if let Some(link) = &self.link {
            link::remove(link, &device);
        }
        let Mark { number, sequence } = self.mark;
        let task = LoopTask::Detach { number, sequence, force };
        match task.run(LETTING_GO) {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::BUSY) => {
                if self.link.is_some() {
                    link::make(&self.volume, &device);
                }
                let elsewhere = "mounted or held where the daemon cannot see it";
                return Err(busy(&self.volume, &device, elsewhere));
            }
            Err(error) => {
                tracing::warn!(volume = self.volume, device = %device.display(), "the loop device cannot be detached now: {error}");
            }
            Ok(_) => {}
        }
        let end = Instant::now() + LETTING_GO;
        while users.is_empty() && self.mark.is_there() && Instant::now() < end {
            std::thread::sleep(STEP);
        }
        self.unmount(end, force || !users.is_empty());
        tools.keeping.forget(&self.volume);
        tools.marks.forget(&self.volume, number);
        close(tools.board, &self.volume);
        let left = end.saturating_duration_since(Instant::now()).max(STEP);
        if self.ended.lock().recv_timeout(left) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                volume = self.volume,
                "its file is unmounted, but requests are still in flight"
            );
        }
        Ok(())
    }

    /// Leaves the export to the next daemon if that one can serve it and it has users. Returns
    /// whether it was left.
    pub(crate) fn leave(&self, board: &ChannelBoard) -> bool {
        let (device, file) = (self.number().path(), Some(&*self.file));
        let users = Users::of(&device, file);
        if !self.outlives || users.is_empty() || self.is_lost() {
            return false;
        }
        // The service may be stopped permanently.
        sync(&users);
        board.post_to_all(|| Post::Leave(self.volume.clone()));
        if self.ended.lock().recv_timeout(LETTING_GO) == Err(RecvTimeoutError::Timeout) {
            tracing::warn!(
                volume = self.volume,
                "its requests in flight are left to the next daemon"
            );
        }
        tracing::info!(volume = self.volume, device = %device.display(), "the device is in use: its requests wait for the next daemon");
        true
    }

    fn unmount(&self, end: Instant, force: bool) {
        while !force && unmount(&self.file, UnmountFlags::empty()) == Err(Errno::BUSY) {
            if Instant::now() >= end {
                break;
            }
            std::thread::sleep(STEP);
        }
        // The kernel fails requests without a server, including those that wait in a lane's ring.
        if force {
            let _ = unmount(&self.file, UnmountFlags::FORCE);
        }
        // Unmounts lazily: the file system ends when it is no longer in use.
        let _ = unmount(&self.file, UnmountFlags::DETACH);
        if let Err(error) = fs::remove_file(&self.file) {
            tracing::warn!(file = %self.file.display(), %error, "the file of a volume cannot be removed");
        }
    }
}

/// Makes each lane serve a connection, of which at least one descriptor is given. Requests come
/// through io_uring if that is wanted and possible; the file then does not outlive the daemon.
/// Returns the facts about the volume, and a channel that is disconnected when no lane serves the
/// volume any more.
fn serve(
    volume: &str,
    mut fds: Vec<OwnedFd>,
    tools: Tools<'_>,
    io_uring: bool,
) -> Result<(FileFacts, Receiver<()>), ExportError> {
    // Extra descriptors have no requests in flight, so they can be closed while others remain.
    let Tools { board, keeping, .. } = tools;
    fds.truncate(board.lanes());
    for _ in fds.len()..board.lanes() {
        let cloned = fds.first().map(clone_connection);
        fds.extend(cloned.transpose().map_err(|error| failed("/dev/fuse", error))?);
    }
    let queues = if io_uring { forebay_device::fuse::queues() } else { None };
    let mut queues = queues.map(|queues| Queues::of_lanes(queues, fds.len()).into_iter());
    let outlives = queues.is_none() && keeping.keep(volume, &fds);
    let (lanes, (begun, beginnings), (ending, ended)) = (fds.len(), channel(), channel());
    let posts = fds.into_iter().enumerate().map(|(lane, fd)| {
        let (volume, begun, ended) = (volume.to_owned(), begun.clone(), ending.clone());
        let queues = queues.as_mut().map(|queues| queues.next().unwrap_or_default());
        (lane, Post::Serve(Connection { volume, fd, outlives, queues, begun, ended }))
    });
    board.post(posts);
    drop((begun, ending));
    let facts: Vec<FileFacts> = beginnings.iter().collect();
    match facts.first().filter(|_| facts.len() == lanes) {
        Some(facts) => Ok((*facts, ended)),
        None => {
            let message = format!("not every lane can serve the file of '{volume}'; see the log");
            keeping.forget(volume);
            close(board, volume);
            Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None })
        }
    }
}

/// Makes each lane close its connection for a volume, without an answer to requests in flight.
fn close(board: &ChannelBoard, volume: &str) {
    board.post_to_all(|| Post::Close(volume.to_owned()));
}

/// Mounts a file system whose root is a regular file, on a regular file.
fn mount_file(connection: &OwnedFd, file: PathBuf) -> Result<Mounted, ExportError> {
    OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(&file)
        .map_err(|error| failed(file.display(), error))?;
    let data = format!(
        "fd={},rootmode=100600,user_id={},group_id={},default_permissions,allow_other",
        connection.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw()
    );
    let data = CString::new(data).map_err(|error| failed("mount", error.into()))?;
    let flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
    match mount("forebay", &file, FS_TYPE, flags, &*data) {
        Ok(()) => Ok(Mounted { file }),
        Err(error) => {
            let _ = fs::remove_file(&file);
            Err(refused("mount", error.into()))
        }
    }
}

/// Attaches a loop device to the mounted file.
fn attach(file: &Path, facts: &FileFacts, names: &Path) -> Result<Mark, ExportError> {
    let FileFacts { sector, read_only, .. } = *facts;
    let (file_name, names) = (file.to_owned(), names.to_owned());
    let task = LoopTask::Attach { file: file_name, sector, read_only, names };
    let attached = task.run(ATTACHING).and_then(|number| {
        let (found, sequence) = loop_device::file_system(number)?;
        let is_ours = |mount: &Mount| mount.point == *file && mount.device == found;
        match mounts().iter().any(is_ours) {
            true => Ok(Mark { number, sequence }),
            // Another program has detached the device and attached another file meanwhile.
            false => Err(Errno::BUSY.into()),
        }
    });
    attached.map_err(|error| refused("/dev/loop-control", error))
}
