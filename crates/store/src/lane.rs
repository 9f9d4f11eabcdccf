//! A store as one lane uses it: appending, committing, freeing segments.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use forebay_core::{RecordNumber, SectorMask, SegmentId};
use forebay_device::{DeviceOp, IoData, Queue};
use forebay_format::record::MAX_FREE;
use forebay_format::{DataEntry, Head};
use forebay_lane::{Lane, yield_now};

use crate::appender::Closed;
use crate::error::StoreError;
use crate::hazard::HazardId;
use crate::index::{Address, Condition, NewVersion, Put};
use crate::latency;
use crate::log::{AMPLE, Gathering, Round, RoundEnding, Rounds};
use crate::planted::{self, PlantedBug};
use crate::record::{Encoded, Ready, Reservation};
use crate::segments::{Live, counts_as};
use crate::store::{Appended, Class, PayloadCheck, Store, Version, VersionId};
use crate::table::{Check, Entry};

/// A store as one lane uses it.
pub struct StoreLane {
    store: Arc<Store>,
    lane: Rc<Lane>,
    queue: Queue,
    /// The lane's hazard slot; `None` if all were claimed.
    pub(crate) hazard: Option<HazardId>,
}

impl Drop for StoreLane {
    fn drop(&mut self) {
        self.store.hazards.release(self.hazard);
    }
}

impl StoreLane {
    /// Opens the store's device for a lane.
    pub fn new(store: Arc<Store>, lane: Rc<Lane>, queue: Queue) -> Rc<Self> {
        // Counters of lanes have a single writer each. With two, one would lose the other's counts,
        // and a flush would be answered too early.
        debug_assert!(usize::from(lane.id().0) < store.options.lanes.max(1), "{:?}", lane.id());
        let hazard = store.hazards.claim();
        counts_as(lane.id().0);
        Rc::new(StoreLane { store, lane, queue, hazard })
    }

    /// The store.
    pub fn store(&self) -> &Arc<Store> {
        &self.store
    }

    /// The lane.
    pub fn lane(&self) -> &Rc<Lane> {
        &self.lane
    }

    /// The lane's queue to the cache device.
    pub fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Visits entries like [`Index::visit`](crate::Index::visit). Other tasks of the lane run after
    /// each shard, so the entries are not as of one instant.
    pub async fn visit(
        &self,
        mut wanted: impl FnMut(&Entry) -> bool,
        mut visit: impl FnMut(Address, &Entry),
    ) {
        let index = &self.store.index;
        for shard in 0..index.shard_count() {
            index.visit_shard(shard, &mut wanted, &mut visit);
            yield_now().await;
        }
    }

    pub(crate) fn appender(&self, class: Class) -> (usize, u32) {
        let roles = self.store.log.roles();
        let (new, rewritten) = roles.of_lane(self.lane.id().0);
        match class {
            Class::Foreground => (new, self.store.reserved_segments()),
            Class::Rewritten => (rewritten.unwrap_or(new), self.store.reserved_segments()),
            Class::Ordered => (roles.ordered().unwrap_or(new), self.store.reserved_segments()),
            Class::Settled => (roles.background(), self.store.reserved_segments()),
            Class::Background => (roles.background(), 0),
        }
    }

    /// Returns the cells that background work can append before it needs another segment.
    pub fn free_background_cells(&self) -> u64 {
        let log = &self.store.log;
        let (appender, _) = self.appender(Class::Background);
        self.store.appenders.lock(appender).free_cells(log.layout())
    }

    /// Appends a version: `copy` writes the payload into its place in the log's buffer. The version
    /// is the newest one when this returns, and durable after the next commit.
    pub fn append(
        self: &Rc<Self>,
        version: Version<'_>,
        class: Class,
        copy: impl FnOnce(&mut [u8]),
    ) -> Appended {
        self.append_counted(version, class, copy, |_| ())
    }

