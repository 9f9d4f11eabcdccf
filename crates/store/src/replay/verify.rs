//! Verifying the records that are not known to have been durable.

use std::cell::RefCell;
use std::rc::Rc;

use forebay_core::{OriginBlock, RecordNumber, Slot, VolumeId};
use forebay_device::Queue;
use forebay_format::{Body, DataEntry, PAGE, RecordHeader};
use forebay_lane::concurrently;

use super::walk::header_in;
use super::{RecordLocation, Replay};
use crate::changes::LoggedVersion;
use crate::error::StoreError;
use crate::planted::{self, PlantedBug};
use crate::retry;
use crate::spaces::address_in;
use crate::store::VolumeSpace;
use crate::table::Check;
use crate::team::{Team, still_running};

/// A block in a record, and the number of known bits of its payload's check.
pub(super) struct Cell {
    slot: Slot,
    volume: VolumeId,
    block: OriginBlock,
    check: (Check, u32),
}

impl Replay {
    /// Returns the blocks of a record: from its header or, if that is unreadable now, from the
    /// changes that the walk has added.
    pub(super) fn cells_of(
        &self,
        number: RecordNumber,
        header: Option<&RecordHeader>,
    ) -> Vec<Cell> {
        let known = |(number, entry): (usize, &DataEntry)| {
            let slot = header?.cell(&self.basis.geometry, number);
            let DataEntry { volume, block, .. } = *entry;
            let check = (Check::new(entry.check), u32::BITS);
            (!entry.void).then_some(Cell { slot, volume, block, check })
        };
        let added = |version: &LoggedVersion| {
            let of = |space: &VolumeSpace| Some((space.id, space.block(version.address())?));
            let (volume, block) = self.basis.spaces.iter().find_map(of)?;
            let check = (version.entry().check, LoggedVersion::CHECK_BITS);
            Some(Cell { slot: version.slot(), volume, block, check })
        };
        match header.map(|header| &header.body) {
            Some(Body::Data(entries)) => entries.iter().enumerate().filter_map(known).collect(),
            Some(_) => Vec::new(),
            None => self.changes.of_record(number).iter().filter_map(added).collect(),
        }
    }

    /// Drops blocks of a record, whose payload did not reach the device.
    pub(super) fn drop_cells(&mut self, bad: &[Cell]) {
        self.torn += u64::from(!bad.is_empty());
        for Cell { slot, volume, block, .. } in bad {
            self.torn_slots.insert(*slot);
            if let Some((_, address)) = address_in(&self.basis.spaces, *volume, *block) {
                self.changes.drop_version(address, *slot);
            }
        }
    }
}

/// Verifies the records of a replay that no record proves to be durable.
pub(super) async fn verify_all(
    team: &Team,
    replay: Replay,
    reads: usize,
) -> Result<Replay, StoreError> {
    let unproven: Vec<(u64, RecordLocation)> = {
        let found = replay.found.range(replay.durable + 1..);
        found.map(|(number, place)| (*number, *place)).collect()
    };
    let failure = Rc::new(RefCell::new(None));
    let replay = Rc::new(RefCell::new(replay));
    let work = {
        let (queue, replay, failure) = (team.queue().clone(), replay.clone(), failure.clone());
        unproven.into_iter().map(move |(number, place)| {
            let (queue, replay, failure) = (queue.clone(), replay.clone(), failure.clone());
            async move {
                if let Err(error) = verify(&queue, &replay, number, place).await {
                    failure.borrow_mut().get_or_insert(error);
                }
            }
        })
    };
    concurrently(team.lane(), reads, work).await;
    if let Some(error) = failure.take() {
        return Err(error);
    }
    Rc::try_unwrap(replay).map(RefCell::into_inner).map_err(|_| still_running())
}

/// Reads a record again, and drops the blocks whose payload does not match the header.
async fn verify(
    queue: &Queue,
    replay: &Rc<RefCell<Replay>>,
    number: u64,
    place: RecordLocation,
) -> Result<(), StoreError> {
    if place.payload_bytes == 0 {
        return Ok(());
    }
    let (offset, block) = {
        let geometry = &replay.borrow().basis.geometry;
        let position = u64::from(place.position) * geometry.granule();
        (geometry.segment_offset(place.segment) + position, geometry.block.as_usize())
    };
    // Whole pages, though a block may be half a page.
    let len = PAGE + (place.payload_bytes as usize).next_multiple_of(PAGE);
    let pages = retry::read_pages(queue, offset, len).await?;
    let mut replay = replay.borrow_mut();
    replay.bytes_read += pages.bytes.len() as u64;
    let RecordLocation { segment, position, .. } = place;
    let header =
        header_in(&pages.bytes, &replay.basis.geometry, &replay.basis.cache, segment, position);
    // The header may have become unreadable since the walk; the blocks are verified nevertheless.
    let header = header.filter(|header| header.number.0 == number);
    let mut bad = replay.cells_of(RecordNumber(number), header.as_ref());
    bad.retain(|cell| {
        let at = (replay.basis.geometry.slot_offset(cell.slot) - offset) as usize;
        let (range, touched) = (at..at + block, at / PAGE..(at + block).div_ceil(PAGE));
        // An unreadable cell was not torn by a crash; reading it later reports the error.
        let readable = pages.readable.get(touched);
        let Some(payload) = pages.bytes.get(range) else { return false };
        let check =
            forebay_format::payload_check(&replay.basis.cache, cell.volume, cell.block, payload);
        readable.is_some_and(|pages| pages.iter().all(|readable| *readable))
            && !cell.check.0.matches(check, cell.check.1)
            && !planted::has(PlantedBug::TornPayloadTaken)
    });
    replay.drop_cells(&bad);
    Ok(())
}
