//! A bar on a terminal while something takes its time; nothing elsewhere.

use std::sync::Once;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

/// Time after which a late bar appears.
const LATE: Duration = Duration::from_secs(5);
const TICK: Duration = Duration::from_millis(200);

/// Progress in steps.
pub(crate) struct Progress {
    bar: ProgressBar,
    /// Begin of work whose bar appears only if it takes long.
    late: Option<(Instant, Once)>,
}

impl Progress {
    /// A bar of so many steps. It hides itself where standard error is no terminal.
    pub(crate) fn new(steps: u64, label: &str) -> Self {
        let bar = ProgressBar::new(steps);
        bar.set_style(style());
        bar.set_message(label.to_owned());
        bar.enable_steady_tick(TICK);
        Progress { bar, late: None }
    }

    /// A bar that appears only when the work takes long.
    pub(crate) fn late(steps: u64, label: &str) -> Self {
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::hidden());
        bar.set_style(style());
        bar.set_message(label.to_owned());
        Progress { bar, late: Some((Instant::now(), Once::new())) }
    }

    fn appear(&self) {
        if let Some((begin, once)) = &self.late
            && begin.elapsed() > LATE
        {
            once.call_once(|| {
                self.bar.set_draw_target(ProgressDrawTarget::stderr());
                self.bar.enable_steady_tick(TICK);
            });
        }
    }

    /// Sets the label, which names the work that is being done.
    pub(crate) fn label(&self, label: impl Into<String>) {
        self.bar.set_message(label.into());
    }

    /// Steps that are done altogether; never fewer than before.
    pub(crate) fn reach(&self, steps: u64) {
        self.bar.set_position(steps.max(self.bar.position()));
        self.appear();
    }

    /// Prints a line that stays: above the bar, or on standard error where there is none.
    pub(crate) fn line(&self, text: &str) {
        if self.bar.is_hidden() {
            eprintln!("{text}");
        } else {
            self.bar.println(text);
        }
    }

    /// Steps that are done.
    pub(crate) fn advance(&self, steps: u64) {
        self.bar.inc(steps);
        self.appear();
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} [{bar:30}] {percent} %, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
