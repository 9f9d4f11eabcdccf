//! The daemon's log: lines on stderr, few of a kind, and the latest in memory for `forebay support`.
//!
//! - [`limit`]: leaves out messages that repeat
//! - [`ring`]: the latest lines

mod limit;
mod ring;

use std::io::IsTerminal;
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use forebay_admin::{ApiError, LogReport};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use limit::{Limit, LimitLayer};
use ring::{Ring, Writers};

/// The log of this process: there is one, as there is one stderr.
static LOG: OnceLock<Log> = OnceLock::new();

struct Log {
    limit: Arc<Limit>,
    ring: Arc<Ring>,
}

/// Begins to log to stderr what passes `filter`, a level or a list of targets with levels.
///
/// # Errors
/// It is no filter.
pub(crate) fn begin(filter: &str) -> Result<(), ApiError> {
    let filter = EnvFilter::builder().parse(filter).map_err(|error| {
        ApiError::invalid("--log", format!("{error}; write a level like info, or target=level"))
    })?;
    let Log { limit, ring } =
        LOG.get_or_init(|| Log { limit: Arc::default(), ring: Arc::default() });
    let lines =
        fmt::layer().with_writer(std::io::stderr).with_ansi(std::io::stderr().is_terminal());
    // The journal adds the time itself.
    let lines = match std::env::var_os("JOURNAL_STREAM").is_some() {
        true => lines.without_time().boxed(),
        false => lines.boxed(),
    };
    tracing_subscriber::registry()
        .with(lines)
        .with(fmt::layer().with_writer(Writers(ring.clone())).with_ansi(false))
        .with(LimitLayer(limit.clone()))
        .with(filter)
        .init();
    Ok(())
}

/// Says of what repeated how much was left out; to be called every second or so.
pub(crate) fn sweep() {
    if let Some(log) = LOG.get() {
        log.limit.sweep(Instant::now());
    }
}

/// As [`sweep`], at the end of the daemon: nothing more is to come.
pub(crate) fn finish() {
    if let Some(log) = LOG.get() {
        log.limit.finish();
    }
}

/// Returns how many messages were left out.
pub(crate) fn left_out() -> u64 {
    LOG.get().map_or(0, |log| log.limit.left_out())
}

/// Returns the latest lines.
pub(crate) fn report() -> LogReport {
    let lines = LOG.get().map_or_else(Vec::new, |log| log.ring.lines());
    LogReport { lines, left_out: left_out() }
}