    /// Appends like [`StoreLane::append`]. `count` is called with the version that is replaced, if
    /// any, before another task can clean, replace or remove the new one. It must be quick, and
    /// must not use the index.
    pub fn append_counted(
        self: &Rc<Self>,
        version: Version<'_>,
        class: Class,
        copy: impl FnOnce(&mut [u8]),
        count: impl FnOnce(Option<&Entry>),
    ) -> Appended {
        let (space, block) = (version.space, version.block);
        let fill = |cell: &mut [u8]| {
            copy(cell);
            self.store.check(space, block, cell)
        };
        self.append_with(version, class, fill, count)
    }

    /// Like [`StoreLane::append`] with the whole payload at hand.
    pub fn append_whole(
        self: &Rc<Self>,
        version: Version<'_>,
        class: Class,
        payload: &[u8],
    ) -> Appended {
        self.append_whole_counted(version, class, payload, |_| ())
    }

    /// Like [`StoreLane::append_counted`] with the whole payload at hand.
    #[inline]
    pub fn append_whole_counted(
        self: &Rc<Self>,
        version: Version<'_>,
        class: Class,
        payload: &[u8],
        count: impl FnOnce(Option<&Entry>),
    ) -> Appended {
        let (space, block) = (version.space, version.block);
        let fill = |cell: &mut [u8]| {
            // Computed over the source, which is in the CPU cache: the copy is still being stored.
            let check = self.store.check(space, block, payload);
            cell.copy_from_slice(payload);
            check
        };
        self.append_with(version, class, fill, count)
    }

    /// Appends like [`StoreLane::append_whole`], with a payload that was read back and has this
    /// check.
    pub fn append_checked(
        self: &Rc<Self>,
        version: Version<'_>,
        class: Class,
        payload: &[u8],
        check: PayloadCheck,
    ) -> Appended {
        let fill = |cell: &mut [u8]| {
            cell.copy_from_slice(payload);
            check.0
        };
        self.append_with(version, class, fill, |_| ())
    }

    /// Appends a version: `fill` writes the payload into its place and returns its check.
    #[inline]
    fn append_with(
        self: &Rc<Self>,
        version: Version<'_>,
        class: Class,
        fill: impl FnOnce(&mut [u8]) -> u32,
        count: impl FnOnce(Option<&Entry>),
    ) -> Appended {
        let store = &self.store;
        if store.health.failed() {
            return Appended::NoSpace;
        }
        // A record cannot be written before all of its cells are filled.
        let _guard = store.fail_on_panic("an append");
        let Some(mut reservation) = self.reserve(class) else { return Appended::NoSpace };
        let check = fill(&mut reservation.cell);
        #[cfg(feature = "planted-bugs")]
        if planted::has(PlantedBug::UnboundChecksum) {
            store.known_checks.lock().insert(forebay_format::crc32c(&reservation.cell));
        }
        reservation.cell.publish();
        let slot = reservation.slot;
        let appended = VersionId { slot, generation: reservation.duty.record.generation };
        let segment = store.segment_of(slot);
        let partial = version.mask.is_some();
        let mask =
            version.mask.clone().unwrap_or_else(|| SectorMask::all(store.block_size().sectors()));
        let entry = Entry {
            slot,
            dirty: version.dirty,
            partial,
            rank: version.rank,
            check: Check::new(check),
        };
        // Count before the entry is visible: a thread that replaces it at once uncounts it.
        let live = Live::one(version.dirty, version.rank);
        store.segments.add_live(segment, live);
        let address = version.space.address(version.block);
        let new = NewVersion { entry, mask: version.mask };
        let is_copy = matches!(version.condition, Condition::Copy(_));
        let put = store.index.put_counted(address, new, version.condition, count);
        let (logged, result) = match put {
            Put::Done { sequence, old } => {
                if let Some(old) = &old {
                    let gone = Live::one(old.dirty, old.rank);
                    store.segments.remove_live(store.segment_of(old.slot), gone);
                }
                let stays_dirty = !is_copy || old.as_ref().is_some_and(|old| old.dirty);
                if version.dirty && !stays_dirty {
                    store.segments.turned_clean(segment);
                }
                let entry = DataEntry {
                    volume: version.space.id,
                    block: version.block,
                    sequence,
                    dirty: version.dirty && stays_dirty,
                    void: false,
                    mask,
                    check,
                };
                (Some(entry), Appended::Done { old, version: appended })
            }
            Put::Refused => (None, Appended::Refused),
            Put::NoMask => (None, Appended::NoMask),
            Put::Full => {
                store.index_full.store(true, Ordering::Relaxed);
                store.space_wanted.notify_all();
                (None, Appended::NoSpace)
            }
        };
        let logged = logged.unwrap_or_else(|| {
            store.segments.remove_live(segment, live);
            DataEntry::void(store.block_size())
        });
        if let Some(ready) = reservation.duty.record.fill(reservation.duty.index, logged) {
            self.start_write(ready);
        }
        result
    }

