//! A client of the volumes of one origin, and the values that its reads may return.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_core::{Op, Survives};
use forebay_threads::{Mutex, sleep};

use crate::clients::{Clients, Failed};
use crate::command::VOLUMES;
use crate::model::{BLOCKS, Model, origin_of};
use crate::notes::WorldNotes;

/// Size of a block.
pub(crate) const BLOCK: u64 = 4096;
/// Distance between the blocks that clients use, in bytes.
pub(crate) const STEP: u64 = 3 << 20;

/// Returns the value that a write has stored in a block.
pub(crate) fn value_of(data: &[u8]) -> u64 {
    data.first_chunk().copied().map_or(u64::MAX, u64::from_le_bytes)
}

/// See the module.
pub(crate) struct OriginClient {
    pub(crate) clients: Arc<Clients>,
    pub(crate) model: Arc<Mutex<Model>>,
    pub(crate) notes: Arc<Mutex<WorldNotes>>,
    pub(crate) ending: Arc<AtomicBool>,
    pub(crate) origin: usize,
    pub(crate) rng: fastrand::Rng,
}

impl OriginClient {
    /// Reads, writes and flushes until the end.
    pub(crate) fn run(mut self) {
        while !self.ending.load(Ordering::SeqCst) {
            for (volume, (name, _)) in VOLUMES.iter().enumerate() {
                if origin_of(volume) == self.origin && self.ask(name) != Some(Failed::NotServed) {
                    break;
                }
            }
            sleep(Duration::from_millis(self.rng.u64(1..400)));
        }
    }

    /// Sends one request. Returns the reason if it was not answered.
    fn ask(&mut self, name: &str) -> Option<Failed> {
        let block = self.rng.usize(0..BLOCKS);
        let offset = block as u64 * STEP;
        self.notes.lock().requests += 1;
        match self.rng.u32(0..6) {
            0 => {
                let flushed = self.clients.ask(name, (Op::Flush, 0, 0), None, Survives::Nothing);
                if flushed.is_ok() {
                    self.model.lock().flushed(self.origin);
                }
                flushed.err()
            }
            1 | 2 => {
                let read =
                    self.clients.ask(name, (Op::Read, offset, BLOCK), None, Survives::Nothing);
                match read {
                    Ok(data) => {
                        let value = value_of(&data.unwrap_or_default());
                        let allowed = self.model.lock().blocks[self.origin][block].allowed.clone();
                        if !allowed.contains(&value) {
                            let wrong = format!(
                                "{name} block {block}: {value} was read, allowed is {allowed:?}"
                            );
                            self.notes.lock().wrong.push(wrong);
                        }
                        None
                    }
                    Err(error) => Some(error),
                }
            }
            kind => self.write(name, block, kind == 3),
        }
    }

    fn write(&mut self, name: &str, block: usize, durable: bool) -> Option<Failed> {
        let value = self.model.lock().begin(self.origin, block);
        let data = value.to_le_bytes().repeat(BLOCK as usize / 8);
        let survives = if durable { Survives::PowerLoss } else { Survives::Nothing };
        let at = (Op::Write, block as u64 * STEP, BLOCK);
        let written = self.clients.ask(name, at, Some(&data), survives);
        let mut model = self.model.lock();
        match written {
            Ok(_) => model.acknowledge(self.origin, block, value, durable),
            Err(Failed::NotServed) => model.take_back(self.origin, block, value),
            Err(Failed::Error(_) | Failed::Cut) => {}
        }
        written.err()
    }
}
