//! The command line, declared once: parser, help, man pages and completions all come from here.

mod events;
mod host;
mod ranges;
mod serving;
mod traces;
mod values;
mod watch;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use forebay_admin::{ProfileName, VolumeName};
use forebay_core::{BlockSize, Durability, ExportSet, Mode, ReplacementKind};
use forebay_settings::duration::parse_duration;

use crate::exit;
pub(crate) use events::{EventsArgs, SupportArgs};
use forebay_daemon::FrontEndOptions;
use forebay_daemon::RawExport;
pub(crate) use host::{ApplyArgs, ProbeArgs};
pub(crate) use ranges::{EvictArgs, PinArgs, PrefetchArgs, UnpinArgs};
pub(crate) use serving::{DeleteArgs, StartArgs, StopArgs};
pub(crate) use traces::{AdviseArgs, TraceArgs};
use values::{Words, block_size, size, timeout};
pub(crate) use watch::{KEYS, REVERSE, ShowArgs, TopArgs};

/// Exit codes of the process, with their meanings.
pub(crate) const EXIT_CODES: [(u8, &str); 6] = [
    (0, "done"),
    (1, "failed"),
    (2, "wrong usage or configuration"),
    (3, "refused (in use, or the wrong device)"),
    (4, "data at risk (needs force)"),
    (
        5,
        "no end yet: the daemon or a device does not answer (the command may still be carried out)",
    ),
];

fn exit_codes() -> String {
    let codes = EXIT_CODES.map(|(code, meaning)| format!("{code} {meaning}"));
    format!("Exit codes: {}.", codes.join(", "))
}

/// A block cache in user space: RAM and an SSD in front of a slow block device.
#[derive(Debug, Parser)]
#[command(name = "forebay", version, propagate_version = true)]
#[command(after_help = exit_codes())]
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

    /// How long to wait for each answer of the daemon, in seconds or as a duration like 500ms or 2m; an operation that is
    /// in progress takes as long as it takes [default: 30]
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
    Daemon(Box<DaemonArgs>),
    /// Create a volume, serve it, print its block device or NBD URI
    Create(CreateArgs),
    /// Make the volumes what a file declares; a second run changes nothing
    Apply(ApplyArgs),
    /// Show the profiles of create --profile: their settings and sources
    Profiles(ProfilesArgs),
    /// List the volumes
    List(ListArgs),
    /// Show everything about one volume
    #[command(after_help = forebay_admin::reasons::help_text())]
    Show(ShowArgs),
    /// Watch the volumes: hits, requests, latencies, dirty data and writeback
    #[command(after_help = watch::keys())]
    Top(TopArgs),
    /// Print what happened to volumes, devices and the daemon
    #[command(after_help = forebay_admin::event::help_text())]
    Events(EventsArgs),
    /// Change settings of a volume
    #[command(after_help = forebay_settings::help::help_text())]
    Set(SetArgs),
    /// Write all dirty blocks of a volume to its origin
    Flush(NameArgs),
    /// Write everything to the origin that only the cache has, then pass all requests through to it
    Pause(NameArgs),
    /// Serve and update what is cached, and let nothing else enter the cache
    Freeze(NameArgs),
    /// Cache again after pause or freeze
    Resume(NameArgs),
    /// Discard what is cached of a volume; data that is not on the origin yet stays
    Drop(DropArgs),
    /// Load ranges or files into the cache; without any, what RAM held at the last stop
    Prefetch(PrefetchArgs),
    /// Keep ranges or files in the cache, and load them; without any, print what is pinned
    Pin(PinArgs),
    /// Let ranges or files be evicted again
    Unpin(UnpinArgs),
    /// Discard what is cached of ranges or files; data that is not on the origin yet stays
    Evict(EvictArgs),
    /// Show the daemon's memory, or change its limit
    Memory(MemoryArgs),
    /// Stop serving a volume; its cache stays warm
    Stop(StopArgs),
    /// Serve a stopped volume again
    Start(StartArgs),
    /// Remove a volume from its cache; dirty blocks are written to the origin first
    Delete(DeleteArgs),
    /// Verify a cache device that no daemon uses; changes nothing
    Check(CheckArgs),
    /// Print the content of a cache device that no daemon uses; changes nothing
    Dump(DumpArgs),
    /// Say what a block device is to Forebay; changes nothing
    Probe(ProbeArgs),
    /// Show the effect of a cache on modelled disks, and that a crash loses nothing
    Demo(DemoArgs),
    /// Say what this host lacks, and which front end suits it
    Doctor(DoctorArgs),
    /// Collect what a bug report needs into an archive, without data of volumes and without secrets
    Support(SupportArgs),
    /// Recommend a cache size from a trace or from a running volume
    Advise(AdviseArgs),
    /// Record the requests of a volume's clients, as a trace that advise reads
    Trace(TraceArgs),
    /// Attach and detach loop devices for a daemon
    #[command(name = forebay_daemon::helper::VERB, hide = true)]
    BlockDevice {
        /// The task
        #[arg(allow_hyphen_values = true)]
        task: Vec<std::ffi::OsString>,
    },
    /// Print the version of what one program hands over to the next
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

