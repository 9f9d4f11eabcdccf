//! `forebay-lab nbd`: the NBD front end with a cache behind it against other servers that keep
//! nothing, or everything, in RAM, or writes through the cache against the origin alone. One client
//! for all of them, one connection, a unix socket.

pub(crate) mod client;
mod peers;
pub(crate) mod server;

use std::time::Duration;

use forebay_core::parse_size;
use serde::Serialize;
use serde_json::json;

use crate::bench::measure::{Sample, in_turns};
use crate::error::{LabResult, other, usage};
use crate::output::{Goal, Row, show};
use crate::progress::Progress;
use crate::rig::BLOCK;
use crate::statistics::{Estimate, median_of};
use client::{Client, Load, Operation};
use peers::{Peer, Place, Running};

/// Files there are in RAM.
const RAM: &str = "/dev/shm";

/// The client of all servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, clap::ValueEnum)]
#[serde(rename_all = "lowercase")]
enum ClientKind {
    /// fio with its nbd engine, as users have it
    Fio,
    /// Our own, which costs so little that the servers are the limit
    Own,
}

impl ClientKind {
    /// Returns the default duration of a sample: fio starts anew for each.
    fn sample_time(self) -> f64 {
        match self {
            ClientKind::Fio => 1.0,
            ClientKind::Own => 0.3,
        }
    }
}

/// Arguments of `forebay-lab nbd`.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct Args {
    /// Rounds in which every server has a sample
    #[arg(long, default_value_t = 15)]
    pairs: usize,
    /// Duration of one sample [default: 1 with fio, else 0.3]
    #[arg(long)]
    seconds_per_sample: Option<f64>,
    /// Client that sends the requests
    #[arg(long, default_value = "fio")]
    client: ClientKind,
    /// Requests in flight
    #[arg(long, default_value = "1,32", value_delimiter = ',')]
    depths: Vec<usize>,
    /// Bytes that are read and written
    #[arg(long, default_value = "512M", value_name = "SIZE", value_parser = parse_size)]
    span: u64,
    /// Write through the cache, at random and in sequence; cache and origin are files in RAM
    #[arg(long)]
    through: bool,
    /// The other servers [default: qemu-null,nbdkit-memory, with --through qemu-file]
    #[arg(long, value_delimiter = ',')]
    peers: Option<Vec<Peer>>,
}

impl Args {
    fn operations(&self) -> &'static [Operation] {
        match self.through {
            true => &[Operation::Write, Operation::SequentialWrite],
            false => &[Operation::Read, Operation::Write],
        }
    }

    /// Ours first.
    fn servers(&self) -> Vec<Peer> {
        let others = self.peers.clone().unwrap_or_else(|| match self.through {
            true => vec![Peer::QemuFile],
            false => vec![Peer::QemuNull, Peer::NbdkitMemory],
        });
        std::iter::once(Peer::Forebay).chain(others).collect()
    }
}

#[derive(Serialize)]
struct Compared {
    operation: Operation,
    depth: usize,
    server: String,
    per_second: f64,
    server_cpu_us: f64,
    client_cpu_us: f64,
    /// Ours against this one.
    ratio: Option<Estimate>,
    goal: Option<Goal>,
}

impl Row for Compared {
    const COLUMNS: &'static str = "OPERATION=operation | DEPTH=depth | SERVER=server | IO/s=per_second:rate | \
        SERVER CPU us=server_cpu_us:2 | CLIENT CPU us=client_cpu_us:2 | OURS/THIS=ratio | \
        GOAL=goal:>=1";
}

pub(crate) fn run(args: &Args, json: bool) -> LabResult<()> {
    let span = args.span;
    let seconds = args.seconds_per_sample.unwrap_or(args.client.sample_time());
    let time =
        Duration::try_from_secs_f64(seconds).map_err(|_| usage("a sample must take some time"))?;
    if span < 1 << 20 || !span.is_multiple_of(1 << 20) || args.depths.contains(&0) {
        return Err(usage("a span of whole megabytes and depths of 1 or more, please"));
    }
    let folder = if args.through { tempfile::tempdir_in(RAM)? } else { tempfile::tempdir()? };
    let place = Place { folder: folder.path().into(), size: span, through: args.through };
    let steps = args.pairs * args.depths.len() * args.operations().len();
    let progress = Progress::new(steps as u64, "starting servers");
    let mut servers = Vec::new();
    for peer in args.servers() {
        let (running, mut client) = Running::start(peer, &place)?;
        client.fill(span)?;
        servers.push((running, client));
    }
    let mut rows = Vec::new();
    for &operation in args.operations() {
        let steps = operation.steps((span / BLOCK) as u32);
        for &depth in &args.depths {
            progress.label(format!("{} at depth {depth}", operation.name()));
            let load = Load { operation, steps: &steps, depth, time };
            let send = |(running, client): &mut (Running, Client)| match args.client {
                ClientKind::Fio => running.run_fio(span, &load),
                ClientKind::Own => client.run(&load),
            };
            rows.extend(compare(&mut servers, &load, &send, args.pairs, &progress)?);
        }
    }
    drop(progress);
    let common = json!({
        "client": args.client, "through": args.through, "pairs": args.pairs, "span_bytes": span
    });
    show(json, common, &rows, |table| {
        let client = match args.client {
            ClientKind::Fio => "fio's nbd engine",
            ClientKind::Own => "a client of our own",
        };
        let how = match args.through {
            true => "written through a cache that has all of them",
            false => "all cached",
        };
        let pairs = args.pairs;
        format!("{table}{pairs} rounds; {client}, one connection; blocks of 4K, {how}")
    })
}

/// Result of one server in one sample.
#[derive(Clone, Copy, Default)]
struct Point {
    per_second: f64,
    server_cpu_us: f64,
    client_cpu_us: f64,
}

fn compare(
    servers: &mut [(Running, Client)],
    load: &Load<'_>,
    send: &dyn Fn(&mut (Running, Client)) -> LabResult<Sample>,
    pairs: usize,
    progress: &Progress,
) -> LabResult<Vec<Compared>> {
    let points = in_turns((pairs, servers.len()), progress, |index| {
        let server = servers.get_mut(index).ok_or_else(|| other("no such server"))?;
        let before = server.0.cpu()?;
        let sample = send(server)?;
        let used = server.0.cpu()?.saturating_sub(before);
        let each = 1e6 / sample.operations.max(1) as f64;
        Ok(Point {
            per_second: sample.per_second(),
            server_cpu_us: used.as_secs_f64() * each,
            client_cpu_us: sample.cpu.as_secs_f64() * each,
        })
    })?;
    let ours = points[0].clone();
    let write = load.operation.is_write();
    Ok(points
        .iter()
        .zip(servers)
        .map(|(points, (running, _))| {
            let peer = running.peer();
            let ratio = (peer != Peer::Forebay).then(|| {
                let ours = ours.iter().map(|point| point.per_second);
                Estimate::of_ratios(ours.zip(points.iter().map(|point| point.per_second)))
            });
            let wanted = peer.goal(write, load.depth);
            Compared {
                operation: load.operation,
                depth: load.depth,
                server: peer.name(),
                per_second: median_of(points, |point| point.per_second),
                server_cpu_us: median_of(points, |point| point.server_cpu_us),
                client_cpu_us: median_of(points, |point| point.client_cpu_us),
                ratio,
                goal: ratio.zip(wanted).map(|(ratio, goal)| Goal::at_least(goal, ratio.median)),
            }
        })
        .collect())
}
