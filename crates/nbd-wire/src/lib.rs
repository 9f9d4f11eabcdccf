//! Code shared by NBD's server and client: the protocol on the wire, and sockets on a lane's ring.
//!
//! - `numbers`: the numbers of the protocol; `request`, `reply`: fixed structures
//! - [`handshake`]: the client's side of the handshake, which blocks
//! - [`socket`]: a connected socket on a ring; [`records`]: its TLS; [`keys`]: files of keys
//!
//! All integers on the wire are big-endian. Decisions are made by the server, `forebay-nbd`, and by
//! the client, `forebay-nbd-client`.
#![forbid(unsafe_code)]

pub mod handshake;
pub mod keys;
mod numbers;
pub mod records;
mod reply;
mod request;
pub mod socket;

pub use numbers::*;
pub use reply::*;
pub use request::{ExtendedRequestHeader, Header, RequestHeader};
