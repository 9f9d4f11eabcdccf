//! `forebay daemon`: runs the daemon in the foreground.

use std::io::IsTerminal;
use std::path::PathBuf;

use forebay_admin::ApiError;
use tracing_subscriber::EnvFilter;

use crate::cli::DaemonArgs;
use crate::daemon::{self, Options};
use crate::exit::Outcome;
use crate::paths;

/// Runs the daemon until a signal ends it.
pub(super) fn run(socket: Option<PathBuf>, args: DaemonArgs) -> Outcome {
    log_to_stderr(&args.log)?;
    daemon::run(Options {
        socket_is_usual: socket.is_none(),
        socket: paths::admin_socket(socket)?,
        state_dir: paths::state_dir(args.state_dir)?,
        front_ends: args.front_ends,
        raw: args.export_raw,
        lanes: args.lanes,
        device_wait: args.device_wait.unwrap_or_default(),
        memory_limit: args.memory_limit,
        metrics: args.metrics,
    })
}

fn log_to_stderr(filter: &str) -> Result<(), ApiError> {
    let filter = EnvFilter::builder().parse(filter).map_err(|error| {
        ApiError::invalid("--log", format!("{error}; write a level like info, or target=level"))
    })?;
    let log = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    // The journal adds the time itself.
    if std::env::var_os("JOURNAL_STREAM").is_some() {
        log.without_time().init()
    } else {
        log.init()
    }
    Ok(())
}
