//! Draws the state, and passes keys and answers to it.

use std::ops::ControlFlow;
use std::time::Instant;

use ratatui::Frame;
use ratatui::crossterm::event::KeyEvent;

use super::model::{Look, Screen, TopModel};
use super::{detail, list, view};
use crate::output::screen::Page;

/// Draws everything as of `now`.
pub(super) fn draw(model: &mut TopModel, frame: &mut Frame<'_>, now: Instant) {
    match model.screen {
        Screen::List => list::draw(model, frame, now),
        Screen::Detail(kind) => detail::draw(model, frame, now, kind),
    }
    if model.help {
        view::help(model.theme, frame);
    }
}

impl Page<Look> for TopModel {
    fn news(&mut self, look: Look) {
        TopModel::news(self, look);
    }

    fn key(&mut self, key: KeyEvent) -> ControlFlow<()> {
        TopModel::key(self, key.code);
        ControlFlow::Continue(())
    }

    fn draw(&mut self, frame: &mut Frame<'_>) {
        draw(self, frame, Instant::now());
    }
}
