//! The interface to one kind of kernel block device.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::FrontEndKind;
use forebay_device::ring::Ring;
use forebay_engine::{ExportError, Exports, LaneFrontEnd};
use forebay_host::users::Users;
use forebay_lane::Lane;

use super::DeviceMap;
use crate::errors::failed;
use crate::{Names, Note, Notes};

/// The number of a device, and the mark that distinguishes it from later devices with the same
/// number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceId {
    /// The number of the device.
    pub number: u32,
    /// The mark of the device.
    pub mark: u64,
}

/// A device that the lanes serve.
#[derive(Debug)]
pub struct Made<S> {
    /// The number of the device.
    pub number: u32,
    /// Another daemon can serve the device later.
    pub survives: bool,
    /// Data of the driver.
    pub own: S,
}

/// A volume for which a device is made or revived.
#[derive(Clone, Copy, Debug)]
pub struct Publication<'a> {
    /// Name of the volume.
    pub volume: &'a str,
    /// The note about the device.
    pub note: &'a Note,
    pub(super) notes: &'a Notes,
    /// Names of devices, for udev.
    pub names: &'a Names,
}

impl Publication<'_> {
    /// Names the volume of a device for udev.
    pub fn name(&self, device: &Path) {
        let volume = self.volume;
        if let Err(error) = self.names.add(device, volume) {
            tracing::warn!(volume, %error, "udev will not know its device by name");
        }
    }

    /// Records in the note that a take-over of the device has begun, or has ended.
    ///
    /// # Errors
    /// The note cannot be written.
    pub fn note_half(&self, half: bool) -> Result<(), ExportError> {
        let written = self.notes.write(self.volume, &Note { half, ..self.note.clone() });
        written.map_err(|error| failed("the state directory", error))
    }
}

/// Makes, recognises and removes the devices of one kind. Only [`Driver::join`] is called on a
/// lane.
pub trait Driver: Send + Sync + 'static {
    /// The kind.
    const KIND: FrontEndKind;
    /// Participle for messages about a device that is no longer served.
    const REMOVED: &'static str;
    /// Whether a volume may get another device before the kernel has removed its former one, whose
    /// note is then set aside. Otherwise the note of a device that cannot be removed stays.
    const SETS_ASIDE: bool;

    /// Facts about a volume that its device needs.
    type Facts;
    /// Data of a served device.
    type Own: Send + Sync + 'static;

    /// Starts serving on the calling lane.
    fn join(&self, lane: &Rc<Lane>, ring: &Rc<Ring>, of: Rc<dyn Exports>) -> Box<dyn LaneFrontEnd>;

    /// Checks whether this machine can have such devices.
    ///
    /// # Errors
    /// The reason why it cannot.
    fn check(&self) -> Result<(), ExportError>;

    /// Returns the path of a device.
    fn path(&self, number: u32) -> PathBuf;

    /// Finds the device with a mark.
    fn find(&self, mark: u64) -> Option<u32>;

    /// Returns whether a served device was removed without the daemon.
    fn is_lost(&self, id: DeviceId, own: &Self::Own) -> bool;

    /// Makes the lanes prepare to serve a volume, and returns the facts that its device needs.
    ///
    /// # Errors
    /// The lanes do not serve the volume.
    fn prepare(&self, volume: &str) -> Result<Self::Facts, ExportError>;

    /// Makes a device. Its name must exist before udev sees the device.
    ///
    /// # Errors
    /// A step failed. The caller removes the device, if it exists.
    fn make(
        &self,
        of: &Publication<'_>,
        facts: &Self::Facts,
    ) -> Result<Made<Self::Own>, ExportError>;

    /// Returns whether a device that a former daemon has left can be served again.
    ///
    /// # Errors
    /// The device cannot be served again, and because of its users it cannot be removed either.
    fn can_revive(&self, _of: &Publication<'_>, _number: u32) -> Result<bool, ExportError> {
        Ok(true)
    }

    /// Serves a device of a former daemon. `None`: no program can use the device any more, and the
    /// volume needs a new one.
    ///
    /// # Errors
    /// A step failed. The device stays, with its note.
    fn revive(
        &self,
        of: &Publication<'_>,
        number: u32,
        facts: &Self::Facts,
    ) -> Result<Option<Made<Self::Own>>, ExportError>;

    /// Called before a device is removed by force, possibly with users. `served`: the lanes of this
    /// daemon serve it.
    fn before_cut(&self, volume: &str, id: DeviceId, users: &Users, served: bool);

    /// Removes a device; without `force` only if no program uses it.
    ///
    /// # Errors
    /// The error of the system; `BUSY` for a device in use, `NODEV` for one that does not exist.
    fn remove(&self, id: DeviceId, force: bool) -> io::Result<()>;

    /// Waits until no lane serves a removed device.
    fn ended(&self, _volume: &str, _own: &Self::Own) {}

    /// Called before the links and the note of a volume's device are removed.
    fn forget(&self, _volume: &str) {}

    /// Releases the number of a removed device. Returns whether the kernel has released it.
    fn delete(&self, _volume: &str, _id: DeviceId) -> bool {
        true
    }

    /// Returns whether the kernel has removed a device whose note was set aside. With `force`, asks
    /// the kernel once more to remove it.
    fn is_removed(&self, _id: DeviceId, _force: bool) -> bool {
        true
    }

    /// Called after a volume was exported.
    fn published(&self, _devices: &Arc<DeviceMap<Self::Own>>) {}

    /// Called when the daemon ends.
    fn leaving(&self) {}

    /// Checks whether the next program of this process could serve a volume.
    ///
    /// # Errors
    /// The reason why it could not.
    fn check_hand_over(&self, _volume: &str) -> Result<(), ExportError> {
        Ok(())
    }
}
