//! Opening a store: restores the index to its exact durable state, clean and dirty.
//!
//! 1. superblock and volume table;
//! 2. the checkpoint's segment table; the first header of every segment shows whether it was opened
//!    since;
//! 3. the checkpoint's entries, except those in segments that were opened again: the versions
//!    that superseded them are in the log;
//! 4. the records after the checkpoint's base: data, then marks;
//! 5. a new checkpoint, before anything else is written. So a crash at any write of recovery
//!    leaves the previous state (invariant 7).
//!
//! If possible, the [loader](crate::loader) does step 3 while requests are served, and applies the
//! changes of step 4 shard by shard. Then step 5 writes a superblock instead of the checkpoint. It
//! contains the decision which records of step 4 were accepted, because a recovery after another
//! crash must accept the same ones.
//!
//! Records that were not yet durable when the last header was written may be torn, so their
//! payloads are verified: a block whose payload is missing is dropped as a whole, and a record
//! whose header is missing is dropped with all of its blocks (invariant 4). Record numbers are
//! dense, so a gap among durable records means that records were lost; the volumes concerned are
//! then damaged, see [`damage`](crate::damage).
//!
//! A record may have reached the device and still be hidden behind a page that did not. A later
//! recovery must not accept such a record either. So the checkpoint bounds the generations that can
//! follow it, and no record number, sequence or generation is assigned twice.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::BlockSize;
use forebay_device::{Device, Queue};
use forebay_format::Geometry;
use forebay_lane::Lane;

use crate::damage::Damage;
use crate::error::StoreError;
use crate::lane::StoreLane;
use crate::options::StoreOptions;
use crate::roots::refused;
use crate::store::Store;

mod finish;
mod firsts;
mod image;
mod opening;
mod size;

use opening::Opening;
use size::{hold_memory, table_geometry};

/// Header reads in flight at a time.
const READS: usize = 64;

/// The result of a recovery.
#[derive(Clone, Debug, Default)]
pub struct RecoveryReport {
    /// Whether the last user had stopped in order, so that nothing was replayed.
    pub clean: bool,
    /// Cached blocks; those in the checkpoint, if the index is loaded later.
    pub blocks: u64,
    /// Number of these blocks that are dirty.
    pub dirty: u64,
    /// Records replayed.
    pub records: u64,
    /// Records that had reached the device only in part.
    pub torn: u64,
    /// Bytes read.
    pub bytes_read: u64,
    /// Lost records, as far as this recovery has detected them.
    pub damage: Option<Damage>,
    /// Damaged structures that were restored from their copies without a loss.
    pub notes: Vec<String>,
}

impl Store {
    /// Checks that there is memory for a cache with blocks of this size, before it is formatted.
    /// Nothing is held or written.
    ///
    /// # Errors
    /// The cache needs more memory than there is, or the device is too small.
    pub fn fits(
        device: &Arc<dyn Device>,
        block: BlockSize,
        options: &StoreOptions,
    ) -> Result<(), StoreError> {
        let geometry = Geometry::plan(device.size(), block, device.logical_block(), None)
            .map_err(|cause| StoreError::Format { device: device.name().into(), cause })?;
        let (table, _) = table_geometry(&geometry, options.room_for_blocks, options.shards, None)
            .map_err(|error| refused(device, error))?;
        hold_memory(device, options, &geometry, &table).map(drop)
    }

    /// Opens a cache device for the lanes of one engine; `lane` does the reading. If records are
    /// lost, the volumes that they may have concerned are damaged from now on: see
    /// [`Store::damage_of`].
    ///
    /// # Errors
    /// The device is not a cache device, or fails.
    pub async fn open(
        lane: &Rc<Lane>,
        device: Arc<dyn Device>,
        queue: Queue,
        options: StoreOptions,
    ) -> Result<(Rc<StoreLane>, RecoveryReport), StoreError> {
        let (mut opening, checkpoint) = Opening::begin(lane, device, queue, options).await?;
        let log = opening.read_log(checkpoint).await?;
        let concerned = opening.distrust(&log).await;
        let queues = opening.find_order(&log).await?;
        let parts = opening.assemble(log, queues).await?;
        opening.finish(parts, &concerned).await
    }
}
