//! Log buffers in every interleaving that the memory model allows. Loom does not see their bytes; a
//! cell per unit stands for them, and loom fails when two threads access it concurrently.

use std::ops::Range;
use std::sync::Arc;

use forebay_core::sync::loom::{self, cell::UnsafeCell, thread};

use crate::log_buffer::{CLAIM_UNIT, Claim, LogBuffer};

/// Enough for two words in a bitmap.
const UNITS: usize = 128;

struct Shared {
    buffer: Arc<LogBuffer>,
    units: Vec<UnsafeCell<()>>,
}

impl Shared {
    fn new() -> Arc<Self> {
        let buffer = LogBuffer::new(UNITS * CLAIM_UNIT);
        Arc::new(Shared { buffer, units: (0..UNITS).map(|_| UnsafeCell::new(())).collect() })
    }

    /// Claims units, and writes them if they were free.
    fn write(&self, units: Range<usize>) -> Option<Claim> {
        let claim = self.buffer.claim(units.start * CLAIM_UNIT..units.end * CLAIM_UNIT)?;
        for unit in units {
            self.units[unit].with_mut(|_| ());
        }
        Some(claim)
    }

    fn read(&self, units: Range<usize>) {
        if self.buffer.get(units.start * CLAIM_UNIT..units.end * CLAIM_UNIT).is_some() {
            for unit in units {
                self.units[unit].with(|_| ());
            }
        }
    }
}

#[test]
fn published_bytes_are_complete() {
    loom::model(|| {
        let shared = Shared::new();
        let writer = shared.clone();
        thread::spawn(move || writer.write(63..65).expect("free").publish());
        shared.read(64..65);
        shared.read(63..65);
    });
}

#[test]
fn overlapping_claims_are_exclusive_and_failed_ones_undone() {
    loom::model(|| {
        let shared = Shared::new();
        let other = shared.clone();
        let thread = thread::spawn(move || other.write(62..65).map(|claim| claim.range()));
        let own = shared.write(64..66).map(|claim| claim.range());
        let claims = [own, thread.join().expect("no panic")];
        assert!(claims.iter().flatten().count() < 2, "{claims:?}");
        for unit in 62..66 {
            let taken = claims.iter().flatten().any(|range| range.contains(&(unit * CLAIM_UNIT)));
            assert_eq!(shared.write(unit..unit + 1).is_none(), taken, "{unit}, {claims:?}");
        }
    });
}
