//! Reclaim: room in the log. Of the closed segments the one is taken of which least is to be kept; its
//! clean blocks are evicted or carried on, its dirty ones written back or carried on, and then it
//! drains (see `store::segments`).

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use forebay_core::why::{EvictionReason, WritebackReason};
use forebay_core::{Nanos, OriginBlock, SectorMask, SegmentId, Slot, VolumeId};
use forebay_device::IoBuf;
use forebay_format::{Body, PAGE, record};
use forebay_lane::join_all;
use forebay_policy::Rank;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::segments::SegmentUse;
use forebay_store::{Appended, Class, Condition, Entry, Store, Version, VolumeSpace};

use crate::background::give_up::Hand;
use crate::background::writeback::either;
use crate::cache::BackgroundEnding;
use crate::engine::EngineLane;
use crate::lane::LaneVolume;
use crate::replacement::{How, Replacement};
use crate::stats::bump;

/// Of a segment that is live to at most this share (in percent), dirty blocks are carried on. Fuller
/// ones are written back, so that room is gained in any case.
const CARRY_ON_LIVE: u32 = 50;

/// The same for the dirty share of a segment before an origin that is slow enough, and while clients
/// wait for it. With more of it more is carried on, and a disk is busy for no less.
const CARRY_ON_DIRTY: u32 = 60;
const CARRY_ON_WAITING: u32 = 95;

/// What it costs to carry a block on: a read of a SATA SSD, and a part of a large write.
const CARRIED_ON_IN: Duration = Duration::from_micros(35);

/// Of a segment of which more (in percent) is kept or dirty, nothing clean is carried on: there would
/// be little room gained, and everything else is even fuller. The same while clients wait for room.
const CARRY_ON_KEPT: u32 = 85;
const CARRY_ON_KEPT_WAITING: u32 = 50;

/// Blocks that are carried on side by side.
const CARRIED_TOGETHER: usize = 32;

/// Blocks by which hints are ahead of look-ups.
const LOOKED_UP_AHEAD: usize = 4;

/// Bytes that are read together of a segment with records of a quarter of that at most.
const SHORT_RECORDS: u64 = 64 << 10;

/// A segment that could not be emptied is left alone for so long.
const STUCK_FOR: Duration = Duration::from_secs(1);

/// Of so many segments, how many reclaim keeps free for what comes next, with so many lanes. In the
/// others blocks can live.
pub fn segments_kept_free(segments: u32, lanes: u32) -> u32 {
    (segments / 50).max(Store::RESERVED_SEGMENTS + lanes + 2)
}

/// A live block of a segment that is reclaimed.
pub(crate) struct Live {
    pub(crate) block: OriginBlock,
    pub(crate) slot: Slot,
    dirty: bool,
    /// The replacement policy has not given it up.
    kept: bool,
}

/// What reclaim remembers from one segment to the next.
#[derive(Default)]
struct State {
    hand: Hand,
    closed: Vec<SegmentUse>,
    /// Segments that could not be emptied, and when that was.
    stuck: BTreeMap<SegmentId, Nanos>,
}

/// What it costs to reclaim a segment, in eighths of a block: what is kept has to be written once more.
/// What is dirty has to go to the origin some day, but seldom is as cheap as in a sweep.
/// While clients wait for room (`waits`), clean blocks are given up, and only what is dirty is in the
/// way.
///
/// Beyond `most` dirty blocks, these are not carried on but written to the origin: for that, half a segment
/// of other blocks is worth carrying on.
fn cost(segment: &SegmentUse, kept: u32, waits: bool, most: u32) -> u32 {
    let dirty = segment.live.dirty;
    let seeks = if dirty > most { segment.live.blocks * 4 } else { 0 };
    seeks + if waits { dirty * 8 + kept } else { kept * 8 + dirty }
}

/// Runs until the cache stops.
pub(crate) async fn run(engine: Rc<EngineLane>) {
    let _ending = BackgroundEnding(engine.cache.clone());
    let store = engine.cache.store.clone();
    let mut state = State::default();
    while !engine.cache.is_stopping() {
        let wanted = store.space_wanted.listen();
        engine.store.free_drained();
        let free = store.segments.free_count();
        let crowded = store.index_was_full();
        if (free >= engine.cache.free_target() && !crowded) || store.health.failed() {
            engine.cache.press(false);
            either(wanted, engine.lane.sleep(Duration::from_millis(100))).await;
            continue;
        }
        let on_their_way = store.segments.draining_count();
        let enough = free + on_their_way >= engine.cache.free_target() && !crowded;
        if enough {
            engine.cache.press(false);
        }
        if !enough && engine.reclaim_one(&mut state).await {
            if store.segments.free_count() <= store.reserved_segments() {
                engine.make_usable().await;
            }
            if crowded {
                store.space.notify_all();
            }
        } else if on_their_way > 0 {
            // Enough is on its way, or there is nothing else: make it usable before taking more.
            engine.make_usable().await;
            // Whoever asked for room before that was answered with this; marks ask as well, and would
            // for ever where segments on their way wait for an origin.
            let wanted = store.space_wanted.listen();
            either(wanted, engine.lane.sleep(Duration::from_millis(1))).await;
        } else {
            either(wanted, engine.lane.sleep(Duration::from_millis(10))).await;
        }
    }
}

