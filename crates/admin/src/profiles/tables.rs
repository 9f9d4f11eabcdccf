//! The tables of the profiles: one line per setting, with its source.
//!
//! Features that Forebay lacks are listed in `lacks`, and setting by setting in docs/profiles.md.

use super::{Choice, Profile};

/// `setting = value: source` per line.
macro_rules! choices {
    ($($setting:ident = $value:literal: $source:literal;)*) => {
        &[$(Choice { setting: stringify!($setting), value: $value, source: $source },)*]
    };
}

/// Every profile, in the order of listing.
pub const PROFILES: &[Profile] =
    &[ENHANCEIO, BCACHE, DM_CACHE, LVMCACHE, OPENCAS, MAXIO, DM_WRITEBOOST, FANCYCACHE, PRIMOCACHE];

const ENHANCEIO: Profile = Profile {
    name: "enhanceio",
    system: "EnhanceIO (STEC, 2012)",
    documents: &[
        "README.txt, \"STEC EnhanceIO SSD Caching Software\", 25 December 2012, github.com/stec-inc/EnhanceIO",
        "eio_cli(8), manual page, 25 May 2012, in the same place",
        "eio.h, Driver/enhanceio/eio.h, in the same place",
    ],
    settings: choices! {
        block_size = "4K": "README.txt 1: the default block size is 4 KB; eio_cli(8) -b";
        mode = "writethrough": "eio_cli(8) -m: write-through is the default";
        policy = "fifo": "README.txt 2.5, eio_cli(8) -p: fifo is the default";
        durability = "flush": "README.txt 1: a write goes to the disk as well. With mode=writeback take strict";
        sequential_cutoff = "0": "README.txt 2.9: the bypass of sequential I/O was removed";
        admission = "always": "README.txt 1: data read from the disk is stored on the SSD, with no exception";
        dirty_high = "30": "eio.h DIRTY_HIGH_THRESH_DEF; README.txt 3.3 a";
        dirty_low = "10": "eio.h DIRTY_LOW_THRESH_DEF; README.txt 3.3 b";
        dirty_age = "10m": "README.txt 3.3 f; eio.h CLEAN_FACTOR: a minute for each 16 GB of cache, here for 160 GB";
        idle = "0": "README.txt 3.3: only thresholds and the interval begin a clean-up";
    },
    lacks: "A cache over a device that is already mounted. Thresholds for sets, as there are no sets.",
};

const BCACHE: Profile = Profile {
    name: "bcache",
    system: "bcache (Linux)",
    documents: &[
        "bcache.rst, Documentation/admin-guide/bcache.rst of Linux",
        "writeback.c, drivers/md/bcache/writeback.c of Linux",
        "make.c, make.c of bcache-tools",
    ],
    settings: choices! {
        block_size = "4K": "bcache.rst block_size: the hardware sector size; 4 KiB on an SSD";
        mode = "writethrough": "bcache.rst \"Bad write performance\": writeback is not the default";
        policy = "lru": "make.c: lru unless told otherwise; bcache.rst cache_replacement_policy";
        durability = "flush": "bcache.rst journal_delay_ms: the journal is delayed unless a cache flush happens sooner";
        commit_interval = "100ms": "bcache.rst journal_delay_ms: defaults to 100";
        sequential_cutoff = "4M": "bcache.rst \"traffic not going to the SSD\": the default is 4 MB";
        admission = "always": "bcache.rst \"traffic not going to the SSD\": only sequential I/O and congestion keep data out";
        congested_read_threshold = "2ms": "bcache.rst \"Traffic's still going to the spindle\": 2000 us for reads";
        congested_write_threshold = "20ms": "bcache.rst \"Traffic's still going to the spindle\": 20000 us for writes";
        dirty_high = "10": "bcache.rst writeback_percent: about this share is kept dirty; writeback.c: 10";
        dirty_low = "10": "bcache.rst writeback_percent: the same share, as it is kept and not gone below";
        dirty_age = "0": "bcache.rst has no limit of age";
        idle = "30s": "writeback.c idle_max_writeback_rate: full rate after six periods of 5 s without requests";
    },
    lacks: "Thin volumes on the cache device alone.",
};

