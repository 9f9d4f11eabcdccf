//! Rot of the log while the system is down: bits flip, sectors become zero or unreadable, in one
//! page or a few, often in pages that recovery needs.
//!
//! The possible loss is derived from the log before the damage:
//!
//! - A payload: reads of its blocks may fail, until they are written again.
//! - A header that recovery needs, of a record that a later one proves: the newest state of the
//!   affected blocks may be lost, once the system has refused to start their volume because of that
//!   record.
//! - A header of a record that no other proves: the same, but without a message, because this
//!   damage is indistinguishable from a write that the crash has torn.
//! - A header that a checkpoint contains, or a page of no record: nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use forebay_core::{OriginBlock, RecordNumber, SegmentId, Slot, VolumeId};
use forebay_format::checkpoint::CheckpointReader;
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::{
    AcceptedLog, Body, DataEntry, Geometry, PAGE, RecordHeader, Superblock, record, volume,
};

use crate::oracle::plain;
use crate::stamp::{self, SECTOR, SectorAddress};
use crate::violation::Violation;
use crate::world::World;

/// Sectors in a page.
const SECTORS: u64 = (PAGE / SECTOR) as u64;

/// A refusal to start a volume because of lost records.
#[derive(Clone, Copy, Debug)]
pub struct Told {
    /// The volume.
    pub volume: u16,
    /// The number of the first lost record.
    pub first: u64,
    /// Upper limit of the number of lost records.
    pub count: u64,
}

impl Told {
    fn records(self) -> Range<u64> {
        self.first..self.first.saturating_add(self.count)
    }
}

/// The damage so far, and its consequences.
pub(crate) struct Rot {
    rng: fastrand::Rng,
    /// Records whose headers recovery must miss, and the affected places.
    missed: BTreeMap<u64, Vec<SectorAddress>>,
    /// Whether some pages are unreadable, so that their content is unknown.
    unreadable: bool,
    /// Cells of headers that rotted later: marks may refer to them.
    cells: Vec<Cell>,
    /// Volumes whose order can no longer be kept.
    disordered: BTreeSet<u16>,
    /// Volumes that lost a record which looks torn.
    silent: BTreeSet<u16>,
}

/// A version of a block in the log, and the cell that contains it.
#[derive(Clone)]
struct Cell {
    header: RecordNumber,
    slot: Slot,
    generation: forebay_core::Generation,
    volume: VolumeId,
    block: OriginBlock,
    sequence: u64,
}

/// The part of the log that earlier recoveries accepted.
#[derive(Default)]
struct Accepted {
    log: AcceptedLog,
    /// Whether no crash can revert the superblock that records this.
    for_sure: bool,
}

/// The log before the damage.
struct LogSnapshot {
    geometry: Geometry,
    /// The last record that the checkpoint includes.
    base: u64,
    accepted: Accepted,
    /// Numbers of the volumes in the world, by their IDs on the cache device.
    volumes: BTreeMap<VolumeId, u16>,
    /// Every header, by the number of its page on the device.
    headers: BTreeMap<u64, RecordHeader>,
    /// Pages of headers that the next crash may revert.
    unsettled: BTreeSet<u64>,
    cells: Vec<Cell>,
}

/// The last record that later headers prove to have been durable when they were written.
struct Proven {
    /// The last record according to headers that no crash can revert and that recovery finds.
    surely: u64,
    /// The last record according to any header: if the unsettled headers are lost, the record may
    /// look torn.
    perhaps: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum RotKind {
    Flip(usize),
    Zeroes,
    Unreadable,
}

impl Rot {
    pub(crate) fn new(seed: u64) -> Self {
        Rot {
            rng: fastrand::Rng::with_seed(seed ^ 0x5074_0001),
            missed: BTreeMap::new(),
            unreadable: false,
            cells: Vec::new(),
            disordered: BTreeSet::new(),
            silent: BTreeSet::new(),
        }
    }

    /// Returns whether the order of a volume's origin cannot be judged, because a lost group was
    /// never written in its turn.
    pub(crate) fn has_disordered(&self, volume: u16) -> bool {
        self.disordered.contains(&volume)
    }

