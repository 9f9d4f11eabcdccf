//! The control messages: parsing, with every number checked, and answers.

use crate::config::QUEUES_MAX;
use crate::memory::{ClientAddress, GuestAddress, RegionPlace};

/// Bytes of a message's header.
pub const HEADER: usize = 12;
/// Most bytes of a message's payload.
pub const PAYLOAD_MAX: usize = 1024;
/// Most descriptors with one message: those of a complete memory table.
pub const DESCRIPTORS_MAX: usize = TABLE_MAX;
/// Most regions in one message.
const TABLE_MAX: usize = 8;
/// Most bytes of the configuration space in one message.
const CONFIG_MAX: u32 = 256;

const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// Flag in messages about a descriptor: no descriptor is sent.
const NO_DESCRIPTOR: u64 = 1 << 8;

/// Number of a queue, from 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QueueIndex(pub u16);

/// A message's header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The kind of the message.
    pub code: u32,
    /// Whether the client expects an answer even to a message that has none.
    pub need_reply: bool,
    /// Bytes of the payload.
    pub len: usize,
}

/// Addresses of a queue's parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RingAddresses {
    /// The table of descriptors.
    pub descriptors: ClientAddress,
    /// The ring in which the guest makes requests available.
    pub available: ClientAddress,
    /// The ring in which the device returns requests.
    pub used: ClientAddress,
}

/// The place of the shared record of requests in progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InflightPlace {
    /// Bytes of the record.
    pub len: u64,
    /// Offset of the record's first byte in the file.
    pub offset: u64,
    /// Number of queues in the record.
    pub queues: u16,
    /// Number of descriptors of each queue.
    pub queue_size: u16,
}

/// A message of the client. Its descriptors are passed separately.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// Ask for the features of the device.
    GetFeatures,
    /// The guest uses these features.
    SetFeatures(u64),
    /// A client begins.
    SetOwner,
    /// Obsolete; changes nothing.
    ResetOwner,
    /// All of the memory, with a descriptor for each region.
    SetMemory(Vec<RegionPlace>),
    /// Ask for the highest possible number of regions.
    GetMemorySlots,
    /// Add a region; its descriptor is attached.
    AddRegion(RegionPlace),
    /// Remove a region.
    RemoveRegion(RegionPlace),
    /// The number of descriptors of a queue.
    SetQueueSize(QueueIndex, u32),
    /// The place of a queue.
    SetQueueAddresses(QueueIndex, RingAddresses),
    /// The number of the next request of a queue.
    SetQueueBase(QueueIndex, u32),
    /// Stop a queue and return the index of its next request.
    GetQueueBase(QueueIndex),
    /// The eventfd with which the client announces requests, if any. Starts the queue.
    SetKick(QueueIndex),
    /// The eventfd with which the device announces answers, if any.
    SetCall(QueueIndex),
    /// The eventfd for errors of a queue, if any.
    SetError(QueueIndex),
    /// Serve a queue, or do not.
    SetQueueEnabled(QueueIndex, bool),
    /// Ask for the features of the protocol.
    GetProtocolFeatures,
    /// The client uses these features of the protocol.
    SetProtocolFeatures(u64),
    /// Ask for the highest possible number of queues.
    GetQueueNumber,
    /// A part of the configuration space.
    GetConfig {
        /// First byte.
        offset: u32,
        /// Number of bytes.
        len: u32,
    },
    /// A change to the configuration space.
    SetConfig {
        /// First byte.
        offset: u32,
        /// The new bytes.
        bytes: Vec<u8>,
    },
    /// Make a record of requests in progress.
    GetInflight(InflightPlace),
    /// Use this record of requests in progress; its descriptor is attached.
    SetInflight(InflightPlace),
}

/// Why a message is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The message is of another version of the protocol, or is an answer.
    #[error("the message has flags {0:#x}, which are not those of a request of version 1")]
    Flags(u32),
    /// The message is too long.
    #[error("the message has {0} bytes, more than {PAYLOAD_MAX}")]
    Length(u32),
    /// The message is unknown or was not offered.
    #[error("message {0} is not supported")]
    Unknown(u32),
    /// The payload has the wrong format.
    #[error("message {0} has a payload of a wrong form")]
    Payload(u32),
    /// The number of attached descriptors is wrong.
    #[error("message {0} comes with {1} descriptors")]
    Descriptors(u32, usize),
}

/// Reads the fields of a payload in the byte order of this machine, as the protocol demands.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_ne_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_ne_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_ne_bytes)
    }

    fn queue(&mut self) -> Option<QueueIndex> {
        let index = u16::try_from(self.u32()?).ok()?;
        (index < QUEUES_MAX).then_some(QueueIndex(index))
    }

    fn region(&mut self) -> Option<RegionPlace> {
        let (guest, size) = (GuestAddress(self.u64()?), self.u64()?);
        Some(RegionPlace {
            guest,
            size,
            client: ClientAddress(self.u64()?),
            file_offset: self.u64()?,
        })
    }

    fn inflight(&mut self) -> Option<InflightPlace> {
        let (len, offset) = (self.u64()?, self.u64()?);
        Some(InflightPlace { len, offset, queues: self.u16()?, queue_size: self.u16()? })
    }
}

