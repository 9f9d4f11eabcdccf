//! The engine on RAM devices, driven from one thread: data paths, modes, recovery.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Clock, Durability, Mode, Nanos, Op};
use forebay_device::{Device, IoBuf, Queue, QueueContext, RamDevice};
use forebay_engine::{
    Completion, CompletionSink, EngineLane, LaneContext, LaneVolume, Request, Target,
    VolumeSettings, VolumeSpec,
};
use forebay_format::Uuid;
use forebay_lane::{Lane, LaneId};
use forebay_store::{FormatOptions, RecoveryReport, StoreOptions};
use parking_lot::Mutex;

struct Manual(Mutex<u64>);

impl Clock for Manual {
    fn now(&self) -> Nanos {
        Nanos(*self.0.lock())
    }
}

#[derive(Default)]
struct Sink(RefCell<HashMap<u64, Completion>>);

impl CompletionSink for Sink {
    fn complete(&self, completion: Completion) {
        assert!(
            self.0.borrow_mut().insert(completion.tag, completion).is_none(),
            "completed twice"
        );
    }
}

struct World {
    clock: Arc<Manual>,
    lane: Rc<Lane>,
    context: LaneContext,
    sink: Rc<Sink>,
    tag: std::cell::Cell<u64>,
}

impl World {
    fn new() -> Self {
        let clock = Arc::new(Manual(Mutex::new(1)));
        let lane = Lane::new(LaneId(0), clock.clone(), || ());
        let queues = Rc::new(QueueContext { clock: clock.clone(), ring: None });
        let context = LaneContext { lane: lane.clone(), queues, register: Rc::new(|_: &Queue| ()) };
        World { clock, lane, context, sink: Rc::default(), tag: 0.into() }
    }

    /// Runs until `done` gives something; time advances when nothing else is to be done.
    fn run<T>(&self, mut done: impl FnMut() -> Option<T>) -> T {
        for _ in 0..1_000_000 {
            if let Some(result) = done() {
                return result;
            }
            if !self.lane.run_ready() {
                let mut now = self.clock.0.lock();
                *now = self.lane.next_deadline().map_or(*now + 1_000_000, |at| at.0.max(*now));
            }
        }
        panic!("nothing happens any more");
    }

    fn block_on<T: 'static>(&self, future: impl Future<Output = T> + 'static) -> T {
        let result = Rc::new(RefCell::new(None));
        let inner = result.clone();
        self.lane.spawn(async move {
            let output = future.await;
            *inner.borrow_mut() = Some(output);
        });
        self.run(|| result.borrow_mut().take())
    }

    fn advance(&self, time: Duration) {
        let end = self.lane.now() + time;
        self.run(|| (self.lane.now() >= end).then_some(()));
    }

    fn format(&self, device: &Arc<dyn Device>, block: BlockSize) {
        let queue = self.context.open(device).expect("a queue");
        let device = device.clone();
        let options = FormatOptions { block, segment_bytes: None, uuid: Uuid::from_u128(7) };
        self.block_on(async move { forebay_store::format(&device, &queue, &options).await })
            .expect("formatted");
    }

    fn open(&self, device: &Arc<dyn Device>) -> (Rc<EngineLane>, RecoveryReport) {
        let (context, device) = (self.context.clone(), device.clone());
        self.block_on(
            async move { EngineLane::open(context, device, StoreOptions::default()).await },
        )
        .expect("opened")
    }

    fn create(
        &self,
        engine: &Rc<EngineLane>,
        origin: &Arc<dyn Device>,
        settings: VolumeSettings,
        alignment: u64,
    ) -> Rc<LaneVolume> {
        let (engine, origin) = (engine.clone(), origin.clone());
        let spec = VolumeSpec {
            name: "data".into(),
            origin: "ram".into(),
            uuid: Uuid::from_u128(9),
            alignment,
            settings,
        };
        let inner = engine.clone();
        self.block_on(async move { inner.create(spec, origin).await }).expect("created");
        engine.target("data").expect("a target")
    }

    fn attach(&self, engine: &Rc<EngineLane>, origin: &Arc<dyn Device>) -> Rc<LaneVolume> {
        let (inner, origin) = (engine.clone(), origin.clone());
        self.block_on(async move { inner.attach("data", origin, false).await }).expect("attached");
        engine.target("data").expect("a target")
    }

    fn submit(
        &self,
        target: &Rc<LaneVolume>,
        op: Op,
        offset: u64,
        len: u64,
        data: Option<&[u8]>,
    ) -> u64 {
        let tag = self.tag.get();
        self.tag.set(tag + 1);
        let data = data.map(IoBuf::copy_from);
        let request = Request { tag, op, offset, len, fua: false, fast: false, data };
        let sink: Rc<dyn CompletionSink> = self.sink.clone();
        target.submit(request, &sink);
        tag
    }

    fn wait(&self, tag: u64) -> Completion {
        self.run(|| self.sink.0.borrow_mut().remove(&tag))
    }

    fn write(&self, target: &Rc<LaneVolume>, offset: u64, data: &[u8]) {
        let tag = self.submit(target, Op::Write, offset, data.len() as u64, Some(data));
        self.wait(tag).result.expect("written");
    }

    fn read(&self, target: &Rc<LaneVolume>, offset: u64, len: usize) -> Vec<u8> {
        let tag = self.submit(target, Op::Read, offset, len as u64, None);
        let completion = self.wait(tag);
        completion.result.expect("read");
        completion.data.expect("data").to_vec()
    }

    fn op(&self, target: &Rc<LaneVolume>, op: Op, offset: u64, len: u64) {
        let tag = self.submit(target, op, offset, len, None);
        self.wait(tag).result.expect("done");
    }
}

