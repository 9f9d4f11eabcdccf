//! Follows an operation to its end: a bar with an estimate on a terminal, plain lines elsewhere.
//! The first SIGINT asks the daemon to cancel the operation; the second ends this process and
//! leaves the operation alone.

use std::fmt;
use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use forebay_admin::endpoint::Nothing;
use forebay_admin::{ApiError, ErrorKind, Moved, Operation, OperationState, Progress, Unit, api};
use forebay_core::units::format_size;
use indicatif::{ProgressBar, ProgressState, ProgressStyle};
use signal_hook::consts::SIGINT;
use signal_hook::flag;

use crate::client::DaemonClient;
use crate::output::note;
use crate::output::volume::{grouped, time};

/// Interval at which the daemon is polled.
const POLL: Duration = Duration::from_millis(100);

/// Interval at which a plain line is written.
const LINE: Duration = Duration::from_secs(5);

/// The way in which progress is displayed.
pub(crate) enum Display {
    /// A bar on a terminal.
    Bar(ProgressBar),
    /// Plain lines elsewhere.
    Lines {
        /// When the next line is due.
        next: Instant,
    },
}

/// Displays an operation until it has ended. Returns the data that it moved.
///
/// # Errors
/// The operation failed, or the daemon no longer answers.
pub(crate) fn follow(
    client: &DaemonClient,
    begun: Operation,
    label: &str,
) -> Result<Moved, ApiError> {
    let mut operation = begun;
    if operation.state == OperationState::Running {
        let interrupted = interrupts()?;
        let mut asked = false;
        let mut display = Display::new(label);
        // One with an error waits for a device, and this does not wait for it any longer.
        while operation.state == OperationState::Running && operation.error.is_none() {
            let elapsed = Duration::from_millis(operation.elapsed_ms);
            display.show(label, operation.progress, elapsed);
            std::thread::sleep(POLL);
            if interrupted.load(Ordering::Relaxed) && !asked {
                asked = true;
                client.call(&api::CANCEL, &operation.id, &Nothing {}).map_err(goes_on)?;
            }
            operation = client.get(&api::OPERATION, &operation.id).map_err(goes_on)?;
        }
        display.end();
    }
    match (operation.state, operation.error) {
        (OperationState::Done, _) => Ok(operation.moved),
        (_, Some(error)) => Err(error),
        (_, None) => Err(ApiError::failed(format!("'{}' failed", operation.verb))),
    }
}

/// Adds to the error of a silent daemon that an operation has begun and may continue.
fn goes_on(mut error: ApiError) -> ApiError {
    if error.kind == ErrorKind::NoAnswer {
        error.message = format!("the operation has begun and may continue: {}", error.message);
    }
    error
}

/// Returns a flag that the first SIGINT raises; a second SIGINT ends the process as usual.
fn interrupts() -> Result<Arc<AtomicBool>, ApiError> {
    let raised = Arc::new(AtomicBool::new(false));
    let usual = 128 + SIGINT;
    flag::register_conditional_shutdown(SIGINT, usual, raised.clone())
        .and_then(|_| flag::register(SIGINT, raised.clone()))
        .map_err(|error| ApiError::failed(format!("signals: {error}")))?;
    Ok(raised)
}

impl Display {
    /// Starts a display; nothing is shown yet.
    pub(crate) fn new(label: &str) -> Self {
        if !std::io::stderr().is_terminal() {
            return Display::Lines { next: Instant::now() + LINE };
        }
        // No bar as long as the total is unknown.
        let bar = ProgressBar::no_length().with_style(style(false));
        bar.set_message(label.to_owned());
        bar.enable_steady_tick(POLL);
        Display::Bar(bar)
    }

    /// Starts a display of the time that passes, of `whole` seconds. Elsewhere than on a terminal
    /// it shows nothing.
    pub(crate) fn clock(label: &str, whole: u64) -> Self {
        let display = Display::new(label);
        if let Display::Bar(bar) = &display {
            let passed = move |state: &ProgressState, to: &mut dyn fmt::Write| {
                let _ = write!(to, "{} of {whole} s", state.elapsed().as_secs().min(whole));
            };
            let style = ProgressStyle::with_template("{msg}: {passed}{prefix}");
            let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
            bar.set_style(style.with_key("passed", passed));
        }
        display
    }

