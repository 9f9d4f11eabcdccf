//! A client's handshake, until the client is counted among those that have an export open.

use forebay_device::IoBuf;

use super::{Client, ClientPhase, ServerState, connection_bytes};
use crate::handshake::{Handshake, HandshakeStep, Start};
use crate::inbox::Inbox;
use crate::limits::Place;
use crate::listener::{Listener, is_remote, widen};
use crate::sessions::{InSession, Peer};

/// Takes a place for a client that has chosen an export, unless the export accepts no more clients.
fn enter(
    client: &Client,
    shared: &ServerState,
    export: &str,
    listener: &Listener,
) -> Option<(InSession, Place)> {
    let socket = client.socket.descriptor();
    let bytes = connection_bytes(widen(socket), listener.tls().is_some());
    let place = match shared.count.take(&shared.limits, is_remote(socket), bytes) {
        Ok(place) => place,
        Err(full) => {
            shared.refusals.add(listener.address(), &full, shared.lane.now());
            return None;
        }
    };
    Some((shared.count.sessions().enter(export, socket)?, place))
}

/// Runs the handshake. Returns `None` if it ends without a session.
pub(super) async fn agree(
    client: &Client,
    shared: &ServerState,
    inbox: &mut Inbox,
    listener: &Listener,
) -> Option<(Start, InSession, Place)> {
    let socket = &*client.socket;
    let open = shared.open_to(Peer::of(socket.descriptor()));
    let mut replies = Vec::new();
    let mut entered = None;
    let mut handshake = Handshake::new(listener.security(), &mut replies);
    loop {
        let (consumed, progress) = handshake.advance(inbox.unused(), &open, &mut replies);
        inbox.consume(consumed);
        if let HandshakeStep::Start(start) = &progress {
            // The client now holds the target, so `dismiss` must find it by its export.
            client.phase.replace(ClientPhase::Agreed(start.export.clone()));
            entered = Some(enter(client, shared, &start.export, listener)?);
        }
        if !replies.is_empty() {
            let buf = IoBuf::copy_from(&replies);
            let (_, result) = socket.send(buf, replies.len(), || ()).await;
            result.ok()?;
            replies.clear();
        }
        match progress {
            HandshakeStep::Receive => {
                if inbox.receive(socket).await.ok()? == 0 {
                    return None;
                }
            }
            HandshakeStep::Send => {}
            HandshakeStep::StartTls => {
                // Bytes that arrived before TLS started must not be parsed as plaintext.
                let config = listener.tls()?.config(shared.lane.now()).await;
                let work = shared.count.tls_work();
                let decrypt = async |records| work.decrypt(records).await;
                let started = socket.start_tls(config, inbox.unused(), decrypt).await;
                if let Err(error) = started {
                    tracing::debug!(%error, "a client is dropped: TLS cannot be started");
                    return None;
                }
                inbox.consume(inbox.unused().len());
                handshake.secured();
            }
            HandshakeStep::Start(start) => {
                let (entered, place) = entered?;
                return Some((start, entered, place));
            }
            HandshakeStep::Close(reason) => {
                tracing::debug!(%reason, "a handshake ends without a session");
                socket.end_tls().await;
                return None;
            }
        }
    }
}
