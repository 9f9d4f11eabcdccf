//! A lane with its clients, and the large cache on it.

use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{BlockSize, Mode};
use forebay_device::Device;
use forebay_engine::{EngineLane, Ledger, Note, Noted, Settings, VolumeSpec};
use forebay_format::Uuid;
use forebay_lane::MonotonicClock;
use forebay_store::{FormatOptions, StoreLane, StoreOptions};
use parking_lot::Mutex;

use super::image::{Foreign, behind, fill, origin_bytes};
use super::watch::{Took, WatchedLane};
use crate::bench::device::{MadeDevice, SparseDevice};
use crate::error::{LabResult, other};
use crate::rig::{LocalLane, Plan, VOLUME, build, no_writeback};

/// The volume with nearly all blocks.
pub(super) const LARGE: &str = "large";

/// The neighbour of that volume on the same cache.
pub(super) const BESIDE: &str = "beside";

/// Share of the segments that have blocks, in percent.
const FULL: u64 = 90;

/// Bytes of the neighbours' volumes.
const SMALL: u64 = 64 << 20;

/// The large cache as it was closed.
pub(super) struct Image {
    cache: Arc<MadeDevice>,
    origin: Arc<MadeDevice>,
    beside: Arc<MadeDevice>,
    pub(super) block: BlockSize,
    pub(super) blocks: u64,
}

impl Image {
    /// Makes it.
    pub(super) fn make(cache_bytes: u64, block: BlockSize) -> LabResult<Self> {
        let cache = MadeDevice::new("cache", cache_bytes);
        let origin = MadeDevice::new("origin", origin_bytes(cache_bytes / block.bytes(), block));
        let beside = MadeDevice::new("beside", SMALL);
        let local = LocalLane::new(0, Arc::new(MonotonicClock::new()));
        let context = local.context.clone();
        let (device, large, small) = (cache.clone(), origin.clone(), beside.clone());
        let room = (origin.size() + SMALL) / block.bytes();
        let making = async move {
            let device: Arc<dyn Device> = device;
            let queue = context.open(&device)?;
            let options = FormatOptions { block, segment_bytes: None, uuid: Uuid::from_u128(7) };
            forebay_store::format(&device, &queue, &options).await?;
            let options = StoreOptions { room_for_blocks: room, ..StoreOptions::default() };
            let (engine, _) = EngineLane::open(context, device, options).await?;
            engine.create(spec(LARGE, no_writeback()), large).await?;
            engine.create(spec(BESIDE, no_writeback()), small).await?;
            LabResult::Ok(engine)
        };
        let engine = local.block_on("making a cache", making)??;
        let store = engine.cache.store.clone();
        let volume = engine.target(LARGE).ok_or_else(|| other("the volume is not running"))?;
        let space =
            store.space_of(volume.volume().id).ok_or_else(|| other("the volume has no blocks"))?;
        let headers = fill(&store, &space, FULL)?;
        let blocks = headers.count;
        let closing = engine.clone();
        local.block_on("closing the cache", async move { closing.close().await })??;
        local.lane().abandon();
        let cache = cache.fork(Some(behind(headers)));
        Ok(Image { cache, origin, beside, block, blocks })
    }
}

fn spec(name: &str, settings: Settings) -> VolumeSpec {
    let uuid = Uuid::from_u128(name.len() as u128);
    let settings = Settings { mode: Mode::Writeback, ..settings };
    VolumeSpec { name: name.into(), origin: name.into(), uuid, alignment: 0, settings }
}

/// Keeps notes in memory.
#[derive(Default)]
struct Notes(Mutex<std::collections::HashMap<String, Note>>);

impl Ledger for Notes {
    fn note_of(&self, volume: &str) -> Option<Note> {
        self.0.lock().get(volume).cloned()
    }

    fn write(&self, volume: &str, note: Note, noted: Noted) {
        self.0.lock().insert(volume.to_owned(), note);
        noted(Ok(()));
    }
}

/// A lane with a small cache and its client, and a copy of the large cache that is not open yet.
pub(super) struct Stage {
    pub(super) lane: WatchedLane,
    pub(super) cache: Arc<MadeDevice>,
    origin: Arc<MadeDevice>,
    beside: Arc<MadeDevice>,
    pub(super) block: BlockSize,
    _near: Rc<EngineLane>,
}

