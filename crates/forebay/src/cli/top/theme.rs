//! Colours, and the attributes that replace them on terminals without colours.

use forebay_admin::VolumeState;
use ratatui::style::{Color, Modifier, Style};

/// Characters of the heat map's cells by density; the first is empty.
pub(super) const SHADES: [&str; 5] = [" ", "░", "▒", "▓", "█"];

/// The colours of the heat map by density.
const HEAT: [Color; 5] = [Color::Reset, Color::Blue, Color::Cyan, Color::Yellow, Color::Red];

/// Whether there are colours. No information is in the colour alone.
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

    /// Returns the style of headings.
    pub(super) fn heading(self) -> Style {
        self.coloured(Color::Cyan).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of the heading by which the volumes are sorted.
    pub(super) fn sorted(self) -> Style {
        self.heading().add_modifier(Modifier::UNDERLINED)
    }

    /// Returns the style of less important text.
    pub(super) fn quiet(self) -> Style {
        if self.coloured { Style::new().fg(Color::DarkGray) } else { Style::new() }
    }

    /// Returns the style of names.
    pub(super) fn name(self) -> Style {
        Style::new().add_modifier(Modifier::BOLD)
    }

    /// Returns the style of text that needs attention.
    pub(super) fn bad(self) -> Style {
        self.coloured(Color::Red).add_modifier(Modifier::BOLD)
    }

    /// Returns the style of the selected row, and of the line that reports a silent daemon.
    pub(super) fn marked(self) -> Style {
        Style::new().add_modifier(Modifier::REVERSED)
    }

    /// Returns the style of the reasons of misses.
    pub(super) fn reason(self) -> Style {
        self.coloured(Color::Yellow)
    }

    /// Returns the style of the lines over time.
    pub(super) fn line(self) -> Style {
        self.coloured(Color::Green)
    }

    /// Returns the style of a state.
    pub(super) fn state(self, state: VolumeState) -> Style {
        match state {
            VolumeState::Running | VolumeState::Draining => self.coloured(Color::Green),
            VolumeState::Degraded | VolumeState::Failed => self.bad(),
            _ => self.quiet(),
        }
    }

    /// Returns the style of a cell of the heat map.
    pub(super) fn heat(self, density: usize) -> Style {
        self.coloured(HEAT.get(density).copied().unwrap_or(Color::Reset))
    }
}
