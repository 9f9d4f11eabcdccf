//! The content of a disk: the durable content, the visible content, and all versions in between.
//!
//! The volatile write cache of a disk may destage its sectors in any order, and a power cut keeps
//! any combination. Each sector therefore keeps all versions written since it was last made
//! durable, and a crash chooses one of them for each sector independently.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::stamp::SECTOR;

/// The change that one operation makes.
#[derive(Debug)]
pub struct Patch {
    /// First sector.
    pub first: u64,
    /// The new content of the sectors.
    pub content: PatchContent,
}

/// New content of a run of sectors.
#[derive(Debug)]
pub enum PatchContent {
    /// These bytes, in whole sectors.
    Data(Box<[u8]>),
    /// This many sectors of zeroes.
    Zeroes(u64),
}

impl Patch {
    /// Returns the number of changed sectors.
    pub fn sectors(&self) -> u64 {
        match &self.content {
            PatchContent::Data(bytes) => (bytes.len() / SECTOR) as u64,
            PatchContent::Zeroes(sectors) => *sectors,
        }
    }

    /// Returns whether both patches change a common sector.
    pub fn overlaps(&self, other: &Patch) -> bool {
        self.first < other.first + other.sectors() && other.first < self.first + self.sectors()
    }

    /// Returns the patch without the sectors in `done`, as one patch for each sector.
    pub fn without(self: &Arc<Self>, done: &BTreeSet<u64>) -> Vec<Arc<Patch>> {
        if done.is_empty() {
            return vec![self.clone()];
        }
        let sectors = self.first..self.first + self.sectors();
        let left = sectors.filter(|sector| !done.contains(sector));
        left.map(|first| {
            let content = match self.bytes(first) {
                Some(bytes) => PatchContent::Data(bytes.into()),
                None => PatchContent::Zeroes(1),
            };
            Arc::new(Patch { first, content })
        })
        .collect()
    }

    /// Returns the new bytes of `sector`; `None` means zeroes.
    fn bytes(&self, sector: u64) -> Option<&[u8]> {
        match &self.content {
            PatchContent::Data(bytes) => {
                let start = (sector - self.first) as usize * SECTOR;
                bytes.get(start..start + SECTOR)
            }
            PatchContent::Zeroes(_) => None,
        }
    }
}

struct PatchVersion {
    order: u64,
    patch: Arc<Patch>,
}

/// The effect of a power cut on data that is not durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// The whole write cache is lost.
    DropAll,
    /// Everything that completed or was in flight survives.
    KeepAll,
    /// Each write survives or not, as a whole.
    PerWrite,
    /// Each sector keeps any one of its versions.
    PerSector,
}

impl PowerCut {
    /// Chooses an effect. The last one is the most frequent.
    pub fn choose(rng: &mut fastrand::Rng) -> Self {
        match rng.u32(0..10) {
            0 => PowerCut::DropAll,
            1 => PowerCut::KeepAll,
            2..5 => PowerCut::PerWrite,
            _ => PowerCut::PerSector,
        }
    }
}

/// The content of one disk.
pub struct DiskImage {
    visible: Vec<u8>,
    durable: Vec<u8>,
    versions: Vec<Vec<PatchVersion>>,
    /// Sectors with versions, in the order of their first version.
    touched: Vec<u64>,
}

fn range(sector: u64) -> std::ops::Range<usize> {
    let start = sector as usize * SECTOR;
    start..start + SECTOR
}

fn put(image: &mut [u8], sector: u64, patch: &Patch) {
    match patch.bytes(sector) {
        Some(bytes) => image[range(sector)].copy_from_slice(bytes),
        None => image[range(sector)].fill(0),
    }
}

impl DiskImage {
    /// Creates a disk of `size` bytes, all zero.
    pub fn new(size: u64) -> Self {
        let sectors = size as usize / SECTOR;
        DiskImage {
            visible: vec![0; size as usize],
            durable: vec![0; size as usize],
            versions: (0..sectors).map(|_| Vec::new()).collect(),
            touched: Vec::new(),
        }
    }

    /// Adds `sectors` sectors, all zero.
    pub fn grow(&mut self, sectors: u64) {
        let all = self.versions.len() + sectors as usize;
        self.visible.resize(all * SECTOR, 0);
        self.durable.resize(all * SECTOR, 0);
        self.versions.resize_with(all, Vec::new);
    }

    /// Returns the number of sectors.
    pub fn sectors(&self) -> u64 {
        self.versions.len() as u64
    }

