//! One file per verb; those that set `caching` share one.

pub(crate) mod advise;
pub(crate) mod apply;
mod block_device;
mod caching;
pub(crate) mod check;
mod completions;
pub(crate) mod create;
pub(crate) mod daemon;
pub(crate) mod delete;
pub(crate) mod demo;
pub(crate) mod doctor;
pub(crate) mod drop;
pub(crate) mod dump;
pub(crate) mod events;
mod flush;
pub(crate) mod list;
mod man;
pub(crate) mod memory;
pub(crate) mod probe;
pub(crate) mod profiles;
pub(crate) mod ranges;
pub(crate) mod set;
pub(crate) mod show;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod support;
mod take_over;
pub(crate) mod top;
pub(crate) mod trace;

use forebay_admin::VolumeName;
use forebay_admin::api::Operate;

use crate::cli::{Cli, Verb};
use crate::client::Client;
use crate::exit::Outcome;
use crate::output::{print_line, progress};
use forebay_daemon::signals;

/// Runs the verb of the command line.
///
/// # Errors
/// The verb failed.
pub(crate) fn run(cli: Cli) -> Outcome {
    let Cli { socket, timeout, verb } = cli;
    let client = |socket| Client::new(socket, timeout);
    if !matches!(verb, Verb::Daemon(_)) {
        signals::unblock();
    }
    match verb {
        Verb::Daemon(args) if args.take_over => take_over::run(&client(socket)?),
        Verb::Daemon(args) => daemon::run(socket, *args),
        Verb::Create(args) => create::run(&client(socket)?, args),
        Verb::Apply(args) => apply::run(&client(socket)?, &args),
        Verb::List(args) => list::run(&client(socket)?, &args),
        Verb::Show(args) => show::run(&client(socket)?, &args),
        Verb::Top(args) => top::run(&client(socket)?, &args),
        Verb::Events(args) => events::run(&client(socket)?, &args),
        Verb::Set(args) => set::run(&client(socket)?, &args),
        Verb::Flush(args) => flush::run(&client(socket)?, &args),
        Verb::Pause(args) => caching::pause(&client(socket)?, &args),
        Verb::Freeze(args) => caching::freeze(&client(socket)?, &args),
        Verb::Resume(args) => caching::resume(&client(socket)?, &args),
        Verb::Drop(args) => drop::run(&client(socket)?, &args),
        Verb::Prefetch(args) => ranges::prefetch(&client(socket)?, &args),
        Verb::Pin(args) => ranges::pin(&client(socket)?, &args),
        Verb::Unpin(args) => ranges::unpin(&client(socket)?, &args),
        Verb::Evict(args) => ranges::evict(&client(socket)?, &args),
        Verb::Memory(args) => memory::run(&client(socket)?, &args),
        Verb::Stop(args) => stop::run(&client(socket)?, &args),
        Verb::Start(args) => start::run(&client(socket)?, &args),
        Verb::Delete(args) => delete::run(&client(socket)?, &args),
        Verb::Check(args) => check::run(&args),
        Verb::Dump(args) => dump::run(&args),
        Verb::Probe(args) => probe::run(&args),
        Verb::Demo(args) => demo::run(&args),
        Verb::Doctor(args) => doctor::run(&client(socket)?, &args),
        Verb::Support(args) => support::run(&client(socket)?, args),
        Verb::Profiles(args) => profiles::run(&args),
        Verb::Advise(args) => advise::run(|| client(socket), &args),
        Verb::Trace(args) => trace::run(&client(socket)?, &args),
        Verb::HandOverVersion => print_line(&forebay_daemon::HAND_OVER_VERSION.to_string()),
        Verb::BlockDevice { task } => block_device::run(&task),
        Verb::Completions { shell } => completions::run(shell),
        Verb::Man { dir } => man::run(dir.as_deref()),
    }
}

/// Starts an operation on a volume and follows it to its end.
fn operate<Q: serde::Serialize>(
    client: &Client,
    endpoint: &Operate<Q>,
    name: &VolumeName,
    request: &Q,
    doing: &str,
) -> Outcome {
    let begun = client.call(endpoint, name, request)?;
    progress::follow(client, begun, &format!("{doing} {name}"))
}
