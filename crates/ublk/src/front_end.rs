//! ublk as one of the daemon's front ends.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::path::Path;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::FrontEndKind;
use forebay_device::ring::Ring;
use forebay_engine::{
    ExportError, ExportErrorKind, ExportedDevice, Exports, FrontEnd, LaneFrontEnd, Settings,
};
use forebay_export::errors::check_ending;
use forebay_export::{Identify, Identity, Notes, Users};
use forebay_lane::{Lane, MemoryBudget};
use parking_lot::Mutex;
use rustix::thread::{CapabilitySet, capabilities};

use crate::board::Board;
use crate::device::{Device, Shop, find};
use crate::errors::refused;
use crate::helper::path;
use crate::server::Server;

/// See the module.
pub struct UblkFrontEnd {
    shop: Shop,
    identify: Identify,
    devices: Mutex<BTreeMap<String, Arc<Device>>>,
}

impl UblkFrontEnd {
    /// Starts without exports. Notes about devices are in `dir`. For udev, `names` has a link for
    /// each device, with the name of its volume. Devices that a former daemon has left are taken
    /// over when their volumes are published; devices of volumes that are not `wanted` are removed.
    /// Requests share `memory`.
    pub fn claim(
        dir: &Path,
        names: &Path,
        wanted: impl Fn(&str) -> bool,
        identify: Identify,
        memory: Arc<MemoryBudget>,
    ) -> Self {
        let names = names.to_owned();
        let notes = Notes::new(dir);
        let (board, begun) = Default::default();
        let shop = Shop { notes, names, board, memory, begun };
        for (volume, _) in shop.notes.all_aside() {
            shop.sweep(&volume, false);
        }
        for volume in shop.notes.volumes() {
            let found = shop.notes.read(&volume).and_then(|note| find(note.mark));
            let device = found.map(|found| path(found.number));
            match (device, wanted(&volume)) {
                (Some(device), true) => {
                    tracing::info!(volume, device = %device.display(), "a device of the former daemon waits for its volume");
                }
                (Some(device), false) => {
                    tracing::warn!(volume, device = %device.display(), "a device of the former daemon has no volume any more, and is removed");
                    if let Err(error) = shop.remove_left(&volume, true) {
                        tracing::error!(volume, "its device is left behind: {error}");
                    }
                }
                (None, _) => shop.notes.remove(&volume),
            }
        }
        UblkFrontEnd { shop, identify, devices: Mutex::default() }
    }

    fn board(&self) -> &Arc<Board> {
        &self.shop.board
    }

    fn known(&self, volume: &str) -> Option<Arc<Device>> {
        self.devices.lock().get(volume).cloned()
    }
}

impl FrontEnd for UblkFrontEnd {
    fn kind(&self) -> Option<FrontEndKind> {
        Some(FrontEndKind::Ublk)
    }

    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd> {
        Box::new(Server::serve(lane, ring, exports, self.board(), &self.shop.memory))
    }

    fn check(&self) -> Result<(), ExportError> {
        let control = "/dev/ublk-control";
        let opened = OpenOptions::new().read(true).write(true).open(control);
        opened.map_err(|error| refused(control, error))?;
        let able =
            capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        if able { Ok(()) } else { Err(refused(control, rustix::io::Errno::PERM.into())) }
    }

    fn publish(&self, volume: &str, _: &Settings) -> Result<(), ExportError> {
        if let Some(device) = self.known(volume) {
            if !device.is_lost() {
                return Ok(());
            }
            self.shop.end(&device, true)?;
            self.devices.lock().remove(volume);
        }
        // Not under the lock: reports must not wait for it.
        let device =
            self.shop.begin(volume, (self.identify)(volume).and_then(Identity::lasting))?;
        tracing::info!(volume, device = %device.path().display(), "exported");
        self.devices.lock().insert(volume.to_owned(), Arc::new(device));
        Ok(())
    }

    fn withdraw(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        self.shop.sweep(volume, force);
        match self.known(volume) {
            Some(device) => {
                self.shop.end(&device, force)?;
                self.devices.lock().remove(volume);
                Ok(())
            }
            None => self.shop.remove_left(volume, force),
        }
    }

    /// Leaves a device in use to the next daemon: its users wait.
    fn leave(&self, volume: &str) -> Result<(), ExportError> {
        let Some(device) = self.known(volume) else { return Ok(()) };
        if !device.survives() {
            return self.withdraw(volume, true);
        }
        let path = device.path();
        if Users::of(&path, None).is_empty() && self.withdraw(volume, false).is_ok() {
            return Ok(());
        }
        tracing::info!(volume, device = %path.display(), "the device is in use: its requests wait for the next daemon");
        Ok(())
    }

    fn check_hand_over(&self, volume: &str) -> Result<(), ExportError> {
        if self.shop.only_this_process_goes_on(volume) {
            let message = format!(
                "the device of '{volume}' is not taken over from the former daemon yet, which only this program can do: 'forebay start {volume}' tries again, 'forebay stop --force {volume}' removes it"
            );
            return Err(ExportError { kind: ExportErrorKind::Failed, message, cause: None });
        }
        let ending = self.known(volume).filter(|device| !device.survives());
        ending.map_or(Ok(()), |device| check_ending(volume, &device.path()))
    }

    fn holds(&self, volume: &str) -> bool {
        let left = || self.shop.notes.read(volume).is_some_and(|note| find(note.mark).is_some());
        self.known(volume).is_some() || left()
    }

    fn lost(&self) -> Vec<String> {
        let all: Vec<_> = self.devices.lock().clone().into_iter().collect();
        let lost = all.into_iter().filter(|(_, device)| device.is_lost());
        lost.map(|(volume, device)| {
            device.unlink();
            volume
        })
        .collect()
    }

    fn device(&self, volume: &str) -> Option<ExportedDevice> {
        let device = self.known(volume)?;
        Some(ExportedDevice { path: device.path(), link: device.link().map(Path::to_owned) })
    }

    fn release(&self) {}
}
