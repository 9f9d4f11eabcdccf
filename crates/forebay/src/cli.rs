//! The command line, declared once: parser, help, man pages and completions all come from here.

pub(crate) mod values;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, CommandFactory, Parser, Subcommand, ValueHint};
use forebay_admin::VolumeName;

use crate::exit;
use crate::verbs::{
    advise::AdviseArgs,
    apply::ApplyArgs,
    check::CheckArgs,
    create::CreateArgs,
    daemon::DaemonArgs,
    delete::DeleteArgs,
    demo::DemoArgs,
    doctor::DoctorArgs,
    drop::DropArgs,
    dump::DumpArgs,
    events::EventsArgs,
    list::ListArgs,
    memory::MemoryArgs,
    probe::ProbeArgs,
    profiles::ProfilesArgs,
    ranges::{EvictArgs, PinArgs, PrefetchArgs, UnpinArgs},
    set::SetArgs,
    show::ShowArgs,
    start::StartArgs,
    stop::StopArgs,
    support::SupportArgs,
    top::{self, TopArgs},
    trace::TraceArgs,
};
use values::timeout;

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
    #[command(after_help = top::keys())]
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

/// Arguments of verbs that take one volume.
#[derive(Debug, Args)]
pub(crate) struct NameArgs {
    /// The volume
    pub(crate) name: VolumeName,
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
