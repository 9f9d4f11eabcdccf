//! Opening a store: restores the index to its exact durable state, clean and dirty.
//!
//! 1. superblock and volume table;
//! 2. the checkpoint's segment table; the first header of every segment shows which were opened
//!    since;
//! 3. the checkpoint's entries, except those in segments that were opened again: the versions
//!    that superseded them are in the log;
//! 4. the records after the checkpoint's base: data, then marks;
//! 5. a new checkpoint, before anything else is written. So a crash at any write of recovery
//!    leaves the previous state (invariant 7).
//!
//! Where possible, step 3 is left to the [loader](crate::loader), which applies the changes of step
//! 4 shard by shard. Then step 5 writes a superblock instead of the checkpoint, with this
//! recovery's decisions about the records of step 4: a later recovery must decide alike.
//!
//! The payloads of records that were not yet durable when the last header was written are verified:
//! a block whose payload did not reach the device is dropped whole, and a record whose header did
//! not reach it is dropped with all of its blocks (invariant 4). No durable record may be missing:
//! record numbers are dense. If one is missing, volumes are damaged, see [`damage`](crate::damage).
//!
//! Recovery does not see every record that reached the device: a record may lie behind a page that
//! did not reach it. Such a record must not take effect after the next crash either. So the
//! checkpoint bounds the generations that can follow it, and no number, sequence or generation is
//! assigned twice.

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
    /// Damaged structures that were restored from their copies, so that nothing is lost.
    pub notes: Vec<String>,
}

impl Store {
    /// Checks that there is memory for a cache with blocks of this size, before it is formatted.
    /// Nothing is held or written.
    ///
    /// # Errors
    /// It needs more memory than there is, or the device is too small.
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
