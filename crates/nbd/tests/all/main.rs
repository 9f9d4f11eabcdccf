//! Tests of the server, by its socket. One program, because each takes as long to build.

mod clients;
mod hostile;
mod reach;
mod status;
mod support;
mod tls;
