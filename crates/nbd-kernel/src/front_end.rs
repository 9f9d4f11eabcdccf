//! The kernel's NBD client as one of the daemon's front ends.

use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Once};

use forebay_core::FrontEndKind;
use forebay_device::ring::Ring;
use forebay_engine::{ExportError, ExportedDevice, Exports, FrontEnd, LaneFrontEnd, Settings};
use forebay_export::errors::check_ending;
use forebay_export::{Identify, Identity, Notes, Users};
use forebay_lane::Lane;
use forebay_nbd::Outliving;
use parking_lot::Mutex;
use rustix::io::Errno;
use rustix::thread::{CapabilitySet, capabilities};

use crate::control::Control;
use crate::device::{Device, Shop};
use crate::errors::{no_socket, refused};
use crate::lanes::Server;
use crate::sysfs::{find, path};
use crate::watch::{Shared, watch};

/// See the module.
pub struct NbdKernelFrontEnd {
    shared: Arc<Shared>,
    identify: Identify,
    watched: Once,
}

/// The daemon's NBD server, and the devices connected to it.
pub struct NbdServer {
    /// Unix socket of the server, if it has one.
    pub socket: Option<PathBuf>,
    /// The devices.
    pub connected: Outliving,
}

impl NbdKernelFrontEnd {
    /// Starts without exports. Notes about devices are in `dir`; in `names` is a link for each
    /// device, with the name of its volume, for udev. Devices that a former daemon has left are
    /// connected again when their volumes are published; those of volumes that are not `wanted` are
    /// ended.
    pub fn claim(
        dir: &Path,
        names: &Path,
        server: NbdServer,
        wanted: impl Fn(&str) -> bool,
        identify: Identify,
    ) -> Self {
        let (notes, names) = (Notes::new(dir), names.to_owned());
        let NbdServer { socket, connected } = server;
        let shop = Shop { notes, names, socket, connected };
        for volume in shop.notes.volumes() {
            let found = shop.notes.read(&volume).and_then(|note| find(note.mark)).map(path);
            match (found, wanted(&volume)) {
                (Some(device), true) => {
                    tracing::info!(volume, device = %device.display(), "a device of the former daemon waits for its volume");
                }
                (Some(device), false) => {
                    tracing::warn!(volume, device = %device.display(), "a device of the former daemon has no volume any more, and is ended");
                    if let Err(error) = shop.remove_left(&volume, true) {
                        tracing::error!(volume, "its device is left behind: {error}");
                    }
                }
                (None, _) => shop.notes.remove(&volume),
            }
        }
        let shared = Shared { shop, word: Arc::default(), devices: Mutex::default() };
        NbdKernelFrontEnd { shared: Arc::new(shared), identify, watched: Once::new() }
    }

    fn shop(&self) -> &Shop {
        &self.shared.shop
    }

    fn known(&self, volume: &str) -> Option<Arc<Device>> {
        self.shared.devices.lock().get(volume).cloned()
    }
}

impl FrontEnd for NbdKernelFrontEnd {
    fn kind(&self) -> Option<FrontEndKind> {
        Some(FrontEndKind::NbdKernel)
    }

    fn serve(
        &self,
        lane: &Rc<Lane>,
        _ring: &Rc<Ring>,
        _exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd> {
        Box::new(Server::serve(lane, &self.shared.word))
    }

    fn check(&self) -> Result<(), ExportError> {
        if self.shop().socket.is_none() {
            return Err(no_socket());
        }
        Control::open().map_err(refused)?;
        let able =
            capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN));
        if able { Ok(()) } else { Err(refused(Errno::PERM.into())) }
    }

    fn publish(&self, volume: &str, _: &Settings) -> Result<(), ExportError> {
        if let Some(device) = self.known(volume) {
            if !device.is_lost() {
                return Ok(());
            }
            self.shared.devices.lock().remove(volume);
        }
        self.shared.word.serve();
        // Not under the lock: reports must not wait for it.
        let device =
            self.shop().begin(volume, (self.identify)(volume).and_then(Identity::lasting))?;
        tracing::info!(volume, device = %device.path().display(), "exported");
        self.shared.devices.lock().insert(volume.to_owned(), Arc::new(device));
        self.watched.call_once(|| watch(&self.shared));
        Ok(())
    }

    fn withdraw(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        match self.known(volume) {
            Some(device) => {
                self.shop().end(&device, force)?;
                self.shared.devices.lock().remove(volume);
                Ok(())
            }
            None => self.shop().remove_left(volume, force),
        }
    }

    /// Leaves a device in use to the next daemon: its users wait.
    fn leave(&self, volume: &str) -> Result<(), ExportError> {
        self.shared.word.end();
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
        let ending = self.known(volume).filter(|device| !device.survives());
        ending.map_or(Ok(()), |device| check_ending(volume, &device.path()))
    }

    fn holds(&self, volume: &str) -> bool {
        let left = || self.shop().notes.read(volume).is_some_and(|note| find(note.mark).is_some());
        self.known(volume).is_some() || left()
    }

    fn lost(&self) -> Vec<String> {
        let all: Vec<_> = self.shared.devices.lock().clone().into_iter().collect();
        let lost = all.into_iter().filter(|(_, device)| device.is_lost());
        lost.map(|(volume, device)| {
            self.shop().unlink(&device);
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
