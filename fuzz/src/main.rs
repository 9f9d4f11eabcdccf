//! Fuzz targets for everything that reads bytes of a device, a client or an operator, in one
//! program. The target comes from the environment:
//!
//!     FOREBAY_FUZZ_TARGET=superblock forebay-fuzz FILE...
//!
//! - [`targets`]: a file for each
//! - [`mutation`]: how an input becomes another one
//! - [`memory`]: a bound on the allocations of a target
//! - [`mend`]: checksums put right after a mutation, so that the fuzzer gets behind them
//! - [`image`]: small cache devices, made by the real engine; [`hostile`]: devices that no program
//!   has made
//! - [`patches`]: changes of their bytes, with corrected checksums
//! - [`device`]: a device over such an image that keeps changes apart
//!
//! `scripts/fuzz` builds it with `--cfg fuzzing`, which adds libFuzzer: the program then takes
//! libFuzzer's arguments. A stable compiler is enough, because libFuzzer needs only options of code
//! generation. Without libFuzzer the program runs the given inputs, and its test runs every target
//! on its seeds and on mutations of them. An input that fails becomes a test in the crate that owns
//! the code.
#![cfg_attr(fuzzing, no_main)]

mod device;
mod hostile;
mod image;
mod memory;
mod mend;
mod mutation;
mod patches;
#[cfg(test)]
mod seeds;
mod targets;

use std::sync::LazyLock;

use forebay_core::BlockSize;
use forebay_format::Uuid;

use targets::{TARGETS, Target};

/// Whether to print the effects of an input: FOREBAY_FUZZ_VERBOSE=1.
static VERBOSE: LazyLock<bool> =
    LazyLock::new(|| std::env::var_os("FOREBAY_FUZZ_VERBOSE").is_some());

/// Prints what an input does, if that is asked for.
macro_rules! say {
    ($($what:tt)*) => {
        if *crate::VERBOSE {
            eprintln!($($what)*);
        }
    };
}
pub(crate) use say;

/// The target that the environment names.
static TARGET: LazyLock<&Target> = LazyLock::new(|| {
    let name = std::env::var("FOREBAY_FUZZ_TARGET").unwrap_or_default();
    TARGETS.iter().find(|target| target.name == name).unwrap_or_else(|| {
        let names = TARGETS.map(|target| target.name).join(" ");
        eprintln!("fuzz: FOREBAY_FUZZ_TARGET is '{name}'; set it to one of: {names}");
        std::process::exit(2)
    })
});

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|data: &[u8]| (TARGET.run)(data));

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    (TARGET.mutate)(data, size, max_size, seed)
});

/// Runs the inputs in the files that the arguments name.
#[cfg(not(fuzzing))]
fn main() -> std::io::Result<()> {
    for path in std::env::args_os().skip(1) {
        (TARGET.run)(&std::fs::read(path)?);
    }
    Ok(())
}

/// The cache of the golden images.
pub(crate) const CACHE: Uuid = Uuid::from_u128(0x00112233_4455_6677_8899_aabbccddeeff);

/// Every block size, the default first: a reserved byte of 0 means that one.
pub(crate) fn block_size(choice: u8) -> BlockSize {
    const SHIFTS: [u32; 10] = [12, 11, 13, 14, 15, 16, 17, 18, 19, 20];
    let shift = SHIFTS[usize::from(choice) % SHIFTS.len()];
    BlockSize::new(1 << shift).unwrap_or_default()
}

/// Cuts `bytes` into pieces of random lengths that the bytes themselves decide, so that an input
/// always behaves the same. At most `most` pieces.
pub(crate) fn pieces(bytes: &[u8], most: usize) -> Vec<&[u8]> {
    let mut rng = fastrand::Rng::with_seed(u64::from(forebay_format::crc32c(bytes)));
    let mut rest = bytes;
    let mut pieces = Vec::new();
    while !rest.is_empty() && pieces.len() + 1 < most {
        let longest = 1 << rng.u32(0..12);
        let (piece, after) = rest.split_at(rng.usize(1..=longest).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}
