//! State shared by all parts of one world: clock, trace, fuse, and notes for the oracle.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use forebay_core::Clock;
use parking_lot::Mutex;

use crate::clock::VirtualClock;
use crate::rot::Told;
use crate::stamp::SectorAddress;
use crate::trace::Trace;

/// Decides at which device operation the world stops.
#[derive(Default)]
struct Fuse {
    left: Option<u64>,
    /// Number of superblock writes to come, and the number of operations to count after the last of
    /// them.
    after_roots: Option<(u64, u64)>,
    blown: bool,
    passed: u64,
}

#[derive(Default)]
struct Books {
    fuse: Fuse,
    faults: BTreeMap<&'static str, u64>,
    tainted: Vec<SectorAddress>,
    lost: Vec<SectorAddress>,
    doubtful: Vec<SectorAddress>,
    forgotten: Vec<(u64, Vec<u64>)>,
    told: Vec<Told>,
    differing: Vec<u16>,
    complaints: Vec<String>,
}

/// State shared by the disks, the scheduler and the world.
#[derive(Clone)]
pub struct SimContext {
    /// The virtual clock.
    pub clock: Arc<VirtualClock>,
    /// The trace of the run.
    pub trace: Trace,
    /// Seed of the stamps.
    pub seed: u64,
    books: Arc<Mutex<Books>>,
}

impl SimContext {
    /// Creates the shared state for one run of `seed`.
    pub fn new(seed: u64, print: bool) -> Self {
        SimContext { clock: Arc::default(), trace: Trace::new(print), seed, books: Arc::default() }
    }

    /// Adds an event to the trace.
    pub fn event(&self, kind: &str, numbers: &[u64], line: fmt::Arguments<'_>) {
        self.trace.event(self.clock.now(), kind, numbers, line);
    }

    /// Arms the fuse: it blows at the `operations`-th change of a disk from now; `None` disarms it.
    pub fn arm(&self, operations: Option<u64>) {
        self.books.lock().fuse = Fuse { left: operations, ..Fuse::default() };
    }

    /// Arms the fuse: it blows at the `operations`-th change of a disk after the `roots`-th
    /// superblock write. Checkpoints and changes of volumes are rare, so crashes near them would be
    /// rare by chance.
    pub fn arm_at_root(&self, roots: u64, operations: u64) {
        self.books.lock().fuse = Fuse { after_roots: Some((roots, operations)), ..Fuse::default() };
    }

    /// Records that a superblock write begins.
    pub fn root_begins(&self) {
        let fuse = &mut self.books.lock().fuse;
        match &mut fuse.after_roots {
            Some((1, operations)) => {
                fuse.left = Some(*operations);
                fuse.after_roots = None;
            }
            Some((roots, _)) => *roots -= 1,
            None => (),
        }
    }

    /// Counts the start or completion of a change of a disk. Returns whether the world has stopped.
    pub fn tick(&self) -> bool {
        let fuse = &mut self.books.lock().fuse;
        if fuse.blown {
            return true;
        }
        fuse.passed += 1;
        if let Some(left) = &mut fuse.left {
            *left = left.saturating_sub(1);
            fuse.blown = *left == 0;
        }
        fuse.blown
    }

    /// Returns whether the world has stopped.
    pub fn stopped(&self) -> bool {
        self.books.lock().fuse.blown
    }

    /// Stops the world immediately.
    pub fn stop(&self) {
        self.books.lock().fuse.blown = true;
    }

    /// Notes an injected fault.
    pub fn fault(&self, kind: &'static str, numbers: &[u64], line: fmt::Arguments<'_>) {
        *self.books.lock().faults.entry(kind).or_default() += 1;
        self.event("fault", numbers, format_args!("{kind}: {line}"));
    }

    /// Returns the faults injected so far, by kind.
    pub fn faults(&self) -> BTreeMap<&'static str, u64> {
        self.books.lock().faults.clone()
    }

    /// Records that the stored data of `place` was damaged on the cache device.
    pub fn taint(&self, place: SectorAddress) {
        self.books.lock().tainted.push(place);
    }

    /// Returns the places damaged since the last call.
    pub fn take_tainted(&self) -> Vec<SectorAddress> {
        std::mem::take(&mut self.books.lock().tainted)
    }

    /// Records that the cache device silently lost the record of `place`.
    pub fn lose(&self, place: SectorAddress) {
        self.books.lock().lost.push(place);
    }

    /// Returns whether the cache device has ever lost a record silently.
    pub fn has_lost(&self) -> bool {
        !self.books.lock().lost.is_empty()
    }

    /// Records that a cache was opened from its log, so that all places of lost records are in
    /// doubt.
    pub fn replayed(&self) {
        let books = &mut *self.books.lock();
        books.doubtful.extend(&books.lost);
    }

    /// Returns the places that replays since the last call may have left without their records.
    pub fn take_doubtful(&self) -> Vec<SectorAddress> {
        std::mem::take(&mut self.books.lock().doubtful)
    }

    /// Records that a disk failed a sync and may have lost some versions of these sectors.
    pub fn forgot(&self, disk: u64, sectors: Vec<u64>) {
        self.books.lock().forgotten.push((disk, sectors));
    }

    /// Returns the disks and sectors that have lost versions since the last call.
    pub fn take_forgotten(&self) -> Vec<(u64, Vec<u64>)> {
        std::mem::take(&mut self.books.lock().forgotten)
    }

    /// Records that the system did not start a volume that may have lost data.
    pub fn tell(&self, told: Told) {
        self.event(
            "told",
            &[u64::from(told.volume), told.first, told.count],
            format_args!("{told:?}"),
        );
        self.books.lock().told.push(told);
    }

    /// Returns these refusals since the last call.
    pub fn take_told(&self) -> Vec<Told> {
        std::mem::take(&mut self.books.lock().told)
    }

    /// Records that the start of a volume has found clean blocks that differ from its origin.
    pub fn differs(&self, volume: u16) {
        self.event(
            "differs",
            &[u64::from(volume)],
            format_args!("volume {volume} from its origin"),
        );
        self.books.lock().differing.push(volume);
    }

    /// Returns these volumes since the last call.
    pub fn take_differing(&self) -> Vec<u16> {
        std::mem::take(&mut self.books.lock().differing)
    }

    /// Records that a disk was used in a way that its contract forbids.
    pub fn complain(&self, what: String) {
        self.books.lock().complaints.push(what);
    }

    /// Returns the first such complaint.
    pub fn complaint(&self) -> Option<String> {
        self.books.lock().complaints.first().cloned()
    }
}
