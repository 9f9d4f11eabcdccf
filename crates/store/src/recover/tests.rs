use forebay_core::OriginBlock;
use forebay_device::RamDevice;
use forebay_format::Uuid;
use forebay_lane::MemoryBudget;

use super::*;
use crate::table::Check;

fn geometry(bytes: u64) -> Geometry {
    Geometry::plan(bytes, BlockSize::DEFAULT, 512, None).expect("a plan")
}

fn space(volume: u16, base: u64, blocks: u64) -> VolumeSpace {
    let id = VolumeId(volume);
    VolumeSpace { id, base, blocks, seed: CheckSeed::new(&Uuid::from_u128(7), id) }
}

#[test]
fn the_index_has_room_for_every_cell_and_addresses_to_spare() {
    // A device, blocks of origins, what follows for shards and for the bits of addresses and slots.
    for (bytes, blocks, shards, address, slot) in [
        (5 << 20, 100, 1, 20, 11),
        (5 << 20, (1 << 30) - 5, 1, 31, 11),
        (4 << 30, 100, 64, 25, 20),
        (64 << 30, 100, 1024, 29, 24),
    ] {
        let geometry = geometry(bytes);
        let cells = Cut::new(&geometry).cells_per_segment() * u64::from(geometry.segment_count);
        for asked in [None, Some(4)] {
            let (table, given) = table_geometry(&geometry, blocks, asked).expect("it fits");
            assert_eq!(given, asked.unwrap_or(shards), "{bytes}");
            let wanted = TableGeometry::new(cells, given, address, slot).expect("it fits");
            assert_eq!(format!("{table:?}"), format!("{wanted:?}"), "{bytes} {blocks}");
        }
    }
}

#[test]
fn what_an_open_cache_takes_is_held_and_tested_before_it_is_made() {
    let bytes = 64 << 20;
    let geometry = geometry(bytes);
    let (table, _) = table_geometry(&geometry, 1000, None).expect("it fits");
    let [(index, index_bytes, _), (log, log_bytes, _)] = memory_of(&geometry, &table, 2);
    assert_eq!((index, log), (MemoryUse::Index, MemoryUse::LogBuffers));
    assert_eq!(index_bytes, table.bytes() + Segments::bytes_for(geometry.segment_count));
    let buffers = Log::most_buffers(2, geometry.segment_count) as u64;
    assert_eq!(log_bytes, buffers * geometry.segment_bytes);

    let device = |bytes| -> Arc<dyn Device> { RamDevice::new("ram", bytes).expect("memory") };
    let with = |limit| StoreOptions {
        lanes: 2,
        memory: Arc::new(MemoryBudget::new(limit)),
        ..StoreOptions::default()
    };
    let options = with(1 << 30);
    let held = hold_memory(&device(bytes), &options, &geometry, &table).expect("there is enough");
    assert_eq!(options.memory.used(MemoryUse::Index), index_bytes);
    assert_eq!(options.memory.used(MemoryUse::LogBuffers), log_bytes);
    drop(held);
    Store::fits(&device(bytes), BlockSize::DEFAULT, &options).expect("there is enough");
    assert_eq!(options.memory.total(), 0, "nothing is held");
    assert!(Store::fits(&device(bytes), BlockSize::DEFAULT, &with(log_bytes)).is_err());
    assert!(Store::fits(&device(1 << 20), BlockSize::DEFAULT, &options).is_err());
}

#[test]
fn addresses_are_those_of_known_volumes_up_to_their_ends() {
    let spaces = [space(1, 0, 100), space(4, 100, 50)];
    let address = |volume, block| {
        let found = address_in(&spaces, VolumeId(volume), OriginBlock(block));
        found.map(|(space, address)| (space.id.0, address.0))
    };
    assert_eq!(
        (address(1, 0), address(1, 99), address(1, 100)),
        (Some((1, 0)), Some((1, 99)), None)
    );
    assert_eq!((address(4, 49), address(4, 50), address(2, 0)), (Some((4, 149)), None, None));
    let geometry = geometry(64 << 20);
    assert_eq!(granule_in_segment(&geometry, geometry.slot_at(SegmentId(3), 17)), 17);
}

#[test]
fn clean_blocks_are_dropped_of_the_volumes_that_are_named() {
    let index = Index::new(TableGeometry::new(1000, 1, 20, 13).expect("small"), 1);
    let spaces = [space(1, 0, 100), space(2, 100, 100)];
    // Two blocks of each volume, and two of none.
    for (slot, address) in [3, 4, 103, 104, 903, 904].into_iter().enumerate() {
        let entry = Entry {
            slot: Slot(slot as u32 + 1),
            dirty: address % 2 == 0,
            partial: false,
            rank: 0,
            check: Check::new(0),
        };
        index.restore(Address(address), entry).expect("there is room");
    }
    drop_clean(&index, &spaces, &[VolumeId(1)]);
    let mut left = Vec::new();
    index.scan(|address, _| left.push(address.0));
    left.sort_unstable();
    assert_eq!(left, [4, 103, 104, 904]);
}