    /// Adds to a clock how many bytes have come so far.
    pub(crate) fn amount(&self, bytes: u64) {
        if let Display::Bar(bar) = self {
            bar.set_prefix(format!(", {} written", format_size(bytes)));
        }
    }

    /// Displays the progress after `elapsed`.
    pub(crate) fn show(&mut self, label: &str, progress: Progress, elapsed: Duration) {
        match self {
            Display::Bar(bar) => {
                if progress.total > 0 && bar.length() != Some(progress.total) {
                    bar.set_style(style(true));
                    bar.set_length(progress.total);
                }
                bar.set_prefix(describe(progress, elapsed));
                bar.set_position(progress.done);
            }
            Display::Lines { next } => {
                if Instant::now() >= *next {
                    *next += LINE;
                    note(&format!("{label}: {}", describe(progress, elapsed)));
                }
            }
        }
    }

    /// Removes the bar.
    pub(crate) fn end(self) {
        if let Display::Bar(bar) = self {
            bar.finish_and_clear();
        }
    }
}

/// Returns the style with a bar, or with words only.
fn style(bar: bool) -> ProgressStyle {
    let template = if bar { "{msg} [{bar:30}] {prefix}" } else { "{msg}: {prefix}" };
    ProgressStyle::with_template(template)
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}

/// Describes progress in words, with an estimate of the time left once that is possible.
fn describe(progress: Progress, elapsed: Duration) -> String {
    let Some(share) = progress.share() else {
        return format!("working for {} s", elapsed.as_secs());
    };
    let amount = match progress.unit {
        Unit::Bytes => format!("{} of {}", format_size(progress.done), format_size(progress.total)),
        Unit::Blocks => format!("{} of {} blocks", grouped(progress.done), grouped(progress.total)),
        Unit::Segments => {
            format!("{} of {} segments", grouped(progress.done), grouped(progress.total))
        }
        Unit::Steps => format!("step {} of {}", progress.done, progress.total),
    };
    let seconds = elapsed.as_secs_f64();
    let rate = match progress.unit {
        Unit::Bytes if progress.done > 0 && seconds > 0.0 => {
            format!(", {}/s", format_size((progress.done as f64 / seconds) as u64))
        }
        _ => String::new(),
    };
    let left = if share > 0.01 {
        format!(", about {} left", time(seconds * (1.0 - share) / share))
    } else {
        String::new()
    };
    format!("{:.0} %, {amount}{rate}{left}", share * 100.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_in_words_has_an_estimate_when_there_can_be_one() {
        let progress = |done, total, unit| Progress { done, total, unit };
        let ten = Duration::from_secs(10);
        assert_eq!(describe(progress(5, 0, Unit::Bytes), ten), "working for 10 s");
        assert_eq!(
            describe(progress(10 << 20, 40 << 20, Unit::Bytes), ten),
            "25 %, 10M of 40M, 1M/s, about 30 s left"
        );
        assert_eq!(describe(progress(0, 4 << 20, Unit::Bytes), ten), "0 %, 0 of 4M");
        assert_eq!(describe(progress(0, 2000, Unit::Blocks), ten), "0 %, 0 of 2,000 blocks");
    }

    #[test]
    fn times_are_in_units_that_suit_them() {
        for (seconds, text) in
            [(0.4, "0 s"), (119.0, "119 s"), (600.0, "10 min"), (9000.0, "2.5 h")]
        {
            assert_eq!(time(seconds), text);
        }
    }

    #[test]
    fn nothing_is_shown_as_done_before_anything_is_known() {
        let bar = ProgressBar::hidden();
        bar.unset_length();
        let mut display = Display::Bar(bar.clone());
        let second = Duration::from_secs(1);
        display.show("", Progress::default(), second);
        assert_eq!((bar.length(), bar.prefix().as_str()), (None, "working for 1 s"));
        let progress = |done| Progress { done, total: 4 << 20, unit: Unit::Bytes };
        display.show("", progress(0), second);
        assert_eq!((bar.length(), bar.position()), (Some(4 << 20), 0));
        assert_eq!(bar.prefix(), "0 %, 0 of 4M");
        display.show("", progress(2 << 20), second);
        assert_eq!(bar.prefix(), "50 %, 2M of 4M, 2M/s, about 1 s left");
    }
}
