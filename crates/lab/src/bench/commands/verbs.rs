//! The commands.

use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use forebay_core::Cancelled;
use forebay_device::{Device, Queue};
use forebay_engine::{BlockService, BlockSet, EngineLane};
use forebay_store::StoreOptions;
use forebay_store::check::{self, CheckOptions};

use super::stage::{BESIDE, Image, LARGE, Stage};
use super::watch::Took;
use crate::error::{LabResult, other};
use crate::progress::Progress;

/// Blocks that a flush writes back before it is ended.
const FLUSHED: u64 = 1 << 20;

/// Blocks between two commits before a crash.
const COMMIT_EVERY: u64 = 1 << 14;

type Rows = LabResult<Vec<(&'static str, Took)>>;

/// An orderly stop before, and a hand-over after.
pub(super) fn orderly(image: &Image) -> Rows {
    let mut stage = Stage::new(image)?;
    let (engine, opened) = stage.open()?;
    stage.start_beside(&engine)?;
    let mut rows = vec![("open after an orderly stop", opened)];
    rows.push(("start", stage.start(&engine, false)?));
    rows.push(("load the index", stage.load(&engine)?));
    rows.push(("show", show(&mut stage, &engine)?));
    rows.push(("flush a million blocks", flush(&mut stage, &engine)?));
    let own = engine.clone();
    let (stopped, took) =
        stage.lane.run("a stop", async move { own.stop_volume(LARGE, false).await })?;
    stopped?;
    rows.push(("stop", took));
    rows.push(("start again", stage.start(&engine, false)?));
    stage.lane.forget(BESIDE);
    let own = engine.clone();
    let (closed, took) = stage.lane.run("a close", async move { own.close().await })?;
    closed?;
    rows.push(("close, as for a hand-over", took));
    Ok(rows)
}

/// As the daemon does for `show`, on a thread of its own.
fn show(stage: &mut Stage, engine: &Rc<EngineLane>) -> LabResult<Took> {
    let (cache, shown) = (engine.cache.clone(), Arc::new(AtomicBool::new(false)));
    let told = shown.clone();
    let counting = thread::spawn(move || {
        let counted = cache.occupancy();
        told.store(true, Ordering::SeqCst);
        counted.len()
    });
    let (_, took) = stage.lane.until("show", || shown.load(Ordering::SeqCst).then_some(()))?;
    match counting.join() {
        Ok(2) => Ok(took),
        _ => Err(other("the volumes could not be counted")),
    }
}

fn flush(stage: &mut Stage, engine: &Rc<EngineLane>) -> LabResult<Took> {
    let own = engine.clone();
    let first = std::cell::Cell::new(None);
    let flushing = async move {
        let enough = |left| {
            let first = first.get().unwrap_or_else(|| {
                first.set(Some(left));
                left
            });
            if first - left >= FLUSHED { Err(Cancelled) } else { Ok(()) }
        };
        own.drain(LARGE, enough).await.is_err()
    };
    match stage.lane.run("a flush", flushing)? {
        (true, took) => Ok(took),
        (false, _) => Err(other("the flush ended by itself")),
    }
}

/// A crash with a log behind the checkpoint.
pub(super) fn crash(image: &Image, log_bytes: u64) -> Rows {
    let (mut stage, engine) = Stage::ready(image)?;
    write(&mut stage, &engine, image.blocks, log_bytes)?;
    drop(engine);
    let mut stage = stage.crashed(image)?;
    let (engine, opened) = stage.open()?;
    let mut rows = vec![("open after a crash", opened)];
    stage.start_beside(&engine)?;
    rows.push(("start after a crash", stage.start(&engine, false)?));
    rows.push(("load the index", stage.load(&engine)?));
    rows.push(("two checkpoints", stage.checkpoint(&engine)?));
    Ok(rows)
}

/// Writes random blocks.
fn write(stage: &mut Stage, engine: &Rc<EngineLane>, blocks: u64, bytes: u64) -> LabResult<()> {
    let target = engine.target(LARGE).ok_or_else(|| other("the volume is not running"))?;
    let (len, mut random) = (stage.block.bytes(), fastrand::Rng::with_seed(5));
    let payload = vec![0x5a; len as usize];
    let progress = Progress::new(bytes / len, "writing");
    for number in 1..=bytes / len {
        let offset = random.u64(0..blocks) * len;
        if target.write_now(offset, &payload).is_none() {
            stage.lane.request(&target, offset, &payload)?;
        }
        if number % 32 == 0 {
            stage.lane.local.turn();
        }
        if number % COMMIT_EVERY == 0 {
            let own = engine.clone();
            let local = &stage.lane.local;
            local.block_on("a commit", async move { own.settle().await })??;
            progress.reach(number);
        }
    }
    Ok(())
}

/// An origin that was written elsewhere.
pub(super) fn changed(image: &Image) -> Rows {
    let mut stage = Stage::new(image)?;
    stage.overwrite_origin();
    let (engine, _) = stage.open()?;
    stage.start_beside(&engine)?;
    let took = stage.start(&engine, true)?;
    Ok(vec![("start on a changed origin", took)])
}

pub(super) fn drop_clean(image: &Image) -> Rows {
    let (mut stage, engine) = Stage::ready(image)?;
    let own = engine.clone();
    let half = BlockSet::from(0..image.blocks * 2 / 3);
    let (evicted, took) = stage
        .lane
        .run("evict", async move { own.forget_clean_of(LARGE, &half, |_| Ok(())).await })?;
    evicted?;
    let mut rows = vec![("evict half of it", took)];
    let (dropped, took) =
        stage.lane.run("drop", async move { engine.forget_clean(LARGE, |_| Ok(())).await })?;
    dropped?;
    rows.push(("drop the other half", took));
    Ok(rows)
}

pub(super) fn delete(image: &Image) -> Rows {
    let (mut stage, engine) = Stage::ready(image)?;
    let deleting = async move { engine.delete(LARGE, true, |_| Ok(()), || Ok(())).await };
    let (deleted, took) = stage.lane.run("delete", deleting)?;
    let _ = deleted?;
    Ok(vec![("delete", took)])
}

pub(super) fn delete_stopped(image: &Image) -> Rows {
    let mut stage = Stage::new(image)?;
    let (engine, _) = stage.open()?;
    stage.start_beside(&engine)?;
    stage.load(&engine)?;
    let deleting = async move { engine.delete_stopped(LARGE, true).await };
    let (deleted, took) = stage.lane.run("delete", deleting)?;
    let _ = deleted?;
    Ok(vec![("delete a stopped volume", took)])
}

/// The offline command, in which no lane serves clients.
pub(super) fn check(image: &Image) -> Rows {
    let mut stage = Stage::new(image)?;
    let (context, lane) = (stage.lane.local.context.clone(), stage.lane.local.lane().clone());
    let device: Arc<dyn Device> = stage.cache.clone();
    let checking = async move {
        let open = |device: &Arc<dyn Device>| Ok(Queue::new(device.open_queue(&context.queues)?));
        let options = CheckOptions {
            open: &open,
            store: StoreOptions::default(),
            quick: true,
            progress: Rc::new(|_, _| ()),
        };
        check::check(&lane, device, options).await
    };
    let (checked, took) = stage.lane.run("check", checking)?;
    let report = checked?;
    if report.blocks != image.blocks || !report.problems.is_empty() {
        return Err(other(format!("the check found {:?}", report.problems)));
    }
    Ok(vec![("check --quick", took)])
}
