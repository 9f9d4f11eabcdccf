//! When and how fast dirty blocks are written back, and which clean ones are written along.

use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use forebay_core::{BlockSize, Mode, Op, QuietHours, ReplacementKind, Rotational};
use forebay_device::Device;
use forebay_engine::{EngineLane, LaneVolume, Settings, VolumeSpec, settings_of};
use forebay_format::Uuid;
use forebay_testkit::{OpKind, faulty, peek, ram};

use crate::world::{World, settings};

const BLOCK: u64 = 4096;

/// Settings of a volume with a disk and without background writeback.
fn at_rest() -> Settings {
    let mut settings = Settings { rotational: Rotational::Yes, ..settings(Mode::Writeback) };
    (settings.dirty_age, settings.idle) = (Duration::ZERO, Duration::ZERO);
    (settings.dirty_high, settings.dirty_low) = (100, 100);
    settings
}

struct Bench {
    world: World,
    engine: Rc<EngineLane>,
    origin: Arc<dyn Device>,
    target: Rc<LaneVolume>,
}

fn bench(settings: Settings) -> Bench {
    let world = World::new();
    let (cache, origin) = (ram(64), ram(16));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let target = world.create(&engine, &origin, settings, 0);
    Bench { world, engine, origin, target }
}

impl Bench {
    fn cache(&self, block: u64) {
        self.world.op(&self.target, Op::Prefetch, block * BLOCK, BLOCK);
    }

    fn dirty(&self, block: u64) {
        self.world.write(&self.target, block * BLOCK, &[block as u8 + 1; BLOCK as usize]);
    }

    fn drain(&self) {
        self.world.drain(&self.engine).expect("drained");
    }

    fn set(&self, change: impl FnOnce(&mut Settings)) {
        let mut settings = self.target.volume().settings();
        change(&mut settings);
        self.world.set(&self.engine, settings).expect("set");
    }

    /// Returns the number of blocks marked clean, and the number written to the origin.
    fn written(&self) -> (u64, u64) {
        let totals = self.target.volume().stats.totals();
        (totals.written_back_blocks, totals.origin_written_bytes / BLOCK)
    }

    fn left(&self) -> u64 {
        self.target.volume().dirty_blocks()
    }
}

#[test]
fn short_wholly_cached_gaps_are_written_along() {
    // Columns: clean cached blocks, dirty blocks, the longest gap in bytes, and the blocks written.
    for (clean, dirty, gap, written) in [
        (0..10, vec![2, 6], 64 << 10, 5),
        (0..10, vec![2, 6], 3 * 4096, 5),
        (0..10, vec![2, 6], 3 * 4096 - 1, 2),
        (0..10, vec![2, 6], 0, 2),
        (0..5, vec![2, 6], 64 << 10, 2),
        (0..10, vec![1, 3, 8, 9], 64 << 10, 9),
        (0..10, vec![1, 3, 8, 9], 4096, 5),
        (0..0, vec![1, 2, 3], 64 << 10, 3),
        (0..40, vec![1, 30], 64 << 10, 2),
    ] {
        let bench = bench(at_rest());
        bench.set(|settings| settings.writeback_gap = gap);
        // Without a sync of the origin nothing would be filled.
        bench.world.op(&bench.target, Op::Flush, 0, 0);
        clean.clone().for_each(|block| bench.cache(block));
        dirty.iter().for_each(|block| bench.dirty(*block));
        bench.drain();
        let case = format!("{clean:?} {dirty:?} {gap}");
        assert_eq!(bench.written(), (dirty.len() as u64, written), "{case}");
        for block in 0..40u64 {
            let byte = if dirty.contains(&block) { block as u8 + 1 } else { 0 };
            let found = peek(&bench.origin, block * BLOCK, BLOCK as usize);
            assert!(found.iter().all(|found| *found == byte), "block {block} of {case}");
        }
    }
}

