//! The kernel's NBD client as one of the daemon's front ends: the driver of its devices.

use std::io;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, Once};

use forebay_core::FrontEndKind;
use forebay_device::ring::Ring;
use forebay_engine::{ExportError, Exports, FrontEnd, LaneFrontEnd};
use forebay_export::Identify;
use forebay_export::errors::check_privileged;
use forebay_export::sync::sync;
use forebay_export::volume_devices::{
    DeviceId, DeviceMap, Driver, Made, Publication, VolumeDevices,
};
use forebay_host::users::Users;
use forebay_lane::Lane;
use rustix::io::Errno;

use crate::control::Control;
use crate::device::{NbdServer, Shop};
use crate::errors::{no_socket, refused};
use crate::helper::{Step, Task};
use crate::lanes::NbdKernelLane;
use crate::sysfs::{find, has_mark, path};
use crate::watch::watch;

/// Claims the front end, see [`VolumeDevices::claim`].
pub fn claim(
    (notes, names): (&Path, &Path),
    server: NbdServer,
    wanted: impl Fn(&str) -> bool,
    identify: Identify,
) -> Arc<dyn FrontEnd> {
    let shop = Arc::new(Shop { server, word: Arc::default() });
    let driver = NbdKernel { shop, watched: Once::new() };
    Arc::new(VolumeDevices::claim(driver, (notes, names), wanted, identify))
}

/// The driver.
struct NbdKernel {
    shop: Arc<Shop>,
    watched: Once,
}

impl Driver for NbdKernel {
    const KIND: FrontEndKind = FrontEndKind::NbdKernel;
    const REMOVED: &'static str = "ended";
    const SETS_ASIDE: bool = false;

    type Facts = ();
    type Own = ();

    fn join(&self, lane: &Rc<Lane>, _: &Rc<Ring>, _: Rc<dyn Exports>) -> Box<dyn LaneFrontEnd> {
        Box::new(NbdKernelLane::serve(lane, &self.shop.word))
    }

    fn check(&self) -> Result<(), ExportError> {
        if self.shop.server.socket.is_none() {
            return Err(no_socket());
        }
        Control::open().and_then(|_| check_privileged()).map_err(refused)
    }

    fn path(&self, number: u32) -> PathBuf {
        path(number)
    }

    fn find(&self, mark: u64) -> Option<u32> {
        find(mark)
    }

    fn is_lost(&self, DeviceId { number, mark }: DeviceId, (): &()) -> bool {
        !has_mark(number, mark)
    }

    fn prepare(&self, _volume: &str) -> Result<(), ExportError> {
        self.shop.word.serve();
        Ok(())
    }

    fn make(&self, of: &Publication<'_>, (): &()) -> Result<Made<()>, ExportError> {
        self.shop.make(of)
    }

    fn revive(
        &self,
        of: &Publication<'_>,
        number: u32,
        (): &(),
    ) -> Result<Option<Made<()>>, ExportError> {
        let device = path(number);
        of.name(&device);
        let volume = of.volume;
        match self.shop.take_over(volume, DeviceId { number, mark: of.note.mark }) {
            // Another program ended the device, such as nbd-client, or a daemon that was killed
            // before it removed its note.
            Err(error) if was_ended(&error) => {
                tracing::error!(volume, device = %device.display(), "its device was ended while it was in use: users of it get I/O errors, and there is a new one");
                Ok(None)
            }
            result => result.map(|()| Some(Made { number, survives: true, own: () })),
        }
    }

    fn before_cut(&self, _: &str, id: DeviceId, users: &Users, _: bool) {
        if self.shop.server.connected.has(id.mark) {
            sync(users);
        }
    }

    fn remove(&self, DeviceId { number, mark }: DeviceId, force: bool) -> io::Result<()> {
        Task::run(if force { Step::Cut } else { Step::Stop }, number, mark)
    }

    fn published(&self, devices: &Arc<DeviceMap<()>>) {
        self.watched.call_once(|| watch(&self.shop, devices));
    }

    fn leaving(&self) {
        self.shop.word.end();
    }
}

/// Returns whether the error means that the device has ended and exists only because programs have
/// it open.
fn was_ended(error: &ExportError) -> bool {
    error.cause.as_ref().and_then(Errno::from_io_error) == Some(Errno::INVAL)
}
