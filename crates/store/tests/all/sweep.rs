//! Damages every page of a cache in every way. The cache must open, and lose no more than the
//! page's content.
//!
//! `FOREBAY_SWEEP=all` includes blank pages. `--nocapture` prints the counts.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;

use forebay_core::{BlockSize, Slot};
use forebay_format::{Body, Geometry, PAGE, RecordHeader, Uuid, record};
use forebay_store::StoreOptions;
use forebay_store::check::{CheckOptions, check};
use forebay_testkit::{Disk, open_queue};

use crate::world::World;
use crate::world::image::{
    BYTES, CLEAN_MISSING, Difference, End, Model, UNREADABLE, differences, make,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Zeroed,
    Flipped,
    Unreadable,
    Stale,
}

const KINDS: [Kind; 4] = [Kind::Zeroed, Kind::Flipped, Kind::Unreadable, Kind::Stale];

impl Kind {
    fn apply(self, disk: &Disk, page: usize, before: &[u8]) {
        match self {
            Kind::Zeroed => disk.edit(page, |content| content.fill(0)),
            Kind::Flipped => {
                disk.edit(page, |content| content[page * 37 % PAGE] ^= 1 << (page % 8))
            }
            Kind::Unreadable => disk.make_unreadable(page),
            Kind::Stale => disk.edit(page, |content| {
                content.copy_from_slice(&before[page * PAGE..][..PAGE]);
            }),
        }
    }
}

/// The content of each page of an intact device.
struct Pages {
    /// Blocks by page: for a cell its block, and for a header or its marks the blocks that they
    /// name.
    blocks: BTreeMap<usize, BTreeSet<(u16, u64)>>,
    /// Pages of records that no later record proves: damage to them looks like a torn write.
    unproven: BTreeSet<usize>,
}

impl Pages {
    fn of(content: &[u8]) -> Pages {
        let geometry = Geometry::plan(BYTES as u64, BlockSize::DEFAULT, 512, None).expect("a plan");
        let cache = Uuid::from_u128(7);
        let headers: Vec<(usize, RecordHeader)> = content
            .chunks_exact(PAGE)
            .enumerate()
            .filter_map(|(page, it)| Some((page, record::decode(it, &geometry, &cache).ok()?)))
            .filter(|(_, header)| !header.body.is_opening())
            .collect();
        let proven = headers.iter().map(|(_, it)| it.durable_through).max().unwrap_or_default();
        let mut of_slot: BTreeMap<Slot, (u16, u64)> = BTreeMap::new();
        let (mut blocks, mut unproven) = (BTreeMap::<_, BTreeSet<_>>::new(), BTreeSet::new());
        for (page, header) in &headers {
            let Body::Data(entries) = &header.body else { continue };
            for (number, entry) in entries.iter().enumerate() {
                let block = (entry.volume.0, entry.block.0);
                of_slot.insert(header.cell(&geometry, number), block);
                blocks.entry(*page).or_default().insert(block);
                blocks.entry(page + 1 + number).or_default().insert(block);
            }
        }
        for (page, header) in &headers {
            if header.number > proven {
                unproven.extend(*page..page + 1 + header.payload_bytes as usize / PAGE);
            }
            if let Body::Marks(marks) = &header.body {
                let about = marks.iter().filter_map(|mark| of_slot.get(&mark.slot));
                blocks.entry(*page).or_default().extend(about);
            }
        }
        Pages { blocks, unproven }
    }
}

#[derive(Default, Debug)]
struct Counts {
    opened: u64,
    nothing_lost: u64,
    blocks_unreadable: u64,
    volumes_damaged: u64,
    /// Damage that cannot be told from a crash in the middle of writing the page.
    like_a_torn_write: u64,
}

