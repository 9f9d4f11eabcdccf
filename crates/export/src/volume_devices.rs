//! Block devices of the kernel that outlive the daemon, one for each volume. This module manages
//! the life of a device, from its creation or its revival after a crash to its end; a [`Driver`]
//! implements the steps of one kind.
#![expect(clippy::disallowed_methods, reason = "draws marks that no other device has")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::FrontEndKind;
use forebay_device::ring::Ring;
use forebay_engine::{ExportError, ExportedDevice, Exports, FrontEnd, LaneFrontEnd, Settings};
use forebay_host::users::Users;
use forebay_lane::Lane;
use parking_lot::Mutex;
use rustix::io::Errno;

use crate::errors::{busy, check_ending, failed};
use crate::{Identify, Names, Note, Notes, VolumeIdentity, link};

mod driver;

pub use driver::{DeviceId, Driver, Made, Publication};

/// A device whose requests the lanes serve, and its volume.
#[derive(Debug)]
pub struct VolumeDevice<S> {
    /// Name of the volume.
    pub volume: String,
    /// The device.
    pub id: DeviceId,
    /// Another daemon can serve the device later.
    pub survives: bool,
    /// Data of the driver.
    pub own: S,
    link: Option<PathBuf>,
}

/// Devices by the names of their volumes.
pub type DeviceMap<S> = Mutex<BTreeMap<String, Arc<VolumeDevice<S>>>>;

/// See the module.
pub struct VolumeDevices<D: Driver> {
    driver: D,
    notes: Notes,
    names: Names,
    identify: Identify,
    devices: Arc<DeviceMap<D::Own>>,
}

impl<D: Driver> VolumeDevices<D> {
    /// Starts without exports. Notes about devices are in `notes`; `names` gets a link for each
    /// device, from which udev reads the name of its volume. Devices that a former daemon has left
    /// are served again when their volumes are published; devices of volumes that are not `wanted`
    /// are removed.
    pub fn claim(
        driver: D,
        (notes, names): (&Path, &Path),
        wanted: impl Fn(&str) -> bool,
        identify: Identify,
    ) -> Self {
        let (notes, names, devices) = (Notes::new(notes), Names::new(names), Arc::default());
        let all = VolumeDevices { driver, notes, names, identify, devices };
        for (volume, _) in all.notes.all_aside() {
            all.sweep(&volume, false);
        }
        for volume in all.notes.volumes() {
            let device = all.left(&volume).map(|(id, _)| all.driver.path(id.number));
            match (device, wanted(&volume)) {
                (Some(device), true) => {
                    tracing::info!(volume, device = %device.display(), "a device of the former daemon waits for its volume");
                }
                (Some(device), false) => {
                    tracing::warn!(volume, device = %device.display(), "a device of the former daemon has no volume any more, and is {}", D::REMOVED);
                    if let Err(error) = all.remove_left(&volume, true) {
                        tracing::error!(volume, "its device is left behind: {error}");
                    }
                }
                (None, _) => all.notes.remove(&volume),
            }
        }
        all
    }

    fn known(&self, volume: &str) -> Option<Arc<VolumeDevice<D::Own>>> {
        self.devices.lock().get(volume).cloned()
    }

    /// Returns the device in the note of a volume: one of a former daemon, or one whose creation is
    /// in progress.
    fn left(&self, volume: &str) -> Option<(DeviceId, Note)> {
        let note = self.notes.read(volume)?;
        let number = self.driver.find(note.mark)?;
        Some((DeviceId { number, mark: note.mark }, note))
    }

    fn is_lost(&self, device: &VolumeDevice<D::Own>) -> bool {
        self.driver.is_lost(device.id, &device.own)
    }

