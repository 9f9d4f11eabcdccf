//! What happened, as a running hash and, if wanted, as lines.
//!
//! Two runs with the same hash took the same steps: every operation of a disk, request, answer
//! and fault goes in, with the data that they carried.

use std::fmt;
use std::sync::Arc;

use forebay_core::Nanos;
use parking_lot::Mutex;

/// Mixes two words so that every bit of both reaches every bit of the result.
pub fn mix(left: u64, right: u64) -> u64 {
    let mut word = left.rotate_left(23) ^ right.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    word = (word ^ (word >> 32)).wrapping_mul(0xd6e8_feb8_6659_fd93);
    word ^ (word >> 29)
}

/// A hash of `bytes`. Not for adversaries.
pub fn hash_bytes(bytes: &[u8]) -> u64 {
    let (words, rest) = bytes.as_chunks::<8>();
    let mut hash = bytes.len() as u64;
    for word in words {
        hash =
            (hash.rotate_left(5) ^ u64::from_le_bytes(*word)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    for byte in rest {
        hash = (hash.rotate_left(5) ^ u64::from(*byte)).wrapping_mul(0x517c_c1b7_2722_0a95);
    }
    mix(hash, 0x7261_6365)
}

#[derive(Default)]
struct Inner {
    hash: u64,
    events: u64,
    print: bool,
}

/// The record of one run, shared by all of its parts.
#[derive(Clone, Default)]
pub struct Trace(Arc<Mutex<Inner>>);

impl Trace {
    /// A new record; `print` writes every event to standard output as it happens.
    pub fn new(print: bool) -> Self {
        Trace(Arc::new(Mutex::new(Inner { print, ..Inner::default() })))
    }

    /// Adds one event: a word for its kind, its numbers, and how to print it.
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

    /// The hash of everything so far.
    pub fn hash(&self) -> u64 {
        self.0.lock().hash
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.0.lock().events
    }
}
