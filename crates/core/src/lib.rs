//! Forebay's vocabulary as types. No I/O, no clocks of its own, no unsafe code.
//!
//! - [`units`]: block numbers, slots, segments and sizes
//! - [`cancel`]: the error with which cancelled work ends
//! - [`evidence`]: a system's evidence of writes to a device
//! - [`identity`]: identifies a device by everything except its content
//! - [`mask`]: valid sectors of a block
//! - [`sectors`]: the sizes in which a disk is addressed
//! - [`settings`]: mode, durability, replacement policy, admission
//! - [`quiet`]: hours of the day
//! - [`export`]: front ends of a volume
//! - [`latency`]: latencies by ranges
//! - [`op`]: a client's operations and their errors
//! - [`sync`]: atomics and locks that loom can replace in tests
//! - [`text`]: one-line messages for operators
//! - [`time`]: the clock interface that all other code uses
//! - [`why`]: every reason that is counted
#![forbid(unsafe_code)]

pub mod cancel;
pub mod counters;
pub mod evidence;
pub mod export;
pub mod identity;
pub mod latency;
pub mod mask;
pub mod op;
pub mod quiet;
pub mod sectors;
pub mod settings;
pub mod sync;
pub mod text;
pub mod time;
pub mod units;
pub mod why;

pub use cancel::Cancelled;
pub use counters::CounterTotals;
pub use evidence::{Evidence, Since};
pub use export::{ExportSet, ExportSetError, FrontEndKind};
pub use identity::{Identity, IdentityPart};
pub use latency::{LATENCY_BOUNDS_US, LATENCY_RANGES, LatencyCounts};
pub use mask::SectorMask;
pub use op::{IoError, Op, Survives};
pub use quiet::QuietHours;
pub use sectors::Sectors;
pub use settings::{
    Admission, Caching, ChoiceError, Durability, Laziness, Mode, NbdReach, RamStrategy,
    ReplacementKind, Rotational, SectorSize, WriteDown,
};
pub use time::{Clock, ManualClock, Nanos};
pub use units::{
    BlockSize, Generation, OriginBlock, RecordNumber, SECTOR_SIZE, SegmentId, Slot, VolumeId,
    parse_size,
};