/// Up to which share of dirty blocks, in percent, those of a segment are carried on, if a write of the
/// sweep takes the origin so long: as long as what is gained by that costs less time. The sweep brings
/// the blocks home later, in an order in which a disk takes them many times as fast as now.
fn most_carried_on(write: Duration, clients_wait: bool) -> u32 {
    let share = 1.0 - CARRIED_ON_IN.as_secs_f64() / write.as_secs_f64().max(1e-9);
    let most = if clients_wait { CARRY_ON_WAITING } else { CARRY_ON_DIRTY };
    ((share * 100.0).max(0.0) as u32).min(most)
}

/// The version that a live block is carried on as: the same, somewhere else.
fn carried<'a>(
    space: &'a VolumeSpace,
    live: &Live,
    entry: &Entry,
    mask: Option<SectorMask>,
) -> Version<'a> {
    Version {
        space,
        block: live.block,
        dirty: entry.dirty,
        mask,
        rank: Rank::from_bits(entry.rank).carried_on().bits(),
        condition: Condition::Slot(entry.slot),
    }
}

/// Takes a block out of the cache, unless it is dirty or has been replaced.
fn evict(volume: &LaneVolume, live: &Live, reason: EvictionReason) {
    let store = volume.store.store();
    let gone = store.forget(&volume.volume.space, live.block, |entry| {
        entry.slot == live.slot && (!entry.dirty || planted::has(PlantedBug::EvictsDirty))
    });
    if let Some(entry) = gone {
        volume.gone(&entry);
        volume.evicted(live.block, reason);
    }
}

impl EngineLane {
    /// Makes drained segments usable again: a commit, and a checkpoint if some wait for one.
    async fn make_usable(self: &Rc<Self>) {
        if self.store.commit().await.is_err() {
            return;
        }
        if self.store.free_drained()
            && self.cache.store.segments.free_count() < self.cache.free_target()
        {
            if let Err(error) = self.store.checkpoint(false).await {
                tracing::warn!(%error, "a checkpoint failed");
            }
            self.store.free_drained();
        }
    }

    /// Empties one segment. `false`: there is none to take.
    async fn reclaim_one(self: &Rc<Self>, state: &mut State) -> bool {
        let store = &self.cache.store;
        let (_, replacement) = self.cache.replacement();
        self.give_up(&replacement, &mut state.hand, &mut state.closed).await;
        let now = self.lane.now();
        state.stuck.retain(|_, since| now.since(*since) < STUCK_FOR);
        store.segments.closed(&mut state.closed);
        let kept = |segment: &SegmentUse| match &replacement.how {
            How::Ranks(_) => segment.live.kept,
            How::Lists(keeper) => keeper.kept_in(segment.id),
        };
        let slowest = self.cache.volumes().iter().map(|volume| volume.write_cost.mean()).max();
        let waits = self.cache.brake.is_engaged();
        let most = most_carried_on(slowest.unwrap_or_default(), waits).max(CARRY_ON_LIVE);
        let capacity = store.cells_per_segment() as u32;
        let most = capacity * most / 100;
        let candidates =
            state.closed.iter().filter(|one| !one.held && !state.stuck.contains_key(&one.id));
        let least = candidates.min_by_key(|one| (cost(one, kept(one), waits, most), one.opened));
        let Some(victim) = least.copied() else {
            // What is left is held for origins that get things in order.
            self.cache.press(store.segments.any_held());
            return false;
        };
        if !store.segments.begin_reclaim(victim.id) {
            return false;
        }
        if victim.young && replacement.goes_by_ranks() {
            // Its blocks leave the order of the log now.
            self.pass_young(victim.id).await;
        }
        for _ in 0..4 {
            if store.segments.live(victim.id) == 0 {
                break;
            }
            self.empty(victim.id, &replacement, waits).await;
        }
        if let How::Lists(keeper) = &replacement.how {
            keeper.emptied(victim.id);
        }
        if !store.end_reclaim(victim.id) {
            // Its dirty blocks could not be written back, or not be read: others may do better.
            state.stuck.insert(victim.id, now);
        }
        true
    }