    /// Reserves a cell of an open record. Returns `None` if there is no room.
    #[inline]
    fn reserve(self: &Rc<Self>, class: Class) -> Option<Reservation> {
        let store = &self.store;
        let mut closed = Closed::default();
        let mut reserve = |class| {
            let (appender, reserve) = self.appender(class);
            let mut appender = store.appenders.lock(appender);
            appender.reserve(&store.log, &store.segments, reserve, &mut closed)
        };
        let mut reserved = reserve(class);
        if reserved.is_none() && matches!(class, Class::Rewritten | Class::Ordered) {
            // Another open segment may have room.
            reserved = reserve(Class::Foreground);
        }
        self.submit(closed);
        reserved
    }

    /// Starts the writes of closed records, and releases the segments that their appenders have
    /// left.
    pub(crate) fn submit(self: &Rc<Self>, closed: Closed) {
        for ready in closed.ready {
            self.start_write(ready);
        }
        for segment in closed.left {
            self.let_go(segment);
        }
    }

    fn let_go(&self, segment: SegmentId) {
        let store = &self.store;
        if store.log.holders(segment).remove()
            && let Some(buffer) = store.segments.detach_buffer(segment)
        {
            let (own, _) = store.log.roles().of_lane(self.lane.id().0);
            store.log.return_buffer(own, buffer);
            store.space.notify_all();
        }
    }

    fn start_write(self: &Rc<Self>, ready: Ready) {
        if self.store.ordered.any() {
            self.store.put_in_order(&ready);
        }
        let this = self.clone();
        self.lane.spawn(async move { this.write_record(ready).await });
    }

    async fn write_record(self: Rc<Self>, ready: Ready) {
        let store = &self.store;
        let _guard = store.fail_on_panic("the write of a record");
        let Ready { record, number, durably, content } = ready;
        let head = Head {
            cache: store.uuid,
            segment: record.segment,
            generation: record.generation,
            position: record.position,
            number,
            durable_through: store.log.durable_through(),
        };
        let free = || store.segments.free(MAX_FREE);
        let encoded = record.encode(&head, store.log.layout(), store.block_size(), content, free);
        let Encoded { bytes: range, payload } = match encoded {
            Ok(encoded) => encoded,
            Err(what) => {
                store.fail(&format_args!("record {} could not be made: {what}", number.0));
                return;
            }
        };
        store.counters.written_bytes.fetch_add(range.len() as u64, Ordering::Relaxed);
        store.counters.payload_bytes.fetch_add(payload, Ordering::Relaxed);
        let offset = store.geometry.segment_offset(record.segment) + range.start as u64;
        let log = record.buffer.clone();
        let durably = durably && !planted::has(PlantedBug::SkippedSync);
        let started = store.latency.start(&self.lane);
        let done = self
            .queue
            .run(match durably {
                true => DeviceOp::DurableWrite { offset, log, range },
                false => DeviceOp::Write { offset, data: IoData::Log(log, range) },
            })
            .await;
        latency::note(&store.latency.writes, &self.lane, started);
        match done.result {
            Ok(()) => {
                let segment = record.segment;
                drop(record);
                self.let_go(segment);
                store.log.wrote(number);
            }
            Err(error) => {
                // The image stays attached, so that reads and writeback are served from it.
                store.fail(&error);
            }
        }
    }

