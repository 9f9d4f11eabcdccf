//! Reconnects devices whose connections end while the daemon serves them. The server drops a client
//! that does not take its replies while others wait for the memory of its requests.
#![expect(clippy::disallowed_methods, reason = "a thread of its own, which waits most of the time")]

use std::sync::{Arc, Weak};
use std::time::Duration;

use forebay_export::volume_devices::DeviceMap;

use crate::device::Shop;

/// Interval of checks of the connections.
const STEP: Duration = Duration::from_secs(1);

/// Watches the devices of a front end until the front end or the daemon ends.
pub(crate) fn watch(shop: &Arc<Shop>, devices: &Arc<DeviceMap<()>>) {
    let (shop, devices) = (shop.clone(), Arc::downgrade(devices));
    let named = std::thread::Builder::new().name("nbd-devices".to_owned());
    if let Err(error) = named.spawn(move || check(&shop, &devices)) {
        tracing::error!(%error, "no thread to watch the connections of NBD devices");
    }
}

fn check(shop: &Shop, devices: &Weak<DeviceMap<()>>) {
    loop {
        std::thread::sleep(STEP);
        let Some(devices) = devices.upgrade() else { return };
        if shop.word.is_ending() {
            return;
        }
        // The lock is released before the work, so that reports do not wait for it.
        let devices: Vec<_> = devices.lock().values().cloned().collect();
        devices.iter().for_each(|device| shop.mend(device));
    }
}
