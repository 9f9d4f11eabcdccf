use super::*;

fn setup(capacity: u64, ram: u64) -> Setup {
    let (policy, ram_policy) = (ReplacementKind::Lru, ReplacementKind::Lru);
    let now = Rules { policy, admission: Admission::Always, ram, ram_policy };
    Setup { capacity, cells: capacity, mode: Mode::Writeback, now }
}

/// Simulates all blocks, not a sample.
fn exact(setup: Setup) -> WhatIf {
    WhatIf::new(setup, Sample::new(1, 0), 0, 0)
}

fn find(found: &[Prediction], wanted: impl Fn(&Rules) -> bool) -> Prediction {
    *found.iter().find(|one| wanted(&one.rules)).expect("simulated")
}

fn read(what_if: &mut WhatIf, keys: impl IntoIterator<Item = u64>) -> u64 {
    keys.into_iter().map(|key| what_if.access(Access::Read, Key(key))).count() as u64
}

#[test]
fn each_setting_is_simulated_once_the_present_one_first() {
    for ram in [0, 10, 1000] {
        let setup = setup(100, ram);
        let all = setup.simulated();
        assert_eq!(all[0], setup.now);
        let count = |wanted: &Rules| all.iter().filter(|rules| *rules == wanted).count();
        assert!(all.iter().all(|rules| count(rules) == 1));
        assert_eq!(exact(setup).shadows.len(), all.len(), "there is a place for each");
    }
}

#[test]
fn a_scan_is_kept_out_by_ghosts_and_that_spares_writes() {
    let mut what_if = exact(setup(100, 0));
    let mut reads = 0;
    for round in 0..50 {
        // Eighty blocks that are read again, and sixty that never are.
        reads += read(&mut what_if, 0..80);
        reads += read(&mut what_if, 1000 + round * 60..1060 + round * 60);
    }
    let found = what_if.predictions(reads, 0);
    let now = found[0];
    assert_eq!((now.reads.share, now.written), (0.0, 7000), "LRU has none of them");
    assert_eq!((now.reads_gain.share, now.all), (0.0, now.reads));
    // The ghosts reach back over more than one round: missed in the first two rounds, and hit from
    // then on.
    let ghosts = find(&found, |rules| rules.admission == Admission::Ghost(4));
    let hits = 48.0 * 80.0 / 7000.0;
    assert!((ghosts.reads.share - hits).abs() < 0.01, "{ghosts:?}");
    assert_eq!(ghosts.reads_gain.share, ghosts.reads.share);
    assert!((80..100).contains(&ghosts.written), "{ghosts:?}");
}

#[test]
fn blocks_that_bypass_the_cache_push_none_out_of_the_ghosts() {
    let mut what_if = exact(setup(100, 0));
    let mut reads = 0;
    for round in 0..50 {
        reads += read(&mut what_if, 0..60);
        for key in 1000 + round * 1000..2000 + round * 1000 {
            reads += read(&mut what_if, [key]);
            what_if.bypassed(Access::Read, Key(key));
        }
    }
    let found = what_if.predictions(reads, 0);
    let ghosts = find(&found, |rules| rules.admission == Admission::Ghost(1));
    let most = 48.0 * 60.0 / reads as f64;
    assert!((0.95 * most..1.01 * most).contains(&ghosts.reads.share), "{ghosts:?}");
    assert!((50..=60).contains(&ghosts.written), "{ghosts:?}");
    // A block that bypasses is remembered as before.
    reads += read(&mut what_if, [500]);
    reads += read(&mut what_if, [500]);
    what_if.bypassed(Access::Read, Key(500));
    reads += read(&mut what_if, [500, 500]);
    let found = what_if.predictions(reads, 0);
    let after = find(&found, |rules| rules.admission == Admission::Ghost(1));
    assert_eq!(after.written, ghosts.written + 1);
}

#[test]
fn ram_absorbs_reads_and_offers_reused_blocks_to_the_cache() {
    let mut what_if = exact(setup(64, 0));
    let mut reads = 0;
    for _ in 0..100 {
        reads += read(&mut what_if, [1, 2, 3, 4]);
    }
    let found = what_if.predictions(reads, 0);
    let quarter = find(&found, |rules| rules.ram == 16);
    assert_eq!((quarter.reads.share, quarter.ram, quarter.written), (0.99, 0.99, 0));
    let one = find(&found, |rules| rules.ram == 1);
    // No block is read again while it is in RAM for one block, so it enters only when it is missed
    // again.
    assert_eq!((one.ram, one.written, one.reads.share), (0.0, 4, 0.98));
    assert_eq!((found[0].ram, found[0].written), (0.0, 4));
}

#[test]
fn writes_count_as_the_mode_says() {
    for (mode, written, second) in
        [(Mode::Writeback, 300, 300), (Mode::Writethrough, 300, 200), (Mode::Writearound, 0, 0)]
    {
        let mut what_if = exact(Setup { mode, ..setup(200, 0) });
        for _ in 0..3 {
            (0..100).for_each(|key| what_if.access(Access::Write, Key(key)));
        }
        let found = what_if.predictions(0, 300);
        let rule = find(&found, |rules| rules.admission == Admission::Ghost(1));
        assert_eq!((found[0].written, rule.written), (written, second), "{mode:?}");
        assert_eq!(found[0].reads.share, 1.0, "nothing was read, nothing was missed");
    }
}