    /// `waits`: clients wait for room.
    async fn empty(self: &Rc<Self>, segment: SegmentId, replacement: &Replacement, waits: bool) {
        let store = self.cache.store.clone();
        let capacity = store.cells_per_segment() as u32;
        let mut live = self.live_blocks(segment).await;
        if let How::Lists(keeper) = &replacement.how {
            live.values_mut().flatten().for_each(|live| live.kept = keeper.keeps(live.slot));
        }
        let count: usize = live.values().map(Vec::len).sum();
        // What is reserved is for this: less than a segment is filled here for one that is gained.
        let has_room = || store.segments.free_count() >= store.reserved_segments();
        if !has_room() {
            self.make_usable().await;
        }
        let room = has_room();
        let dirty = live.values().flatten().filter(|live| live.dirty).count() as u32;
        let kept = live.values().flatten().filter(|live| live.kept || live.dirty).count();
        let most_kept = if waits { CARRY_ON_KEPT_WAITING } else { CARRY_ON_KEPT };
        let keep = room && kept as u32 * 100 <= capacity * most_kept;
        for (id, blocks) in live {
            let Some(volume) = self.lane_volume(id) else { continue };
            let most_dirty = most_carried_on(volume.volume.write_cost.mean(), waits);
            let carry_on = room
                && (count as u32 * 100 <= capacity * CARRY_ON_LIVE
                    || dirty * 100 <= capacity * most_dirty);
            let in_order = volume.volume.is_ordered();
            let (kept, leaving): (Vec<Live>, Vec<Live>) =
                blocks.into_iter().partition(|live| match live.dirty {
                    true => carry_on && !in_order,
                    false => keep && live.kept,
                });
            let unkept = if keep { EvictionReason::Reclaim } else { EvictionReason::NoRoom };
            let mut leaving: Vec<_> = leaving.into_iter().map(|live| (live, unkept)).collect();
            let mut kept = self.carry_on_now(&volume, kept).into_iter();
            loop {
                let some: Vec<Live> = kept.by_ref().take(CARRIED_TOGETHER).collect();
                if some.is_empty() {
                    break;
                }
                let moved = join_all(some.iter().map(|live| self.carry_on(&volume, live))).await;
                leaving.extend(
                    some.into_iter()
                        .zip(moved)
                        .filter_map(|(live, moved)| Some((live, moved.err()?))),
                );
            }
            let mut dirty = Vec::new();
            for (live, reason) in leaving {
                if live.dirty && in_order {
                    // It has its turn in ordered writeback, or cannot be read.
                } else if live.dirty {
                    dirty.push(live);
                } else {
                    evict(&volume, &live, reason);
                }
            }
            dirty.sort_unstable_by_key(|live| live.block);
            let blocks: Vec<OriginBlock> = dirty.iter().map(|live| live.block).collect();
            if blocks.is_empty() {
                continue;
            }
            match volume.write_back(&blocks, WritebackReason::Reclaim).await {
                Ok(()) => volume.volume.set_writeback_error(None),
                Err(error) => volume.volume.set_writeback_error(Some(error)),
            }
            for live in dirty {
                evict(&volume, &live, EvictionReason::Reclaim);
            }
        }
    }

    /// Carries on what can be read at once, and gives back the rest.
    fn carry_on_now(&self, volume: &LaneVolume, kept: Vec<Live>) -> Vec<Live> {
        /// Blocks by which the hint is ahead.
        const AHEAD: usize = 2;
        let space = &volume.volume.space;
        let mut payload = IoBuf::for_overwrite(volume.volume.block.as_usize());
        let mut rest = Vec::new();
        let slots: Vec<Slot> = kept.iter().map(|live| live.slot).collect();
        for (number, live) in kept.into_iter().enumerate() {
            if let Some(next) = slots.get(number + AHEAD) {
                self.store.expect_slot(*next);
            }
            if !self.carry_one_now(volume, &live, &mut payload).unwrap_or(false)
                && self
                    .cache
                    .store
                    .peek(space, live.block)
                    .is_some_and(|found| found.entry.slot == live.slot)
            {
                rest.push(live);
            }
        }
        rest
    }

    /// Appends a live block again, if it can be read at once. `Some(false)` and `None`: not done.
    fn carry_one_now(&self, volume: &LaneVolume, live: &Live, payload: &mut [u8]) -> Option<bool> {
        let space = &volume.volume.space;
        let pinned = self.cache.store.look_up(space, live.block)?;
        let entry = pinned.found.entry;
        if entry.slot != live.slot {
            return None;
        }
        let check = self.store.read_device_now(space, &pinned, payload)?.ok()?;
        let mask = pinned.found.mask.clone();
        let version = carried(space, live, &entry, mask);
        let appended = self.store.append_checked(version, Class::Background, payload, check);
        Some(self.carried(volume, live, entry.dirty, appended))
    }

