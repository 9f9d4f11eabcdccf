//! The daemon: owns all caches, serves their volumes, answers the admin API.
//!
//! - [`host_api`]: interface of the data path; `host`: the data path
//! - [`volumes`]: keeps the served and the stored volumes consistent; `preflight`: checks of new
//!   ones
//! - [`claims`]: the devices that operations in progress use
//! - [`operations`]: long-running operations; [`work`]: their work and its commit point
//! - [`checking`]: checks of options and state without a start
//! - [`hand_over`]: replaces the program without disconnecting clients; `kept`: descriptors that
//!   the service manager keeps, even after a crash
//! - [`block_lists`]: lists of the blocks that RAM tiers held, and of pinned blocks
//! - [`embedded`]: a daemon within another program, for simulations
//! - [`events`]: events of volumes, devices and the daemon
//! - [`ledger`]: notes about volumes, in case their cache devices are lost
//! - [`devices`]: devices as the operator names them, and whether two names share bytes;
//!   [`content`]: their content
//! - [`curve`]: cache sizes and their hit ratios
//! - [`helper`]: steps that another process executes
//! - [`planted`]: known bugs for the simulator
//! - `private`: the owner and mode of the state directory; `replace`: replaces files of it;
//!   `writer`: turns of its writers
//! - [`state`]: persistent state; [`known`]: the part about caches, open or not
//! - [`api`], [`http`], [`server`]: the admin API, from meaning down to bytes
//! - [`socket`], [`front_ends`]: sockets and addresses
//! - [`tcp`]: TCP addresses over plain HTTP; [`metrics`]: reports as metrics for Prometheus;
//!   [`web`]: the page
//! - `memory`: the memory limit; `pressure`: whether the system is short of memory
//! - [`log`]: the log, in which repeated messages are limited
//! - [`signals`], [`notify`], `watchdog`: signals and the service manager

#![forbid(unsafe_code)]
#![deny(clippy::disallowed_types)]
#![cfg_attr(not(test), deny(clippy::print_stdout, clippy::print_stderr))]

mod afterlife;
mod api;
mod block_lists;
mod checking;
mod claims;
pub mod content;
pub mod curve;
pub mod devices;
pub mod embedded;
mod events;
pub mod faults;
mod front_ends;
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "waits for another program, with nothing else left to do"
)]
mod hand_over;
pub mod helper;
mod host;
mod host_api;
mod http;
mod kept;
mod known;
mod ledger;
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "the log has a thread and a time of its own, which no command waits for"
)]
pub mod log;
mod memory;
mod metrics;
mod note_file;
mod notify;
mod operations;
pub mod paths;
pub mod planted;
mod preflight;
mod pressure;
mod private;
mod raw_names;
mod recording;
mod replace;
pub mod ring_remedy;
#[expect(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "connections have a thread of their own"
)]
mod server;
#[expect(clippy::disallowed_methods, reason = "signals have a thread of their own")]
pub mod signals;
mod socket;
mod state;
mod tcp;
#[cfg(test)]
mod testing;
mod volumes;
#[expect(clippy::disallowed_methods, reason = "a thread that nothing of the daemon may delay")]
mod watchdog;
#[expect(clippy::disallowed_methods, clippy::disallowed_types, reason = "shows the time of day")]
mod web;
mod withdrawn;
mod work;
mod writer;

use std::net::SocketAddr;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use forebay_admin::ApiError;
use forebay_lane::MemoryBudget;

use crate::paths::io_error;
use front_ends::Identities;
use hand_over::HandOverParts;
use host::{DataPathParts, SystemDevices};
use notify::{ServiceManager, ShutdownProgress};
use raw_names::RawNames;
use server::AdminServer;
use signals::{EndRequest, Reading, StopRequest};
use socket::ClaimedSocket;
use state::State;
use volumes::{Programs, Volumes};

pub use checking::check;
pub use events::file::read as read_events;
pub use events::query::since as events_since;
pub use events::stream::{HEARTBEAT, MEDIA_TYPE};
pub use front_ends::FrontEndOptions;
pub use hand_over::{
    VERB as HAND_OVER_VERB, VERSION as HAND_OVER_VERSION, exit_code, failed_start,
};
pub use host::{Opener, RawExport};
pub use host_api::Definition;
pub use ledger::may_be_dirty;
pub use memory::{is_memory_limit, limit as memory_limit, usual_limit};
pub use preflight::definition;
pub use recording::MOST_SECONDS;
pub use state::peek as peek_state;

/// Interval at which the positions of caches are stored. If an older copy replaces a cache device
/// after a crash, at most the data of this interval can be missing unnoticed.
const NOTING: Duration = Duration::from_secs(10);

/// Most lanes by default.
const MAX_DEFAULT_LANES: usize = 2;

