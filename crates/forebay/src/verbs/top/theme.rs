//! Colours and what stands for them where there are none.

use forebay_admin::VolumeState;
use ratatui::style::{Color, Modifier, Style};

/// How densely a cell of the heat map is filled; the first is empty.
pub(super) const SHADES: [&str; 5] = [" ", "░", "▒", "▓", "█"];

/// The colours of the heat map by density.
const HEAT: [Color; 5] = [Color::Reset, Color::Blue, Color::Cyan, Color::Yellow, Color::Red];

/// Whether there are colours. Nothing is said by colour alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Theme {
    coloured: bool,
}

impl Theme {
    /// Makes a theme with or without colours.
    pub(super) fn new(coloured: bool) -> Self {
        Theme { coloured }
    }

    fn coloured(self, colour: Color) -> Style {
        if self.coloured { Style::new().fg(colour) } else { Style::new() }
    }

    /// Of headings.
    pub(super) fn heading(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Of the volumes are sorted by it.
    pub(super) fn sorted(self) -> Style {
        self.heading().add_modifier(Modifier::UNDERLINED)
    }

    /// Of what matters less.
    pub(super) fn quiet(self) -> Style {
        if self.coloured { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    /// Of names.
    pub(super) fn name(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Of what somebody should look at.
    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Of the selected row, and of the line that says that the daemon does not answer.
    pub(super) fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Of the reasons of misses.
    pub(super) fn reason(self) -> Style {
        self.coloured(Color::Yellow)
    }

    /// Of the lines over time.
    pub(super) fn line(self) -> Style {
        self.coloured(Color::Green)
    }

    /// Of a state.
    pub(super) fn state(self, state: VolumeState) -> Style {
        match state {
            VolumeState::Running | VolumeState::Draining => self.coloured(Color::Green),
            VolumeState::Degraded | VolumeState::Failed => self.bad(),
            _ => self.quiet(),
        }
    }

    /// Of a cell of the heat map.
    pub(super) fn heat(self, density: usize) -> Style {
        self.coloured(HEAT.get(density).copied().unwrap_or(Color::Reset))
    }
}
