//! Tests of the server through its socket. They are one program, because each program takes as long
//! to build.

mod clients;
mod hostile;
mod reach;
mod status;
mod support;
mod tls;
