//! The receiving task of a connection: receives large batches, and parses and executes in place.

use std::io;
use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_engine::CompletionSink;

use crate::connection::Connection;
use crate::inbox::{Inbox, LARGE, SMALL, window};
use crate::socket::STEP;
use crate::transmission::{Event, Kind, Parser, StreamError, waiting};

/// After this many requests their replies are sent even if more requests have been received. A
/// client that gets its replies a few at a time can send more while the rest is processed; if all
/// its requests were answered at once, client and server would wait for each other in turn.
const ANSWERED_TOGETHER: u32 = 8;

/// Why receiving ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("receiving failed: {0}")]
    Io(#[from] io::Error),
}

/// Executes requests until the client leaves, or the connection is drained or dead.
///
/// # Errors
/// The stream is invalid or cannot be read; the connection is unusable then.
pub(crate) async fn receive_requests(
    connection: &Rc<Connection>,
    mut inbox: Inbox,
) -> Result<(), ReceiveError> {
    let sink: Rc<dyn CompletionSink> = connection.clone();
    let mut parser = Parser::new(connection.session, window(SMALL));
    let (headers, mut taken) = (connection.session.headers, 0u32);
    loop {
        loop {
            let (consumed, event) = parser.next(inbox.unused())?;
            match event {
                Event::Incomplete { .. } => {
                    inbox.consume(consumed);
                    break;
                }
                Event::Command { command, payload } => {
                    if !connection.admit_command(&command).await {
                        return Ok(());
                    }
                    if let Kind::BlockStatus { one } = command.kind {
                        connection.flush();
                        if !connection.answer_status(&command, one).await {
                            return Ok(());
                        }
                        inbox.consume(consumed);
                        continue;
                    }
                    connection.expect(inbox.unused().get(consumed..).unwrap_or_default());
                    connection.execute(&command, payload, &sink);
                    connection.end_grant();
                    taken += 1;
                    let more = inbox.unused().get(consumed..).unwrap_or_default();
                    if taken.is_multiple_of(ANSWERED_TOGETHER) && waiting(more, headers).is_some() {
                        connection.send_now().await;
                    }
                }
                Event::LargeWrite { command, start } => {
                    if !connection.admit_command(&command).await {
                        return Ok(());
                    }
                    connection.flush();
                    let len = command.len as usize;
                    let Some(data) = receive_payload(connection, start, len).await? else {
                        return Ok(());
                    };
                    connection.execute_write(&command, data, &sink);
                    connection.end_grant();
                }
                Event::Refused(refusal) => {
                    if !connection.refuse(&refusal).await {
                        return Ok(());
                    }
                }
                Event::Disconnect => return Ok(()),
            }
            inbox.consume(consumed);
        }
        connection.flush();
        if !connection.is_open() {
            return Ok(());
        }
        if inbox.receive(&connection.socket).await? == 0 {
            // Bytes of an unfinished request are dropped.
            return Ok(());
        }
        if inbox.is_full() && connection.grow() && !inbox.is_large() {
            inbox.grow();
            parser.set_window(window(LARGE));
        }
    }
}

/// Receives the `len` bytes of a write that begin with `start`, into a buffer of their own. Returns
/// `None` if the client has left or is dismissed; its requests in flight are answered.
async fn receive_payload(
    connection: &Connection,
    start: &[u8],
    len: usize,
) -> Result<Option<IoBuf>, ReceiveError> {
    let mut data = IoBuf::for_overwrite(len);
    let mut received = start.len();
    if let Some(head) = data.get_mut(..received) {
        head.copy_from_slice(start);
    }
    while received < len {
        let step = received..len.min(received + STEP);
        let (_turn, end) = (connection.client_begins(), step.end);
        let result;
        (data, result) = connection.socket.receive(data, step, true).await;
        received += result?;
        if received < end || data.len() != len {
            return Ok(None);
        }
    }
    Ok(Some(data))
}
