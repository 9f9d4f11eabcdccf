//! The counters of each volume, in one table: it generates the counters of the engine's lanes,
//! their sums and the reports of the admin API.

/// Calls a macro with the table of counters: a name and a sentence for each.
#[macro_export]
macro_rules! for_each_counter {
    ($callback:ident) => {
        $callback! {
            read_hits "Reads answered by the cache alone.",
            read_partial "Reads answered by both the cache and the origin.",
            read_misses "Reads answered by the origin alone.",
            write_hits "Writes that replaced cached blocks only.",
            write_misses "Writes with at least one block that was not cached.",
            write_through "Writes that the origin had before they were acknowledged.",
            flushes "Flushes.",
            discards "Discards, and zeroes that are not written as data.",
            user_read_bytes "Bytes read by clients.",
            user_written_bytes "Bytes written by clients.",
            cache_read_bytes "Bytes of this volume read from the cache device.",
            cache_written_bytes "Bytes of payload of this volume appended to the log.",
            origin_read_bytes "Bytes read from the origin.",
            origin_written_bytes "Bytes written to the origin.",
            filled_blocks "Blocks filled from the origin.",
            written_back_blocks "Blocks written back.",
            reinserted_blocks "Blocks that reclaim reinserted to keep them cached.",
            reinserted_dirty_blocks
                "Blocks that reclaim reinserted only because they are newer than the origin.",
            limited_requests "Requests that waited because of limit_iops or limit_bandwidth.",
            limited_wait_ns "Nanoseconds that they waited in all.",
            errors "Requests that failed, except those that the origin does not support.",
            origin_read_errors "Reads of the origin that failed.",
            cache_read_errors
                "Reads of the cache device that failed; checksum errors are counted elsewhere.",
        }
    };
}

macro_rules! totals {
    ($($name:ident $help:literal,)*) => {
        /// The counters of one volume, summed over all lanes.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct CounterTotals {
            $(#[doc = $help] pub $name: u64,)*
        }
    };
}

for_each_counter!(totals);
