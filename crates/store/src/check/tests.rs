use std::ops::Deref;

use forebay_core::{BlockSize, Durability, Mode, ReplacementKind, VolumeId};
use forebay_format::superblock::{COPY_A, COPY_B};
use forebay_format::volume::Left;
use forebay_format::{Uuid, VolumeRecord};
use forebay_testkit::{LaneWorld, open_queue, peek, poke, ram};

use super::*;
use crate::format::{FormatOptions, format};
use crate::index::Condition;
use crate::store::{Appended, Class, Version};

struct World {
    base: LaneWorld,
    device: Arc<dyn Device>,
}

impl Deref for World {
    type Target = LaneWorld;

    fn deref(&self) -> &LaneWorld {
        &self.base
    }
}

const BLOCKS: u64 = 40;

/// The end of the last user of the device.
enum End {
    Crash,
    /// A crash after a further record, whose header says that the first one was durable.
    CrashAfterMore,
    Checkpoint,
}

impl World {
    /// Creates a cache with a volume of [`BLOCKS`] cached blocks; every third is dirty, and block 5
    /// was written twice.
    fn new(checkpoint: bool) -> Self {
        Self::ending(if checkpoint { End::Checkpoint } else { End::Crash })
    }

    fn ending(end: End) -> Self {
        let world = World { base: LaneWorld::new(), device: ram(16) };
        let (lane, device) = (world.lane.clone(), world.device.clone());
        world.block_on(async move {
            let queue = open_queue(&device).expect("memory");
            let uuid = Uuid::from_u128(7);
            let options = FormatOptions { block: BlockSize::DEFAULT, segment_bytes: None, uuid };
            format(&device, &queue, &options).await.expect("large enough");
            let opened = Store::open(&lane, device, queue, StoreOptions::default()).await;
            let (store, _) = opened.expect("just formatted");
            let volume = VolumeRecord {
                id: VolumeId(1),
                uuid,
                name: "v".into(),
                origin: "/o".into(),
                origin_bytes: BLOCKS * 4096,
                alignment: 512,
                mode: Mode::Writeback,
                durability: Durability::Flush,
                policy: ReplacementKind::Lru,
                withdrawn_policy: None,
                started: true,
                fingerprint: None,
                identity: None,
                left: Left::default(),
                samples: None,
                settings: Vec::new(),
            };
            let added = store.change_volumes(|volumes, next| {
                volumes.push(volume);
                *next = 2;
                Ok(())
            });
            added.await.expect("room");
            let space = store.add_space(VolumeId(1), BLOCKS + 1).await.expect("room");
            let append = |block: u64| {
                let version = Version {
                    space: &space,
                    block: OriginBlock(block),
                    dirty: block.is_multiple_of(3),
                    mask: None,
                    rank: 0,
                    condition: Condition::Always,
                };
                let done =
                    store.append(version, Class::Foreground, |bytes| bytes.fill(block as u8 + 1));
                assert!(matches!(done, Appended::Done { .. }));
            };
            (0..BLOCKS).chain([5]).for_each(append);
            store.commit().await.expect("memory");
            match end {
                End::Crash => (),
                End::CrashAfterMore => {
                    append(3);
                    store.commit().await.expect("memory");
                }
                End::Checkpoint => {
                    store.checkpoint(true).await.expect("memory");
                }
            }
        });
        world
    }

    fn content(&self) -> Vec<u8> {
        peek(&self.device, 0, self.device.size() as usize)
    }

    fn overwrite(&self, content: &[u8]) {
        poke(&self.device, 0, content);
    }

    fn check(&self, quick: bool) -> CheckReport {
        let before = self.content();
        let (lane, device) = (self.lane.clone(), self.device.clone());
        let report = self.block_on(async move {
            // A check needs the whole index, so these options must have no effect.
            let store = StoreOptions { load_later_from: 1, ..StoreOptions::default() };
            let progress = Rc::new(|_, _| ());
            let options = CheckOptions { open: &open_queue, store, quick, progress };
            check(&lane, device, options).await
        });
        assert!(self.content() == before, "the device was written to");
        report.expect("it can be read")
    }
}

/// Offset of the last written page that is filled with `fill`.
fn payload(content: &[u8], fill: u8) -> usize {
    content
        .chunks_exact(4096)
        .rposition(|page| page.iter().all(|byte| *byte == fill))
        .expect("there")
        * 4096
}

#[test]
fn an_intact_device_is_sound_after_a_crash_and_an_orderly_stop() {
    for clean in [false, true] {
        let world = World::new(clean);
        for quick in [false, true] {
            let report = world.check(quick);
            assert!(report.is_sound() && report.notes.is_empty(), "{report:?}");
            assert_eq!((report.blocks, report.dirty, report.verified), (BLOCKS, 14, BLOCKS));
            assert_eq!((report.clean, report.bytes > 0), (clean, !quick));
        }
    }
}

