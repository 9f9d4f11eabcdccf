//! `forebay-lab`: benchmarks. Each measures something that the documentation promises, prints the
//! promise beside the number, and leaves the judgement to the reader: nothing here fails because
//! a machine is slow.
//!
//! - `bench`: the engine, its front end, its memory, its recovery, in real time
//! - `virtual_time`: modelled devices and a clock that jumps; `experiments`: experiments in it
//! - `real`: fio on real devices
//! - `report`: pages of results
//! - `process`, `fio`: programs as children, which end when this one is interrupted; `nbd`: a
//!   client
//! - `rig`: an engine in this process, driven by the thread that measures
//! - `pool`: jobs on several threads
//! - `statistics`, `output`, `plot`, `progress`: medians and intervals; tables and JSON; charts;
//!   bars
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    reason = "a benchmark owns its threads and measures the machine's own time"
)]

mod bench;
mod error;
mod experiments;
mod fio;
mod nbd;
mod output;
mod plot;
mod pool;
mod process;
mod progress;
mod ram_tier;
mod real;
mod report;
mod rig;
mod statistics;
mod virtual_time;

use std::process::ExitCode;

use clap::{CommandFactory, Parser, Subcommand};
use forebay_core::text::{one_line, usage_line};
use forebay_trace as trace;

use bench::{amplification, block, commands, engine, memory, observing, recovery};
use experiments::{curve, policies, remote, replay, seeds, whatif, writeback};
use real::{peers, run};

/// Measures Forebay.
#[derive(Debug, Parser)]
#[command(name = "forebay-lab", version)]
#[command(
    after_help = "Exit codes: 0 done, 1 failed, 2 wrong usage, 3 refused (in use, or not the right \
    device), 4 data at risk (needs --destroy)."
)]
struct Args {
    #[command(subcommand)]
    command: Command,
    /// Print the results as JSON
    #[arg(long, global = true)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// The engine on RAM devices, as a share of copying memory
    Engine(engine::Args),
    /// The NBD front end against qemu-storage-daemon and nbdkit
    Nbd(bench::nbd::Args),
    /// Block devices of this machine, in turn
    Block(block::Args),
    /// Serve one cached volume in RAM over NBD until killed
    NbdServer(bench::nbd::server::Args),
    /// Serve one volume in RAM by vhost-user-blk until killed
    VhostUserServer(bench::vhost_user::Args),
    /// Other caches on real devices, side by side with this one
    Peers(peers::Args),
    /// Bytes written to the cache device per byte of user data
    Amplification(amplification::Args),
    /// Memory per cached block
    Memory(memory::Args),
    /// CPU time that observation and control add to a cached read and write
    Observing(observing::Args),
    /// The reports' fio jobs on a device of yours
    Run(run::Args),
    /// Time to open a cache after a crash
    Recovery(recovery::Args),
    /// Commands on a cache of terabytes: time, holds of the lane, requests of neighbours, memory
    Commands(commands::Args),
    /// The experiments of five published reports, in virtual time
    Seeds(seeds::Args),
    /// Miss ratios of replacement policies on a trace
    Policies(policies::Args),
    /// The miss-ratio curve of a trace beside its estimate from a sample
    Curve(curve::Args),
    /// A volume's predictions for other settings beside replays with these, in virtual time
    Whatif(whatif::Args),
    /// The engine under the requests of a trace, in virtual time
    Replay(replay::Args),
    /// Writeback to a disk by the density of dirty blocks, and latencies at a full, dirty cache, in
    /// virtual time
    Writeback(writeback::Args),
    /// Origins without seeks under the rules for disks and under their own, in virtual time
    Remote(remote::Args),
    /// A page of results from what `seeds --save` or `seeds --json` wrote
    Report(report::Args),
}

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => return unparsed(&error),
    };
    let json = args.json;
    let result = match args.command {
        Command::Engine(args) => engine::run(&args, json),
        Command::Nbd(args) => bench::nbd::run(&args, json),
        Command::Block(args) => block::run(&args, json),
        Command::NbdServer(args) => bench::nbd::server::run(&args),
        Command::VhostUserServer(args) => bench::vhost_user::run(&args),
        Command::Peers(args) => peers::run(&args, json),
        Command::Amplification(args) => amplification::run(&args, json),
        Command::Memory(args) => memory::run(&args, json),
        Command::Observing(args) => observing::run(&args, json),
        Command::Run(args) => run::run(&args, json),
        Command::Recovery(args) => recovery::run(&args, json),
        Command::Commands(args) => commands::run(&args, json),
        Command::Seeds(args) => seeds::run(&args, json),
        Command::Policies(args) => policies::run(&args, json),
        Command::Curve(args) => curve::run(&args, json),
        Command::Whatif(args) => whatif::run(&args, json),
        Command::Replay(args) => replay::run(&args, json),
        Command::Writeback(args) => writeback::run(&args, json),
        Command::Remote(args) => remote::run(&args, json),
        Command::Report(args) => report::run(&args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("forebay-lab: {}", one_line(&error.to_string()));
            ExitCode::from(error.exit_code())
        }
    }
}

/// Prints the parser's message: help and version as they are, errors in one line.
fn unparsed(error: &clap::Error) -> ExitCode {
    if !error.use_stderr() {
        // Nothing can be done about a closed pipe here.
        let _ = error.print();
        return ExitCode::SUCCESS;
    }
    let lab = Args::command();
    let words = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
    let verb = words.into_iter().find(|word| lab.find_subcommand(word).is_some());
    let command =
        verb.map_or_else(|| "forebay-lab".to_owned(), |verb| format!("forebay-lab {verb}"));
    eprintln!("forebay-lab: {}", usage_line(&error.render().to_string(), &command));
    ExitCode::from(2)
}