/// Options of the daemon.
pub struct Options {
    /// The admin socket.
    pub socket: PathBuf,
    /// Whether the directory of the socket is the default one, and may be created.
    pub socket_is_usual: bool,
    /// The state directory.
    pub state_dir: PathBuf,
    /// Options of the front ends.
    pub front_ends: FrontEndOptions,
    /// Devices that are served without a cache.
    pub raw: Vec<host::RawExport>,
    /// Number of lanes, at least 1.
    pub lanes: Option<u32>,
    /// Time limit for missing devices at the start.
    pub device_wait: Duration,
    /// Memory limit in bytes.
    pub memory_limit: Option<u64>,
    /// TCP address of the metrics.
    pub metrics: Option<SocketAddr>,
    /// TCP address of the page.
    pub web: Option<SocketAddr>,
}

/// Runs until SIGTERM or SIGINT. Sets `has_started` once the start can no longer be refused.
///
/// # Errors
/// The daemon cannot start, and has changed nothing; or it did not end cleanly.
pub fn run(options: Options, has_started: &mut bool) -> Result<(), ApiError> {
    let stop = Arc::new(StopRequest::default());
    let (running, reading) = listen(&stop)?;
    signals::lift_limit_of_files();
    signals::lift_limit_of_descriptors();
    let mut inherited = hand_over::inherited()?;
    log::inherit(inherited.log_missing);
    if inherited.hand_overs == 0 {
        inherited.items = kept::take();
    }
    // Files created from here on are private to the daemon's user unless stated otherwise.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o077));
    let manager = ServiceManager::from_env();
    let front_ends = options.front_ends.complete(&options.socket)?;
    if options.socket_is_usual {
        make_parent(&options.socket)?;
    }
    // Do this before creating anything that the operator named, so that a refused daemon leaves
    // nothing behind.
    if inherited.socket.is_none() {
        ClaimedSocket::probe("--socket", &options.socket)?;
    }
    let state = State::go_on(&options.state_dir, inherited.state_lock.take())?;
    let raw_names = RawNames::new(host::names(&options.raw), &state.names())?;
    let socket = match inherited.socket.take() {
        Some(left) => ClaimedSocket::inherit(&options.socket, left),
        None => ClaimedSocket::claim("--socket", &options.socket, 0o600)?,
    };
    let metrics = claim_tcp(options.metrics, metrics::claim, inherited.hand_overs)?;
    let web = claim_tcp(options.web, web::claim, inherited.hand_overs)?;
    let web = web.map(|claimed| (claimed, options.state_dir.clone()));
    let socket = Arc::new(socket);
    let lanes = options.lanes.unwrap_or_else(default_lanes);
    let records = host::DaemonRecords::open(&state)?;
    // A limit set by the operator holds until the daemon ends, and so for its next program.
    let limit = inherited.memory_limit.or(options.memory_limit);
    let memory = Arc::new(MemoryBudget::new(memory::limit(limit)?).up_to(memory::most()));
    let identities = Identities::default();
    let front_ends =
        front_ends::claim(&front_ends, &memory, &mut inherited.items, &state, &identities)?;
    let ending = Arc::new(ShutdownProgress::new(&manager));
    let host = host::open(DataPathParts {
        lanes,
        front_ends: &front_ends,
        raw: &options.raw,
        opener: Arc::new(SystemDevices { memory: memory.clone() }),
        records,
        memory: &memory,
        ending: &ending,
    })?;
    front_ends::publish_raw(&front_ends, &options.raw)?;
    identities.bind(&host);
    let programs = Programs::new(inherited.hand_overs, &stop, raw_names);
    let volumes = Volumes::new(host, state, front_ends, programs);
    let _ = running.set(volumes.clone());
    volumes.events().program_started(inherited.hand_overs);
    let server = AdminServer::start(socket.clone(), metrics, web, volumes.clone())?;
    tracing::info!(socket = %options.socket.display(), "the admin API is ready");

    volumes.watch(&stop)?;
    watchdog::start(&manager, &volumes, &stop, &ending)?;
    manager.status("Recovering");
    *has_started = true;
    let restored = volumes.restore(&stop, options.device_wait);
    if !stop.is_asked() {
        tracing::info!("ready, {restored}");
        volumes.note_ready();
        manager.ready(&restored.to_string());
    }
    note_positions(&volumes, &stop)?;
    let hand_overs = inherited.hand_overs;
    let ended = end(&manager, &volumes, (&stop, &reading), hand_overs, &socket)?;
    finish(&volumes, server, &ended);
    ended
}

/// Waits for an end to be requested, and executes it. Returns the result.
///
/// # Errors
/// No program can be executed.
fn end(
    manager: &ServiceManager,
    volumes: &Arc<Volumes>,
    (stop, reading): (&StopRequest, &Reading),
    hand_overs: u64,
    socket: &ClaimedSocket,
) -> Result<Result<(), ApiError>, ApiError> {
    match stop.wait() {
        EndRequest::Stop => {
            manager.stopping();
            Ok(volumes.shut_down())
        }
        EndRequest::HandOver(program) => {
            manager.status("Handing over to another program");
            let closed = close_for(&program, volumes, (stop, reading), hand_overs, socket);
            manager.stopping();
            volumes.stop_instead();
            let closed = closed?;
            tracing::info!("stopped instead of handed over");
            Ok(closed)
        }
    }
}