    /// Forgets a deleted volume, so that its damage does not affect a later volume.
    pub(crate) fn forget(&mut self, volume: u16) {
        self.disordered.remove(&volume);
        self.silent.remove(&volume);
        self.missed.values_mut().for_each(|about| about.retain(|place| place.volume != volume));
    }
}

fn cells_of(geometry: &Geometry, header: &RecordHeader) -> Vec<Cell> {
    let entries: &[DataEntry] = match &header.body {
        Body::Data(entries) => entries,
        Body::Marks(_) | Body::Opening(_) => &[],
    };
    let cells = entries.iter().enumerate().filter(|(_, entry)| !entry.void);
    cells
        .map(|(number, entry)| Cell {
            header: header.number,
            slot: header.cell(geometry, number),
            generation: header.generation,
            volume: entry.volume,
            block: entry.block,
            sequence: entry.sequence,
        })
        .collect()
}

impl LogSnapshot {
    /// Returns the pages of a cell.
    fn pages(&self, cell: &Cell) -> Range<u64> {
        let start = self.geometry.slot_offset(cell.slot);
        start / PAGE as u64..(start + self.geometry.block.bytes()).div_ceil(PAGE as u64)
    }

    fn place(
        &self,
        world: &World<'_>,
        volume: VolumeId,
        block: OriginBlock,
    ) -> Option<SectorAddress> {
        let volume = *self.volumes.get(&volume)?;
        let shift = world.profile.setup.alignments.get(usize::from(volume))?;
        let start = (block.0 * self.geometry.block.bytes()).saturating_sub(*shift);
        Some(SectorAddress { volume, sector: start / SECTOR as u64 })
    }

    /// Returns the last record that the checkpoint and the headers that are not `rotten` prove
    /// durable.
    fn proven(&self, rotten: &BTreeSet<u64>) -> Proven {
        let perhaps = self.base.max(self.accepted.log.through.0);
        let surely = if self.accepted.for_sure { perhaps } else { self.base };
        let mut proven = Proven { surely, perhaps };
        for (page, header) in self.headers.iter().filter(|(page, _)| !rotten.contains(page)) {
            let durable = header.durable_through.0;
            proven.perhaps = proven.perhaps.max(durable);
            if !self.unsettled.contains(page) && self.is_found(header, rotten) {
                proven.surely = proven.surely.max(durable);
            }
        }
        proven
    }

    /// Returns whether recovery certainly finds a header: one of the first two headers of its
    /// segment's life is intact. A crash may revert both and keep a later one.
    fn is_found(&self, header: &RecordHeader, rotten: &BTreeSet<u64>) -> bool {
        let start = self.geometry.segment_offset(header.segment) / PAGE as u64;
        let same = |first: &RecordHeader| first.generation == header.generation;
        (start..start + 2)
            .any(|page| !rotten.contains(&page) && self.headers.get(&page).is_some_and(same))
    }

    /// Returns the places that a missed record affects.
    fn about(
        &self,
        world: &World<'_>,
        header: &RecordHeader,
        proven: &Proven,
    ) -> Vec<SectorAddress> {
        let known = || self.cells.iter().chain(&world.rot.cells);
        match &header.body {
            Body::Opening(_) => Vec::new(),
            Body::Data(_) => {
                // A newer version suffices if it certainly survives.
                let mut cells = cells_of(&self.geometry, header);
                cells.retain(|cell| {
                    !self.cells.iter().any(|newer| {
                        (newer.volume, newer.block) == (cell.volume, cell.block)
                            && newer.sequence > cell.sequence
                            && newer.header.0 <= proven.surely
                            && !world.is_missed(newer.header)
                    })
                });
                cells.iter().filter_map(|it| self.place(world, it.volume, it.block)).collect()
            }
            Body::Marks(marks) => marks
                .iter()
                .flat_map(|mark| {
                    let means =
                        move |cell: &&Cell| cell.slot == mark.slot && mark.means(cell.generation);
                    known().filter(means)
                })
                .filter_map(|cell| self.place(world, cell.volume, cell.block))
                .collect(),
        }
    }
}

impl World<'_> {
    fn is_missed(&self, header: RecordNumber) -> bool {
        self.rot.missed.contains_key(&header.0)
    }