    /// Makes everything durable that was appended or marked before this call. Returns the number of
    /// the round that covers it.
    ///
    /// # Errors
    /// The cache device failed, now or earlier.
    pub async fn commit(self: &Rc<Self>) -> Result<u64, StoreError> {
        let log = &self.store.log;
        let durably = self.store.device.writes_durably();
        let ample = || durably && self.open_cells() >= AMPLE;
        let without_sync = || durably && !log.needs_sync();
        let commit = async |without_sync| self.commit_round(without_sync).await;
        let (round, own) = self.run_round(&log.commits, ample, without_sync, commit).await?;
        if own {
            self.free_drained();
        }
        Ok(round)
    }

    /// Writes everything to the device that was appended before this call, so that it survives the
    /// end of the process. It becomes durable only with a later commit.
    ///
    /// # Errors
    /// The cache device failed, now or earlier.
    pub async fn write_out(self: &Rc<Self>) -> Result<(), StoreError> {
        if self.store.device.writes_durably() {
            return self.commit().await.map(drop);
        }
        let ample = || self.open_cells() >= AMPLE;
        let write = async |_| {
            let through = {
                let _closing = self.store.log.closing.lock();
                self.close_records(false);
                self.store.log.last_closed()
            };
            // Barrier for invariant 31: a written record counts only with all earlier records of
            // its segment, so wait for all earlier records.
            if planted::has(PlantedBug::WriteOutDoesNotWait) {
                return Ok(());
            }
            self.wait_written(through).await
        };
        self.run_round(&self.store.log.writes, ample, || true, write).await.map(drop)
    }

    /// Runs a round, or waits for one that covers the caller. Returns its number, and whether the
    /// caller has run one.
    async fn run_round(
        self: &Rc<Self>,
        rounds: &Rounds,
        ample: impl Fn() -> bool,
        without_sync: impl Fn() -> bool,
        run: impl AsyncFn(bool) -> Result<(), StoreError>,
    ) -> Result<(u64, bool), StoreError> {
        let (mut wanted, mut own) = (0, false);
        let lane = self.lane.id().0;
        loop {
            let ended = rounds.ended.listen();
            let mut round = rounds.join(&mut wanted, lane, &without_sync, &ample);
            if let Round::Gather = round {
                let gathering = Gathering::new(rounds, lane);
                // Let ready writes append first, so that one round covers all that arrived
                // together.
                yield_now().await;
                round = rounds.begin(gathering, wanted, &without_sync, ample());
            }
            match round {
                Round::Covered(round) => return Ok((round, own)),
                Round::Failed => return Err(self.failed()),
                Round::Wait | Round::Gather => ended.await,
                Round::Run(round) => {
                    let ending = RoundEnding::new(rounds, round);
                    // Once a round has failed, no later one succeeds.
                    let _guard = self.store.fail_on_panic(rounds.name);
                    let result = run(round.without_sync).await;
                    ending.end(result.is_ok());
                    result?;
                    own = true;
                    if round.number >= wanted {
                        return Ok((round.number, own));
                    }
                }
            }
        }
    }

    /// Returns the number of blocks in this lane's open records.
    fn open_cells(&self) -> usize {
        let log = &self.store.log;
        let (new, rewritten) = log.roles().of_lane(self.lane.id().0);
        let own = [Some(new), rewritten].into_iter().flatten();
        own.map(|number| self.store.appenders.lock(number).open_cells()).sum()
    }