#[test]
fn an_origin_without_seeks_gets_dirty_blocks_only() {
    // The device of these tests is RAM, and reports that it is not rotational.
    for (rotational, written) in [(Rotational::Auto, 3), (Rotational::No, 3), (Rotational::Yes, 7)]
    {
        let bench = bench(Settings { rotational, ..at_rest() });
        assert_eq!(bench.target.volume().is_rotational(), rotational == Rotational::Yes);
        bench.world.op(&bench.target, Op::Flush, 0, 0);
        (0..10).for_each(|block| bench.cache(block));
        [2, 3, 8].into_iter().for_each(|block| bench.dirty(block));
        bench.drain();
        assert_eq!(bench.written(), (3, written), "{rotational}");
    }
}

/// Neighbours of a partly valid block are still written along, and only its valid sectors are
/// written.
#[test]
fn partly_valid_blocks_are_written_as_far_as_they_are_valid() {
    let bench = bench(at_rest());
    bench.world.op(&bench.target, Op::Flush, 0, 0);
    for block in [0, 1, 3, 4] {
        bench.cache(block);
    }
    bench.dirty(0);
    bench.world.write(&bench.target, 2 * BLOCK + 512, &[9; 1024]);
    bench.dirty(4);
    bench.drain();
    assert_eq!(bench.left(), 0);
    let found = peek(&bench.origin, 0, 5 * BLOCK as usize);
    let mut expected = vec![0; 5 * BLOCK as usize];
    expected[..BLOCK as usize].fill(1);
    expected[2 * BLOCK as usize + 512..2 * BLOCK as usize + 1536].fill(9);
    expected[4 * BLOCK as usize..].fill(5);
    assert!(found == expected);
}

#[test]
fn the_ceiling_holds_unless_somebody_waits() {
    let bench = bench(at_rest());
    bench.set(|settings| {
        settings.writeback_rate_max = 64 << 10;
        settings.writeback_rate_min = 0;
        settings.writeback_gap = 0;
    });
    (0..512).step_by(2).for_each(|block| bench.dirty(block));
    bench.set(|settings| {
        (settings.dirty_high, settings.dirty_low) = (0, 0);
        settings.writeback_latency = Duration::ZERO;
    });
    // 16 blocks per second.
    bench.world.advance(Duration::from_secs(8));
    let (clean, written) = bench.written();
    assert!((100..=140).contains(&written), "{written}");
    // A sync does not wait for the sweep to end.
    assert!(clean > 0);
    let before = bench.world.lane.now();
    bench.drain();
    assert!(bench.world.lane.now().since(before) < Duration::from_secs(1));
    assert_eq!(bench.left(), 0);
}

#[test]
fn quiet_hours_write_everything_back() {
    let bench = bench(at_rest());
    bench.set(|settings| settings.quiet_hours = QuietHours::new(60, 120));
    (0..64).for_each(|block| bench.dirty(block));
    // The quiet hours begin at midnight.
    bench.world.advance(Duration::from_secs(59 * 60));
    assert_eq!(bench.left(), 64);
    bench.world.advance(Duration::from_secs(2 * 60));
    assert_eq!(bench.left(), 0);
}

#[test]
fn outside_of_quiet_hours_writeback_stays_at_the_floor() {
    let bench = bench(at_rest());
    bench.set(|settings| {
        settings.quiet_hours = QuietHours::new(60, 120);
        settings.idle = Duration::from_millis(100);
        settings.writeback_rate_min = 64 << 10;
        settings.writeback_gap = 0;
    });
    (0..512).step_by(2).for_each(|block| bench.dirty(block));
    bench.world.advance(Duration::from_secs(8));
    let (_, written) = bench.written();
    assert!((90..=150).contains(&written), "{written}");
    // Without quiet hours the blocks are written back at once.
    bench.set(|settings| settings.quiet_hours = None);
    bench.world.advance(Duration::from_secs(6));
    assert_eq!(bench.left(), 0);
}

