//! The operations of one connection and the requests that they are made of. No I/O.
//!
//! An operation is split into requests that the server takes. A request stays here, with its data,
//! until its reply has come, so that it can be sent again on another connection.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use forebay_core::Nanos;
use forebay_device::{
    DeviceErrorKind, DeviceExtent, DeviceOp, IoBuf, IoData, LogBuffer, OpId, OpTable,
};
use forebay_nbd_wire::handshake::Export;
use forebay_nbd_wire::{RequestHeader, command, command_flag, transmission_flag};

use crate::reply::To;

/// Longest range of a request that has no payload, in bytes.
const RANGE_MAX: u64 = 1 << 30;
/// Longest payload of a request, however much the server takes, in bytes.
const PAYLOAD_MAX: u64 = 32 << 20;
/// Longest payload of zeroes, where the server has no request for them, in bytes.
const ZEROES_MAX: u64 = 1 << 20;
/// Number of lost connections after which an operation fails: the operation itself may be the
/// cause.
pub(crate) const LOSSES_MAX: u8 = 8;

/// The data of an operation.
pub(crate) enum Data {
    None,
    /// The destination of a read, or the data of a write. `None` while the receiver fills it.
    Owned(Option<IoBuf>),
    Log(Arc<LogBuffer>, Range<usize>),
    /// A payload of zeroes.
    Zeroes,
}

/// Why an operation failed.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    pub(crate) kind: DeviceErrorKind,
    pub(crate) cause: Arc<str>,
}

impl Failure {
    pub(crate) fn new(kind: DeviceErrorKind, cause: impl Into<Arc<str>>) -> Self {
        Failure { kind, cause: cause.into() }
    }
}

/// An operation in flight.
pub(crate) struct Op {
    pub(crate) what: &'static str,
    pub(crate) offset: u64,
    pub(crate) data: Data,
    /// Requests without a reply.
    left: u32,
    /// Connections that were lost while a request of it was in flight.
    losses: u8,
    /// Number of the last lost connection that was counted.
    lost_with: u64,
    pub(crate) failure: Option<Failure>,
    pub(crate) extent: Option<DeviceExtent>,
    pub(crate) to: To,
}

/// A request.
pub(crate) struct WireRequest {
    pub(crate) op: OpId,
    pub(crate) command: u16,
    flags: u16,
    pub(crate) offset: u64,
    pub(crate) len: u32,
    /// When the request was sent on the present connection; `None` if it was not.
    pub(crate) sent: Option<Nanos>,
    /// Bytes of a read that have been received.
    pub(crate) got: u32,
    /// The number of changes that a flush makes durable.
    pub(crate) covers: u64,
}

impl WireRequest {
    /// Returns whether the request changes the export, so that a flush must cover it.
    pub(crate) fn changes(&self) -> bool {
        matches!(self.command, command::WRITE | command::WRITE_ZEROES)
            && self.flags & command_flag::FUA == 0
    }
}

/// The server's abilities, as far as splitting needs them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Abilities {
    flags: u16,
    most: u64,
}

impl Abilities {
    pub(crate) fn of(export: &Export, logical_block: u64) -> Self {
        let most = u64::from(export.most).min(PAYLOAD_MAX);
        Abilities { flags: export.flags, most: (most - most % logical_block).max(logical_block) }
    }

