//! The daemon's log: lines on stderr, limited per kind, and the latest lines in memory for `forebay
//! support`.
//!
//! No thread of the daemon writes to stderr itself, not even in a panic, because the reader of
//! stderr may accept nothing.
//!
//! - [`limit`]: leaves out repeated messages
//! - [`outlet`]: writes to stderr
//! - [`ring`]: the latest lines

mod limit;
mod outlet;
mod ring;

use std::backtrace::{Backtrace, BacktraceStatus};
use std::fs::File;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::panic::PanicHookInfo;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use forebay_admin::error::one_line;
use forebay_admin::{ApiError, LogReport};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Layer, fmt};

use limit::{Limit, LimitLayer, TARGET};
use outlet::{Outlet, WriterFactory};
use ring::{Ring, Writers};

/// Time limit at the end of a program for writing its last lines.
const SETTLING: Duration = Duration::from_secs(1);

/// The log of this process. There is only one, because there is one stderr.
static LOG: OnceLock<DaemonLog> = OnceLock::new();

struct DaemonLog {
    limit: Arc<Limit>,
    outlet: Arc<Outlet>,
    ring: Arc<Ring>,
}

/// The log of a running daemon; its end waits a moment for the last lines to be written.
pub struct Logging(());

impl Drop for Logging {
    fn drop(&mut self) {
        finish();
    }
}

/// Reads the option `--log`.
///
/// # Errors
/// The text is not a filter.
pub fn filter_of(text: &str) -> Result<EnvFilter, ApiError> {
    EnvFilter::builder().parse(text).map_err(|error| {
        ApiError::invalid("--log", format!("{error}; write a level like info, or target=level"))
    })
}

/// Begins to log to stderr. `filter` is a level, or a list of targets with levels.
///
/// # Errors
/// The filter is invalid, or there is no thread to write the log.
pub fn begin(filter: &str) -> Result<Logging, ApiError> {
    let filter = filter_of(filter)?;
    let DaemonLog { limit, outlet, ring } = LOG.get_or_init(|| DaemonLog {
        limit: Arc::default(),
        outlet: Arc::default(),
        ring: Arc::default(),
    });
    // The handle of the standard library is not used: everything else on stderr would wait for its
    // lock.
    let stderr = std::io::stderr().as_fd().try_clone_to_owned();
    let written = stderr.and_then(|stderr| outlet.write_to(File::from(stderr)));
    written.map_err(|error| ApiError::failed(format!("the log cannot be written: {error}")))?;
    let lines = fmt::layer()
        .with_writer(WriterFactory(outlet.clone()))
        .with_ansi(std::io::stderr().is_terminal());
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
    std::panic::set_hook(Box::new(panicked));
    Ok(Logging(()))
}

/// Logs a panic. The default hook would wait for the reader of stderr, on the panicking thread.
fn panicked(panic: &PanicHookInfo<'_>) {
    let thread = std::thread::current();
    let name = thread.name().unwrap_or("without a name");
    // This target is not limited, because the panic may come from within the limit, which is locked
    // then.
    tracing::error!(target: TARGET, "thread '{name}' {}", one_line(&panic.to_string()));
    let trace = Backtrace::capture();
    if trace.status() == BacktraceStatus::Captured {
        tracing::error!(target: TARGET, "{trace}");
    }
}

/// Logs a line that is the last one of this process, and waits a moment for it to be written.
/// Returns `false` if there is no log.
pub fn last_line(line: &str) -> bool {
    let Some(log) = LOG.get() else { return false };
    log.outlet.push(format!("{line}\n").into_bytes());
    log.outlet.flush(SETTLING);
    true
}

/// Logs for each repeated message how many copies were left out. Must be called about once a
/// second.
pub(crate) fn sweep() {
    if let Some(log) = LOG.get() {
        log.limit.sweep(Instant::now());
    }
}

/// Sweeps like [`sweep`], at the end of a program, and waits a moment for the last lines to be
/// written. Returns the number of missing lines.
pub(crate) fn finish() -> u64 {
    LOG.get().map_or(0, |log| {
        log.limit.finish();
        log.outlet.flush(SETTLING)
    })
}

/// Records the number of lines of the previous program that are missing in the log.
pub(crate) fn inherit(missing: u64) {
    if let Some(log) = LOG.get() {
        log.outlet.note_dropped(missing);
    }
}

/// Counts of messages that are missing in the log or on stderr.
#[derive(Debug, Default)]
pub(crate) struct LogCounts {
    /// Number of messages that were left out because there were too many of their kind.
    pub(crate) left_out: u64,
    /// Number of lines that were dropped because stderr did not accept them in time.
    pub(crate) dropped: u64,
}

/// Returns the counts of missing messages since the daemon began.
pub(crate) fn counts() -> LogCounts {
    LOG.get().map_or_else(LogCounts::default, |log| LogCounts {
        left_out: log.limit.left_out(),
        dropped: log.outlet.dropped(),
    })
}

/// Returns the latest lines.
pub(crate) fn report() -> LogReport {
    let lines = LOG.get().map_or_else(Vec::new, |log| log.ring.lines());
    let LogCounts { left_out, dropped } = counts();
    LogReport { lines, left_out, dropped }
}