/// Stores the positions of caches periodically, on a separate thread, because the state directory
/// may not answer.
fn note_positions(volumes: &Arc<Volumes>, stop: &Arc<StopRequest>) -> Result<(), ApiError> {
    let (volumes, stop) = (volumes.clone(), stop.clone());
    let spawned = forebay_threads::spawn("positions", move || {
        while stop.wait_for(NOTING).is_none() {
            volumes.note_positions();
        }
    });
    spawned.map(drop).map_err(|error| ApiError::failed(format!("no thread: {error}")))
}

/// Reports in events and in the log how the daemon has ended, and closes the admin API.
fn finish(volumes: &Volumes, server: AdminServer, ended: &Result<(), ApiError>) {
    volumes.events().program_stopped(ended.is_ok());
    drop(server);
    match ended {
        Ok(()) => tracing::info!("stopped cleanly"),
        Err(error) => tracing::error!("did not stop cleanly: {error}"),
    }
    log::finish();
}

fn make_parent(socket: &Path) -> Result<(), ApiError> {
    let Some(dir) = socket.parent() else { return Ok(()) };
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir);
    made.map_err(|error| io_error("cannot make the directory", dir, &error))
}

/// Claims a TCP address, if one was requested. If another process has taken the address during a
/// hand-over, the daemon continues without it, because clients are connected.
fn claim_tcp<T>(
    address: Option<SocketAddr>,
    claim: impl FnOnce(SocketAddr) -> Result<T, ApiError>,
    hand_overs: u64,
) -> Result<Option<T>, ApiError> {
    match address.map(claim).transpose() {
        Err(error) if hand_overs > 0 => {
            tracing::error!("{error}");
            Ok(None)
        }
        claimed => claimed,
    }
}

/// Holds the volumes once they exist.
type Running = Arc<OnceLock<Arc<Volumes>>>;

/// Begins to handle signals. Returns the holder of the volumes, which signals need.
fn listen(stop: &Arc<StopRequest>) -> Result<(Running, Reading), ApiError> {
    let running = Running::default();
    let first = running.clone();
    let reading = signals::listen(
        stop.clone(),
        move || first.get().into_iter().for_each(|volumes| volumes.operations().close()),
        reload(running.clone())?,
    )?;
    Ok((running, reading))
}

/// Closes everything and executes another program. Returns only if that was not possible; if a stop
/// was requested meanwhile, with the result of closing.
///
/// # Errors
/// No program can be executed.
fn close_for(
    program: &Path,
    volumes: &Arc<Volumes>,
    (stop, reading): (&StopRequest, &Reading),
    hand_overs: u64,
    socket: &ClaimedSocket,
) -> Result<Result<(), ApiError>, ApiError> {
    let (items, closed) = volumes.hand_over();
    let Some(items) = items else { return Ok(closed) };
    volumes.events().program_ends();
    reading.end();
    if stop.is_stop() {
        return Ok(closed);
    }
    let (memory_limit, log_missing) = (volumes.memory().limit(), log::finish());
    let socket = socket.leave();
    let state_lock = volumes.state_lock().map_err(|error| {
        ApiError::failed(format!("nothing can be handed over: {error}; clients are disconnected"))
    })?;
    let left = HandOverParts { hand_overs, socket, state_lock, memory_limit, log_missing, items };
    let error = hand_over::execute(program, &left);
    tracing::error!("{error}");
    Err(error)
}

/// Returns a function that handles SIGHUP: it requests a hand-over to the program at the path of
/// this one. A separate thread first asks that program whether it can take over. Requests that
/// arrive meanwhile count as one.
///
/// # Errors
/// The system has no thread left.
fn reload(running: Running) -> Result<impl Fn(), ApiError> {
    let (ask, asked) = forebay_threads::sync_channel(1);
    let spawned = forebay_threads::spawn("reload", move || {
        while asked.recv().is_ok() {
            // A request that arrives while the daemon starts, for example after an earlier SIGHUP,
            // waits until it has started.
            let volumes = running.wait();
            volumes.wait_until_ready();
            // One hand-over to the present program covers all requests so far.
            asked.try_iter().for_each(drop);
            let program = hand_over::own_program().map_err(|error| {
                ApiError::failed(format!("cannot tell which program this is: {error}"))
            });
            match program.and_then(|program| volumes.ask_hand_over(program)) {
                Ok(()) => return,
                Err(error) => tracing::error!("SIGHUP: {error}"),
            }
        }
    });
    spawned.map_err(|error| ApiError::failed(format!("no thread: {error}")))?;
    Ok(move || {
        // If there is no room, a request is waiting already.
        let _ = ask.try_send(());
    })
}

fn default_lanes() -> u32 {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    u32::try_from(processors.min(MAX_DEFAULT_LANES)).unwrap_or(1)
}
