//! How a daemon manages its front ends, whatever their protocol.
//!
//! A front end is made by claiming its addresses. Then it serves on every lane, tells where clients find a
//! volume, sends clients of a volume away that is stopped, and drains when the daemon ends.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::ring::Ring;
use forebay_lane::Lane;

use crate::api::Exports;

/// A protocol by which clients reach volumes, for all lanes. Dropping it gives its addresses back.
pub trait FrontEnd: Send + Sync {
    /// The addresses, as an operator writes them.
    fn addresses(&self) -> Vec<String>;

    /// The URIs of a volume, one for each address.
    fn describe(&self, volume: &str) -> Vec<String>;

    /// Starts serving `exports` on the lane that calls.
    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd>;

    /// Gives the addresses back, after all lanes have drained: another process may claim them.
    fn release(&self);
}

/// A front end on one lane.
pub trait LaneFrontEnd {
    /// Sends the clients of a volume away, after the answers to their requests in flight.
    fn dismiss(&self, volume: &str);

    /// Accepts no more clients, on any lane, and ends when the requests in flight on this one are
    /// answered and its clients are gone. Bounded in time.
    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>>;
}
