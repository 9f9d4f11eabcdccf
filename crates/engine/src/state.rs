//! State that the lanes of a cache share: the cache, its volumes, and their parts. No I/O unless a
//! part states it.

pub(crate) mod admission_rules;
pub(crate) mod bad;
pub(crate) mod bad_reads;
pub(crate) mod cache;
pub(crate) mod committed;
pub(crate) mod curve;
pub(crate) mod dirty;
pub(crate) mod dirty_set;
pub(crate) mod discarding;
pub(crate) mod drains;
pub(crate) mod health;
pub(crate) mod intent;
pub(crate) mod ledger;
pub(crate) mod limits;
pub(crate) mod occupancy;
pub(crate) mod origin;
pub(crate) mod origin_check;
pub(crate) mod origin_latency;
pub(crate) mod pins;
pub(crate) mod ranges;
pub(crate) mod read_share;
pub(crate) mod recording;
pub(crate) mod refused;
pub(crate) mod replacement;
pub(crate) mod share;
pub(crate) mod streams;
pub(crate) mod syncs;
pub(crate) mod throttle;
pub(crate) mod through;
pub(crate) mod untouched;
pub(crate) mod volume;