const DM_CACHE: Profile = Profile {
    name: "dm-cache",
    system: "dm-cache (Linux)",
    documents: &[
        "cache.rst, Documentation/admin-guide/device-mapper/cache.rst of Linux",
        "cache-policies.rst, Documentation/admin-guide/device-mapper/cache-policies.rst of Linux",
        "dm-cache-target.c, drivers/md/dm-cache-target.c of Linux",
    ],
    settings: choices! {
        block_size = "4K": "cache.rst \"Fixed block size\": 32 KB at least, because of the metadata; here that is not needed, see promote";
        mode = "writeback": "cache.rst \"Cache operating modes\": the default; see lvmcache for that of lvm";
        policy = "smq": "cache-policies.rst: smq is the default";
        durability = "flush": "cache.rst \"Updating on-disk metadata\": as a disk with a volatile write cache";
        commit_interval = "1s": "cache.rst \"Updating on-disk metadata\": without flushes, a commit every second";
        sequential_cutoff = "0": "cache-policies.rst: sequential_threshold is accepted and has no effect";
        admission = "second-hit": "cache-policies.rst: a block is promoted when the hotspot queue says so";
        promote = "256K": "cache.rst \"Fixed block size\": whole blocks, typically of 256 to 1024 KB";
        dirty_age = "0": "cache.rst has no limit of age";
        idle = "1s": "dm-cache-target.c spare_migration_bandwidth(): idle is a second without requests; then all is cleaned";
        writeback_depth = "4": "cache.rst \"Migration throttling\": 1 MB at a time, which are four blocks of 256 KB";
    },
    lacks: "The policy cleaner. A write to an uncached block enters at once, even where dm-cache would wait for its promotion.",
};

const LVMCACHE: Profile = Profile {
    name: "lvmcache",
    system: "lvmcache (lvm2, with dm-cache of Linux)",
    documents: &[
        "lvmcache(7), manual page of lvm2",
        "lvm.conf, conf/example.conf.in of lvm2",
        "cache.rst, Documentation/admin-guide/device-mapper/cache.rst of Linux",
        "cache-policies.rst, Documentation/admin-guide/device-mapper/cache-policies.rst of Linux",
        "dm-cache-target.c, drivers/md/dm-cache-target.c of Linux",
    ],
    settings: choices! {
        block_size = "4K": "cache.rst \"Fixed block size\": 32 KB at least, because of the metadata; here that is not needed, see promote";
        mode = "writethrough": "lvmcache(7) cache mode: the default; dm-cache's own is writeback";
        policy = "smq": "lvmcache(7) cache policy: smq is the default";
        durability = "flush": "cache.rst \"Updating on-disk metadata\": as a disk with a volatile write cache";
        commit_interval = "1s": "cache.rst \"Updating on-disk metadata\": without flushes, a commit every second";
        sequential_cutoff = "0": "cache-policies.rst: sequential_threshold is accepted and has no effect";
        admission = "second-hit": "cache-policies.rst: a block is promoted when the hotspot queue says so";
        promote = "256K": "lvm.conf cache_pool_max_chunks: at most a million chunks, so those of a cache of 256 GB have 256 KB";
        dirty_age = "0": "cache.rst has no limit of age";
        idle = "1s": "dm-cache-target.c spare_migration_bandwidth(): idle is a second without requests; then all is cleaned";
        writeback_depth = "8": "lvmcache(7) migration_threshold: at least eight chunks at a time";
    },
    lacks: "The policy cleaner. A write to an uncached block enters at once, even where dm-cache would wait for its promotion.",
};

const OPENCAS: Profile = Profile {
    name: "opencas",
    system: "Open CAS (Open CAS Linux, OCF 26.03)",
    documents: &[
        "casadm(8), manual page of Open CAS Linux",
        "ocf_def.h, inc/ocf_def.h of github.com/Open-CAS/ocf",
        "alru.h, inc/cleaning/alru.h, in the same place",
    ],
    settings: choices! {
        block_size = "4K": "casadm(8) --cache-line-size: 4 KiB is the default";
        mode = "writethrough": "casadm(8) --cache-mode: wt is the default";
        policy = "lru": "ocf_def.h: lru is the only policy";
        durability = "flush": "casadm(8): not stated; as a disk with a volatile write cache";
        sequential_cutoff = "1M": "casadm(8) seq-cutoff: a threshold of 1 MiB; its policy full applies it only while the cache is full";
        admission = "always": "casadm(8) promotion: always is the default";
        dirty_high = "100": "alru.h OCF_ALRU_DEFAULT_DIRTY_RATIO_THRESHOLD: no share of dirty blocks starts a clean-up";
        dirty_low = "100": "alru.h: the same";
        cache_dirty_high = "100": "alru.h: the same";
        cache_dirty_low = "100": "alru.h: the same";
        dirty_age = "2m": "alru.h OCF_ALRU_DEFAULT_STALENESS_TIME: 120 s without an access";
        idle = "0": "alru.h OCF_ALRU_DEFAULT_ACTIVITY_THRESHOLD: ten seconds without requests alone clean nothing that is younger";
        writeback_depth = "100": "alru.h OCF_ALRU_DEFAULT_FLUSH_MAX_BUFFERS: 100";
    },
    lacks: "IO classes. The mode write-invalidate. A clean-up that waits for ten seconds without requests: dirty_age waits for none.",
};

