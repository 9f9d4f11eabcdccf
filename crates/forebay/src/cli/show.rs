//! `forebay show`: prints the full report of a volume, or its lost ranges; with `--watch` again and
//! again.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use clap::Args;
use forebay_admin::api::{self, Get};
use forebay_admin::{ApiError, VolumeName, VolumeReport};
use ratatui::Frame;
use ratatui::crossterm::event::{KeyCode, KeyEvent};
use ratatui::layout::{Constraint, Layout};
use ratatui::text::Line;
use ratatui::widgets::Paragraph;

use crate::client::DaemonClient;
use crate::exit::VerbResult;
use crate::output::screen::{self, Page, Times};
use crate::output::{json, lost, print_more, print_text, volume};
use crate::sparse;
use crate::values::interval;

/// Arguments of `show`.
#[derive(Debug, Args)]
pub(crate) struct ShowArgs {
    /// The volume
    pub(crate) name: VolumeName,

    /// Print only the byte ranges that are newer on the cache device than on the origin, if the
    /// cache device has failed or is gone
    #[arg(long)]
    pub(crate) lost: bool,

    /// Print all settings, not only those that differ from their defaults
    #[arg(long, conflicts_with_all = ["lost", "json"])]
    pub(crate) all: bool,

    /// Show it again at this interval in seconds, 2 by default: in place on a terminal, elsewhere
    /// one after the other with an empty line between
    #[arg(long, value_name = "SECONDS", value_parser = interval, num_args = 0..=1, require_equals = true, default_missing_value = "2")]
    pub(crate) watch: Option<Duration>,

    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}

/// Interval at which a watched volume has its blocks counted; lanes may have to wait for a count.
const COUNT: Duration = Duration::from_secs(60);

/// Time limit for an answer; then the screen shows that there is none.
const ANSWERING: Duration = Duration::from_secs(5);

/// Prints a volume.
pub(crate) fn run(client: &DaemonClient, args: &ShowArgs) -> VerbResult {
    let first = text(client, args, &api::SHOW)?;
    let Some(every) = args.watch else { return print_text(&first) };
    let ShowArgs { lost, json, all, .. } = *args;
    let name = args.name.clone();
    let on_screen = screen::is_usable() && !json;
    // The screen itself shows that there was no answer.
    let client = if on_screen { client.silently(ANSWERING) } else { client.clone() };
    let args = ShowArgs { name, lost, json, all, watch: None };
    let mut counted = Instant::now();
    let next = move || {
        let fresh = counted.elapsed() >= COUNT;
        if fresh {
            counted = Instant::now();
        }
        text(&client, &args, if fresh { &api::SHOW } else { &api::REPORT })
    };
    if on_screen {
        let mut page = ReportScreen { text: first, first: 0, error: None, every };
        return screen::show(Times { first: every, every }, next, &mut page);
    }
    print_blocks(first, every, next)
}

/// Returns the text to print. [`api::REPORT`] has the blocks as last counted.
fn text(
    client: &DaemonClient,
    args: &ShowArgs,
    from: &Get<VolumeName, VolumeReport>,
) -> Result<String, ApiError> {
    let name = &args.name;
    if args.lost {
        let report = client.get(&api::LOST, name)?;
        return if args.json { json::text(&report) } else { Ok(lost::render(&report)) };
    }
    let report = client.get(from, name)?;
    if args.json {
        return json::text(&report);
    }
    let mut text = volume::render(&report, args.all);
    for shortage in sparse::shortages(&[&report.cache.path, &report.origin.path]) {
        text.push_str(&format!("{:1$}{shortage}\n", "space", volume::LABEL));
    }
    Ok(text)
}

/// Prints one block after the other, until the reader closes stdout or the volume cannot be shown
/// any more.
fn print_blocks(
    first: String,
    every: Duration,
    mut next: impl FnMut() -> Result<String, ApiError>,
) -> VerbResult {
    let mut block = first;
    while print_more(block.as_bytes())? {
        std::thread::sleep(every);
        block = format!("\n{}", next()?);
    }
    Ok(())
}

/// The report on a screen, which may be too short for it.
struct ReportScreen {
    text: String,
    /// The first line on the screen.
    first: u16,
    /// Why there is nothing newer.
    error: Option<ApiError>,
    every: Duration,
}

impl Page<Result<String, ApiError>> for ReportScreen {
    fn news(&mut self, news: Result<String, ApiError>) {
        match news {
            Ok(text) => (self.text, self.error) = (text, None),
            Err(error) => self.error = Some(error),
        }
    }

    fn key(&mut self, key: KeyEvent) -> ControlFlow<()> {
        let page = 20;
        self.first = match key.code {
            KeyCode::Up => self.first.saturating_sub(1),
            KeyCode::Down => self.first.saturating_add(1),
            KeyCode::PageUp => self.first.saturating_sub(page),
            KeyCode::PageDown => self.first.saturating_add(page),
            KeyCode::Home => 0,
            KeyCode::End => u16::MAX,
            _ => self.first,
        };
        ControlFlow::Continue(())
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        let [body, last] =
            Layout::vertical([Constraint::Fill(1), Constraint::Length(1)]).areas(frame.area());
        let lines = u16::try_from(self.text.lines().count()).unwrap_or(u16::MAX);
        self.first = self.first.min(lines.saturating_sub(body.height));
        frame.render_widget(Paragraph::new(self.text.as_str()).scroll((self.first, 0)), body);
        let state = match &self.error {
            Some(error) => format!("waiting: {error}"),
            None => {
                format!("every {} s  q quit  Up, Down, PgUp, PgDn scroll", self.every.as_secs_f64())
            }
        };
        frame.render_widget(Line::raw(state).style(ratatui::style::Modifier::REVERSED), last);
    }
}
