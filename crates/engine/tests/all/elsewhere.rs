//! An origin that was written by others while its volume was stopped, at places without samples.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::{BlockSize, Mode, Op};
use forebay_device::Device;
use forebay_engine::{EngineError, EngineErrorKind, EngineLane, Sign, Verdict, Volume};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::volume::samples::sample_places;
use forebay_format::{PAGE, Superblock, record};
use forebay_testkit::{peek, poke, ram, with_evidence};

use crate::world::{World, settings};

const SIZE: u64 = 48 << 20;
/// A page that no sample covers.
const PLACE: u64 = (5 << 20) + (64 << 10);
/// Another page without a sample. If a test has a dirty page, it is this one.
const DIRTY: u64 = 7 << 20;

const WAS: &str = "file 1 7 50331648 100 100";

/// A cache device and the disk of its volume.
struct Pair {
    cache: Arc<dyn Device>,
    disk: Arc<dyn Device>,
}

impl Pair {
    /// Creates a volume that has cached data around [`PLACE`], with a dirty block if `dirty`, in a
    /// process that ended in order or crashed.
    fn used(evidence: &str, dirty: bool, orderly: bool) -> Pair {
        for place in [PLACE, DIRTY] {
            assert!(sample_places(SIZE).iter().all(|sample| sample.abs_diff(place) > 64 << 10));
        }
        let world = World::new();
        let pair = Pair { cache: ram(16), disk: ram(SIZE >> 20) };
        let engine = world.new_cache(&pair.cache, BlockSize::DEFAULT);
        let mut settings = settings(Mode::Writeback);
        settings.writeback_running = false;
        let target = world.create(&engine, &pair.as_(evidence), settings, 0);
        world.read(&target, PLACE - (256 << 10), 512 << 10);
        if dirty {
            world.write(&target, DIRTY, &[7; 4096]);
        }
        world.op(&target, Op::Flush, 0, 0);
        // A flush does not make fills durable; here they must survive a crash.
        let inner = engine.clone();
        world.block_on(async move { inner.settle().await }).expect("settled");
        match orderly {
            true => world.close(&engine).expect("closed"),
            false => world.lane.abandon(),
        }
        pair
    }

    fn as_(&self, evidence: &str) -> Arc<dyn Device> {
        with_evidence(&self.disk, Some("A"), evidence)
    }

    /// Starts the volume, with a comparison of all blocks if `verify`.
    fn start(
        &self,
        evidence: &str,
        force: bool,
        verify: bool,
    ) -> Result<(World, Rc<EngineLane>, Arc<Volume>), EngineError> {
        let world = World::new();
        let (engine, _) = world.open(&self.cache);
        let (inner, origin) = (engine.clone(), self.as_(evidence));
        let started = world.block_on(async move {
            let seen = Cell::new((0, 0));
            let on_verify = |done, all| {
                assert!(done >= seen.get().0 && done <= all);
                seen.set((done, all));
                true
            };
            let on_verify: Option<forebay_engine::OnVerify<'_>> =
                if verify { Some(&on_verify) } else { None };
            let started = inner.attach_verified("data", origin, force, on_verify).await;
            assert_eq!(verify, seen.get().1 > 0);
            started
        });
        started.map(|volume| (world, engine, volume))
    }
}

fn content(world: &World, engine: &Rc<EngineLane>, place: u64) -> Vec<u8> {
    world.read(&engine.target("data").expect("attached"), place, 4096)
}

/// If these blocks were dirty again, they could not be compared, and would overwrite writes of
/// others.
#[test]
fn drained_blocks_are_clean_after_a_crash() {
    let (world, pair) = (World::new(), Pair { cache: ram(16), disk: ram(SIZE >> 20) });
    let engine = world.new_cache(&pair.cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &pair.as_(WAS), settings(Mode::Writeback), 0);
    world.write(&target, PLACE, &[7; 4096]);
    world.drain(&engine).expect("drained");
    world.lane.abandon();
    poke(&pair.disk, PLACE, &[9; 4096]);
    let (world, engine, volume) = pair.start(WAS, false, false).expect("nothing is dirty");
    assert_eq!(volume.dirty_blocks(), 0);
    assert_eq!(content(&world, &engine, PLACE), [9; 4096]);
}

