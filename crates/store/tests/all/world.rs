//! A cache on a faulty disk, and its expected content.
#![allow(dead_code, unreachable_pub)]

pub mod image;

use std::cell::Cell;
use std::ops::Deref;
use std::rc::Rc;

use forebay_core::{BlockSize, Durability, Mode, OriginBlock, ReplacementKind, SectorMask};
use forebay_device::IoBuf;
use forebay_format::volume::Left;
use forebay_format::{Uuid, VolumeRecord};
use forebay_store::{
    Appended, Class, Condition, FormatOptions, Helper, ReadFailure, RecoveryReport, Store,
    StoreError, StoreLane, StoreOptions, Version, VolumeSpace, format,
};
use forebay_testkit::{Disk, LaneWorld};

/// A block and its state in the cache.
pub struct Cached {
    pub content: IoBuf,
    pub dirty: bool,
    pub mask: Option<SectorMask>,
}

pub struct World {
    base: LaneWorld,
    pub disk: Disk,
    /// Whether caches are opened before their indexes are loaded, if possible.
    pub loads_later: bool,
    /// Number of caches that were opened before their indexes were loaded.
    pub loaded_later: Cell<u32>,
}

impl Deref for World {
    type Target = LaneWorld;

    fn deref(&self) -> &LaneWorld {
        &self.base
    }
}

pub type Opened = (Rc<StoreLane>, RecoveryReport);

impl World {
    pub fn on(content: &[u8]) -> World {
        let (base, disk) = (LaneWorld::new(), Disk::of(content));
        World { base, disk, loads_later: false, loaded_later: Cell::new(0) }
    }

    /// Two worlds with a formatted cache; the second loads indexes later.
    pub fn both(bytes: usize) -> [World; 2] {
        [false, true].map(|loads_later| World { loads_later, ..World::new(bytes) })
    }

    /// A formatted cache without volumes.
    pub fn new(bytes: usize) -> World {
        let world = World::on(&vec![0; bytes]);
        let (queue, device) = (world.queue(&world.disk.device), world.disk.device.clone());
        let uuid = Uuid::from_u128(7);
        let options = FormatOptions { block: BlockSize::DEFAULT, segment_bytes: None, uuid };
        world
            .block_on(async move { format(&device, &queue, &options).await })
            .expect("large enough");
        world
    }

    /// Opens the cache. Its index is loaded, unless the options say that it may be loaded later.
    pub fn open(&self, mut options: StoreOptions) -> Result<Opened, StoreError> {
        let (lane, device) = (self.lane.clone(), self.disk.device.clone());
        let queue = self.queue(&device);
        let loads = self.loads_later && options.load_later_from != u64::MAX;
        if loads {
            options.load_later_from = 1;
            options.helpers = vec![Helper::without_ring(lane.remote()); 2];
        }
        let opened =
            self.block_on(async move { Store::open(&lane, device, queue, options).await })?;
        if loads && !opened.0.store().is_loaded() {
            self.loaded_later.set(self.loaded_later.get() + 1);
            let store = opened.0.clone();
            self.block_on(async move { store.load_rest(&|_, _| ()).await })?;
        }
        Ok(opened)
    }

    pub fn commit(&self, store: &Rc<StoreLane>) {
        let store = store.clone();
        self.block_on(async move { store.commit().await.map(drop) }).expect("the disk works");
    }

    pub fn checkpoint(&self, store: &Rc<StoreLane>, clean: bool) {
        let store = store.clone();
        self.block_on(async move { store.checkpoint(clean).await }).expect("the disk works");
    }

    /// Edits the volume table.
    pub fn change_volumes(
        &self,
        store: &Rc<StoreLane>,
        change: impl FnOnce(&mut Vec<VolumeRecord>) + 'static,
    ) {
        let store = store.clone();
        let changed = self.block_on(async move {
            store
                .change_volumes(|volumes, _| {
                    change(volumes);
                    Ok(())
                })
                .await
        });
        changed.expect("there is room");
    }

    /// Sets the number that the next volume gets.
    pub fn change_counter(&self, store: &Rc<StoreLane>, number: u16) {
        let store = store.clone();
        let changed = self.block_on(async move {
            store
                .change_volumes(|_, next| {
                    *next = number;
                    Ok(())
                })
                .await
        });
        changed.expect("there is room");
    }

