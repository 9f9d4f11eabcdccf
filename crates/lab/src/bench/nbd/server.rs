//! `forebay-lab nbd-server`: one volume over NBD, cache and origin in RAM. The benchmark runs it as
//! a process of its own, so that its CPU time can be told from the client's.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use forebay_core::{Mode, parse_size};
use forebay_device::{Access, FileDevice, RamDevice};
use forebay_engine::{Exports, LaneContext, Settings};
use forebay_lane::{LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_nbd::{ConnectionCount, Limits, ListenAddress, ListenError, Listener, Server};

use crate::error::{LabResult, other};
use crate::rig::{Plan, VOLUME, build, no_writeback};

/// Arguments of `forebay-lab nbd-server`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Address: the path of a socket with a '/', or HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// Size of the volume; the cache is twice as large, so that everything stays cached
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = parse_size)]
    size: u64,
    /// Write through the cache (mode writethrough), with cache and origin in files in this
    /// directory
    #[arg(long, value_name = "DIR")]
    through: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> LabResult<()> {
    let size = args.size;
    let address: ListenAddress =
        args.listen.parse().map_err(|error: ListenError| other(error.to_string()))?;
    let cache_size = 2 * size + (64 << 20);
    let plan = match &args.through {
        Some(folder) => through(folder, cache_size, size)?,
        None => everything_stays((
            RamDevice::new("cache", cache_size)?,
            RamDevice::new("origin", size)?,
        )),
    };
    let (uri, thread) = serve(async move |lane| start(lane, plan, &address).await)?;
    println!("{uri}");
    thread.join()?;
    Ok(())
}

/// Plans a cache on the first device for the second one, in which everything stays.
pub(crate) fn everything_stays((cache, origin): (Arc<RamDevice>, Arc<RamDevice>)) -> Plan {
    let mut settings = no_writeback();
    // Clients may fill the volume from its start to its end, and that must stay in the cache.
    settings.sequential_cutoff = 0;
    Plan { touched: true, ..Plan::new(cache, origin, settings) }
}

/// Plans a cache and an origin in files, with the settings of a new volume in mode writethrough.
fn through(folder: &Path, cache: u64, origin: u64) -> LabResult<Plan> {
    let file = |name: &str, size| {
        FileDevice::open(&folder.join(name), Access::Exclusive, Some(size))
            .map_err(|error| other(error.to_string()))
    };
    let settings = Settings { mode: Mode::Writethrough, ..Settings::default() };
    let plan = Plan::new(file("cache", cache)?, file("origin", origin)?, settings);
    Ok(Plan { touched: true, ..plan })
}

/// Starts a lane on which `start` makes a server, which lives until the lane ends. Returns the
/// value of `start` once the server accepts clients.
pub(crate) fn serve<T: Send + 'static, S: 'static>(
    start: impl AsyncFnOnce(&LaneLoop) -> LabResult<(T, S)> + Send + 'static,
) -> LabResult<(T, LaneThread)> {
    let (tell, hear) = mpsc::channel();
    let setup = move |lane: &LaneLoop| {
        let kept: Rc<RefCell<Option<S>>> = Rc::default();
        let (inner, lane_loop) = (kept.clone(), lane.clone());
        lane.lane().spawn(async move {
            let _ = tell.send(start(&lane_loop).await.map(|(said, server)| {
                inner.replace(Some(server));
                said
            }));
        });
        kept
    };
    let clock = Arc::new(MonotonicClock::new());
    let thread = LaneThread::spawn("lane-0", LaneId(0), clock, LaneOptions::default(), setup)?;
    let said = hear.recv().map_err(|_| other("the server has ended"))??;
    Ok((said, thread))
}

/// Makes a cache as planned.
pub(crate) async fn cached(lane: &LaneLoop, plan: Plan) -> LabResult<Rc<dyn Exports>> {
    let driven = lane.clone();
    let context = LaneContext {
        lane: lane.lane().clone(),
        queues: Rc::new(lane.context()),
        register: Rc::new(move |queue| driven.register(queue)),
    };
    Ok(build(context, plan).await?)
}

/// Serves the planned volume by NBD, and returns where clients find it.
async fn start(
    lane: &LaneLoop,
    plan: Plan,
    address: &ListenAddress,
) -> LabResult<(String, Server)> {
    let exports = cached(lane, plan).await?;
    let listener = Listener::bind(address).map_err(|error| other(error.to_string()))?;
    let uri = listener.address().uri(VOLUME, false);
    let (limits, count) = (Limits::default(), ConnectionCount::default());
    Ok((uri, Server::serve(lane.lane(), lane.ring(), &[listener], exports, limits, count)))
}
