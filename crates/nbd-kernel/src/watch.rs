//! Connects devices again whose connections end while the daemon serves them: the server drops a
//! client that does not take its replies while others wait for the memory of its requests.
#![expect(clippy::disallowed_methods, reason = "a thread of its own, which waits most of the time")]

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;

use crate::device::{Device, Shop};
use crate::lanes::Word;

/// Interval of checks of the connections.
const STEP: Duration = Duration::from_secs(1);

/// State that the front end shares with the thread that watches its devices.
pub(crate) struct Shared {
    pub(crate) shop: Shop,
    pub(crate) word: Arc<Word>,
    /// By the names of their volumes.
    pub(crate) devices: Mutex<BTreeMap<String, Arc<Device>>>,
}

/// Watches the devices of a front end, until that or the daemon ends.
pub(crate) fn watch(shared: &Arc<Shared>) {
    let weak = Arc::downgrade(shared);
    let named = std::thread::Builder::new().name("nbd-devices".to_owned());
    if let Err(error) = named.spawn(move || check(&weak)) {
        tracing::error!(%error, "no thread to watch the connections of NBD devices");
    }
}

fn check(shared: &Weak<Shared>) {
    loop {
        std::thread::sleep(STEP);
        let Some(shared) = shared.upgrade() else { return };
        if shared.word.is_ending() {
            return;
        }
        // Not under the lock: reports must not wait for it.
        let devices: Vec<_> = shared.devices.lock().values().cloned().collect();
        devices.iter().for_each(|device| shared.shop.mend(device));
    }
}
