//! The size of an open cache: its index, and the memory that is held for it.

use std::sync::Arc;

use forebay_device::Device;
use forebay_format::{Arrangement, Geometry};
use forebay_lane::{MemoryHold, MemoryUse, OverLimit};

use crate::error::StoreError;
use crate::index::regions;
use crate::layout::SegmentLayout;
use crate::log::Log;
use crate::options::StoreOptions;
use crate::segments::Segments;
use crate::table::TableGeometry;

/// Maximum number of shards of an index.
const MOST_SHARDS: u32 = 8192;

/// Returns the number of shards in the order of a checkpoint's entries, if an index can have that
/// number. The entries can then be loaded while requests are served.
pub(super) fn shards_of(order: &Arrangement) -> Option<u32> {
    (order.shards.is_power_of_two() && order.shards <= MOST_SHARDS).then_some(order.shards)
}

/// Returns the shape of a cache's index for this number of addresses, and its number of shards. If
/// possible, it uses the given number of shards and mixes the given number of address bits.
pub(super) fn table_geometry(
    geometry: &Geometry,
    blocks: u64,
    shards: Option<u32>,
    key_bits: Option<u32>,
) -> Result<(TableGeometry, u32), String> {
    let cells = SegmentLayout::new(geometry).cells_per_segment();
    // Every cell holds at most one version, so this is always sufficient, even while recovery
    // replays versions that a later record removes.
    let capacity = cells * u64::from(geometry.segment_count);
    // The entries of a shard become visible at once, and the lane serves no request meanwhile: some
    // milliseconds for 2^15 entries.
    let of = |bits: u32| (capacity >> bits).next_power_of_two();
    let by_capacity = of(14).min(1024).max(of(15).min(MOST_SHARDS.into()));
    let shards = shards.unwrap_or(by_capacity as u32);
    // Mixed bits spread blocks evenly if there are some tens of times as many addresses as the
    // cache has blocks; further bits can be added later.
    let own_bits = (capacity * 32).max(1 << 20).next_power_of_two().trailing_zeros();
    let bits = blocks.checked_next_power_of_two().map_or(u64::BITS, u64::trailing_zeros);
    let slot_bits = geometry.slot_count().next_power_of_two().trailing_zeros().max(1);
    let of = |key_bits: u32| TableGeometry::new(capacity, shards, key_bits, slot_bits);
    let known = key_bits
        .filter(|known| *known >= own_bits)
        .map(|known| of(known)?.widened(bits.max(known)));
    let table = match known {
        Some(Ok(table)) => Ok(table),
        // A small table grows until the check fits.
        _ => of(own_bits).and_then(|table| table.widened(bits)).or_else(|_| of(bits)),
    };
    Ok((table.map_err(|error| error.to_string())?, shards))
}