    /// Appends a live block again, as it is. If it stays where it was, says why.
    async fn carry_on(
        self: &Rc<Self>,
        volume: &Rc<LaneVolume>,
        live: &Live,
    ) -> Result<(), EvictionReason> {
        let store = &self.cache.store;
        let space = &volume.volume.space;
        let Some(pinned) = store.look_up(space, live.block) else { return Ok(()) };
        let entry = pinned.found.entry;
        if entry.slot != live.slot {
            return Ok(());
        }
        let mask = pinned.found.mask.clone();
        // What cannot be read stays where it is: bad dirty blocks are kept, clean ones evicted.
        let read = self.store.read_block(space, pinned).await;
        let payload = read.map_err(|_| EvictionReason::Damaged)?;
        let version = carried(space, live, &entry, mask);
        let appended = self.store.append_whole(version, Class::Background, &payload);
        match self.carried(volume, live, entry.dirty, appended) {
            true => Ok(()),
            false => Err(EvictionReason::NoRoom),
        }
    }

    /// Counts a block that was carried on. `false`: it stays where it was.
    fn carried(&self, volume: &LaneVolume, live: &Live, dirty: bool, appended: Appended) -> bool {
        match appended {
            Appended::Done { old } => {
                volume.carried_on(live.block, live.slot);
                volume.volume.appended(&self.lane, live.block, old.as_ref(), dirty);
                let bytes = volume.volume.block.bytes();
                bump(&volume.stats().counters.cache_written_bytes, bytes);
                bump(&volume.stats().counters.carried_blocks, 1);
                if !live.kept {
                    bump(&volume.stats().counters.carried_dirty_blocks, 1);
                }
                true
            }
            // It was replaced meanwhile.
            Appended::Refused => true,
            Appended::NoSpace => false,
        }
    }

    /// The live blocks of a segment, by volume, from its record headers; where one cannot be
    /// read, from the index.
    pub(crate) async fn live_blocks(&self, segment: SegmentId) -> BTreeMap<VolumeId, Vec<Live>> {
        let store = &self.cache.store;
        let mut live: BTreeMap<VolumeId, Vec<Live>> = BTreeMap::new();
        let mut count = 0;
        let geometry = store.geometry();
        let end = u64::from(store.segments.position(segment)) * geometry.granule();
        let mut at = 0;
        let mut image = IoBuf::zeroed(0);
        let mut image_at = 0;
        let mut short = false;
        while at < end {
            if at + PAGE as u64 > image_at + image.len() as u64 {
                // Where records are short, the next headers are near.
                let bytes = (if short { SHORT_RECORDS } else { PAGE as u64 }).min(end - at);
                let buf = IoBuf::for_overwrite(bytes as usize);
                let offset = geometry.segment_offset(segment) + at;
                let Ok(read) = self.store.queue().read(offset, buf).await else { break };
                (image, image_at) = (read, at);
            }
            let from = (at - image_at) as usize;
            let Some(page) = image.get(from..from + PAGE) else { break };
            let position = (at / geometry.granule()) as u32;
            let Ok(header) = record::decode(page, geometry, &store.uuid()) else { break };
            if header.segment != segment || header.position != position {
                break;
            }
            if let Body::Data(entries) = &header.body {
                let mut space = None::<VolumeSpace>;
                for (number, entry) in entries.iter().enumerate() {
                    let slot = header.cell(geometry, number);
                    if let Some(next) = entries.get(number + LOOKED_UP_AHEAD)
                        && let Some(space) = space.filter(|space| space.id == next.volume)
                    {
                        store.expect(&space, next.block);
                    }
                    if entry.void {
                        continue;
                    }
                    if space.is_none_or(|space| space.id != entry.volume) {
                        space = store.space_of(entry.volume);
                    }
                    let Some(space) = space else { continue };
                    if let Some(found) = store.peek(&space, entry.block)
                        && found.entry.slot == slot
                    {
                        count += 1;
                        live.entry(entry.volume).or_default().push(Live {
                            block: entry.block,
                            slot,
                            dirty: found.entry.dirty,
                            kept: found.entry.rank > 0,
                        });
                    }
                }
            }
            let bytes = PAGE as u64 + u64::from(header.payload_bytes);
            short = bytes <= SHORT_RECORDS / 4;
            at = (at + bytes).next_multiple_of(PAGE as u64);
        }
        if count >= store.segments.live(segment) as usize {
            return live;
        }
        live.clear();
        store.index.scan(|address, entry| {
            if store.segment_of(entry.slot) == segment {
                for volume in self.cache.volumes() {
                    if let Some(block) = volume.space.block(address) {
                        let (slot, dirty, kept) = (entry.slot, entry.dirty, entry.rank > 0);
                        let found = Live { block, slot, dirty, kept };
                        live.entry(volume.id).or_default().push(found);
                    }
                }
            }
        });
        live
    }
}
