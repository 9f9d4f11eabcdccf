//! The table as a whole: against a model, full, crowded, aged and scanned.

use std::collections::HashMap;

use forebay_core::Slot;

use super::*;

/// All shards of an index, and a model of their content.
struct Index {
    geometry: TableGeometry,
    tables: Vec<Table>,
}

impl Index {
    fn new(geometry: TableGeometry) -> Self {
        let tables = (0..geometry.shards()).map(|_| Table::new(&geometry)).collect();
        Index { geometry, tables }
    }

    fn with(entries: u64, shards: u32, key_bits: u32) -> Self {
        Index::new(TableGeometry::new(entries, shards, key_bits, 20).expect("fits"))
    }

    fn at(&mut self, address: u64) -> (&mut Table, LocalKey) {
        let placed = self.geometry.place(address);
        (&mut self.tables[placed.shard as usize], placed.key)
    }

    fn get(&mut self, address: u64) -> Option<Entry> {
        let (table, key) = self.at(address);
        table.get(key).map(|(_, entry)| entry)
    }

    fn insert(&mut self, address: u64, entry: Entry) -> Result<Option<Entry>, Full> {
        let (table, key) = self.at(address);
        table.insert(key, entry)
    }

    fn remove(&mut self, address: u64) -> Option<Entry> {
        let (table, key) = self.at(address);
        table.remove(key)
    }

    fn overflowing(&self) -> usize {
        self.tables.iter().map(Table::overflowing).sum()
    }

    /// Checks that the content equals the model exactly, by scan and by lookup.
    fn assert_holds(&mut self, model: &HashMap<u64, Entry>) {
        let mut seen = HashMap::new();
        for (shard, table) in self.tables.iter().enumerate() {
            let mut count = 0;
            // Ranges of uneven sizes that end past the table.
            for start in (0..table.buckets()).step_by(7) {
                table.for_each_in(start..start + 7, |key, entry| {
                    let address = self.geometry.address(shard as u32, key);
                    assert_eq!(seen.insert(address, entry), None, "{address} is seen twice");
                    count += 1;
                });
            }
            assert_eq!(table.len(), count);
        }
        assert!(seen == *model, "the scan differs from the model");
        for (&address, &entry) in model {
            assert_eq!(self.get(address), Some(entry), "at {address}");
        }
    }
}

/// An entry with random fields, as the table returns it.
fn some_entry(random: &mut fastrand::Rng, geometry: &TableGeometry) -> Entry {
    let keep = u32::MAX << (32 - geometry.check_bits());
    Entry {
        slot: Slot(random.u32(..) >> (32 - geometry.slot_bits())),
        dirty: random.bool(),
        partial: random.bool(),
        rank: random.u8(..=RANK_MAX),
        check: Check::new(random.u32(..) & keep),
    }
}

fn plain(slot: u64) -> Entry {
    let slot = Slot(slot as u32 & 0xf_ffff);
    Entry { slot, dirty: false, partial: false, rank: 0, check: Check::new(0) }
}

/// Distinct random addresses.
fn addresses(count: u64, key_bits: u32, seed: u64) -> Vec<u64> {
    // A permutation makes the numbers distinct without a set to check.
    let permutation = permutation::Permutation::new(key_bits, !seed);
    (0..count).map(|x| permutation.forward(x)).collect()
}

#[test]
fn behaves_as_a_map_under_random_operations() {
    // (entries, shards, key bits): from one bucket to many, from sparse to every address.
    let shapes = [
        (1, 1, 1),
        (1, 1, 20),
        (30, 1, 6),
        (100, 3, 30),
        (300, 1, 8),
        (1000, 4, 10),
        (5000, 7, 34),
    ];
    for (case, (entries, shards, key_bits)) in shapes.into_iter().enumerate() {
        let mut random = fastrand::Rng::with_seed(case as u64);
        let mut index = Index::with(entries, shards, key_bits);
        // Half as many again as fit, so that the table becomes full and refuses entries.
        let pool = addresses((entries + entries / 2 + 1).min(1 << key_bits), key_bits, 5);
        let mut model: HashMap<u64, Entry> = HashMap::new();
        for step in 0..100_000u32 {
            let address = pool[random.usize(..pool.len())];
            let before = model.get(&address).copied();
            let entry = some_entry(&mut random, &index.geometry);
            match random.u32(..8) {
                0..4 => match index.insert(address, entry) {
                    Ok(old) => {
                        assert_eq!(old, before);
                        model.insert(address, entry);
                    }
                    Err(Full) => {
                        assert_eq!(before, None, "there was a place to replace");
                        assert!(model.len() as u64 >= entries.min(pool.len() as u64), "too early");
                    }
                },
                4 => {
                    assert_eq!(index.remove(address), before);
                    model.remove(&address);
                }
                5 => assert_eq!(index.get(address), before),
                _ => {
                    let (table, key) = index.at(address);
                    let found = table.get(key);
                    assert_eq!(found.map(|(_, entry)| entry), before);
                    let Some((place, _)) = found else { continue };
                    let kept = model.get_mut(&address).expect("found");
                    match random.u32(..4) {
                        0 => {
                            table.set(place, entry);
                            *kept = entry;
                        }
                        1 => {
                            table.set_rank(place, entry.rank);
                            kept.rank = entry.rank;
                        }
                        2 => {
                            table.update(place, |found| found.dirty ^= true);
                            kept.dirty ^= true;
                        }
                        _ => {
                            assert_eq!(table.remove_at(place), before);
                            model.remove(&address);
                            assert_eq!(table.get(key), None);
                        }
                    }
                }
            }
            if step % 10_000 == 0 {
                index.assert_holds(&model);
            }
        }
        index.assert_holds(&model);
    }
}