/// Returns the fixed memory of an open cache: use, bytes and name of each part.
fn memory_of(
    geometry: &Geometry,
    table: &TableGeometry,
    lanes: usize,
) -> [(MemoryUse, u64, &'static str); 2] {
    let segments = geometry.segment_count;
    let buffers = Log::most_buffers(lanes, segments) as u64 * geometry.segment_bytes;
    let index = table.bytes() + regions::bytes_for(table) + Segments::bytes_for(segments, lanes);
    [(MemoryUse::Index, index, "the index"), (MemoryUse::LogBuffers, buffers, "the log")]
}

pub(super) fn hold_memory(
    device: &Arc<dyn Device>,
    options: &StoreOptions,
    geometry: &Geometry,
    table: &TableGeometry,
) -> Result<Vec<MemoryHold>, StoreError> {
    let parts = memory_of(geometry, table, options.lanes).into_iter();
    parts
        .map(|(by, bytes, what)| options.memory.hold(by, bytes, what))
        .collect::<Result<_, _>>()
        .map_err(|over| named(device, over.into()))
}

/// Adds the device's name to an error about memory.
pub(super) fn named(device: &Arc<dyn Device>, error: StoreError) -> StoreError {
    match error {
        StoreError::Memory(over) => {
            let what = format!("{}: {}", device.name(), over.what);
            StoreError::Memory(OverLimit { what, ..over })
        }
        error => error,
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use forebay_core::BlockSize;
    use forebay_device::RamDevice;
    use forebay_lane::MemoryBudget;

    use super::*;
    use crate::store::Store;

    fn geometry(bytes: u64) -> Geometry {
        Geometry::plan(bytes, BlockSize::DEFAULT, 512, None).expect("a plan")
    }

    #[test]
    fn the_index_has_room_for_every_cell_and_addresses_to_spare() {
        // Columns: device size, blocks of origins; the resulting shards, mixed bits, and bits of
        // addresses and slots.
        for (bytes, blocks, shards, key, address, slot) in [
            (5 << 20, 100, 1, 20, 20, 11),
            (5 << 20, (1 << 30) - 5, 1, 20, 30, 11),
            (5 << 20, 1 << 42, 1, 42, 42, 11),
            (4 << 30, 100, 64, 25, 25, 20),
            (64 << 30, 100, 1024, 29, 29, 24),
            (128 << 30, 100, 1024, 30, 30, 25),
            (1 << 40, 100, 8192, 33, 33, 28),
            (1 << 40, 1 << 38, 8192, 33, 38, 28),
            (4 << 40, 100, 8192, 35, 35, 30),
        ] {
            let geometry = geometry(bytes);
            let cells = SegmentLayout::new(&geometry).cells_per_segment()
                * u64::from(geometry.segment_count);
            for asked in [None, Some(4)] {
                let made = table_geometry(&geometry, blocks, asked, None);
                let (table, given) = made.expect("it fits");
                assert_eq!(given, asked.unwrap_or(shards), "{bytes}");
                let wanted = TableGeometry::new(cells, given, key, slot).expect("it fits");
                let wanted = wanted.widened(address).expect("it fits");
                assert_eq!(format!("{table:?}"), format!("{wanted:?}"), "{bytes} {blocks}");
            }
        }
    }

    #[test]
    fn an_index_mixes_as_many_bits_as_its_checkpoint_if_it_can() {
        let geometry = geometry(4 << 30);
        let bits = |blocks, known| {
            let (table, _) = table_geometry(&geometry, blocks, None, Some(known)).expect("it fits");
            (table.key_bits(), table.address_bits())
        };
        assert_eq!(bits(100, 25), (25, 25));
        assert_eq!(bits(100, 31), (31, 31));
        assert_eq!(bits(1 << 34, 31), (31, 34));
        // No checkpoint has these values.
        assert_eq!([0, 24, 57, u32::MAX].map(|known| bits(1 << 34, known)), [(25, 34); 4]);
    }

    #[test]
    fn an_index_has_as_many_shards_as_its_checkpoint_if_it_can() {
        let of = |shards| shards_of(&Arrangement { shards, key_bits: 20, spaces: 0, dirty: 0 });
        assert_eq!(
            [1, 1024, 8192, 0, 3, 16384].map(of),
            [Some(1), Some(1024), Some(8192), None, None, None]
        );
    }

    #[test]
    fn memory_of_an_open_cache_is_tested_before_formatting_and_held() {
        let bytes = 64 << 20;
        let geometry = geometry(bytes);
        let (table, _) = table_geometry(&geometry, 1000, None, None).expect("it fits");
        let [(index, index_bytes, _), (log, log_bytes, _)] = memory_of(&geometry, &table, 2);
        assert_eq!((index, log), (MemoryUse::Index, MemoryUse::LogBuffers));
        let segments = Segments::bytes_for(geometry.segment_count, 2);
        assert_eq!(index_bytes, table.bytes() + regions::bytes_for(&table) + segments);
        let buffers = Log::most_buffers(2, geometry.segment_count) as u64;
        assert_eq!(log_bytes, buffers * geometry.segment_bytes);

        let device = |bytes| -> Arc<dyn Device> { RamDevice::new("ram", bytes).expect("memory") };
        let with = |limit| StoreOptions {
            lanes: 2,
            memory: Arc::new(MemoryBudget::new(limit)),
            ..StoreOptions::default()
        };
        let options = with(1 << 30);
        let held =
            hold_memory(&device(bytes), &options, &geometry, &table).expect("there is enough");
        assert_eq!(options.memory.used(MemoryUse::Index), index_bytes);
        assert_eq!(options.memory.used(MemoryUse::LogBuffers), log_bytes);
        drop(held);
        Store::fits(&device(bytes), BlockSize::DEFAULT, &options).expect("there is enough");
        assert_eq!(options.memory.total(), 0, "nothing is held");
        assert!(Store::fits(&device(bytes), BlockSize::DEFAULT, &with(log_bytes)).is_err());
        assert!(Store::fits(&device(1 << 20), BlockSize::DEFAULT, &options).is_err());
    }
}