#[test]
fn a_sample_agrees_with_all_blocks_also_after_it_was_thinned() {
    let mut random = fastrand::Rng::with_seed(7);
    let setup = setup(2_000, 0);
    let mut all = exact(setup);
    let mut sample = WhatIf::new(setup, Sample::new(4, 0), 0, 0);
    assert_eq!((sample.sample().stands_for(), all.sample().stands_for()), (4, 1));
    let (mut reads, mut writes) = (0, 0);
    for step in 0..600_000u64 {
        let share = random.f64();
        let key = Key((share * share * share * 10_000.0) as u64);
        let access = if step % 4 == 0 { Access::Write } else { Access::Read };
        match access {
            Access::Read => reads += 1,
            Access::Write => writes += 1,
        }
        all.access(access, key);
        sample.access(access, key);
        if step == 300_000 {
            sample.thin();
        }
    }
    let (exact, estimate) = (all.predictions(reads, writes), sample.predictions(reads, writes));
    for (exact, estimate) in exact.iter().zip(&estimate) {
        assert_eq!(exact.rules, estimate.rules);
        let off = (exact.reads.share - estimate.reads.share).abs();
        assert!(off < 0.03, "{exact:?} {estimate:?}");
        let off = estimate.written as f64 / exact.written as f64;
        assert!((0.9..1.1).contains(&off), "{exact:?} {estimate:?}");
    }
}

#[test]
fn removed_blocks_are_missed_and_free_their_places() {
    let mut what_if = exact(setup(100, 10));
    read(&mut what_if, (0..50).chain(0..50).chain(0..50));
    what_if.remove(Key(0)..Key(25));
    what_if.remove(Key(0)..Key(1 << 60));
    assert!(what_if.blocks.numbers.is_empty());
    let before = what_if.predictions(150, 0)[0].reads.share;
    let reads = 150 + read(&mut what_if, 0..50);
    assert!(what_if.predictions(reads, 0)[0].reads.share < before);
}

#[test]
fn memory_is_bounded_whatever_is_asked_for() {
    let now = Rules { ram: 1 << 20, ..setup(0, 0).now };
    let mut what_if =
        WhatIf::new(Setup { capacity: 1 << 28, now, ..setup(0, 0) }, Sample::new(64, 0), 0, 0);
    let most = what_if.most_bytes();
    assert!(most < 4 << 20, "{most}");
    let mut random = fastrand::Rng::with_seed(3);
    let stands_for = what_if.sample().stands_for();
    for key in what_if.sample().of(Key(0)..Key(stands_for * 60_000)).collect::<Vec<_>>() {
        what_if.access(Access::Read, key);
        if random.bool() {
            what_if.access(Access::Write, key);
        }
    }
    let table = what_if.blocks.bytes() as u64;
    let levels = most - 16 * 2048 * Blocks::bytes_of_block() as u64 / 16;
    assert!(table < levels, "{table} {most}");
    assert!(Scale { capacity: 1 << 20, cells: 1 << 20, stands_for: 1 }.of(1 << 40) <= 4096);
}

#[test]
fn dirty_blocks_stay_until_written_back_under_any_policy() {
    for most in [100, 0] {
        let mut what_if = exact(setup(100, 0));
        what_if.set_dirty(most);
        // Forty blocks are written once, and then a hundred others are read for ever.
        (0..40).for_each(|key| what_if.access(Access::Write, Key(key)));
        read(&mut what_if, (0..20).flat_map(|_| 1000..1100));
        let before = what_if.predictions(2000, 40)[0].reads.share;
        read(&mut what_if, 0..40);
        let after = what_if.predictions(2040, 40)[0].reads.share;
        assert_eq!(after > before, most > 0, "{most}: {before} {after}");
    }
}

#[test]
fn a_demoted_block_is_readable_until_its_room_is_needed() {
    // LRU keeps ninety of them; the log has room for a hundred.
    let mut what_if = exact(setup(100, 0));
    let reads = (0..3).map(|_| read(&mut what_if, 0..100)).sum();
    let lru = what_if.predictions(reads, 0)[0].reads.share;
    assert!((lru - 2.0 / 3.0).abs() < 1e-9, "{lru}");
}

#[test]
fn refused_blocks_stay_known_when_the_sample_is_halved() {
    let now = Rules { admission: Admission::Ghost(1), ..setup(0, 0).now };
    let mut what_if = exact(Setup { now, ..setup(2000, 0) });
    let reads = read(&mut what_if, 0..1500);
    what_if.thin();
    let sampled: Vec<u64> = what_if.sample().of(Key(0)..Key(1500)).map(|Key(key)| key).collect();
    read(&mut what_if, sampled.iter().copied());
    let written = what_if.predictions(2 * reads, 0)[0].written;
    assert!(written > 1300, "{written} of 1500");
}
