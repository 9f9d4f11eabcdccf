//! The command line, declared once: parser, help, man pages and completions all come from here. One
//! file per verb; those that set `caching` share one. `progress` follows an operation.

mod advise;
mod apply;
mod block_device;
mod caching;
mod check;
mod completions;
mod create;
mod daemon;
mod delete;
mod demo;
mod doctor;
mod drop;
mod dump;
mod events;
mod flush;
mod list;
mod man;
mod memory;
mod probe;
mod profiles;
mod progress;
mod ranges;
mod set;
mod show;
mod start;
mod stop;
mod support;
mod take_over;
mod top;
mod trace;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use forebay_admin::api::Operate;
use forebay_admin::{ApiError, Moved, VolumeName};
use forebay_daemon::signals;

use crate::client::DaemonClient;
use crate::exit::{self, VerbResult};
use crate::output::print_line;
use crate::values::timeout;

/// A block cache in user space: RAM and an SSD in front of a slow block device.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true)]
#[command(after_help = exit::exit_codes())]
pub(crate) struct Cli {
    /// Admin socket of the daemon [default: /run/forebay/admin.sock for root,
    /// $XDG_RUNTIME_DIR/forebay/admin.sock otherwise]
    #[arg(
        long,
        global = true,
        env = "FOREBAY_SOCKET",
        value_name = "PATH",
        hide_env_values = true
    )]
    #[arg(value_hint = ValueHint::FilePath, display_order = 900)]
    pub(crate) socket: Option<PathBuf>,

    /// Time limit for each answer of the daemon, in seconds or as a duration like 500ms or 2m; an
    /// operation in progress has no limit [default: 30]
    #[arg(
        long,
        global = true,
        env = "FOREBAY_TIMEOUT",
        value_name = "SECONDS",
        hide_env_values = true,
        allow_hyphen_values = true
    )]
    #[arg(value_parser = timeout, display_order = 901)]
    pub(crate) timeout: Option<Duration>,

    /// The verb with its arguments.
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// The verbs.
#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Run the daemon in the foreground
    Daemon(Box<daemon::DaemonArgs>),
    /// Create a volume, serve it, print its block device or NBD URI
    Create(create::CreateArgs),
    /// Make the volumes match a file that declares them; a second run changes nothing
    Apply(apply::ApplyArgs),
    /// Show the profiles of create --profile: their settings and sources
    Profiles(profiles::ProfilesArgs),
    /// List the volumes
    List(list::ListArgs),
    /// Show everything about one volume
    #[command(after_help = forebay_admin::reasons::help_text())]
    Show(show::ShowArgs),
    /// Watch the volumes: hits, requests, latencies, dirty data and writeback
    #[command(after_help = top::keys())]
    Top(top::TopArgs),
    /// Print events of volumes, devices and the daemon
    #[command(after_help = forebay_admin::event::help_text())]
    Events(events::EventsArgs),
    /// Change settings of a volume
    #[command(after_help = forebay_settings::help::help_text())]
    Set(set::SetArgs),
    /// Write all dirty blocks of a volume to its origin
    Flush(NameArgs),
    /// Write everything to the origin that only the cache has, then pass all requests through to it
    Pause(NameArgs),
    /// Serve and update cached blocks, and let no others enter the cache
    Freeze(NameArgs),
    /// Cache again after pause or freeze
    Resume(NameArgs),
    /// Discard cached data of a volume; data that is not on the origin yet stays
    Drop(drop::DropArgs),
    /// Load ranges or files into the cache; without any, the blocks that RAM held at the last stop
    Prefetch(ranges::PrefetchArgs),
    /// Keep ranges or files in the cache, and load them; without any, print the pinned ranges
    Pin(ranges::PinArgs),
    /// Let ranges or files be evicted again
    Unpin(ranges::UnpinArgs),
    /// Discard cached data of ranges or files; data that is not on the origin yet stays
    Evict(ranges::EvictArgs),
    /// Show the daemon's memory, or change its limit
    Memory(memory::MemoryArgs),
    /// Stop serving a volume; its cache stays warm
    Stop(stop::StopArgs),
    /// Serve a stopped volume again
    Start(start::StartArgs),
    /// Remove a volume from its cache; dirty blocks are written to the origin first
    Delete(delete::DeleteArgs),
    /// Verify a cache device that no daemon uses; changes nothing
    Check(check::CheckArgs),
    /// Print the content of a cache device that no daemon uses; changes nothing
    Dump(dump::DumpArgs),
    /// Print the role of a block device for Forebay; changes nothing
    Probe(probe::ProbeArgs),
    /// Show the effect of a cache on modelled disks, and that a crash loses nothing
    Demo(demo::DemoArgs),
    /// Check this host for missing parts, and recommend a front end
    Doctor(doctor::DoctorArgs),
    /// Collect a bug report's files into an archive, without data of volumes and without secrets
    Support(support::SupportArgs),
    /// Recommend a cache size from a trace or from a running volume
    Advise(advise::AdviseArgs),
    /// Record the requests of a volume's clients, as a trace that advise reads
    Trace(trace::TraceArgs),
    /// Attach and detach loop devices for a daemon
    #[command(name = forebay_daemon::helper::VERB, hide = true)]
    BlockDevice {
        /// The task
        #[arg(allow_hyphen_values = true)]
        task: Vec<std::ffi::OsString>,
    },
    /// Print the version of the list that one program hands over to the next
    #[command(name = forebay_daemon::HAND_OVER_VERB, hide = true)]
    HandOverVersion,
    /// Print a completion script for a shell
    Completions {
        /// The shell
        shell: clap_complete::Shell,
    },
    /// Print the manual page, or write the pages of all verbs into a directory
    Man {
        /// Directory for the pages
        #[arg(value_hint = ValueHint::DirPath)]
        dir: Option<PathBuf>,
    },
}