#[test]
fn evidence_reveals_writes_that_no_sample_covers() {
    let changed = Verdict::Changed(Sign::System("its file was modified"));
    for (now, verdict) in [
        (WAS, Verdict::Same),
        ("file 1 7 50331648 101 101", changed.clone()),
        ("file 0 7 50331648 101 101", changed),
        ("file 1 7 50331648 100 101", Verdict::Unclear("attributes of its file were changed")),
        ("file 1 8 50331648 101 101", Verdict::Unclear("it is another file")),
        ("", Verdict::Unclear("its system tells of no writes")),
    ] {
        let was_changed = matches!(verdict, Verdict::Changed(_));
        let pair = Pair::used(WAS, false, true);
        if was_changed {
            poke(&pair.disk, PLACE, &[0x55; 512]);
        }
        let (world, engine, volume) = pair.start(now, false, false).expect("nothing is dirty");
        let check = volume.checked.get().expect("known");
        assert_eq!((&check.verdict, check.dropped > 0), (&verdict, was_changed), "{now}");
        // The content is compared only in case of doubt.
        assert_eq!(check.compared > 0, matches!(verdict, Verdict::Unclear(_)), "{now}");
        let first = if was_changed { 0x55 } else { 0 };
        assert_eq!(content(&world, &engine, PLACE)[0], first, "{now}");

        let pair = Pair::used(WAS, true, true);
        let started = pair.start(now, false, false).map(drop).map_err(|error| error.kind);
        assert_eq!(started.err(), was_changed.then_some(EngineErrorKind::DataAtRisk), "{now}");
    }
}

#[test]
fn evidence_counts_for_one_stop_only() {
    let pair = Pair::used(WAS, true, true);
    let (world, engine, _) = pair.start(WAS, false, false).expect("unchanged");
    // A crash: our own writes may have changed the file since.
    world.lane.abandon();
    drop(engine);
    let now = "file 1 7 50331648 150 150";
    let (world, engine, volume) = pair.start(now, false, false).expect("its own writes");
    assert!(matches!(volume.checked.get().expect("known").verdict, Verdict::Unclear(_)));
    world.close(&engine).expect("closed");
    assert!(
        matches!(pair.start(WAS, false, false).map(drop), Err(error) if error.kind == EngineErrorKind::DataAtRisk)
    );
    pair.start(now, false, false).expect("unchanged");
}

#[test]
fn where_the_system_tells_nothing_recent_blocks_do() {
    for orderly in [true, false] {
        let pair = Pair::used("", false, orderly);
        poke(&pair.disk, PLACE, &[0x55; 512]);
        let (world, engine, volume) = pair.start("", false, false).expect("nothing is dirty");
        let check = volume.checked.get().expect("known");
        let sign = Sign::Blocks { after_crash: !orderly };
        assert_eq!((&check.verdict, check.differing), (&Verdict::Changed(sign), 1));
        assert!(check.dropped > 100, "all blocks: others may differ too");
        assert_eq!(content(&world, &engine, PLACE)[..513], [&[0x55; 512][..], &[0]].concat());

        let pair = Pair::used("", true, orderly);
        poke(&pair.disk, PLACE, &[0x55; 512]);
        let refused = pair.start("", false, false).map(drop).expect_err("data at risk");
        assert_eq!(refused.kind, EngineErrorKind::DataAtRisk);
        assert!(refused.message.contains("differs from cached blocks"), "{refused}");
        let (world, engine, _) = pair.start("", true, false).expect("forced");
        assert_eq!(content(&world, &engine, PLACE)[0], 0x55);
        assert_eq!(content(&world, &engine, DIRTY)[0], 7);
        assert_eq!(peek(&pair.disk, PLACE, 512), [0x55; 512]);
    }
}

/// Flips a bit in the header of the record that was written last.
fn rot_last_record(cache: &Arc<dyn Device>) {
    let chosen = Superblock::choose(&peek(cache, COPY_A, PAGE), &peek(cache, COPY_B, PAGE));
    let chosen = chosen.expect("a cache");
    let content = peek(cache, 0, cache.size() as usize);
    let headers = content.chunks(PAGE).enumerate().filter_map(|(page, bytes)| {
        let header = record::decode(bytes, &chosen.geometry, &chosen.cache).ok()?;
        Some((header.number, page * PAGE))
    });
    let (_, at) = headers.max().expect("records");
    let mut sector = content[at..at + 512].to_vec();
    sector[100] ^= 1;
    poke(cache, at as u64, &sector);
}

