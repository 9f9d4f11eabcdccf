//! Clients that are devices of the kernel, and outlive their connections: which of them are connected.
//!
//! Devices are told apart by the number that they give in the handshake, see
//! [`OUTLIVING`](crate::wire::option::OUTLIVING).

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;

/// The number of sessions of each device, over all lanes.
#[derive(Clone, Debug, Default)]
pub struct Outliving(Arc<Mutex<BTreeMap<u64, usize>>>);

/// A session of a device, as long as this exists: until its last request in flight has ended, even if the client
/// has left. Before that the device must not get another connection, by which it sends these requests again: the
/// first copies could then overwrite what it has written since.
#[derive(Debug)]
pub(crate) struct Present {
    all: Outliving,
    device: u64,
}

impl Outliving {
    /// Returns whether a device is connected, has requests in flight from a connection that has ended, or waits
    /// for its volume after a hand-over.
    pub fn has(&self, device: u64) -> bool {
        self.0.lock().contains_key(&device)
    }

    /// Counts a session.
    pub(crate) fn enter(&self, device: u64) -> Present {
        *self.0.lock().entry(device).or_default() += 1;
        Present { all: self.clone(), device }
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        let mut all = self.all.0.lock();
        if let Some(count) = all.get_mut(&self.device) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.device);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_is_connected_until_its_last_session_ends() {
        let all = Outliving::default();
        let (first, second, other) = (all.enter(1), all.enter(1), all.enter(2));
        drop(first);
        assert!(all.has(1) && all.has(2));
        drop(second);
        assert!(!all.has(1) && all.has(2));
        drop(other);
        assert!(all.0.lock().is_empty());
    }
}
