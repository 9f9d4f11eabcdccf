//! Caches that earlier releases wrote still open with all of their content (invariant 26).
//!
//! `golden/cache-*.img.zst` are devices in the state in which revision 6b960e7 left them, after a
//! crash and after an orderly stop. They are never regenerated: `world::image` writes today's
//! format.

use std::io::Read;
use std::path::PathBuf;

use forebay_store::StoreOptions;

use crate::world::World;
use crate::world::image::{End, differences, make};

fn path(end: End) -> PathBuf {
    let name = match end {
        End::Crash => "cache-1-crash.img.zst",
        End::Clean => "cache-1-clean.img.zst",
    };
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden(end: End) -> Vec<u8> {
    let file = std::fs::read(path(end)).expect("it is in the tree");
    let mut decoder = ruzstd::decoding::StreamingDecoder::new(&file[..]).expect("zstd");
    let mut content = Vec::new();
    decoder.read_to_end(&mut content).expect("zstd");
    content
}

#[test]
fn a_cache_of_an_earlier_format_opens_with_all_it_holds() {
    for end in [End::Crash, End::Clean] {
        let (_, _, model) = make(end);
        let world = World::on(&golden(end));
        // Twice: the second opening reads the result of the first.
        for again in [false, true] {
            let (store, report) = world.open(StoreOptions::default()).expect("it opens");
            assert_eq!(differences(&world, &store, &model), [], "{end:?} {report:?}");
            assert_eq!(report.clean, end == End::Clean && !again);
            let dirty = model.values().filter(|it| it.dirty).count();
            assert_eq!((report.blocks, report.dirty), (model.len() as u64, dirty as u64));
            let volumes = store.store().volumes();
            let ordered = volumes.iter().find(|it| it.name == "ordered").expect("there");
            assert!(store.store().is_in_order(ordered.id));
            assert_eq!(store.store().held_versions(ordered.id), 27, "the versions of two groups");
        }
    }
}

/// Writes the images that the format in this tree makes, uncompressed, for a new file in `golden/`.
#[test]
#[ignore = "for the next format: FOREBAY_IMAGES=DIRECTORY cargo test -p forebay-store --test golden -- --ignored"]
fn writes_images() {
    let directory = std::env::var("FOREBAY_IMAGES").expect("FOREBAY_IMAGES names a directory");
    for (end, name) in [(End::Crash, "crash.img"), (End::Clean, "clean.img")] {
        std::fs::write(PathBuf::from(&directory).join(name), make(end).1)
            .expect("it can be written");
    }
}
