//! How the daemon manages front ends, whatever their protocol.
//!
//! A front end claims its addresses when it is created. It then serves on every lane, reports the
//! URIs of a volume, disconnects the clients of a stopped volume, and drains when the daemon ends.

use std::future::Future;
use std::pin::Pin;
use std::rc::Rc;

use forebay_device::ring::Ring;
use forebay_lane::Lane;

use crate::api::Exports;

/// A protocol through which clients reach volumes, on all lanes. Dropping it releases its
/// addresses.
pub trait FrontEnd: Send + Sync {
    /// Returns the addresses as an operator writes them.
    fn addresses(&self) -> Vec<String>;

    /// Returns the URIs of a volume, one for each address.
    fn describe(&self, volume: &str) -> Vec<String>;

    /// Starts serving `exports` on the calling lane.
    fn serve(
        &self,
        lane: &Rc<Lane>,
        ring: &Rc<Ring>,
        exports: Rc<dyn Exports>,
    ) -> Box<dyn LaneFrontEnd>;

    /// Releases the addresses so that another process can claim them. Called after all lanes have
    /// drained.
    fn release(&self);
}

/// A front end on one lane.
pub trait LaneFrontEnd {
    /// Disconnects a volume's clients after their requests in flight have been answered.
    fn dismiss(&self, volume: &str);

    /// Stops accepting clients on every lane. Ends when this lane's requests in flight have been
    /// answered and its clients have disconnected; the time is bounded.
    fn drain(self: Box<Self>) -> Pin<Box<dyn Future<Output = ()>>>;
}
