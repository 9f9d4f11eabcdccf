//! Counts of clients' requests, and their miss-ratio curve.

use std::time::Duration;

use forebay_core::WriteDown;
use forebay_policy::curve::Which;

use super::disk::Disk;
use super::*;
use crate::Traffic;

/// Sectors of the volume, which are the lower tier's blocks too.
const SECTORS: u64 = 1 << 15;
/// Sectors of a request.
const REQUEST: u64 = 8;

struct Watched {
    disk: Rc<Disk>,
    tier: Arc<Tier>,
    volumes: [Rc<RamVolume>; 2],
    answers: Rc<Answers>,
}

impl Watched {
    fn new(ram: u64) -> Self {
        let disk = Disk::new(SECTORS, fastrand::Rng::with_seed(1));
        disk.quick.set(100);
        disk.discards.set(100);
        let (lanes, clock) = lanes();
        let tier = Arc::new(Tier::new(options(ram, 512), clock).expect("memory"));
        let volume = |lane: &Rc<Lane>| RamVolume::new(tier.clone(), disk.clone(), lane.clone());
        let volumes = [volume(&lanes[0]), volume(&lanes[1])];
        Watched { disk, tier, volumes, answers: Rc::default() }
    }

    /// Sends requests for all of the first `sectors`, alternately by both volumes.
    fn all(&self, op: Op, sectors: u64) {
        for (turn, at) in (0..sectors).step_by(REQUEST as usize).enumerate() {
            self.one(op, turn, at, REQUEST);
        }
    }

    fn one(&self, op: Op, turn: usize, at: u64, sectors: u64) {
        let (offset, len) = (at * SECTOR_SIZE, sectors as usize * SECTOR);
        let volume = &self.volumes[turn % 2];
        let mut bytes = IoBuf::zeroed(len);
        let answered = match op {
            Op::Read => volume.read_now(offset, &mut bytes),
            Op::Write => volume.write_now(offset, &bytes),
            _ => None,
        };
        if answered.is_none() {
            let sink: Rc<dyn CompletionSink> = self.answers.clone();
            let data = (op == Op::Write).then_some(bytes);
            volume.submit(request(op, offset, len, data), &sink);
        }
    }

    fn hits(&self, which: Which, blocks: u64) -> f64 {
        self.tier.curve().hits(which, blocks).share
    }
}

#[test]
fn the_curve_is_the_same_however_much_ram_answers() {
    let curves = [64 << 10, 32 << 20].map(|ram| {
        let watched = Watched::new(ram);
        (0..4).for_each(|_| watched.all(Op::Read, SECTORS / 2));
        let traffic = watched.tier.traffic();
        let blocks = 2 * SECTORS;
        assert_eq!((traffic.read_blocks, traffic.written_blocks), (blocks, 0));
        let hits = if ram > 1 << 20 { blocks / REQUEST * 3 / 4 } else { 0 };
        assert_eq!((traffic.ram_reads, traffic.ram_read_bytes), (hits, hits * REQUEST * 512));
        [SECTORS / 4, SECTORS * 5 / 8].map(|blocks| watched.hits(Which::Reads, blocks))
    });
    assert_eq!(curves[0], curves[1]);
    let [small, large] = curves[0];
    assert!(small < 0.01 && (large - 0.75).abs() < 0.02, "{curves:?}");
}

#[test]
fn deferred_writes_count_once_and_discarded_blocks_are_gone() {
    let watched = Watched::new(32 << 20);
    let how = Deferral {
        within: Duration::from_secs(10),
        mode: WriteDown::Infinite,
        share: 100,
        ignore_flush: false,
    };
    watched.tier.defer_writes(Some(how));
    watched.all(Op::Write, SECTORS / 2);
    watched.all(Op::Read, SECTORS / 2);
    assert!(watched.disk.requests(Op::Write).is_empty());
    assert!(watched.hits(Which::Reads, SECTORS) > 0.99);
    assert!((watched.hits(Which::All, SECTORS) - 0.5).abs() < 0.01);
    watched.tier.defer_writes(None);
    // The waiting data is replaced.
    watched.all(Op::Write, SECTORS / 4);
    let written = SECTORS / 2 / REQUEST;
    let expected = Traffic {
        ram_reads: written,
        ram_read_bytes: written * REQUEST * 512,
        ram_writes: written,
        ram_written_bytes: written * REQUEST * 512,
        passed_writes: written / 2,
        passed_written_bytes: written / 2 * REQUEST * 512,
        read_blocks: SECTORS / 2,
        written_blocks: SECTORS * 3 / 4,
    };
    assert_eq!(watched.tier.traffic(), expected);
    watched.one(Op::Discard, 0, 0, SECTORS);
    watched.all(Op::Read, SECTORS / 2);
    assert!((watched.hits(Which::Reads, SECTORS) - 0.5).abs() < 0.02);
}

#[test]
fn counts_outlive_the_connections_that_made_them() {
    let watched = Watched::new(32 << 20);
    watched.all(Op::Read, 1024);
    watched.all(Op::Read, 1024);
    let before = watched.tier.traffic();
    let (tier, curve) = (watched.tier.clone(), watched.tier.curve());
    drop(watched);
    assert_eq!(tier.traffic(), before);
    assert_eq!(before.ram_reads, 1024 / REQUEST);
    assert_eq!(tier.curve().accesses(Which::All), curve.accesses(Which::All));
}

#[test]
fn blocks_are_those_of_the_lower_tier() {
    let watched = Watched::new(1 << 20);
    watched.disk.block.set(4096);
    let volume = RamVolume::new(watched.tier.clone(), watched.disk.clone(), lanes().0[0].clone());
    let mut bytes = IoBuf::zeroed(SECTOR);
    assert_eq!(volume.read_now(7 * SECTOR_SIZE, &mut bytes), Some(Ok(())));
    let mut bytes = IoBuf::zeroed(2 * SECTOR);
    assert_eq!(volume.read_now(7 * SECTOR_SIZE, &mut bytes), Some(Ok(())));
    assert_eq!(watched.tier.traffic().read_blocks, 3);
}
