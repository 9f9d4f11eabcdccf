//! `forebay daemon`: runs the daemon in the foreground.

use std::path::PathBuf;

use forebay_admin::ApiError;

use crate::cli::DaemonArgs;
use crate::exit::Outcome;
use crate::paths;
use forebay_daemon::{Options, log, signals};

/// Runs the daemon until a signal ends it.
pub(super) fn run(socket: Option<PathBuf>, args: DaemonArgs) -> Outcome {
    if args.check {
        log::filter_of(&args.log)?;
        return forebay_daemon::check(options(socket, args)?);
    }
    signals::block()?;
    let mut has_started = false;
    let ended = serve(socket, args, &mut has_started);
    ended.map_err(|error| if has_started { error } else { forebay_daemon::failed_start(error) })
}

/// As [`run`]; notes in `has_started` that the daemon has started.
fn serve(socket: Option<PathBuf>, args: DaemonArgs, has_started: &mut bool) -> Outcome {
    let _logging = log::begin(&args.log)?;
    forebay_daemon::run(options(socket, args)?, has_started)
}

fn options(socket: Option<PathBuf>, args: DaemonArgs) -> Result<Options, ApiError> {
    Ok(Options {
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
