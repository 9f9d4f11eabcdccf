//! A volume's device: set up or connected again, and ended. Everything here runs off the lanes,
//! because it makes requests that these answer.
#![expect(clippy::disallowed_methods, reason = "waits for the kernel, on a thread of an operation")]

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use forebay_engine::{ExportError, ExportErrorKind};
use forebay_export::errors::{busy, failed};
use forebay_export::sync::sync;
use forebay_export::{Note, Notes, Users, link};
use forebay_nbd::{Outliving, OutlivingDevice};
use rustix::io::Errno;

use crate::control::{Control, NewDevice};
use crate::errors::{no_socket, refused};
use crate::handshake::{Export, agree};
use crate::helper::{Step, Task};
use crate::sysfs::{find, flushes, has_mark, identifier, path, size, unused};

/// Time for which requests wait for the next daemon. Then they fail, like those of a disk that is
/// gone.
const ABSENCE: Duration = Duration::from_secs(600);
/// The same for a device that does not outlive the daemon.
const NO_ABSENCE: Duration = Duration::from_secs(1);
/// Time limit of the handshake. After a hand-over, new NBD clients wait up to 10 s for other
/// volumes.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// Time within which the kernel notices that a connection has ended.
const NOTICE: Duration = Duration::from_secs(10);
/// Interval of checks for that.
const STEP: Duration = Duration::from_millis(20);

/// Resources for making devices.
pub(crate) struct Shop {
    pub(crate) notes: Notes,
    /// Directory in which names of volumes are found by the names of devices.
    pub(crate) names: PathBuf,
    /// The unix socket of the daemon's NBD server.
    pub(crate) socket: Option<PathBuf>,
    /// The devices that are connected to it, by their marks.
    pub(crate) connected: Outliving,
}

/// The device of a volume.
pub(crate) struct Device {
    volume: String,
    number: u32,
    mark: u64,
    /// Another daemon can serve it later.
    survives: bool,
    link: Option<PathBuf>,
}

