//! Notes that are slow to become durable (invariant 15).

use std::sync::Arc;
use std::time::Duration;

use forebay_core::{BlockSize, Mode, Op, OriginBlock, Slot};
use forebay_engine::{Ledger, Note, Noted};
use forebay_store::{Check, Entry};
use forebay_testkit::{ram, void};
use parking_lot::Mutex;

use crate::world::{Book, World, settings};

/// A ledger whose notes become durable when the test allows it.
#[derive(Default)]
struct SlowBook {
    book: Book,
    under_way: Mutex<Vec<(String, Note, Noted)>>,
}

impl SlowBook {
    fn complete_all(&self) -> usize {
        let notes = std::mem::take(&mut *self.under_way.lock());
        let count = notes.len();
        notes.into_iter().for_each(|(volume, note, noted)| self.book.write(&volume, note, noted));
        count
    }
}

impl Ledger for SlowBook {
    fn note_of(&self, volume: &str) -> Option<Note> {
        self.book.note_of(volume)
    }

    fn write(&self, volume: &str, note: Note, noted: Noted) {
        self.under_way.lock().push((volume.to_owned(), note, noted));
    }
}

/// The first flush starts the note. The second one adds nothing to it, but must not be answered
/// before that note is durable either.
#[test]
fn every_flush_waits_for_the_note_of_its_regions() {
    let world = World::new();
    let cache = ram(8);
    let engine = world.new_cache(&cache, BlockSize::DEFAULT);
    let book: Arc<SlowBook> = Arc::default();
    engine.cache.set_ledger(book.clone());
    let mut settings = settings(Mode::Writeback);
    settings.writeback_running = false;
    let target = world.create(&engine, &ram(12), settings, 0);
    world.write(&target, 0, &[1; 4096]);
    let flushes = [(); 3].map(|()| world.submit(&target, Op::Flush, 0, 0, None));
    world.advance(Duration::from_millis(100));
    assert!(book.note_of("data").is_none());
    let answered = flushes.map(|flush| world.done(flush).is_some());
    assert_eq!(answered, [false; 3], "answered before the note was durable");
    assert_eq!(book.complete_all(), 1, "one note for all of them");
    flushes.into_iter().for_each(|flush| assert_eq!(world.wait(flush).result, Ok(())));
    assert_eq!(book.complete_all(), 0);
    let note = book.note_of("data").expect("a note");
    assert!(note.dirty.iter().any(|range| range.contains(&0)), "{note:?}");
}

/// Every other block is dirty, so that each has a range of its own.
#[test]
fn the_note_of_a_stop_with_scattered_dirty_blocks_names_regions() {
    for (blocks, exact) in [(1u64 << 14, true), ((1 << 14) + 1, false)] {
        let world = World::new();
        let cache = ram(256);
        let engine = world.new_cache(&cache, BlockSize::DEFAULT);
        let book: Arc<Book> = Arc::default();
        engine.cache.set_ledger(book.clone());
        let mut settings = settings(Mode::Writeback);
        settings.writeback_running = false;
        let target = world.create(&engine, &void(1 << 30), settings, 0);
        for block in 0..blocks {
            world.write(&target, block * 8192, &[1; 4096]);
        }
        world.stop(&engine, "data").expect("stopped");
        let note = book.note_of("data").expect("a note");
        assert_eq!(note.exact, exact);
        assert_eq!(note.dirty.len() as u64 == blocks, exact, "{}", note.dirty.len());
        for block in 0..blocks {
            let byte = block * 8192;
            let at = note.dirty.partition_point(|range| range.end <= byte);
            assert!(note.dirty.get(at).is_some_and(|range| range.contains(&byte)), "{block}");
        }
    }
}

/// The blocks are in a single range: listing single blocks would take too long.
#[test]
fn a_volume_that_stops_with_a_million_dirty_blocks_lists_none() {
    for (blocks, exact) in [(1000, true), ((1u64 << 20) + 1, false)] {
        let (world, cache, origin) = (World::new(), ram(3 << 10), void(4 << 30));
        world.format(&cache, BlockSize::new(2048).expect("valid"));
        let (engine, _) = world.open(&cache);
        let book: Arc<Book> = Arc::default();
        engine.cache.set_ledger(book.clone());
        let mut settings = settings(Mode::Writeback);
        settings.writeback_running = false;
        let target = world.create(&engine, &origin, settings, 0);
        let store = engine.cache.store.clone();
        let space = store.space_of(target.volume().id).expect("a volume");
        drop(target);
        world.stop(&engine, "data").expect("stopped");
        let geometry = store.geometry();
        let slots = (0..geometry.slot_count()).map(|slot| Slot(slot as u32));
        let places = slots.filter(|slot| geometry.holds_block(*slot)).skip(1 << 14);
        for (block, slot) in (0..blocks).zip(places) {
            let entry =
                Entry { slot, dirty: true, partial: false, rank: 0, check: Check::default() };
            store.index.restore(space.address(OriginBlock(block)), entry).expect("room");
        }
        let target = world.attach(&engine, &origin);
        assert_eq!(target.volume().dirty_blocks(), blocks);
        drop(target);
        world.stop(&engine, "data").expect("stopped");
        let note = book.note_of("data").expect("a note");
        assert_eq!(note.exact, exact);
        let noted = note.dirty.first().expect("a range");
        assert!(
            note.dirty.len() == 1 && noted.start == 0 && noted.end >= blocks * 2048,
            "{noted:?}"
        );
    }
}

/// The data is safe without the note; clients do not wait for a state directory that does not
/// answer.
#[test]
fn no_flush_waits_for_a_late_note_for_more_than_a_second() {
    let world = World::new();
    let engine = world.new_cache(&ram(8), BlockSize::DEFAULT);
    let book: Arc<SlowBook> = Arc::default();
    engine.cache.set_ledger(book.clone());
    let mut settings = settings(Mode::Writeback);
    settings.writeback_running = false;
    let target = world.create(&engine, &ram(12), settings, 0);
    let flush = |patience: Duration| {
        let flush = world.submit(&target, Op::Flush, 0, 0, None);
        world.advance(patience);
        let done = world.done(flush).expect("the flush does not wait any more");
        assert_eq!(done.result, Ok(()));
    };
    world.write(&target, 0, &[1; 4096]);
    // The first flush waits for a second, and the later ones for the same second.
    let both = [(); 2].map(|()| world.submit(&target, Op::Flush, 0, 0, None));
    world.advance(Duration::from_millis(900));
    assert!(both.iter().all(|flush| world.done(*flush).is_none()), "they wait for the note");
    world.advance(Duration::from_millis(200));
    both.iter().for_each(|flush| assert_eq!(world.wait(*flush).result, Ok(())));
    // Another region. No task waits for a ledger that is known not to answer, and notes do not
    // accumulate.
    world.write(&target, 8 << 20, &[2; 4096]);
    (0..10).for_each(|_| flush(Duration::from_millis(10)));
    assert_eq!(book.complete_all(), 1, "one note was begun");
    let has =
        |at: u64| book.note_of("data").expect("a note").dirty.iter().any(|it| it.contains(&at));
    assert!(has(0) && !has(8 << 20));
    // The ledger answers again: the next note includes the skipped regions, and flushes wait for
    // it.
    world.write(&target, 0, &[3; 4096]);
    let next = world.submit(&target, Op::Flush, 0, 0, None);
    world.advance(Duration::from_millis(100));
    assert!(world.done(next).is_none(), "a flush waits for the note again");
    assert_eq!(book.complete_all(), 1);
    assert_eq!(world.wait(next).result, Ok(()));
    assert!(has(0) && has(8 << 20));
}