#[test]
fn a_lost_last_record_shows_by_a_clean_block_that_came_back() {
    for dirty in [false, true] {
        let world = World::new();
        let pair = Pair { cache: ram(16), disk: ram(SIZE >> 20) };
        poke(&pair.disk, PLACE, &[0x33; 4096]);
        let engine = world.new_cache(&pair.cache, BlockSize::DEFAULT);
        let mut settings = settings(Mode::Writeback);
        settings.writeback_running = false;
        let target = world.create(&engine, &pair.as_(""), settings, 0);
        assert_eq!(world.read(&target, PLACE, 4096), [0x33; 4096]);
        if dirty {
            world.write(&target, DIRTY, &[7; 4096]);
        }
        world.op(&target, Op::Flush, 0, 0);
        world.op(&target, Op::Discard, PLACE, 4096);
        assert_eq!(peek(&pair.disk, PLACE, 4096), [0; 4096]);
        world.lane.abandon();
        // The record that forgets the block was synced before the origin changed. No later record
        // confirms it, so recovery takes it for torn, and the block returns.
        rot_last_record(&pair.cache);
        let started = match pair.start("", false, false) {
            Err(refused) if dirty => {
                assert_eq!(refused.kind, EngineErrorKind::DataAtRisk);
                assert!(refused.message.contains("lost its last records"), "{refused}");
                pair.start("", true, false)
            }
            started => {
                assert!(!dirty, "older data may be written over newer");
                started
            }
        };
        let (world, engine, volume) = started.expect("nothing is dirty, or forced");
        assert_eq!(volume.checked.get().expect("known").differing, 1);
        assert_eq!(content(&world, &engine, PLACE), [0; 4096]);
        assert_eq!(content(&world, &engine, DIRTY)[0], if dirty { 7 } else { 0 });
    }
}

#[test]
fn verification_drops_only_blocks_that_differ() {
    // The system's evidence is wrong or missing, so the content decides.
    for now in [WAS, "file 1 7 50331648 101 101", ""] {
        let pair = Pair::used(WAS, false, true);
        let places = [PLACE - (200 << 10), PLACE, PLACE + (100 << 10)];
        for place in places {
            poke(&pair.disk, place, &[0x55; 512]);
        }
        let (world, engine, volume) = pair.start(now, false, true).expect("nothing is dirty");
        let check = volume.checked.get().expect("known");
        assert!(matches!(check.verdict, Verdict::Changed(_)));
        assert_eq!((check.compared, check.differing, check.dropped), (128, 3, 3), "{now}");
        for place in places {
            assert_eq!(content(&world, &engine, place)[0], 0x55);
        }
    }
    // With dirty data nothing is dropped unless forced; then dirty blocks are kept.
    let pair = Pair::used(WAS, true, true);
    pair.start("", false, true).expect("nothing differs");
    let pair = Pair::used(WAS, true, true);
    poke(&pair.disk, PLACE, &[0x55; 512]);
    let refused = pair.start(WAS, false, true).map(drop).expect_err("data at risk");
    assert_eq!(refused.kind, EngineErrorKind::DataAtRisk);
    let (world, engine, _) = pair.start(WAS, true, true).expect("forced");
    assert_eq!(content(&world, &engine, PLACE)[0], 0x55);
    assert_eq!(content(&world, &engine, DIRTY)[0], 7);
}

#[test]
fn a_cancelled_comparison_changes_nothing() {
    let pair = Pair::used(WAS, false, true);
    poke(&pair.disk, PLACE, &[0x55; 512]);
    let world = World::new();
    let (engine, _) = world.open(&pair.cache);
    let (inner, origin) = (engine.clone(), pair.as_(WAS));
    let result = world.block_on(async move {
        inner.attach_verified("data", origin, false, Some(&|done, _| done == 0)).await.map(drop)
    });
    assert!(result.expect_err("cancelled").message.contains("cancelled"));
    world.close(&engine).expect("closed");
    let (_, _, volume) = pair.start(WAS, false, true).expect("nothing is dirty");
    assert_eq!(volume.checked.get().expect("known").differing, 1);
}
