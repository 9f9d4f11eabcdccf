//! One cache and one volume on a lane that the test drives, with its own clock.
#![allow(dead_code, unreachable_pub, reason = "each test program uses a part of it")]

pub mod two;

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::ops::Deref;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use forebay_core::{BlockSize, IoError, Mode, Op, Survives};
use forebay_device::{Device, IoBuf};
use forebay_engine::{
    BlockService, Completion, CompletionSink, EngineError, EngineLane, LaneContext, LaneVolume,
    Ledger, LedgerError, Note, Noted, Request, Settings, VolumeSpec,
};
use forebay_format::Uuid;
use forebay_store::{FormatOptions, RecoveryReport, StoreOptions};
use forebay_testkit::LaneWorld;
use parking_lot::Mutex;

#[derive(Default)]
pub struct Sink(RefCell<HashMap<u64, Completion>>);

impl CompletionSink for Sink {
    fn complete(&self, completion: Completion) {
        assert!(
            self.0.borrow_mut().insert(completion.tag, completion).is_none(),
            "completed twice"
        );
    }
}

/// A ledger in RAM, and whether its notes are unreadable.
#[derive(Default)]
pub struct Book(pub Mutex<HashMap<String, Note>>, pub AtomicBool);

impl Ledger for Book {
    fn note_of(&self, volume: &str) -> Option<Note> {
        self.0.lock().get(volume).filter(|_| !self.1.load(Ordering::SeqCst)).cloned()
    }

    fn read(&self, volume: &str) -> Result<Option<Note>, LedgerError> {
        match self.1.load(Ordering::SeqCst) {
            true => Err(LedgerError::Unreadable("torn".into())),
            false => Ok(self.note_of(volume)),
        }
    }

    fn write(&self, volume: &str, note: Note, noted: Noted) {
        self.0.lock().insert(volume.to_owned(), note);
        noted(Ok(()));
    }
}

pub struct World {
    base: LaneWorld,
    pub context: LaneContext,
    pub sink: Rc<Sink>,
    tag: Cell<u64>,
}

impl Deref for World {
    type Target = LaneWorld;

    fn deref(&self) -> &LaneWorld {
        &self.base
    }
}

impl World {
    pub fn new() -> Self {
        let base = LaneWorld::new();
        let (lane, queues) = (base.lane.clone(), base.queues.clone());
        let context = LaneContext { lane, queues, register: Rc::new(|_| ()) };
        World { base, context, sink: Rc::default(), tag: Cell::new(0) }
    }

    pub fn format(&self, device: &Arc<dyn Device>, block: BlockSize) {
        self.format_with(device, block, None);
    }

    pub fn format_with(
        &self,
        device: &Arc<dyn Device>,
        block: BlockSize,
        segment_bytes: Option<u64>,
    ) {
        let queue = self.queue(device);
        let device = device.clone();
        let options = FormatOptions { block, segment_bytes, uuid: Uuid::from_u128(7) };
        self.block_on(async move { forebay_store::format(&device, &queue, &options).await })
            .expect("formatted");
    }

    /// Formats a cache and opens it.
    pub fn new_cache(&self, device: &Arc<dyn Device>, block: BlockSize) -> Rc<EngineLane> {
        self.format(device, block);
        self.open(device).0
    }

    pub fn open(&self, device: &Arc<dyn Device>) -> (Rc<EngineLane>, RecoveryReport) {
        self.open_with(device, StoreOptions::default())
    }

    pub fn open_with(
        &self,
        device: &Arc<dyn Device>,
        options: StoreOptions,
    ) -> (Rc<EngineLane>, RecoveryReport) {
        let (context, device) = (self.context.clone(), device.clone());
        self.block_on(async move { EngineLane::open(context, device, options).await })
            .expect("opened")
    }

    pub fn create(
        &self,
        engine: &Rc<EngineLane>,
        origin: &Arc<dyn Device>,
        settings: Settings,
        alignment: u64,
    ) -> Rc<LaneVolume> {
        self.create_as(engine, "data", origin, settings, alignment)
    }

    pub fn create_as(
        &self,
        engine: &Rc<EngineLane>,
        name: &str,
        origin: &Arc<dyn Device>,
        settings: Settings,
        alignment: u64,
    ) -> Rc<LaneVolume> {
        let (inner, origin) = (engine.clone(), origin.clone());
        let spec = VolumeSpec {
            name: name.into(),
            origin: "ram".into(),
            uuid: Uuid::from_u128(9 + u128::from(name.as_bytes()[0])),
            alignment,
            settings,
        };
        self.block_on(async move { inner.create(spec, origin).await }).expect("created");
        engine.target(name).expect("a target")
    }

    pub fn attach(&self, engine: &Rc<EngineLane>, origin: &Arc<dyn Device>) -> Rc<LaneVolume> {
        self.attach_as(engine, "data", origin)
    }