    /// Exports a volume: serves the device of a former daemon again, or makes a new one.
    ///
    /// # Errors
    /// A step failed. A new device is removed; one of a former daemon stays.
    fn begin(&self, volume: &str) -> Result<VolumeDevice<D::Own>, ExportError> {
        // `None` if RAM may hold data that the volume has acknowledged as durable: the volume then
        // has no lasting identity.
        let identity = (self.identify)(volume).and_then(VolumeIdentity::lasting);
        let facts = self.driver.prepare(volume)?;
        self.sweep(volume, false);
        if let Some((id, note)) = self.left(volume) {
            let revives = self.driver.can_revive(&self.of(volume, &note), id.number)?;
            if revives && identity.as_ref() == Some(&note.identity) {
                if let Some(made) =
                    self.driver.revive(&self.of(volume, &note), id.number, &facts)?
                {
                    return Ok(self.served(volume, note.mark, made));
                }
                self.forget(volume, id, !D::SETS_ASIDE);
            } else {
                self.remove_left(volume, true)?;
            }
        }
        let mark = fastrand::u64(1..);
        let note = Note { mark, identity: identity.unwrap_or_default(), half: false };
        self.of(volume, &note).note_half(false)?;
        let made = self.driver.make(&self.of(volume, &note), &facts);
        let made = made.inspect_err(|error| self.undo(volume, mark, error))?;
        Ok(self.served(volume, mark, made))
    }

    fn of<'a>(&'a self, volume: &'a str, note: &'a Note) -> Publication<'a> {
        Publication { volume, note, notes: &self.notes, names: &self.names }
    }

    /// Cleans up after a failed creation: removes the device, if the kernel has made one, and the
    /// note.
    fn undo(&self, volume: &str, mark: u64, error: &ExportError) {
        let timed_out = |cause: &std::io::Error| cause.kind() == std::io::ErrorKind::TimedOut;
        match self.driver.find(mark) {
            Some(number) => {
                let id = DeviceId { number, mark };
                let gone = self.driver.remove(id, true).is_ok();
                self.forget(volume, id, gone);
            }
            // A command that has timed out may still take effect.
            None if error.cause.as_ref().is_some_and(timed_out) => {}
            None => self.notes.remove(volume),
        }
    }

    fn served(&self, volume: &str, mark: u64, made: Made<D::Own>) -> VolumeDevice<D::Own> {
        let Made { number, survives, own } = made;
        let link = link::make(volume, &self.driver.path(number));
        let id = DeviceId { number, mark };
        VolumeDevice { volume: volume.to_owned(), id, survives, own, link }
    }

    /// Removes the device of a volume that a former daemon has left, if there is one.
    ///
    /// # Errors
    /// See [`VolumeDevices::cut`].
    fn remove_left(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        match self.left(volume) {
            Some((id, _)) => return self.cut(volume, id, force, None),
            None => self.notes.remove(volume),
        }
        Ok(())
    }

    /// Removes a device; `served` is its data if the lanes serve it. With `force`, users get errors
    /// from now on.
    ///
    /// # Errors
    /// [`forebay_engine::ExportErrorKind::InUse`], never with `force`; nothing has changed then.
    fn cut(
        &self,
        volume: &str,
        id: DeviceId,
        force: bool,
        served: Option<&D::Own>,
    ) -> Result<(), ExportError> {
        let device = self.driver.path(id.number);
        // Another program may have a device of this number by now, with users of its own.
        let users = match (self.driver.find(id.mark) != Some(id.number), force) {
            (true, _) => Users::default(),
            (false, true) => Users::of(&device, None),
            (false, false) => Users::remaining(&device, None),
        };
        if !users.is_empty() && !force {
            return Err(busy(volume, &device, &users.to_string()));
        }
        if !users.is_empty() {
            tracing::warn!(volume, device = %device.display(), "the device is {} although it is {users}: they get I/O errors", D::REMOVED);
        }
        if force {
            self.driver.before_cut(volume, id, &users, served.is_some());
        }
        let gone = match self.driver.remove(id, force) {
            Ok(()) => true,
            Err(error) => match Errno::from_io_error(&error) {
                Some(Errno::NODEV) => true,
                Some(Errno::BUSY) if !force => {
                    let elsewhere = "mounted or held where the daemon cannot see it";
                    return Err(busy(volume, &device, elsewhere));
                }
                _ if !force => return Err(failed(device.display(), error)),
                _ => {
                    tracing::warn!(volume, device = %device.display(), %error, "the device cannot be {}", D::REMOVED);
                    false
                }
            },
        };
        if let Some(own) = served {
            self.driver.ended(volume, own);
        }
        self.forget(volume, id, gone);
        Ok(())
    }

    /// Removes the links to a device, and its note if the kernel has removed the device (`gone`).
    /// While the kernel has the device, the note stays, so that the device can be found.
    fn forget(&self, volume: &str, id: DeviceId, gone: bool) {
        if !gone && !D::SETS_ASIDE {
            return;
        }
        self.driver.forget(volume);
        self.unlink(volume, id);
        // A delete command for a device that the kernel cannot remove could block the creation of
        // others.
        if gone && self.driver.delete(volume, id) {
            self.notes.remove(volume);
        } else {
            self.notes.set_aside(volume);
        }
    }

    /// Removes the links from a volume to a device number. Links of other volumes to the number
    /// stay, because the kernel may have given it to another device.
    fn unlink(&self, volume: &str, id: DeviceId) {
        let device = self.driver.path(id.number);
        link::remove_of(volume, &device);
        self.names.remove_of(volume, &device);
    }

    /// Deletes the devices of a volume whose earlier removal failed, as far as the kernel has
    /// released them. With `force`, asks the kernel once more to remove them.
    fn sweep(&self, volume: &str, force: bool) {
        for mark in self.notes.aside(volume) {
            let id = self.driver.find(mark).map(|number| DeviceId { number, mark });
            match id {
                Some(id)
                    if !self.driver.is_removed(id, force) || !self.driver.delete(volume, id) =>
                {
                    let device = self.driver.path(id.number);
                    tracing::warn!(volume, device = %device.display(), "the kernel has not removed this device of earlier yet");
                }
                _ => self.notes.remove_aside(volume, mark),
            }
        }
    }
}

