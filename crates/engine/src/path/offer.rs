//! Fills with data that a tier above evicts, without a read of the origin and without waiting.

use forebay_core::OriginBlock;
use forebay_core::why::RefusalReason;
use forebay_store::planted::{self, PlantedBug};
use forebay_store::{Appended, Condition, Version};

use crate::io::admission::AdmissionControl;
use crate::io::counted::CountedAppends;
use crate::io::policy::Policy;
use crate::lane::LaneVolume;
use crate::path::read::VolumeReader;
use crate::state::volume::layout::{BlockPiece, bytes_of};
use crate::stats::bump;

/// Caches data that is offered to a volume.
#[derive(Clone, Copy)]
pub(crate) struct Offers<'a>(pub(crate) &'a LaneVolume);

impl Offers<'_> {
    /// Returns whether an offer could be accepted at the moment.
    pub(crate) fn are_welcome(self) -> bool {
        !self.0.is_unavailable_to(true) && VolumeReader(self.0).fills_on_request()
    }

    /// Caches those whole blocks of a checked range that may enter and are not cached yet.
    pub(crate) fn take(self, offset: u64, data: &[u8], is_current: &dyn Fn() -> bool) {
        let volume = &self.0.volume;
        let range = offset..offset + data.len() as u64;
        if !self.are_welcome() || volume.still_there().is_err() {
            return;
        }
        // As for a fill from the origin, writes to the origin and discards wait until the range is
        // released. If the range is taken, nothing enters.
        let Some(_range) = volume.ranges.try_shared(volume.widen(range.clone())) else { return };
        let store = self.0.store.store();
        let mut tickets = Vec::new();
        for piece in volume.pieces(offset, data.len() as u64) {
            if let Some(found) = store.peek(&volume.space, piece.block) {
                Policy(self.0).used(piece.block, &found.entry);
            } else if piece.whole && self.admits(piece.block) {
                // Begun before `is_current` is called: a write that it does not see overtakes the
                // fill (invariant 5).
                let ticket = store.index.begin_fill(volume.space.address(piece.block));
                tickets.push((piece, ticket));
            }
        }
        let current = !tickets.is_empty() && (is_current() || planted::has(PlantedBug::StaleOffer));
        for (piece, ticket) in tickets {
            // A clean copy of data that the origin could still lose would outlive it after a power
            // cut (invariant 12).
            if current && volume.syncs.is_unsynced(piece.block) {
                AdmissionControl(self.0).refused(piece.block, false, RefusalReason::Unsynced);
            } else if current {
                self.append(&piece, data, Condition::Fill(&ticket));
            }
        }
    }

    /// Returns whether admission allows the block, as one that a client asks to cache, because it
    /// was used above.
    fn admits(self, block: OriginBlock) -> bool {
        let admission = AdmissionControl(self.0);
        let admitted = admission
            .admit(admission.gate_on_request(), block)
            .and_then(|()| Policy(self.0).admit_to_lists(block));
        if let Err(reason) = admitted {
            admission.refused(block, false, reason);
        }
        admitted.is_ok()
    }

    fn append(self, piece: &BlockPiece, data: &[u8], condition: Condition<'_>) {
        let volume = &self.0.volume;
        let rank = Policy(self.0).rank(piece.block, None);
        let version = Version {
            space: &volume.space,
            block: piece.block,
            dirty: false,
            // Sectors outside of the volume count as valid.
            mask: None,
            rank: rank.bits(),
            condition,
        };
        let copy = |cell: &mut [u8]| {
            cell.fill(0);
            cell[bytes_of(&piece.sectors)].copy_from_slice(&data[piece.bytes.clone()]);
        };
        let class = Policy(self.0).class_of_fill(rank);
        match CountedAppends(self.0).append(version, class, copy) {
            Appended::Done { old, .. } => {
                let counters = &self.0.stats().counters;
                bump(&counters.filled_blocks, 1);
                bump(&counters.cache_written_bytes, volume.block.bytes());
                Policy(self.0).placed(piece.block, old.as_ref());
            }
            // A fill never waits for space.
            Appended::NoSpace | Appended::NoMask => {
                AdmissionControl(self.0).refused(piece.block, false, RefusalReason::NoRoom);
                self.0.store.store().space_wanted.notify_all();
            }
            Appended::Refused => self.0.stats().why.refused.count(RefusalReason::Overtaken, 1),
        }
    }
}