    pub(crate) fn failed(&self) -> StoreError {
        let cause = self.store.health.cause();
        StoreError::Failed(cause.map_or_else(|| "unknown cause".into(), |cause| cause.to_string()))
    }

    /// Runs one round. `durably`: all closed records are durable or will be once they are written.
    async fn commit_round(self: &Rc<Self>, durably: bool) -> Result<(), StoreError> {
        let store = &self.store;
        let log = &store.log;
        if store.health.failed() {
            return Err(self.failed());
        }
        self.append_most_marks(durably).await;
        let (marks, through, needs_sync) = {
            let _closing = log.closing.lock();
            self.append_marks(durably, usize::MAX);
            let marks = log.marks_taken();
            self.close_records(durably);
            // Read after the number, so that a record that fills up at this moment is included.
            (marks, log.last_closed(), log.needs_sync())
        };
        if through > log.durable_through() {
            let undurable = store.segments.take_undurable(through);
            // Barrier for invariants 1 and 8: data and records must be durable before the
            // acknowledgement, and before anything relies on them. Records written durably need no
            // sync.
            if !planted::has(PlantedBug::CommitDoesNotWait) {
                self.wait_written(through).await?;
            }
            if needs_sync && !planted::has(PlantedBug::SkippedSync) {
                self.sync().await?;
            }
            log.set_durable(through);
            store.segments.set_durable(&undurable);
        }
        log.set_marks_durable(marks);
        Ok(())
    }

    /// Closes the open records of all lanes and writes those that are complete. `durably`: the
    /// writes make them durable.
    pub(crate) fn close_records(self: &Rc<Self>, durably: bool) {
        let store = &self.store;
        let (new, rewritten) = store.log.roles().of_lane(self.lane.id().0);
        for number in store.appenders.numbers() {
            let own = number == new || Some(number) == rewritten;
            if planted::has(PlantedBug::FlushForgetsLane) && !own {
                continue;
            }
            let mut closed = Closed::default();
            let mut appender = store.appenders.lock(number);
            appender.close_record(&store.log, &store.segments, durably, &mut closed);
            self.submit(closed);
        }
    }

    /// Waits until every record up to `number` is written, though not necessarily durable.
    pub(crate) async fn wait_written(&self, number: RecordNumber) -> Result<(), StoreError> {
        loop {
            let written = self.store.log.written.listen();
            if self.store.health.failed() {
                return Err(self.failed());
            }
            if self.store.log.written_through(number) {
                return Ok(());
            }
            written.await;
        }
    }

    /// Syncs the cache device for writes that began before it had failed; a failure is latched.
    ///
    /// A failed sync may lose the writes of all lanes, and the next one succeeds without proving
    /// anything (invariant 19). So syncs are serialized, and one succeeds only if none has failed
    /// since its writes began.
    pub(crate) async fn sync(&self) -> Result<(), StoreError> {
        self.sync_since(false).await
    }

    /// Syncs like [`StoreLane::sync`]. `failed`: the device had already failed when the writes
    /// began, and the sync can still succeed, because roots are written even then, to record the
    /// failure.
    pub(crate) async fn sync_since(&self, failed: bool) -> Result<(), StoreError> {
        let _turn = self.store.sync_gate.enter().await;
        self.store.counters.syncs.fetch_add(1, Ordering::Relaxed);
        self.queue.sync().await.map_err(|error| {
            self.store.fail(&error);
            StoreError::from(error)
        })?;
        if self.store.health.failed() && !failed { Err(self.failed()) } else { Ok(()) }
    }

    /// Frees every segment whose conditions hold. Returns whether some wait only for a checkpoint.
    pub fn free_drained(&self) -> bool {
        let store = &self.store;
        let is_read = |segment| store.hazards.is_read(segment);
        let (freed, need_checkpoint) = store.segments.free_drained(
            store.log.commits.last(),
            store.log.marks_durable(),
            is_read,
        );
        if freed > 0 {
            store.space.notify_all();
        }
        need_checkpoint
    }
}
