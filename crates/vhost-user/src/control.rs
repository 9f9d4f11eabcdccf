//! A client's control messages: the settings of the client so far, and the answers.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use forebay_device::SharedMemory;
use forebay_engine::{BlockService, Exports};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};

use crate::answer::answer;
use crate::config::{CONFIG_BYTES, DeviceConfig, QUEUES_MAX, WRITE_CACHE_AT};
use crate::features::{device, protocol};
use crate::inflight::{Record, record_bytes};
use crate::lane_queues::{Command, LaneHandle, Lanes, QueueKey};
use crate::memory::{GuestMemory, REGIONS_MAX, RegionError, RegionPlace};
use crate::message::{InflightPlace, Message, MessageError, QueueIndex, RingAddresses};
use crate::queue::{Broken, QueueStart};
use crate::session::Session;
use crate::virtqueue::{QueueError, QueueFeatures, QueueSize};
use crate::wire::{Received, Wire, WireError};

/// Why a client is dropped.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ControlError {
    #[error(transparent)]
    Wire(#[from] WireError),
    #[error("the client sends no valid message: {0}")]
    Message(#[from] MessageError),
    #[error("the client sets features {0:#x}, which are not offered")]
    Features(u64),
    #[error(transparent)]
    Memory(#[from] RegionError),
    #[error("the client sets queue {0} to {1} descriptors, which is no power of two up to 32768")]
    Size(u16, u32),
    #[error("the client changes queue {0} while it is served")]
    Running(u16),
    #[error("the client starts queue {0} without an eventfd, its size or its addresses")]
    Incomplete(u16),
    #[error("the client notifies of queue {0} by something else than an eventfd")]
    NoEventfd(u16),
    #[error(transparent)]
    Queue(#[from] Broken),
    #[error("queue {0} cannot use the changed memory: {1}")]
    Moved(u16, QueueError),
    #[error("the record of requests in progress has impossible numbers")]
    Record,
    #[error("the record of requests in progress cannot be used: {0}")]
    RecordMemory(io::Error),
    #[error("the client changes the configuration space at {0}")]
    Config(u32),
    #[error("the volume is not served any more")]
    NoVolume,
}

/// A client's settings of a queue.
#[derive(Default)]
struct QueueState {
    size: Option<QueueSize>,
    addresses: Option<RingAddresses>,
    base: u16,
    kick: Option<Arc<OwnedFd>>,
    call: Option<Arc<OwnedFd>>,
    /// `None` if the client has not set it.
    enabled: Option<bool>,
    /// The lane that serves the queue.
    lane: Option<Arc<LaneHandle>>,
}

/// The answer to a message.
enum ControlAnswer {
    /// No answer; a confirmation if the client asks for one.
    Done,
    Bytes(Vec<u8>),
    WithDescriptor(Vec<u8>, OwnedFd),
}

fn number(value: u64) -> ControlAnswer {
    ControlAnswer::Bytes(value.to_ne_bytes().to_vec())
}

/// One client's control connection.
pub(crate) struct Control {
    number: u64,
    wire: Wire,
    session: Arc<Session>,
    exports: Rc<dyn Exports>,
    lanes: Arc<Lanes>,
    features: u64,
    protocol: u64,
    memory: Arc<GuestMemory>,
    record: Option<Record>,
    queues: Vec<QueueState>,
}

impl Control {
    pub(crate) fn new(
        number: u64,
        wire: Wire,
        session: Arc<Session>,
        exports: Rc<dyn Exports>,
        lanes: Arc<Lanes>,
    ) -> Self {
        Control {
            number,
            wire,
            session,
            exports,
            lanes,
            features: 0,
            protocol: 0,
            memory: Arc::default(),
            record: None,
            queues: (0..QUEUES_MAX).map(|_| QueueState::default()).collect(),
        }
    }

    /// Follows the client's messages until it leaves.
    ///
    /// # Errors
    /// The client has broken the protocol. Its queues are still served.
    pub(crate) async fn follow(&mut self) -> Result<(), ControlError> {
        while let Some(received) = self.wire.receive().await? {
            let Received { header, message, descriptors } = received;
            let acknowledges = self.protocol & protocol::REPLY_ACK != 0;
            let outcome = match message {
                Ok(message) => self.handle(message, header.len, descriptors).await,
                Err(error) => Err(error.into()),
            };
            let confirm = header.need_reply && acknowledges;
            match outcome {
                Ok(ControlAnswer::Bytes(bytes)) => self.wire.reply(header, &bytes, None)?,
                Ok(ControlAnswer::WithDescriptor(bytes, file)) => {
                    self.wire.reply(header, &bytes, Some(file.as_fd()))?;
                }
                Ok(ControlAnswer::Done) if confirm => {
                    self.wire.reply(header, &0_u64.to_ne_bytes(), None)?;
                }
                Ok(ControlAnswer::Done) => {}
                Err(error) => {
                    if confirm {
                        // The client is dropped because of the error, whether this answer reaches
                        // it or not.
                        let _ = self.wire.reply(header, &1_u64.to_ne_bytes(), None);
                    }
                    return Err(error);
                }
            }
        }
        Ok(())
    }

    /// Stops all queues and waits until their requests in progress are answered.
    pub(crate) async fn stop(&mut self) {
        let mut answers = Vec::new();
        for (state, index) in self.queues.iter_mut().zip(0..) {
            if let Some(lane) = state.lane.take() {
                let (reply, stopped) = answer();
                let key = QueueKey { client: self.number, index: QueueIndex(index) };
                lane.send(Command::Stop(key, reply));
                answers.push(stopped);
            }
        }
        for stopped in answers {
            stopped.wait().await;
        }
    }

    fn volume(&self) -> Result<Rc<dyn BlockService>, ControlError> {
        self.exports.open(&self.session.volume).ok_or(ControlError::NoVolume)
    }

    fn key(&self, index: QueueIndex) -> QueueKey {
        QueueKey { client: self.number, index }
    }

    fn queue(&mut self, index: QueueIndex) -> Result<&mut QueueState, ControlError> {
        // `Message::parse` has checked the number.
        let found = self.queues.get_mut(usize::from(index.0));
        found.ok_or(ControlError::Incomplete(index.0))
    }

    /// Returns a queue, which must not be served.
    fn idle(&mut self, index: QueueIndex) -> Result<&mut QueueState, ControlError> {
        let queue = self.queue(index)?;
        match queue.lane {
            None => Ok(queue),
            Some(_) => Err(ControlError::Running(index.0)),
        }
    }

    async fn handle(
        &mut self,
        message: Message,
        len: usize,
        descriptors: Vec<OwnedFd>,
    ) -> Result<ControlAnswer, ControlError> {
        let mut descriptors = descriptors.into_iter();
        match message {
            Message::GetFeatures => {
                return Ok(number(device::offered(self.volume()?.read_only())));
            }
            Message::SetFeatures(features) => {
                let offered = device::offered(self.volume()?.read_only());
                self.features = subset(features, offered)?;
            }
            Message::GetProtocolFeatures => return Ok(number(protocol::OFFERED)),
            Message::SetProtocolFeatures(features) => {
                self.protocol = subset(features, protocol::OFFERED)?;
            }
            Message::SetOwner | Message::ResetOwner | Message::SetError(_) => {}
            Message::GetQueueNumber => return Ok(number(QUEUES_MAX.into())),
            Message::GetMemorySlots => return Ok(number(REGIONS_MAX as u64)),
            Message::SetMemory(places) => {
                self.set_memory(&places, descriptors.collect()).await?;
            }
            Message::AddRegion(place) => {
                let mut memory = (*self.memory).clone();
                if let Some(file) = descriptors.next() {
                    memory.add(place, file)?;
                }
                self.use_memory(memory).await?;
            }
            Message::RemoveRegion(place) => {
                let mut memory = (*self.memory).clone();
                memory.remove(place)?;
                self.use_memory(memory).await?;
            }
            Message::SetQueueSize(index, size) => {
                let checked = QueueSize::new(size).ok_or(ControlError::Size(index.0, size))?;
                self.idle(index)?.size = Some(checked);
            }
            Message::SetQueueAddresses(index, addresses) => {
                let queue = self.queue(index)?;
                if queue.lane.is_some() && queue.addresses != Some(addresses) {
                    return Err(ControlError::Running(index.0));
                }
                queue.addresses = Some(addresses);
            }
            // Only packed queues use the upper half.
            Message::SetQueueBase(index, base) => self.idle(index)?.base = base as u16,
            Message::GetQueueBase(index) => return self.stop_queue(index).await,
            Message::SetKick(index) => {
                let kick = descriptors.next().ok_or(ControlError::Incomplete(index.0))?;
                self.idle(index)?.kick = Some(eventfd(index, kick)?);
                self.start_queue(index).await?;
            }
            Message::SetCall(index) => self.set_call(index, descriptors.next()).await?,
            Message::SetQueueEnabled(index, enabled) => {
                self.queue(index)?.enabled = Some(enabled);
                match enabled {
                    true => self.start_queue(index).await?,
                    false => self.pause_queue(index).await?,
                }
            }
            Message::GetConfig { offset, len } => return self.config(offset, len),
            Message::SetConfig { offset, bytes } => self.set_config(offset, &bytes)?,
            Message::GetInflight(place) => return self.make_record(place, len),
            Message::SetInflight(place) => {
                let file = descriptors.next().ok_or(ControlError::Record)?;
                self.use_record(place, &file)?;
            }
        }
        Ok(ControlAnswer::Done)
    }

    async fn set_memory(
        &mut self,
        places: &[RegionPlace],
        files: Vec<OwnedFd>,
    ) -> Result<(), ControlError> {
        let mut memory = GuestMemory::default();
        for (place, file) in places.iter().zip(files) {
            memory.add(*place, file)?;
        }
        self.use_memory(memory).await
    }

    /// Uses changed memory, also for queues that are served. The client may unmap the former memory
    /// after the answer.
    async fn use_memory(&mut self, memory: GuestMemory) -> Result<(), ControlError> {
        self.memory = Arc::new(memory);
        for (place, index) in (0..self.queues.len()).zip(0..) {
            let Some(lane) = self.queues.get(place).and_then(|queue| queue.lane.clone()) else {
                continue;
            };
            let (reply, moved) = answer();
            let key = self.key(QueueIndex(index));
            lane.send(Command::SetMemory(key, self.memory.clone(), reply));
            if let Some(Err(error)) = moved.wait().await {
                return Err(ControlError::Moved(index, error));
            }
        }
        Ok(())
    }

    /// Serves a queue if the client has set up and enabled it.
    async fn start_queue(&mut self, index: QueueIndex) -> Result<(), ControlError> {
        let negotiated = self.features & device::PROTOCOL_FEATURES != 0;
        let (features, memory) = (self.features, self.memory.clone());
        let (session, key) = (self.session.clone(), self.key(index));
        let lane = self.lanes.of(index).ok_or(ControlError::NoVolume)?;
        let record = self.record.clone();
        let queue = self.queue(index)?;
        let enabled = queue.enabled.unwrap_or(!negotiated);
        let Some(kick) = queue.kick.clone().filter(|_| enabled && queue.lane.is_none()) else {
            return Ok(());
        };
        let (Some(size), Some(addresses)) = (queue.size, queue.addresses) else {
            return Err(ControlError::Incomplete(index.0));
        };
        let tracker = match record {
            Some(record) => Some(record.queue(index, size).ok_or(ControlError::Record)?),
            None => None,
        };
        let start = QueueStart {
            session,
            index,
            size,
            addresses,
            features: QueueFeatures {
                event_index: features & device::EVENT_IDX != 0,
                indirect: features & device::INDIRECT_DESC != 0,
            },
            base: queue.base,
            flushes: features & device::FLUSH != 0,
            kick,
            call: queue.call.clone(),
            memory,
            tracker,
        };
        // Set the lane before the answer: if the client is dismissed meanwhile, the queue must be
        // stopped.
        queue.lane = Some(lane.clone());
        let (reply, started) = answer();
        lane.send(Command::Start(key, Box::new(start), reply));
        let started = started.wait().await.ok_or(ControlError::NoVolume);
        if !matches!(started, Ok(Ok(()))) {
            self.queue(index)?.lane = None;
        }
        Ok(started??)
    }

    /// Stops serving a queue; keeps the client's settings of it.
    async fn pause_queue(&mut self, index: QueueIndex) -> Result<(), ControlError> {
        let key = self.key(index);
        let Some(lane) = self.queue(index)?.lane.take() else { return Ok(()) };
        let (reply, stopped) = answer();
        lane.send(Command::Stop(key, reply));
        if let Some(base) = stopped.wait().await {
            self.queue(index)?.base = base;
        }
        Ok(())
    }

    async fn stop_queue(&mut self, index: QueueIndex) -> Result<ControlAnswer, ControlError> {
        self.pause_queue(index).await?;
        let queue = self.queue(index)?;
        (queue.kick, queue.call) = (None, None);
        let mut bytes = u32::from(index.0).to_ne_bytes().to_vec();
        bytes.extend(u32::from(queue.base).to_ne_bytes());
        Ok(ControlAnswer::Bytes(bytes))
    }

    async fn set_call(
        &mut self,
        index: QueueIndex,
        call: Option<OwnedFd>,
    ) -> Result<(), ControlError> {
        let key = self.key(index);
        let call = call.map(|call| eventfd(index, call)).transpose()?;
        let queue = self.queue(index)?;
        queue.call.clone_from(&call);
        let Some(lane) = queue.lane.clone() else { return Ok(()) };
        let (reply, set) = answer();
        lane.send(Command::SetCall(key, call, reply));
        set.wait().await;
        Ok(())
    }

    fn config(&self, offset: u32, len: u32) -> Result<ControlAnswer, ControlError> {
        let volume = self.volume()?;
        let config = DeviceConfig {
            size: volume.size(),
            sectors: volume.sectors(),
            preferred: volume.preferred_block(),
            write_cache: self.session.has_write_cache(),
        };
        // Clients of other versions know a longer or a shorter space.
        let mut space = config.to_bytes().to_vec();
        let end = (offset as usize).saturating_add(len as usize);
        space.resize(end.max(CONFIG_BYTES), 0);
        let mut bytes = Vec::new();
        for word in [offset, len, 0] {
            bytes.extend(word.to_ne_bytes());
        }
        bytes.extend(space.get(offset as usize..end).unwrap_or_default());
        Ok(ControlAnswer::Bytes(bytes))
    }

    /// The guest may write the byte of the write cache alone.
    fn set_config(&self, offset: u32, bytes: &[u8]) -> Result<(), ControlError> {
        match bytes {
            [on] if offset == WRITE_CACHE_AT => {
                self.session.set_write_cache(*on != 0);
                if let Some(record) = &self.record {
                    record.set_write_cache(*on != 0);
                }
                Ok(())
            }
            _ => Err(ControlError::Config(offset)),
        }
    }

    /// Makes a record of requests in progress for the client to keep.
    fn make_record(&self, place: InflightPlace, len: usize) -> Result<ControlAnswer, ControlError> {
        let size = QueueSize::new(place.queue_size.into()).ok_or(ControlError::Record)?;
        if place.queues == 0 || place.queues > QUEUES_MAX {
            return Err(ControlError::Record);
        }
        let bytes = record_bytes(place.queues, size);
        let made = || -> rustix::io::Result<OwnedFd> {
            let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
            let file = memfd_create("forebay-inflight", flags)?;
            ftruncate(&file, bytes)?;
            fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
            Ok(file)
        };
        let file = made().map_err(|errno| ControlError::RecordMemory(errno.into()))?;
        let mut answer = Vec::new();
        answer.extend(bytes.to_ne_bytes());
        answer.extend(0_u64.to_ne_bytes());
        answer.extend(place.queues.to_ne_bytes());
        answer.extend(place.queue_size.to_ne_bytes());
        // Clients differ in the padding of this message, and expect an answer of the same length.
        answer.resize(len, 0);
        Ok(ControlAnswer::WithDescriptor(answer, file))
    }

    fn use_record(&mut self, place: InflightPlace, file: &OwnedFd) -> Result<(), ControlError> {
        let running = self.queues.iter().position(|queue| queue.lane.is_some());
        if let Some(index) = running {
            return Err(ControlError::Running(index as u16));
        }
        let memory =
            SharedMemory::map(file, place.offset, place.len).map_err(ControlError::RecordMemory)?;
        let record = Record::new(memory, place).ok_or(ControlError::Record)?;
        self.session.set_write_cache(record.has_write_cache());
        self.record = Some(record);
        Ok(())
    }
}

/// Checks that a descriptor is an eventfd. A regular file is always readable, so it would notify
/// the lane without end.
fn eventfd(index: QueueIndex, file: OwnedFd) -> Result<Arc<OwnedFd>, ControlError> {
    let link = format!("/proc/self/fd/{}", file.as_raw_fd());
    match std::fs::read_link(link) {
        Ok(target) if target.as_os_str() != "anon_inode:[eventfd]" => {
            Err(ControlError::NoEventfd(index.0))
        }
        // Without /proc the kind of the file is unknown.
        Ok(_) | Err(_) => Ok(Arc::new(file)),
    }
}

fn subset(features: u64, offered: u64) -> Result<u64, ControlError> {
    match features & !offered {
        0 => Ok(features),
        more => Err(ControlError::Features(more)),
    }
}