    /// Returns the content of `sector` that a read returns.
    pub fn visible(&self, sector: u64) -> &[u8] {
        &self.visible[range(sector)]
    }

    /// Returns the content of `sector` if the power fails and nothing volatile survives.
    pub fn durable(&self, sector: u64) -> &[u8] {
        &self.durable[range(sector)]
    }

    /// Returns whether there are changes that are not durable.
    pub fn has_unsynced(&self) -> bool {
        !self.touched.is_empty()
    }

    /// Returns whether `sector` has no versions that are not durable.
    pub fn is_settled(&self, sector: u64) -> bool {
        self.versions[sector as usize].is_empty()
    }

    /// Copies the visible content from `offset` on.
    pub fn read(&self, offset: u64, into: &mut [u8]) {
        let start = offset as usize;
        into.copy_from_slice(&self.visible[start..start + into.len()]);
    }

    /// Sets both the visible and the durable content, as if it had always been there.
    pub fn preset(&mut self, sector: u64, bytes: &[u8]) {
        self.visible[range(sector)].copy_from_slice(bytes);
        self.durable[range(sector)].copy_from_slice(bytes);
    }

    /// Flips a bit of a settled sector in place, as decay does.
    pub fn flip(&mut self, sector: u64, bit: usize) {
        let byte = range(sector).start + bit / 8;
        self.visible[byte] ^= 1 << (bit % 8);
        self.durable[byte] ^= 1 << (bit % 8);
    }

    /// Completes a change; `order` is its position in the order of changes.
    pub fn apply(&mut self, patch: &Arc<Patch>, order: u64) {
        for sector in patch.first..patch.first + patch.sectors() {
            self.apply_sector(patch, sector, order);
        }
    }

    /// Applies one sector of a change.
    pub fn apply_sector(&mut self, patch: &Arc<Patch>, sector: u64, order: u64) {
        put(&mut self.visible, sector, patch);
        let versions = &mut self.versions[sector as usize];
        if versions.is_empty() {
            self.touched.push(sector);
        }
        versions.push(PatchVersion { order, patch: patch.clone() });
    }

    /// Makes every change durable that completed before `order`.
    pub fn sync(&mut self, order: u64) {
        let (versions, durable) = (&mut self.versions, &mut self.durable);
        self.touched.retain(|&sector| {
            let all = &mut versions[sector as usize];
            let covered = all.iter().take_while(|version| version.order < order).count();
            if let Some(last) = covered.checked_sub(1) {
                put(durable, sector, &all[last].patch);
                all.drain(..covered);
            }
            !all.is_empty()
        });
    }

    /// Makes the completed changes of these sectors durable.
    pub fn settle(&mut self, sectors: std::ops::Range<u64>) {
        let (versions, durable) = (&mut self.versions, &mut self.durable);
        for sector in sectors.clone() {
            let all = &mut versions[sector as usize];
            if let Some(last) = all.last() {
                put(durable, sector, &last.patch);
                all.clear();
            }
        }
        self.touched.retain(|sector| !sectors.contains(sector));
    }

    /// Loses some changes after a failed sync, which reads then reveal. Returns the sectors that
    /// may be affected.
    pub fn forget_some(&mut self, rng: &mut fastrand::Rng) -> Vec<u64> {
        let touched = std::mem::take(&mut self.touched);
        for &sector in &touched {
            let versions = &mut self.versions[sector as usize];
            versions.retain(|_| rng.bool());
            match versions.last() {
                Some(last) => put(&mut self.visible, sector, &last.patch),
                None => {
                    let bytes = range(sector);
                    self.visible[bytes.clone()].copy_from_slice(&self.durable[bytes]);
                }
            }
            if !versions.is_empty() {
                self.touched.push(sector);
            }
        }
        touched
    }

    /// Cuts the power with the changes `in_flight`.
    pub fn power_cut(&mut self, cut: PowerCut, in_flight: &[Arc<Patch>], rng: &mut fastrand::Rng) {
        for patch in in_flight {
            self.apply(patch, u64::MAX);
        }
        let salt = rng.u64(..);
        let touched = std::mem::take(&mut self.touched);
        for sector in touched {
            let versions = std::mem::take(&mut self.versions[sector as usize]);
            let kept = match cut {
                PowerCut::DropAll => None,
                PowerCut::KeepAll => versions.last(),
                PowerCut::PerWrite => versions.iter().rev().find(|version| {
                    let identity =
                        crate::trace::mix(salt, version.patch.first ^ version.order << 20);
                    identity & 1 == 1
                }),
                PowerCut::PerSector => {
                    let choice = rng.usize(0..=versions.len());
                    choice.checked_sub(1).and_then(|index| versions.get(index))
                }
            };
            if let Some(version) = kept {
                put(&mut self.durable, sector, &version.patch);
            }
            // Other sectors have no versions, so their visible content is durable.
            let bytes = range(sector);
            self.visible[bytes.clone()].copy_from_slice(&self.durable[bytes]);
        }
    }

