//! Parsers of the values on the command line.

use std::time::Duration;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use forebay_admin::EventKind;
use forebay_core::units::missing_unit;
use forebay_core::{BlockSize, Durability, Mode, ReplacementKind, parse_size};
use forebay_settings::duration::parse_duration;
use forebay_trace::{BLOCK, Format};

/// The longest time-out.
const MOST: Duration = Duration::from_secs(30 * 86400);

/// Parses one of some words with the type's own parser, which accepts short forms and reports its
/// own errors; completions offer the words.
#[derive(Clone, Copy)]
pub(crate) struct WordParser<T: 'static>(pub(crate) &'static [T]);

/// A type whose values have names.
pub(crate) trait Word:
    Copy + std::str::FromStr<Err: Into<Box<dyn std::error::Error + Send + Sync>>> + Send + Sync
{
    /// Returns the name of this value.
    fn word(self) -> &'static str;
}

macro_rules! words {
    ($($type:ty),*) => {$(
        impl Word for $type {
            fn word(self) -> &'static str {
                self.name()
            }
        }
    )*};
}

words!(Mode, ReplacementKind, Durability, Format, EventKind);

impl<T: Word> TypedValueParser for WordParser<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &clap::Command,
        arg: Option<&clap::Arg>,
        value: &std::ffi::OsStr,
    ) -> Result<T, clap::Error> {
        StringValueParser::new().try_map(|text| text.parse()).parse_ref(command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new(self.0.iter().map(|value| PossibleValue::new(value.word()))))
    }
}

/// Parses the share of blocks that are sampled.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse().ok().filter(|rate| (1e-6..=1.0).contains(rate));
    rate.ok_or_else(|| "the share must be 0.000001 to 1; 0.01 suits most traces".to_owned())
}

/// Parses the time between two looks, in seconds.
pub(crate) fn interval(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.1..=3600.0).contains(seconds));
    let seconds = seconds.ok_or_else(|| "an interval must be 0.1 to 3600 seconds".to_owned())?;
    Ok(Duration::from_secs_f64(seconds))
}

/// Parses a time in seconds, or one with a unit.
pub(crate) fn timeout(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().map(Duration::try_from_secs_f64).and_then(Result::ok);
    let time = seconds.or_else(|| parse_duration(text).ok());
    let time = time.filter(|time| (Duration::from_millis(1)..=MOST).contains(time));
    time.ok_or_else(|| {
        "a time-out must be 0.001 seconds to 30 days, like 10, 0.5, 500ms or 2m".to_owned()
    })
}

/// Parses the size of a cache.
pub(crate) fn cache_size(text: &str) -> Result<u64, String> {
    with_unit(text, size(text)?, |bytes| bytes >= BLOCK)
        .unwrap_or_else(|| Err("a cache has at least one block, 4K".to_owned()))
}

/// Parses a number of bytes, with a unit.
pub(crate) fn size(text: &str) -> Result<u64, String> {
    parse_size(text).map_err(|error| error.to_string())
}

/// Parses an amount of RAM; 0 is none.
pub(crate) fn ram_size(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    with_unit(text, bytes, |bytes| bytes == 0 || bytes >= BLOCK).unwrap_or(Ok(bytes))
}

/// Parses a limit for the memory of a process; whether that has enough is for the process to say.
pub(crate) fn memory_limit(text: &str) -> Result<u64, String> {
    let bytes = size(text)?;
    with_unit(text, bytes, forebay_daemon::is_memory_limit).unwrap_or(Ok(bytes))
}

/// Parses the size of a block.
pub(crate) fn block_size(text: &str) -> Result<BlockSize, String> {
    let is_one = |bytes| BlockSize::new(bytes).is_some();
    let bytes = with_unit(text, size(text)?, is_one).transpose()?;
    bytes.and_then(BlockSize::new).ok_or_else(|| {
        "a block must be a power of two from 2K to 1M; 4K suits most volumes".to_owned()
    })
}

/// Returns a size that `fits`, or the error for one that lacks a unit; `None`: it does not fit for
/// another reason.
fn with_unit(text: &str, bytes: u64, fits: impl Fn(u64) -> bool) -> Option<Result<u64, String>> {
    if fits(bytes) { Some(Ok(bytes)) } else { missing_unit(text, fits).map(Err) }
}