#[test]
fn a_flipped_bit_is_reported_unless_it_is_in_an_old_version() {
    let world = World::new(true);
    let intact = world.content();
    for (block, dirty) in [(0u64, true), (5, false), (9, true), (BLOCKS - 1, true)] {
        let mut damaged = intact.clone();
        damaged[payload(&intact, block as u8 + 1) + 4095] ^= 1;
        world.overwrite(&damaged);
        let report = world.check(false);
        let [bad] = &report.bad[..] else { panic!("{report:?}") };
        let offset = (block * 4096).saturating_sub(512);
        let len = if block == 0 { 3584 } else { 4096 };
        assert_eq!((bad.offset, bad.len, bad.dirty), (offset, len, dirty));
        assert_eq!(
            (bad.volume.as_str(), bad.block, report.bad_count),
            ("v", OriginBlock(block), 1)
        );
        assert!(world.check(true).is_sound(), "headers are as they were");
    }
    let mut damaged = intact.clone();
    let first = intact.chunks_exact(4096).position(|page| page.iter().all(|byte| *byte == 6));
    damaged[first.expect("there") * 4096] ^= 1;
    world.overwrite(&damaged);
    assert!(world.check(false).is_sound(), "block 5 has a newer version");
}

#[test]
fn blocks_in_the_checkpoint_survive_a_damaged_header() {
    let world = World::new(true);
    let intact = world.content();
    let mut damaged = intact.clone();
    let header = payload(&damaged, 1) - 4096;
    damaged[header + 100] ^= 1;
    world.overwrite(&damaged);
    for quick in [false, true] {
        let report = world.check(quick);
        assert!(!report.is_sound() && report.recovered, "{report:?}");
        assert_eq!((report.bad_count, report.problems.len()), (0, 1), "{report:?}");
        assert_eq!((report.without_header, report.without_header_dirty), (BLOCKS, 14));
        assert_eq!(report.verified, BLOCKS);
    }
    // The store agrees with the report: every dirty block can be read.
    let (lane, device) = (world.lane.clone(), world.device.clone());
    world.block_on(async move {
        let queue = open_queue(&device).expect("memory");
        let opened = Store::open(&lane, device, queue, StoreOptions::default()).await;
        let (store, recovered) = opened.expect("the checkpoint is whole");
        assert_eq!((recovered.blocks, recovered.dirty), (BLOCKS, 14));
        let space = store.store().space_of(VolumeId(1)).expect("there");
        for block in (0..BLOCKS).step_by(3) {
            let pinned = store.store().look_up(&space, OriginBlock(block));
            let read = store.read_block(&space, pinned.expect("cached")).await;
            let content = read.expect("it verifies");
            assert!(content.iter().all(|byte| *byte == block as u8 + 1));
        }
    });
}

#[test]
fn a_damaged_header_does_not_hide_damaged_content() {
    let world = World::new(true);
    let mut damaged = world.content();
    let (first, ninth) = (payload(&damaged, 1), payload(&damaged, 10));
    damaged[first - 4096 + 100] ^= 1;
    damaged[ninth] ^= 1;
    world.overwrite(&damaged);
    for quick in [false, true] {
        let report = world.check(quick);
        let [bad] = &report.bad[..] else { panic!("{report:?}") };
        assert_eq!((bad.block, bad.dirty, report.bad_dirty), (OriginBlock(9), true, 1));
        assert!(bad.what.contains("header"), "{report:?}");
        assert_eq!((report.without_header, report.without_header_dirty), (BLOCKS - 1, 13));
    }
}

#[test]
fn a_record_after_the_checkpoint_is_lost_with_its_header() {
    let world = World::ending(End::CrashAfterMore);
    let mut damaged = world.content();
    let header = payload(&damaged, 1) - 4096;
    damaged[header + 100] ^= 1;
    world.overwrite(&damaged);
    let report = world.check(true);
    assert!(report.recovered && !report.is_sound(), "{report:?}");
    assert_eq!((report.lost_records, report.without_header), (1, 0), "{report:?}");
    assert_eq!(report.dirty, 1, "what came later is there");
}

#[test]
fn damaged_roots_are_told_from_none() {
    let world = World::new(true);
    let intact = world.content();
    let with = |places: &[usize]| {
        let mut damaged = intact.clone();
        for place in places {
            damaged[*place] ^= 1;
        }
        world.overwrite(&damaged);
        world.check(true)
    };
    let (a, b) = (COPY_A as usize + 60, COPY_B as usize + 60);
    let newer = if with(&[a]).is_sound() && with(&[a]).blocks == BLOCKS { b } else { a };
    let older = if newer == a { b } else { a };
    assert_eq!((with(&[older]).is_sound(), with(&[older]).notes.len()), (true, 1));
    let both = with(&[a, b]);
    assert!(!both.is_sound() && both.problems.len() == 1, "{both:?}");
    world.overwrite(&vec![0; intact.len()]);
    let (lane, device) = (world.lane.clone(), world.device.clone());
    let none = world.block_on(async move {
        let (store, progress) = (StoreOptions::default(), Rc::new(|_, _| ()));
        let options = CheckOptions { open: &open_queue, store, quick: true, progress };
        check(&lane, device, options).await.map(drop)
    });
    assert!(matches!(none, Err(StoreError::Refused(_))), "{none:?}");
}
