//! Arguments of the verbs that show volumes once or again and again.

use std::fmt::Write as _;
use std::time::Duration;

use clap::Args;
use forebay_admin::VolumeName;

use super::values::interval;

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Print only the byte ranges that are newer on the cache device than on the origin, if the cache
    /// device has failed or is gone
    #[arg(long)]
    pub(crate) lost: bool,

    /// Show it again and again, every 2 or so many seconds: in place on a terminal, elsewhere one after the
    /// other with an empty line between
    #[arg(long, value_name = "SECONDS", value_parser = interval, num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    pub(crate) watch: Option<Duration>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Arguments of `top`.
#[derive(Debug, Args)]
pub(crate) struct TopArgs {
    /// The volume [default: all]
    pub(crate) name: Option<VolumeName>,

    /// Time between two looks
    #[arg(long, value_name = "SECONDS", value_parser = interval, default_value = "1", allow_hyphen_values = true)]
    pub(crate) interval: Duration,

    /// Print one table, of one interval, and end
    #[arg(long)]
    pub(crate) once: bool,

    /// Print a JSON object in a line for each interval; with --once, one
    #[arg(long)]
    pub(crate) json: bool,

    /// Use no colours; so does a NO_COLOR in the environment that is not empty
    #[arg(long)]
    pub(crate) no_color: bool,
}

/// Every key of `top` with its effect, as in help.
pub(crate) const KEYS: [(&str, &str); 8] = [
    ("q, Ctrl-C", "quit"),
    ("?", "show the keys"),
    ("Up, Down, PgUp, PgDn, Home, End", "select a volume"),
    ("Enter", "details of the volume: latencies over time, misses, devices"),
    ("Esc", "back to all volumes"),
    ("Tab", "in the details: latencies of reads, writes, flushes or discards"),
    ("c, n, h, i", "sort by creation, name, hit ratio, IOPS"),
    ("b, l, d, w", "sort by MB/s, 99th percentile of latencies, dirty data, writeback"),
];

/// The last line about the keys.
pub(crate) const REVERSE: &str = "A sort key reverses the order if it is pressed again.";

/// Returns the keys as text for `--help`.
pub(super) fn keys() -> String {
    let width = KEYS.iter().map(|(key, _)| key.len()).max().unwrap_or_default();
    let mut text = String::from("Keys:\n");
    for (key, effect) in KEYS {
        let _ = writeln!(text, "  {key:width$}  {effect}");
    }
    text.push_str(REVERSE);
    text
}
