//! Requests that arrive through the lane's ring instead of being read from the connection. Each
//! entry has a task: it waits for a request, executes it, and gives the reply to the kernel
//! together with the wait for the next request.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::Duration;

use forebay_core::{IoError, Op, Survives};
use forebay_device::IoBuf;
use forebay_device::fuse::{ENTRY_BYTES, FuseEntry};
use forebay_device::ring::RingOp;
use forebay_engine::{BlockService, Completion, CompletionSink};
use forebay_lane::Signal;
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::{Channel, FileRequest, FileRequestKind};
use crate::answer::{Action, MAX_TRANSFER, VolumeRequest, decide, errno, written};
use crate::request::{RequestId, parse_entry};
use crate::wire::{OUT_HEADER, OutHeader};

/// Number of entries of all queues together, provided that each queue gets at least [`LEAST`].
const ENTRIES: usize = 64;
/// Least number of entries of a queue: all requests may come from one CPU.
const LEAST: usize = 4;
/// Interval at which an entry is offered again to a connection that has not been negotiated.
const AGAIN: Duration = Duration::from_millis(1);

/// The queues of a connection that one lane serves.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Queues {
    numbers: Vec<u16>,
    /// Entries of each.
    entries: usize,
}

impl Queues {
    /// Distributes the queues of a connection over lanes.
    pub(crate) fn of_lanes(queues: u16, lanes: usize) -> Vec<Queues> {
        let entries = (ENTRIES / usize::from(queues).max(1)).max(LEAST);
        let numbers = |lane| (0..queues).skip(lane).step_by(lanes.max(1)).collect();
        (0..lanes).map(|lane| Queues { numbers: numbers(lane), entries }).collect()
    }

    /// Returns the bytes of memory of all entries.
    pub(crate) fn bytes(&self) -> u64 {
        (self.numbers.len() * self.entries * (ENTRY_BYTES + MAX_TRANSFER as usize)) as u64
    }
}

/// The result of a request that the volume executes, for the task that waits for it.
#[derive(Default)]
pub(super) struct EntryOutcome {
    completion: RefCell<Option<Completion>>,
    changed: Signal,
}

impl EntryOutcome {
    pub(super) fn set(&self, completion: Completion) {
        self.completion.replace(Some(completion));
        self.changed.raise();
    }

    async fn get(&self) -> Completion {
        loop {
            if let Some(completion) = self.completion.take() {
                return completion;
            }
            self.changed.wait().await;
        }
    }
}

impl Channel {
    /// Begins to serve queues on the lane, until the connection ends.
    pub(crate) fn serve_queues(self: &Rc<Self>, queues: &Queues) {
        for &queue in &queues.numbers {
            for _ in 0..queues.entries {
                let channel = self.clone();
                let entry = FuseEntry::new(queue, MAX_TRANSFER as usize);
                self.lane.spawn(async move { channel.serve_entry(entry).await });
            }
        }
    }

    async fn serve_entry(self: Rc<Self>, mut entry: Box<FuseEntry>) {
        let sink: Rc<dyn CompletionSink> = self.clone();
        loop {
            let done = self.ring.run(RingOp::ServeEntry { fd: self.fd.clone(), entry }).await;
            let Some(given) = done.entry else { return };
            entry = given;
            match done.result.map_err(|error| Errno::from_io_error(&error)) {
                Ok(_) => entry.took(),
                Err(Some(Errno::AGAIN)) if !entry.is_registered() && !self.closed.get() => {
                    self.lane.sleep(AGAIN).await;
                    continue;
                }
                // The connection has ended.
                Err(Some(
                    Errno::AGAIN
                    | Errno::NOTCONN
                    | Errno::CONNABORTED
                    | Errno::CANCELED
                    | Errno::NODEV,
                )) => return,
                Err(error) => {
                    let error = error.unwrap_or(Errno::IO);
                    tracing::error!(volume = self.name, %error, "the kernel does not give requests for its file through io_uring; start the daemon without --fuse-io-uring");
                    return self.close();
                }
            }
            let (id, result) = self.execute_entry(&mut entry, &sink).await;
            let (error, len) = match result {
                Ok(len) => (0, len),
                Err(errno) => (-errno.raw_os_error(), 0),
            };
            let header = OutHeader { len: (OUT_HEADER + len) as u32, error, unique: id.0 };
            entry.reply(header.as_bytes(), len);
        }
    }