impl Header {
    /// Reads a header.
    ///
    /// # Errors
    /// The header is not that of a request of this version, or announces too long a payload.
    pub fn parse(bytes: [u8; HEADER]) -> Result<Self, MessageError> {
        let [c0, c1, c2, c3, f0, f1, f2, f3, l0, l1, l2, l3] = bytes;
        let flags = u32::from_ne_bytes([f0, f1, f2, f3]);
        let announced = u32::from_ne_bytes([l0, l1, l2, l3]);
        if flags & (3 | REPLY) != VERSION {
            return Err(MessageError::Flags(flags));
        }
        let len = usize::try_from(announced).ok().filter(|len| *len <= PAYLOAD_MAX);
        let len = len.ok_or(MessageError::Length(announced))?;
        let code = u32::from_ne_bytes([c0, c1, c2, c3]);
        Ok(Header { code, need_reply: flags & NEED_REPLY != 0, len })
    }

    /// Returns the header of an answer with `len` bytes to this message.
    pub fn reply(&self, len: usize) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        let words = [self.code, VERSION | REPLY, u32::try_from(len).unwrap_or(0)];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_ne_bytes());
        }
        bytes
    }
}

impl Message {
    /// Reads a message that came with `descriptors` descriptors.
    ///
    /// # Errors
    /// See [`MessageError`].
    pub fn parse(header: Header, payload: &[u8], descriptors: usize) -> Result<Self, MessageError> {
        let code = header.code;
        let parsed = Self::read(code, payload).ok_or(MessageError::Payload(code))?;
        let message = parsed.ok_or(MessageError::Unknown(code))?;
        let wanted = match &message {
            Message::SetMemory(regions) => regions.len(),
            // Some clients attach the descriptor of the region that they remove.
            Message::RemoveRegion(_) => descriptors.min(1),
            Message::AddRegion(_) | Message::SetInflight(_) => 1,
            Message::SetKick(_) | Message::SetCall(_) | Message::SetError(_) => {
                let absent = Fields(payload).u64().unwrap_or(0) & NO_DESCRIPTOR != 0;
                usize::from(!absent)
            }
            _ => 0,
        };
        match wanted == descriptors {
            true => Ok(message),
            false => Err(MessageError::Descriptors(code, descriptors)),
        }
    }

    /// Reads a payload. `None`: the format is wrong. `Some(None)`: the message is unknown.
    fn read(code: u32, payload: &[u8]) -> Option<Option<Self>> {
        let mut fields = Fields(payload);
        let message = match code {
            1 => Message::GetFeatures,
            2 => Message::SetFeatures(fields.u64()?),
            3 => Message::SetOwner,
            4 => Message::ResetOwner,
            5 => Message::SetMemory(Self::read_table(&mut fields)?),
            8 => Message::SetQueueSize(fields.queue()?, fields.u32()?),
            9 => Self::read_addresses(&mut fields)?,
            10 => Message::SetQueueBase(fields.queue()?, fields.u32()?),
            11 => {
                let queue = fields.queue()?;
                fields.u32()?;
                Message::GetQueueBase(queue)
            }
            12..=14 => {
                let value = fields.u64()?;
                if value & !(NO_DESCRIPTOR | 0xff) != 0 {
                    return None;
                }
                let index = (value & 0xff) as u16;
                let queue = (index < QUEUES_MAX).then_some(QueueIndex(index))?;
                match code {
                    12 => Message::SetKick(queue),
                    13 => Message::SetCall(queue),
                    _ => Message::SetError(queue),
                }
            }
            15 => Message::GetProtocolFeatures,
            16 => Message::SetProtocolFeatures(fields.u64()?),
            17 => Message::GetQueueNumber,
            18 => {
                let (queue, enabled) = (fields.queue()?, fields.u32()?);
                Message::SetQueueEnabled(queue, (enabled <= 1).then_some(enabled == 1)?)
            }
            24 => Self::read_config(&mut fields, false)?,
            25 => Self::read_config(&mut fields, true)?,
            31 => Message::GetInflight(fields.inflight()?),
            32 => Message::SetInflight(fields.inflight()?),
            36 => Message::GetMemorySlots,
            37 | 38 => {
                fields.u64()?;
                let region = fields.region()?;
                if code == 37 { Message::AddRegion(region) } else { Message::RemoveRegion(region) }
            }
            _ => return Some(None),
        };
        // Structures of the protocol may be padded at their ends.
        (fields.0.len() < size_of::<u64>()).then_some(Some(message))
    }

    fn read_table(fields: &mut Fields<'_>) -> Option<Vec<RegionPlace>> {
        let count = usize::try_from(fields.u32()?).ok().filter(|count| *count <= TABLE_MAX)?;
        fields.u32()?;
        let regions = (0..count).map(|_| fields.region()).collect::<Option<Vec<_>>>()?;
        // Some clients send the whole table, however many regions are used.
        fields.0 = &[];
        Some(regions)
    }

    fn read_addresses(fields: &mut Fields<'_>) -> Option<Self> {
        let (queue, _flags) = (fields.queue()?, fields.u32()?);
        let descriptors = ClientAddress(fields.u64()?);
        let used = ClientAddress(fields.u64()?);
        let available = ClientAddress(fields.u64()?);
        fields.u64()?;
        Some(Message::SetQueueAddresses(queue, RingAddresses { descriptors, available, used }))
    }

    fn read_config(fields: &mut Fields<'_>, set: bool) -> Option<Self> {
        let (offset, len, _flags) = (fields.u32()?, fields.u32()?, fields.u32()?);
        offset.checked_add(len).filter(|end| *end <= CONFIG_MAX)?;
        let bytes = fields.0.get(..len as usize)?.to_vec();
        fields.0 = &[];
        Some(match set {
            true => Message::SetConfig { offset, bytes },
            false => Message::GetConfig { offset, len },
        })
    }
}

#[cfg(test)]
mod tests;
