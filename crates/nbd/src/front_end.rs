//! NBD as one of the daemon's front ends.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{FrontEndKind, NbdReach};
use forebay_device::ring::Ring;
use forebay_engine::{
    Client, ExportError, ExportErrorKind, Exports, FrontEnd, HandedOver, LaneFrontEnd, Settings,
};
use forebay_export::Identify;
use forebay_export::clients::listed;
use forebay_lane::{Lane, MemoryBudget};
use parking_lot::Mutex;

use crate::address::{ListenAddress, ListenError};
use crate::hand_over::{self, Inherited};
use crate::limits::{ConnectionCount, Limits};
use crate::listener::{Listener, Protection};
use crate::outliving::Outliving;
use crate::server::Server;

/// NBD on any number of addresses.
pub struct NbdFrontEnd {
    addresses: Vec<ListenAddress>,
    encrypted: bool,
    listeners: Mutex<Vec<Arc<Listener>>>,
    limits: Limits,
    connections: ConnectionCount,
    inherited: Arc<Inherited>,
}

impl NbdFrontEnd {
    /// Starts to listen, or takes over the clients that the previous program has handed over.
    /// Clients wait until a lane serves them; their connections share `memory`. `protection`
    /// applies to the TCP addresses. `inherited` has the parts that were handed over, and
    /// `identify` returns the identities of their volumes.
    ///
    /// # Errors
    /// One of the addresses cannot be used; nothing has changed then.
    pub fn claim(
        addresses: &[ListenAddress],
        protection: Protection,
        limits: Limits,
        memory: Arc<MemoryBudget>,
        inherited: &mut Vec<HandedOver>,
        identify: Identify,
    ) -> Result<Self, ListenError> {
        let protection = Arc::new(protection);
        let mut listen = |address| match Listener::inherit(address, &protection, inherited) {
            Some(listener) => Ok(listener),
            None => Listener::bind_protected(address, &protection),
        };
        let listeners: Vec<_> = addresses.iter().map(&mut listen).collect::<Result<_, _>>()?;
        for address in addresses.iter().filter(|address| !address.is_local()) {
            warn(address, &protection);
        }
        let connections = ConnectionCount::within(memory).closed();
        let inherited =
            Inherited::new(std::mem::take(inherited), connections.outliving(), identify);
        Ok(NbdFrontEnd {
            addresses: addresses.to_vec(),
            encrypted: protection.tls.is_some(),
            listeners: Mutex::new(listeners),
            limits,
            connections,
            inherited: Arc::new(inherited),
        })
    }

    /// Returns the connected devices, those of inherited clients included.
    pub fn outliving(&self) -> Outliving {
        self.connections.outliving().clone()
    }
}

fn in_use(volume: &str, clients: &[Client]) -> ExportError {
    let message = format!("'{volume}' is in use by NBD clients: {}", listed(clients));
    ExportError { kind: ExportErrorKind::InUse, message, cause: None }
}

/// Logs a warning that names who can use the data of an address that other machines can reach.
fn warn(address: &ListenAddress, protection: &Protection) {
    let who = match protection.allow.is_empty() {
        true => "anyone who can reach this address",
        false => "anyone in the networks of --nbd-allow",
    };
    match &protection.tls {
        Some(tls) if tls.checks_clients() => {}
        Some(_) => tracing::warn!(
            %address,
            "NBD has no authentication: {who} can read and write the data; --nbd-tls-client-ca has clients checked"
        ),
        None => tracing::warn!(
            %address,
            "NBD has no authentication and no encryption: {who} can read and write the data; --nbd-tls-cert encrypts it"
        ),
    }
}

impl FrontEnd for NbdFrontEnd {
    fn kind(&self) -> Option<FrontEndKind> {
        Some(FrontEndKind::Nbd)
    }

    fn addresses(&self) -> Vec<String> {
        self.addresses.iter().map(ListenAddress::to_string).collect()
    }

    fn describe(&self, volume: &str, nbd: NbdReach) -> Vec<String> {
        let finds = |address: &&ListenAddress| match nbd {
            NbdReach::All => true,
            NbdReach::Local => matches!(address, ListenAddress::Unix(_)),
            NbdReach::Off => false,
        };
        let addresses = self.addresses.iter().filter(finds);
        addresses.map(|address| address.uri(volume, self.encrypted)).collect()
    }

    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd> {
        let listeners = self.listeners.lock();
        let connections = self.connections.clone();
        let inherited = &self.inherited;
        Box::new(Server::serve_on(
            lane,
            ring,
            &listeners,
            exports,
            self.limits,
            connections,
            inherited,
        ))
    }

    fn publish(&self, volume: &str, settings: &Settings) -> Result<(), ExportError> {
        self.connections.sessions().open(volume, settings.nbd);
        Ok(())
    }

    fn narrow(&self, volume: &str, next: &Settings) -> Result<(), ExportError> {
        let narrowed = self.connections.sessions().narrow(volume, next.nbd);
        narrowed.map_err(|clients| in_use(volume, &clients))
    }

    /// Clients that a withdrawal by force leaves are disconnected when the volume is stopped, see
    /// [`LaneFrontEnd::dismiss`].
    fn withdraw(&self, volume: &str, force: bool) -> Result<(), ExportError> {
        let closed = self.connections.sessions().close(volume, force);
        closed.map_err(|clients| in_use(volume, &clients))
    }

    fn clients(&self, volume: &str) -> Vec<Client> {
        self.connections.sessions().clients(volume)
    }

    fn restore_paths(&self) {
        self.listeners.lock().iter().for_each(|listener| listener.restore_path());
    }

    fn release(&self) {
        self.listeners.lock().clear();
    }

    fn user_of<'a>(&self, item: &'a HandedOver) -> Option<&'a str> {
        hand_over::export_of(item)
    }

    fn hand_over(&self) -> Vec<HandedOver> {
        let listeners = self.listeners.lock();
        let mut items = self.inherited.leave();
        for (listener, asked) in listeners.iter().zip(&self.addresses) {
            match listener.leave(asked) {
                Ok(item) => items.push(item),
                Err(error) => tracing::error!(address = %asked, %error, "cannot be handed over"),
            }
        }
        items
    }
}

impl LaneFrontEnd for Server {
    fn dismiss(&self, volume: &str) {
        Server::dismiss(self, volume);
    }

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(self.stop())
    }

    fn hand_over(self: Box<Self>) -> Pin<Box<dyn Future<Output = Vec<HandedOver>>>> {
        Box::pin(self.leave())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_that_no_next_program_has_got_are_released() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("nbd");
        let addresses = [ListenAddress::unix(path.clone()).expect("short")];
        let memory = Arc::new(MemoryBudget::new(1 << 30));
        let claimed = NbdFrontEnd::claim(
            &addresses,
            Protection::default(),
            Limits::default(),
            memory,
            &mut Vec::new(),
            Box::new(|_| None),
        );
        let front_end = claimed.expect("free");
        let items = front_end.hand_over();
        assert!(path.exists() && items.len() == 1);
        drop(items);
        front_end.release();
        assert!(!path.exists(), "a stop has come between hand-over and execution");
    }
}