/// Arguments of `daemon`.
#[derive(Debug, Args)]
pub(crate) struct DaemonArgs {
    /// Directory of the daemon's state [default: /var/lib/forebay for root, $XDG_STATE_HOME/forebay otherwise]
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
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    pub(crate) memory_limit: Option<u64>,

    /// Address at which metrics for Prometheus are served over HTTP, and nothing else; they are on the admin socket
    /// in any case
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<std::net::SocketAddr>,

    /// Address at which a page for browsers is served over HTTP: it shows what all volumes do, and changes nothing
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) web: Option<std::net::SocketAddr>,

    /// How long to wait for missing devices of volumes at the start, as while a machine boots [default: 0]
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) device_wait: Option<std::time::Duration>,
    /// Replace the program of the running daemon by this one, without disconnecting clients; the daemon
    /// keeps the options that it was started with
    #[arg(long, conflicts_with_all = ["state_dir", "nbd", "nbd_allow", "nbd_tls_cert", "nbd_tls_key", "nbd_tls_client_ca", "export_dir", "fuse_io_uring", "lanes", "memory_limit", "device_wait", "metrics", "web", "export_raw", "check"])]
    pub(crate) take_over: bool,

    /// Check whether a daemon can start with these options and the state, which another may be using; changes nothing
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

/// Arguments of `create`.
#[derive(Debug, Args)]
pub(crate) struct CreateArgs {
    /// Name of the new volume
    pub(crate) name: VolumeName,

    /// Cache device: a file, a block device, or ram:SIZE; without one give --ram
    #[arg(short = 's', long, value_name = "DEVICE", value_hint = ValueHint::AnyPath)]
    pub(crate) cache: Option<String>,

    /// Origin: a file, a block device, nbd://HOST/EXPORT or rbd:POOL/IMAGE
    #[arg(short = 'p', long, value_name = "DEVICE", value_hint = ValueHint::AnyPath)]
    pub(crate) origin: String,

    /// Start with the settings of another cache: enhanceio, bcache, dm-cache, maxio, dm-writeboost,
    /// fancycache (see 'forebay profiles'); other options take precedence
    #[arg(long, value_name = "PROFILE")]
    pub(crate) profile: Option<ProfileName>,

    /// How the cache handles reads and writes: writeback (wb), writethrough (wt),
    /// writearound (wa, ro), writeonly (wo), passthrough (pt) [default: writeback]
    #[arg(short = 't', long, value_parser = Words(Mode::ALL), hide_possible_values = true)]
    pub(crate) mode: Option<Mode>,

    /// How blocks are chosen for eviction; shared by all volumes of a cache [default: that of the cache's
    /// other volumes, or else s3-fifo]
    #[arg(short = 'r', long, value_parser = Words(ReplacementKind::ALL))]
    pub(crate) policy: Option<ReplacementKind>,

    /// Block size, the unit of caching: a power of two from 2K to 1M [default: 4K]
    #[arg(short = 'b', long, value_name = "BYTES", value_parser = block_size, allow_hyphen_values = true)]
    pub(crate) block_size: Option<BlockSize>,

    /// When a write is acknowledged: strict (on stable media), flush (in RAM until a flush), or deferred
    /// (in the RAM tier until a flush or for the time of --defer) [default: flush]
    #[arg(long, value_parser = Words(Durability::ALL), hide_possible_values = true)]
    pub(crate) durability: Option<Durability>,

    /// RAM that holds copies of blocks, in front of the cache device or of the origin alone [default: none]
    #[arg(long, value_name = "BYTES", value_parser = size, allow_hyphen_values = true)]
    pub(crate) ram: Option<u64>,

    /// With --durability deferred, the time within which a write is written down from RAM [default: 10s]
    #[arg(long, value_name = "TIME")]
    pub(crate) defer: Option<String>,

    /// DANGEROUS, for scratch data only: with --durability deferred, acknowledge flushes at once, so that
    /// a crash loses what file systems and databases believe to be durable
    #[arg(long)]
    pub(crate) ignore_flush: bool,

