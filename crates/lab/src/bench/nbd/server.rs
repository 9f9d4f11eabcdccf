//! `forebay-lab nbd-server`: one volume over NBD, cache and origin in RAM. What the benchmark runs
//! as a process of its own, so that its CPU time can be told from the client's.

use std::cell::RefCell;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::{Arc, mpsc};

use forebay_core::{Mode, parse_size};
use forebay_device::{Access, Device, FileDevice, RamDevice};
use forebay_engine::{BlockService, Cache, EngineLane, Exports, LaneContext, Settings};
use forebay_lane::{Lane, LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_nbd::{ConnectionCount, Limits, ListenAddress, ListenError, Listener, Server};
use forebay_ram::{RamVolume, Tier};

use crate::error::{LabResult, other};
use crate::ram_tier;
use crate::rig::{Plan, VOLUME, build, no_writeback, touch};

/// What is served.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where clients connect: the path of a socket with a '/', or HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// Size of the volume; the cache is twice as large, so that everything stays cached
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    size: String,
    /// Write through the cache (mode writethrough), with cache and origin in files in this directory
    #[arg(long, value_name = "DIR")]
    through: Option<PathBuf>,
}

pub(crate) fn run(args: &Args) -> LabResult<()> {
    let size = parse_size(&args.size).map_err(|error| other(error.to_string()))?;
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
    let (tell, hear) = mpsc::channel();
    let thread = serve(plan, Vec::new(), address, move |served| {
        let _ = tell.send(served.map(|served| println!("{}", served.uri)));
    })?;
    hear.recv().map_err(|_| other("the server has ended"))??;
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

/// A volume that is served.
pub(crate) struct Served {
    pub(crate) cache: Arc<Cache>,
    /// Where clients find the volume.
    pub(crate) uri: String,
}

/// Starts a lane that makes a cache as planned and serves its volume until it is dropped. `memory` is
/// written over first, so that the system has given it before any clock runs. The lane says what came
/// of it.
pub(crate) fn serve(
    plan: Plan,
    memory: Vec<Arc<dyn Device>>,
    address: ListenAddress,
    said: impl FnOnce(LabResult<Served>) + Send + 'static,
) -> LabResult<LaneThread> {
    let setup = move |lane: &LaneLoop| {
        // What is kept until the lane stops.
        let kept: Rc<RefCell<Option<Server>>> = Rc::default();
        let (inner, lane_loop) = (kept.clone(), lane.clone());
        lane.lane().spawn(async move {
            said(match start(&lane_loop, plan, memory, &address).await {
                Ok((served, server)) => {
                    *inner.borrow_mut() = Some(server);
                    Ok(served)
                }
                Err(error) => Err(error),
            });
        });
        kept
    };
    let clock = Arc::new(MonotonicClock::new());
    Ok(LaneThread::spawn("lane-0", LaneId(0), clock, LaneOptions::default(), setup)?)
}

/// The volume behind its RAM tier.
struct Tiered {
    engine: Rc<EngineLane>,
    tier: Arc<Tier>,
    lane: Rc<Lane>,
}

impl Exports for Tiered {
    fn names(&self) -> Vec<String> {
        self.engine.names()
    }

    fn open(&self, name: &str) -> Option<Rc<dyn BlockService>> {
        let volume = self.engine.target(name)?;
        Some(RamVolume::new(self.tier.clone(), volume, self.lane.clone()))
    }
}

/// Makes a cache as planned.
pub(crate) async fn cached(
    lane: &LaneLoop,
    plan: Plan,
    memory: Vec<Arc<dyn Device>>,
) -> LabResult<(Arc<Cache>, Rc<dyn Exports>)> {
    let driven = lane.clone();
    let context = LaneContext {
        lane: lane.lane().clone(),
        queues: Rc::new(lane.context()),
        register: Rc::new(move |queue| driven.register(queue)),
    };
    for device in &memory {
        touch(&context, device).await?;
    }
    let tier = ram_tier::tier(&plan.settings, lane.lane().clock().clone())?;
    let engine = build(context, plan).await?;
    let cache = engine.cache.clone();
    let exports: Rc<dyn Exports> = match tier {
        None => engine,
        Some(tier) => {
            let volume = engine.target(VOLUME).ok_or_else(|| other("the volume is gone"))?;
            ram_tier::keep(&tier, volume, lane.lane());
            Rc::new(Tiered { engine, tier, lane: lane.lane().clone() })
        }
    };
    Ok((cache, exports))
}

async fn start(
    lane: &LaneLoop,
    plan: Plan,
    memory: Vec<Arc<dyn Device>>,
    address: &ListenAddress,
) -> LabResult<(Served, Server)> {
    let (cache, exports) = cached(lane, plan, memory).await?;
    let listener = Listener::bind(address).map_err(|error| other(error.to_string()))?;
    let uri = listener.address().uri(VOLUME, false);
    let (limits, count) = (Limits::default(), ConnectionCount::default());
    let server = Server::serve(lane.lane(), lane.ring(), &[listener], exports, limits, count);
    Ok((Served { cache, uri }, server))
}
