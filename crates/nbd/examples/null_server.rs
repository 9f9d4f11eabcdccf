//! An NBD server without a cache behind it, to measure the cost of the front end alone.
//!
//! `null_server ADDRESS [null|memory|later] [SIZE]`, for example
//! `null_server /run/null.sock memory 1G`. Ends with the process.

use std::process::ExitCode;
use std::rc::Rc;
use std::sync::Arc;

use forebay_core::parse_size;
use forebay_engine::BlockService;
use forebay_lane::{Lane, LaneId, LaneLoop, LaneOptions, LaneThread, MonotonicClock};
use forebay_nbd::null::{ExportList, LaterTarget, MemoryDisk, MemoryTarget, NullTarget};
use forebay_nbd::{ConnectionCount, Limits, Listener, Server};

fn target(kind: &str, size: u64, lane: &Rc<Lane>) -> Option<Rc<dyn BlockService>> {
    let memory = || Rc::new(MemoryTarget(MemoryDisk::new(size)));
    match kind {
        "null" => Some(Rc::new(NullTarget::new(size, false))),
        "memory" => Some(memory()),
        "later" => Some(Rc::new(LaterTarget::new(lane.clone(), memory()))),
        _ => None,
    }
}

fn serve(arguments: &[String]) -> Result<(), Box<dyn std::error::Error>> {
    let word = |at: usize, default| arguments.get(at).map_or(default, String::as_str).to_owned();
    let (kind, size) = (word(1, "null"), parse_size(&word(2, "1G"))?);
    let listener = Listener::bind(&word(0, "localhost:10809").parse()?)?;
    println!("{}", listener.address().uri("volume", false));
    let setup = move |lane: &LaneLoop| {
        let Some(target) = target(&kind, size, lane.lane()) else {
            eprintln!("null_server: '{kind}' is not null, memory or later");
            lane.stop();
            return None;
        };
        let exports = Rc::new(ExportList::new(vec![("volume".into(), target)]));
        let (limits, count) = (Limits::default(), ConnectionCount::default());
        Some(Server::serve(lane.lane(), lane.ring(), &[listener], exports, limits, count))
    };
    let clock = Arc::new(MonotonicClock::new());
    LaneThread::spawn("lane-0", LaneId(0), clock, LaneOptions::default(), setup)?.join()?;
    Ok(())
}

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args().skip(1).collect();
    match serve(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("null_server: {error}");
            ExitCode::FAILURE
        }
    }
}