#[test]
fn switched_off_nothing_is_written_until_it_must_be() {
    let bench = bench(settings(Mode::Writeback));
    bench.set(|settings| {
        settings.writeback_running = false;
        settings.dirty_age = Duration::from_secs(1);
        settings.quiet_hours = QuietHours::new(0, 600);
        (settings.dirty_high, settings.dirty_low) = (0, 0);
    });
    (0..64).for_each(|block| bench.dirty(block));
    bench.world.advance(Duration::from_secs(60));
    assert_eq!(bench.left(), 64);
    bench.drain();
    assert_eq!(bench.left(), 0);
}

/// A drain overrides the rate control, so it must end with the task that waits for it.
#[test]
fn after_a_drain_writeback_is_at_rest_again() {
    for ordered in [false, true] {
        for given_up in [false, true] {
            let bench = bench(Settings { ordered, ..at_rest() });
            // Until the order has been recorded, everything is written back.
            bench.world.advance(Duration::from_secs(1));
            bench.dirty(0);
            let engine = bench.engine.clone();
            bench.world.block_on(async move {
                let mut drain = Box::pin(engine.drain("data", |_| Ok(())));
                if given_up {
                    std::future::poll_fn(|context| {
                        assert!(drain.as_mut().poll(context).is_pending());
                        Poll::Ready(())
                    })
                    .await;
                } else {
                    drain.await.expect("drained");
                }
            });
            bench.dirty(1);
            bench.world.advance(Duration::from_secs(60));
            let case = format!("ordered: {ordered}, given up: {given_up}");
            assert_eq!(bench.left(), if given_up { 2 } else { 1 }, "{case}");
        }
    }
}

/// A sweep ends when its last write has ended. Blocks that become dirty until then belong to the
/// next sweep, wherever they are, and a drain that begins then must wait for them.
#[test]
fn a_drain_writes_blocks_that_became_dirty_while_a_sweep_ended() {
    let (world, cache) = (World::new(), ram(64));
    let (origin, faults) = faulty(ram(16));
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let settings = Settings { dirty_high: 0, dirty_low: 0, ..at_rest() };
    let target = world.create(&engine, &origin, settings, 0);
    world.op(&target, Op::Flush, 0, 0);
    // The first sweep after a start does not count.
    for blocks in [&[3000, 2000][..], &[3000, 2000, 5]] {
        faults.heal();
        world.advance(Duration::from_secs(1));
        assert_eq!(target.volume().dirty_blocks(), 0);
        faults.hang(&[OpKind::Write]);
        for block in blocks {
            world.write(&target, block * BLOCK, &[1; BLOCK as usize]);
            world.advance(Duration::from_secs(1));
            assert_eq!(faults.hung().len(), 1, "only the last write of the sweep has begun");
        }
    }
    let volume = target.volume().clone();
    world.block_on(async move {
        let mut drain = Box::pin(engine.drain("data", |_| Ok(())));
        std::future::poll_fn(|context| {
            assert!(drain.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        faults.heal();
        drain.await.expect("drained");
    });
    assert_eq!(volume.dirty_blocks(), 0);
}

#[test]
fn volumes_share_the_watermarks_of_their_cache() {
    let bench = bench(at_rest());
    bench.set(|settings| {
        settings.cache_dirty_high = 77;
        settings.cache_dirty_low = 33;
        settings.policy = ReplacementKind::Fifo;
    });
    let spec = VolumeSpec {
        name: "other".into(),
        origin: "ram".into(),
        uuid: Uuid::from_u128(10),
        alignment: 0,
        settings: at_rest(),
    };
    let (engine, origin) = (bench.engine.clone(), ram(16));
    bench.world.block_on(async move { engine.create(spec, origin).await }).expect("created");
    let both = |watermarks: (u8, u8)| {
        for name in ["data", "other"] {
            let volume = bench.engine.cache.volume(name).expect("there");
            let now = volume.settings();
            assert_eq!((now.cache_dirty_high, now.cache_dirty_low), watermarks, "{name}");
        }
        for record in bench.engine.cache.store.volumes() {
            let kept = settings_of(&record);
            assert_eq!((kept.cache_dirty_high, kept.cache_dirty_low), watermarks);
        }
    };
    both((77, 33));
    bench.set(|settings| settings.cache_dirty_high = 44);
    both((44, 33));
}
