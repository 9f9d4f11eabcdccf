//! Every metric: name, kind, unit, labels, meaning.
//!
//! The names are stable. A metric is added here and in `metrics`; `tests/metrics.txt` and
//! `docs/metrics.md` follow with `UPDATE_METRICS=1 cargo test -p forebay-daemon metrics`.

use super::text::{Metric, MetricKind};

macro_rules! metrics {
    ($($id:ident $name:literal $kind:ident $unit:literal [$($label:literal),*] $help:literal;)*) => {
        $(pub(super) static $id: Metric = Metric {
            name: $name,
            kind: MetricKind::$kind,
            unit: $unit,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// Every metric, in the order in which they are written.
        #[cfg(test)]
        pub(super) static ALL: &[&Metric] = &[$(&$id),*];
    };
}

metrics! {
    BUILD "forebay_build" Info "" ["version"] "Version of the daemon";
    READY "forebay_ready" Gauge "" [] "Whether all volumes that were served when the daemon began are served again";
    LANES "forebay_lanes" Gauge "" [] "Threads that serve requests";
    HAND_OVERS "forebay_hand_overs" Counter "" [] "Replacements of the program without disconnecting clients";
    EVENTS "forebay_events" Counter "" ["kind"] "Events since the daemon started";
    LOG_LEFT_OUT "forebay_log_messages_left_out" Counter "" [] "Messages that are not in the log because too many of their kind came";
    LOG_DROPPED "forebay_log_lines_dropped" Counter "" [] "Lines of the log that were dropped because stderr did not take them in time";
    MEMORY_LIMIT "forebay_memory_limit_bytes" Gauge "bytes" [] "Memory that the daemon may take";
    MEMORY_USED "forebay_memory_used_bytes" Gauge "bytes" ["component"] "Memory that the daemon takes";

    CACHE_SIZE "forebay_cache_size_bytes" Gauge "bytes" ["cache"] "Space for blocks on the cache device";
    CACHE_USED "forebay_cache_used_bytes" Gauge "bytes" ["cache"] "Cached blocks of all volumes";
    CACHE_INDEX "forebay_cache_index_bytes" Gauge "bytes" ["cache"] "RAM of the index and of the policies";
    CACHE_FAILED "forebay_cache_failed" Gauge "" ["cache"] "Whether a write or sync of the cache device has failed, so that nothing new goes there";
    CACHE_CHECKSUM_ERRORS "forebay_cache_checksum_errors" Counter "" ["cache"] "Blocks on the cache device that failed their checksum";
    CACHE_DEVICE_BYTES "forebay_cache_device_bytes" Counter "bytes" ["cache", "operation"] "Bytes moved by operations on the cache device";
    CACHE_DEVICE_ERRORS "forebay_cache_device_errors" Counter "" ["cache", "operation"] "Operations on the cache device that failed";
    CACHE_DEVICE_SECONDS "forebay_cache_device_operation_duration_seconds" Histogram "seconds" ["cache", "operation"] "Latency of operations on the cache device";

    INFO "forebay_volume" Info "" ["volume", "cache", "origin", "mode", "caching", "policy", "durability"] "The devices and the caching settings of a volume";
    STATE "forebay_volume_state" Gauge "" ["volume", "state"] "1 for the state of the volume, 0 for the others";
    SIZE "forebay_volume_size_bytes" Gauge "bytes" ["volume"] "Size of the volume";
    CACHED "forebay_volume_cached_bytes" Gauge "bytes" ["volume"] "Cached blocks, clean and dirty";
    DIRTY "forebay_volume_dirty_bytes" Gauge "bytes" ["volume"] "Blocks that are newer than the origin";
    LOST "forebay_volume_lost_bytes" Gauge "bytes" ["volume"] "Dirty data that cannot be read any more";
    DISPLACED "forebay_volume_device_displaced" Gauge "" ["volume", "device"] "Whether the path of the device leads to something else or nowhere, so that its content may be lost when the volume stops";
    ORIGIN_REFUSES "forebay_volume_refused_bytes" Gauge "bytes" ["volume"] "Dirty data that the origin does not take, although it takes other writes";
    ORIGIN_WRITES_FAIL "forebay_volume_origin_writes_fail" Gauge "" ["volume"] "Whether writes to the origin or syncs of it fail at the moment";
    WAITS "forebay_volume_device_wait_seconds" Gauge "seconds" ["volume"] "Time for which the start or stop of the volume has waited for a device that does not answer";
    WRITEBACK_RATE "forebay_volume_writeback_rate_bytes_per_second" Gauge "bytes_per_second" ["volume"] "Bytes written back per second, over the last ten seconds or so";
    TIME_TO_CLEAN "forebay_volume_time_to_clean_seconds" Gauge "seconds" ["volume"] "Time at this rate until nothing is dirty; absent while data is dirty and nothing is written back";

    REQUESTS "forebay_volume_requests" Counter "" ["volume", "operation", "served_by"] "Requests of clients by the tier that served them";
    FLUSHES "forebay_volume_flushes" Counter "" ["volume"] "Flushes";
    DISCARDS "forebay_volume_discards" Counter "" ["volume"] "Discards, and zeroes that are not written as data";
    FAILED "forebay_volume_failed_requests" Counter "" ["volume"] "Requests that failed";
    LIMITED "forebay_volume_limited_requests" Counter "" ["volume"] "Requests that waited because of limit_iops or limit_bandwidth";
    LIMITED_SECONDS "forebay_volume_limited_wait_seconds" Counter "seconds" ["volume"] "Total waiting time of these requests";
    CLIENT_BYTES "forebay_volume_client_bytes" Counter "bytes" ["volume", "operation"] "Bytes read and written by clients";
    DURATION "forebay_volume_request_duration_seconds" Histogram "seconds" ["volume", "operation"] "Latency of requests, without the front end and the network; one in 16 of those that complete at once is measured and counts as 16";
    LOOKUPS "forebay_volume_lookups" Counter "" ["volume", "operation", "result"] "Requests to the cache by result; the RAM tier passes on only requests that it cannot answer";
    MISSES "forebay_volume_misses" Counter "" ["volume", "reason"] "Reads that needed the origin";
    BYPASSES "forebay_volume_bypasses" Counter "" ["volume", "reason"] "Requests that bypassed the cache";
    REFUSED "forebay_volume_refused_fill_blocks" Counter "" ["volume", "reason"] "Blocks read from the origin that did not enter the cache";
    EVICTED "forebay_volume_evicted_blocks" Counter "" ["volume", "reason"] "Blocks evicted, or forgotten because they were unreadable";
    INVALIDATED "forebay_volume_invalidated_blocks" Counter "" ["volume", "reason"] "Clean blocks forgotten although their space was not needed";
    WRITTEN_BACK "forebay_volume_written_back_blocks" Counter "" ["volume", "reason"] "Dirty blocks written to the origin";
    WAKES "forebay_volume_origin_wakes" Counter "" ["volume", "reason"] "Accesses of the origin that ended a rest: a minute or more without access";
    FILLED "forebay_volume_filled_bytes" Counter "bytes" ["volume"] "Blocks copied from the origin into the cache";
    REINSERTED "forebay_volume_reinserted_bytes" Counter "bytes" ["volume"] "Blocks written to the cache device once more to keep them";
    WRITEBACK_BYTES "forebay_volume_written_back_bytes" Counter "bytes" ["volume"] "Blocks copied to the origin";
    CACHE_WRITTEN "forebay_volume_cache_written_bytes" Counter "bytes" ["volume"] "Bytes written to the cache device for the volume, headers included";

    ORIGIN_BYTES "forebay_origin_bytes" Counter "bytes" ["volume", "operation"] "Bytes moved by operations on the origin";
    ORIGIN_ERRORS "forebay_origin_errors" Counter "" ["volume", "operation"] "Operations on the origin that failed";
    ORIGIN_SECONDS "forebay_origin_operation_duration_seconds" Histogram "seconds" ["volume", "operation"] "Latency of operations on the origin";
    RESTED "forebay_origin_rest_seconds" Counter "seconds" ["volume"] "Total time of the origin's rests";

    RAM_SIZE "forebay_ram_size_bytes" Gauge "bytes" ["volume"] "Size of the RAM tier";
    RAM_USED "forebay_ram_used_bytes" Gauge "bytes" ["volume"] "Blocks in the RAM tier";
    RAM_DEFERRED "forebay_ram_deferred_bytes" Gauge "bytes" ["volume"] "Data that only RAM has";
    RAM_LOOKUPS "forebay_ram_lookup_blocks" Counter "" ["volume", "result"] "Blocks read by clients, from the RAM tier or from below it";
    RAM_EVICTED "forebay_ram_evicted_blocks" Counter "" ["volume"] "Blocks that left the RAM tier to make room";
    RAM_FAILED "forebay_ram_failed_write_downs" Counter "" ["volume"] "Requests to write deferred data down that failed";
}