impl<D: Driver> FrontEnd for VolumeDevices<D> {
    fn kind(&self) -> Option<FrontEndKind> {
        Some(D::KIND)
    }

    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd> {
        self.driver.join(lane, ring, exports)
    }

    fn check(&self) -> Result<(), ExportError> {
        self.driver.check()
    }

    fn publish(&self, volume: &str, _: &Settings) -> Result<(), ExportError> {
        if let Some(device) = self.known(volume) {
            if !self.is_lost(&device) {
                return Ok(());
            }
            self.cut(volume, device.id, true, Some(&device.own))?;
            self.devices.lock().remove(volume);
        }
        // The lock is released here, so that reports do not wait for it.
        let device = self.begin(volume)?;
        let path = self.driver.path(device.id.number);
        tracing::info!(volume, device = %path.display(), "exported");
        self.devices.lock().insert(volume.to_owned(), Arc::new(device));
        self.driver.published(&self.devices);
        Ok(())
    }

    fn withdraw(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        self.sweep(volume, force);
        match self.known(volume) {
            Some(device) => {
                self.cut(volume, device.id, force, Some(&device.own))?;
                self.devices.lock().remove(volume);
                Ok(())
            }
            None => self.remove_left(volume, force),
        }
    }

    /// Leaves a device in use to the next daemon; users wait meanwhile.
    fn leave(&self, volume: &str) -> Result<(), ExportError> {
        self.driver.leaving();
        let Some(device) = self.known(volume) else { return Ok(()) };
        if !device.survives {
            return self.withdraw(volume, true);
        }
        let path = self.driver.path(device.id.number);
        if Users::of(&path, None).is_empty() && self.withdraw(volume, false).is_ok() {
            return Ok(());
        }
        tracing::info!(volume, device = %path.display(), "the device is in use: its requests wait for the next daemon");
        Ok(())
    }

    fn check_hand_over(&self, volume: &str) -> Result<(), ExportError> {
        self.driver.check_hand_over(volume)?;
        let ending = self.known(volume).filter(|device| !device.survives);
        ending.map_or(Ok(()), |it| check_ending(volume, &self.driver.path(it.id.number)))
    }

    fn holds(&self, volume: &str) -> bool {
        self.known(volume).is_some() || self.left(volume).is_some()
    }

    fn lost(&self) -> Vec<String> {
        let all: Vec<_> = self.devices.lock().values().cloned().collect();
        let lost = all.into_iter().filter(|device| self.is_lost(device));
        lost.map(|device| {
            self.unlink(&device.volume, device.id);
            device.volume.clone()
        })
        .collect()
    }

    fn device(&self, volume: &str) -> Option<ExportedDevice> {
        let device = self.known(volume)?;
        Some(ExportedDevice { path: self.driver.path(device.id.number), link: device.link.clone() })
    }

    fn release(&self) {}
}

#[cfg(test)]
mod tests;
