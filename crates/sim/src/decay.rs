//! Decay of the cache device while the system is down and while it starts: one of the structures
//! that are stored twice or have parity rots, and reads fail transiently. Neither may lose data.

use forebay_format::superblock::{COPY_A, COPY_B, VolumeTableRef};
use forebay_format::{PAGE, Superblock, volume};

use crate::faults::FaultPlan;
use crate::stamp::SECTOR;
use crate::violation::Violation;
use crate::world::World;

impl World<'_> {
    /// Before a recovery, sometimes damages a structure, and sometimes makes a first attempt to
    /// open the cache while reads fail.
    pub(crate) fn perhaps_decay(&mut self) -> Result<(), Violation> {
        if self.rng.bool() {
            self.rot_roots();
        }
        if self.rng.bool() {
            return Ok(());
        }
        let read_error = self.rng.u32(500..5_000);
        self.cache.set_plan(FaultPlan { read_error, ..FaultPlan::default() }, false);
        let said = self.open_expecting(None);
        self.shared.event("decay", &[], format_args!("an attempt with read errors: {said:?}"));
        self.end_visit();
        // The attempt may fail to open the cache; the next one must succeed.
        said.map(|_| ())
    }

    /// Damages a sector of a superblock, a volume table or the checkpoint.
    fn rot_roots(&mut self) {
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            self.cache.with_image(|image| image.read(at, &mut bytes));
            bytes
        };
        let copies = [COPY_A, COPY_B].map(|at| read(at, PAGE));
        let Ok(found) = Superblock::choose(&copies[0], &copies[1]) else { return };
        let geometry = &found.geometry;
        let areas = geometry.volume_areas.map(|at| read(at, geometry.volume_area_bytes as usize));
        let settled = |at: u64, len: usize| {
            let sectors = at / SECTOR as u64..(at + len as u64).div_ceil(SECTOR as u64);
            self.cache.with_image(|image| sectors.clone().all(|sector| image.is_settled(sector)))
        };
        let mut superblocks = [COPY_A, COPY_B].into_iter().zip(&copies);
        let mut tables = geometry.volume_areas.into_iter().zip(&areas);
        // A copy that a crash has torn, or that the next crash may tear, already is the one failure
        // among these four.
        let all = superblocks
            .all(|(at, bytes)| Superblock::decode(bytes, at).is_ok() && settled(at, PAGE))
            && tables.all(|(at, bytes)| is_table(bytes, &found) && settled(at, bytes.len()));
        let (start, len) = match self.rng.u32(0..3) {
            0 if all => ([COPY_A, COPY_B][self.rng.usize(0..2)], PAGE as u64),
            1 if all => {
                let area = self.rng.usize(0..2);
                (geometry.volume_areas[area], u64::from(own_length(&areas[area])))
            }
            _ => match found.checkpoint {
                Some(checkpoint) => {
                    (geometry.checkpoint_areas[usize::from(checkpoint.area)], checkpoint.len)
                }
                None => return,
            },
        };
        let sector = start / SECTOR as u64 + self.rng.u64(0..len.div_ceil(SECTOR as u64).max(1));
        let bit = self.rng.usize(0..SECTOR * 8);
        let done = self.cache.with_image(|image| {
            let settled = image.is_settled(sector);
            if settled {
                image.flip(sector, bit);
            }
            settled
        });
        if done {
            self.shared.fault(
                "root rot",
                &[sector, bit as u64],
                format_args!("{} sector {sector}", self.cache.name),
            );
        }
    }
}

fn own_length(table: &[u8]) -> u32 {
    u32::from_le_bytes([table[12], table[13], table[14], table[15]])
}

/// Returns whether `bytes` are an intact volume table of this cache.
fn is_table(bytes: &[u8], superblock: &Superblock) -> bool {
    let crc = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
    let table = VolumeTableRef { area: 0, len: own_length(bytes), crc };
    volume::decode(bytes, &table, &superblock.cache, superblock.geometry.block).is_ok()
}
