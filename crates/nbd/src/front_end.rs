//! NBD as one of the daemon's front ends.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::FrontEndKind;
use forebay_device::ring::Ring;
use forebay_engine::{Exports, FrontEnd, LaneFrontEnd};
use forebay_lane::{Lane, MemoryBudget};
use parking_lot::Mutex;

use crate::address::{ListenAddress, ListenError};
use crate::limits::{ConnectionCount, Limits};
use crate::listener::{Listener, Protection};
use crate::server::Server;

/// NBD on any number of addresses.
#[derive(Debug)]
pub struct NbdFrontEnd {
    addresses: Vec<ListenAddress>,
    encrypted: bool,
    listeners: Mutex<Vec<Arc<Listener>>>,
    limits: Limits,
    connections: ConnectionCount,
}

impl NbdFrontEnd {
    /// Starts to listen. Clients wait until a lane serves them; their connections share `memory`.
    /// `protection` is that of the TCP addresses.
    ///
    /// # Errors
    /// One of the addresses cannot be used; nothing has changed then.
    pub fn claim(
        addresses: &[ListenAddress],
        protection: Protection,
        limits: Limits,
        memory: Arc<MemoryBudget>,
    ) -> Result<Self, ListenError> {
        let protection = Arc::new(protection);
        let bind = |address| Listener::bind_protected(address, &protection);
        let listeners: Vec<_> = addresses.iter().map(bind).collect::<Result<_, _>>()?;
        for address in addresses.iter().filter(|address| !address.is_local()) {
            warn(address, &protection);
        }
        Ok(NbdFrontEnd {
            addresses: addresses.to_vec(),
            encrypted: protection.tls.is_some(),
            listeners: Mutex::new(listeners),
            limits,
            connections: ConnectionCount::within(memory),
        })
    }
}

/// Says who can use the data of an address that other machines can reach.
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

    fn describe(&self, volume: &str) -> Vec<String> {
        self.addresses.iter().map(|address| address.uri(volume, self.encrypted)).collect()
    }

    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd> {
        let listeners = self.listeners.lock();
        let connections = self.connections.clone();
        Box::new(Server::serve(lane, ring, &listeners, exports, self.limits, connections))
    }

    fn release(&self) {
        self.listeners.lock().clear();
    }
}

impl LaneFrontEnd for Server {
    fn dismiss(&self, volume: &str) {
        Server::dismiss(self, volume);
    }

    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>> {
        Box::pin(self.stop())
    }
}