fn ram(mib: u64) -> Arc<dyn Device> {
    RamDevice::new(&format!("ram:{mib}M"), mib << 20).expect("memory")
}

fn raw(world: &World, device: &Arc<dyn Device>, offset: u64, len: usize) -> Vec<u8> {
    let queue = world.context.open(device).expect("a queue");
    world
        .block_on(async move { queue.read(offset, IoBuf::zeroed(len)).await })
        .expect("read")
        .to_vec()
}

fn settings(mode: Mode) -> VolumeSettings {
    VolumeSettings { mode, sequential_cutoff: 0, ..VolumeSettings::default() }
}

/// A model volume beside the real one.
fn exercise(
    world: &World,
    target: &Rc<LaneVolume>,
    model: &mut [u8],
    rng: &mut fastrand::Rng,
    steps: usize,
) {
    let sectors = (model.len() / 512) as u64;
    for step in 0..steps {
        let first = rng.u64(0..sectors);
        let most = if rng.bool() { 8 } else { 300 };
        let count = rng.u64(1..=(sectors - first).min(most));
        let (offset, len) = (first * 512, (count * 512) as usize);
        let range = offset as usize..offset as usize + len;
        match rng.u32(0..100) {
            0..45 => {
                let data = vec![rng.u8(1..); len];
                world.write(target, offset, &data);
                model[range].copy_from_slice(&data);
            }
            45..90 => {
                let data = world.read(target, offset, len);
                assert!(data == model[range], "step {step}: {len} bytes at {offset} differ");
            }
            90..94 => {
                world.op(target, Op::WriteZeroes, offset, len as u64);
                model[range].fill(0);
            }
            94..96 => world.op(target, Op::Prefetch, offset, len as u64),
            96..98 => world.op(target, Op::Flush, 0, 0),
            _ => world.advance(Duration::from_millis(rng.u64(1..3000))),
        }
    }
}

fn verify(world: &World, target: &Rc<LaneVolume>, model: &[u8]) {
    for (number, chunk) in model.chunks(128 << 10).enumerate() {
        let data = world.read(target, (number * (128 << 10)) as u64, chunk.len());
        for (sector, (got, expected)) in data.chunks(512).zip(chunk.chunks(512)).enumerate() {
            assert!(
                got == expected,
                "sector {} differs: {} instead of {}",
                number * 256 + sector,
                got[0],
                expected[0]
            );
        }
    }
}

#[test]
fn every_mode_and_block_size_returns_what_was_written() {
    for mode in Mode::ALL {
        for (block, cache_mib, alignment) in
            [(2048, 8, 512), (4096, 8, 0), (4096, 8, 512), (65536, 24, 1024), (1 << 20, 160, 0)]
        {
            for durability in Durability::ALL {
                let world = World::new();
                let (cache, origin) = (ram(cache_mib), ram(12));
                world.format(&cache, BlockSize::new(block).expect("valid"));
                let (engine, _) = world.open(&cache);
                let settings = VolumeSettings { durability: *durability, ..settings(*mode) };
                let target = world.create(&engine, &origin, settings, alignment);
                let mut model = vec![0u8; target.size() as usize];
                let mut rng = fastrand::Rng::with_seed(block + cache_mib);
                exercise(&world, &target, &mut model, &mut rng, 150);
                verify(&world, &target, &model);
                let inner = engine.clone();
                world.block_on(async move { inner.drain("data", |_| ()).await }).expect("drained");
                assert!(
                    raw(&world, &origin, 0, model.len()) == model,
                    "{mode} {block}: the origin differs"
                );
                world.block_on(async move { engine.close().await }).expect("closed");
            }
        }
    }
}

#[test]
fn data_survives_an_orderly_stop_and_a_sudden_end() {
    for sudden in [false, true] {
        let (cache, origin) = (ram(8), ram(12));
        let mut model = vec![0u8; 12 << 20];
        let mut rng = fastrand::Rng::with_seed(3);
        for round in 0..6 {
            let world = World::new();
            let target;
            let engine;
            if round == 0 {
                world.format(&cache, BlockSize::DEFAULT);
                engine = world.open(&cache).0;
                target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
            } else {
                let (opened, report) = world.open(&cache);
                engine = opened;
                assert_eq!(report.clean, !sudden, "round {round}");
                assert!(report.blocks > 0, "the cache is cold");
                target = world.attach(&engine, &origin);
            }
            verify(&world, &target, &model);
            exercise(&world, &target, &mut model, &mut rng, 200);
            world.op(&target, Op::Flush, 0, 0);
            if sudden {
                world.lane.abandon();
            } else {
                let inner = engine.clone();
                world.block_on(async move { inner.close().await }).expect("closed");
            }
        }
    }
}

#[test]
fn switching_modes_keeps_every_byte() {
    let world = World::new();
    let (cache, origin) = (ram(8), ram(12));
    world.format(&cache, BlockSize::DEFAULT);
    let (engine, _) = world.open(&cache);
    let target = world.create(&engine, &origin, settings(Mode::Writeback), 0);
    let mut model = vec![0u8; 12 << 20];
    let mut rng = fastrand::Rng::with_seed(5);
    for round in 0..20 {
        exercise(&world, &target, &mut model, &mut rng, 60);
        let next = settings(Mode::ALL[round % Mode::ALL.len()]);
        let inner = engine.clone();
        world.block_on(async move { inner.set("data", next).await }).expect("set");
    }
    verify(&world, &target, &model);
    let inner = engine.clone();
    world.block_on(async move { inner.delete("data", false, |_| ()).await }).expect("deleted");
    assert!(raw(&world, &origin, 0, model.len()) == model);
    assert_eq!(engine.cache.store.index.len(), 0);
}
