//! A small cache with every kind of content, and the list of its content.

use std::collections::BTreeMap;
use std::rc::Rc;

use forebay_core::{Mode, OriginBlock, SectorMask};
use forebay_format::volume::{ORDERED_RECORD, ORDERED_SEQUENCE};
use forebay_store::{StoreLane, StoreOptions, VolumeSpace};

use super::{Cached, World, append};

/// Size of the device: a little more than 16 segments of 256 KiB.
pub const BYTES: usize = 5 << 20;
const BLOCKS: u64 = 1024;
const VOLUMES: [&str; 3] = ["dirty", "ordered", "clean"];

/// The newest version of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Expected {
    pub fill: u8,
    pub dirty: bool,
    /// Valid sectors, from 0.
    pub sectors: u32,
}

/// The end of the last user of the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    Crash,
    Clean,
}

/// Blocks by volume and number. Blocks that are absent here must not be cached.
pub type Model = BTreeMap<(&'static str, u64), Expected>;

struct Maker<'a> {
    world: &'a World,
    store: Rc<StoreLane>,
    model: Model,
}

impl Maker<'_> {
    fn write(
        &mut self,
        volume: (&'static str, &VolumeSpace),
        blocks: std::ops::Range<u64>,
        fill: u8,
    ) {
        for block in blocks {
            self.put(volume, block, Expected { fill, dirty: volume.0 != "clean", sectors: 8 });
        }
    }

    fn put(&mut self, (name, space): (&'static str, &VolumeSpace), block: u64, new: Expected) {
        let mask = (new.sectors < 8).then(|| SectorMask::of(8, 0..new.sectors));
        append(&self.store, space, block, new.fill, new.dirty, mask);
        self.model.insert((name, block), new);
    }

    fn write_back(
        &mut self,
        (name, space): (&'static str, &VolumeSpace),
        blocks: std::ops::Range<u64>,
    ) {
        for block in blocks {
            let store = self.store.store();
            let slot = store.peek(space, OriginBlock(block)).expect("cached").entry.slot;
            let version = store.version_of(space, OriginBlock(block), slot).expect("cached");
            assert!(store.written_back(space, OriginBlock(block), &version, || false));
            self.model.get_mut(&(name, block)).expect("cached").dirty = false;
        }
    }

    fn forget(
        &mut self,
        (name, space): (&'static str, &VolumeSpace),
        blocks: std::ops::Range<u64>,
    ) {
        for block in blocks {
            self.store.store().forget(space, OriginBlock(block), |_| true).expect("cached");
            self.model.remove(&(name, block));
        }
    }

    fn commit(&self) {
        self.world.commit(&self.store);
    }
}

/// Makes the cache. Returns the device before the last steps, the device at the end, and the
/// content of the cache.
pub fn make(end: End) -> (Vec<u8>, Vec<u8>, Model) {
    let world = World::new(BYTES);
    let (store, _) = world.open(StoreOptions::default()).expect("just formatted");
    let dirty = world.add_volume(&store, "dirty", Mode::Writeback, BLOCKS, &[]);
    let ordered = [(32, 1), (ORDERED_SEQUENCE, 0), (ORDERED_RECORD, 0)];
    let ordered = world.add_volume(&store, "ordered", Mode::Writeback, BLOCKS, &ordered);
    let clean = world.add_volume(&store, "clean", Mode::Writethrough, BLOCKS, &[]);
    store.store().begin_ordered(ordered.id);
    let (dirty, ordered, clean) = (("dirty", &dirty), ("ordered", &ordered), ("clean", &clean));
    let mut it = Maker { world: &world, store: store.clone(), model: Model::new() };
    it.write(dirty, 0..90, 1);
    it.write(clean, 0..40, 2);
    it.commit();
    for block in 300..312 {
        it.put(dirty, block, Expected { fill: 3, dirty: true, sectors: 1 + block as u32 % 7 });
    }
    it.write_back(dirty, 0..20);
    it.forget(clean, 0..5);
    it.commit();
    world.checkpoint(&store, false);
    it.write(dirty, 10..30, 4);
    it.write(ordered, 0..20, 5);
    it.commit();
    it.write(ordered, 5..12, 6);
    it.write(clean, 2..8, 7);
    it.commit();
    let before = world.disk.content();
    for block in 306..318 {
        it.put(dirty, block, Expected { fill: 8, dirty: true, sectors: 1 + block as u32 % 7 });
    }
    it.write_back(dirty, 25..35);
    it.forget(clean, 20..25);
    it.commit();
    it.write(dirty, 600..650, 9);
    it.write(clean, 600..620, 10);
    it.commit();
    // Later records prove that everything before was durable.
    it.write(dirty, 700..702, 11);
    it.commit();
    if end == End::Clean {
        world.checkpoint(&store, true);
    }
    (before, world.disk.content(), it.model)
}

/// A block that differs from its expected state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    pub volume: String,
    pub block: u64,
    pub what: &'static str,
}

pub const UNREADABLE: &str = "cannot be read";
pub const CLEAN_MISSING: &str = "is missing and was clean";

/// Compares a cache with its expected content.
pub fn differences(world: &World, store: &Rc<StoreLane>, model: &Model) -> Vec<Difference> {
    let mut found = Vec::new();
    for volume in store.store().volumes() {
        let space = store.store().space_of(volume.id).expect("there");
        let name = *VOLUMES.iter().find(|name| **name == volume.name).expect("known");
        for block in 0..BLOCKS {
            let wanted = model.get(&(name, block));
            let what = match (world.read(store, &space, block), wanted) {
                (None, None) => continue,
                (None, Some(wanted)) if !wanted.dirty => CLEAN_MISSING,
                (None, Some(_)) => "is missing",
                (Some(Err(_)), _) => UNREADABLE,
                (Some(Ok(_)), None) => "is there",
                (Some(Ok(found)), Some(wanted)) => match other_than(&found, wanted) {
                    Some(what) => what,
                    None => continue,
                },
            };
            found.push(Difference { volume: volume.name.clone(), block, what });
        }
    }
    found
}

fn other_than(found: &Cached, wanted: &Expected) -> Option<&'static str> {
    let Cached { content, dirty, mask } = found;
    let valid = wanted.sectors as usize * 512;
    let end = |mask: &SectorMask| mask.runs().map(|run| run.end).max().unwrap_or(0);
    if content[..valid].iter().any(|byte| *byte != wanted.fill) {
        Some("has other content")
    } else if mask.as_ref().map_or(8, end) != wanted.sectors {
        Some("has other sectors")
    } else {
        match (dirty, wanted.dirty) {
            (true, false) => Some("is dirty"),
            (false, true) => Some("is clean"),
            _ => None,
        }
    }
}