    pub fn attach_as(
        &self,
        engine: &Rc<EngineLane>,
        name: &'static str,
        origin: &Arc<dyn Device>,
    ) -> Rc<LaneVolume> {
        let (inner, origin) = (engine.clone(), origin.clone());
        self.block_on(async move { inner.attach(name, origin, false).await }).expect("attached");
        engine.target(name).expect("a target")
    }

    /// Starts the volume; returns the error if that is refused.
    pub fn try_attach(
        &self,
        engine: &Rc<EngineLane>,
        origin: &Arc<dyn Device>,
        force: bool,
    ) -> Result<Rc<LaneVolume>, EngineError> {
        let (inner, origin) = (engine.clone(), origin.clone());
        self.block_on(async move { inner.attach("data", origin, force).await.map(drop) })?;
        Ok(engine.target("data").expect("a target"))
    }

    pub fn submit(
        &self,
        target: &Rc<LaneVolume>,
        op: Op,
        offset: u64,
        len: u64,
        data: Option<&[u8]>,
    ) -> u64 {
        let data = data.map(IoBuf::copy_from);
        let (tag, survives, fast, no_hole) = (0, Survives::Nothing, false, false);
        self.submit_as(target, Request { tag, op, offset, len, survives, fast, no_hole, data })
    }

    /// Submits a request with a new tag, otherwise unchanged.
    pub fn submit_as(&self, target: &Rc<LaneVolume>, request: Request) -> u64 {
        let tag = self.tag.get();
        self.tag.set(tag + 1);
        let sink: Rc<dyn CompletionSink> = self.sink.clone();
        target.submit(Request { tag, ..request }, &sink);
        tag
    }

    /// Returns the completion of a request, if it has ended.
    pub fn done(&self, tag: u64) -> Option<Completion> {
        self.sink.0.borrow_mut().remove(&tag)
    }

    pub fn wait(&self, tag: u64) -> Completion {
        self.run(|| self.done(tag))
    }

    /// Returns the completion of a request, or `None` if it takes longer than `time`.
    pub fn wait_for(&self, tag: u64, time: Duration) -> Option<Completion> {
        let end = self.lane.now() + time;
        self.run(|| match self.done(tag) {
            None => (self.lane.now() > end).then_some(None),
            done => Some(done),
        })
    }

    /// Submits a request, waits for it, and returns its result.
    pub fn outcome(
        &self,
        target: &Rc<LaneVolume>,
        op: Op,
        offset: u64,
        len: u64,
        data: Option<&[u8]>,
    ) -> Result<(), IoError> {
        self.wait(self.submit(target, op, offset, len, data)).result
    }

    pub fn write(&self, target: &Rc<LaneVolume>, offset: u64, data: &[u8]) {
        let len = data.len() as u64;
        self.outcome(target, Op::Write, offset, len, Some(data)).expect("written");
    }

    pub fn try_read(
        &self,
        target: &Rc<LaneVolume>,
        offset: u64,
        len: usize,
    ) -> Result<Vec<u8>, IoError> {
        let done = self.wait(self.submit(target, Op::Read, offset, len as u64, None));
        done.result.map(|()| done.data.expect("data").to_vec())
    }

    pub fn read(&self, target: &Rc<LaneVolume>, offset: u64, len: usize) -> Vec<u8> {
        self.try_read(target, offset, len).expect("read")
    }

    pub fn op(&self, target: &Rc<LaneVolume>, op: Op, offset: u64, len: u64) {
        self.outcome(target, op, offset, len, None).expect("done");
    }

    pub fn set(&self, engine: &Rc<EngineLane>, settings: Settings) -> Result<(), EngineError> {
        self.set_as(engine, "data", settings)
    }

    pub fn set_as(
        &self,
        engine: &Rc<EngineLane>,
        name: &'static str,
        settings: Settings,
    ) -> Result<(), EngineError> {
        let engine = engine.clone();
        self.block_on(async move { engine.set(name, settings).await })
    }

    pub fn drain(&self, engine: &Rc<EngineLane>) -> Result<(), EngineError> {
        self.drain_as(engine, "data")
    }

    pub fn drain_as(&self, engine: &Rc<EngineLane>, name: &'static str) -> Result<(), EngineError> {
        let engine = engine.clone();
        self.block_on(async move { engine.drain(name, |_| Ok(())).await })
    }

    pub fn stop(&self, engine: &Rc<EngineLane>, name: &'static str) -> Result<(), EngineError> {
        let engine = engine.clone();
        self.block_on(async move { engine.stop_volume(name, true).await })
    }

    pub fn close(&self, engine: &Rc<EngineLane>) -> Result<(), EngineError> {
        let engine = engine.clone();
        self.block_on(async move { engine.close().await })
    }
}

pub fn settings(mode: Mode) -> Settings {
    Settings { mode, sequential_cutoff: 0, ..Settings::default() }
}
