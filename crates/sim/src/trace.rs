//! The trace of a run, as a running hash and, on request, as lines.
//!
//! Two runs with the same hash took the same steps: every disk operation, request, answer and fault
//! is included, with its data.

use std::fmt;
use std::sync::Arc;

use forebay_core::Nanos;
use forebay_format::checksum;
use parking_lot::Mutex;

/// Mixes two words so that every bit of both affects every bit of the result.
pub fn mix(left: u64, right: u64) -> u64 {
    let mut word = left.rotate_left(23) ^ right.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ (word >> 29)
}

/// Returns a hash of `bytes`; not collision-resistant against adversaries.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    mix(bytes.len() as u64, u64::from(checksum::crc32c(bytes)))
}

#[derive(Default)]
struct Inner {
    hash: u64,
    events: u64,
    print: bool,
}

/// The trace of one run, shared by all of its parts.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Inner>>);

impl Trace {
    /// Creates an empty trace. With `print`, every event is written to standard output immediately.
    pub fn new(print: bool) -> Self {
        Trace(Arc::new(Mutex::new(Inner { print, ..Inner::default() })))
    }

    /// Adds one event: a word for its kind, its numbers, and its printed line.
    pub fn event(&self, now: Nanos, kind: &str, numbers: &[u64], line: fmt::Arguments<'_>) {
        let mut inner = self.0.lock();
        let mut hash = mix(mix(inner.hash, now.0), hash_bytes(kind.as_bytes()));
        for number in numbers {
            hash = mix(hash, *number);
        }
        inner.hash = hash;
        inner.events += 1;
        if inner.print {
            println!("{now} {kind:<8} {line}");
        }
    }

    /// Returns the hash of all events so far.
    pub fn hash(&self) -> u64 {
        self.0.lock().hash
    }

    /// Returns the number of events.
    pub fn events(&self) -> u64 {
        self.0.lock().events
    }
}
