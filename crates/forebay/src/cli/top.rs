//! `forebay top`: the activity of the volumes, interval by interval, on a screen, in a table, or as
//! JSON.
//!
//! - [`history`]: the last intervals
//! - [`model`]: the state of the screen, and the effects of keys on it
//! - [`order`]: the orders of volumes, and their keys
//! - [`page`]: input and output of the terminal
//! - [`list`], [`detail`], [`heat`]: the screens
//! - [`view`], [`numbers`], [`theme`]: parts that these share

mod detail;
mod heat;
mod history;
mod list;
mod model;
mod numbers;
mod order;
mod page;
#[cfg(test)]
mod svg;
#[cfg(test)]
mod tests;
mod theme;
mod view;

use std::fmt::Write as _;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use forebay_admin::activity::{Activity, Interval, Looks};
use forebay_admin::{ApiError, ErrorKind, VolumeName, api};

use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::screen::{self, Times};
use crate::output::table::{Column, Table};
use crate::output::{note, print_more, print_text};
use crate::values::interval;
use model::{Look, TopModel};
use numbers::{bytes, count, megabytes, percent, time};
use theme::Theme;

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
pub(crate) fn keys() -> String {
    let width = KEYS.iter().map(|(key, _)| key.len()).max().unwrap_or_default();
    let mut text = String::from("Keys:\n");
    for (key, effect) in KEYS {
        let _ = writeln!(text, "  {key:width$}  {effect}");
    }
    text.push_str(REVERSE);
    text
}

/// The first interval on the screen, for those who wait for something to look at.
const FIRST: Duration = Duration::from_millis(250);

/// Shows the activity of the volumes.
pub(crate) fn run(client: &DaemonClient, args: &TopArgs) -> VerbResult {
    if let Some(name) = &args.name {
        // A name that does not exist is an error now; later it may come back.
        client.get(&api::REPORT, name)?;
    }
    match (args.once, args.json) {
        (false, false) => on_screen(client, args),
        (true, json) => {
            let mut looks = Looks::default();
            observe(&mut looks, look(client))?;
            std::thread::sleep(args.interval);
            let interval = observe(&mut looks, look(client))?;
            let interval = only(interval.ok_or_else(no_interval)?, args.name.as_ref());
            print_text(&if json { line(&interval)? } else { table(&interval) })
        }
        (false, true) => as_json(client, args),
    }
}

fn on_screen(client: &DaemonClient, args: &TopArgs) -> VerbResult {
    if !screen::is_usable() {
        let message =
            "stdout is no terminal that can be drawn on; use --once for a table, or --json";
        return Err(ApiError::new(ErrorKind::Invalid, message));
    }
    // Without a daemon there is nothing to wait for; one that goes away comes back.
    look(client).answer?;
    let without = args.no_color || std::env::var_os("NO_COLOR").is_some_and(|it| !it.is_empty());
    let mut model =
        TopModel::new(Theme::new(!without), args.interval, args.name.clone(), Instant::now());
    // The screen itself shows for how long there was no answer.
    let client = client.silently(Duration::MAX);
    let times = Times { first: FIRST.min(args.interval), every: args.interval };
    screen::show(times, move || look(&client), &mut model)
}

/// Prints a line for each interval until the reader closes stdout. The daemon may end and start
/// meanwhile.
fn as_json(client: &DaemonClient, args: &TopArgs) -> VerbResult {
    let (mut looks, mut silent) = (Looks::default(), false);
    observe(&mut looks, look(client))?;
    loop {
        std::thread::sleep(args.interval);
        match observe(&mut looks, look(client)) {
            Ok(None) => silent = false,
            Ok(Some(interval)) => {
                silent = false;
                if !print_more(line(&only(interval, args.name.as_ref()))?.as_bytes())? {
                    return Ok(());
                }
            }
            Err(error) => {
                looks.forget();
                if !silent {
                    note(&format!("forebay: waiting for the daemon: {error}"));
                }
                silent = true;
            }
        }
    }
}

fn look(client: &DaemonClient) -> Look {
    let answer = client.get(&api::REPORTS, &());
    let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    Look { at: Instant::now(), time: time.unwrap_or_default().as_secs_f64(), answer }
}

fn observe(looks: &mut Looks, look: Look) -> Result<Option<Interval>, ApiError> {
    Ok(looks.next(look.at, look.time, look.answer?))
}

fn no_interval() -> ApiError {
    ApiError::failed("there was no interval")
}

fn only(mut interval: Interval, name: Option<&VolumeName>) -> Interval {
    if let Some(name) = name {
        interval.volumes.retain(|activity| activity.name == *name);
    }
    interval
}

fn line(interval: &Interval) -> Result<String, ApiError> {
    let text = serde_json::to_string(interval);
    text.map(|text| text + "\n").map_err(|error| ApiError::failed(error.to_string()))
}

/// Formats an interval as a table.
fn table(interval: &Interval) -> String {
    let mut table = Table::new(&[
        Column::left("NAME"),
        Column::left("STATE"),
        Column::right("HIT"),
        Column::right("IOPS"),
        Column::right("MB/s"),
        Column::right("P50"),
        Column::right("P99"),
        Column::right("DIRTY"),
        Column::right("WB MB/s"),
        Column::right("CLEAN"),
        Column::left("MISSES"),
    ]);
    for activity in &interval.volumes {
        table.row(row(activity));
    }
    table.render()
}

fn row(activity: &Activity) -> [String; 11] {
    let times = activity.times();
    let dirty = activity.unwritten_bytes().map_or_else(|| "?".to_owned(), bytes);
    [
        activity.name.to_string(),
        activity.state.name().to_owned(),
        percent(activity.hit_ratio),
        count(activity.iops),
        megabytes(activity.bytes_per_second()),
        time(times.p50_us),
        time(times.p99_us),
        dirty + view::trend(activity),
        megabytes(activity.writeback.bytes_per_second),
        view::until_clean(activity),
        view::misses(activity).into_iter().take(2).collect::<Vec<_>>().join("; "),
    ]
}
