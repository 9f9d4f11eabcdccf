//! The part of the log since the checkpoint that recoveries accepted.

use std::mem::{offset_of, size_of};
use std::ops::RangeInclusive;

use forebay_core::{Generation, RecordNumber, Slot};
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::MAX_COUNT;
use crate::geometry::Geometry;

/// Maximum number of ranges of left-out records that a superblock can hold.
pub const MAX_LEFT_OUT: usize = 64;
/// The most torn cells that a superblock can hold.
pub const MAX_TORN: usize = 512;

/// The decisions of recoveries after which the cache was used without a new checkpoint. A later
/// recovery that reads the same records must decide in the same way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AcceptedLog {
    /// The highest record number for which a decision exists. No record with a lower number is
    /// written any more.
    pub through: RecordNumber,
    /// Sequences up to this are not assigned any more.
    pub sequence: u64,
    /// Segments opened later have this generation or a higher one.
    pub next_generation: Generation,
    /// Numbers without an accepted record, in ascending order, and not adjacent. All other records
    /// between the checkpoint's base and `through` are accepted, and are durable.
    pub left_out: Vec<RangeInclusive<u64>>,
    /// First granules of the cells in accepted records whose payload did not reach the device.
    pub torn: Vec<Slot>,
}

impl AcceptedLog {
    /// Returns whether a superblock has space for this accepted log.
    pub fn fits(&self) -> bool {
        self.left_out.len() <= MAX_LEFT_OUT && self.torn.len() <= MAX_TORN
    }

    /// Returns the first number from `number` on that is not left out.
    pub fn counting_from(&self, number: u64) -> u64 {
        let at = self.left_out.partition_point(|range| *range.end() < number);
        let range = self.left_out.get(at).filter(|range| range.contains(&number));
        range.map_or(number, |range| range.end() + 1)
    }

    /// Returns whether the record with this number does not count.
    pub fn leaves_out(&self, number: u64) -> bool {
        self.counting_from(number) != number
    }
}

/// An accepted log as stored in a superblock.
#[derive(FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct OnDiskAccepted {
    pub(super) through: U64,
    pub(super) sequence: U64,
    pub(super) next_generation: U64,
    pub(super) left_out_count: U16,
    pub(super) torn_count: U16,
    reserved: [u8; 4],
    pub(super) left_out: [[U64; 2]; MAX_LEFT_OUT],
    pub(super) torn: [U32; MAX_TORN],
}

const _: () = {
    assert!(offset_of!(OnDiskAccepted, left_out_count) == 24);
    assert!(offset_of!(OnDiskAccepted, left_out) == 32);
    assert!(offset_of!(OnDiskAccepted, torn) == 1056);
    assert!(size_of::<OnDiskAccepted>() == 3104);
};

impl OnDiskAccepted {
    /// Encodes as much as fits; see [`AcceptedLog::fits`].
    pub(super) fn new(accepted: &AcceptedLog) -> Self {
        let (mut left_out, mut torn) = ([[U64::ZERO; 2]; MAX_LEFT_OUT], [U32::ZERO; MAX_TORN]);
        for (place, range) in left_out.iter_mut().zip(&accepted.left_out) {
            *place = [*range.start(), *range.end()].map(U64::new);
        }
        for (place, slot) in torn.iter_mut().zip(&accepted.torn) {
            *place = slot.0.into();
        }
        OnDiskAccepted {
            through: accepted.through.0.into(),
            sequence: accepted.sequence.into(),
            next_generation: accepted.next_generation.0.into(),
            left_out_count: (accepted.left_out.len() as u16).into(),
            torn_count: (accepted.torn.len() as u16).into(),
            reserved: [0; 4],
            left_out,
            torn,
        }
    }

    /// Decodes the accepted log. The error is the name of the field with an impossible value.
    pub(super) fn fields(&self, geometry: &Geometry) -> Result<AcceptedLog, &'static str> {
        let count = |count: U64, field| Some(count.get()).filter(|it| *it < MAX_COUNT).ok_or(field);
        let through = count(self.through, "accepted_through")?;
        let ranges = self.left_out.get(..usize::from(self.left_out_count.get()));
        let mut left_out: Vec<RangeInclusive<u64>> = Vec::new();
        for [first, last] in ranges.ok_or("left_out_count")? {
            let (first, last) = (first.get(), last.get());
            // There are accepted numbers between two ranges.
            let least = left_out.last().map_or(0, |range| range.end() + 2);
            if first < least || last < first || last > through {
                return Err("left_out");
            }
            left_out.push(first..=last);
        }
        let torn = self.torn.get(..usize::from(self.torn_count.get())).ok_or("torn_count")?;
        let torn: Vec<Slot> = torn.iter().map(|slot| Slot(slot.get())).collect();
        if torn.iter().any(|slot| !geometry.holds_block(*slot)) {
            return Err("torn");
        }
        Ok(AcceptedLog {
            through: RecordNumber(through),
            sequence: count(self.sequence, "accepted_sequence")?,
            next_generation: Generation(count(self.next_generation, "accepted_generation")?),
            left_out,
            torn,
        })
    }
}