    /// Sometimes damages the log while the system is down.
    pub(crate) fn perhaps_rot(&mut self) {
        if self.rot.rng.u32(0..3) == 0 {
            return;
        }
        let Some(log) = self.read_log() else { return };
        let pages = match self.rot.rng.u32(0..4) {
            0..3 => 1,
            _ => self.rot.rng.u32(2..=4),
        };
        let mut rotten = BTreeSet::new();
        for _ in 0..pages {
            if let Some(page) = self.choose_page(&log)
                && self.damage(&log.geometry, page)
            {
                rotten.insert(page);
            }
        }
        self.note_rot(&log, &rotten);
    }

    /// Handles a cut-off write: a crash may have cut off a write to a page that was unreadable
    /// before, and kept the header. This is indistinguishable from a cell that arrived and rotted:
    /// the store keeps it, and reads fail.
    pub(crate) fn note_cut_off(&mut self) {
        if self.rot.unreadable
            && let Some(log) = self.read_log()
        {
            self.taint_cut_off(&log);
        }
    }

    fn taint_cut_off(&mut self, log: &LogSnapshot) {
        let proven = log.proven(&BTreeSet::new());
        for cell in log.cells.iter().filter(|cell| cell.header.0 > proven.surely) {
            if log.pages(cell).any(|page| self.is_unreadable(page))
                && let Some(place) = log.place(self, cell.volume, cell.block)
            {
                self.oracle.taint(place);
                self.disorder(place.volume);
            }
        }
    }

    /// Records that the order of a volume can no longer be kept.
    fn disorder(&mut self, volume: u16) {
        self.rot.disordered.insert(volume);
        self.oracle.order.watch(volume, false);
    }

    fn read_log(&self) -> Option<LogSnapshot> {
        let read = |at: u64, len: usize| {
            let mut bytes = vec![0; len];
            self.cache.with_image(|image| image.read(at, &mut bytes));
            bytes
        };
        let found = Superblock::choose(&read(COPY_A, PAGE), &read(COPY_B, PAGE)).ok()?;
        let geometry = found.geometry.clone();
        let checkpoint = found.checkpoint.as_ref()?;
        let at = geometry.checkpoint_areas[usize::from(checkpoint.area)];
        let reader = CheckpointReader::open(&read(at, PAGE), checkpoint, &geometry, found.cache);
        let base = reader.ok()?.header().base.0;
        let table = found.volume_table;
        let area = *geometry.volume_areas.get(usize::from(table.area))?;
        let bytes = read(area, table.len as usize);
        let records = volume::decode(&bytes, &table, &found.cache, geometry.block).ok()?;
        let number = |name: &str| name.strip_prefix("volume-")?.parse().ok();
        let volumes = records.iter().filter_map(|it| Some((it.id, number(&it.name)?))).collect();
        let log = found.accepted.unwrap_or_default();
        let mut roots = self.sectors_of(0).chain(self.sectors_of(COPY_B / PAGE as u64));
        let for_sure = self.cache.with_image(|image| roots.all(|it| image.is_settled(it)));
        let accepted = Accepted { log, for_sure };
        let counts = |header: &RecordHeader| {
            let number = header.number.0;
            number <= base || !accepted.for_sure || !accepted.log.leaves_out(number)
        };
        let (mut headers, mut unsettled) = (BTreeMap::new(), BTreeSet::new());
        for segment in (0..geometry.segment_count).map(SegmentId) {
            let start = geometry.segment_offset(segment);
            let content = read(start, geometry.segment_bytes as usize);
            for (number, bytes) in content.chunks_exact(PAGE).enumerate() {
                let at = (number * PAGE) as u64;
                let header = record::decode(bytes, &geometry, &found.cache).ok();
                let here = |header: &RecordHeader| {
                    header.segment == segment
                        && u64::from(header.position) == at / geometry.granule()
                        && !self.is_unreadable((start + at) / PAGE as u64)
                };
                if let Some(header) = header.filter(here).filter(counts) {
                    let page = (start + at) / PAGE as u64;
                    headers.insert(page, header);
                    let mut sectors = self.sectors_of(page);
                    if !self.cache.with_image(|image| sectors.all(|it| image.is_settled(it))) {
                        unsettled.insert(page);
                    }
                }
            }
        }
        let cells = headers.values().flat_map(|header| cells_of(&geometry, header)).collect();
        Some(LogSnapshot { geometry, base, accepted, volumes, headers, unsettled, cells })
    }

