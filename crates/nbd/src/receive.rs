//! The receiving task of a connection: receives large batches, and parses and executes in place.

use std::io;
use std::rc::Rc;

use forebay_device::IoBuf;
use forebay_engine::CompletionSink;
use rustix::io::Errno;

use crate::connection::{Admission, Connection, IntakePhase};
use crate::inbox::{Inbox, LARGE, window};
use crate::transmission::{Command, Event, Parser, RequestEffect, StreamError, waiting};
use crate::wire::ExtendedRequestHeader;
use crate::wire::socket::STEP;

/// After this many requests their replies are sent even if more requests have been received. A
/// client that gets its replies a few at a time can send more while the rest is processed; if all
/// its requests were answered at once, client and server would wait for each other in turn.
const ANSWERED_TOGETHER: u32 = 8;

/// Most bytes of a write's data that are handed over: with the header before them they fit into a
/// receive buffer.
const CARRIED: usize = LARGE - ExtendedRequestHeader::SIZE;

/// Why receiving ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReceiveError {
    #[error(transparent)]
    Stream(#[from] StreamError),
    #[error("receiving failed: {0}")]
    Io(#[from] io::Error),
}

/// Why receiving ended without an error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The client has left, or is dismissed.
    Over,
    /// The connection is to be handed over. The inbox begins with a request, perhaps a part of one.
    BetweenRequests,
}

/// Executes requests until the client leaves, or the connection is drained, handed over or dead.
///
/// # Errors
/// The stream is invalid or cannot be read; the connection is unusable then.
pub(crate) async fn receive_requests(
    connection: &Rc<Connection>,
    inbox: &mut Inbox,
) -> Result<Ended, ReceiveError> {
    let sink: Rc<dyn CompletionSink> = connection.clone();
    let mut parser = Parser::new(connection.session, window(inbox.capacity()));
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
                    match connection.admit_command(&command).await {
                        Admission::Granted => {}
                        Admission::Refused(refusal) if connection.refuse(&refusal).await => {
                            inbox.consume(consumed);
                            continue;
                        }
                        Admission::Refused(_) | Admission::Over => return Ok(Ended::Over),
                    }
                    if let RequestEffect::BlockStatus { one } = command.kind {
                        connection.flush();
                        if !connection.answer_status(&command, one).await {
                            return Ok(Ended::Over);
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
                    let taken = take_large(connection, &command, start, &sink, &mut parser);
                    match taken.await? {
                        Large::Done => {}
                        Large::Part(more) => {
                            inbox.extend(&more);
                            return Ok(Ended::BetweenRequests);
                        }
                        Large::Over => return Ok(Ended::Over),
                    }
                }
                Event::Refused(refusal) => {
                    if !connection.refuse(&refusal).await {
                        return Ok(Ended::Over);
                    }
                }
                Event::Disconnect => return Ok(Ended::Over),
            }
            inbox.consume(consumed);
        }
        connection.flush();
        if let Some(ended) = receive_more(connection, &parser, inbox).await? {
            return Ok(ended);
        }
        if inbox.is_full() && connection.grow() && !inbox.is_large() {
            inbox.grow();
            parser.set_window(window(LARGE));
        }
    }
}

/// The outcome of a write whose data does not fit into the inbox.
enum Large {
    /// The write was executed or refused.
    Done,
    /// A part of the data, as in [`Payload::Part`].
    Part(Vec<u8>),
    /// The connection is no longer open.
    Over,
}

/// Receives the rest of a large write, and executes it.
async fn take_large(
    connection: &Connection,
    command: &Command,
    start: &[u8],
    sink: &Rc<dyn CompletionSink>,
    parser: &mut Parser,
) -> Result<Large, ReceiveError> {
    match connection.admit_command(command).await {
        Admission::Granted => {}
        Admission::Refused(refusal) => {
            parser.refuse(refusal, command.len.saturating_sub(start.len() as u64));
            return Ok(Large::Done);
        }
        Admission::Over => return Ok(Large::Over),
    }
    connection.flush();
    let data = match receive_payload(connection, start, command.len as usize).await? {
        Payload::Whole(data) => data,
        Payload::Part(more) => return Ok(Large::Part(more)),
        Payload::Lost => return Ok(Large::Over),
    };
    connection.execute_write(command, data, sink);
    connection.end_grant();
    Ok(Large::Done)
}

/// Receives more, unless the connection is to end here.
async fn receive_more(
    connection: &Connection,
    parser: &Parser,
    inbox: &mut Inbox,
) -> Result<Option<Ended>, ReceiveError> {
    match connection.phase() {
        IntakePhase::Open => {}
        IntakePhase::HandingOver if parser.is_between_requests() => {
            return Ok(Some(Ended::BetweenRequests));
        }
        IntakePhase::HandingOver => {}
        IntakePhase::Draining | IntakePhase::Dead => return Ok(Some(Ended::Over)),
    }
    match inbox.receive(&connection.socket).await {
        // Bytes of an unfinished request are dropped.
        Ok(0) => Ok(Some(Ended::Over)),
        Ok(_) => Ok(None),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::CANCELED) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// The received part of a write's data.
enum Payload {
    /// All bytes of the data.
    Whole(IoBuf),
    /// The received bytes behind `start`; the rest is not awaited, because the connection is to be
    /// handed over.
    Part(Vec<u8>),
    /// The client has left, or is dismissed.
    Lost,
}

/// Receives the `len` bytes of a write's data into a buffer of their own; `start` are the first
/// ones. Requests in flight are answered meanwhile.
async fn receive_payload(
    connection: &Connection,
    start: &[u8],
    len: usize,
) -> Result<Payload, ReceiveError> {
    let mut data = IoBuf::for_overwrite(len);
    let mut received = start.len();
    if let Some(head) = data.get_mut(..received) {
        head.copy_from_slice(start);
    }
    while received < len {
        // Data longer than the receive buffer of the next program cannot be handed over, so it is
        // received completely first.
        if connection.phase() == IntakePhase::HandingOver && received <= CARRIED {
            let more = data.get(start.len()..received).unwrap_or_default();
            return Ok(Payload::Part(more.to_vec()));
        }
        let step = received..len.min(received + STEP);
        let (_turn, end) = (connection.client_begins(), step.end);
        let (result, before) = (connection.socket.receive(data, step, true).await, received);
        data = result.0;
        let cancelled = match result.1 {
            Ok(count) => {
                received += count;
                false
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::CANCELED) => true,
            Err(error) => return Err(error.into()),
        };
        let goes_on =
            connection.phase() == IntakePhase::HandingOver && (cancelled || received > before);
        if data.len() != len || (received < end && !goes_on) {
            return Ok(Payload::Lost);
        }
    }
    Ok(Payload::Whole(data))
}