const MAXIO: Profile = Profile {
    name: "maxio",
    system: "MaxIO (TaoCloud, 1.1.1)",
    documents: &[
        "Report, TaoCloud, test report of MaxIO 1.1.1, October 2015, the only public document",
    ],
    settings: choices! {
        block_size = "4K": "Report: maxio create -b, 4096 by default";
        mode = "writethrough": "Report: maxio create -t, wt by default";
        policy = "lru": "Report: maxio create -r, lru by default";
        durability = "flush": "Report: not stated; as a disk with a volatile write cache";
        sequential_cutoff = "4M": "Report: sequential I/O is recognised and goes to the disk; the threshold is not stated, so this is Forebay's default";
    },
    lacks: "",
};

const DM_WRITEBOOST: Profile = Profile {
    name: "dm-writeboost",
    system: "dm-writeboost (2.2)",
    documents: &[
        "Readme, doc/dm-writeboost-readme.txt of 2.2.17, github.com/akiradeveloper/dm-writeboost",
    ],
    settings: choices! {
        block_size = "4K": "Readme: requests are split into chunks of 4 KB";
        mode = "writeonly": "Readme read_cache_threshold: 0 by default, read caching disabled";
        policy = "fifo": "Readme \"Mechanism\": a log, which is written back from its oldest segment on";
        durability = "flush": "Readme \"Mechanism\": all data are first stored in the RAM buffer";
        sequential_cutoff = "0": "Readme \"Mechanism\": all writes go through the log";
        dirty_age = "0": "Readme has no limit of age";
        idle = "1s": "Readme writeback_threshold: as with the 70 of its example, when the disk is not busy. Its default, never, would be dirty_high=100 dirty_low=100 idle=0";
    },
    lacks: "",
};

const FANCYCACHE: Profile = Profile {
    name: "fancycache",
    system: "FancyCache (Romex Software)",
    documents: &[
        "Guide, FancyCache User Guide, romexsoftware.com/en-us/fancy-cache/help.html",
        "Report, \"defer-write\" of FancyCache 0.5.0 Disk Edition, measured with Iometer",
    ],
    settings: choices! {
        block_size = "4K": "Report: 4 KB; Guide Block Size: smaller is faster and takes more memory";
        mode = "writeback": "Guide Caching Strategy: Read/Write, with Defer-Write as in the report";
        policy = "lfu-r": "Report: LFU-R";
        ram = "1G": "Report: a level 1 cache of 1 GB";
        ram_policy = "lfu-r": "Report: LFU-R";
        durability = "deferred": "Report: Defer-Write; a power failure may lose what is deferred, here only what is not flushed";
        defer = "10s": "Report: a latency of 10 s";
        write_down = "interval": "Guide Defer-Write: after the latency";
        sequential_cutoff = "0": "Guide has no exception for streams";
        admission = "always": "Guide Caching Strategy: both read data and write data are cached";
        dirty_age = "10s": "Report: a latency of 10 s, after which deferred data is written";
        idle = "0": "Guide Defer-Write: after the latency, not when idle";
    },
    lacks: "Releasing RAM on sleep. Release After Write: blocks that were written back stay, clean.",
};

const PRIMOCACHE: Profile = Profile {
    name: "primocache",
    system: "PrimoCache (Romex Software)",
    documents: &["Help, PrimoCache's online help, romexsoftware.com/en-us/primo-cache"],
    settings: choices! {
        block_size = "4K": "Help \"Configuration Terms\": chosen by the user, and a larger one takes less memory; 4 KB as with FancyCache";
        mode = "writethrough": "Help \"Defer-Write\": writes are faster only if it is enabled. With it take writeback";
        policy = "arc": "Help: a mix of LRU and LFU that adapts itself and has no parameter";
        ram = "1G": "Help \"Configuration Terms\": the size of level 1 is chosen by the user; 1 GB as with FancyCache";
        ram_policy = "arc": "Help: a mix of LRU and LFU that adapts itself and has no parameter";
        durability = "flush": "Help \"Defer-Write\": off unless it is enabled. With it take deferred, and defer=10s";
        sequential_cutoff = "0": "Help has no exception for streams";
        admission = "always": "Help \"Configuration Terms\": both read data and write data are cached";
    },
    lacks: "Releasing RAM on sleep. A level 2 cache that is filled when the disk is idle: blocks enter at once.",
};
