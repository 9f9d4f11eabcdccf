//! The socket of a client: sends and receives control messages with descriptors.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::ring::{Ring, RingOp};
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};

use crate::message::{DESCRIPTORS_MAX, HEADER, Header, Message, MessageError, PAYLOAD_MAX};

/// A message with its header and its descriptors.
pub(crate) struct Received {
    pub(crate) header: Header,
    /// An error concerns this message only: the next one can still be received.
    pub(crate) message: Result<Message, MessageError>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// Why a connection ends.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WireError {
    #[error("the client sends no valid message: {0}")]
    Message(#[from] MessageError),
    #[error("the client sends too many descriptors")]
    Descriptors,
    #[error("the socket fails: {0}")]
    Io(#[from] io::Error),
}

impl From<Errno> for WireError {
    fn from(errno: Errno) -> Self {
        WireError::Io(errno.into())
    }
}

/// A connected socket.
#[derive(Clone)]
pub(crate) struct Wire {
    socket: Arc<OwnedFd>,
    ring: Rc<Ring>,
}

impl Wire {
    pub(crate) fn new(socket: Arc<OwnedFd>, ring: Rc<Ring>) -> Self {
        Wire { socket, ring }
    }

    /// Receives a message. `None`: the client has left.
    ///
    /// # Errors
    /// The stream is invalid or broken, and cannot be used any further.
    pub(crate) async fn receive(&self) -> Result<Option<Received>, WireError> {
        let mut descriptors = Vec::new();
        let mut head = [0; HEADER];
        if !self.fill(&mut head, &mut descriptors).await? {
            return Ok(None);
        }
        let header = Header::parse(head)?;
        let mut payload = [0; PAYLOAD_MAX];
        // `parse` has checked the length.
        let payload = payload.get_mut(..header.len).unwrap_or_default();
        if !self.fill(payload, &mut descriptors).await? {
            return Ok(None);
        }
        let message = Message::parse(header, payload, descriptors.len());
        Ok(Some(Received { header, message, descriptors }))
    }

    /// Fills `into`. Returns `false` at the end of the stream.
    async fn fill(
        &self,
        into: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<bool, WireError> {
        let mut done = 0;
        while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
            match self.receive_some(rest, descriptors) {
                Ok(0) => return Ok(false),
                Ok(count) => done += count,
                Err(WireError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => {
                    let op = RingOp::Readable { fd: self.socket.clone() };
                    self.ring.run(op).await.result?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Receives the available bytes.
    fn receive_some(
        &self,
        into: &mut [u8],
        descriptors: &mut Vec<OwnedFd>,
    ) -> Result<usize, WireError> {
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut ancillary = RecvAncillaryBuffer::new(&mut space);
        let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
        let mut buffers = [IoSliceMut::new(into)];
        let received = match recvmsg(&self.socket, &mut buffers, &mut ancillary, flags) {
            Err(Errno::CONNRESET) => return Ok(0),
            received => received?,
        };
        for message in ancillary.drain() {
            if let RecvAncillaryMessage::ScmRights(more) = message {
                descriptors.extend(more);
            }
        }
        let lost = received.flags.contains(ReturnFlags::CTRUNC);
        if lost || descriptors.len() > DESCRIPTORS_MAX {
            return Err(WireError::Descriptors);
        }
        Ok(received.bytes)
    }

    /// Sends an answer. Answers are short and a client waits for each, so a client without space
    /// for one breaks the protocol; this call does not wait for space.
    ///
    /// # Errors
    /// The client has disconnected, or has no space for the answer.
    pub(crate) fn reply(
        &self,
        header: Header,
        payload: &[u8],
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<(), WireError> {
        let head = header.reply(payload.len());
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let passed = descriptor.map(|descriptor| [descriptor]);
        if let Some(passed) = &passed {
            ancillary.push(SendAncillaryMessage::ScmRights(passed));
        }
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        let parts = [IoSlice::new(&head), IoSlice::new(payload)];
        let sent = sendmsg(self.socket.as_fd(), &parts, &mut ancillary, flags)?;
        match sent == head.len() + payload.len() {
            true => Ok(()),
            false => Err(WireError::Io(io::ErrorKind::WriteZero.into())),
        }
    }
}
