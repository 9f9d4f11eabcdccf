//! Creates and reconnects devices. This runs off the lanes, because it sends requests that the
//! lanes answer.
#![expect(clippy::disallowed_methods, reason = "waits for the kernel, on a thread of an operation")]

use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use forebay_engine::{ExportError, ExportErrorKind};
use forebay_export::errors::failed;
use forebay_export::volume_devices::{DeviceId, Made, Publication, VolumeDevice};
use forebay_nbd::{Outliving, OutlivingDevice};
use rustix::io::Errno;

use crate::control::{Control, NewDevice};
use crate::errors::{no_socket, refused};
use crate::handshake::{KernelExport, agree};
use crate::helper::{Step, Task};
use crate::lanes::Word;
use crate::sysfs::{flushes, has_mark, identifier, path, size, unused};

/// Time for which requests wait for the next daemon. After it they fail, as if the disk were gone.
const ABSENCE: Duration = Duration::from_secs(600);
/// The same time for a device that does not outlive the daemon.
const NO_ABSENCE: Duration = Duration::from_secs(1);
/// Time limit of the handshake. After a hand-over, new NBD clients wait up to 10 s for other
/// volumes.
const HANDSHAKE: Duration = Duration::from_secs(20);
/// Time limit for the kernel to notice the end of a connection.
const NOTICE: Duration = Duration::from_secs(10);
/// Interval at which the end is checked.
const STEP: Duration = Duration::from_millis(20);

/// The daemon's NBD server, and the devices connected to it.
pub struct NbdServer {
    /// Unix socket of the server; `None` if it listens only to TCP.
    pub socket: Option<PathBuf>,
    /// The devices.
    pub connected: Outliving,
}

/// Resources for making devices.
pub(crate) struct Shop {
    pub(crate) server: NbdServer,
    pub(crate) word: Arc<Word>,
}

impl Shop {
    /// Sets up a device.
    pub(crate) fn make(&self, of: &Publication<'_>) -> Result<Made<()>, ExportError> {
        let (volume, mark, survives) = (of.volume, of.note.mark, of.note.survives());
        let control = Control::open().map_err(refused)?;
        let (socket, KernelExport { size, flags, sector }) =
            self.dial(volume, survives.then_some(OutlivingDevice { mark, flushes: true }))?;
        let patience = if survives { ABSENCE } else { NO_ABSENCE };
        let text = identifier(mark);
        for number in unused() {
            // The name must exist before udev sees the device.
            let (block, identifier) = (u64::from(sector), &*text);
            let new = NewDevice { number, size, block, flags, patience, identifier };
            let device = path(number);
            of.name(&device);
            let made = control.connect(&new, socket.as_fd());
            if made.is_ok() && has_mark(number, mark) {
                return Ok(made_with(volume, number, mark, survives));
            }
            of.names.remove_of(volume, &device);
            match made {
                Ok(()) => {
                    // The kernel has not stored the identifier, so the device could not be
                    // distinguished from those of other programs.
                    let _ = control.disconnect(number);
                    return Err(refused(io::ErrorKind::Unsupported.into()));
                }
                Err(error) => {
                    // Another program uses or examines the device.
                    if Errno::from_io_error(&error) != Some(Errno::BUSY) {
                        return Err(refused(error));
                    }
                }
            }
        }
        let message = "every device of the kernel's NBD client is in use".to_owned();
        Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None })
    }

    /// Connects the device of a former daemon.
    pub(crate) fn take_over(&self, volume: &str, id: DeviceId) -> Result<(), ExportError> {
        // A device that is connected was handed over with its connection by the former program.
        if !self.server.connected.has(id.mark) {
            let begun = Instant::now();
            self.connect_again(volume, id, NOTICE)?;
            tracing::info!(volume, device = %path(id.number).display(), seconds = begun.elapsed().as_secs_f32(), "its device is served again");
        }
        Ok(())
    }

    /// Gives a device a new connection when the kernel has noticed that the former one has ended.
    fn connect_again(
        &self,
        volume: &str,
        DeviceId { number, mark }: DeviceId,
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

    /// Reconnects a device whose connection has ended for any reason while the daemon serves its
    /// volume.
    pub(crate) fn mend(&self, device: &VolumeDevice<()>) {
        let VolumeDevice { volume, id, survives, .. } = device;
        if !survives || self.server.connected.has(id.mark) {
            return;
        }
        match self.connect_again(volume, *id, Duration::ZERO) {
            Ok(()) => {
                tracing::warn!(volume, device = %path(id.number).display(), "the connection of its device had ended, and is replaced");
            }
            // This is normal if the device has just been connected or is being ended.
            Err(error) => tracing::debug!(volume, "its device is not connected again: {error}"),
        }
    }

    /// Connects to the daemon's NBD server, and agrees on a volume.
    fn dial(
        &self,
        volume: &str,
        device: Option<OutlivingDevice>,
    ) -> Result<(UnixStream, KernelExport), ExportError> {
        let socket = self.server.socket.as_ref().ok_or_else(no_socket)?;
        let dialled = || {
            let mut stream = UnixStream::connect(socket)?;
            stream.set_read_timeout(Some(HANDSHAKE))?;
            stream.set_write_timeout(Some(HANDSHAKE))?;
            let export = agree(&mut stream, volume, device)?;
            // The time limits would end the connection once the kernel has it.
            stream.set_read_timeout(None)?;
            stream.set_write_timeout(None)?;
            Ok((stream, export))
        };
        dialled().map_err(|error| failed(socket.display(), error))
    }
}

/// Returns a new device.
fn made_with(volume: &str, number: u32, mark: u64, survives: bool) -> Made<()> {
    // The write fails where sysfs is read-only; a udev rule sets the time there.
    if survives && let Err(error) = Task::run(Step::Retry, number, mark) {
        tracing::debug!(volume, number, %error, "requests are sent again late");
    }
    Made { number, survives, own: () }
}
