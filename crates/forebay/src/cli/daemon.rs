//! `forebay daemon`: runs the daemon in the foreground.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use forebay_admin::ApiError;
use forebay_settings::duration::parse_duration;

use crate::exit::VerbResult;
use crate::paths;
use crate::values::memory_limit;
use forebay_daemon::{FrontEndOptions, Options, RawExport, log, signals};

/// Arguments of `daemon`.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Directory of the daemon's state [default: /var/lib/forebay for root, $XDG_STATE_HOME/forebay
    /// otherwise]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) state_dir: Option<PathBuf>,

    #[command(flatten)]
    pub(crate) front_ends: FrontEndOptions,

    /// Lanes, the threads that serve requests [default: one per processor, at most 2]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=256), allow_hyphen_values = true)]
    pub(crate) lanes: Option<u32>,

    /// Memory limit of the daemon, everything included; requests that exceed it wait, and a cache
    /// whose index exceeds it is refused [default: half of the machine's memory, or three quarters
    /// of the control group's if that is less]
    #[arg(long, value_name = "SIZE", value_parser = memory_limit, allow_hyphen_values = true)]
    pub(crate) memory_limit: Option<u64>,

    /// Address at which metrics for Prometheus are served over HTTP, and nothing else; they are on
    /// the admin socket in any case
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<std::net::SocketAddr>,

    /// Address at which a page for browsers is served over HTTP: it shows the activity of all
    /// volumes, and changes nothing
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) web: Option<std::net::SocketAddr>,

    /// Time to wait for missing devices of volumes at the start, for example while a machine boots
    /// [default: 0]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) device_wait: Option<std::time::Duration>,
    /// Replace the program of the running daemon by this one, without disconnecting clients; the
    /// daemon keeps the options that it was started with
    #[arg(long, conflicts_with_all = ["state_dir", "nbd", "nbd_allow", "nbd_tls_cert", "nbd_tls_key", "nbd_tls_client_ca", "nbd_tls_client_crl", "export_dir", "fuse_io_uring", "lanes", "memory_limit", "device_wait", "metrics", "web", "export_raw", "check"])]
    pub(crate) take_over: bool,

    /// Check whether a daemon can start with these options and the state, which another may be
    /// using; changes nothing
    #[arg(long)]
    pub(crate) check: bool,

    /// Serve a device without a cache, as a baseline for benchmarks; repeatable
    #[arg(long, value_name = "NAME=DEVICE", hide = true)]
    pub(crate) export_raw: Vec<RawExport>,

    /// Log level (error, warn, info, debug, trace) or a filter like info,forebay_engine=debug
    #[arg(
        long,
        value_name = "FILTER",
        env = "RUST_LOG",
        default_value = "info",
        hide_env_values = true
    )]
    pub(crate) log: String,
}

/// Runs the daemon until a signal ends it.
pub(crate) fn run(socket: Option<PathBuf>, args: DaemonArgs) -> VerbResult {
    if args.check {
        log::filter_of(&args.log)?;
        return forebay_daemon::check(options(socket, args)?);
    }
    signals::block()?;
    let mut has_started = false;
    let ended = serve(socket, args, &mut has_started);
    ended.map_err(|error| if has_started { error } else { forebay_daemon::failed_start(error) })
}

/// Runs the daemon as [`run`] does, and notes in `has_started` that it has started.
fn serve(socket: Option<PathBuf>, args: DaemonArgs, has_started: &mut bool) -> VerbResult {
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
