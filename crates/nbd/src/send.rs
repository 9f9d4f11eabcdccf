//! The sending task of a connection.

use crate::connection::{Connection, IntakePhase};
use crate::outbox::Batch;

/// Sends replies until the connection is dead, or drained and idle, or sending fails.
pub(crate) async fn send_replies(connection: &Connection) {
    let headers = connection.session.headers;
    let mut spare = Batch::new(headers, connection.batch_capacity());
    while connection.phase() != IntakePhase::Dead {
        let (batch, large) = match connection.take_outgoing(spare) {
            Ok(outgoing) => outgoing,
            Err(unused) => {
                spare = unused;
                if connection.phase() == IntakePhase::Draining && connection.is_idle() {
                    break;
                }
                connection.to_send.wait().await;
                continue;
            }
        };
        let (buf, used) = batch.into_parts();
        let begins = || connection.client_begins();
        let (buf, mut result) = connection.socket.send(buf, used, begins).await;
        spare = Batch::from_buffer(buf, headers, connection.batch_capacity());
        if let Some(large) = large {
            if let (Ok(()), Some(data)) = (&result, large.data) {
                let len = data.len();
                (_, result) = connection.socket.send(data, len, begins).await;
            }
            connection.release(large.held);
        }
        if let Err(error) = result {
            // A reply may have been sent in part, so the connection cannot be handed over.
            connection.socket.keep(false);
            tracing::debug!(%error, "sending replies to a client failed");
            return;
        }
    }
    if connection.phase() != IntakePhase::Dead {
        connection.socket.end_tls().await;
    }
}