impl Shop {
    /// Exports a volume: connects its device again if a former daemon has left one, or sets one up.
    /// `identity` tells the volume from others of that name, and is `None` if what it acknowledges
    /// as durable does not survive the daemon.
    ///
    /// # Errors
    /// Any step failed. A new device is ended then; one of a former daemon stays.
    pub(crate) fn begin(
        &self,
        volume: &str,
        identity: Option<String>,
    ) -> Result<Device, ExportError> {
        if let Some(note) = self.notes.read(volume)
            && let Some(number) = find(note.mark)
        {
            if identity.as_ref().is_some_and(|identity| *identity == note.identity) {
                match self.take_over(volume, number, note.mark) {
                    // By nbd-client, for example, or by a daemon that was killed before it had
                    // removed its note.
                    Err(error) if was_ended(&error) => {
                        tracing::error!(volume, device = %path(number).display(), "its device was ended while it was in use: users of it get I/O errors, and there is a new one");
                        self.forget(volume, number);
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
        self.make(volume, mark, survives).inspect_err(|_| self.notes.remove(volume))
    }

    /// Sets up a device.
    fn make(&self, volume: &str, mark: u64, survives: bool) -> Result<Device, ExportError> {
        let control = Control::open().map_err(refused)?;
        let (socket, Export { size, flags, sector }) =
            self.dial(volume, survives.then_some(OutlivingDevice { mark, flushes: true }))?;
        let patience = if survives { ABSENCE } else { NO_ABSENCE };
        let text = identifier(mark);
        for number in unused() {
            // udev learns the name before it sees the device.
            let (block, identifier) = (u64::from(sector), &*text);
            let new = NewDevice { number, size, block, flags, patience, identifier };
            self.name(volume, number);
            match control.connect(&new, socket.as_fd()) {
                Ok(()) => return self.made(volume, number, mark, survives),
                Err(error) => {
                    self.unname(volume, number);
                    // Another program has it, or examines it.
                    if Errno::from_io_error(&error) != Some(Errno::BUSY) {
                        return Err(refused(error));
                    }
                }
            }
        }
        let message = "every device of the kernel's NBD client is in use".to_owned();
        Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None })
    }

    fn made(
        &self,
        volume: &str,
        number: u32,
        mark: u64,
        survives: bool,
    ) -> Result<Device, ExportError> {
        if !has_mark(number, mark) {
            // The next daemon, and the steps of this one, could not distinguish it from the devices
            // of others.
            self.unname(volume, number);
            let _ = Control::open().and_then(|control| control.disconnect(number));
            return Err(refused(io::ErrorKind::Unsupported.into()));
        }
        // In vain where sysfs is read-only; the rule of udev does it there.
        if survives && let Err(error) = Task::run(Step::Retry, number, mark) {
            tracing::debug!(volume, number, %error, "requests are sent again late");
        }
        Ok(self.device(volume, number, mark, survives))
    }

    fn device(&self, volume: &str, number: u32, mark: u64, survives: bool) -> Device {
        let link = link::make(volume, &path(number));
        Device { volume: volume.to_owned(), number, mark, survives, link }
    }

    /// Connects the device of a former daemon.
    fn take_over(&self, volume: &str, number: u32, mark: u64) -> Result<Device, ExportError> {
        self.name(volume, number);
        // Otherwise the former program has handed its connection over.
        if !self.connected.has(mark) {
            let begun = Instant::now();
            self.connect_again(volume, number, mark, NOTICE)?;
            tracing::info!(volume, device = %path(number).display(), seconds = begun.elapsed().as_secs_f32(), "its device is served again");
        }
        Ok(self.device(volume, number, mark, true))
    }

    /// Gives a device a new connection when the kernel has noticed that the former one has ended.
    fn connect_again(
        &self,
        volume: &str,
        number: u32,
        mark: u64,
        notice: Duration,
    ) -> Result<(), ExportError> {
        let device = path(number);
        // A former version has made devices without a write cache.
        let known = OutlivingDevice { mark, flushes: flushes(number) };
        let (socket, export) = self.dial(volume, Some(known))?;
        let has = size(number);
        if has.is_none_or(|has| has > export.size) {
            let message = format!(
                "{} has {has:?} bytes, more than the {} of '{volume}'; 'forebay stop --force {volume}' removes it",
                device.display(),
                export.size
            );
            return Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None });
        }
        let control = Control::open().map_err(refused)?;
        let end = Instant::now() + notice;
        loop {
            match control.reconnect(number, &identifier(mark), socket.as_fd()) {
                Ok(()) => return Ok(()),
                Err(error) if Errno::from_io_error(&error) != Some(Errno::NOSPC) => {
                    return Err(failed(device.display(), error));
                }
                Err(error) if Instant::now() >= end => {
                    return Err(failed(device.display(), error));
                }
                Err(_) => std::thread::sleep(STEP),
            }
        }
    }

    /// Reconnects a device whose connection has ended, for any reason, while the daemon serves its
    /// volume.
    pub(crate) fn mend(&self, device: &Device) {
        if !device.survives || self.connected.has(device.mark) {
            return;
        }
        let Device { volume, number, mark, .. } = device;
        match self.connect_again(volume, *number, *mark, Duration::ZERO) {
            Ok(()) => {
                tracing::warn!(volume, device = %path(*number).display(), "the connection of its device had ended, and is replaced");
            }
            // Not least when the device has just been connected, or is being ended.
            Err(error) => tracing::debug!(volume, "its device is not connected again: {error}"),
        }
    }