    fn has(self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// Returns whether a range can be made to read as zeroes cheaply.
    pub(crate) fn discards(self) -> bool {
        self.has(transmission_flag::SEND_WRITE_ZEROES)
            && self.has(transmission_flag::SEND_FAST_ZERO)
    }

    pub(crate) fn writes_durably(self) -> bool {
        self.has(transmission_flag::SEND_FUA)
    }
}

/// The request of an operation, before it is split.
struct RequestPlan {
    command: u16,
    flags: u16,
    range: Range<u64>,
    most: u64,
    data: Data,
}

impl RequestPlan {
    /// Returns the plan of an operation, or the reason why there is none.
    fn of(op: DeviceOp, abilities: Abilities) -> Result<Self, (Failure, Data)> {
        let most = abilities.most;
        let range = op.range().unwrap_or(0..0);
        let missing = |cause: &'static str| Failure::new(DeviceErrorKind::NotSupported, cause);
        let (command, flags, most, data) = match op {
            DeviceOp::Read { buf, .. } => (command::READ, 0, most, Data::Owned(Some(buf))),
            DeviceOp::Write { data, .. } => (command::WRITE, 0, most, data.into()),
            DeviceOp::DurableWrite { log, range, .. } if abilities.writes_durably() => {
                (command::WRITE, command_flag::FUA, most, Data::Log(log, range))
            }
            DeviceOp::DurableWrite { .. } => {
                return Err((missing("the server has no durable writes (FUA)"), Data::None));
            }
            DeviceOp::Sync => (command::FLUSH, 0, RANGE_MAX, Data::None),
            DeviceOp::Discard { .. } if abilities.discards() => {
                (command::WRITE_ZEROES, command_flag::FAST_ZERO, RANGE_MAX, Data::None)
            }
            DeviceOp::Discard { .. } => {
                return Err((
                    missing("the server does not zero ranges fast (FAST_ZERO)"),
                    Data::None,
                ));
            }
            DeviceOp::WriteZeroes { .. } if abilities.has(transmission_flag::SEND_WRITE_ZEROES) => {
                (command::WRITE_ZEROES, command_flag::NO_HOLE, RANGE_MAX, Data::None)
            }
            DeviceOp::WriteZeroes { .. } => (command::WRITE, 0, most.min(ZEROES_MAX), Data::Zeroes),
        };
        Ok(RequestPlan { command, flags, range, most, data })
    }
}

impl From<IoData> for Data {
    fn from(data: IoData) -> Self {
        match data {
            IoData::Owned(buf) => Data::Owned(Some(buf)),
            IoData::Log(log, range) => Data::Log(log, range),
        }
    }
}

impl Data {
    /// Returns the bytes of a range, or `None` for zeroes.
    fn get(&self, range: Range<usize>) -> Option<&[u8]> {
        match self {
            Data::Owned(Some(buf)) => buf.get(range),
            Data::Log(log, all) => log.get(all.clone())?.get(range),
            Data::Owned(None) | Data::None | Data::Zeroes => None,
        }
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Requests {
    ops: OpTable<Op>,
    parts: OpTable<WireRequest>,
    unsent: VecDeque<OpId>,
    /// The request that is being sent, and the number of bytes of its payload that were copied.
    sending: Option<(OpId, usize)>,
    /// Sent requests without a reply.
    in_flight: usize,
    /// Number of acknowledged changes of the export.
    acknowledged: u64,
    /// Number of lost connections.
    lost: u64,
}

impl Requests {
    /// Adds an operation. Returns `Err` with the result if the operation has ended at once.
    pub(crate) fn start(
        &mut self,
        op: DeviceOp,
        abilities: Abilities,
        to: To,
    ) -> Result<OpId, OpId> {
        let what = op.what();
        let offset = op.range().map_or(0, |range| range.start);
        let new = |data, to| Op {
            what,
            offset,
            data,
            left: 0,
            losses: 0,
            lost_with: 0,
            failure: None,
            extent: None,
            to,
        };
        let RequestPlan { command, flags, range, most, data } = match RequestPlan::of(op, abilities)
        {
            Ok(plan) => plan,
            Err((failure, data)) => {
                return Err(self.ops.add(Op { failure: Some(failure), ..new(data, to) }));
            }
        };
        if range.is_empty() && command != command::FLUSH {
            return Err(self.ops.add(new(data, to)));
        }
        let id = self.ops.add(new(data, to));
        let mut at = range.start;
        loop {
            let len = (range.end - at).min(most);
            self.add_part(id, (command, flags), at, len as u32);
            at += len;
            if at >= range.end {
                return Ok(id);
            }
        }
    }

    /// Adds a query for the extent at `offset`, of at most `len` bytes.
    pub(crate) fn ask_extent(&mut self, offset: u64, len: u64, to: To) {
        let op = Op {
            what: "block status",
            offset,
            data: Data::None,
            left: 0,
            losses: 0,
            lost_with: 0,
            failure: None,
            extent: None,
            to,
        };
        let id = self.ops.add(op);
        let of = (command::BLOCK_STATUS, command_flag::REQ_ONE);
        self.add_part(id, of, offset, len.min(RANGE_MAX) as u32);
    }

    fn add_part(&mut self, op: OpId, (command, flags): (u16, u16), offset: u64, len: u32) {
        let part = WireRequest { op, command, flags, offset, len, sent: None, got: 0, covers: 0 };
        let id = self.parts.add(part);
        self.unsent.push_back(id);
        if let Some(op) = self.ops.get_mut(op) {
            op.left += 1;
        }
    }

    pub(crate) fn op(&mut self, id: OpId) -> Option<&mut Op> {
        self.ops.get_mut(id)
    }

    /// Removes an operation that has been answered.
    pub(crate) fn take(&mut self, id: OpId) -> Option<Op> {
        self.ops.take(id)
    }

    /// Returns the request with this cookie, if it is in flight.
    pub(crate) fn part(&mut self, cookie: u64) -> Option<&mut WireRequest> {
        // A reply to a request that has not been sent completely is invalid.
        let sending = self.sending.is_some_and(|(id, _)| id.0 == cookie);
        self.parts.get_mut(OpId(cookie)).filter(|part| part.sent.is_some() && !sending)
    }

    pub(crate) fn has_unsent(&self) -> bool {
        self.sending.is_some() || !self.unsent.is_empty()
    }

    pub(crate) fn in_flight(&self) -> usize {
        self.in_flight
    }

    /// Returns whether there are no requests.
    pub(crate) fn is_idle(&self) -> bool {
        self.in_flight == 0 && !self.has_unsent()
    }

    pub(crate) fn acknowledged(&self) -> u64 {
        self.acknowledged
    }

    /// Fills `into` with requests to send and returns the number of bytes. With `only_samples`,
    /// other requests are held back.
    pub(crate) fn fill(&mut self, into: &mut [u8], now: Nanos, only_samples: bool) -> usize {
        let mut at = 0;
        if self.sending.is_some() {
            at = self.fill_payload(into, at);
        }
        while self.sending.is_none() && into.len() - at >= RequestHeader::SIZE {
            let Some(&id) = self.unsent.front() else { break };
            let acknowledged = self.acknowledged;
            let Some(part) = self.parts.get_mut(id) else {
                self.unsent.pop_front();
                continue;
            };
            if only_samples
                && !matches!(self.ops.get_mut(part.op), Some(Op { to: To::Sample(_), .. }))
            {
                break;
            }
            self.unsent.pop_front();
            if self.ops.get_mut(part.op).is_none_or(|op| op.to.is_abandoned()) {
                let op = part.op;
                self.drop_part(id, op);
                continue;
            }
            (part.sent, part.got, part.covers) = (Some(now), 0, acknowledged);
            let offset = if part.command == command::FLUSH { 0 } else { part.offset };
            let mut header = RequestHeader::new(part.command, id.0, offset, part.len);
            header.flags.set(part.flags);
            let carries = part.command == command::WRITE;
            self.in_flight += 1;
            let end = at + RequestHeader::SIZE;
            if let Some(place) = into.get_mut(at..end) {
                place.copy_from_slice(&header.to_bytes());
            }
            at = end;
            if carries {
                self.sending = Some((id, 0));
                at = self.fill_payload(into, at);
            }
        }
        at
    }

    /// Drops a request that was not sent.
    fn drop_part(&mut self, id: OpId, op: OpId) {
        self.parts.take(id);
        if let Some(found) = self.ops.get_mut(op) {
            found.left -= 1;
            if found.left == 0 {
                self.ops.take(op);
            }
        }
    }

    /// Copies as much payload of the request that is being sent as fits behind `at`; returns the
    /// end.
    fn fill_payload(&mut self, into: &mut [u8], at: usize) -> usize {
        let Some((id, done)) = self.sending else { return at };
        let Some(part) = self.parts.get_mut(id) else {
            self.sending = None;
            return at;
        };
        let room = into.get_mut(at..).unwrap_or_default();
        let len = (part.len as usize - done).min(room.len());
        let place = &mut room[..len];
        if let Some(op) = self.ops.get_mut(part.op) {
            let start = (part.offset - op.offset) as usize + done;
            match op.data.get(start..start + len) {
                Some(bytes) => place.copy_from_slice(bytes),
                None => place.fill(0),
            }
        }
        let whole = done + len == part.len as usize;
        self.sending = (!whole).then_some((id, done + len));
        at + len
    }

    /// Returns the number of requests that have not been sent, without the one that is being sent.
    pub(crate) fn unsent(&self) -> usize {
        self.unsent.len()
    }

    /// Moves the samples, which are behind the first `others` unsent requests, to the front: they
    /// are compared before anything else is sent.
    pub(crate) fn samples_first(&mut self, others: usize) {
        let others = others.min(self.unsent.len());
        self.unsent.rotate_left(others);
    }

    /// Ends a request. Returns it, and whether its operation has ended with it.
    pub(crate) fn answered(&mut self, cookie: u64, failed: bool) -> Option<(WireRequest, bool)> {
        let part = self.parts.take(OpId(cookie))?;
        self.in_flight = self.in_flight.saturating_sub(1);
        if part.changes() && !failed {
            self.acknowledged += 1;
        }
        let op = self.ops.get_mut(part.op)?;
        op.left -= 1;
        let ended = op.left == 0;
        Some((part, ended))
    }

    /// Returns when the oldest request without a reply was sent.
    pub(crate) fn oldest(&mut self) -> Option<Nanos> {
        let ids: Vec<OpId> = self.parts.ids().collect();
        ids.into_iter().filter_map(|id| self.parts.get_mut(id)?.sent).min()
    }

    /// Queues every request that was sent to be sent again, after its connection was lost. Ends
    /// operations for which `fails` returns a failure, operations that were lost too often, and
    /// samples. Returns these operations, and for flushes the number of changes that they were to
    /// cover.
    pub(crate) fn lost(
        &mut self,
        fails: impl Fn(&WireRequest) -> Option<Failure>,
    ) -> Vec<(OpId, Option<u64>)> {
        (self.sending, self.in_flight) = (None, 0);
        self.lost += 1;
        let mut ended = Vec::new();
        let mut again: Vec<OpId> = Vec::new();
        for id in self.parts.ids().collect::<Vec<_>>() {
            let Some(part) = self.parts.get_mut(id) else { continue };
            let Some(op) = self.ops.get_mut(part.op).filter(|op| op.left > 0) else { continue };
            let sent = part.sent.is_some();
            if !sent {
                part.covers = self.acknowledged;
            }
            let mut failure = fails(part);
            if sent {
                // A lost connection counts once per operation, however many of its requests were in
                // flight.
                if op.lost_with != self.lost {
                    (op.losses, op.lost_with) = (op.losses.saturating_add(1), self.lost);
                }
                again.push(id);
            }
            let lost = |cause| Some(Failure::new(DeviceErrorKind::Unreachable, cause));
            if op.losses >= LOSSES_MAX {
                failure = failure.or(lost("the connection was lost each time that this was sent"));
            }
            if matches!(op.to, To::Sample(_)) || op.to.is_abandoned() {
                failure = failure.or(lost("the connection was lost"));
            }
            if let Some(failure) = failure {
                (op.left, op.failure) = (0, Some(failure));
                ended.push((part.op, (part.command == command::FLUSH).then_some(part.covers)));
            }
            part.sent = None;
        }
        for id in again.into_iter().rev() {
            self.unsent.push_front(id);
        }
        self.drop_parts();
        ended
    }

    /// Fails an operation that was not sent.
    pub(crate) fn fail(&mut self, id: OpId, failure: Failure) {
        if let Some(op) = self.ops.get_mut(id) {
            (op.left, op.failure) = (0, Some(failure));
        }
        self.drop_parts();
    }

    /// Fails every operation and returns their IDs.
    pub(crate) fn fail_all(&mut self, failure: &Failure) -> Vec<OpId> {
        let mut ended = Vec::new();
        for id in self.ops.ids().collect::<Vec<_>>() {
            if let Some(op) = self.ops.get_mut(id).filter(|op| op.left > 0) {
                (op.left, op.failure) = (0, Some(failure.clone()));
                ended.push(id);
            }
        }
        (self.sending, self.in_flight) = (None, 0);
        self.drop_parts();
        ended
    }

    /// Drops the requests of operations that have ended.
    fn drop_parts(&mut self) {
        for id in self.parts.ids().collect::<Vec<_>>() {
            let of = self.parts.get_mut(id).map(|part| part.op);
            if of.is_some_and(|op| self.ops.get_mut(op).is_none_or(|op| op.left == 0)) {
                self.parts.take(id);
            }
        }
        let parts = &mut self.parts;
        self.unsent.retain(|id| parts.get_mut(*id).is_some());
    }

    /// Takes the buffer of a read, to receive into it.
    pub(crate) fn take_buf(&mut self, op: OpId) -> Option<IoBuf> {
        match &mut self.ops.get_mut(op)?.data {
            Data::Owned(buf) => buf.take(),
            _ => None,
        }
    }

    /// Gives the buffer of a read back.
    pub(crate) fn put_buf(&mut self, op: OpId, buf: IoBuf) {
        if let Some(Op { data: Data::Owned(place), .. }) = self.ops.get_mut(op) {
            *place = Some(buf);
        }
    }
}
