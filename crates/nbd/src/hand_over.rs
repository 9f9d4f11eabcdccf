//! The parts that the next program inherits: listening sockets, and clients between two requests.
//!
//! Labels are lists of words, so that other versions can read those that they know: a program that
//! does not know a label, or misses a word, disconnects that client.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use forebay_engine::{BlockService, Exports, HandedOver};
use forebay_export::Identify;
use forebay_lane::Lane;
use parking_lot::Mutex;

use crate::outliving::{Outliving, OutlivingDevice, Present};
use crate::transmission::Session;
use crate::wire::Headers;

/// Label of a listening socket: its address, then device and inode of its path, if it has one.
pub(crate) const LISTENER: &str = "listener";
/// Label of a client: its export, the size of the export in bytes, and the flags of its session.
const CLIENT: &str = "client";
/// Prefix of the word that marks a client as a block device; the number of the device follows.
const DEVICE: &str = "device=";
/// Word that marks a device with a volatile write cache.
const FLUSHES: &str = "flushes";
/// Label of the names of the exports that were served.
const EXPORTS: &str = "exports";

/// Time limit for a client's volume to be served again.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time for which new clients wait until all former exports are served again. It is short, so that
/// a volume that does not return does not delay them further.
const BACK: Duration = Duration::from_secs(10);
/// Interval at which these conditions are checked.
const STEP: Duration = Duration::from_millis(2);

/// A client that the previous program has left.
#[derive(Debug)]
pub(crate) struct LeftClient {
    pub(crate) descriptor: OwnedFd,
    pub(crate) export: String,
    /// Identity of the volume, which differs for another volume of the same name. `None`: this
    /// program does not know the volume, or the export is no volume.
    pub(crate) identity: Option<String>,
    pub(crate) session: Session,
    /// Bytes that have been received and not been executed: the beginning of a request, or empty.
    pub(crate) received: Vec<u8>,
    /// Counts the client among the connected devices while it waits for its volume, if it is a
    /// device.
    pub(crate) present: Option<Present>,
}