#[test]
fn fills_to_the_declared_capacity() {
    for entries in [1u64, 100, 10_000, 1_000_000] {
        for shards in [1, 5, 64] {
            // Keys range from as dense as possible to sparse.
            let least = entries.next_power_of_two().ilog2().max(1);
            for key_bits in [least, least + 1, least + 3, 34] {
                let mut index = Index::with(entries, shards, key_bits);
                for (n, address) in addresses(entries, key_bits, 1).into_iter().enumerate() {
                    let inserted = index.insert(address, plain(n as u64));
                    assert_eq!(inserted, Ok(None), "{n} of {entries}, {shards}, {key_bits}");
                }
                for (n, address) in addresses(entries, key_bits, 1).into_iter().enumerate() {
                    assert_eq!(index.get(address), Some(plain(n as u64)));
                }
                let overflowing = index.overflowing() as u64;
                assert!(overflowing <= entries / 100_000, "{overflowing} of {entries} overflow");
            }
        }
    }
}

#[test]
fn addresses_with_a_pattern_spread_as_well_as_random_ones() {
    let entries = 200_000u64;
    type Pattern = fn(u64) -> u64;
    let patterns: [(&str, Pattern); 6] = [
        ("a run", |n| n),
        ("a run at the end", |n| (1 << 35) - 1 - n),
        ("stride 2^8", |n| n << 8),
        ("stride 2^17", |n| n << 17),
        ("stride 3 * 5 * 7 * 64", |n| n * 6720),
        ("runs in eight volumes", |n| ((n % 8) << 32) | (n / 8)),
    ];
    for (name, pattern) in patterns {
        let mut index = Index::with(entries, 16, 35);
        for n in 0..entries {
            assert_eq!(index.insert(pattern(n), plain(n)), Ok(None), "{name}: {n}");
        }
        assert_eq!(index.overflowing(), 0, "{name}");
        let lens = index.tables.iter().map(|table| table.len() as f64);
        let mean = entries as f64 / 16.0;
        let worst = lens.map(|len| (len - mean).abs() / mean.sqrt()).fold(0.0, f64::max);
        assert!(worst < 4.5, "{name}: a shard is {worst} deviations off");
    }
}

#[test]
fn stays_usable_when_full_and_worn() {
    let (entries, key_bits) = (100_000, 30);
    let mut index = Index::with(entries, 8, key_bits);
    let mut random = fastrand::Rng::with_seed(3);
    let pool = addresses(3_000_000, key_bits, 2);
    let (mut live, fresh) = pool.split_at(entries as usize);
    let mut live: Vec<u64> = std::mem::take(&mut live).to_vec();
    for &address in &live {
        assert_eq!(index.insert(address, plain(address)), Ok(None));
    }
    let mut worst = 0;
    for &address in fresh {
        let victim = random.usize(..live.len());
        assert_eq!(index.remove(live[victim]), Some(plain(live[victim])));
        assert_eq!(index.insert(address, plain(address)), Ok(None));
        live[victim] = address;
        worst = worst.max(index.overflowing());
    }
    assert!(worst <= 1, "{worst} entries overflowed at a time");
    let model = live.iter().map(|&address| (address, plain(address))).collect();
    index.assert_holds(&model);
}

