//! Checks the content after a power cut: opens a cache with it, and reads everything.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

use forebay_core::Op;
use forebay_engine::{BlockService, CompletionSink, EngineErrorKind, EngineLane, Note};
use forebay_lane::MonotonicClock;
use forebay_store::StoreOptions;
use parking_lot::RwLock;

use crate::client::{SECTORS, Sink, request};
use crate::disk::{Book, Disk, Nature, Power};
use crate::model::SectorModel;
use crate::own_lane::{OwnLane, PATIENCE, VOLUME};
use crate::plan::Plan;
use crate::stamp::Sequence;

/// Number of blocks per read.
const RUN: u64 = 16;

/// The content after a power cut, and the data that it must contain.
pub(crate) struct Cut {
    pub(crate) cache: Vec<u8>,
    pub(crate) origin: Vec<u8>,
    pub(crate) notes: HashMap<String, Note>,
    pub(crate) durable: Vec<Sequence>,
}

/// Opens the content after a power cut with devices that work, and checks that every sector
/// contains at least the durable data.
pub(crate) fn check_cut(plan: &Plan, cut: Cut, model: &Arc<SectorModel>) {
    model.counts.cuts.fetch_add(1, Ordering::Relaxed);
    let power: Power = Arc::new(RwLock::new(()));
    let nature = |of: Nature| Nature { reads_at_once: true, turns: 0, ..of };
    let cache = Disk::new("cache", cut.cache, nature(plan.cache), &power);
    let origin = Disk::new("origin", cut.origin, nature(plan.origin), &power);
    let book = Book::new(cut.notes, &power);
    let own = OwnLane::new(0, Arc::new(MonotonicClock::new()));
    // After every other cut, the index is loaded only after the cache is opened.
    let later = model.counts.cuts.load(Ordering::Relaxed).is_multiple_of(2);
    let options = StoreOptions {
        shards: plan.shards,
        load_later_from: if later { 1 } else { u64::MAX },
        ..StoreOptions::default()
    };
    let (context, device, behind) = (own.context.clone(), cache.device(), origin.device());
    let may_lose = model.fails;
    let opened = own.block_on(async move {
        let (engine, _) = EngineLane::open(context, device, options).await?;
        engine.cache.set_ledger(book);
        match engine.attach(VOLUME, behind.clone(), false).await {
            // Writes that were not flushed may be lost if a device has failed.
            Err(error) if may_lose && error.kind == EngineErrorKind::DataAtRisk => {
                engine.attach(VOLUME, behind, true).await?;
            }
            attached => _ = attached?,
        }
        Ok::<Rc<EngineLane>, forebay_engine::EngineError>(engine)
    });
    match opened {
        None => model.violated("after a power cut the cache is not opened".to_owned()),
        Some(Err(error)) => model.violated(format!("after a power cut: {error}")),
        Some(Ok(engine)) => read_all(plan, &engine, &own, &cut.durable, model),
    }
    own.context.lane.abandon();
}

fn read_all(
    plan: &Plan,
    engine: &EngineLane,
    own: &OwnLane,
    durable: &[Sequence],
    model: &SectorModel,
) {
    let Some(volume) = engine.target(VOLUME) else {
        return model.violated("after a power cut the volume does not run".to_owned());
    };
    let sink = Rc::new(Sink(RefCell::default()));
    let into: Rc<dyn CompletionSink> = sink.clone();
    for block in (0..plan.blocks).step_by(RUN as usize) {
        let sectors = block * SECTORS..(block + RUN).min(plan.blocks) * SECTORS;
        volume.submit(request(block, Op::Read, sectors.clone(), None), &into);
        let began = Instant::now();
        let completion = loop {
            if let Some(completion) = sink.0.borrow_mut().pop() {
                break completion;
            }
            if began.elapsed() > PATIENCE {
                return model.violated("after a power cut a read is not answered".to_owned());
            }
            own.context.lane.run_ready();
        };
        let least = &durable[sectors.start as usize..sectors.end as usize];
        match (completion.result, completion.data) {
            (Ok(()), Some(data)) => model.check(sectors.start, &data, least, "after a power cut"),
            (result, _) => {
                model.violated(format!("after a power cut {sectors:?} cannot be read: {result:?}"));
            }
        }
        if model.violation().is_some() {
            return;
        }
    }
}
