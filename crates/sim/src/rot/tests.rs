use forebay_core::BlockSize;

use super::*;
use crate::engine::Engine;
use crate::world::RunOptions;

/// A page that cannot be read may have held a record: the store has to say so, whatever else has hit
/// that page.
#[test]
fn a_page_that_is_hit_again_is_still_unreadable() {
    let engine = Engine(None);
    for seed in 0..8 {
        let mut world = World::new(seed, &engine, RunOptions::default());
        let geometry = Geometry::plan(world.profile.cache_size, BlockSize::default(), 512, None);
        let geometry = geometry.expect("a cache device");
        let page = geometry.segments_offset / PAGE as u64 + 1;
        let (volumes, headers) = (BTreeMap::new(), BTreeMap::new());
        let log = Log { geometry, base: 0, volumes, headers, cells: Vec::new() };
        let told = Told { volume: 0, first: 1, count: 1 };
        world.note_rot(&log, &BTreeSet::new());
        assert!(world.judge_told(told).is_err(), "seed {seed}: nothing was damaged");
        let mut rotten = BTreeSet::new();
        for _ in 0..32 {
            if world.damage(page) {
                rotten.insert(page);
            }
        }
        assert!(world.is_unreadable(page), "seed {seed}");
        world.note_rot(&log, &rotten);
        assert!(world.judge_told(told).is_ok(), "seed {seed}");
    }
}