#[test]
fn fills_beyond_its_load_and_recovers_from_being_full() {
    let geometry = TableGeometry::new(50_000, 1, 30, 20).expect("fits");
    let mut index = Index::new(geometry);
    let words = index.tables[0].buckets() * LANES;
    let mut model = HashMap::new();
    let mut refused = None;
    for (n, address) in addresses(words as u64 * 2, 30, 4).into_iter().enumerate() {
        match index.insert(address, plain(n as u64)) {
            Ok(_) => model.insert(address, plain(n as u64)),
            Err(Full) => {
                refused = Some(address);
                break;
            }
        };
        if index.overflowing() == 0 {
            assert_eq!(index.tables[0].bytes(), words as u64 * 8);
        }
    }
    let refused = refused.expect("it has to end");
    let load = model.len() as f64 / words as f64;
    assert!(load > 0.99, "full at a load of {load}");
    assert_eq!(index.overflowing(), OVERFLOW_MAX);
    let overflow_bytes = (OVERFLOW_MAX * size_of::<Overflow>()) as u64;
    assert_eq!(index.tables[0].bytes(), words as u64 * 8 + overflow_bytes);
    index.assert_holds(&model);
    assert_eq!(index.get(refused), None);

    // Entries in the overflow list can be replaced, ranked and removed like any other.
    let listed: Vec<LocalKey> = index.tables[0].overflow.iter().map(|o| o.key).collect();
    for (n, key) in listed.into_iter().enumerate() {
        let address = geometry.address(0, key);
        let (place, _) = index.tables[0].get(key).expect("listed");
        let ranked = Entry { rank: 9, ..plain(n as u64) };
        if n % 2 == 0 {
            assert_eq!(index.insert(address, ranked), Ok(model.insert(address, ranked)));
            index.tables[0].set_rank(place, 3);
            model.insert(address, Entry { rank: 3, ..ranked });
        } else {
            assert_eq!(index.remove(address), model.remove(&address));
        }
    }
    index.assert_holds(&model);

    // Once there is space again, the overflow list drains by itself.
    let some: Vec<u64> = model.keys().copied().filter(|address| address % 8 == 0).collect();
    for address in some {
        assert_eq!(index.remove(address), model.remove(&address));
    }
    assert_eq!(index.overflowing(), 0);
    assert_eq!(index.insert(refused, plain(1)), Ok(None));
    model.insert(refused, plain(1));
    index.assert_holds(&model);
}

#[test]
fn stale_places_do_no_harm() {
    let mut table = Table::new(&TableGeometry::new(100, 1, 20, 20).expect("fits"));
    let key = LocalKey(17);
    assert_eq!(table.insert(key, plain(1)), Ok(None));
    let (place, _) = table.get(key).expect("inserted");
    assert_eq!(table.remove(key), Some(plain(1)));
    for place in [place, Place(u32::MAX)] {
        table.set(place, plain(2));
        table.set_rank(place, 3);
        table.update(place, |_| unreachable!("there is nothing"));
        assert_eq!(table.remove_at(place), None);
    }
    assert!(table.is_empty());
    table.for_each_in(0..usize::MAX, |key, _| panic!("{key:?} appeared"));
}

#[test]
fn checks_are_compared_at_the_width_of_the_geometry() {
    let wide = TableGeometry::new(100_000, 1, 28, 20).expect("fits");
    for bits in CHECK_BITS_MIN..=wide.check_bits() {
        let geometry = wide.with_check_bits(bits).expect("in range");
        let mut table = Table::new(&geometry);
        let entry = Entry { check: Check::new(0x89ab_cdef), ..plain(1) };
        assert_eq!(table.insert(LocalKey(5), entry), Ok(None));
        let (_, kept) = table.get(LocalKey(5)).expect("inserted");
        assert!(kept.check.matches(0x89ab_cdef, geometry.check_bits()));
        for flipped in 0..32 {
            let matches = kept.check.matches(0x89ab_cdef ^ (1 << flipped), geometry.check_bits());
            assert_eq!(matches, flipped < 32 - bits);
        }
        assert_eq!(kept.check28() >> (28 - bits.min(28)), 0x89ab_cdef >> (32 - bits.min(28)));
    }
}

/// A checkpoint is read in the order of its shards, also by a later program.
#[test]
fn a_block_is_in_the_same_shard_in_every_program() {
    let shards = |seed| {
        let geometry = TableGeometry::new(1 << 20, 64, 28, 20).expect("fits").with_seed(seed);
        [0, 1, 2, 4096, 1 << 27].map(|address| geometry.place(address).shard)
    };
    assert_eq!((shards(0), shards(7)), ([23, 34, 40, 12, 1], [15, 56, 60, 54, 20]));
}
