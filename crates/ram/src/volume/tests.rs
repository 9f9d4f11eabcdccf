//! Volumes above a disk that applies and answers requests in any order.

use std::cell::RefCell;
use std::ops::Range;

use forebay_core::{ManualClock, RamStrategy, ReplacementKind};
use forebay_lane::LaneId;

use super::*;
use crate::block::RamBlock;
use crate::options::{Deferral, TierOptions};

mod bench;
mod deferred;
mod disk;
mod frozen;
mod offers;
mod prefetched;
mod reference;
mod room;
mod through;
mod trouble;
mod watched;
mod world;
mod written_down;

const SECTOR: usize = SECTOR_SIZE as usize;

fn fill(bytes: &mut [u8], value: u32) {
    bytes.as_chunks_mut::<4>().0.iter_mut().for_each(|word| *word = value.to_le_bytes());
}

fn value(bytes: &[u8]) -> u32 {
    let words = bytes.as_chunks::<4>().0;
    assert!(words.iter().all(|word| word == &words[0]), "a torn sector");
    u32::from_le_bytes(words[0])
}

fn sectors(offset: u64, len: u64) -> Range<usize> {
    offset as usize / SECTOR..(offset + len) as usize / SECTOR
}

fn request(op: Op, offset: u64, len: usize, data: Option<IoBuf>) -> Request {
    let len = len as u64;
    Request {
        tag: 0,
        op,
        offset,
        len,
        survives: Survives::Nothing,
        fast: false,
        no_hole: false,
        data,
    }
}

#[derive(Default)]
struct Answers(RefCell<Vec<Completion>>);

impl CompletionSink for Answers {
    fn complete(&self, completion: Completion) {
        self.0.borrow_mut().push(completion);
    }
}

/// Returns a lane and its clock.
fn lanes() -> ([Rc<Lane>; 2], Arc<ManualClock>) {
    let clock = Arc::new(ManualClock::default());
    let lane = |number| Lane::new(LaneId(number), clock.clone(), || ());
    ([lane(0), lane(1)], clock)
}

fn options(bytes: u64, block: u64) -> TierOptions {
    TierOptions {
        bytes,
        block: RamBlock::new(block).expect("a block size"),
        policy: ReplacementKind::default(),
        strategy: RamStrategy::ReadWrite,
        locked: false,
        seed: 1,
    }
}
