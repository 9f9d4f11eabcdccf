//! A bar on a terminal while something takes its time; nothing elsewhere.

use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};

/// Progress in steps.
pub(crate) struct Progress(ProgressBar);

impl Progress {
    /// A bar of so many steps. It hides itself where standard error is no terminal.
    pub(crate) fn new(steps: u64, label: &str) -> Self {
        let bar = ProgressBar::new(steps);
        bar.set_style(style());
        bar.set_message(label.to_owned());
        bar.enable_steady_tick(Duration::from_millis(200));
        Progress(bar)
    }

    /// Sets the label, which names the work that is being done.
    pub(crate) fn label(&self, label: impl Into<String>) {
        self.0.set_message(label.into());
    }

    /// Steps that are done altogether; never fewer than before.
    pub(crate) fn reach(&self, steps: u64) {
        self.0.set_position(steps.max(self.0.position()));
    }

    /// Prints a line that stays: above the bar, or on standard error where there is none.
    pub(crate) fn line(&self, text: &str) {
        if self.0.is_hidden() {
            eprintln!("{text}");
        } else {
            self.0.println(text);
        }
    }

    /// Steps that are done.
    pub(crate) fn advance(&self, steps: u64) {
        self.0.inc(steps);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}

/// A bar that appears only when something takes long.
pub(crate) struct LateProgress {
    begin: Instant,
    steps: u64,
    done: u64,
    label: &'static str,
    bar: Option<Progress>,
}

impl LateProgress {
    pub(crate) fn new(steps: u64, label: &'static str) -> Self {
        LateProgress { begin: Instant::now(), steps, done: 0, label, bar: None }
    }

    /// Steps that are done.
    pub(crate) fn advance(&mut self, steps: u64) {
        self.reach(self.done + steps);
    }

    /// Steps that are done altogether.
    pub(crate) fn reach(&mut self, steps: u64) {
        self.done = steps;
        if self.bar.is_none() && self.begin.elapsed() > Duration::from_secs(5) {
            self.bar = Some(Progress::new(self.steps, self.label));
        }
        if let Some(bar) = &self.bar {
            bar.reach(steps);
        }
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template("{msg} [{bar:30}] {percent} %, {eta} left")
        .unwrap_or_else(|_| ProgressStyle::default_bar())
        .progress_chars("=> ")
}