    /// Kills the process with the changes `in_flight`, while the disk keeps its power: completed
    /// changes stay in its write cache; each change in flight arrives wholly, in part, or not at
    /// all.
    pub fn process_killed(
        &mut self,
        in_flight: &[Arc<Patch>],
        order: u64,
        rng: &mut fastrand::Rng,
    ) {
        for patch in in_flight {
            let how = rng.u32(0..3);
            for sector in patch.first..patch.first + patch.sectors() {
                if how == 1 || how == 2 && rng.bool() {
                    self.apply_sector(patch, sector, order);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn patch(first: u64, sectors: usize, byte: u8) -> Arc<Patch> {
        let content = PatchContent::Data(vec![byte; sectors * SECTOR].into());
        Arc::new(Patch { first, content })
    }

    #[test]
    fn a_sync_covers_what_completed_before_it() {
        let mut image = DiskImage::new(8 * SECTOR as u64);
        image.apply(&patch(0, 4, 1), 1);
        image.apply(&patch(2, 4, 2), 2);
        image.apply(&patch(3, 1, 3), 3);
        image.sync(3);
        let durable =
            |image: &DiskImage| (0..8).map(|sector| image.durable(sector)[0]).collect::<Vec<_>>();
        assert_eq!(durable(&image), [1, 1, 2, 2, 2, 2, 0, 0]);
        assert_eq!(image.visible(3)[0], 3);
        image.power_cut(PowerCut::DropAll, &[], &mut fastrand::Rng::with_seed(1));
        assert_eq!(durable(&image), [1, 1, 2, 2, 2, 2, 0, 0]);
        assert_eq!(image.visible(3)[0], 2);
        assert!(image.is_settled(3));
    }

    #[test]
    fn a_durable_write_settles_its_own_sectors_only() {
        let mut image = DiskImage::new(8 * SECTOR as u64);
        image.apply(&patch(0, 4, 1), 1);
        image.apply(&patch(2, 1, 2), 2);
        image.settle(2..3);
        image.power_cut(PowerCut::DropAll, &[], &mut fastrand::Rng::with_seed(1));
        let durable = (0..4).map(|sector| image.durable(sector)[0]).collect::<Vec<_>>();
        assert_eq!(durable, [0, 0, 2, 0]);
    }

    #[test]
    fn a_power_cut_reaches_every_combination_and_no_other() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..2_000 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut image = DiskImage::new(2 * SECTOR as u64);
            image.apply(&patch(0, 2, 1), 1);
            image.sync(2);
            image.apply(&patch(0, 2, 2), 2);
            image.apply(&patch(0, 1, 3), 3);
            let cut = PowerCut::choose(&mut rng);
            image.power_cut(cut, &[patch(1, 1, 4)], &mut rng);
            seen.insert((image.durable(0)[0], image.durable(1)[0]));
        }
        let every: std::collections::BTreeSet<_> =
            [1, 2, 3].into_iter().flat_map(|a| [1, 2, 4].map(|b| (a, b))).collect();
        assert_eq!(seen, every);
    }

    #[test]
    fn a_killed_process_leaves_what_completed() {
        for seed in 0..50 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut image = DiskImage::new(4 * SECTOR as u64);
            image.apply(&patch(0, 4, 1), 1);
            image.process_killed(&[patch(2, 2, 2)], 2, &mut rng);
            assert_eq!((image.visible(0)[0], image.visible(1)[0]), (1, 1));
            assert!([1, 2].contains(&image.visible(3)[0]));
            assert_eq!(image.durable(0)[0], 0);
        }
    }

    #[test]
    fn a_failed_sync_shows_what_it_forgot() {
        let mut forgotten = 0;
        for seed in 0..100 {
            let mut rng = fastrand::Rng::with_seed(seed);
            let mut image = DiskImage::new(SECTOR as u64);
            image.apply(&patch(0, 1, 1), 1);
            image.forget_some(&mut rng);
            forgotten += u32::from(image.visible(0)[0] == 0);
            image.sync(2);
            assert_eq!(image.visible(0)[0], image.durable(0)[0]);
        }
        assert!((20..80).contains(&forgotten));
    }
}