    /// Adds a volume of `blocks` blocks, and returns its part of the index.
    pub fn add_volume(
        &self,
        store: &Rc<StoreLane>,
        name: &str,
        mode: Mode,
        blocks: u64,
        settings: &[(u16, u64)],
    ) -> VolumeSpace {
        let (store, name, settings) = (store.clone(), name.to_owned(), settings.to_vec());
        self.block_on(async move {
            store.rest_volume_ids().await.expect("the disk works");
            let id = store
                .change_volumes(|volumes, next| {
                    let id = store.store().new_volume_id(volumes, next)?;
                    volumes.push(VolumeRecord {
                        id,
                        uuid: Uuid::from_u128(100 + u128::from(id.0)),
                        origin: format!("/{name}"),
                        name,
                        origin_bytes: blocks * 4096,
                        alignment: 0,
                        mode,
                        durability: Durability::Flush,
                        policy: ReplacementKind::Lru,
                        withdrawn_policy: None,
                        started: true,
                        fingerprint: None,
                        identity: None,
                        left: Left::default(),
                        samples: None,
                        settings,
                    });
                    Ok(id)
                })
                .await
                .expect("there is room");
            store.add_space(id, blocks).await.expect("there is room")
        })
    }

    /// Lets the numbers of created and deleted volumes rest.
    pub fn rest_numbers(&self, store: &Rc<StoreLane>, numbers: std::ops::RangeInclusive<u16>) {
        let record = |id, store: &StoreLane| VolumeRecord {
            id: forebay_core::VolumeId(id),
            uuid: Uuid::from_u128(100 + u128::from(id)),
            origin: "/o".into(),
            name: format!("n{id}"),
            origin_bytes: 4096,
            alignment: 0,
            mode: Mode::Writeback,
            durability: Durability::Flush,
            policy: ReplacementKind::Lru,
            withdrawn_policy: None,
            started: true,
            fingerprint: None,
            identity: None,
            left: Left::default(),
            samples: None,
            settings: store
                .store()
                .volumes()
                .first()
                .map(|it| it.settings.clone())
                .unwrap_or_default(),
        };
        // Adds as many volumes at a time as a table can contain.
        let numbers: Vec<u16> = numbers.collect();
        for some in numbers.chunks(256) {
            let records: Vec<_> = some.iter().map(|id| record(*id, store)).collect();
            self.change_volumes(store, move |volumes| *volumes = records);
        }
        self.change_volumes(store, |volumes| volumes.clear());
    }

    /// Deletes a volume with all of its blocks in the cache.
    pub fn delete_volume(&self, store: &Rc<StoreLane>, space: &VolumeSpace) {
        let (inner, space) = (store.clone(), *space);
        self.change_volumes(store, move |volumes| volumes.retain(|it| it.id != space.id));
        self.block_on(async move { inner.remove_space(&space).await });
    }

    /// Returns the content of a block, if the cache has it; `Err` if the block is cached but
    /// unreadable.
    pub fn read(
        &self,
        store: &Rc<StoreLane>,
        space: &VolumeSpace,
        block: u64,
    ) -> Option<Result<Cached, ReadFailure>> {
        let (store, space) = (store.clone(), *space);
        self.block_on(async move {
            let pinned = store.store().look_up(&space, OriginBlock(block))?;
            let (dirty, mask) = (pinned.found.entry.dirty, pinned.found.mask.clone());
            let read = store.read_block(&space, pinned).await;
            Some(read.map(|content| Cached { content, dirty, mask }))
        })
    }
}

/// A version that replaces the current one of its block.
pub fn version(
    space: &VolumeSpace,
    block: u64,
    dirty: bool,
    mask: Option<SectorMask>,
) -> Version<'_> {
    let condition = Condition::Always;
    Version { space, block: OriginBlock(block), dirty, mask, rank: 1, condition }
}

/// Appends a version of a block that is filled with `fill`.
pub fn append(
    store: &Rc<StoreLane>,
    space: &VolumeSpace,
    block: u64,
    fill: u8,
    dirty: bool,
    mask: Option<SectorMask>,
) {
    append_as(Class::Foreground, store, space, block, (fill, dirty, mask));
}

/// Appends like [`append`], to the segment of this class.
pub fn append_as(
    class: Class,
    store: &Rc<StoreLane>,
    space: &VolumeSpace,
    block: u64,
    (fill, dirty, mask): (u8, bool, Option<SectorMask>),
) {
    let version = version(space, block, dirty, mask);
    let done = store.append(version, class, |bytes| bytes.fill(fill));
    assert!(matches!(done, Appended::Done { .. }), "{done:?}");
}