    fn sectors_of(&self, page: u64) -> Range<u64> {
        page * SECTORS..(page + 1) * SECTORS
    }

    /// Returns whether a page is unreadable according to the disk, which knows this regardless of
    /// other damage to the page.
    fn is_unreadable(&self, page: u64) -> bool {
        self.cache.has_rotten(self.sectors_of(page))
    }

    /// Chooses the page to damage: a header that recovery needs, a cell, or any page.
    fn choose_page(&mut self, log: &LogSnapshot) -> Option<u64> {
        let rng = &mut self.rot.rng;
        let what = rng.u32(0..8);
        let mut pick = |pages: Vec<u64>| pages.get(rng.usize(0..pages.len().max(1))).copied();
        match what {
            0..4 => {
                let needed = log.headers.iter().filter(|(_, it)| it.number.0 > log.base);
                pick(needed.map(|(page, _)| *page).collect())
            }
            4..7 => pick(log.cells.iter().map(|cell| log.pages(cell).start).collect()),
            _ => {
                let segments = log.geometry.segments_offset..log.geometry.end();
                Some(rng.u64(segments.start / PAGE as u64..segments.end / PAGE as u64))
            }
        }
    }

    /// Damages a sector of a page. Returns `false` if the sector is not settled, so that its
    /// content is unknown, or if it was to be zeroed and already is zero.
    fn damage(&mut self, geometry: &Geometry, page: u64) -> bool {
        let sectors = self.sectors_of(page);
        let sector = self.rot.rng.u64(sectors);
        let kind = match self.rot.rng.u32(0..4) {
            0..2 => RotKind::Flip(self.rot.rng.usize(0..SECTOR * 8)),
            2 => RotKind::Zeroes,
            _ => RotKind::Unreadable,
        };
        if kind == RotKind::Zeroes && self.would_blank(geometry, page, sector) {
            return false;
        }
        let damages = self.cache.with_image(|image| {
            let zeroed = kind == RotKind::Zeroes && image.visible(sector) == [0; SECTOR];
            let damages = image.is_settled(sector) && !zeroed;
            match kind {
                RotKind::Flip(bit) if damages => image.flip(sector, bit),
                RotKind::Zeroes if damages => image.preset(sector, &[0; SECTOR]),
                _ => (),
            }
            damages
        });
        if !damages {
            return false;
        }
        if kind == RotKind::Unreadable {
            self.cache.make_unreadable(sector);
        }
        self.shared.fault(
            "log rot",
            &[page, sector],
            format_args!("{} page {page} sector {sector}: {kind:?}", self.cache.name),
        );
        true
    }

    /// Returns whether the first two pages of a segment would be zeroes without this sector, so
    /// that the segment would look unused. The store does not promise to survive two damaged pages,
    /// so this is not modelled.
    fn would_blank(&self, geometry: &Geometry, page: u64, sector: u64) -> bool {
        let into = (page * PAGE as u64).saturating_sub(geometry.segments_offset);
        let first = page - into % geometry.segment_bytes / PAGE as u64;
        let sectors = first * SECTORS..(first + 2) * SECTORS;
        self.cache.with_image(|image| {
            let mut others = sectors.clone().filter(|other| *other != sector);
            sectors.contains(&sector) && others.all(|other| image.visible(other) == [0; SECTOR])
        })
    }

