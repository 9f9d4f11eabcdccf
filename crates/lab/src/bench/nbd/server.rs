//! `forebay-lab nbd-server`: one volume over NBD, cache and origin in RAM. What the benchmark runs
//! as a process of its own, so that its CPU time can be told from the client's.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::parse_size;
use forebay_device::{Device, RamDevice};
use forebay_engine::LaneContext;
use forebay_lane::{LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_nbd::{ConnectionCount, Limits, ListenAddress, ListenError, Listener, Server};
use forebay_store::StoreOptions;

use crate::bench::rig::{Plan, VOLUME, build, no_writeback};
use crate::error::{LabResult, other};

/// What is served.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Where clients connect: the path of a socket with a '/', or HOST:PORT
    #[arg(long, value_name = "ADDRESS")]
    listen: String,
    /// Size of the volume; the cache is twice as large, so that everything stays cached
    #[arg(long, default_value = "512M", value_name = "SIZE")]
    size: String,
}

pub(crate) fn run(args: &Args) -> LabResult<()> {
    let size = parse_size(&args.size).map_err(|error| other(error.to_string()))?;
    let address = args.listen.parse().map_err(|error: ListenError| other(error.to_string()))?;
    let mut settings = no_writeback();
    // The volume is filled from its start to its end, and that must stay in the cache.
    settings.sequential_cutoff = 0;
    let plan = Plan {
        cache: RamDevice::new("cache", 2 * size + (64 << 20))? as Arc<dyn Device>,
        origin: RamDevice::new("origin", size)? as Arc<dyn Device>,
        settings,
        options: StoreOptions::default(),
        touched: true,
    };
    let setup = move |lane: &LaneLoop| {
        // What is kept until the lane stops.
        let kept: Rc<RefCell<Option<Server>>> = Rc::default();
        let (inner, lane_loop) = (kept.clone(), lane.clone());
        lane.lane().spawn(async move {
            match serve(&lane_loop, plan, &address).await {
                Ok(server) => *inner.borrow_mut() = Some(server),
                Err(error) => {
                    eprintln!("forebay-lab: {error}");
                    lane_loop.stop();
                }
            }
        });
        kept
    };
    let clock = Arc::new(MonotonicClock::new());
    LaneThread::spawn("lane-0", LaneId(0), clock, LaneOptions::default(), setup)?.join()?;
    Ok(())
}

async fn serve(lane: &LaneLoop, plan: Plan, address: &ListenAddress) -> LabResult<Server> {
    let driven = lane.clone();
    let context = LaneContext {
        lane: lane.lane().clone(),
        queues: Rc::new(lane.context()),
        register: Rc::new(move |queue| driven.register(queue)),
    };
    let engine = build(context, plan).await?;
    let listener = Listener::bind(address).map_err(|error| other(error.to_string()))?;
    println!("{}", listener.address().uri(VOLUME));
    let (limits, count) = (Limits::default(), ConnectionCount::default());
    Ok(Server::serve(lane.lane(), lane.ring(), &[listener], engine, limits, count))
}
