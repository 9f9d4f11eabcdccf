//! Clients that are block devices of the kernel and outlive their connections, and which of them
//! are connected.
//!
//! Devices are distinguished by the number that they give in the handshake, see
//! [`OUTLIVING`](crate::wire::option::OUTLIVING).

use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::Survives;
use parking_lot::Mutex;

/// A device that outlives its connections, and sends requests again that were not answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutlivingDevice {
    /// Distinguishes the device from others.
    pub mark: u64,
    /// The device has a volatile write cache: its users flush data that must be durable.
    pub flushes: bool,
}

impl OutlivingDevice {
    /// Returns the failure that its writes survive at least. The client does not notice the end of
    /// the daemon, so its next flush would otherwise cover writes that were lost.
    pub(crate) fn promise(self) -> Survives {
        if self.flushes { Survives::Daemon } else { Survives::PowerLoss }
    }

    /// Returns the data of the option with which the device identifies itself.
    pub fn to_bytes(self) -> [u8; 9] {
        let mut bytes = [0; 9];
        bytes[..8].copy_from_slice(&self.mark.to_be_bytes());
        bytes[8] = self.flushes.into();
        bytes
    }

    /// The inverse of [`OutlivingDevice::to_bytes`].
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let (mark, rest) = bytes.split_first_chunk()?;
        let mark = u64::from_be_bytes(*mark);
        match rest {
            [flushes @ (0 | 1)] => Some(OutlivingDevice { mark, flushes: *flushes == 1 }),
            _ => None,
        }
    }
}

/// The number of sessions of each device, over all lanes.
#[derive(Clone, Debug, Default)]
pub struct Outliving(Arc<Mutex<BTreeMap<u64, usize>>>);

/// A session of a device, as long as this exists: until its last request in flight has ended, even
/// if the client has left. Before that the device must not get another connection, by which it
/// sends these requests again: the first copies could then overwrite newer writes.
#[derive(Debug)]
pub(crate) struct Present {
    all: Outliving,
    device: u64,
}

impl Outliving {
    /// Returns whether the device with a mark is connected, has requests in flight from a
    /// connection that has ended, or waits for its volume after a hand-over.
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
