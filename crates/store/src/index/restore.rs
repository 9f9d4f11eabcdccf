//! Putting recovered entries into the index: one by one, or a shard at a time.

use forebay_core::SectorMask;

use super::{Address, Index, NewVersion, Unfit};
use crate::error::StoreError;
use crate::table::Entry;

/// The complete content of a shard that is loaded.
#[derive(Default)]
pub(crate) struct ShardContent {
    /// The checkpoint's entries that are still valid.
    pub(crate) entries: Vec<(Address, Entry)>,
    /// The newest versions of blocks in the log. None of these blocks is in `entries`.
    pub(crate) versions: Vec<(Address, NewVersion)>,
    /// Blocks whose partial entry in the checkpoint is no longer valid; their masks are removed.
    pub(crate) superseded: Vec<Address>,
}

impl Index {
    /// Inserts a recovered entry; if it is partial, [`Index::restore_mask`] must follow.
    ///
    /// # Errors
    /// The table has no room.
    pub fn restore(&self, address: Address, entry: Entry) -> Result<(), Unfit> {
        let (mut shard, key) = self.locate(address);
        self.regions.occupy(address);
        shard.table_mut().insert(key, entry).map(drop).map_err(|_| Unfit::Blocks)
    }

    /// Adds the mask of a restored block; ignored for blocks that are not partial.
    ///
    /// # Errors
    /// There is no memory for the mask.
    pub fn restore_mask(&self, address: Address, mask: SectorMask) -> Result<(), Unfit> {
        let (mut shard, key) = self.locate(address);
        match shard.table().get(key) {
            Some((_, entry)) if entry.partial => {
                shard.masks.restore(address.0, mask).map_err(Unfit::Masks)
            }
            _ => Ok(()),
        }
    }

    /// Inserts a recovered version with its mask, or replaces an older one.
    ///
    /// # Errors
    /// The table has no room, or there is no memory for the mask.
    pub(crate) fn restore_version(
        &self,
        address: Address,
        version: NewVersion,
    ) -> Result<(), Unfit> {
        let (mut shard, key) = self.locate(address);
        self.regions.occupy(address);
        let old = shard.table_mut().insert(key, version.entry).map_err(|_| Unfit::Blocks)?;
        match version.mask {
            Some(mask) => shard.masks.restore(address.0, mask).map_err(Unfit::Masks),
            None if old.is_some_and(|old| old.partial) => {
                shard.masks.remove(address.0);
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Marks all shards as not loaded: see [`Index::load_shard`].
    pub(crate) fn unload(&self) {
        self.shards.iter().for_each(|shard| shard.lock().set_loaded(false));
    }

    /// Adds the mask of a block whose shard will be loaded.
    ///
    /// # Errors
    /// There is no memory for the mask.
    pub(crate) fn load_mask(&self, address: Address, mask: SectorMask) -> Result<(), Unfit> {
        let shard = &self.shards[self.shard_of(address) as usize];
        shard.lock().masks.restore(address.0, mask).map_err(Unfit::Masks)
    }

    /// Loads a shard. The masks of all of its partial blocks must have been loaded before.
    ///
    /// # Errors
    /// The entries do not fit, or belong to another shard.
    pub(crate) fn load_shard(
        &self,
        number: u32,
        content: &mut ShardContent,
    ) -> Result<(), StoreError> {
        let mut shard = self.shards[number as usize].lock();
        for address in &content.superseded {
            shard.masks.remove(address.0);
        }
        for (address, entry) in &content.entries {
            let placed = self.geometry.place(address.0);
            let known = !entry.partial || shard.masks.get(address.0).is_some();
            if placed.shard != number || !known {
                return Err(StoreError::Refused("the checkpoint has an impossible entry".into()));
            }
            self.regions.occupy(*address);
            let inserted = shard.table_mut().insert(placed.key, *entry).map_err(|_| Unfit::Blocks);
            if inserted.map_err(|unfit| unfit.of("the checkpoint"))?.is_some() {
                return Err(StoreError::Refused("the checkpoint has a block twice".into()));
            }
        }
        for (address, NewVersion { entry, mask }) in content.versions.drain(..) {
            let placed = self.geometry.place(address.0);
            self.regions.occupy(address);
            shard.table_mut().insert(placed.key, entry).map_err(|_| Unfit::Blocks.of("the log"))?;
            match mask {
                // The mask has a place, because an older mask of the block was loaded before.
                Some(mask) => shard.masks.insert(address.0, mask),
                None => shard.masks.remove(address.0),
            }
        }
        shard.set_loaded(true);
        Ok(())
    }
}
