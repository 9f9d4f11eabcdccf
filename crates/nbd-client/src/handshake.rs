//! The handshake of a remote origin: its options, and errors with the operator's remedies.

use std::io::{self, Read, Write};

use forebay_nbd_wire::handshake::{Export, HandshakeError, Refusal, ask, go, sized};
use forebay_nbd_wire::{Reader, allocation, info, option, option_reply, transmission_flag};

/// The negotiated export and form of replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// The server's description of the export.
    pub export: Export,
    /// Whether replies can be chunks.
    pub chunks: bool,
    /// The server's number for `base:allocation`, if it offers that context.
    pub allocation: Option<u32>,
}

/// Why there is no connection.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// An error of the system or of TLS.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// The server refuses, or lacks a needed feature; the text is a sentence for the operator.
    #[error("{0}")]
    Refused(String),
}

impl From<HandshakeError> for ConnectError {
    fn from(error: HandshakeError) -> Self {
        match error {
            HandshakeError::Io(error) => ConnectError::Io(error),
            error => ConnectError::Refused(error.to_string()),
        }
    }
}

fn refused(cause: impl Into<String>) -> ConnectError {
    ConnectError::Refused(cause.into())
}

/// Requests TLS, which begins with the next byte.
///
/// # Errors
/// See [`ConnectError`].
pub fn start_tls(stream: &mut (impl Read + Write)) -> Result<(), ConnectError> {
    match ask(stream, option::STARTTLS, &[], |_, _| Ok(()))? {
        None => Ok(()),
        Some(_) => Err(refused(
            "the server has no TLS; configure it there, or write nbd:// instead of nbds://",
        )),
    }
}

/// Agrees on an export and on the form of replies.
///
/// # Errors
/// See [`ConnectError`].
pub fn choose(stream: &mut (impl Read + Write), name: &str) -> Result<Agreement, ConnectError> {
    let chunks = match ask(stream, option::STRUCTURED_REPLY, &[], |_, _| Ok(()))? {
        None => true,
        Some(Refusal { kind: option_reply::ERR_TLS_REQD, .. }) => return Err(needs_tls()),
        Some(_) => false,
    };
    let allocation = if chunks { choose_allocation(stream, name)? } else { None };
    match go(stream, name, &[info::BLOCK_SIZE]) {
        Ok(export) => Ok(Agreement { export, chunks, allocation }),
        Err(HandshakeError::Refused(refusal)) => Err(refused(match refusal.kind {
            option_reply::ERR_UNKNOWN => format!(
                "the server has no export '{name}'; 'nbdinfo --list' shows those that it has"
            ),
            option_reply::ERR_UNSUP => "the server does not know GO; use a newer server".to_owned(),
            option_reply::ERR_TLS_REQD => return Err(needs_tls()),
            _ => format!("the server refuses the export '{name}' with {refusal}"),
        })),
        Err(error) => Err(error.into()),
    }
}

fn needs_tls() -> ConnectError {
    refused("the server insists on TLS; write nbds:// instead of nbd://")
}

/// Asks for the context `base:allocation`; returns the server's number for it.
fn choose_allocation(
    stream: &mut (impl Read + Write),
    name: &str,
) -> Result<Option<u32>, ConnectError> {
    let mut asked = sized(name.as_bytes());
    asked.extend_from_slice(&1u32.to_be_bytes());
    asked.extend_from_slice(&sized(allocation::NAME.as_bytes()));
    let mut number = None;
    let refusal = ask(stream, option::SET_META_CONTEXT, &asked, |kind, data| {
        let mut reader = Reader(data);
        let id = reader.u32();
        if kind == option_reply::META_CONTEXT && reader.0 == allocation::NAME.as_bytes() {
            number = id;
        }
        Ok(())
    })?;
    Ok(number.filter(|_| refusal.is_none()))
}

/// Returns the reason why an export cannot be used as a writable device, or `None`.
pub(crate) fn unfit(export: &Export) -> Option<&'static str> {
    if export.has(transmission_flag::READ_ONLY) {
        Some("the server exports it for reading only; export it for writing")
    } else if !export.has(transmission_flag::SEND_FLUSH) {
        Some(
            "the server offers no flush, so nothing written to it would be known to be durable; use a server that does",
        )
    } else {
        None
    }
}