    /// Connects to the daemon's NBD server, and agrees on a volume.
    fn dial(
        &self,
        volume: &str,
        device: Option<OutlivingDevice>,
    ) -> Result<(UnixStream, Export), ExportError> {
        let socket = self.socket.as_ref().ok_or_else(no_socket)?;
        let dialled = || {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(HANDSHAKE))?;
            stream.set_write_timeout(Some(HANDSHAKE))?;
            let export = agree(&mut stream, volume, device)?;
            // They would end the connection while the kernel has it.
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            Ok((stream, export))
        };
        dialled().map_err(|error| failed(socket.display(), error))
    }

    /// Names the volume of the device for udev.
    fn name(&self, volume: &str, number: u32) {
        let name = self.name_of(number);
        let _ = fs::create_dir(&self.names);
        let _ = fs::remove_file(&name);
        if let Err(error) = symlink(volume, &name) {
            tracing::warn!(volume, %error, "udev will not know its device by name");
        }
    }

    fn unname(&self, volume: &str, number: u32) {
        // Another volume may have the number by now.
        if fs::read_link(self.name_of(number)).is_ok_and(|named| named == *volume) {
            let _ = fs::remove_file(self.name_of(number));
        }
        // Only the last one succeeds.
        let _ = fs::remove_dir(&self.names);
    }

    fn name_of(&self, number: u32) -> PathBuf {
        self.names.join(path(number).file_name().unwrap_or_default())
    }

    /// Ends a device. With `force` its users get errors from now on.
    ///
    /// # Errors
    /// [`ExportErrorKind::InUse`], never with `force`; nothing has changed then.
    pub(crate) fn end(&self, device: &Device, force: bool) -> Result<(), ExportError> {
        self.cut(&device.volume, device.number, device.mark, force)
    }

    /// Ends the device of a volume that a former daemon has left, if there is one.
    ///
    /// # Errors
    /// Like [`Shop::end`].
    pub(crate) fn remove_left(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        let Some(note) = self.notes.read(volume) else { return Ok(()) };
        match find(note.mark) {
            Some(number) => self.cut(volume, number, note.mark, force),
            None => {
                self.notes.remove(volume);
                Ok(())
            }
        }
    }

    fn cut(&self, volume: &str, number: u32, mark: u64, force: bool) -> Result<(), ExportError> {
        let device = path(number);
        // The number may be another program's by now, and so are its users.
        let users = match (has_mark(number, mark), force) {
            (false, _) => Users::default(),
            (true, true) => Users::of(&device, None),
            (true, false) => Users::remaining(&device, None),
        };
        if !users.is_empty() && !force {
            return Err(busy(volume, &device, &users.to_string()));
        }
        if !users.is_empty() {
            tracing::warn!(volume, device = %device.display(), "the device is ended although it is {users}: they get I/O errors");
            if self.connected.has(mark) {
                sync(&users);
            }
        }
        let step = if force { Step::Cut } else { Step::Stop };
        let result = Task::run(step, number, mark);
        match result {
            Err(error) if Errno::from_io_error(&error) == Some(Errno::NODEV) => {}
            Err(error) if !force && Errno::from_io_error(&error) == Some(Errno::BUSY) => {
                return Err(busy(
                    volume,
                    &device,
                    "mounted or held where the daemon cannot see it",
                ));
            }
            Err(error) if !force => return Err(failed(device.display(), error)),
            // The note stays: it leads to the device.
            Err(error) => {
                tracing::warn!(volume, device = %device.display(), %error, "the device cannot be ended");
                return Ok(());
            }
            Ok(()) => {}
        }
        self.forget(volume, number);
        Ok(())
    }

    /// Removes the links to a device that is another program's by now.
    pub(crate) fn unlink(&self, device: &Device) {
        link::remove_of(&device.volume, &device.path());
        self.unname(&device.volume, device.number);
    }

    /// Removes all traces of a device that has ended.
    fn forget(&self, volume: &str, number: u32) {
        link::remove_of(volume, &path(number));
        self.unname(volume, number);
        self.notes.remove(volume);
    }
}

/// Returns whether a device could not be connected because it has ended, and is there for its users
/// only.
fn was_ended(error: &ExportError) -> bool {
    error.cause.as_ref().and_then(Errno::from_io_error) == Some(Errno::INVAL)
}

impl Device {
    /// Returns its path.
    pub(crate) fn path(&self) -> PathBuf {
        path(self.number)
    }

    /// Returns the link to it.
    pub(crate) fn link(&self) -> Option<&Path> {
        self.link.as_deref()
    }

    /// Returns whether it was ended without the daemon, and the number may be another program's.
    pub(crate) fn is_lost(&self) -> bool {
        !has_mark(self.number, self.mark)
    }

    /// Returns whether another daemon can serve it later.
    pub(crate) fn survives(&self) -> bool {
        self.survives
    }
}