/// The flags of a session, by name.
fn flags(session: &Session) -> [(&'static str, bool); 6] {
    let Session { size: _, read_only, headers, contexts, device } = *session;
    [
        ("read-only", read_only),
        ("structured", headers == Headers::Structured),
        ("extended", headers == Headers::Extended),
        ("allocation", contexts.allocation),
        ("state", contexts.state),
        (FLUSHES, device.is_some_and(|device| device.flushes)),
    ]
}

/// Labels a client.
pub(crate) fn client(client: LeftClient) -> HandedOver {
    let LeftClient { descriptor, export, identity, session, received, present: _ } = client;
    let mut label = vec![CLIENT.to_owned(), export, session.size.to_string()];
    let set = flags(&session).into_iter().filter(|(_, set)| *set);
    label.extend(set.map(|(name, _)| name.to_owned()));
    label.extend(session.device.map(|device| format!("{DEVICE}{:016x}", device.mark)));
    HandedOver { label, identity, descriptor: Some(descriptor), data: received }
}

/// Returns the export of a client; `None` for any other label.
pub(crate) fn export_of(item: &HandedOver) -> Option<&str> {
    item.labelled(CLIENT)?.first().map(String::as_str)
}

/// Reads a client from its label, the inverse of [`client`]. `None`: the label is not that of a
/// client, or this version does not understand it.
fn read_client(item: HandedOver) -> Option<LeftClient> {
    let [export, size, words @ ..] = item.labelled(CLIENT)? else { return None };
    let mut session = Session { size: size.parse().ok()?, ..Session::default() };
    let flushes = words.iter().any(|word| word == FLUSHES);
    for word in words {
        match word.as_str() {
            "read-only" => session.read_only = true,
            "structured" => session.headers = Headers::Structured,
            "extended" => session.headers = Headers::Extended,
            "allocation" => session.contexts.allocation = true,
            "state" => session.contexts.state = true,
            FLUSHES => (),
            other => {
                let mark = u64::from_str_radix(other.strip_prefix(DEVICE)?, 16).ok()?;
                session.device = Some(OutlivingDevice { mark, flushes });
            }
        }
    }
    let export = export.clone();
    let HandedOver { descriptor, identity, data: received, .. } = item;
    Some(LeftClient { descriptor: descriptor?, export, identity, session, received, present: None })
}

/// Labels the names of the exports that a lane serves.
pub(crate) fn exports(names: Vec<String>) -> HandedOver {
    let label = std::iter::once(EXPORTS.to_owned()).chain(names).collect();
    HandedOver { label, ..HandedOver::default() }
}

/// The previous program's clients, until lanes take them over.
pub(crate) struct Inherited {
    clients: Mutex<Vec<LeftClient>>,
    identify: Identify,
    /// The exports that it served.
    exports: Vec<String>,
}

impl Default for Inherited {
    fn default() -> Self {
        let identify = Box::new(|_: &str| None);
        Inherited { clients: Mutex::default(), identify, exports: Vec::new() }
    }
}

impl Inherited {
    /// Takes clients and names from the parts that were handed over. Clients that are devices are
    /// among `outliving` from now on.
    pub(crate) fn new(items: Vec<HandedOver>, outliving: &Outliving, identify: Identify) -> Self {
        let mut clients = Vec::new();
        let mut exports = Vec::new();
        for item in items {
            if let Some(names) = item.labelled(EXPORTS) {
                exports.extend_from_slice(names);
                continue;
            }
            let label = item.label.clone();
            match read_client(item) {
                Some(client) => {
                    let present = client.session.device.map(|device| outliving.enter(device.mark));
                    clients.push(LeftClient { present, ..client });
                }
                None => {
                    tracing::warn!(
                        ?label,
                        "the previous program left something that this version does not understand; it is closed"
                    );
                }
            }
        }
        exports.sort();
        exports.dedup();
        Inherited { clients: Mutex::new(clients), identify, exports }
    }

    /// Returns the previous program's clients that no lane has taken over, for the next program.
    pub(crate) fn leave(&self) -> Vec<HandedOver> {
        let clients = std::mem::take(&mut *self.clients.lock());
        let mut items: Vec<_> = clients.into_iter().map(client).collect();
        if !items.is_empty() {
            items.push(exports(self.exports.clone()));
        }
        items
    }

    /// Waits until all former exports are served again, so that a client never sees fewer exports
    /// than before, or until `ends` returns true.
    pub(crate) async fn exports_are_back(
        &self,
        lane: &Rc<Lane>,
        served: &dyn Exports,
        ends: impl Fn() -> bool,
    ) {
        let end = lane.now() + BACK;
        let is_back = || self.exports.iter().all(|name| served.open(name).is_some());
        while !ends() && lane.now() < end && !is_back() {
            lane.sleep(STEP).await;
        }
    }

    /// Returns the next client whose volume is served, and the volume. Returns `None` if no client
    /// is left or `ends` returns true. Clients whose volumes are not served within [`PATIENCE`] are
    /// disconnected.
    pub(crate) async fn next(
        &self,
        lane: &Rc<Lane>,
        served: &dyn Exports,
        ends: impl Fn() -> bool,
    ) -> Option<(LeftClient, Rc<dyn BlockService>)> {
        let end = lane.now() + PATIENCE;
        loop {
            if ends() || self.clients.lock().is_empty() {
                return None;
            }
            // Sleep even if a client was returned before, so that other lanes take their share.
            lane.sleep(STEP).await;
            if ends() {
                return None;
            }
            if let Some(found) = self.take_one(served) {
                return Some(found);
            }
            if lane.now() >= end {
                self.give_up();
            }
        }
    }

    fn take_one(&self, served: &dyn Exports) -> Option<(LeftClient, Rc<dyn BlockService>)> {
        let mut clients = self.clients.lock();
        let mut found = None;
        for (index, client) in clients.iter().enumerate() {
            if let Some(target) = served.open(&client.export) {
                // Identify the volume after it was opened, so that the identity is not that of an
                // earlier volume.
                let identity = (self.identify)(&client.export).map(|identity| identity.text);
                // A volume that ends meanwhile has no identity to compare.
                if identity.is_none() && client.identity.is_some() {
                    continue;
                }
                found = Some((index, identity == client.identity, target));
                break;
            }
        }
        let (index, is_own, target) = found?;
        let client = clients.swap_remove(index);
        if !is_own {
            tracing::error!(
                export = client.export,
                "a client is disconnected, because its volume was deleted and another one has the name"
            );
            return None;
        }
        // A volume that has grown meanwhile keeps its former size for this client, as on one
        // connection.
        if target.size() < client.session.size {
            tracing::error!(
                export = client.export,
                "a client is disconnected: its volume is smaller than before"
            );
            return None;
        }
        Some((client, target))
    }

    fn give_up(&self) {
        for client in std::mem::take(&mut *self.clients.lock()) {
            tracing::error!(
                export = client.export,
                "a client is disconnected: its volume has not been served again for {} s",
                PATIENCE.as_secs()
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use forebay_export::VolumeIdentity;

    use super::*;
    use crate::null::{ExportList, NullTarget};
    use crate::status::Contexts;

    fn left(export: &str, session: Session) -> HandedOver {
        let descriptor = UnixStream::pair().expect("sockets").0.into();
        let (export, received) = (export.into(), vec![1, 2]);
        let (identity, present) = (Some("1 2".to_owned()), None);
        client(LeftClient { descriptor, export, identity, session, received, present })
    }

    #[test]
    fn a_client_goes_on_with_its_own_volume_only() {
        let text = |text: Option<&str>| text.map(str::to_owned);
        let target: Rc<dyn BlockService> = Rc::new(NullTarget::new(1 << 20, false));
        let served = ExportList::new(vec![("v".to_owned(), target)]);
        // Identity of the client's volume; identity of the served one; whether the client is
        // served; whether it waits.
        for (of_client, of_served, goes_on, waits) in [
            (Some("1 2"), Some("1 2"), true, false),
            (Some("1 2"), Some("3 2"), false, false),
            (Some("1 2"), None, false, true),
            (None, Some("1 2"), false, false),
            // Not a volume.
            (None, None, true, false),
        ] {
            let now = text(of_served);
            let identify: Identify = Box::new(move |_: &str| {
                now.clone().map(|text| VolumeIdentity { text, lasts: true })
            });
            let item = HandedOver { identity: text(of_client), ..left("v", Session::default()) };
            let inherited = Inherited::new(vec![item], &Outliving::default(), identify);
            assert_eq!(
                inherited.take_one(&served).is_some(),
                goes_on,
                "{of_client:?} {of_served:?}"
            );
            assert_eq!(inherited.clients.lock().len(), usize::from(waits));
        }
    }

    #[test]
    fn a_client_reads_back_and_one_that_is_not_understood_is_closed() {
        assert_eq!(export_of(&left("a b", Session::default())), Some("a b"));
        assert_eq!(export_of(&exports(vec!["a b".into()])), None);
        for flags in 0..48u8 {
            let headers = [Headers::Simple, Headers::Structured, Headers::Extended];
            let session = Session {
                size: 1 << 40,
                read_only: flags & 1 != 0,
                headers: headers[usize::from(flags) / 8 % 3],
                contexts: Contexts { allocation: flags & 2 != 0, state: flags & 4 != 0 },
                device: (flags >= 24)
                    .then_some(OutlivingDevice { mark: u64::MAX - 1, flushes: flags & 4 != 0 }),
            };
            let read = read_client(left("a b", session)).expect("it is one");
            assert_eq!((read.export.as_str(), read.session), ("a b", session));
            assert_eq!((read.received, read.identity.as_deref()), (vec![1, 2], Some("1 2")));
        }
        let session = Session { size: 512, ..Session::default() };
        let mut unknown = left("v", session);
        unknown.label.push("of-tomorrow".into());
        let mut nameless = left("v", session);
        nameless.descriptor = None;
        let device = left(
            "v",
            Session { device: Some(OutlivingDevice { mark: 5, flushes: false }), ..session },
        );
        let items = vec![left("v", session), unknown, nameless, device, exports(vec!["v".into()])];
        let outliving = Outliving::default();
        let inherited = Inherited::new(items, &outliving, Box::new(|_| None));
        assert_eq!(inherited.clients.lock().len(), 2);
        assert!(outliving.has(5));
        inherited.give_up();
        assert!(!outliving.has(5));
        assert_eq!(inherited.exports, ["v"]);
    }
}