    /// Executes the request of an entry. Returns its number and the length of the reply's payload.
    async fn execute_entry(
        self: &Rc<Self>,
        entry: &mut FuseEntry,
        sink: &Rc<dyn CompletionSink>,
    ) -> (RequestId, Result<usize, Errno>) {
        let parsed = parse_entry(entry.header(), entry.parameters(), entry.data().len());
        let message = match parsed {
            Ok(message) => message,
            Err(malformed) => {
                tracing::error!(volume = self.name, "the kernel's request is refused: {malformed}");
                return (malformed.id().unwrap_or(RequestId(0)), Err(Errno::INVAL));
            }
        };
        let put = |entry: &mut FuseEntry, bytes: &[u8]| match entry.payload().get_mut(..bytes.len())
        {
            Some(place) => {
                place.copy_from_slice(bytes);
                Ok(bytes.len())
            }
            None => Err(Errno::IO),
        };
        let result = match decide(&message, &self.file) {
            Action::Ignore => Ok(0),
            Action::Reply(Ok(content)) => put(entry, content.bytes()),
            Action::Reply(Err(errno)) => Err(errno),
            Action::Read { request, skip, len } => {
                let wanted = skip as usize..skip as usize + len as usize;
                let whole = wanted == (0..request.len as usize);
                match self.read_into(entry, &request, whole, sink).await {
                    Ok(None) => Ok(wanted.len()),
                    Ok(Some(data)) => match data.get(wanted) {
                        Some(data) => put(entry, data),
                        None => Err(Errno::IO),
                    },
                    Err(errno) => Err(errno),
                }
            }
            Action::Volume(request) => {
                let done = self.change_from(entry, request, sink).await;
                match (done, request.op) {
                    (Ok(()), Op::Write) => put(entry, written(request.len as u32).bytes()),
                    (done, _) => done.map(|()| 0),
                }
            }
        };
        (message.id, result)
    }

    /// Reads. Returns the data, or `None` if they are in the entry already.
    async fn read_into(
        &self,
        entry: &mut FuseEntry,
        request: &VolumeRequest,
        whole: bool,
        sink: &Rc<dyn CompletionSink>,
    ) -> Result<Option<IoBuf>, Errno> {
        let (target, held) = self.admit(request).await.map_err(errno)?;
        let place = entry.payload().get_mut(..request.len as usize).filter(|_| whole);
        if let Some(result) = place.and_then(|into| target.read_now(request.offset, into)) {
            self.release(held);
            return result.map(|()| None).map_err(errno);
        }
        let data = IoBuf::for_overwrite(request.len as usize);
        let (result, data) = self.submit_and_wait(&target, request, Some(data), held, sink).await;
        result.map_err(errno)?;
        data.map(Some).ok_or(Errno::IO)
    }

    /// Executes a request that changes the volume, or a flush.
    async fn change_from(
        &self,
        entry: &FuseEntry,
        request: VolumeRequest,
        sink: &Rc<dyn CompletionSink>,
    ) -> Result<(), Errno> {
        let (target, held) = self.admit(&request).await.map_err(errno)?;
        let data = if request.op == Op::Write {
            // The data has the length of the request; the parser has checked that.
            let data = entry.data();
            if request.survives == Survives::Nothing
                && let Some(result) = target.write_now(request.offset, data)
            {
                self.release(held);
                return result.map_err(errno);
            }
            // The kernel can access the entry's memory, so the volume gets a copy.
            Some(IoBuf::copy_from(data))
        } else {
            None
        };
        let (result, _) = self.submit_and_wait(&target, &request, data, held, sink).await;
        if result == Err(IoError::NotSupported) && request.punch && self.is_small(&target, &request)
        {
            let (target, held) = self.admit(&request).await.map_err(errno)?;
            let zeroes = VolumeRequest { punch: false, ..request };
            return self.submit_and_wait(&target, &zeroes, None, held, sink).await.0.map_err(errno);
        }
        result.map_err(errno)
    }

    pub(super) async fn submit_and_wait(
        &self,
        target: &Rc<dyn BlockService>,
        request: &VolumeRequest,
        data: Option<IoBuf>,
        held: u64,
        sink: &Rc<dyn CompletionSink>,
    ) -> (Result<(), IoError>, Option<IoBuf>) {
        let outcome = Rc::<EntryOutcome>::default();
        let kind = FileRequestKind::Entry(outcome.clone());
        self.submit(target, request, data, FileRequest { id: RequestId(0), held, kind }, sink);
        let Completion { result, data, .. } = outcome.get().await;
        (result, data)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_queue_has_one_lane() {
        let of = |queues, lanes| Queues::of_lanes(queues, lanes);
        let numbers =
            |all: &[Queues]| all.iter().map(|one| one.numbers.clone()).collect::<Vec<_>>();
        assert_eq!(numbers(&of(2, 2)), [vec![0], vec![1]]);
        assert_eq!(numbers(&of(5, 2)), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(numbers(&of(1, 3)), [vec![0], vec![], vec![]]);
        assert_eq!((of(2, 2)[0].entries, of(128, 2)[0].entries), (32, 4));
        assert_eq!(of(1, 3)[1].bytes(), 0);
    }
}