    /// Write to the origin in the order of flushes, so that it is always in a state that a power cut
    /// could leave on a disk: if the cache device is lost, the origin is slightly old but consistent
    #[arg(long)]
    pub(crate) ordered: bool,

    /// Let clients only read, and never write to the origin: for a write-protected device, or one that has to
    /// stay as it is. What is read is cached as usual
    #[arg(long)]
    pub(crate) read_only: bool,

    /// Front ends of the volume, separated by commas: nbd (always among them), ublk, fuse and nbd-kernel (block
    /// devices of this machine; auto: the first of these that works here), and vhost-user [default: nbd]
    #[arg(long, value_name = "LIST")]
    pub(crate) export: Option<ExportSet>,

    /// Value of a setting, as for 'forebay set'; repeatable
    #[arg(long, value_name = "KEY=VALUE")]
    pub(crate) set: Vec<String>,

    /// Bytes by which blocks are shifted on the origin, for partitions that start at odd sectors:
    /// a multiple of 512 below the block size
    #[arg(long, value_name = "BYTES", value_parser = size, default_value = "0", allow_hyphen_values = true)]
    pub(crate) alignment: u64,

    /// Overwrite the content of the cache device; with --adopt see start --force
    #[arg(short = 'f', long)]
    pub(crate) force: bool,

    /// Adopt the volume of this name that the cache device holds, with its dirty blocks and settings:
    /// after the daemon's state was lost, on another machine, or when a device has a new path
    #[arg(long, conflicts_with_all = ["profile", "mode", "policy", "block_size", "durability", "ram", "defer", "ignore_flush", "ordered", "read_only", "export", "alignment", "set"])]
    pub(crate) adopt: bool,

    /// Adopt it under this name: it is renamed on the cache device, and becomes a volume of its own, so that a
    /// copy of a cache and its origin can be used beside the original
    #[arg(long = "as", value_name = "NAME", requires = "adopt")]
    pub(crate) new_name: Option<VolumeName>,

    /// Print the volume as JSON instead of its URI
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Print names only, one in a line
    #[arg(long, conflicts_with = "json")]
    pub(crate) names: bool,

    /// Only volumes with data that is not on the origin, or of which that is not known
    #[arg(long)]
    pub(crate) dirty: bool,
}

/// Arguments of `doctor`.
#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `profiles`.
#[derive(Debug, Args)]
pub(crate) struct ProfilesArgs {
    /// The profile [default: all]
    pub(crate) name: Option<ProfileName>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `set`.
#[derive(Debug, Args)]
pub(crate) struct SetArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Settings and their new values
    #[arg(required = true, value_name = "KEY=VALUE")]
    pub(crate) settings: Vec<String>,
}

/// Arguments of verbs that take one volume.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The volume
    pub(crate) name: VolumeName,
}

/// Arguments of `drop`.
#[derive(Debug, Args)]
pub(crate) struct DropArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// From the RAM tier only
    #[arg(long, conflicts_with = "ssd")]
    pub(crate) ram: bool,

    /// From the cache device only
    #[arg(long)]
    pub(crate) ssd: bool,
}

/// Arguments of `memory`.
#[derive(Debug, Args)]
pub(crate) struct MemoryArgs {
    /// New limit, until the daemon ends; --memory-limit of 'forebay daemon' is for its next start
    #[arg(long, value_name = "SIZE", value_parser = size, allow_hyphen_values = true)]
    pub(crate) limit: Option<u64>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `check`.
#[derive(Debug, Args)]
pub(crate) struct CheckArgs {
    /// The cache device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) device: String,

    /// Verify the structures only, not the content of every block
    #[arg(long)]
    pub(crate) quick: bool,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `dump`.
#[derive(Debug, Args)]
pub(crate) struct DumpArgs {
    /// The cache device
    #[arg(value_hint = ValueHint::AnyPath)]
    pub(crate) device: String,

    /// Print the header of every record in the log too
    #[arg(long)]
    pub(crate) records: bool,

    /// Print every block in the headers too
    #[arg(long)]
    pub(crate) entries: bool,

    /// Print JSON, one value per line
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `demo`.
#[derive(Debug, Args)]
pub(crate) struct DemoArgs {
    /// Directory for its files, which are removed at the end [default: that for temporary files]
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub(crate) dir: Option<PathBuf>,

    /// Take a third of the time, with less exact numbers
    #[arg(long)]
    pub(crate) quick: bool,
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

/// Returns the declarations, from which other texts are generated.
pub(crate) fn command() -> clap::Command {
    Cli::command()
}

#[cfg(test)]
mod tests {
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