/// Parses the command line. Prints help, version and errors itself.
///
/// # Errors
/// The exit code, if the process should end.
pub(crate) fn parse() -> Result<Cli, u8> {
    Cli::try_parse().map_err(|error| {
        let command = command();
        let is_verb = |word: &String| command.find_subcommand(word).is_some();
        let words = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
        let verb = words.into_iter().find(is_verb);
        exit::usage(&error, verb.as_deref())
    })
}

/// Runs the verb of the command line.
///
/// # Errors
/// The verb failed.
pub(crate) fn run(cli: Cli) -> VerbResult {
    let Cli { socket, timeout, verb } = cli;
    let client = |socket| DaemonClient::new(socket, timeout);
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
        Verb::Completions { shell } => completions::run(shell, &mut command()),
        Verb::Man { dir } => man::run(dir.as_deref(), command()),
    }
}

/// Returns the declarations, from which other texts are generated.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

/// Arguments of verbs that take one volume.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The volume
    pub(crate) name: VolumeName,
}

/// Starts an operation on a volume and follows it to its end.
fn operate<Q: serde::Serialize>(
    client: &DaemonClient,
    endpoint: &Operate<Q>,
    name: &VolumeName,
    request: &Q,
    doing: &str,
) -> VerbResult {
    moved_by(client, endpoint, name, request, doing).map(|_| ())
}

/// Starts an operation as [`operate`] does, and returns the data that it moved.
fn moved_by<Q: serde::Serialize>(
    client: &DaemonClient,
    endpoint: &Operate<Q>,
    name: &VolumeName,
    request: &Q,
    doing: &str,
) -> Result<Moved, ApiError> {
    let begun = client.call(endpoint, name, request)?;
    progress::follow(client, begun, &format!("{doing} {name}"))
}

#[cfg(test)]
mod tests {
    use forebay_core::{Durability, ReplacementKind};

    use super::*;

    #[test]
    fn the_declarations_are_sound() {
        command().debug_assert();
    }

    #[test]
    fn the_help_of_set_has_every_setting() {
        let mut command = command();
        let set = command.find_subcommand_mut("set").expect("a verb");
        let help = forebay_admin::error::one_line(&set.render_long_help().to_string());
        for setting in forebay_settings::SETTINGS {
            assert!(help.contains(setting.name) && help.contains(setting.help), "{}", setting.name);
        }
    }

    #[test]
    fn the_help_of_create_names_every_profile() {
        let mut command = command();
        let create = command.find_subcommand_mut("create").expect("a verb");
        let help = forebay_admin::error::one_line(&create.render_long_help().to_string());
        let names: Vec<&str> = forebay_admin::PROFILES.iter().map(|profile| profile.name).collect();
        assert!(help.contains(&format!("another cache: {}", names.join(", "))), "{help}");
    }

    #[test]
    fn the_help_of_show_has_every_reason() {
        let mut command = command();
        let show = command.find_subcommand_mut("show").expect("a verb");
        let help = show.render_long_help().to_string();
        assert!(help.contains(&forebay_admin::reasons::help_text()), "{help}");
    }

    #[test]
    fn a_timeout_is_in_seconds_or_has_a_unit_and_is_not_nothing() {
        for (text, millis) in [("2", 2000), ("0.5", 500), ("500ms", 500), ("2m", 120_000)] {
            let cli = Cli::try_parse_from(["forebay", "list", "--timeout", text]).expect(text);
            assert_eq!(cli.timeout, Some(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", "0", "-1", "0s", "1e30", "nan", "inf", "1 s", "0.0001", "99999999999999"] {
            Cli::try_parse_from(["forebay", "list", "--timeout", text]).expect_err(text);
        }
    }

    #[test]
    fn the_socket_may_stand_before_or_after_the_verb() {
        for line in [["forebay", "--socket", "/s", "list"], ["forebay", "list", "--socket", "/s"]] {
            let cli = Cli::try_parse_from(line).expect("good");
            assert_eq!(cli.socket, Some(PathBuf::from("/s")));
        }
    }

    #[test]
    fn completions_offer_the_words_of_every_choice() {
        let command = command();
        let create = command.find_subcommand("create").expect("a verb");
        for (option, words) in [
            ("mode", 5),
            ("policy", ReplacementKind::ALL.len()),
            ("durability", Durability::ALL.len()),
        ] {
            let arg = create.get_arguments().find(|arg| arg.get_id() == option).expect("an option");
            assert_eq!(arg.get_possible_values().len(), words, "{option}");
        }
    }

    #[test]
    fn short_and_long_forms_of_create_are_the_same() {
        let short = "forebay create v -s c -p o -t wt -r fifo -b 8K -f";
        let long = "forebay create v --cache c --origin o --mode writethrough --policy fifo --block-size 8192 --force";
        let parse =
            |line: &str| format!("{:?}", Cli::try_parse_from(line.split(' ')).expect("good"));
        assert_eq!(parse(short), parse(long));
    }
}