impl Stage {
    pub(super) fn new(image: &Image) -> LabResult<Self> {
        let local = LocalLane::new(0, Arc::new(MonotonicClock::new()));
        let (cache, origin) =
            (SparseDevice::new("near", 256 << 20), SparseDevice::new("near origin", SMALL));
        let near = build(local.context.clone(), Plan::new(cache, origin, no_writeback()));
        let near = local.block_on("making a cache", near)??;
        let mut lane = WatchedLane::new(local);
        lane.client(&near, VOLUME, SMALL, 4096);
        Ok(Stage {
            lane,
            cache: image.cache.fork(None),
            origin: image.origin.fork(None),
            beside: image.beside.fork(None),
            block: image.block,
            _near: near,
        })
    }

    /// Makes a stage on another lane with the devices as a crash leaves them.
    pub(super) fn crashed(self, image: &Image) -> LabResult<Self> {
        let mut next = Stage::new(image)?;
        (next.cache, next.origin, next.beside) =
            (self.cache.clone(), self.origin.clone(), self.beside.clone());
        Ok(next)
    }

    /// Another program writes to all of the origin.
    pub(super) fn overwrite_origin(&mut self) {
        self.origin = self.origin.fork(Some(Arc::new(Foreign)));
    }

    /// Opens the cache.
    pub(super) fn open(&mut self) -> LabResult<(Rc<EngineLane>, Took)> {
        let (context, cache) = (self.lane.local.context.clone(), self.cache.clone());
        let opening = EngineLane::open(context, cache, StoreOptions::default());
        let (opened, took) = self.lane.run("opening a cache", opening)?;
        let (engine, _) = opened?;
        engine.cache.set_ledger(Arc::new(Notes::default()));
        Ok((engine, took))
    }

    /// Starts the neighbour on the large cache, and has a client use it.
    pub(super) fn start_beside(&mut self, engine: &Rc<EngineLane>) -> LabResult<()> {
        let (own, origin) = (engine.clone(), self.beside.clone());
        let starting = async move { own.attach(BESIDE, origin, false).await.map(drop) };
        self.lane.run("starting a volume", starting)?.0?;
        self.lane.client(engine, BESIDE, SMALL, self.block.bytes());
        Ok(())
    }

    /// Starts the large volume.
    pub(super) fn start(&mut self, engine: &Rc<EngineLane>, force: bool) -> LabResult<Took> {
        let (own, origin) = (engine.clone(), self.origin.clone());
        let starting = async move { own.attach(LARGE, origin, force).await.map(drop) };
        let (started, took) = self.lane.run("starting a volume", starting)?;
        started?;
        Ok(took)
    }

    /// Waits until the whole index is loaded.
    pub(super) fn load(&mut self, engine: &Rc<EngineLane>) -> LabResult<Took> {
        let store = engine.cache.store.clone();
        match self.lane.run("loading", async move { store.loaded().await })? {
            (true, took) => Ok(took),
            (false, _) => Err(other("the index cannot be loaded")),
        }
    }

    /// Writes a checkpoint, after one that is under way.
    pub(super) fn checkpoint(&mut self, engine: &Rc<EngineLane>) -> LabResult<Took> {
        let (store, context) = (engine.cache.store.clone(), &self.lane.local.context);
        let queue = context.open(store.device())?;
        let store = StoreLane::new(store, context.lane.clone(), queue);
        let (written, took) =
            self.lane.run("a checkpoint", async move { store.checkpoint(false).await })?;
        written?;
        Ok(took)
    }

    /// Opens the cache, starts both volumes and loads the index.
    pub(super) fn ready(image: &Image) -> LabResult<(Self, Rc<EngineLane>)> {
        let mut stage = Stage::new(image)?;
        let (engine, _) = stage.open()?;
        stage.start_beside(&engine)?;
        stage.start(&engine, false)?;
        stage.load(&engine)?;
        Ok((stage, engine))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        // Tasks refer to their lane, so they would keep each other alive.
        self.lane.local.lane().abandon();
    }
}
