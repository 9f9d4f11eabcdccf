//! NBD front end: translates between the wire and requests and completions, and nothing else.
//!
//! - `wire`: the protocol and its sockets, which the client has too
//! - [`handshake`], [`transmission`]: the two phases as pure state machines; `handshakes`: how many
//!   there may be
//! - [`status`]: the allocated, cached and dirty parts of a volume; `holes`: those of the origin
//! - [`outliving`]: clients that are devices of the kernel
//! - [`address`], [`listener`]: where clients connect; [`allow`]: from where
//! - [`tls`]: certificates and keys; `tls_work`: handshakes off the lanes
//! - [`server`]: accepts and dismisses clients on a lane; `sessions`: the clients that each export
//!   accepts, and those that have it open
//! - [`front_end`]: the interface to the daemon; `hand_over`: the parts that the next program
//!   inherits
//! - [`null`]: volumes without a cache, for tests and as a baseline
//!
//! A connection is two tasks of a lane, one that receives and executes and one that sends, with the
//! outbox between them.
#![forbid(unsafe_code)]

pub mod address;
pub mod allow;
mod connection;
pub mod front_end;
mod hand_over;
pub mod handshake;
mod handshakes;
mod holes;
mod inbox;
pub mod limits;
pub mod listener;
mod memory;
pub mod null;
mod outbox;
pub mod outliving;
mod receive;
mod send;
pub mod server;
mod sessions;
pub mod status;
pub mod tls;
mod tls_work;
pub mod transmission;

pub use forebay_nbd_wire as wire;

pub use address::{ListenAddress, ListenError};
pub use allow::{Network, NetworkError};
pub use front_end::NbdFrontEnd;
pub use limits::{ConnectionCount, Limits};
pub use listener::{Listener, Protection};
pub use outliving::{Outliving, OutlivingDevice};
pub use server::Server;
pub use tls::{Tls, TlsError, TlsFiles};
