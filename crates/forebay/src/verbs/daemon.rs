//! `forebay daemon`: runs the daemon in the foreground.

use std::path::PathBuf;

use crate::cli::DaemonArgs;
use crate::daemon::{self, Options, log, signals};
use crate::exit::Outcome;
use crate::paths;

/// Runs the daemon until a signal ends it.
pub(super) fn run(socket: Option<PathBuf>, args: DaemonArgs) -> Outcome {
    signals::block()?;
    let _logging = log::begin(&args.log)?;
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
        web: args.web,
    })
}