    /// Records the possible loss, and keeps the data from which later losses are derived.
    fn note_rot(&mut self, log: &LogSnapshot, rotten: &BTreeSet<u64>) {
        self.rot.unreadable |= rotten.iter().any(|page| self.is_unreadable(*page));
        let proven = log.proven(rotten);
        let headers = log.headers.iter().filter(|(page, it)| {
            rotten.contains(page) && it.number.0 > log.base && !it.body.is_opening()
        });
        let headers: Vec<&RecordHeader> = headers.map(|(_, header)| header).collect();
        for header in &headers {
            self.rot.missed.insert(header.number.0, Vec::new());
        }
        let (mut doubtful, mut hit) = (Vec::new(), Vec::new());
        for header in headers {
            let about = log.about(self, header, &proven);
            self.shared.event(
                "rot",
                &[header.number.0, proven.perhaps],
                format_args!(
                    "record {} (base {}, proven {}, surely {}) was about {about:?}",
                    header.number.0, log.base, proven.perhaps, proven.surely
                ),
            );
            // Only a header that the next crash may revert proves the record: both outcomes are
            // correct.
            if header.number.0 > proven.surely {
                doubtful.extend(about.iter().copied());
            }
            if header.number.0 <= proven.perhaps {
                self.rot.missed.insert(header.number.0, about);
            }
        }
        for page in rotten {
            if let Some(header) = log.headers.get(page) {
                // Groups are lost even if newer versions of all their blocks exist or the
                // checkpoint contains them.
                let cells = cells_of(&log.geometry, header);
                hit.extend(cells.iter().filter_map(|it| log.place(self, it.volume, it.block)));
                self.rot.cells.extend(cells);
            }
            for cell in log.cells.iter().filter(|cell| log.pages(cell).contains(page)) {
                let Some(place) = log.place(self, cell.volume, cell.block) else { continue };
                hit.push(place);
                self.oracle.taint(place);
                // The cell is dropped, as if it had never arrived, unless its content is
                // unreadable.
                let unreadable = log.pages(cell).any(|page| self.is_unreadable(page));
                if cell.header.0 > proven.surely && !unreadable {
                    doubtful.push(place);
                }
            }
        }
        hit.extend(doubtful.iter().copied());
        for place in doubtful {
            // Clean copies that this restored are not dropped.
            let (volume, seed) = (place.volume, self.shared.seed);
            self.rot.silent.insert(volume);
            self.origins[usize::from(volume)].with_image(|image| {
                let below = |sector| {
                    let place = SectorAddress { volume, sector };
                    let both = [image.visible(sector), image.durable(sector)];
                    both.iter().filter_map(|bytes| stamp::own(bytes, seed, place)).collect()
                };
                self.oracle.doubt(place, below);
            });
        }
        hit.into_iter().for_each(|place| self.disorder(place.volume));
    }

    /// Judges that clean blocks of a volume differ from its origin, although only the system has
    /// written to the origin: the loss of a record that looks torn is the only acceptable cause.
    pub(crate) fn judge_differing(&self, volume: u16) -> Result<(), Violation> {
        if self.rot.silent.contains(&volume) || self.shared.has_lost() {
            return Ok(());
        }
        Err(plain(12, format!("clean blocks of volume {volume} differ from its origin")))
    }

    /// Judges the system's report that a volume may have lost data.
    pub(crate) fn judge_told(&mut self, told: Told) -> Result<(), Violation> {
        let records = told.records();
        let any = self.rot.missed.range(records.clone()).next().is_some();
        if !any && !self.rot.unreadable && !self.shared.has_lost() {
            return Err(plain(
                11,
                format!("volume {} is said to be damaged, and is not: {told:?}", told.volume),
            ));
        }
        let about: Vec<SectorAddress> = self
            .rot
            .missed
            .range_mut(records)
            .flat_map(|(_, about)| about.extract_if(.., |place| place.volume == told.volume))
            .collect();
        about.into_iter().for_each(|place| self.oracle.doubt(place, |_| Vec::new()));
        Ok(())
    }
}

#[cfg(test)]
mod tests;