/// Counts the differences that were not reported.
fn judge(
    world: &World,
    model: &Model,
    pages: &Pages,
    page: usize,
    counts: &mut Counts,
) -> Result<(), String> {
    let (store, report) =
        world.open(StoreOptions::default()).map_err(|error| format!("does not open: {error}"))?;
    counts.opened += 1;
    let volumes = store.store().volumes();
    let damaged = |name: &str| {
        let volume = volumes.iter().find(|volume| volume.name == name);
        volume.is_some_and(|volume| store.store().damage_of(volume.id).is_some())
    };
    let held = |it: &Difference| {
        let volume = volumes.iter().find(|volume| volume.name == it.volume);
        let key = volume.map(|volume| (volume.id.0, it.block));
        key.is_some_and(|key| pages.blocks.get(&page).is_some_and(|blocks| blocks.contains(&key)))
    };
    // A clean block that is absent is read from the origin.
    let found = differences(world, &store, model).into_iter();
    let found: Vec<Difference> = found.filter(|it| it.what != CLEAN_MISSING).collect();
    let beyond: Vec<_> = found.iter().filter(|it| !held(it)).collect();
    if !beyond.is_empty() {
        return Err(format!("more than the page is lost: {beyond:?} {report:?}"));
    }
    let untold = |it: &&Difference| it.what != UNREADABLE && !damaged(&it.volume);
    let untold: Vec<_> = found.iter().filter(untold).collect();
    if !untold.is_empty() && !pages.unproven.contains(&page) {
        return Err(format!("nothing tells that this is lost: {untold:?} {report:?}"));
    }
    counts.like_a_torn_write += u64::from(!untold.is_empty());
    counts.nothing_lost += u64::from(found.is_empty() && report.damage.is_none());
    counts.volumes_damaged += u64::from(report.damage.is_some());
    counts.blocks_unreadable += u64::from(found.iter().any(|it| it.what == UNREADABLE));
    Ok(())
}

/// Returns whether a check reports lost records, as recovery will.
fn lost_by_check(world: &World) -> bool {
    let (lane, device) = (world.lane.clone(), world.disk.device.clone());
    let report = world.block_on(async move {
        let (store, progress) = (StoreOptions::default(), Rc::new(|_, _| ()));
        let options = CheckOptions { open: &open_queue, store, quick: true, progress };
        check(&lane, device, options).await
    });
    report.is_ok_and(|report| report.lost_records > 0)
}

fn sweep(end: End) {
    let (before, content, model) = make(end);
    let pages = Pages::of(&content);
    let all = std::env::var("FOREBAY_SWEEP").is_ok_and(|which| which == "all");
    let (mut counts, mut failures) = (BTreeMap::<Kind, Counts>::new(), Vec::new());
    for page in 0..BYTES / PAGE {
        let blank = content[page * PAGE..][..PAGE].iter().all(|byte| *byte == 0);
        if blank && !all && page % 29 != 0 {
            continue;
        }
        for kind in KINDS {
            let world = World::on(&content);
            kind.apply(&world.disk, page, &before);
            let lost = (page % 5 == 0).then(|| lost_by_check(&world));
            let judged = judge(&world, &model, &pages, page, counts.entry(kind).or_default());
            if let Err(failure) = judged {
                failures.push(format!("page {page} {kind:?}: {failure}"));
            } else if let Some(lost) = lost {
                let world = World::on(&content);
                kind.apply(&world.disk, page, &before);
                let (_, report) = world.open(StoreOptions::default()).expect("it just did");
                assert_eq!(lost, report.damage.is_some(), "page {page} {kind:?}: check differs");
            }
        }
    }
    println!("{end:?}: {counts:#?}");
    assert!(
        failures.is_empty(),
        "{} failures: {:#?}",
        failures.len(),
        &failures[..failures.len().min(12)]
    );
}

#[test]
fn no_page_costs_more_than_it_holds_after_a_crash() {
    sweep(End::Crash);
}

#[test]
fn no_page_costs_more_than_it_holds_after_an_orderly_stop() {
    sweep(End::Clean);
}
